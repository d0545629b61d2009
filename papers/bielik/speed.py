"""Tables 3, 4 and 11: speed by the way that drafts are translated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import paceline
from paceline_lab import Summary, as_lines, race_methods
from papers.bielik.measured import ALPACA, CONTEXT, STAND_INS, beside, checked, datasets, method
from papers.driver import Given, progress, write
from papers.lab import folder_of
from papers.report import Claim, Report, Table, Way
from papers.speeds import UNKNOWN, faster, machine_of, verdicts, with_interval, written

MODELS = tuple(f"pocket+ballast:{size}" for size in ("30M", "150M", "500M"))
Cell = tuple[float, float]
TABLE3: Mapping[tuple[str, str], tuple[Cell, Cell, Cell]] = {
    ("Bielik-1.5B", "no translation"): ((13.72, 0.93), (10.80, 0.74), (10.68, 0.73)),
    ("Bielik-1.5B", "naive"): ((10.32, 0.70), (9.69, 0.66), (9.72, 0.66)),
    ("Bielik-1.5B", CONTEXT): ((12.85, 0.87), (11.92, 0.81), (11.02, 0.75)),
    ("Llama-3.2-1B", "no translation"): ((14.03, 0.95), (11.24, 0.77), (11.02, 0.75)),
    ("Llama-3.2-1B", "naive"): ((8.96, 0.60), (8.82, 0.60), (8.77, 0.60)),
    ("Llama-3.2-1B", CONTEXT): ((15.67, 1.06), (14.22, 0.97), (14.39, 0.98)),
    ("Qwen2.5-1.5B", "no translation"): ((14.17, 0.96), (10.96, 0.75), (10.79, 0.73)),
    ("Qwen2.5-1.5B", "naive"): ((8.87, 0.60), (8.54, 0.58), (8.47, 0.58)),
    ("Qwen2.5-1.5B", CONTEXT): ((15.68, 1.06), (14.44, 0.98), (14.76, 1.00)),
}
"""Tokens per second and speed-up with k = 2, by data set."""
TABLE4: Mapping[str, tuple[float, float, float]] = {
    "Bielik-1.5B": (0.59, 0.51, 0.46),
    "Llama-3.2-1B": (0.66, 0.59, 0.61),
    "Qwen2.5-1.5B": (0.70, 0.59, 0.61),
}
"""Speed-up with k = 4, context-aware."""
TABLE11 = {"Bielik-1.5B": 0.28, "Llama-3.2-1B": 0.35, "Qwen2.5-1.5B": 0.40}
"""Speed-up with k = 6, context-aware, pl_alpaca."""
Condition = tuple[str, str, int]
"""Drafter, strategy and k."""


def conditions(given: Given) -> dict[Condition, str]:
    """The methods: all strategies with the least k, the context-aware one and ours with the others."""
    later = [one for one in given.strategies if one == CONTEXT or one.startswith("lattice")]
    return {
        (drafter, strategy, k): method(drafter, strategy, k)
        for drafter in given.draft_model
        for k in given.k
        for strategy in (given.strategies if k == given.k[0] else later)
    }


def printed(drafter: str, strategy: str, k: int, dataset: str) -> str:
    """The paper's speed-up."""
    found = dict[str, float | None]()
    for one in TABLE4 if dataset in STAND_INS else ():
        at = list(STAND_INS).index(dataset)
        if k == 2 and (one, strategy) in TABLE3:
            found[one] = TABLE3[one, strategy][at][1]
        elif k == 4 and strategy == CONTEXT:
            found[one] = TABLE4[one][at]
        elif k == 6 and strategy == CONTEXT and dataset == ALPACA:
            found[one] = TABLE11[one]
    return beside(drafter, found, ".2f")


def table(run: Summary, entries: Mapping[Condition, str]) -> Table:
    head = [run.run.name, "k"]
    for dataset in run.tasks:
        head += [f"{dataset}, tokens/s", "x plain [95%]", "paper"]
    rows = [speeds("plain", "", run, run.base, [""] * len(run.tasks))]
    for (drafter, strategy, k), entry in entries.items():
        paper = [printed(drafter, strategy, k, dataset) for dataset in run.tasks]
        rows.append(speeds(f"{drafter}  {strategy}", str(k), run, entry, paper))
    return head, rows


