"""The contract of a network that drafts.

A network is asked level by level: it gives the laws behind the nodes that go on, for all drafts in one forward. It is
asked with the drafts themselves (`Growth`). These know the tokens of the newest nodes, which node of the level above
each follows, and the state of their text. Kinds of networks differ in what they keep between levels ::

    draft model            rows of keys and values that follow the text: `RowNetwork`
    EAGLE                  such rows, and the target's hidden states: `states`
    P-EAGLE                the same, and `begin` computes all levels (`marginals`), `level` hands them out
    Medusa, block          nothing, or rows of the text; all levels as P-EAGLE

Recurrent heads and Hydra keep a state for each path. Their levels are a search on the target's device (`beams`), which
may be recorded, and not networks in this sense.

A head that knows a part of the target's tokens says so once, as `TokenColumns` of its texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from paceline.drafters.networks.growth import Growth
from paceline.drafters.networks.reading import ReadText
from paceline.law import Distribution
from paceline.targets.base import Pending, Reach, Request, Rows
from paceline.targets.chains import Chain, ChainDraft

IN_PASSING = 16
"""Fewer unread tokens are read together with the draft's first level."""


class Network(ABC):
    """A network, as drafts see it."""

    def begin(self, growths: Sequence[Growth]) -> None:
        """Compute what precedes the first level of these drafts, or whole drafts (`Growth.follow`)."""

    @abstractmethod
    def level(self, growths: Sequence[Growth]) -> Sequence[Sequence[Distribution]]:
        """The laws behind the nodes that go on in each draft (`Growth.laws`)."""

    def grow(self, growths: Sequence[Growth]) -> None:
        """Grow drafts together until all are done."""
        if going := [growth for growth in growths if not growth.done]:
            self.begin(going)
        while going := [growth for growth in going if not growth.done]:
            self.add_level(going)

    def add_level(self, growths: Sequence[Growth]) -> None:
        """Let drafts that are not done grow by a level."""
        if growths:
            for growth, laws in zip(growths, self.level(growths), strict=True):
                growth.add(laws)


class RowModel(Protocol):
    """A model that scores rows of keys and values: any target, as a draft model. A head inherits from this, and defines
    `open`, `submit` and its sizes."""

    vocab_size: int
    context_length: int | None = None

    def open(self, capacity: int = 0) -> Rows: ...

    def submit(self, requests: Sequence[Request]) -> Pending: ...

    def drafted(self, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        return None

    def reach(self, position: int) -> Reach:
        return Reach()

    def prefill_size(self, length: int) -> int:
        return length

    def look(self) -> int:
        return 0


class RowNetwork(Network):
    """A network with rows. The states of its texts are `ReadText`, which make the requests."""

    in_passing = IN_PASSING
    """So many unread tokens are read before a draft's first level, in pieces of their own."""

    def __init__(self, model: RowModel) -> None:
        self.model = model
        self.rows_read = 0
        """Of all forwards so far."""

    @property
    def ties(self) -> bool:
        """Whether a token's law depends on those before it in the draft."""
        return True

    def depth(self, depth: int, length: int) -> int:
        """How deep a draft may go behind ``length`` tokens, within the model's reach and context."""
        reach, context = self.model.reach(length - 1), self.model.context_length
        if reach.depth is not None:
            depth = min(depth, reach.depth + 1)
        return depth if context is None else min(depth, context - length + 1)

    def reads_trees(self, length: int) -> bool:
        """Whether siblings can be read behind ``length`` tokens."""
        return self.model.reach(length - 1).trees

    def can_read(self, state: ReadText, *tokens: int) -> bool:
        """Whether the text, with these tokens behind it, fits into the model's context, and the model has all of its
        new tokens."""
        limit, unread = self.model.context_length, state.unread
        fits = len(unread) > 0 and (limit is None or state.length + len(tokens) <= limit)
        return fits and max(int(unread.max()), *tokens, 0) < self.model.vocab_size

    def begin(self, growths: Sequence[Growth]) -> None:
        """Read long unread texts, and have the model draft whole chains itself, where it can."""
        while self.read_pieces([growth.state for growth in growths]):
            pass
        pairs = [(growth, growth.state.chain(growth)) for growth in growths]
        chains = [(growth, chain) for growth, chain in pairs if chain is not None]
        if chains and (drafts := self.model.drafted([chain for _, chain in chains])) is not None:
            for (growth, _), draft in zip(chains, drafts, strict=True):
                growth.state.follow(growth, draft)

    def read_pieces(self, states: Sequence[ReadText]) -> list[ReadText]:
        """Read a piece of every long unread text, but not its last token. The texts that were long."""
        pieces = [(state, piece) for state in states if (piece := self._piece(state)) is not None]
        if pieces:
            self._submit([piece for _, piece in pieces]).result()
        for state, piece in pieces:
            state.read(len(piece.tokens))
        return [state for state, _ in pieces]

    def _piece(self, state: ReadText) -> Request | None:
        """The next piece of a long unread text; None of a short one, and while a draft grows behind it."""
        if state.begun:
            return None
        unread = state.unread[: max(0, state.known - 1 - state.rows.committed)]
        if len(unread) < self.in_passing:
            return None
        return Request.of_prompt(state.rows, unread[: self.model.prefill_size(len(unread))])

    def level(self, growths: Sequence[Growth]) -> Sequence[Sequence[Distribution]]:
        """Drafts of one text are read as one tree."""
        texts = dict[Any, list[Growth]]()
        for growth in growths:
            texts.setdefault(growth.state, []).append(growth)
        asked = [state.request(own) for state, own in texts.items()]
        laws = dict[Growth, list[Distribution]]()
        for (state, own), scores in zip(texts.items(), self._submit(asked).result(), strict=True):
            laws.update(zip(own, state.found(scores, own), strict=True))
        return [laws[growth] for growth in growths]

    def _submit(self, requests: Sequence[Request]) -> Pending:
        for request in requests:
            self.rows_read += len(request.tokens)
        return self.model.submit(requests)
