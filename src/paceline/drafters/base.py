"""What a drafter is. A third party needs one method::

    class Echo(Drafter):
        name = "echo"

        def propose_one(self, context, budget):
            return DraftTree.chain([context.root] * budget.nodes, source=self.name)

A draft can never be wrong, only useless: the target decides every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from paceline.context import Context
from paceline.targets.base import NOTHING, Target, Want
from paceline.targets.scores import Scores
from paceline.tree import DraftTree
from paceline.verify import Verdict
from paceline.vocabulary import Vocabulary


@dataclass(frozen=True)
class Budget:
    """How much a draft may hold: ``nodes`` in all, no path longer than ``depth``."""

    nodes: int
    depth: int

    def __post_init__(self) -> None:
        assert min(self.nodes, self.depth) >= 0, f"a budget is not negative: {self}"

    @property
    def empty(self) -> bool:
        return self.nodes == 0 or self.depth == 0


class Ask(NamedTuple):
    """One sequence waiting for a draft."""

    state: Any
    budget: Budget


class Enrich(NamedTuple):
    """One sequence with the draft of the cheap part, waiting for that of the expensive part."""

    state: Any
    budget: Budget
    draft: DraftTree


class Seen(NamedTuple):
    """What became of one sequence's rows: the first, and those on the verdict's path, were kept.

    A piece of the prompt looks like a chain that was accepted whole and emitted nothing.
    """

    state: Any
    verdict: Verdict
    scores: Scores


class Drafter:
    """Proposes continuations. State is per sequence and lives from `open` to `close`; calls take several
    sequences. A drafter is kept and serves one text after the other, and several at a time from several threads: what
    belongs to a text belongs into its state.

    Overriding `propose_one` suffices; a drafter that gains from several sequences at once overrides
    `propose`.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    """One line for ``paceline methods``."""
    source: ClassVar[str] = ""
    """The paper or project the method comes from."""
    requires: ClassVar[str] = ""
    """What it must be given, in a few words for ``paceline methods``."""
    unfit: ClassVar[str] = ""
    """When not to use it, in a clause for ``paceline methods``."""
    nodes: int = 10
    """How many nodes a draft may hold where nobody says: as many as are worth their cost on most machines."""
    spec: str = ""
    """What it was made from, where it was: the name that measurements of it are kept under."""
    planner: str = "fixed"
    """Who sizes its drafts where nobody says, as a planner's spec."""
    needs: Want = NOTHING
    """What the target should compute for `observe` beyond tokens."""
    enriches: bool = False
    """Whether it has an expensive part: `propose` leaves it out, and `enrich` is called where the planner finds that,
    beside the draft that is there, it is worth its time."""

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        """Learn which model to draft for, before any `open`, perhaps again for the same one.

        A drafter that cannot draft for it raises a ValueError that says why.
        """

    def reset(self) -> None:
        """Forget what was learnt from texts so far. Texts that are open go on."""

    def open(self, context: Context) -> Any:
        """Start a sequence; what is returned comes back as ``state``. Work that grows with the prompt is done here, or
        in `observe` while the target reads it: its time counts as reading the prompt, not as decoding."""
        return context

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """One draft per asking sequence, empty where there is nothing to say."""
        return [self.propose_one(state, budget) for state, budget in asks]

    def propose_one(self, state: Any, budget: Budget) -> DraftTree:
        """The draft of one sequence."""
        raise TypeError(f"drafter {type(self).__name__} overrides neither propose nor propose_one")

    def enrich(self, asks: Sequence[Enrich]) -> list[DraftTree]:
        """Each draft joined with that of the expensive part; called only where `enriches` says so."""
        return [ask.draft for ask in asks]

    def read(self, seen: Sequence[Seen]) -> None:
        """Read from the scores what `observe` will need: the best tokens of every row, where it `needs` any.

        Called before every `observe`. It is apart since its time counts as the target's and not as drafting: on a
        device that works ahead of the host it waits for the forward.
        """
        if self.needs.top:
            for each in seen:
                each.scores.read_top()

    def observe(self, seen: Sequence[Seen]) -> None:
        """Learn from a round. The context has its new tokens already."""

    def close(self, state: Any) -> None:
        """Forget a sequence: called exactly once for every `open`, also when a generation is cut short."""


class Plain(Drafter):
    """Never drafts, so every round is one row and one token: what everything else is measured against."""

    name = "plain"
    summary = "no draft: one token per forward"
    source = "autoregressive decoding"

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return DraftTree.chain([])