def speeds(name: str, k: str, run: Summary, entry: str, paper: Sequence[str]) -> tuple[str, ...]:
    row = [name, k]
    for dataset, cell in zip(run.tasks, paper, strict=True):
        figures = run.figures(entry, dataset)
        rate, ratio = (None, None) if figures is None else (figures.tokens_per_second, figures.speed_up)
        row += [written(rate, ".1f"), with_interval(ratio or UNKNOWN), cell]
    return tuple(row)


def claims(run: Summary, entries: Mapping[Condition, str]) -> Iterator[Claim]:
    name, (low, high) = run.run.name, (min(k for _, _, k in entries), max(k for _, _, k in entries))
    for drafter in dict.fromkeys(d for d, _, _ in entries):
        if (one := entries.get((drafter, CONTEXT, low))) is None:
            continue
        for other in ("no translation", "naive"):
            if (rival := entries.get((drafter, other, low))) is not None:
                claim = f"{name}, {drafter}, k = {low}: context-aware is faster than {other}"
                cells = [pair for d in TABLE4 for pair in zip(TABLE3[d, CONTEXT], TABLE3[d, other], strict=True)]
                paper = f"in {sum(a > b for (a, _), (b, _) in cells)} of {len(cells)} cells of Table 3"
                yield faster(run, one, rival, claim, paper, Way.ABOVE)
        if (more := entries.get((drafter, CONTEXT, high))) is not None and high > low:
            claim = f"{name}, {drafter}: k = {high} is slower than k = {low}"
            yield faster(run, more, one, claim, "0.28 to 0.40 plain speeds less with k = 4 than 2", Way.BELOW)


def raced(given: Given, model: str, entries: Mapping[Condition, str], prompts: Path) -> Summary:
    lm = paceline.load(model, dtype=given.dtype, device=given.device, generation_config=False)
    how = {name: getattr(given, name) for name in ("max_new_tokens", "temperature", "seed", "repeat")}
    how |= {"suite": f"prompts:{prompts}", "out": given.out / folder_of(model), "progress": progress}
    return race_methods(lm, [*entries.values()], **how)


def speed(given: Given) -> Report:
    """Tables 3, 4 and 11: tokens per second and speed-up by the way that drafts are translated, and by draft length.

    Every condition writes every prompt right after the others, as in `bench run`, and a ratio is of two texts of the
    same prompt. The shortest k has all ways to translate; longer drafts have the context-aware way, as in the paper,
    and ours. Runs are kept in OUT, a folder for each target model, for `buckets` and `breakeven`; the same command goes
    on with them. Without a model the target is `pocket` at three costs, which ballast gives it: it writes the same
    texts more slowly.
    """
    if given.quick:
        given.model, given.k = given.model[:1], given.k[:2]
    given.out = given.out or Path("runs", "papers", "bielik-quick" if given.quick else "bielik")
    entries = conditions(checked(given, tokens=16))
    found, notes = datasets(given)
    prompts = given.out.parent / f"{given.out.name}.jsonl"
    write(prompts, as_lines([replace(p, task=name, language="pl") for name, ps in found.items() for p in ps]))
    runs = [raced(given, model, entries, prompts) for model in given.model]
    progress("")
    texts = {run.run.name: [verdicts(f) for e in run.entries[1:] if (f := run.figures(e)) is not None] for run in runs}
    notes += [
        f"{name}: texts are {', '.join(dict.fromkeys(found))} to plain decoding's" for name, found in texts.items()
    ]
    notes += [*dict.fromkeys(map(machine_of, runs)), f"runs are kept in {given.out}"]
    tables, said = [table(run, entries) for run in runs], [one for run in runs for one in claims(run, entries)]
    data = {"out": str(given.out), "runs": {run.run.name: run.as_dict() for run in runs}}
    return Report("Bielik, Tables 3, 4 and 11: speed across tokenizers", tables, said, notes, data=data)
