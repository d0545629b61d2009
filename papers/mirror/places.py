"""The latency law for machines that are not here: where overlap wins, by stated seconds of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline_lab import RoundParts
from papers.driver import Given
from papers.report import Claim, Report, Table

JUDGED = 0.5
"""Milliseconds to read and judge the choices of a round."""
UNREAD = 1.4
"""The draft model's first forward over a later one: it also reads the draft that is scored."""


@dataclass(frozen=True, kw_only=True)
class DraftSite:
    """Where the draft model runs beside the target: milliseconds, and factors."""

    name: str
    target: float
    """A forward of the target over a draft, with the draft model at rest and its cores left free."""
    single: float
    """A forward of the draft model over one row."""
    level: float
    """One over a row for every outcome."""
    exchange: float
    """A message each way between target and draft model."""
    exit: float = 0.3
    """What the target's stop at its exit takes: the outcomes are read there and sent."""
    target_slows: float = 1.0
    draft_slows: float = 1.0
    turns: float = 1.0
    """The target's forward in turns, on all cores, over that with the draft model's cores left free."""
    turns_single: float | None = None
    """A forward of the draft model over one row in turns, where it then runs elsewhere or on more cores."""
    anew: float | None = None
    """The share of drafts that begin when the target has decided, where it was measured."""

    def parts(self, exit_: float) -> RoundParts:
        """Of a round, in milliseconds, with the exit at this depth."""
        return RoundParts(
            lower=exit_ * self.target,
            upper=(1 - exit_) * self.target,
            exit=self.exit,
            end=self.exchange + JUDGED,
            first=UNREAD * self.level,
            level=self.level,
            single=self.single,
            target_slows=self.target_slows,
            draft_slows=self.draft_slows,
            judged=JUDGED,
        )

    def in_turns(self, gamma: int) -> float:
        """A round in turns there: one model at a time has everything."""
        single = self.single if self.turns_single is None else self.turns_single
        return self.turns * self.target + gamma * single + JUDGED

    def spent(self, given: Given) -> dict[str, float]:
        anew = given.anew if self.anew is None else self.anew
        return self.parts(given.exit).spent(given.gamma, anew)

    def gain(self, given: Given) -> float:
        return self.in_turns(given.gamma) / sum(self.spent(given).values())


SITES = (
    DraftSite(
        name="two cores, one memory (measured)",
        target=76.3,
        single=4.0,
        level=5.0,
        exchange=2.0,
        exit=1.5,
        target_slows=1.05,
        turns=0.52,
        anew=0.64,
    ),
    DraftSite(
        name="GPU; draft on one core (two parts measured)",
        target=12,
        single=1.0,
        level=1.6,
        exchange=1.0,
        turns_single=0.8,
    ),
    DraftSite(name="GPU; draft on eight cores", target=12, single=0.5, level=0.7, exchange=1.0, turns_single=0.8),
    DraftSite(
        name="GPU; draft in a second stream of it",
        target=12,
        single=0.8,
        level=0.9,
        exchange=0.2,
        target_slows=1.15,
        draft_slows=1.6,
    ),
    DraftSite(name="two GPUs", target=12, single=0.8, level=0.9, exchange=0.3),
    DraftSite(
        name="two sockets; in turns on both",
        target=40,
        single=1.5,
        level=2.5,
        exchange=0.5,
        turns=0.58,
        turns_single=1.0,
    ),
    DraftSite(name="two sockets; in turns on one", target=40, single=1.5, level=2.5, exchange=0.5),
    DraftSite(
        name="16 cores; draft in one core's own cache",
        target=25,
        single=2.0,
        level=3.0,
        exchange=0.5,
        target_slows=1.02,
        turns=0.96,
        turns_single=1.0,
    ),
)
"""The first as measured on a Xeon (`results.md`, the draft model of 6M and 7 tokens); of the second a forward of the
target and one of the draft model over one row were. All else is assumed, for drafts of about a twentieth of the target:
`mirror law` measures the parts where there is such a machine."""


def table_of(sites: Sequence[DraftSite], given: Given) -> Table:
    """What is stated of each place, what follows, and the gain."""
    lost = {"wait": "waiting for a forward", "finish": "finishing", "anew": "drafts anew", "exchange": "exchange"}
    head = "place", "target, draft's rows: one, all", "slowed", *lost, "overlapped", "in turns", "gain"
    rows = list[Sequence[str]]()
    for site in sites:
        spent = site.spent(given)
        rows.append(
            (
                site.name,
                f"{site.target:g}, {site.single:g}, {site.level:g}",
                f"{site.target_slows:g}, {site.draft_slows:g}",
                *(f"{spent[name]:.1f}" for name in lost.values()),
                f"{sum(spent.values()):.1f}",
                f"{site.in_turns(given.gamma):.1f}",
                f"{site.gain(given):.2f}",
            )
        )
    return head, rows


def claims(sites: Sequence[DraftSite], given: Given) -> Iterator[Claim]:
    gains = [site.gain(given) for site in sites]
    won = sum(gain > 1 for gain in gains)
    ours = f"by the law in {won} of {len(gains)} places, {min(gains):.2f} to {max(gains):.2f} times as fast"
    yield Claim("overlap is faster than drafts in turns", "where each model has its own devices", ours, None)


def places(given: Given) -> Report:
    """The latency law where it was not measured: rounds in turns and overlapped, in milliseconds, computed from stated
    parts.

    Nothing is run. In turns one model at a time has all devices of the place. A round brings as many tokens either way,
    so the gain is one of speed.
    """
    notes = [
        f"computed, not measured; milliseconds; drafts of {given.gamma} tokens, exit at {given.exit:g}; "
        f"{given.anew:.0%} of the drafts begin when the target has decided, where that was not measured"
    ]
    title = "Mirror-SD: where overlap wins, by the law"
    return Report(title, [table_of(SITES, given)], list(claims(SITES, given)), notes)
