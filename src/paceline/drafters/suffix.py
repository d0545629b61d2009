"""Suffix drafting: a tree of what followed wherever the text ended like this before.

The longest ending of the text that stood before is looked up, not for one place but for all of them, and for shorter
endings, too, as far as there is room: every place votes for its continuation (`votes`), so what followed often, lately
and after a long match comes first, and where places disagree the draft branches. A copy that reaches the end of the
text goes on into itself, so a repetition is drafted to any length.

Besides the text there may be a memory of what was written before, and a corpus. Their places vote like the text's own,
but as if they matched a token less: of equal matches the text at hand is the better witness.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter, Seen
from paceline.drafters.datastore import Datastore
from paceline.drafters.endings import Endings
from paceline.drafters.memory import Memory
from paceline.drafters.noise import SharedNoise, wants_noise
from paceline.drafters.votes import LONGEST, Vote, even, grow, ranked
from paceline.targets.base import Target
from paceline.tree import DraftTree
from paceline.vocabulary import Vocabulary

PLACES = 16
"""How many places vote at most."""
FOREIGN = 1
"""By how many tokens a match elsewhere counts as shorter than it is."""
WEIGHTS = [ranked(rank) for rank in range(PLACES)]
BEFORE = 8
"""How many tokens of a prompt are remembered with what was written behind it."""


@dataclass(eq=False)
class Followed:
    """One text, its places by their endings, and the noise by which votes are ranked, if by any."""

    context: Context
    noise: SharedNoise | None
    endings: Endings = field(default_factory=Endings)

    def catch_up(self) -> None:
        known = len(self.endings)
        if len(self.context) > known:
            self.endings.extend(self.context.tokens[known:].tolist())

    def votes(self, limit: int, count: int) -> list[Vote]:
        """The places in the text itself that end as it does, each with the next ``count`` tokens."""
        text = self.endings.text
        end = len(text)
        found = self.endings.before(limit)
        votes = []
        for (place, size), weight in zip(found, WEIGHTS, strict=False):
            start = place + 1
            whole = start + count <= end
            votes.append(Vote(text[start : start + count] if whole else self._copied(start, count), size, weight))
        return votes

    def _copied(self, start: int, count: int) -> list[int]:
        """What follows from ``start`` on, and what is copied from there after the end."""
        cycle = self.endings.text[start:]
        return (cycle * -(-count // len(cycle)))[:count]


class Suffix(Drafter):
    """Continues every place that ended like the text, the likeliest continuations first."""

    name = "suffix"
    summary = "a tree of what followed every earlier place that ends like the text, by match length, count and recency"
    source = "SuffixDecoding (Oliaro et al. 2024), SAM decoding (Hu et al. 2024)"
    unfit = "text that repeats neither its prompt nor itself"
    nodes = 16

    def __init__(
        self, *, noise: str = "shared", corpus: str | None = None, remember: int = 0, memory: str | None = None
    ) -> None:
        if remember < 0:
            raise ValueError(f"suffix remembers 0 tokens (nothing) or more, not {remember}")
        if memory is not None and remember == 0:
            raise ValueError(f"suffix keeps its memory in {memory!r} but remembers nothing; give remember=N, too")
        self._noise = wants_noise(self.name, noise)
        self._corpus = None if corpus is None else Datastore.shared(corpus)
        self._memory = Memory(remember, memory) if remember else None

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        if self._corpus is not None:
            self._corpus.check(target.vocab_size, vocabulary)
        if self._memory is not None:
            self._memory.fit(target.vocab_size, vocabulary)

    def reset(self) -> None:
        if self._memory is not None:
            self._memory.clear()

    def save(self) -> None:
        """Write the memory to its file, if it has one; done whenever a text ends."""
        if self._memory is not None:
            self._memory.save()

    def open(self, context: Context) -> Followed:
        state = Followed(context, SharedNoise.of(context, self._noise))
        state.catch_up()
        return state

    def propose_one(self, state: Followed, budget: Budget) -> DraftTree:
        state.catch_up()
        count = min(budget.nodes, budget.depth)
        votes = state.votes(PLACES, count)
        if self._memory is not None or self._corpus is not None:
            votes = self._joined(votes, state.endings.text[-LONGEST:], count)
        return grow(votes, budget.nodes, budget.depth, self.name, state.noise)

    def _joined(self, votes: list[Vote], ending: list[int], count: int) -> list[Vote]:
        """The text's own votes, and those of other texts."""
        joined = list(votes)
        if self._memory is not None:
            remembered = self._memory.following(ending, PLACES, count)
            joined += [
                Vote(told, size - FOREIGN, weight)
                for (told, size), weight in zip(remembered, WEIGHTS, strict=False)
                if size > FOREIGN
            ]
        if self._corpus is not None:
            joined += even(self._corpus.following(ending, PLACES, count, shortest=FOREIGN + 1), less=FOREIGN)
        return joined

    def observe(self, seen: Sequence[Seen]) -> None:
        for entry in seen:
            entry.state.catch_up()

    def close(self, state: Followed) -> None:
        if self._memory is None:
            return
        context = state.context
        if len(context.emitted):
            self._memory.learn(context.tokens[max(0, context.prompt_length - BEFORE) :].tolist())
        try:
            self._memory.save()
        except ValueError as error:  # no reason to lose the text
            warnings.warn(str(error), stacklevel=2)
