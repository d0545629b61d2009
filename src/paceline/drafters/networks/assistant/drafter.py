"""Drafts by a small model. Where its tokenizer is not the target's, drafts are translated by way of bytes.

By default candidates are ranked by probability / shared noise: where the two models agree on the probabilities they
agree on the token, also at temperature 1, where the likeliest token is often not the sampled one. ``noise=none`` ranks
by probability alone, as the classic papers do. Under the rejection rule, whose coins no draft may see, tokens are
sampled and their law goes with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Ask, Budget, Drafter, Seen
from paceline.drafters.networks.assistant.growth import DraftShape, Growth
from paceline.drafters.networks.assistant.model import DraftModel, Loaded
from paceline.drafters.networks.assistant.noisy import NoisyGrowth
from paceline.drafters.networks.assistant.state import (
    BYTES_TRANSLATED,
    DRAFT_FORWARDS,
    DRAFT_TOKENS,
    ROWS_ROLLED_BACK,
    AssistantState,
    Foreign,
    ForeignState,
    SharedState,
)
from paceline.drafters.networks.assistant.translated import Translated
from paceline.drafters.noise import SharedNoise, wants_noise
from paceline.errors import InputError
from paceline.law import Outlook
from paceline.targets.base import SPARE_ROWS, Request, Rows, Target
from paceline.targets.lending import KeptRows
from paceline.translate import LATTICE, TLI, Follower, Strategy
from paceline.tree import DraftTree
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Model: TypeAlias = "str | Path | PreTrainedModel | DraftModel | Loaded | Target"
"""A draft model, by name, by path, or loaded in any way."""

Growing: TypeAlias = "Growth | NoisyGrowth"

LEVELS = 4
"""The default depth of drafts: every level costs a forward of the draft model, and few are accepted further."""
IN_PASSING = 16
"""Up to this many unread tokens are read together with the draft's first level."""


