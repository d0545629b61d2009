"""Prompt lookup: continue the text as at an earlier place with the same last tokens.

Text that quotes its prompt or itself (summaries, code edits, names, transcripts of agents) repeats n-grams of tokens.
The longest ending of the text that occurred before is continued as at its latest place. A copy that reaches the end of
the text continues into itself, so a repetition is drafted to any length.

Two options draft more from the same n-grams:

``chain``
    looks up every token of the draft again (ANPD), with the tokens drafted so far. So a draft may move from one place
    to another, while a copy stays at its place.
``next``
    tries the best tokens of the last row as the next token (LogitSpec): the row that chose the last token often also
    ranks the token after it high. Each is drafted, and behind it the tokens that followed the text's ending with this
    token. So something is drafted even if the ending itself is new.

``lookup:paper`` is prompt lookup as it was published: the longest ending that stood before with 10 tokens behind it
(``room``), at whatever size of draft, is continued by those, from the first of its places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Ahead, Budget, Drafter, Seen
from paceline.drafters.endings import Endings, IndexedText
from paceline.errors import InputError
from paceline.targets.base import Want
from paceline.tree import EMPTY, FIXED, UNSURE, DraftTree, Ints, line, merge

LONGEST = 64
"""Tokens of an n-gram at most: of two places where more stands as before, the latest is as good as any."""
NEXT = "-next"
"""Behind the name of the method: source of drafts behind a guessed token, which come true less often."""


@dataclass(eq=False)
class LookupState(IndexedText):
    """One text, and the guesses of its next token: ids and log-probabilities."""

    guesses: list[tuple[int, float]] = field(default_factory=list)
    length: int = 0
    """The length of the text that they are for."""


class Lookup(Drafter):
    """Continues the longest n-gram that occurred before, at its latest occurrence."""

    name = "lookup"
    summary = "copy what followed the last occurrence of the longest matching n-gram"
    source = "prompt lookup decoding (Saxena 2023); chain: ANPD (Ou et al. 2024); next: LogitSpec (Liu et al. 2025)"
    unfit = "text that repeats neither its prompt nor itself"
    skips = True
    copies = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"paper": {"room": 10}})

    def __init__(
        self, *, max_ngram: int = 3, min_ngram: int = 1, room: int = 0, chain: bool = False, next: int = 0
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise InputError(f"lookup needs 1 <= min_ngram <= max_ngram, not {min_ngram} and {max_ngram}")
        if next < 0:
            raise InputError(f"lookup tries 0 (none) or more of the target's best tokens as the next one, not {next}")
        if min_ngram > LONGEST:
            raise InputError(f"lookup's min_ngram is at most {LONGEST}, not {min_ngram}")
        if room < 0:
            raise InputError(f"lookup takes room=0 (none is needed) or more tokens, not {room}")
        if room and (chain or next):
            raise InputError(
                "with chain or next lookup copies from the latest place; leave out room, or chain and next"
            )
        self.room, self.nodes = room, room or self.nodes
        self.sizes = range(min_ngram, min(max_ngram, LONGEST) + 1)
        self.chain, self.next = chain, next
        if next:
            self.needs = Want(top=next)

    def open(self, context: Context) -> LookupState | Context:
        return context if self.room else LookupState(context, Endings(range(1, self.sizes.stop), linked=False))

    @property
    def observes(self) -> bool:
        return self.next > 0 or type(self).observe is not Lookup.observe

    def observe(self, seen: Sequence[Seen]) -> None:
        if not self.next:
            return
        for text, verdict, scores in seen:
            text.guesses = []
            if verdict.tokens:
                row = verdict.path[-1] + 1 if verdict.path else 0
                top = scores.top(self.next)
                chances = np.minimum(top.logits[row] - top.log_z[row], 0.0)
                text.length = len(text.context)
                text.guesses = list(zip(top.ids[row].tolist(), chances.tolist(), strict=True))

    def propose_one(self, state: LookupState | Context, budget: Budget) -> DraftTree:
        count = min(budget.nodes, budget.depth)
        if isinstance(state, Context):
            copied = first_with_room(state.tokens, self.sizes, self.room)[:count]
            return DraftTree.chain(copied.tolist(), source=self.name)
        state.catch_up()
        if not count:
            return EMPTY
        tree = self._copied(state, count)
        if not state.guesses or state.length < len(state.context):
            return tree
        beams = [[token, *self._following(state, [token], count - 1)] for token, _ in state.guesses]
        scores = [[score] + [UNSURE] * count for _, score in state.guesses]
        guessed = DraftTree.from_beams(beams, source=self.name + NEXT, scores=scores)
        return merge([tree, guessed]).top(budget.nodes)

    def behind(self, asks: Sequence[Ahead]) -> list[DraftTree]:
        return [self._behind(*ask) for ask in asks]

    def _behind(self, state: LookupState | Context, budget: Budget, ahead: Sequence[int]) -> DraftTree:
        if isinstance(state, Context):
            return self.propose_one(state.extended(ahead), budget)
        state.catch_up()
        count = min(budget.nodes, budget.depth)
        return DraftTree.chain(self._following(state, [], count, ahead)[:count], source=self.name)

    def _copied(self, state: LookupState, count: int) -> DraftTree:
        """The continuation of the text. Unless a copy reaches the end of the text, it is a piece of the text's own
        memory."""
        if self.chain:
            return DraftTree.chain(self._following(state, [], count), source=self.name)
        place = state.endings.latest(self.sizes.start)
        if place is None:
            return EMPTY
        piece, (parents, unsure) = state.context.tokens[place + 1 : place + 1 + count], line(count)
        if len(piece) < count:
            piece = np.resize(piece, count)
        return DraftTree(piece, parents, unsure, (self.name,) * count, FIXED)

    def _following(self, text: LookupState, drafted: list[int], count: int, ahead: Sequence[int] = ()) -> list[int]:
        """At most ``count`` tokens that follow the text with the tokens ``ahead`` and those ``drafted`` behind it."""
        grown = list(drafted)
        while len(grown) < len(drafted) + count and (place := self._place(text, ahead, grown)) is not None:
            grown += text.copied(place + 1, 1 if self.chain else count, [*ahead, *grown])
        return grown[len(drafted) :]

    def _place(self, text: LookupState, ahead: Sequence[int], drafted: list[int]) -> int | None:
        """The latest place of the longest ending of the text with its draft, in the text or ``ahead`` of it."""
        found = text.endings.behind(ahead, 1, drafted)
        return found[0][0] if found and found[0][1] >= self.sizes.start else None


def first_with_room(text: Ints, sizes: range, room: int) -> Ints:
    """The ``room`` tokens behind the first place of the longest ending that has as many; none if no ending has."""
    for size in reversed(sizes):
        last = len(text) - size - room
        if last < 0:
            continue
        starts = np.arange(last + 1)
        for place, token in enumerate(text[-size:]):
            starts = starts[text[starts + place] == token]
        if len(starts):
            behind = int(starts[0]) + size
            return text[behind : behind + room]
    return text[:0]
