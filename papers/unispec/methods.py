"""Methods beside one another: Tables 1, 2, 6, 8, 12 and 17. Every report is by task, of one run or of several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from paceline_lab import Between, Calibration, Estimate, Summary
from papers.charts import Panel, curves
from papers.driver import Given
from papers.report import CHANCE, UNBOUNDED, Claim, Report, Way
from papers.speeds import (
    HEAD,
    against,
    best,
    brings,
    by,
    compared,
    faster,
    of_run,
    of_runs,
    pairwise,
    ratio,
    row,
    speed_up,
    tokens_per_round,
    with_interval,
)
from papers.unispec.calibration import MOST, even
from papers.unispec.lab import (
    AUTO,
    SizesLab,
    at,
    published,
    sampled,
    shared,
    size_notes,
    sized,
    with_options,
)

RIVALS = "lookup:paper", "lookahead:paper", "spectra:paper", "recycling:paper"
"""The other methods of the paper's tables, as their authors have them: prompt lookup, Lookahead, SPECTRA, TokenRec."""
TWO_TASKS = "mt_bench", "code"

# --- Tables 1 and 5


def table1(given: Given) -> Report:
    """Tables 1 and 5: Spec-Bench, speed-up and tokens per round by task and by language, and their means.

    Beside it stand UniSpec against Token Recycling, and `auto` against the best of the others, in every task. With
    ``--suite multi-spec-bench --langs de,es,fr,ja,vi,zh`` it is Table 5. `main` joins runs of several machines.
    """
    lab = SizesLab(given)
    found = None if given.planner else lab.size()
    entry = sized(lab.method, found)
    methods = [*given.rivals, entry, *([AUTO] if given.planner else lab.beside())]
    run = lab.run(methods, planner=given.planner)
    return lab.whole(spec_bench(run, entry), [*size_notes(found), *sampled(lab.temperature, given.model)])


def spec_bench(run: Summary, entry: str) -> Report:
    rival = next((one for one in run.entries if one.partition("@")[0] == "recycling:paper"), None)
    tables = [by("task", of_run(run)), *([by("language", of_run(run))] if len(run.languages) > 1 else [])]
    claims = [] if rival is None else [everywhere(run, entry, rival)]
    return Report("UniSpec, Tables 1 and 5: Spec-Bench", tables, claims, [*of_auto(run)])


def everywhere(run: Summary, entry: str, rival: str) -> Claim:
    """In how many tasks the paper's method is faster than another."""
    ratios = {task: ratio(run, entry, rival, task) for task in run.tasks}
    lost = [task for task, one in ratios.items() if not one.value > 1]
    known = all(one.excludes(1) for one in ratios.values()) if not lost else any(ratios[t].high < 1 for t in lost)
    whole = f"{against(run, entry, rival)}{pairwise(ratio(run, entry, rival))}"
    ours = f"in {len(ratios) - len(lost)} of {len(ratios)} tasks, {whole}"
    doubt = "" if known else CHANCE if all(one.bounded for one in ratios.values()) else UNBOUNDED
    return Claim("UniSpec is faster than Token Recycling", "in every task", ours, not lost, doubt)


def of_auto(run: Summary) -> Iterator[str]:
    """`auto` against the best of the others, task by task."""
    entries = [entry for entry in run.entries[1:] if entry.partition("@")[0] != AUTO]
    if AUTO not in run.entries or not entries:
        return
    gains = dict[str, Estimate]()
    for task in run.tasks:
        other = best({entry: speed_up(run, entry, task).value for entry in entries})
        gains[task] = ratio(run, AUTO, other, task)
        yield f"{task}: auto over {other}, the best other method, {with_interval(gains[task])}"
    whole = float(np.exp(np.mean([np.log(one.value) for one in gains.values()])))
    ahead = sum(one.value > 1 for one in gains.values())
    yield f"auto is {whole:.3f}x the best other method of each task on average, and ahead in {ahead} of {len(gains)}"


# --- Table 2

UNCALIBRATED = 100
WITHOUT = {"without score estimation": "scores=false", "without tree expansion": "next=none,threshold=0"}
"""Parts that can be switched off, and how."""
ABLATED = {"without calibration": 1.61, "without score estimation": 1.48, "without tree expansion": 1.66}
"""The paper's speed-ups on MT-Bench, and 1.96 with all parts."""


def table2(given: Given) -> Report:
    """Table 2: UniSpec without calibration, without score estimation, without its tree expansion.

    Without calibration it drafts 100 nodes, ten for each of ten levels; the paper does not state its size. Without tree
    expansion it has neither the next-next candidates nor the threshold. The paper's numbers are those of MT-Bench.
    """
    lab = SizesLab(given)
    specs = parts(lab.method, lab.size())
    run = lab.run(["spectra:paper", "recycling:paper", *specs.values(), *lab.beside()])
    return lab.whole(ablation(run, specs))


def parts(method: str, found: Calibration) -> dict[str, str]:
    """Name -> spec."""
    without = {name: sized(with_options(method, option), found) for name, option in WITHOUT.items()}
    return {"whole": sized(method, found), "without calibration": at(method, UNCALIBRATED), **without}


