"""Drafters by a network; and by one with KV rows, which are lent to texts and kept for those that begin alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.context import Context
from paceline.drafters.base import Ask, Budget, Drafter, Seen
from paceline.drafters.counters import Counter
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.drafters.networks.network import Network, RowNetwork
from paceline.drafters.networks.reading import DRAFT_FORWARDS, DRAFT_TOKENS, DraftedText, ReadText
from paceline.targets.base import SPARE_ROWS, Rows
from paceline.targets.lending import KeptRows
from paceline.tree import ROOT, DraftTree, Ints


class NetworkDrafter(Drafter):
    """A network and the shape of its drafts. The states of its texts are `DraftedText`."""

    counters: tuple[Counter, ...] = (DRAFT_FORWARDS, DRAFT_TOKENS)

    def __init__(self, shape: DraftShape) -> None:
        self.shape = shape

    @property
    @abstractmethod
    def network(self) -> Network:
        """The network that it drafts with; known after `fit`."""

    @abstractmethod
    def growth(self, ask: Ask) -> Growth:
        """A draft to be grown behind the text."""

    def levels(self, nodes: int) -> int:
        return self.shape.depth(nodes)

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Drafts grow together: one forward of the network reads a level of each."""
        growths = [self.growth(ask) for ask in asks]
        self.network.grow(growths)
        for ask, growth in zip(asks, growths, strict=True):
            ask.state.tally.add(DRAFT_TOKENS, growth.drafted)
        return [growth.tree(self.name) for growth in growths]

    def counts(self, state: DraftedText) -> Mapping[str, float]:
        return state.tally.take()


class RowDrafter(NetworkDrafter):
    """A drafter by a network with rows."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__(shape)
        self._rows = KeptRows(
            lambda capacity: self.network.model.open(capacity),
            lambda: self.network.model.look(),
            copies_lent=True,
        )
        """Their lock is held while rows move: a new text copies rows of the others."""

    @property
    @abstractmethod
    def network(self) -> RowNetwork: ...

    @abstractmethod
    def reading(self, context: Context, rows: Rows) -> ReadText:
        """The state of a text."""

    def open(self, context: Context) -> ReadText:
        """Begin with the rows of the last text, or a copy of another text's, as far as they hold the prompt."""
        with self._rows.held():
            return self._opened(context, context.tokens)

    def _opened(self, context: Context, tokens: Ints, **more: Any) -> ReadText:
        rows = self._rows.lend(tokens[:-1], self._capacity(context.reserve))
        try:
            rows.rewind(rows.common_prefix(tokens[:-1]))
            return self.reading(context, rows, **more)
        except BaseException:
            self._rows.give(rows)
            raise

    def _capacity(self, length: int) -> int:
        """Memory for a text of ``length`` tokens of the target."""
        return SPARE_ROWS + length

    def branch(self, state: ReadText, context: Context) -> ReadText:
        """A text that this one may become, with a copy of its rows."""
        with self._rows.held():
            return state.branched(context, self._rows.copy(state.rows, self._capacity(context.reserve)))

    def close(self, state: ReadText) -> None:
        self._rows.give(state.rows)

    def drop(self, state: ReadText) -> None:
        """Close a text that another one goes on for, or that is not written; its rows are not kept."""
        self._rows.drop(state.rows)

    def observe(self, seen: Sequence[Seen]) -> None:
        """While the target reads prompts, piece by piece and of several texts together, so does the network."""
        with self._rows.held():
            prompts = [entry.state for entry in seen if not entry.verdict.tokens]
            self.network.read_pieces([state for state in prompts if self.network.can_read(state)])

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        with self._rows.held():
            return super().propose(asks)

    def growth(self, ask: Ask) -> Growth:
        state: ReadText = ask.state
        if self.depth(ask.budget, state.length) > 0:
            state.catch_up()
        return self.growth_behind(state, ask.budget)

    def growth_behind(
        self, state: ReadText, budget: Budget, *ahead: int, text: Context | None = None, row: int = ROOT
    ) -> Growth:
        """The same of a text that has caught up; or behind the ``text``, which goes on with the tokens ``ahead``, the
        last of them read as this row."""
        length = state.length + len(ahead)
        readable = state.known == state.length and self.network.can_read(state, *ahead)
        depth = self.depth(budget, length) if readable else 0
        shape = self.shape if self.network.reads_trees(length) else self.shape.chained
        return state.growth(shape, budget.nodes, max(depth, 0), text=text, row=row)

    def depth(self, budget: Budget, length: int) -> int:
        """How deep a draft may go: limited by its shape and by the network's reach and context."""
        return self.network.depth(min(budget.depth, self.shape.depth(budget.nodes)), length)
