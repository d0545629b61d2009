"""Prompt lookup: what followed these words the last time they stood here.

Text that quotes its prompt or itself (summaries, code edits, names, agents' transcripts) repeats token
n-grams. The longest suffix of the text that occurred before, at its latest occurrence, is continued as it was
continued there. Where the copied piece reaches the end of the text it goes on into its own copy, so a
repetition is drafted to any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter, Seen
from paceline.drafters.reaching import Reaching
from paceline.targets.base import Want
from paceline.tree import EMPTY, DraftTree


@dataclass(eq=False)
class Places:
    """Where every n-gram of a text last stood: the index of the token that followed it."""

    context: Context
    sizes: range
    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 0

    def catch_up(self) -> None:
        """Index the n-grams that have a successor by now, each once, later occurrences over earlier ones."""
        tokens = self.context.tokens
        start = max(0, self.indexed - self.sizes[-1])
        recent = tokens[start:].tolist()
        for end in range(max(self.indexed, 1), len(tokens)):
            stop = end - start
            for size in self._within(end):
                self.after[tuple(recent[stop - size : stop])] = end
        self.indexed = max(self.indexed, len(tokens))

    def match(self) -> int | None:
        """The token index from which to copy, by the longest suffix that occurred before."""
        suffix = self.context.tokens[-self.sizes[-1] :].tolist()
        for size in reversed(self._within(len(suffix))):
            if (found := self.after.get(tuple(suffix[-size:]))) is not None:
                return found
        return None

    def _within(self, length: int) -> range:
        """The sizes that a text of this length has n-grams of."""
        return range(self.sizes.start, min(self.sizes.stop, length + 1))


class Lookup(Drafter):
    """Continues the longest n-gram that occurred before, at its latest occurrence."""

    name = "lookup"
    summary = "copy what followed the last occurrence of the longest matching n-gram"
    source = "prompt lookup decoding (Saxena 2023); chain: ANPD (Ou et al. 2024); next: LogitSpec (Liu et al. 2025)"
    unfit = "text that repeats neither its prompt nor itself"

    def __init__(self, *, max_ngram: int = 3, min_ngram: int = 1, chain: bool = False, next: int = 0) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"lookup needs 1 <= min_ngram <= max_ngram, not {min_ngram} and {max_ngram}")
        if next < 0:
            raise ValueError(f"lookup tries 0 (none) or more of the target's best tokens as the next one, not {next}")
        self.sizes = range(min_ngram, max_ngram + 1)
        self.chain, self.next = chain, next
        if next:
            self.needs = Want(top=next)

    def open(self, context: Context) -> Places | Reaching:
        if self.chain or self.next:
            return Reaching(context, self.sizes, self.chain, self.next)
        return Places(context, self.sizes)

    def observe(self, seen: Sequence[Seen]) -> None:
        for entry in seen:
            if isinstance(entry.state, Reaching):
                entry.state.learn(entry)

    def propose_one(self, state: Places | Reaching, budget: Budget) -> DraftTree:
        if isinstance(state, Reaching):
            return state.draft(budget, self.name)
        state.catch_up()
        start = state.match()
        if start is None:
            return EMPTY
        tokens = state.context.tokens
        period = len(tokens) - start
        count = min(budget.nodes, budget.depth)
        copied = tokens[start : start + count] if count <= period else tokens[start + np.arange(count) % period]
        return DraftTree.chain(copied, source=self.name)
