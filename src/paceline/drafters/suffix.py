"""Suffix drafting: a tree of the continuations of all earlier places with the text's ending.

The longest ending of the text that occurred before is looked up, at all its places, and shorter endings, too, as far as
there is room. Each place votes for its continuation (`votes`): a continuation that is frequent, recent and after a long
match comes first, and if places disagree the draft branches. A copy that reaches the end of the text continues into
itself.

Where the text copies a passage of itself with edits, such as one with another name in it, the draft also goes on as the
copy does behind its edits (`edited`).

Places in earlier texts (``remember=``) and in a corpus (``corpus=``) vote, too, but as if their match were a token
shorter: of equal matches the text itself predicts better.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.context import Context
from paceline.drafters.base import Ahead, Budget, Drafter, Seen
from paceline.drafters.datastore import Datastore
from paceline.drafters.edited import SURE, OwnCopy
from paceline.drafters.endings import IndexedText
from paceline.drafters.memory import Memory
from paceline.drafters.noise import SharedNoise, hides_noise, wants_noise
from paceline.drafters.votes import LONGEST, Vote, even, grow, ranked
from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.tree import EMPTY, DraftTree, merge
from paceline.vocabulary import Vocabulary

PLACES = 16
"""Places that vote at most."""
FOREIGN = 1
"""Tokens by which a match in another text counts as shorter than it is."""
WEIGHTS = [ranked(rank) for rank in range(PLACES)]
EDITED = "-edited"
"""Behind the name of the method: source of drafts by a copy with edits, which come true more or less often."""
BEFORE = 8
"""Tokens of a prompt that are remembered with the text behind it."""


@dataclass(eq=False)
class SuffixState(IndexedText):
    """One text, the noise by which votes are ranked, if by any, and the memory of other texts that may vote."""

    noise: SharedNoise | None = None
    memory: Memory | None = None

    copy: OwnCopy = field(init=False)
    """The passage that the text copies, if it does."""

    def __post_init__(self) -> None:
        super().catch_up()
        self.copy = OwnCopy.of(self.context, self.endings)

    def catch_up(self) -> None:
        """Index the tokens that are new, and follow the copy through them."""
        known = len(self.endings.text)
        if len(self.context) > known:
            for token in self.context.listed(known):
                self.endings.extend((token,))
                self.copy.follow(token)

    def votes(self, count: int, ahead: Sequence[int] = ()) -> list[Vote]:
        """The places in the text itself that end as it does, with the tokens ``ahead`` of it, each with the ``count``
        tokens that followed."""
        found = zip(self.endings.behind(ahead, PLACES), WEIGHTS, strict=False)
        return [Vote(self.copied(place + 1, count, ahead), size, weight) for (place, size), weight in found]


class Suffix(Drafter):
    """Continues every place that ended like the text, the likeliest continuations first."""

    name = "suffix"
    summary = "a tree of what followed earlier places that end like the text, by match length, count and recency"
    source = "SuffixDecoding (Oliaro et al. 2024), SAM decoding (Hu et al. 2024)"
    unfit = "text that repeats neither its prompt nor itself"
    skips = True
    copies = True
    nodes = 16

    def __init__(
        self, *, noise: str = "shared", corpus: str | None = None, remember: int = 0, memory: str | None = None
    ) -> None:
        self._noise = wants_noise(self.name, noise)
        if remember < 0:
            raise InputError(f"suffix remembers 0 tokens (nothing) or more, not {remember}")
        if memory is not None and remember == 0:
            raise InputError(f"suffix keeps its memory in {memory!r} but remembers nothing; give remember=N, too")
        self._corpus = None if corpus is None else Datastore.shared(corpus)
        self._memory = Memory(remember, memory) if remember else None
        self.pause, self._saved = 0.0, 0.0
        """Seconds between two times that the memory is saved."""

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        if self._corpus is not None:
            self._corpus.check(target.vocab_size, vocabulary)
        if self._memory is not None:
            self._memory.fit(target.vocab_size, vocabulary)

    def reset(self) -> None:
        if self._memory is not None:
            self._memory.clear()

    def open(self, context: Context) -> SuffixState:
        memory = None if hides_noise(context) else self._memory
        return SuffixState(context, noise=SharedNoise.of(context, self._noise), memory=memory)

    def propose_one(self, state: SuffixState, budget: Budget) -> DraftTree:
        state.catch_up()
        votes = state.votes(min(budget.nodes, budget.depth))
        return self._grown(state, votes, state.copy, budget, state.noise)

    def behind(self, asks: Sequence[Ahead]) -> list[DraftTree]:
        return [self._behind(*ask) for ask in asks]

    def _behind(self, state: SuffixState, budget: Budget, ahead: Sequence[int]) -> DraftTree:
        """Behind a guess only what ends in as many known tokens as are sure to be no chance."""
        state.catch_up()
        votes, copy = state.votes(min(budget.nodes, budget.depth), ahead), state.copy
        if copy.following:
            copy = copy.ahead(ahead)
        elif not votes or votes[0].length < SURE:
            return EMPTY
        noise = None if state.noise is None else SharedNoise(state.context.extended(ahead))
        return self._grown(state, votes, copy, budget, noise, ahead)

    def _grown(
        self,
        state: SuffixState,
        votes: list[Vote],
        copy: OwnCopy,
        budget: Budget,
        noise: SharedNoise | None,
        ahead: Sequence[int] = (),
    ) -> DraftTree:
        """The tree of votes and, where the text copies a passage, of its copy."""
        if state.memory is not None or self._corpus is not None:
            votes = votes + self._foreign(state, min(budget.nodes, budget.depth), ahead)
        tree = grow(votes, budget.nodes, budget.depth, self.name, noise)
        if budget.empty or not copy.tells:
            return tree
        own = copy.drafted_from(budget, self.name + EDITED).head(budget.nodes, depth=budget.depth)
        return merge([own, tree]).top(budget.nodes)

    def sure(self, state: SuffixState) -> bool:
        state.catch_up()
        return state.copy.agrees

    def _foreign(self, state: SuffixState, count: int, ahead: Sequence[int]) -> list[Vote]:
        """The votes of other texts."""
        votes: list[Vote] = []
        ending = [*state.endings.text[-LONGEST:], *ahead][-LONGEST:]
        if state.memory is not None:
            found = zip(state.memory.following(ending, PLACES, count), WEIGHTS, strict=False)
            votes += [Vote(tokens, size - FOREIGN, weight) for (tokens, size), weight in found if size > FOREIGN]
        if self._corpus is not None:
            votes += even(self._corpus.following(ending, PLACES, count, shortest=FOREIGN + 1), less=FOREIGN)
        return votes

    def observe(self, seen: Sequence[Seen]) -> None:
        for entry in seen:
            entry.state.catch_up()

    def close(self, state: SuffixState) -> None:
        if self._memory is None:
            return
        context = state.context
        if len(context.emitted):
            self._memory.learn(context.tokens[max(0, context.prompt_length - BEFORE) :].tolist())
        if time.monotonic() >= self._saved + self.pause:
            self._save(self._memory)

    def dispose(self) -> None:
        if self._memory is not None:
            self._save(self._memory)

    def _save(self, memory: Memory) -> None:
        self._saved = time.monotonic()
        try:
            memory.save()
        except ValueError as error:  # the text itself is complete
            warnings.warn(str(error), stacklevel=2)
