"""Drafts by a small model. If its tokenizer is not the target's, drafts are translated through bytes.

By default candidates are ranked by probability / shared noise: if the two models agree on the probabilities, they agree
on the token, even at temperature 1, at which the likeliest token is often not the sampled one. ``noise=none`` ranks by
probability alone, as the classic papers do. Under the rejection rule, whose coins no draft may see, tokens are sampled
and their law goes with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from paceline.context import Context
from paceline.drafters.networks.assistant.foreign import (
    BYTES_TRANSLATED,
    ROWS_ROLLED_BACK,
    Foreign,
    ForeignState,
    SharedState,
)
from paceline.drafters.networks.assistant.model import DraftModel, Loaded
from paceline.drafters.networks.assistant.spelled import SpelledState
from paceline.drafters.networks.drafter import RowDrafter
from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.network import RowNetwork
from paceline.drafters.networks.reading import DRAFT_FORWARDS, DRAFT_TOKENS, ReadText, TokenColumns
from paceline.drafters.noise import SharedNoise, wants_noise
from paceline.errors import InputError
from paceline.law import Outlook
from paceline.targets.base import SPARE_ROWS, Rows, Target
from paceline.translate import LATTICE, TLI, Follower, Strategy
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Model: TypeAlias = "str | Path | PreTrainedModel | DraftModel | Loaded | Target"
"""A draft model, by name, by path, or loaded in any way."""

LEVELS = 4
"""The default depth of drafts: every level costs a forward of the draft model, and few are accepted further."""


class Assistant(RowDrafter):
    """A draft model and the shape of its drafts. The model is loaded when a target is known."""

    name = "assistant"
    light = False  # its forwards are compiled as the target's are, or as large
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
                raise InputError(f"option {name!r} of method {self.name!r} is at least 1, not {value}")
        if not 0 <= confidence < 1:
            raise InputError(f"option 'confidence' of method {self.name!r} is from 0 to below 1, not {confidence}")
        shared = wants_noise(self.name, noise)
        super().__init__(DraftShape(beams=beams, top=top, length=length, confidence=confidence, shared=shared))
        self.nodes = (length or LEVELS) * max(beams, top)
        self.costly_levels = self.shape.depth(self.nodes)
        self._strategy = None if translate is None else Strategy.parse(translate)
        self._named: Any = model
        self._dtype = dtype
        self._loaded: DraftModel | None = None
        self._network: RowNetwork | None = None
        if (loaded := _loaded(model)) is not None:
            self._use(loaded)
            if dtype is not None:
                raise InputError(f"the draft model is loaded already; its type cannot be made {dtype}")
        self._vocab_size: int | None = None
        self._foreign: Foreign | None = None
        """How its drafts are translated, where they are."""

    def _use(self, loaded: DraftModel) -> DraftModel:
        self._loaded, self._network = loaded, self._network_of(loaded)
        return loaded

    def _network_of(self, loaded: DraftModel) -> RowNetwork:
        return RowNetwork(loaded.target)

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        with self._rows.held():
            loaded = self._loaded or self._use(DraftModel.load(self._named, target, self._dtype))
            self._foreign = loaded.translated(target, vocabulary, self._strategy)
            self._vocab_size = target.vocab_size
            self.model.drafted([])  # so that what is compiled for that is compiled now

    def fit_size(self, size: int, vocabulary: Vocabulary | None) -> None:
        """The same for a target elsewhere, of which only its tokens are known, or that they are the draft model's; its
        draft model is loaded already."""
        assert self._loaded is not None, "it is loaded before its texts come"
        strategy, self._vocab_size = self._strategy or Strategy(LATTICE), size
        self._foreign = None if vocabulary is None else self._loaded.foreign_to(size, vocabulary, strategy)

    @property
    def translates(self) -> bool:
        """Whether the draft model has another tokenizer than the target."""
        return self._foreign is not None

    def dispose(self) -> None:
        with self._rows.held():
            self._loaded = self._network = None
        self._rows.clear()

    @property
    def models(self) -> tuple[Target, ...]:
        return () if self._loaded is None else (self._loaded.target,)

    @property
    def model(self) -> Target:
        """The target that drafts."""
        assert self._loaded is not None, "a draft model is loaded by `fit`"
        return self._loaded.target

    @property
    def network(self) -> RowNetwork:
        assert self._network is not None, "a draft model is loaded by `fit`"
        return self._network

    def open(self, context: Context) -> ReadText:
        with self._rows.held():
            if self._foreign is None:
                return self._opened(context, context.tokens)
            follower = self._foreign.follower(context)
            return self._opened(context, np.array(follower.ids, np.int64), follower=follower)

    def reading(self, context: Context, rows: Rows, follower: Follower | None = None) -> ReadText:
        """A text in the target's tokens with their noise and coins, where the draft model can say them."""
        if self._foreign is None or follower is None:
            outlook = Outlook(context.sampling, context.prompt_length)
            return ReadText(context, outlook, TokenColumns(self._vocab_size), rows=rows)
        kind = {TLI: SharedState, LATTICE: SpelledState}.get(self._foreign.strategy.name, ForeignState)
        if kind is SpelledState and SharedNoise.of(context, self.shape.shared) is None:
            kind = ForeignState
        return kind(context, rows, self._foreign, follower)

    def _capacity(self, length: int) -> int:
        return SPARE_ROWS + length * (1 if self._foreign is None else 2)


def _loaded(model: Model) -> DraftModel | None:
    """The model, if it is loaded; None for a name, a path or a transformers model. ValueError for anything else."""
    if isinstance(model, (Target, Loaded)):
        return DraftModel.of(model)
    if isinstance(model, str) and not model.strip():
        raise InputError("the name of the draft model is empty; give a name or a folder, or leave it out")
    if not isinstance(model, (str, Path)) and not hasattr(model, "config"):
        raise InputError(f"a draft model is a name, a folder or a loaded model, not {model!r}")
    return None
