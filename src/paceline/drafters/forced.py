"""Forced: where a grammar leaves no choice about the next bytes, they are drafted, as the tokenizer would spell them.

The model may spell the same bytes in other tokens, which the grammar allows, too. So these are drafts like others. At
the end of the grammar the end tokens are drafted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter
from paceline.tree import EMPTY, UNSURE, DraftTree
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    from paceline.grammar.following import TextMatcher

WINDOW = 8
"""Tokens of the text that are encoded with the forced bytes, since they decide how those are spelled."""
SURE = -0.05
"""The score of a token of forced bytes: log 0.95, since the model may spell them otherwise."""
BYTES_PER_NODE = 64
"""Forced bytes that are encoded for each node of the draft: four times those of a long token."""
ENDS = 4
"""End tokens that are drafted, at most."""


@dataclass(eq=False)
class ForcedState:
    """A text, and its place in its grammar."""

    context: Context
    following: TextMatcher
    vocabulary: Vocabulary


class Forced(Drafter):
    """Drafts the bytes that a grammar forces; nothing in a text without one."""

    name = "forced"
    summary = "what the grammar of a text leaves no choice about; every method but plain has it there"
    source = "jump-forward decoding (SGLang, Zheng et al. 2024)"
    unfit = "texts without a grammar, where it drafts nothing"
    nodes = 16

    def open(self, context: Context) -> ForcedState | None:
        grammar = context.sampling.grammar
        bound = getattr(grammar, "open", None)
        return None if bound is None else ForcedState(context, bound(), grammar.vocabulary)  # type: ignore[union-attr]

    def propose_one(self, state: ForcedState | None, budget: Budget) -> DraftTree:
        if state is None or budget.empty:
            return EMPTY
        emitted = state.context.emitted
        state.following.go_to(emitted)
        room = min(budget.nodes, budget.depth)
        rest = state.following.forced()
        forced = rest[: BYTES_PER_NODE * room]  # the rest may be long, and encoding it would hold up all texts
        chain = spelled(state.vocabulary, state.context.listed(-WINDOW), forced) if forced else []
        if len(forced) < len(rest):
            return _tree(chain, [], room, self.name)
        if chain:
            state.following.go_to(np.append(emitted, chain))
        ends = sorted(state.context.ending.eos)[:ENDS] if state.following.stopped else []
        return _tree(chain, ends, room, self.name)


def _tree(chain: list[int], ends: list[int], room: int, source: str) -> DraftTree:
    """A chain, and the end tokens behind it. The last token before a choice may well be a longer one."""
    scores = [SURE] * len(chain)
    if chain and not ends:
        scores[-1] = UNSURE
    parents = [*range(-1, len(chain) - 1), *[len(chain) - 1] * len(ends)]
    scores += [SURE if number == 0 else UNSURE for number in range(len(ends))]
    tokens = [*chain, *ends]
    return DraftTree.build(tokens[:room], parents[:room], source=source, scores=scores[:room])


def spelled(vocabulary: Vocabulary, before: list[int], forced: bytes) -> list[int]:
    """The tokens of forced bytes behind others, as the tokenizer spells them; none if it joins the two."""
    whole = forced.decode(errors="ignore").encode()  # a choice may begin within a character
    if not forced.startswith(whole):
        return []
    window = b"".join(map(vocabulary.token_bytes, before))
    for text in (window + whole, whole):
        ids = vocabulary.encode(text.decode(errors="ignore"), add_special=False).tolist()
        if (tokens := _ending(vocabulary, ids, whole)) is not None:
            return tokens
    return []


def _ending(vocabulary: Vocabulary, ids: list[int], spelled: bytes) -> list[int] | None:
    """The last tokens, if they spell this."""
    left, first = len(spelled), len(ids)
    while left > 0 and first > 0:
        first -= 1
        left -= len(vocabulary.token_bytes(ids[first]))
    tokens = ids[first:]
    return tokens if left == 0 and b"".join(map(vocabulary.token_bytes, tokens)) == spelled else None
