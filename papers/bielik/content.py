"""Section 6.3: acceptance by kind of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

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
    Cells,
    by_chance,
    checked,
    measured,
    percent,
    stand_in,
)
from papers.driver import Given
from papers.report import Claim, Report

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


def kinds(given: Given) -> tuple[dict[str, list[Prompt]], list[str]]:
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


def claims(cells: Cells, unit: str) -> Iterator[Claim]:
    for drafter, strategy, k in dict.fromkeys((d, s, k) for d, s, _, k in cells):
        both = list[list[float]]()
        for names in ([*FORMULAIC, "code"], OPEN):
            texts = [text for kind in names for text in cells.get((drafter, strategy, kind, k), ())]
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


def report(given: Given, cells: Cells, notes: Sequence[str], unit: str) -> Report:
    (k,), names = given.k, list(dict.fromkeys(kind for _, _, kind, _ in cells))
    columns = list(dict.fromkeys((d, s) for d, s, *_ in cells))
    one = next(iter(cells))[:2]
    rows = [
        (kind, str(len(cells[(*one, kind, k)])), *(percent(cells[d, s, kind, k], unit) for d, s in columns))
        for kind in names
    ]
    head = [f"{unit}, k = {k}", "texts", *(f"{d}  {s}" for d, s in columns)]
    notes = [
        *notes,
        "lists, numbers and questions were written for this script; guides, documentation and novels are running text, "
        "instructions the Polish MT-Bench, code HumanEval",
        *gaps(),
        "`papers.bielik overlap` counts ids that mean the same: fewer than ten below 1,000 for the paper's tokenizers",
    ]
    data = {
        "unit": unit,
        "cells": [
            {"drafter": d, "strategy": s, "kind": kind, "texts": [asdict(t) for t in texts]}
            for (d, s, kind, _), texts in cells.items()
        ],
    }
    title = f"Bielik, section 6.3: acceptance by kind of text, {given.model[0]}"
    return Report(title, [(head, rows)], list(claims(cells, unit)), notes, data=data)


def content(given: Given) -> Report:
    """Section 6.3: acceptance by kind of text.

    The paper explains the gap between its data sets by content: formulaic text (lists, numbers, code) is predictable,
    and low ids mean the same in many vocabularies, so such drafts need no translation. It has no numbers but those of
    Table 2. Here each kind has its own prompts, and acceptance stands for every way to translate. The bundled models
    have learnt only stories, and after a list they do not write a list for long; the numbers are those of the models
    that you name.
    """
    if len(given.model) > 1 or len(given.k) > 1:
        raise ValueError("kinds are compared with one target model and one k; name one with --model and --k")
    given.strategies = given.strategies or [name for name in WAYS if name != NOISY or given.temperature != 0]
    return report(checked(given, tokens=32), *measured(given, *kinds(given)), UNIT_NAMES[given.unit or "drafted"])
