"""A text that copies another one with edits: where it is in it, and what comes next.

As long as the text agrees, the draft is what follows in the other one. Where the text leaves it, there are several
places at which it may come back, and the draft branches:

    a match   the last tokens of the text occur in the other one: near ones by few tokens, others by three or more
    a skip    as many tokens were replaced as were written since, or one was, or none

After three tokens in agreement only that place is left. The edit is then known: which tokens were replaced, and by
what. Where the other text has the replaced tokens again, such as a name, the draft has both ways to go on.

What is copied is a prediction of the text (`prediction`), or an earlier passage of the text itself (`OwnCopy`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, log1p
from typing import Self

from paceline.context import Context
from paceline.drafters.base import Budget
from paceline.drafters.endings import Endings
from paceline.tree import EMPTY, ROOT, DraftTree

SURE = 3
"""Tokens in agreement from which a place is the only one."""
LONG = 8
"""Tokens in agreement after which a far place is the text's for certain, and a passage of the text itself is copied."""
PROVEN = 8
"""Tokens in agreement after which the next draft is said to be sure."""
NEAR = 48
"""Tokens ahead among which one or two tokens of agreement find a place."""
PLACES = 16
"""Places that are compared elsewhere."""
KEPT = 4
"""Places that are drafted from at most while the text is off the copy."""
BRANCH = 12
"""Tokens of a draft from a place that is not sure."""
LONGEST_EDIT = 12
"""Tokens replaced, or written in their place, of an edit that is expected again."""
GONE = 24
"""Tokens behind an edit after which an earlier passage is no longer followed."""
AGREED = (0.12, 0.45, 0.7, 0.86, 0.9, 0.92, 0.94, 0.95, 0.96)
"""The chance of a place's next token, by its tokens in agreement; with more it approaches 1."""
_SCORES = [log(chance) for chance in AGREED] + [log1p(-0.32 / run) for run in range(len(AGREED), 128)]
_LAST = len(_SCORES) - 1


@dataclass
class CopyPlace:
    """A place at which the copy may go on: the next token's, and how many agreed before it."""

    at: int
    run: int


@dataclass
class Edit:
    """Tokens that the text replaced by others, and how often it did so where they came again."""

    old: list[int]
    new: list[int]
    taken: int = 1
    met: int = 1

    @property
    def chance(self) -> float:
        return (self.taken + 1) / (self.met + 2)


