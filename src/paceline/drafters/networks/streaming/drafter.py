"""Drafts by a small model that guesses ahead of itself: those of `assistant` with one chain, in fewer forwards.

Streams guess the tokens after the draft's next one, and the next forward confirms or refuses them (Speculative
Streaming, which Mirror-SD applies to its draft model). Nothing but speed depends on the streams, not even what is
drafted. The public noise helps here, too: the draft model's own choice is a race that guesses can run beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.context import Context
from paceline.drafters.base import at_least
from paceline.drafters.networks.assistant.drafter import Assistant, Model
from paceline.drafters.networks.assistant.model import DraftModel
from paceline.drafters.networks.heads import SHIPPED, STREAMING, found_folder, holds_model
from paceline.drafters.networks.network import RowNetwork
from paceline.drafters.networks.reading import ReadText, TokenColumns
from paceline.errors import InputError
from paceline.law import Outlook
from paceline.targets.base import Rows, Target
from paceline.translate import Follower
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

    from paceline.drafters.networks.streaming.fitting import FittedStreams
    from paceline.drafters.networks.streaming.network import StreamingNetwork

BASE = "pocket-draft"
"""The draft model that the adapter of the package is for."""
GUESSES = 4
MOST_GUESSES = 64
"""A forward's memory grows with them, and streams are hardly ever right about more."""


class Streaming(Assistant):
    """A draft model, an adapter for its streams, and the length of its drafts."""

    name = STREAMING
    summary = "a small model drafts a chain and guesses ahead of itself, so that a forward drafts several tokens"
    source = "Speculative Streaming (Bhendawade 2024) on the draft model, as in Mirror-SD (Bhendawade 2025)"
    requires = "a draft model with the target's tokenizer, model=NAME, and streams trained for it: head=FOLDER"
    unfit = "a draft model of another tokenizer, or one for which no streams were trained: assistant drafts with those"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"paper": MappingProxyType({"streams": 3, "length": 7, "noise": "none"})}
    )

    def __init__(
        self,
        *,
        model: Model | None = None,
        head: str | Path = SHIPPED,
        streams: int | None = None,
        guesses: int = GUESSES,
        length: int | None = None,
        noise: str = "shared",
        confidence: float = 0.0,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        """Without a ``model`` the one that the adapter was trained for, and without a ``head`` the one in the model's
        own folder, if it was trained with its streams. Without ``streams`` the number that is measured to be fastest,
        maybe none."""
        at_least(self.name, 1, streams=1 if streams is None else streams, guesses=guesses)
        if guesses > MOST_GUESSES:
            raise InputError(f"{self.name} reads at most guesses={MOST_GUESSES} in a forward, not {guesses}")
        self._head, self._streams, self._guesses = head, streams, guesses
        self._fitted: FittedStreams | None = None
        super().__init__(
            model=drafting_model(model, head),
            length=length,
            noise=noise,
            confidence=confidence,
            dtype=dtype,
        )

    def _network_of(self, loaded: DraftModel) -> RowNetwork:
        from paceline.drafters.networks.streaming.counts import counts_of
        from paceline.drafters.networks.streaming.fitting import adapter_for
        from paceline.drafters.networks.streaming.network import StreamingNetwork

        fitted = self._fitted = adapter_for(self._head, loaded.target)
        if (self._streams or 0) > (has := fitted.adapter.streams):
            raise InputError(
                f"streaming is asked for streams={self._streams}, and the adapter has {has}; ask for fewer"
            )
        counts = partial(counts_of, fitted.model, self._head, self._guesses)
        return StreamingNetwork(fitted.model, fitted.adapter, self._streams, counts)

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        super().fit(target, vocabulary)
        if self.translates:
            raise InputError(
                f"streaming drafts in the target's tokens, and {self.model.name} has another tokenizer than "
                f"{target.name}; draft with it by assistant"
            )

    def dispose(self) -> None:
        super().dispose()
        self._fitted = None

    @property
    def network(self) -> StreamingNetwork:
        found: Any = super().network
        streaming: StreamingNetwork = found
        return streaming

    def reading(self, context: Context, rows: Rows, follower: Follower | None = None) -> ReadText:
        from paceline.drafters.networks.streaming.reading import StreamedText

        outlook, network = Outlook(context.sampling, context.prompt_length), self.network
        return StreamedText(
            context,
            outlook,
            TokenColumns(self._vocab_size),
            rows=rows,
            first=network.first,
            guesses=self._guesses,
            beside=network.beside,
        )


def drafting_model(model: Model | None, head: str | Path) -> Model:
    """The given draft model, or the one that an adapter is for. Streams that stand in their model's own folder draft
    with that one also where the command line gives its default."""
    return base_model(head) if model is None or (model == BASE and holds_model(head)) else model


def base_model(head: str | Path) -> str:
    """The draft model that an adapter is for."""
    if head == SHIPPED:
        return BASE
    from paceline.drafters.networks.streaming.checkpoint import base_of

    if base := base_of(found_folder(head)):
        return base
    raise InputError(f"the adapter in {head} does not say for which draft model it is; write streaming:model=NAME")