def ablation(run: Summary, specs: Mapping[str, str]) -> Report:
    whole, off, tree = specs["whole"], specs["without calibration"], specs["without tree expansion"]
    claims = [
        faster(run, specs[name], whole, f"{name}, it is slower", f"{paper:.2f}x against 1.96x on MT-Bench", Way.BELOW)
        for name, paper in ABLATED.items()
    ]
    tokens = "2.58 on MT-Bench"
    claims += [
        brings(run, off, whole, "without calibration, rounds bring more", f"2.76 against {tokens}", Way.ABOVE),
        brings(run, tree, whole, "without tree expansion, rounds bring less", f"2.20 against {tokens}", Way.BELOW),
    ]
    names = {spec: f"{spec}  ({name})" for name, spec in specs.items()}
    return Report("UniSpec, Table 2: ablation", [by("task", of_run(run, names))], claims)


# --- Table 6

HEATS = {"T=0": "2.13x against 1.97x of Token Recycling", "T=1.0": "1.85x against 1.78x of Token Recycling"}
"""Temperatures, and the paper's speed-ups at them."""


def table6(given: Given) -> Report:
    """Table 6: methods at temperatures 0 and 1, by task.

    At temperature 1 the methods as published rank drafts by probability alone; `noise=shared` is the same method with
    the noise that the target will choose by.
    """
    lab = SizesLab(given)
    entry, stages = lab.sized(), {}
    for name in HEATS:
        heat = float(name[2:])
        noisy = [shared(rival) for rival in RIVALS[1:]] if heat and published(lab.method) else []
        stages[name] = {"methods": [*RIVALS[1:], *noisy, entry, *lab.beside(heat)], "temperature": heat}
    return lab.whole(temperatures(lab.races(stages), lab.method, entry), size_notes(lab.size()))


def temperatures(runs: Mapping[str, Summary], method: str, entry: str) -> Report:
    claims, noisy = list[Claim](), entry.replace(method, shared(method), 1)
    if len(runs) == len(HEATS):
        cold, warm = (runs[name] for name in HEATS)
        claim = f"{method} gains less at temperature 1 than at 0"
        moved = next(one for one in Between(cold.run, warm.run).findings if one.entry == entry and one.task is None)
        two, one = with_interval(speed_up(warm, entry)), with_interval(speed_up(cold, entry))
        ours = f"{two} against {one}{pairwise(moved.ratio)}"
        claims.append(Claim.of(claim, "1.85x against 2.13x", ours, Way.BELOW, moved.ratio))
    for name, run in runs.items():
        rival = best({one: speed_up(run, one).value for one in RIVALS[1:] if one in run.entries})
        claim = f"at {name} {method} is faster than the best of the others"
        claims.append(faster(run, entry, rival, claim, HEATS[name], Way.ABOVE, f" of {rival}"))
        if noisy in run.entries:
            claims.append(faster(run, noisy, entry, f"at {name} shared noise adds to {method}", "", Way.ABOVE))
    notes = ["a model that loops when it is greedy flatters methods that look things up"]
    return Report("UniSpec, Table 6: temperature", [by("task", of_runs(runs))], claims, notes)


# --- Table 8

BATCHES = 1, 2, 3, 4, 5


def table8(given: Given) -> Report:
    """Table 8: speed-up by batch size.

    Decoding time is defined alike at all sizes: while every text of the batch has its first token, prompts apart. All
    sizes take the same prompts, as many as fill the largest batches.
    """
    lab = SizesLab(given)
    methods = [lab.sized(), *lab.beside(), *given.rivals]
    how = {"methods": methods, "draft_model": given.draft_model, "limit": filling(given.limit, max(given.batch))}
    return lab.whole(batches(lab.races({n: {**how, "batch": n} for n in given.batch}, "batch {}")))


def filling(limit: int, batch: int) -> int:
    """``limit`` prompts, or a few more so that no batch of this size is smaller than the others."""
    return batch * math.ceil(limit / batch)


def batches(runs: Mapping[int, Summary]) -> Report:
    """A run for each batch size."""
    first, *_, last = [*runs.values()] * 2
    entry, claim = first.entries[1], "the speed-up falls from single texts to the largest batch"
    claims = [compared(claim, "1.73x against 2.10x", speed_up(last, entry), speed_up(first, entry), Way.BELOW)]
    lines = curves({e: e for e in first.entries}, runs, lambda run, e: speed_up(run, e).value, first=0)
    rows = [row(run, entry, f"batch {n}  {entry}") for n, run in runs.items() for entry in run.entries]
    panels = [Panel("Speed-up by batch size", "texts at a time", "x plain", lines)]
    return Report("UniSpec, Table 8: batch size", [(HEAD, rows)], claims, panels=panels)


# --- Table 12

THRESHOLDS = "0", "0.01", "0.025", "0.05", "0.1", "0.2"
SHARED = ", shared noise"


