"""Table 10: ROUGE scores and speed in float32, float16 and bfloat16.

ROUGE-1, ROUGE-2 and ROUGE-L are the F1 scores that the package rouge_score computes without its stemmer. Words are runs
of the letters a to z and of digits, in lower case; everything else parts them. So there is no score for texts in other
scripts: a reference without such words has none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from paceline_lab import Summary
from papers.driver import Given
from papers.report import Claim, Report, Way
from papers.speeds import compared, per_round, speed_up, with_interval, written
from papers.unispec.lab import SizesLab

NAMES = "ROUGE-1", "ROUGE-2", "ROUGE-L"
TYPES = "float32", "float16", "bfloat16"
TASKS = {"summarization": "CNN", "math_reasoning": "GSM8K"}


def table10(given: Given) -> Report:
    """Table 10: ROUGE scores and speed in float32, float16 and bfloat16, texts written freely.

    The articles of CNN/DailyMail and the problems of GSM8K are those of Spec-Bench (`summarization`, `math_reasoning`),
    which brings their references.
    """
    lab = SizesLab(given)
    methods = [entry := lab.sized(), *lab.beside()]
    runs = lab.races({dtype: {"methods": methods, "dtype": dtype, "follow": False} for dtype in TYPES})
    return lab.whole(precision(runs, entry))


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
    equal, texts, agree = same(run, entry, task)
    cells = [f"{one:.2f}" for one in rouge(run, entry, task)] or [""] * len(NAMES)
    cells += [with_interval(speed_up(run, entry, task)), written(per_round(run, entry, task))]
    return f"{name}  {TASKS.get(task, task)}  {entry}", *cells, f"{equal} of {texts}", f"{agree:.1%}"


def precision(runs: Mapping[str, Summary], entry: str) -> Report:
    rows = [row(name, run, other, task) for name, run in runs.items() for task in run.tasks for other in run.entries]
    claims = list[Claim]()
    if "float32" in runs:
        counts = [same(runs["float32"], other)[:2] for other in runs["float32"].entries[1:]]
        equal, texts = (sum(column) for column in zip(*counts, strict=True))
        claim, paper = "in float32 texts are plain decoding's own", "the scores of its texts are the same"
        claims.append(Claim(claim, paper, f"{equal} of {texts} texts are the same", equal == texts))
    first, *others = runs
    for other in others:
        paper = "2.12x in float16 and 2.09x in float32" if {first, other} == {"float32", "float16"} else ""
        claim, one, two = f"the speed-up of {other} is about that of {first}", runs[other], runs[first]
        claims.append(compared(claim, paper, speed_up(one, entry), speed_up(two, entry), Way.LEVEL))
    head = ("", *NAMES, "x plain [95%]", "tokens/round", "same texts", "tokens before they part")
    return Report("UniSpec, Table 10: precision", [(head, rows)], claims)


# --- ROUGE


def scores(reference: str, text: str) -> tuple[float, float, float] | None:
    """ROUGE-1, ROUGE-2 and ROUGE-L, from 0 to 1."""
    wanted, said = words(reference), words(text)
    if not wanted:
        return None
    return of_grams(wanted, said, 1), of_grams(wanted, said, 2), f1(common_subsequence(wanted, said), wanted, said)


def words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text.lower())


def of_grams(wanted: Sequence[str], said: Sequence[str], size: int) -> float:
    """F1 of how many n-grams both have, each as often as the one that has it less often."""
    one, other = (Counter(zip(*(of[start:] for start in range(size)), strict=False)) for of in (wanted, said))
    return f1((one & other).total(), list(one.elements()), list(other.elements()))


def f1(common: int, wanted: Sequence[object], said: Sequence[object]) -> float:
    """Harmonic mean of the shares of both sides."""
    return 2 * common / (len(wanted) + len(said)) if common else 0.0


def common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest sequence of words that both have in this order."""
    before = [0] * (len(other) + 1)
    for word in one:
        row = [0]
        for place, another in enumerate(other):
            row.append(before[place] + 1 if word == another else max(before[place + 1], row[place]))
        before = row
    return before[-1]
