"""Tables 2 and 4: acceptance by the way that drafts are translated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from paceline_lab import open_vocabulary
from papers.bielik.measured import (
    CONTEXT,
    DRAFTED,
    OWN,
    PRINTED,
    UNITS,
    WRITTEN,
    Cells,
    Key,
    acceptance,
    by_chance,
    checked,
    datasets,
    measured,
    percent,
    printed,
)
from papers.driver import Given
from papers.report import Claim, Report, Table


def table(cells: Cells, unit: str) -> Table:
    """A row of every condition, and columns of data sets with the paper's numbers."""
    sets = list(dict.fromkeys(key[2] for key in cells))
    paper = unit != OWN
    head = [unit, "k"]
    for one in sets:
        head += [one, "paper"] if paper else [one]
    rows = list[Sequence[str]]()
    for drafter, strategy, k in dict.fromkeys((key[0], key[1], key[3]) for key in cells):
        row = [f"{drafter}  {strategy}", str(k)]
        for one in sets:
            row.append(percent(cells.get((drafter, strategy, one, k), []), unit))
            row += [printed(drafter, strategy, one, k)] if paper else []
        rows.append(row)
    return head, rows


def alphas(cells: Cells, keys: Sequence[Key], unit: str) -> list[float]:
    """Acceptance of all texts of some cells."""
    return [UNITS[unit](text) for key in keys for text in cells[key]]


def claims(cells: Cells) -> Iterator[Claim]:
    sizes = sorted({key[3] for key in cells})
    low, high = sizes[0], sizes[-1]
    for unit in UNITS if high > low else ():
        keys = [key for key in cells if key[1] == CONTEXT and key[3] == low]
        pairs = zip(alphas(cells, keys, unit), alphas(cells, [(*k[:3], high) for k in keys], unit), strict=True)
        if known := [pair for pair in pairs if not math.isnan(sum(pair))]:
            one, more = zip(*known, strict=True)
            ours = f"{np.mean(one):.1%} with k = {low}, {np.mean(more):.1%} with k = {high}"
            claim, paper = f"acceptance rises with k, as {unit}", "by 5.6 to 9.2 points from k = 2 to 4"
            doubt = by_chance(more, one, paired=True)
            yield Claim(claim, paper, ours, bool(np.mean(more) > np.mean(one)), doubt)
    for other in ("no translation", "naive"):
        for unit in (DRAFTED, OWN):
            cell = [(acceptance(cells[key], unit), key) for key in cells if key[1] == CONTEXT]
            both = [(alpha, acceptance(cells.get((key[0], other, *key[2:]), []), unit)) for alpha, key in cell]
            if known := [pair for pair in both if not math.isnan(sum(pair))]:
                ahead = sum(a > b for a, b in known)
                ours = f"in {ahead} of {len(known)} cells"
                claim = f"context-aware is accepted more often than {other}, as {unit}"
                yield Claim(claim, "in all 9 cells", ours, 2 * ahead > len(known))


def bounds() -> Iterator[str]:
    """The unit that follows from the paper's own numbers."""
    four = [(PRINTED[d, s, t, 4], alpha) for (d, s, t, k), alpha in PRINTED.items() if (s, k) == (CONTEXT, 2)]
    gains = [more - alpha for more, alpha in four]
    yield (
        f"in the paper acceptance rises by {min(gains):.1f} to {max(gains):.1f} points from k = 2 to 4; of the three "
        f"units only {WRITTEN} can rise while later tokens are accepted less often, and MLX-LM marks emitted tokens "
        "that came from a draft"
    )
    yield "by that unit no text with k = 2 is above 66.7%, and Tables 8 to 10 have none above 70%; buckets.py has more"


def models(given: Given) -> Table:
    """Table 1, as far as tokenizers tell."""
    roles = {**dict.fromkeys(given.draft_model, "draft"), **dict.fromkeys(given.model, "target")}
    rows = [(name, role, str(open_vocabulary(name).size)) for name, role in sorted(roles.items(), key=lambda r: r[1])]
    return ("model", "role", "token ids"), rows[::-1]


def report(given: Given, model: str, cells: Cells, notes: Sequence[str]) -> Report:
    tables = [models(given), *(table(cells, unit) for unit in UNITS)]
    rolled = sum(t.rolled_back for texts in cells.values() for t in texts)
    rounds = sum(t.rounds for texts in cells.values() for t in texts)
    notes = [
        *notes,
        "± is the 95% interval over three texts or more; of a lattice every node is a drafted token",
        "with shared noise k counts the target's tokens, and the draft model makes fewer",
        f"rows of the draft model that are read again, since new bytes change its last tokens: {rolled / rounds:.2f} "
        "a round",
        "behind a prefix fewer tokens of the target are left of the same draft, so context-aware acceptance is higher "
        f"as {DRAFTED} even where no more are accepted",
        *bounds(),
    ]
    if any("no drafts" in percent(texts) for (_, s, _, _), texts in cells.items() if s == "no translation"):
        notes.append("untranslated, a draft model whose vocabulary is smaller often cannot read the text's ids at all")
    data = {
        "model": model,
        "temperature": given.temperature,
        "cells": [
            {"drafter": d, "strategy": s, "dataset": t, "k": k, "texts": [asdict(one) for one in texts]}
            for (d, s, t, k), texts in cells.items()
        ],
    }
    return Report(f"Bielik, Tables 2 and 4: acceptance, {model}", tables, list(claims(cells)), notes, data=data)


def accepted(given: Given) -> Report:
    """Tables 2 and 4: acceptance by the way that drafts are translated, by draft model and by draft length.

    The paper's acceptance is of drafted tokens (section 4.4), and it rises with k, which such a share does not do:
    later tokens of a draft are accepted less often. So acceptance stands here in three units. Counts are exact: a
    machine's speed does not move them, and ballast does not, either.
    """
    if len(given.model) > 1:
        raise ValueError("acceptance is of one target model; name one with --model")
    (model,) = checked(given, tokens=48).model
    return report(given, model, *measured(given, *datasets(given)))
