"""Warnings about the numbers of a run: sentences, the most serious first.

"Unstable" always has its reason: times of the same text that differ, a machine that became slower, rounds that stalled,
a wide interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.cli.output import counted
from paceline_lab.bench.run.record import TextVerdict
from paceline_lab.bench.statistics import STABLE, difference
from paceline_lab.bench.summary import Summary, of_cell

CPU = "cpu"
DRIFT = 1.1
"""The same for plain decoding's speeds at the two ends of a run."""
WIDE = 0.1
"""The same for half an interval, as a share of its speed-up."""
UNKNOWN = 1.0
"""From this share on, an interval says nothing."""
STALLED = 0.01
"""Share of rounds that stalled up to which a measurement counts as stable."""
WARM_UP = {
    TextVerdict.NEAR_TIE: "a near tie of the arithmetic",
    TextVerdict.BUG: "rounding does not explain it, so this is a bug",
    TextVerdict.DIFFERENT: "rounding does not explain it, so it writes another text",
    TextVerdict.NOT_RESCORED: "the place could not be scored again, so a near tie and a bug look the same",
}
SERIOUS = {
    TextVerdict.BUG: "and rounding does not explain it: this is a bug",
    TextVerdict.DIFFERENT: "and it is another library's, so a near tie and a mistake look the same",
    TextVerdict.NOT_RESCORED: "and the place could not be scored again, so a near tie and a bug look the same",
}


def warnings(summary: Summary) -> list[str]:
    """All warnings about a run."""
    if not summary.run.records:
        return ["not a single text is finished"]
    kinds = (_texts, _whole, _sittings, _stability, _stalls, _loops, _work, _energy)
    return [sentence for kind in kinds for sentence in kind(summary)]


def _texts(summary: Summary) -> Iterator[str]:
    """Texts that are not plain decoding's."""
    plain, texts = summary.entries[0], summary.texts
    for verdict, meaning in SERIOUS.items():
        for entry in summary.entries:
            odd = of_cell(texts[texts.verdict == verdict], entry)
            if len(odd):
                first = summary.run.records[odd.index[0]]
                all_texts = counted(len(of_cell(texts, entry)), "text")
                where = "" if first.parts_at is None else f", from token {first.parts_at + 1} on"
                yield (
                    f"{entry} wrote another text than {plain} in {len(odd)} of {all_texts} (first "
                    f"{first.prompt}{where}), {meaning}"
                )
    tied = texts[texts.verdict == TextVerdict.NEAR_TIE]
    ties = {entry: len(found) for entry in summary.entries if len(found := of_cell(tied, entry))}
    if ties:
        yield (
            f"texts part from {plain}'s at a near tie of the arithmetic, so not the same work was done: {_each(ties)}"
        )


def _whole(summary: Summary) -> Iterator[str]:
    """The missing parts."""
    about = summary.run.about
    if not about.finished:
        done = len(summary.texts[["unit", "repeat"]].drop_duplicates())
        yield f"not finished: {done} of {about.workload.get('units', '?')} units are written"
    for name, why in about.missing.items():
        yield f"{name} is missing: {why}"
    device = str(about.model.get("device", CPU))
    if device != CPU and (there := [entry["name"] for entry in about.entries if entry.get("device") == CPU]):
        yield f"{' and '.join(there)} computed on the CPU, and the target on {device}: --device cpu has all on one"
    shortened = about.workload.get("shortened", [])
    if shortened:
        yield f"{counted(len(shortened), 'prompt')} lost the beginning, for the model's context is too short"


def _sittings(summary: Summary) -> Iterator[str]:
    """A run that continued elsewhere, with other software, or on a machine that was busy."""
    sittings = summary.run.about.sittings
    for name, values in _facts(sittings).items():
        if len(values) > 1:
            yield f"{len(sittings)} sessions differ in {name}: {' and '.join(values)}"
    busy = [
        f"{load:g} on {counted(cores, 'core')}"
        for sitting in (sittings if _timed(summary) else ())
        if (load := sitting.get("load")) and (cores := (sitting.get("machine") or {}).get("cores")) and load > cores / 2
    ]
    if busy:
        yield f"the machine was busy when a session began: load {', '.join(busy)}"


