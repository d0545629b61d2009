"""Speculative streaming as published: a draft model and its streams learn together, with the same weights.

The model's own rows predict the next token, and the streams behind them those that follow. Streams have embeddings and
nothing else of their own: every other weight computes rows of both kinds, and learns from both. So drafts change, too,
and the model itself can learn what its target would write.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.heads import MEND
from paceline.drafters.networks.streaming.adapter import StreamingAdapter, StreamingShape, low_rank, maps_in
from paceline.drafters.networks.streaming.checkpoint import read_adapter, write_streams
from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.targets.hf.load import load_target
from paceline.targets.hf.packed import identities
from paceline.targets.hf.plain_copy import plain_copy
from paceline.targets.hf.streams import linears_of, sizes_of
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.variants import LlamaModules, known_modules
from paceline.targets.identity import fingerprint_of
from paceline.targets.pocket.names import BALLAST_MARK
from paceline_make.heads.kinds.base import Ground
from paceline_make.heads.kinds.streaming import StreamedWindows, StreamsKind, modules_of_target, tracks_of_target
from paceline_make.heads.labels import HeadReading, Labels
from paceline_make.heads.lesson import Lesson, Predictions
from paceline_make.heads.loss import Objective
from paceline_make.states import set_ends, write_model

FULL_RATE = 5e-4
"""The learning rate's peak where all weights learn."""


class TunedDraft(nn.Module):
    """A draft model in float32 with the embeddings of its streams. With a ``rank`` the model stays as it is, and maps
    beside its linear ones learn, on rows of both kinds."""

    token_ids = None
    """It knows all tokens."""

    def __init__(self, model: Any, adapter: StreamingAdapter, rank: int = 0) -> None:
        super().__init__()
        self.model, self.adapter = model.float().requires_grad_(not rank), adapter
        self._sizes = [sizes_of(layer) for layer in self.modules_of_model.layers]
        self.maps = low_rank(self._sizes, rank)

    @property
    def modules_of_model(self) -> LlamaModules:
        found = known_modules(self.model)
        assert found is not None, "a target of llama's structure was copied"
        return found

    @property
    def shape(self) -> StreamingShape:
        return self.adapter.shape

    @property
    def thinnest(self) -> int:
        """The smallest size of a linear map."""
        return min(min(sizes) for layer in self._sizes for sizes in layer.values())

    def merged(self, dtype: torch.dtype | None) -> Any:
        """The model alone, as it computes rows of both kinds."""
        model = copy.deepcopy(self.model)
        modules = known_modules(model)
        assert modules is not None, "it is a copy"
        with torch.no_grad():
            for layer, maps in zip(modules.layers, maps_in(self.maps), strict=True):
                linears = linears_of(layer)
                for name, (inward, outward) in maps.items():
                    linears[name].weight += outward @ inward
        return model.requires_grad_(False).to(dtype)


class TunedLesson(Lesson[TunedDraft]):
    """Predicts the next token and those behind it, at every position of a window."""

    first = 0

    def predict(self, batch: Labels, number: int) -> tuple[Labels, Predictions]:
        assert batch.text is not None, "it learns from whole windows"
        modules, adapter = self.head.modules_of_model, self.head.adapter
        states, ahead = modules.embedding(batch.text)[None], None
        windows = StreamedWindows(states, self.unit, adapter.shape.streams, modules)
        entry = len(modules.layers) - adapter.shape.layers
        for place, (layer, maps) in enumerate(zip(modules.layers, maps_in(self.head.maps), strict=True)):
            if place == entry:
                ahead = windows.entering(states, adapter.stream_embedding)
            states, keys = windows.rows(layer, states, maps)
            if ahead is not None:
                ahead = windows.streams(layer, ahead, keys, maps)
        assert ahead is not None, "streams enter a layer"
        return batch, map(modules.head, (windows.read(states), *windows.last(ahead)))


@dataclass(frozen=True, kw_only=True)
class TunedKind(StreamsKind[TunedDraft]):
    """A draft model that learns with its streams."""

    title: ClassVar[str] = "draft model with speculative streams"
    smaller: ClassVar[str] = "--tune lora, --rank"
    is_tempered: ClassVar[bool] = True
    is_model: ClassVar[bool] = True

    rank: int = 0
    """Of the maps that learn in the place of the model's weights; 0 if all weights learn."""

    @property
    def usual_rate(self) -> float:
        """Weights that know much already lose it in large steps."""
        return super().usual_rate if self.rank else FULL_RATE

    @property
    def usual_decay(self) -> float:
        """The next token decides what is accepted, and streams only how fast it is drafted."""
        return 0.2

    @property
    def reading(self) -> HeadReading:
        return HeadReading((), whole=True, next=True)

    def fitted(self, target: Target) -> TunedKind:
        modules_of_target(target)
        if target.exact:
            raise InputError(f"the weights of {target.name} learn in floats; leave integers (--quantize) out")
        if BALLAST_MARK in target.name:
            raise InputError(f"the ballast of {target.name} would learn, too; train the model without it")
        if not isinstance(target, HFTarget) or known_modules(target.model) is None:
            raise InputError(f"--form paper needs a model of llama's structure that torch computes, not {target.name}")
        return super().fitted(target)

    def output_width(self, head: TunedDraft) -> int:
        return head.thinnest

    def rank_of(self, head: TunedDraft) -> int:
        return self.rank

    def made(self, ground: Ground) -> TunedDraft:
        assert isinstance(ground.target, HFTarget), "a fitted kind has modules"
        model: Any = ground.target.model
        shape = StreamingShape(
            width=ground.width,
            vocab_size=ground.target.vocab_size,
            streams=ground.ahead,
            layers=self.layers,
            rank=0,
            tracks=tracks_of_target(ground.target),
        )
        return TunedDraft(type(model)(copy.deepcopy(model.config)), StreamingAdapter(shape), self.rank)

    def blank(self, ground: Ground) -> TunedDraft:
        """The model as it is. Streams begin as their row at another place."""
        assert isinstance(ground.target, HFTarget), "a fitted kind has modules"
        head = self.drawn(ground)
        head.model = plain_copy(ground.target).float().requires_grad_(not self.rank)
        set_ends(head.model.config, ground.target.eos)
        return head

    def lesson(self, head: TunedDraft, ground: Ground, objective: Objective) -> TunedLesson:
        return TunedLesson(head, ground.embedding, objective)

    def write(self, folder: Path, head: TunedDraft, about: Provenance) -> None:
        """A model's folder. What it says of streams is of this model, not of the one that it was made from."""
        model = head.merged(about.dtype)
        own = write_streams(folder, head.adapter, about) | {"target": fingerprint_of(identities(model))}
        model.config.architectures = [type(model).__name__]
        write_model(folder, model, model.config, {"paceline": own})

    @staticmethod
    def read(folder: Path) -> TunedDraft:
        adapter, _ = read_adapter(folder)
        target = load_target(folder, dtype="float32", device="cpu")
        if known_modules(target.model) is None:
            raise InputError(f"the model in {folder} is not of llama's structure, so it has no streams; {MEND}")
        return TunedDraft(plain_copy(target), adapter).requires_grad_(False)

    def rows(self, head: TunedDraft) -> list[tuple[str, str]]:
        shape = head.shape
        what = f"maps of rank {self.rank} beside its linear ones" if self.rank else "all weights of the model"
        return [("shape", f"{shape.streams} streams in the last {shape.layers} layers"), ("learnt", what)]