class Assistant(Drafter):
    """A draft model and the shape of its drafts. The model is loaded when a target is known."""

    name = "assistant"
    summary = "a small model drafts a chain, a tree or beams, with the same tokenizer or any other"
    source = "speculative decoding (Leviathan 2022, Chen 2023); public noise after Daliri 2024"

    skips = True
    counters = (DRAFT_FORWARDS, DRAFT_TOKENS, ROWS_ROLLED_BACK, BYTES_TRANSLATED)
    unfit = "a draft model that takes more than a small part of the target's time, or predicts other words"
    requires = "a draft model, best with the target's tokenizer: model=NAME or --draft-model NAME"

    def __init__(
        self,
        *,
        model: Model,
        beams: int = 1,
        top: int = 1,
        length: int | None = None,
        noise: str = "shared",
        confidence: float = 0.0,
        translate: str | None = None,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        for name, value in (("beams", beams), ("top", top), ("length", 1 if length is None else length)):
            if value < 1:
                raise InputError(f"option {name!r} of method 'assistant' is at least 1, not {value}")
        if not 0 <= confidence < 1:
            raise InputError(f"option 'confidence' of method 'assistant' is from 0 to below 1, not {confidence}")
        self.shape = DraftShape(
            beams=beams, top=top, length=length, confidence=confidence, shared=wants_noise(self.name, noise)
        )
        self.nodes = (length or LEVELS) * max(beams, top)
        self.costly_levels = self.shape.depth(self.nodes)
        self._strategy = None if translate is None else Strategy.parse(translate)
        self._named: Any = model
        self._dtype = dtype
        self._loaded = _loaded(model)
        if self._loaded is not None and dtype is not None:
            raise InputError(f"the draft model is loaded already; its type cannot be made {dtype}")
        self._vocab_size: int | None = None
        self._foreign: Foreign | None = None
        """How its drafts are translated, where they are."""
        self._rows = KeptRows(lambda capacity: self.model.open(capacity), lambda: self.model.look(), copies_lent=True)
        """Their lock is held while rows move: a new text copies rows of the others."""

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        with self._rows.held():
            if self._loaded is None:
                self._loaded = DraftModel.load(self._named, target, self._dtype)
            self._foreign = self._loaded.translated(target, vocabulary, self._strategy)
            self._vocab_size = target.vocab_size
            self.model.drafted([])  # so that what is compiled for that is compiled now

    def fit_size(self, size: int, vocabulary: Vocabulary) -> None:
        """The same for a target elsewhere, of which only its tokens are known; its draft model is loaded already."""
        assert self._loaded is not None, "it is loaded before its texts come"
        strategy = self._strategy or Strategy(LATTICE)
        self._foreign, self._vocab_size = self._loaded.foreign_to(size, vocabulary, strategy), size

    def dispose(self) -> None:
        with self._rows.held():
            self._loaded = None
        self._rows.clear()

    @property
    def models(self) -> tuple[Target, ...]:
        return () if self._loaded is None else (self._loaded.target,)

    def levels(self, nodes: int) -> int:
        return self.shape.depth(nodes)

    @property
    def model(self) -> Target:
        """The target that drafts."""
        assert self._loaded is not None, "a draft model is loaded by `fit`"
        return self._loaded.target

    def open(self, context: Context) -> AssistantState:
        """Begin with the rows of the last text, or a copy of another text's, as far as they hold the prompt."""
        with self._rows.held():
            follower = None if self._foreign is None else self._foreign.follower(context)
            tokens = context.tokens if follower is None else np.array(follower.ids, np.int64)
            rows = self._rows.lend(tokens[:-1], self._capacity(context.reserve))
            try:
                rows.rewind(rows.common_prefix(tokens[:-1]))
                return self._reading(context, rows, follower)
            except BaseException:
                self._rows.give(rows)
                raise

    def _reading(self, context: Context, rows: Rows, follower: Follower | None) -> AssistantState:
        outlook = Outlook(context.sampling, context.prompt_length)
        foreign = self._foreign
        if foreign is None or follower is None:
            return AssistantState(context, rows, outlook, self._vocab_size)
        kind = SharedState if foreign.strategy.name == TLI else ForeignState
        return kind(context, rows, outlook, foreign, follower)

    def _capacity(self, length: int) -> int:
        """Memory for a text of so many tokens of the target, in the draft model's own."""
        return SPARE_ROWS + length * (1 if self._foreign is None else 2)

    def branch(self, reading: AssistantState, context: Context) -> AssistantState:
        """A text that may become of this one, with rows of its own. It is closed like any other."""
        with self._rows.held():
            return reading.branched(context, self._rows.copy(reading.rows, self._capacity(context.reserve)))

    def close(self, state: AssistantState) -> None:
        self._rows.give(state.rows)

    def counts(self, state: AssistantState) -> Mapping[str, float]:
        return state.tally.take()

    def observe(self, seen: Sequence[Seen]) -> None:
        """While the target reads prompts, piece by piece and of several texts together, so does the draft model."""
        with self._rows.held():
            prompts = [entry.state for entry in seen if not entry.verdict.tokens]
            self._read_piece([reading for reading in prompts if self._can_read(reading)])

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Drafts grow together: one forward of the draft model reads a level of each."""
        with self._rows.held():
            growths = [self.growth(ask) for ask in asks]
            going = [ask.state for ask, growth in zip(asks, growths, strict=True) if not growth.done]
            while self._read_piece(going):
                pass
            self._follow_chains(growths)
            while growing := [growth for growth in growths if not growth.done]:
                scores = self.model.submit([growth.request() for growth in growing]).result()
                for growth, found in zip(growing, scores, strict=True):
                    growth.grow(found)
        return [growth.tree(self.name) for growth in growths]

    def _follow_chains(self, growths: Sequence[Growing]) -> None:
        """Have the model choose the tokens of chains itself, where it can."""
        pairs = [(growth, growth.chain()) for growth in growths if type(growth) is Growth]
        chains = [(growth, chain) for growth, chain in pairs if chain is not None]
        if chains and (drafts := self.model.drafted([chain for _, chain in chains])) is not None:
            for (growth, _), draft in zip(chains, drafts, strict=True):
                growth.follow(draft)

    def growth(self, ask: Ask) -> Growing:
        """A draft to be grown."""
        reading: AssistantState = ask.state
        if self._depth(reading, ask.budget) > 0:
            reading.catch_up()
        depth = self._depth(reading, ask.budget)
        shape = self.shape if self.model.reach(reading.length - 1).trees else self.shape.chained
        kind = self._kind(reading)
        if kind is Translated:
            depth = min(self.shape.length or depth, reading.levels(depth))
        growth: Growing = kind(reading, shape, ask.budget.nodes, depth if self._can_read(reading) else 0)
        return growth

    def _depth(self, reading: AssistantState, budget: Budget) -> int:
        """How deep a draft may go: limited by its shape and by the draft model's reach and context."""
        length = reading.length
        reach = self.model.reach(length - 1)
        depth = min(budget.depth, self.shape.depth(budget.nodes))
        if reach.depth is not None:
            depth = min(depth, reach.depth + 1)
        if self.model.context_length is not None:
            depth = min(depth, self.model.context_length - length + 1)
        return depth

    def _kind(self, reading: AssistantState) -> Any:
        """What grows a draft: in the target's tokens with their noise and coins, where they are known."""
        if not isinstance(reading, ForeignState) or isinstance(reading, SharedState):
            return Growth
        lattice = reading.foreign.strategy.name == LATTICE
        return NoisyGrowth if lattice and SharedNoise.of(reading.context, self.shape.shared) else Translated

    def _can_read(self, reading: AssistantState) -> bool:
        """Whether the text fits into the draft model's context, and the draft model has all its new tokens."""
        limit, unread = self.model.context_length, reading.unread
        fits = len(unread) > 0 and (limit is None or reading.length <= limit)
        return fits and int(unread.max()) < self.model.vocab_size

    def _read_piece(self, readings: Sequence[AssistantState]) -> bool:
        """Read a piece of every long unread text, but not its last token. False where there was none."""
        pieces = [(reading, piece) for reading in readings if (piece := self.piece(reading)) is not None]
        if pieces:
            self.model.submit([piece for _, piece in pieces]).result()
        for reading, piece in pieces:
            reading.read(len(piece.tokens))
        return bool(pieces)

    def piece(self, reading: AssistantState) -> Request | None:
        """What is read of a long unread text at once; None of a short one."""
        unread = reading.unread[:-1]
        if len(unread) < IN_PASSING:
            return None
        return Request.of_prompt(reading.rows, unread[: self.model.prefill_size(len(unread))])


def _loaded(model: Model) -> DraftModel | None:
    """The model, if it is loaded; None for a name, a path or a transformers model. ValueError for anything else."""
    if isinstance(model, (Target, Loaded)):
        return DraftModel.of(model)
    if isinstance(model, str) and not model.strip():
        raise InputError("the name of the draft model is empty; give a name or a folder, or leave it out")
    if not isinstance(model, (str, Path)) and not hasattr(model, "config"):
        raise InputError(f"a draft model is a name, a folder or a loaded model, not {model!r}")
    return None
