"""Section 6.3: acceptance by kind of text.

    python -m papers.bielik.content --quick
    python -m papers.bielik.content --model M --draft-model D --prompts infoboxes=boxes.jsonl essays=essays.jsonl

The paper explains the gap between its data sets by content: formulaic text (lists, numbers, code) is predictable, and
low ids mean the same in many vocabularies, so such drafts need no translation. It has no numbers but those of Table 2.
Here each kind has prompts of its own, and acceptance stands for every way to translate. The bundled models have learnt
stories alone, and what they write after a list is no list for long; the numbers are those of the models that you name.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np

import paceline
from paceline_lab import Prompt, open_suite
from papers.bielik.measured import (
    ALPACA,
    CONTEXT,
    NOISY,
    PRINTED,
    SYNTHETIC,
    UNIT_NAMES,
    UNITS,
    WIKIPEDIA,
    Text,
    by_chance,
    checked,
    counted,
    method,
    parser,
    percent,
    stand_in,
)
from papers.common import Claim, Report, progress, script

FORMULAIC = {
    "lists": (
        "Miesiące roku: 1. styczeń, 2. luty, 3. marzec, 4.",
        "Dni tygodnia:\n- poniedziałek\n- wtorek\n- środa\n-",
        "Zakupy: mleko, chleb, masło, ser, jajka, mąka, cukier,",
        "Rozdział pierwszy: Dom. Rozdział drugi: Las. Rozdział trzeci:",
    ),
    "numbers": (
        "1990: 12\n1991: 14\n1992: 16\n1993: 18\n1994:",
        "Ludność według spisu: 1921 – 310, 1931 – 342, 1950 – 298, 1960 –",
        "1, 2, 3, 4, 5, 6, 7, 8, 9,",
        "Współrzędne: 52°13′N 21°00′E; 50°03′N 19°56′E; 54°21′N",
    ),
}
"""Written for this script."""
FILES = {"guides": "opensource-guide", "documentation": "python-docs-pl", "novels": "ELTeC-pol"}
"""Files of the running text."""
OPEN = ("stories", "novels", "instructions", "questions")
WAYS = ("no translation", "naive", CONTEXT, "lattice", NOISY)
Cells = Mapping[tuple[str, str, str], Sequence[Text]]
"""By drafter, strategy and kind."""


def kinds(given: argparse.Namespace) -> tuple[dict[str, list[Prompt]], list[str]]:
    """The prompts of every kind, and notes."""
    found = {kind: [_continued(kind, n, text) for n, text in enumerate(texts)] for kind, texts in FORMULAIC.items()}
    found["stories"] = [*open_suite("stories", languages=["pl"], limit=given.limit).prompts]
    found["questions"], notes = stand_in(SYNTHETIC, given), list[str]()
    try:
        found["instructions"] = stand_in(ALPACA, given)
        every = open_suite("continuation", data=given.data, languages=["pl"]).prompts
        found |= {kind: [one for one in every if file in one.key] for kind, file in FILES.items()}
        found["code"] = [*open_suite("spec-bench", data=given.data, tasks=["code"], limit=given.limit).prompts]
    except ValueError as why:
        notes.append(f"some kinds are left out: {why}")
    found |= {name: [*open_suite(f"prompts:{file}").prompts] for name, file in given.prompts}
    return {kind: prompts[: given.limit] for kind, prompts in found.items() if prompts}, notes


def _continued(kind: str, number: int, text: str) -> Prompt:
    return Prompt(key=f"pl-{kind}-{number}", task=kind, language="pl", turns=(text,), chat=False)


def measured(given: argparse.Namespace) -> tuple[Cells, list[str]]:
    lm = paceline.load(given.model[0], dtype=given.dtype, device=given.device, generation_config=False)
    found, notes = kinds(given)
    cells = dict[tuple[str, str, str], Sequence[Text]]()
    conditions = [(d, s) for d in given.draft_model for s in given.strategies]
    for number, (drafter, strategy) in enumerate(conditions):
        progress(f"{drafter}, {strategy}", number, len(conditions))
        how = method(drafter, strategy, given.k[0])
        for kind, prompts in found.items():
            cells[drafter, strategy, kind] = [counted(lm, prompt, how, given) for prompt in prompts]
    progress("")
    return cells, notes


def claims(cells: Cells, unit: str) -> Iterator[Claim]:
    for drafter, strategy in dict.fromkeys((d, s) for d, s, _ in cells):
        both = list[list[float]]()
        for names in ([*FORMULAIC, "code"], OPEN):
            texts = [text for kind in names for text in cells.get((drafter, strategy, kind), ())]
            both.append([alpha for text in texts if not math.isnan(alpha := UNITS[unit](text))])
        if all(both):
            formulaic, free = (float(np.mean(one)) for one in both)
            claim = f"{drafter}, {strategy}: lists, numbers and code are accepted more often than open text"
            ours = f"{formulaic:.1%} against {free:.1%}"
            yield Claim(claim, "no number", ours, formulaic > free, by_chance(*both))


def gaps() -> list[str]:
    """What Table 2 says of the gap between data sets: Wikipedia's acceptance over the mean of the two others."""
    said = list[str]()
    for strategy in ("no translation", "naive", CONTEXT):
        rows = [(PRINTED[d, strategy, WIKIPEDIA, 2], d) for d, s, t, k in PRINTED if (s, t, k) == (strategy, ALPACA, 2)]
        ratios = [w * 2 / (PRINTED[d, strategy, ALPACA, 2] + PRINTED[d, strategy, SYNTHETIC, 2]) for w, d in rows]
        said.append(f"{min(ratios):.1f} to {max(ratios):.1f} {strategy}")
    return [f"in Table 2 Wikipedia's acceptance over that of the two other data sets is {', '.join(said)}"]