@dataclass(eq=False)
class EditedCopy(ABC):
    """One text and where it is in what it copies."""

    context: Context
    copied: list[int]
    """What it copies."""
    places: list[CopyPlace]
    """Where the copy may go on, the likeliest first."""
    known: int
    """Tokens of the text that were followed."""
    left: int = 0
    """The place at which the text left the copy."""
    fresh: list[int] = field(default_factory=list)
    """The tokens since then; none while the text agrees."""
    edits: dict[int, Edit] = field(default_factory=dict)
    """By the first token that they replace."""

    @property
    def agrees(self) -> bool:
        """Whether the text agrees with what it copies, and has for long."""
        return not self.fresh and bool(self.places) and self.places[0].run >= PROVEN

    def ahead(self, tokens: Sequence[int]) -> Self:
        """Where the text would be behind these tokens, which were not emitted."""
        other = replace(
            self,
            context=self.context.extended(tokens),
            places=[replace(place) for place in self.places],
            fresh=list(self.fresh),
            edits={first: replace(edit) for first, edit in self.edits.items()},
        )
        other.catch_up()
        return other

    def catch_up(self) -> None:
        """Follow the tokens that are new."""
        if len(self.context) > self.known:
            for token in self.context.listed(self.known):
                self.follow(token)

    def follow(self, token: int) -> None:
        """Follow the text's next token."""
        self.known += 1
        copied, before = self.copied, self.places
        self.places = [
            CopyPlace(place.at + 1, place.run + 1)
            for place in before
            if place.at < len(copied) and copied[place.at] == token
        ]
        if not self.fresh:
            if self.places:
                self._pass_edit(before[0].at)
                return
            if before[0].run >= LONG or abs(before[0].at - self.left) <= NEAR:  # else it was perhaps never there
                self.left = before[0].at
        self.fresh.append(token)
        if self._edited():
            return
        sure = next((place for place in self.places if place.run >= SURE), None)
        if sure is None:
            self.places += self._found() + self._skips()
            sure = next((place for place in self.places if place.run >= SURE), None)
        if sure is not None:
            self._back(sure)
        else:
            self._keep_best()

    def _keep_best(self) -> None:
        """The likeliest places, each once."""
        best: dict[int, CopyPlace] = {}
        for place in sorted(self.places, key=lambda place: -place.run):  # stable: of equals the first
            best.setdefault(place.at, place)
        self.places = list(best.values())[:KEPT]

    def _back(self, place: CopyPlace) -> None:
        """The text is back at a place; what it wrote in between is an edit."""
        start = max(place.at - place.run, self.left)
        new = self.fresh[: len(self.fresh) - (place.at - start)] if place.at - start <= len(self.fresh) else []
        old = self.copied[self.left : start] if place.at > self.left else []
        if old and max(len(old), len(new)) <= LONGEST_EDIT and old != new:
            same = self.edits.get(old[0])
            if same is None or (same.old, same.new) != (old, new):
                self.edits[old[0]] = Edit(old, new)
        self.places, self.fresh = [place], []

    def _edited(self) -> bool:
        """Whether a known edit was just written in place of the same tokens: then the text is behind them. A deletion
        is seen by the token behind it."""
        edit = self.edit_at(self.left)
        if edit is None:
            return False
        behind, more = self.left + len(edit.old), 0 if edit.new else 1
        if self.fresh != edit.new + self.copied[behind : behind + more]:
            return False
        edit.taken, edit.met = edit.taken + 1, edit.met + 1
        self.places, self.fresh = [CopyPlace(behind + more, SURE)], []
        return True

    def _pass_edit(self, at: int) -> None:
        """Count an edit that was not written where it might have been."""
        edit = self.edits.get(self.copied[at])
        if edit is not None and edit.old == self.copied[at : at + len(edit.old)] and edit.new[:1] != edit.old[:1]:
            edit.met += 1

    def edit_at(self, at: int) -> Edit | None:
        """The edit that is known of the tokens at a place."""
        edit = self.edits.get(self.copied[at]) if at < len(self.copied) else None
        return edit if edit is not None and edit.old == self.copied[at : at + len(edit.old)] else None

    def _found(self) -> list[CopyPlace]:
        """Places behind the last tokens of the text, the nearest ahead first."""
        elsewhere = [CopyPlace(at + 1, size) for at, size in self._elsewhere() if size >= SURE]
        if elsewhere:
            longest = max(place.run for place in elsewhere)
            return [min((p for p in elsewhere if p.run == longest), key=lambda p: (p.at < self.left, p.at))]
        near, (*others, last) = self.copied[self.left : self.left + self._near()], self._ending()
        found = [CopyPlace(self.left + i + 1, 1) for i, token in enumerate(near) if token == last]
        for place in found:
            if others and place.at > 1 and self.copied[place.at - 2] == others[-1]:
                place.run = 2
        return sorted(found, key=lambda place: -place.run)[:2]

    @abstractmethod
    def _elsewhere(self) -> list[tuple[int, int]]:
        """Places that end as the text does, anywhere, with the sizes of the matches."""

    @abstractmethod
    def _ending(self) -> list[int]:
        """The last two tokens of the text, or the last one if no more can be copied."""

    def _near(self) -> int:
        """How many tokens ahead are near."""
        return NEAR

    def _skips(self) -> list[CopyPlace]:
        """Places behind as many tokens as were written since the text left the copy, behind one and none."""
        ahead = dict.fromkeys((len(self.fresh), 1, 0)) if len(self.fresh) <= LONGEST_EDIT else (0,)
        return [CopyPlace(self.left + skip, 0) for skip in ahead if self.left + skip < len(self.copied)]

    def drafted_from(self, budget: Budget, source: str) -> DraftTree:
        """What follows each of the places, and both sides of each edit that is expected."""
        tree = _Growing(self, budget)
        for place in self.places:
            tree.add(ROOT, place, budget.depth if place.run >= SURE else min(budget.depth, BRANCH))
        return tree.built(source) if tree.tokens else EMPTY