def _facts(sittings: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Properties that all sittings should share -> the values that occur."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for sitting in sittings:
        for group in ("versions", "machine", "git"):
            for name, value in (sitting.get(group) or {}).items():
                found[f"the state of the sources ({name})" if group == "git" else name][str(value)] = None
        found["threads"][str(sitting.get("threads"))] = None
    return {name: list(values) for name, values in found.items()}


def _timed(summary: Summary) -> bool:
    """Whether there are times. A text that is replayed has none."""
    return bool(summary.texts.speed.notna().any())


def _stability(summary: Summary) -> Iterator[str]:
    if not _timed(summary):
        return
    repeats = summary.texts.groupby(["entry", "prompt", "turn"]).speed.agg(["count", "min", "max"]).query("count > 1")
    if repeats.empty:
        yield "every text was written once, so the noise of the measurement is unknown"
    elif ((spread := repeats["max"] / repeats["min"]) > STABLE).any():
        yield (
            f"unstable: times of the same text differ by up to {spread.max():.1f}x between repeats, of "
            f"{(spread > STABLE).sum()} of {len(spread)} by more than {STABLE:g}x"
        )
    if (drift := _drift(summary)) is not None:
        change = f"{max(drift, 1 / drift):.2f}x {'slower' if drift < 1 else 'faster'}"
        yield f"unstable: {summary.entries[0]} was {change} at the end than at the beginning"
    yield from _intervals(summary)


def _drift(summary: Summary) -> float | None:
    """Plain decoding's speed in the last third of a run over that in the first, where they differ by more than chance
    and than is tolerable. Thirds are taken task by task, since tasks differ in speed."""
    plain = of_cell(summary.texts, summary.entries[0]).dropna(subset="speed")
    ratios = list[float]()
    for _, speeds in plain.groupby(["task", "language", "turn"], sort=False).speed:
        third = len(speeds) // 3
        ratios += (speeds.to_numpy()[len(speeds) - third :] / speeds.to_numpy()[:third]).tolist()
    if len(ratios) < 2:
        return None
    found = difference(ratios).ratio
    return found.value if found.excludes(1) and not 1 / DRIFT < found.value < DRIFT else None


def _intervals(summary: Summary) -> Iterator[str]:
    known = ((entry, summary.figures(entry)) for entry in summary.entries)
    found = {entry: figures.speed_up for entry, figures in known if figures is not None and figures.speed_up}
    widths = {entry: (one.high - one.low) / 2 / one.value for entry, one in found.items() if one.bounded}
    if single := [entry for entry, one in found.items() if not one.bounded]:
        yield f"a single unit was written, so there is no interval around the speed-up of {', '.join(single)}"
    if unknown := [entry for entry, width in widths.items() if width > UNKNOWN]:
        yield f"unstable: the speed-up of {', '.join(unknown)} is unknown, for lack of prompts"
    if wide := {entry: f"±{width:.0%}" for entry, width in widths.items() if WIDE < width <= UNKNOWN}:
        yield f"unstable: speed-ups are uncertain by {_each(wide)}; more prompts would narrow that"
    plain = of_cell(summary.texts, summary.entries[0])
    prompts = plain[plain.turn == 0].groupby(["task", "language"]).size()
    lone = int((prompts == 1 + summary.texts["repeat"].max()).sum())
    if 0 < lone < len(prompts) or (lone and len(prompts) > 1):
        yield f"{lone} of {len(prompts)} cells have a single prompt, and no interval"


def _stalls(summary: Summary) -> Iterator[str]:
    known = ((entry, summary.figures(entry)) for entry in summary.entries)
    found = {entry: (one.stalls, one.rounds) for entry, one in known if one is not None and one.stalls and one.rounds}
    if found:
        serious = any(stalls > STALLED * rounds for stalls, rounds in found.values())
        counts = {entry: f"{stalls} of {rounds}" for entry, (stalls, rounds) in found.items()}
        yield f"{'unstable: ' if serious else ''}rounds took more than five times the median round: {_each(counts)}"


def _loops(summary: Summary) -> Iterator[str]:
    figures = summary.figures(summary.entries[0])
    if figures is not None and figures.degenerate:
        yield (
            f"{figures.degenerate} of {figures.texts} texts of {summary.entries[0]} loop (more than a fifth of their "
            "8-grams are repeated), which flatters methods that look things up"
        )


def _work(summary: Summary) -> Iterator[str]:
    """Advantages that methods had from earlier prompts, and work that they were spared."""
    recipe = summary.run.about.recipe
    if recipe.get("warm"):
        yield "methods kept what they learnt from prompt to prompt; later prompts had the help of earlier ones"
    if recipe.get("qps"):
        yield (
            f"prompts arrived, {recipe['qps']:g} a second: faster methods write smaller batches, so speed-ups compare "
            "different batch sizes; compare how long each prompt waited for its tokens"
        )
    if recipe.get("follow"):
        free = "" if all(entry.get("ours", True) for entry in summary.run.about.entries) else "; peers wrote freely"
        whose = "the texts that the prompts name" if summary.run.about.workload.get("known") else _PLAINS
        followed = f"methods followed {whose}, so all did the same work{free}"
        rates = [
            f"{entry} {figures.flips_per_1000:.1f}"
            for entry in summary.entries
            if (figures := summary.figures(entry)) is not None and figures.flips_per_1000
        ]
        yield followed + (f"; per 1,000 tokens another would have been chosen: {', '.join(rates)}" if rates else "")
    for entry, found in summary.run.about.warm_up.items():
        if (verdict := found.get("verdict")) is not None:
            place = f"parted from {summary.entries[0]} at token {found['parts_at'] + 1} of the greedy warm-up"
            yield f"{entry} {place}: {WARM_UP.get(verdict, verdict)}"


def _energy(summary: Summary) -> Iterator[str]:
    energy = summary.run.about.energy
    if energy.get("source") not in (None, "none") and not energy.get("measured"):
        watts = energy.get("watts")
        power = "" if watts is None or not math.isfinite(watts) else f" of {watts:g} W"
        yield f"energy is an estimate from a stated power{power}, not measured"


_PLAINS = "plain decoding's recorded text"


def _each(found: Mapping[str, object]) -> str:
    """Numbers, each with its entry."""
    return ", ".join(f"{value} ({entry})" for entry, value in found.items())
