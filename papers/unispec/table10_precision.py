"""Table 10: ROUGE scores and speed in float32, float16 and bfloat16, texts written freely.

    python -m papers.unispec.table10_precision

The articles of CNN/DailyMail and the problems of GSM8K are those of Spec-Bench (`summarization`, `math_reasoning`),
which brings their references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline_lab import Summary
from papers.common import Claim, Report, Way, script
from papers.unispec.common import Lab, between, number, over, parser, size_notes, sized, speed_up, with_interval
from papers.unispec.rouge import NAMES, scores
from papers.unispec.tables import beside, conditions

TYPES = "float32", "float16", "bfloat16"
TASKS = {"summarization": "CNN", "math_reasoning": "GSM8K"}


def same(run: Summary, entry: str, task: str | None = None) -> tuple[int, int, float]:
    """Texts that are plain decoding's, all texts, and the share of tokens before they part."""
    records = [one for one in run.records(entry) if task in (None, one.task)]
    tokens = sum(len(one.tokens) for one in records)
    agree = sum(len(one.tokens) if one.parts_at is None else min(one.parts_at, len(one.tokens)) for one in records)
    return sum(one.verdict in ("equal", "reference") for one in records), len(records), agree / max(tokens, 1)


def rouge(run: Summary, entry: str, task: str) -> list[float]:
    """Means over the texts of a task that have a reference, in hundredths; none where no text has one."""
    found = [
        got
        for one in run.records(entry)
        if one.task == task and (answers := run.run.prompts[one.prompt].reference)
        if (got := scores(answers[one.turn], one.text)) is not None
    ]
    return [100 * float(column) for column in np.mean(found, axis=0)] if found else []


def row(name: str, run: Summary, entry: str, task: str) -> tuple[str, ...]:
    figures, (equal, texts, agree) = run.figures(entry, task), same(run, entry, task)
    cells = [f"{one:.2f}" for one in rouge(run, entry, task)] or [""] * len(NAMES)
    per_round = "" if figures is None else number(figures.tokens_per_round)
    speed = with_interval(speed_up(run, entry, task))
    return f"{name}  {TASKS.get(task, task)}  {entry}", *cells, speed, per_round, f"{equal} of {texts}", f"{agree:.1%}"


def report(runs: Mapping[str, Summary], entry: str, notes: Sequence[str] = ()) -> Report:
    rows = [row(name, run, other, task) for name, run in runs.items() for task in run.tasks for other in run.entries]
    claims = list[Claim]()
    if "float32" in runs:
        counts = [same(runs["float32"], other)[:2] for other in runs["float32"].entries[1:]]
        equal, texts = (sum(column) for column in zip(*counts, strict=True))
        claim, paper = "in float32 texts are plain decoding's own", "the scores of its texts are the same"
        ours = f"{equal} of {texts} texts are the same"
        claims.append(Claim(claim, paper, ours, equal == texts))
    first, *others = runs
    for other in others:
        one, two = speed_up(runs[other], entry), speed_up(runs[first], entry)
        claim = f"the speed-up of {other} is about that of {first}"
        paper = "2.12x in float16 and 2.09x in float32" if {first, other} == {"float32", "float16"} else ""
        claims.append(Claim.of(claim, paper, between(one, two), Way.LEVEL, over(one, two)))
    head = ("", *NAMES, "x plain [95%]", "tokens/round", "same texts", "tokens before they part")
    return Report("UniSpec, Table 10: precision", [(head, rows)], claims, notes)


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(suite="spec-bench", tasks=[*TASKS])
    lab = Lab(options.parse_args())
    methods = [entry := sized(lab.method, lab.size()), *beside(lab)]
    runs = lab.races({dtype: {"methods": methods, "dtype": dtype, "follow": False} for dtype in TYPES})
    lab.show(report(runs, entry, [*size_notes(lab.size()), *conditions(lab)]))


if __name__ == "__main__":
    script(main)