@dataclass(eq=False)
class OwnCopy(EditedCopy):
    """The earlier passage that a text copies; without places while it copies none. Edits are known from copy to copy.

    A passage is copied from `LONG` tokens in agreement on. Text is full of places that agree in a few tokens, so behind
    an edit the copy comes back near the place at which it was left, or else as long as it began.
    """

    endings: Endings = field(default_factory=Endings)
    """The index of the text; what is copied is the text in it."""

    @classmethod
    def of(cls, context: Context, endings: Endings) -> OwnCopy:
        """That of a text that was indexed."""
        copy = cls(context, endings.text, [], len(endings), endings=endings)
        copy._begin()
        return copy

    @property
    def following(self) -> bool:
        """Whether a passage is copied, or was until a few tokens ago."""
        return bool(self.places or self.fresh)

    @property
    def tells(self) -> bool:
        """Whether it knows more than the ending of the text does, which is as long as the copy without an edit."""
        return bool(self.places) and (bool(self.fresh or self.edits) or self.places[0].run < LONG)

    def ahead(self, tokens: Sequence[int]) -> Self:
        other = replace(self, copied=[*self.copied, *tokens])
        return super(OwnCopy, other).ahead(tokens)

    def follow(self, token: int) -> None:
        if self.following:
            super().follow(token)
            if len(self.fresh) <= GONE:
                return
        else:
            self.known += 1
        self.fresh = []
        self._begin()

    def _begin(self) -> None:
        self.places = [CopyPlace(at + 1, size) for at, size in self._ends_like(1) if size >= LONG]

    def _ends_like(self, limit: int) -> list[tuple[int, int]]:
        """Earlier places that end as the text does, as far as it was followed."""
        return self.endings.behind(self.copied[len(self.endings) : self.known], limit)

    def _elsewhere(self) -> list[tuple[int, int]]:
        near = range(self.left, self.left + NEAR)
        return [(at, size) for at, size in self._ends_like(PLACES) if size >= LONG or at in near]

    def _ending(self) -> list[int]:
        return self.copied[max(0, self.known - 2) : self.known]

    def _near(self) -> int:
        return min(NEAR, self.known - 1 - self.left)


class _Growing:
    """A draft tree that grows by the ways in which the text may go on. Equal paths are one."""

    def __init__(self, text: EditedCopy, budget: Budget) -> None:
        self.text, self.nodes = text, budget.nodes
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self._known: dict[tuple[int, int], int] = {}

    def node(self, parent: int, token: int, score: float) -> int | None:
        """The child of a node that carries a token; None where the draft is full."""
        known = self._known.get((parent, token))
        if known is None and len(self.tokens) < self.nodes:
            known = self._known[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.scores.append(score)
        elif known is not None:
            self.scores[known] = max(self.scores[known], score)
        return known

    def add(self, parent: int, place: CopyPlace, count: int) -> None:
        """The likeliest way on from a place; behind it the other side of the first edit on this way."""
        copied, at, run, depth = self.text.copied, place.at, place.run, 0
        other: tuple[int, list[int], int, float] | None = None
        above: int | None = parent
        while depth < count and above is not None and at < len(copied):
            edit, score = self.text.edit_at(at) if run >= SURE else None, _SCORES[min(run, _LAST)]
            if edit is None:
                above, at, run, depth = self.node(above, copied[at], score), at + 1, run + 1, depth + 1
                continue
            follows = edit.chance >= 0.5
            sides = (edit.new, at + len(edit.old)), (copied[at : at + 1], at + 1)
            (way, behind), (second, after) = sides if follows else sides[::-1]
            chance = log(edit.chance if follows else 1 - edit.chance)
            if other is None:
                other = above, second, after, log1p(-exp(chance))
            above, depth = self._chain(above, way[: count - depth], score + chance), depth + len(way)
            at = behind
        if other is not None:
            self._branch(*other)

    def _branch(self, parent: int, way: list[int], at: int, score: float) -> None:
        """The other side of an edit, with some tokens behind it."""
        above = self._chain(parent, way, score)
        for step, token in enumerate(self.text.copied[at : at + BRANCH]):
            if above is None:
                return
            above = self.node(above, token, _SCORES[SURE + step])

    def _chain(self, above: int | None, way: Sequence[int], score: float) -> int | None:
        """Tokens of one side of an edit; the first decides."""
        for step, token in enumerate(way):
            if above is None:
                return None
            above = self.node(above, token, score if step == 0 else _SCORES[len(AGREED)])
        return above

    def built(self, source: str) -> DraftTree:
        return DraftTree.build(self.tokens, self.parents, source=source, scores=self.scores)