def report(given: argparse.Namespace, cells: Cells, notes: Sequence[str], unit: str) -> Report:
    names = list(dict.fromkeys(kind for *_, kind in cells))
    columns = list(dict.fromkeys((d, s) for d, s, _ in cells))
    one = next(iter(cells))[:2]
    rows = [
        (kind, str(len(cells[(*one, kind)])), *(percent(cells[d, s, kind], unit) for d, s in columns)) for kind in names
    ]
    head = [f"{unit}, k = {given.k[0]}", "texts", *(f"{d}  {s}" for d, s in columns)]
    notes = [
        *notes,
        "lists, numbers and questions were written for this script; guides, documentation and novels are running text, "
        "instructions the Polish MT-Bench, code HumanEval",
        *gaps(),
        "`papers.bielik.overlap` counts ids that mean the same: fewer than ten below 1,000 for the paper's tokenizers",
    ]
    data = {
        "unit": unit,
        "cells": [
            {"drafter": d, "strategy": s, "kind": kind, "texts": [asdict(t) for t in texts]}
            for (d, s, kind), texts in cells.items()
        ],
    }
    title = f"Bielik, section 6.3: acceptance by kind of text, {given.model[0]}"
    return Report(title, [(head, rows)], list(claims(cells, unit)), notes, data=data)


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(k=[2])
    options.add_argument(
        "--unit", choices=UNIT_NAMES, default="drafted", help="what acceptance is a share of (drafted)"
    )
    given = options.parse_args()
    if given.quick:
        given.limit, given.max_new_tokens = min(given.limit, 2), min(given.max_new_tokens, 32)
    if len(given.model) > 1 or len(given.k) > 1:
        raise ValueError("kinds are compared with one target model and one k; name one with --model and --k")
    given.strategies = given.strategies or [name for name in WAYS if name != NOISY or given.temperature != 0]
    report(checked(given), *measured(given), UNIT_NAMES[given.unit]).show(given)


if __name__ == "__main__":
    script(main)