def table12(given: Given) -> Report:
    """Table 12: thresholds of the draft tree from 0 to 0.2, by task.

    Where texts are sampled, the same thresholds stand there with the shared noise, too.
    """
    lab = SizesLab(given)
    specs = thresholds(lab.method, lab.size(), published(lab.method) and lab.temperature > 0)
    return lab.whole(confidence(lab.run([*specs.values(), *lab.beside(0.0)]), specs))


def thresholds(method: str, found: Calibration, noisy: bool) -> dict[str, str]:
    """Threshold -> spec, and the same with the shared noise."""
    kinds = {"": method, **({SHARED: shared(method)} if noisy else {})}
    return {
        f"{r}{more}": sized(with_options(spec, f"threshold={r}"), found)
        for more, spec in kinds.items()
        for r in THRESHOLDS
    }


def confidence(run: Summary, specs: Mapping[str, str]) -> Report:
    """``specs`` by threshold."""
    none, mild, most = specs["0"], specs["0.05"], specs["0.2"]
    claims, notes = (
        [
            faster(run, mild, none, "a mild threshold (0.05) is faster than none", "1.99x against 1.90x", Way.ABOVE),
            brings(run, mild, none, "and its rounds bring more", "2.58 against 2.40 tokens (MT)", Way.ABOVE),
            faster(
                run, most, mild, "the largest threshold (0.2) is slower than 0.05", "1.91x against 1.99x", Way.BELOW
            ),
        ],
        list[str](),
    )
    for more in ("", SHARED):
        kind = {r: entry for r, entry in specs.items() if r.endswith(SHARED) == bool(more)}
        if kind:
            r = best({r: speed_up(run, entry).value for r, entry in kind.items()})
            wide = best({r: tokens_per_round(run, entry) for r, entry in kind.items()})
            brought = f"most tokens a round: r = {wide} ({tokens_per_round(run, kind[wide]):.2f})"
            second = "; in the paper r = 0.05 and 0.025" if not more else ""
            notes.append(f"fastest here: r = {r} ({with_interval(speed_up(run, kind[r]))}), {brought}{second}")
    names = {entry: f"r = {r}" for r, entry in specs.items()}
    return Report("UniSpec, Table 12: confidence threshold", [by("task", of_run(run, names))], claims, notes)


# --- Table 17

SIZES = {"lookahead:paper": 120, "spectra:paper": 60, "recycling:paper": 80}
"""As published."""
PAPER = {
    "lookahead:paper": ("60 nodes, 1.40x and 1.44x against 1.15x and 1.11x", "1.85 and 1.98 against 2.00 and 2.01"),
    "spectra:paper": ("30 nodes, 1.47x and 1.66x against 1.25x and 1.32x", "1.77 and 1.76 against 1.96 and 1.98"),
    "recycling:paper": ("53 nodes, 1.78x and 1.75x against 1.51x and 1.47x", "2.33 and 2.41 against 2.57 and 2.68"),
}
"""MT-Bench and code: speed-ups, and tokens per round."""


def table17(given: Given) -> Report:
    """Table 17: other methods as published and at their calibrated sizes, by task, greedy as in the paper.

    The paper's procedure calibrates each on runs of 1 to 128 nodes; windows count.
    """
    lab = SizesLab(given)
    runs = given.calibration_runs
    made = {rival: lab.calibrate(rival, rival, sizes=even(1, max(MOST, own), runs)) for rival, own in SIZES.items()}
    found: dict[str, Calibration] = lab.needed(made, "calibrated")
    both = [entry for rival, one in found.items() for entry in (at(rival, SIZES[rival]), sized(rival, one))]
    run = lab.run([*both, lab.sized(), *lab.beside()])
    notes = [note for rival, one in found.items() for note in size_notes(one, rival)]
    return lab.whole(rivals(run, found), [*notes, *sampled(lab.temperature, given.model)])


def rivals(run: Summary, calibrated: Mapping[str, Calibration]) -> Report:
    claims, names = list[Claim](), dict[str, str]()
    for method, found in calibrated.items():
        (speeds, tokens), own, tuned = PAPER[method], at(method, SIZES[method]), sized(method, found)
        names |= {own: f"{method}, {SIZES[method]} nodes", tuned: f"{method}, {found.nodes} nodes (calibrated)"}
        claim, nodes = f"{method} is faster at its calibrated size than as published", f" with {found.nodes} nodes"
        gains = faster(run, tuned, own, claim, speeds, Way.ABOVE, nodes)
        pays = any(speed_up(run, entry).value > 1 for entry in (tuned, own))
        fewer = brings(run, tuned, own, f"and its rounds bring less, {method}", tokens, Way.BELOW)
        claims += [gains, fewer] if pays else [unpaid(gains), unpaid(fewer)]
    return Report("UniSpec, Table 17: rivals at calibrated sizes", [by("task", of_run(run, names))], claims)


def unpaid(claim: Claim) -> Claim:
    """Towards no drafts at all every method that does not pay gets faster and brings less, which is not what the paper
    found."""
    return replace(claim, ours=f"{claim.ours}: neither is faster than plain decoding", agrees=None)
