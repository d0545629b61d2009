"""A draft model in tracks, from nothing: it learns the laws of the model that it will draft for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import LlamaForCausalLM

from paceline.api.model import LanguageModel
from paceline.errors import InputError
from paceline.files import check_folder, claimed
from paceline.targets.hf.plain_copy import plain_copy
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.tracks import SEGMENTS, TracksConfig, TracksForCausalLM
from paceline_make.heads.data import TokenStream, divided, stream_of, teacher_target
from paceline_make.models.loop import Report, TrainingRun, check_length, held_out_loss
from paceline_make.models.schedule import ModelSchedule
from paceline_make.states import LOG, WEIGHTS, TrainingLog, check_trainable, write_model
from paceline_make.texts.fields import Passage

CHECKPOINT = "training.pt"
TYPE_FIELDS = "model_type", "architectures", "transformers_version"
"""Of a configuration, those that say which model it is of."""
POSITIONS = 4096
HEAD = 64
"""The width of a head, where the model is wide enough for two heads a track."""
WINDOW = 1024
"""Tokens of held-out text that are judged together."""


@dataclass(frozen=True, kw_only=True)
class TracksShape:
    """The sizes of a model. Heads are half as many for keys; the MLP has about 8/3 of the width."""

    tracks: int = 2
    segments: int = SEGMENTS
    layers: int = 4
    width: int = 128
    units: int | None = None

    def config(self, target: HFTarget) -> Any:
        """Refuses sizes that tracks cannot share, by `tracks.check_shape`, when a model is made of it."""
        shared = max(2, self.tracks)  # so that one track has the sizes of two
        least = 2 * shared
        heads = max(least, self.width // HEAD // least * least)
        if self.width % heads or (self.width // heads) % 2:
            raise InputError(
                f"--width {self.width} is not shared by {heads} heads of an even width, two for each of {shared} tracks"
            )
        units = self.units or -(-8 * self.width // (3 * 8 * shared)) * 8 * shared
        end = sorted(target.eos)
        divided: dict[str, Any] = {"tracks": self.tracks, "segments": self.segments}
        return TracksConfig(
            **divided,
            vocab_size=target.vocab_size,
            hidden_size=self.width,
            intermediate_size=units,
            num_hidden_layers=self.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            head_dim=self.width // heads,
            max_position_embeddings=min(POSITIONS, target.context_length or POSITIONS),
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=end[0] if end else None,
            eos_token_id=end or None,
        )


@dataclass(frozen=True, kw_only=True)
class TracksRecipe:
    """Everything that decides the result."""

    shape: TracksShape = field(default_factory=TracksShape)
    schedule: ModelSchedule = field(default_factory=lambda: ModelSchedule(tokens=3_200_000))
    held_out: float = 0.02


class TracksOutcome(NamedTuple):
    """The result of a training."""

    parameters: int
    bytes: int
    tokens: int
    """Those that were learnt, again and again where the text has fewer."""
    held_out: float | None
    """Nats per token of held-out text; None where too little is held out."""


class TracksWorkshop:
    """One model, from the texts to its folder."""

    def __init__(self, lm: LanguageModel, passages: Sequence[Passage], recipe: TracksRecipe, out: Path) -> None:
        target = teacher_target(lm, "draft model")
        check_folder(out, LOG, "training")
        self.lm, self.target, self.recipe, self.out = lm, target, recipe, out
        self.training, self.held = divided(passages, recipe.held_out)

    @cached_property
    def stream(self) -> TokenStream:
        return self._stream(self.training)

    def _stream(self, passages: Sequence[Passage]) -> TokenStream:
        assert self.lm.vocabulary is not None, "a workshop has one"
        return stream_of(passages, self.lm.vocabulary, min(self.target.eos, default=None))

    def blank(self) -> TracksForCausalLM:
        config = self.recipe.shape.config(self.target)
        with torch.device("meta"):
            count = sum(weight.numel() for weight in TracksForCausalLM(config).parameters())
        check_trainable(count, self.target.device, "draft model", "--width, --units, --layers")
        torch.manual_seed(self.recipe.schedule.seed)
        model = TracksForCausalLM(config)
        return torch.nn.Module.to(model, self.target.device)

    def train(self, report: Report) -> TracksOutcome:
        """To the end, and into the folder. Stopped at any moment, the same goes on from the last saved state."""
        model, stream = self.blank(), self.stream  # faults of the recipe or the text are reported first
        limit, schedule = self.target.context_length, self.recipe.schedule
        schedule = schedule if limit is None else schedule.within(limit)
        check_length(stream.ids, schedule)
        with claimed(self.out):
            TrainingLog(self.out).begin(self.same())
            run = TrainingRun(model, stream.ids, schedule, self.out / CHECKPOINT, self._teacher())
            run.train(report)
            self._write(model)
            return TracksOutcome(
                sum(weight.numel() for weight in model.parameters()),
                (self.out / WEIGHTS).stat().st_size,
                schedule.steps * schedule.tokens_per_step,
                self.judge(model),
            )

    def _teacher(self) -> Any:
        teacher = plain_copy(self.target)
        teacher.train(False)
        return teacher.requires_grad_(False)

    def same(self) -> dict[str, Any]:
        """The conditions under which a saved state must have been made."""
        return {"recipe": asdict(self.recipe), "target": self.target.fingerprint(), "tokens": len(self.stream)}

    def judge(self, model: TracksForCausalLM) -> float | None:
        """Mean loss on the text itself, in nats per token."""
        ids = self._stream(self.held).ids if self.held else None
        return None if ids is None or len(ids) <= WINDOW else held_out_loss(model, ids, WINDOW)

    def _write(self, model: TracksForCausalLM) -> None:
        """A model folder with the tokenizer beside it. With one track it is an ordinary llama's."""
        kind: Any = TracksForCausalLM if self.recipe.shape.tracks > 1 else LlamaForCausalLM
        fields = {name: value for name, value in model.config.to_dict().items() if name not in TYPE_FIELDS}
        config = kind.config_class(**fields)
        config.architectures = [kind.__name__]
        assert self.lm.vocabulary is not None, "a workshop has one"
        self.lm.vocabulary.tokenizer.save_pretrained(self.out)
        write_model(self.out, model, config)
