"""The latency law (equations 10 and 14)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline import LanguageModel, load
from paceline_lab import OverlapCell, OverlapTrial, Waiting
from papers.driver import Given
from papers.report import Claim, Report, Table

PROMPTS = "The old house stood at the end of", "Once upon a time there was", "In the morning she went to"
MODEL_OF_A_DEVICE = "pocket"
NEAR, OF_THE_LAW = 0.1, 0.9


def parts_of(cells: Sequence[OverlapCell]) -> Table:
    head = (
        "draft model, tokens",
        "lower",
        "exit",
        "upper, slowed",
        "first, later, single draft forward, slowed",
        "end",
        "begun anew",
        "tokens/round, in turns",
    )
    rows = list[Sequence[str]]()
    for cell in cells:
        of = cell.parts
        rows.append(
            (
                _named(cell),
                _ms(of.lower),
                _ms(of.exit),
                f"{_ms(of.upper)} x {of.target_slows:.2f}",
                f"{_ms(of.first)}, {_ms(of.level)}, {_ms(of.single)} x {of.draft_slows:.2f}",
                _ms(of.end),
                f"{cell.anew:.0%}",
                f"{cell.emitted:.2f}, {cell.emitted_in_turns:.2f}",
            )
        )
    return head, rows


def rounds_of(cells: Sequence[OverlapCell]) -> Table:
    head = (
        "draft model, tokens",
        "together: law, seen",
        "in turns, same threads",
        "in turns, all threads",
        "gain over turns: law, seen",
        "over turns on all: law, seen",
    )
    rows = list[Sequence[str]]()
    for cell in cells:
        pairs = (cell.together, cell.turns, cell.turns_everywhere)
        gains = ["{:.2f}, {:.2f}".format(*cell.gain(other)) for other in (cell.turns, cell.turns_everywhere)]
        rows.append(
            (_named(cell), *(f"{_ms(p.predicted)}, {_ms(p.observed)} ({p.ratio - 1:+.0%})" for p in pairs), *gains)
        )
    return head, rows


def spent_on(cells: Sequence[OverlapCell]) -> Table:
    """Where the seconds of a round go, by the law: of what overlap costs, each part by itself."""
    by_cell = {_named(cell): cell.parts.spent(cell.levels, cell.anew) for cell in cells}
    names = list(next(iter(by_cell.values())))
    head = "draft model, tokens", *names, "in all", "in turns"
    rows = list[Sequence[str]]()
    for cell, (named, spent) in zip(cells, by_cell.items(), strict=True):
        turns = cell.parts.turns(cell.levels)
        rows.append((named, *(_ms(spent[name]) for name in names), _ms(sum(spent.values())), _ms(turns)))
    return head, rows


def _named(cell: OverlapCell) -> str:
    return f"{cell.draft}, {cell.levels}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def claims(cells: Sequence[OverlapCell]) -> Iterator[Claim]:
    near = sum(abs(cell.together.ratio - 1) <= NEAR for cell in cells)
    ours = f"{near} of {len(cells)} rounds within {NEAR:.0%}"
    yield Claim("a round takes what the law says", "exactly", ours, near >= OF_THE_LAW * len(cells))
    kept = [cell.gain(cell.turns).ratio for cell in cells]
    ours = f"{min(kept):.2f} to {max(kept):.2f} of the law's gain over turns with as many threads"
    yield Claim("the gain is the law's", "exactly", ours, min(kept) >= OF_THE_LAW)
    gains = [cell.gain(cell.turns_everywhere).observed for cell in cells]
    ours = f"{min(gains):.2f} to {max(gains):.2f} times turns on all threads"
    yield Claim("it is faster than drafts in turns", "where each model has its own devices", ours, min(gains) > 1)


def report(cells: Sequence[OverlapCell], notes: Sequence[str]) -> Report:
    title = "Mirror-SD, equations 10 and 14: the latency law"
    return Report(title, [parts_of(cells), spent_on(cells), rounds_of(cells)], list(claims(cells)), notes)


def law(given: Given) -> Report:
    """The latency law (equations 10 and 14): rounds as it has them and as they are, for draft models of several sizes.

    Every part is measured by itself, in turns with the runs: the target up to its exit and behind it, reading the exit,
    forwards of the draft model, and how much the two slow one another down. Beside it stand the same drafts made in
    turns, with as many threads for each model, and with all threads for both. A table says what the seconds of a round
    are spent on: that of a run on a GPU tells why overlap won or lost there. With ``--waiting`` the target is on a
    simulated device: it waits for this many milliseconds and leaves the cores alone.
    """
    lm = load(MODEL_OF_A_DEVICE if given.waiting else given.model, dtype=given.dtype)
    if given.waiting:
        lm = LanguageModel(Waiting(lm.target, given.waiting / 1000), lm.vocabulary)
    trial = OverlapTrial(
        lm=lm,
        prompts=PROMPTS,
        tokens=given.max_new_tokens,
        temperature=given.temperature,
        exit=given.exit,
        repeats=given.repeat,
        anew=given.anew,
    )
    cells = [trial.cell(draft, gamma, given.branches) for draft in given.draft for gamma in given.gamma]
    notes = [
        "milliseconds; medians; the end is what stands behind the target's forward where the draft is there already",
        f"{lm.target.name}, {given.dtype}, temperature {given.temperature:g}, {given.branches} outcomes with a draft",
    ]
    return report(cells, notes)
