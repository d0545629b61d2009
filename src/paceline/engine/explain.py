"""A planner's choices in the course of a text, a sentence per phase: a stretch of rounds that went alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.engine.counters import NO_ROOM, Round

SHORTEST = 5
"""Rounds of the shortest phase; a shorter one joins the one before it."""
AROUND = 4
"""Rounds on either side that help to decide which kind of phase a round belongs to."""
NO_DRAFT, MISSED = "no draft", "missed"
UNLIKELY = "unlikely"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Rounds one after the other in which the same source was right, or none, or nothing was drafted."""

    kind: str
    """The source that was right most often; `NO_DRAFT`, or `MISSED` where drafts were sent and hardly ever right."""
    first: int
    """The first of its tokens, counted from the beginning of the text that was written."""
    tokens: int
    rounds: tuple[Round, ...]

    @property
    def seconds(self) -> float:
        return sum(r.seconds for r in self.rounds)

    @property
    def seconds_plain(self) -> float | None:
        """Seconds that the same tokens would have taken without drafts, where the planner had an estimate."""
        known = [r.why.seconds_plain for r in self.rounds if r.why is not None]
        return self.tokens * sum(known) / len(known) if known else None

    @property
    def expected(self) -> float | None:
        """Tokens a round, as the planner expected them."""
        known = [1.0 if r.why is None else r.why.tokens for r in self.rounds]
        return sum(known) / len(known) if any(r.why is not None for r in self.rounds) else None

    def sentence(self) -> str:
        """The choice, its reason, and the cost of not drafting."""
        last = self.first + self.tokens - 1
        spent = f"took {self.seconds:.2f} s"
        if (plain := self.seconds_plain) is not None:
            spent += f", without drafts about {plain:.2f} s"
        return f"tokens {self.first}-{last}: {self._choice()}; {spent}"

    def _choice(self) -> str:
        count = len(self.rounds)
        came = f"{self.tokens / count:.2f}"
        sent = sum(r.drafted for r in self.rounds) / count
        proposed = sum(r.proposed for r in self.rounds) / count
        if self.kind == NO_DRAFT and sent < 1:
            return f"hardly anything sent, {self._reason()}" if sent else f"no draft: {self._reason()}"
        expected = "" if self.expected is None else f"expected {self.expected:.2f} tokens a round, "
        return f"{sent:.1f} of {proposed:.1f} proposed nodes sent, {self._brought()}; {expected}came {came}"

    def _brought(self) -> str:
        """How what was sent fared."""
        if not any(r.accepted for r in self.rounds):
            return "none of them right"
        if self.kind == MISSED:
            return "hardly any of them right"
        return "all of them in a few rounds" if self.kind == NO_DRAFT else f"most of what was right from {self.kind}"

    def _reason(self) -> str:
        """Why most rounds without a draft had none."""
        empty = [r for r in self.rounds if not r.drafted]
        reasons = Counter(map(_why_not, empty))
        if len(reasons) > 1:
            del reasons[NO_ROOM]  # of the text's last round
        [(reason, count)] = reasons.most_common(1)
        if reason == UNLIKELY:
            known = [r.why for r in empty if r.why is not None and _why_not(r) == UNLIKELY]
            chance, price = (sum(each) / len(known) for each in zip(*((w.chance, w.price) for w in known), strict=True))
            reason = f"the likeliest node had a chance of {chance:.2f} and a row costs {price:.2f} tokens"
        alone = len(reasons) == 1 and len(empty) == len(self.rounds)
        return reason if alone else f"in {count} of {len(self.rounds)} rounds since {reason}"


def _why_not(r: Round) -> str:
    """Why a round had no draft."""
    if r.unasked:
        return r.unasked
    if not r.proposed:
        return "the method proposed nothing"
    return "the planner held the draft back" if r.why is None else UNLIKELY


class Sourced(Protocol):
    """A token of a text: the number of its round, and where it came from."""

    @property
    def round(self) -> int: ...
    @property
    def source(self) -> str: ...


def phases(rounds: Sequence[Round], text: Sequence[Sourced]) -> list[Phase]:
    """The phases of a text, behind the token that came with the prompt: nothing was chosen there."""
    start = sum(r.prefill for r in rounds)
    first = 1 + sum(r.emitted for r in rounds[:start])
    kinds = _smoothed(_kinds(rounds, text))
    kinds, rounds, start = kinds[start:], rounds[start:], 0
    found = list[Phase]()
    for stop in _stops(kinds):
        part = tuple(rounds[start:stop])
        tokens = sum(r.emitted for r in part)
        kind = Counter(kinds[start:stop]).most_common(1)[0][0]
        found.append(Phase(kind=kind, first=first, tokens=tokens, rounds=part))
        first, start = first + tokens, stop
    return found


def _kinds(rounds: Sequence[Round], text: Sequence[Sourced]) -> list[str]:
    right: list[Counter[str]] = [Counter() for _ in rounds]
    for token in text:
        if token.source and token.round < len(rounds):
            right[token.round][token.source] += 1
    return [
        NO_DRAFT if r.drafted == 0 else sources.most_common(1)[0][0] if sources else MISSED
        for r, sources in zip(rounds, right, strict=True)
    ]


def _smoothed(kinds: Sequence[str]) -> list[str]:
    """Each round as most of its neighbours; a source that is right at times is what drafts are sent for."""
    found = []
    for number, kind in enumerate(kinds):
        near = Counter(kinds[max(0, number - AROUND) : number + AROUND + 1])
        if len(near) > 1 and 3 * near[MISSED] < 2 * near.total():
            del near[MISSED]
        most = near.most_common(1)[0]
        found.append(kind if near[kind] == most[1] else most[0])
    return found


def _stops(kinds: Sequence[str]) -> Iterator[int]:
    """The ends of phases: where the kind changes, no two closer together than the shortest phase is long."""
    last = 0
    for number in range(1, len(kinds)):
        if kinds[number] != kinds[number - 1] and number - last >= SHORTEST and len(kinds) - number >= SHORTEST:
            yield number
            last = number
    if kinds:
        yield len(kinds)
