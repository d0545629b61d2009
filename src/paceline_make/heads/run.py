"""A training from texts to a head in a folder: `Recipe` says what, `Workshop` makes it, each thing once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from torch import nn

from paceline.api.model import LanguageModel
from paceline.drafters.networks.assistant.model import DraftModel
from paceline.drafters.networks.checkpoint import Provenance
from paceline.errors import InputError
from paceline.files import check_folder, claimed
from paceline_make.heads.batches import Batches, FreshBatches, StoredBatches, rank
from paceline_make.heads.data import TokenStream, divided, stream_of, teacher_target
from paceline_make.heads.kinds.base import Ground, HeadKind
from paceline_make.heads.kinds.recurrent import RecurrentKind
from paceline_make.heads.labels import Labels, LabelSettings, Teacher, joined
from paceline_make.heads.lesson import Lesson
from paceline_make.heads.loop import HeadTraining, Schedule, TrainingReport, judged
from paceline_make.heads.loss import Objective
from paceline_make.heads.store import Advance, LabelStore, bytes_of
from paceline_make.states import LOG, TrainingLog, check_trainable
from paceline_make.texts.fields import Passage

CHECKPOINT, LABELS = "training.pt", "labels"
HELD_OUT = 32
"""Held-out windows that a head is judged by."""
Elsewhere = Callable[[LabelStore, Sequence[Passage], str, Advance], None]
"""Fills a store with labels of these passages by the model of that fingerprint."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the result."""

    head: HeadKind[Any] = field(default_factory=RecurrentKind)
    labels: LabelSettings = field(default_factory=LabelSettings)
    positions: int = 1_000_000
    epochs: float = 3.0
    batch: int = 2048
    rate: float = 2e-3
    loss: str = "labels"
    decay: float = 1.0
    """What a step ahead weighs beside the one before."""
    seed: int = 0
    held_out: float = 0.02
    int8: bool = False
    save_every: int = 100
    fresh: bool = False
    """Label windows when they are learnt, and store nothing."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"a step of a training has at least 1 position, not {self.batch}")
        if self.loss != "labels" and not self.labels.laws:
            raise InputError(f"the loss {self.loss!r} compares laws: it needs soft labels, not {self.labels.kind!r}")


class Workshop:
    """One head, from the texts to its folder."""

    def __init__(
        self,
        lm: LanguageModel,
        passages: Sequence[Passage],
        recipe: Recipe,
        out: Path,
        elsewhere: Elsewhere | None = None,
        author: LanguageModel | None = None,
    ) -> None:
        """``elsewhere`` makes labels in the place of this process. ``author`` is a model with the same tokenizer whose
        continuations are learnt in the place of the model's own: the target that a draft model is for."""
        target = teacher_target(lm, "head")
        check_folder(out, LOG, "training")
        if author is not None:
            DraftModel.of(lm).check_fit(author.target, author.vocabulary)
            if recipe.labels.kind == "truth":
                raise InputError(f"labels 'truth' are the text's own tokens, whatever {author.target.name} would write")
        self.lm, self.target, self.recipe, self.out = lm, target, recipe, out
        self.author, self.elsewhere, self.log = author, elsewhere, TrainingLog(out)
        self.positions = 0
        """Those that were learnt, after the training."""
        self.training, self.held = divided(passages, recipe.held_out)

    @property
    def stream(self) -> TokenStream:
        return self.teacher.stream

    @cached_property
    def teacher(self) -> Teacher:
        return teacher_of(self.lm, self.training, self.recipe, self.author)

    @property
    def windows(self) -> int:
        return min(len(self.teacher), max(1, round(self.recipe.positions / self.teacher.size)))

    @property
    def bytes(self) -> int:
        """The largest size of the labels on disk."""
        return 0 if self.recipe.fresh else bytes_of(self.windows, self.teacher)

    @cached_property
    def store(self) -> LabelStore:
        return LabelStore(self.out / LABELS, self.windows)

    @cached_property
    def ground(self) -> Ground:
        return Ground(self.target, self.stream.ids, self.recipe.labels.ahead, self.recipe.seed)

    @cached_property
    def kind(self) -> HeadKind[Any]:
        return self.recipe.head.fitted(self.target)

    @property
    def unit(self) -> int:
        """Positions that are learnt together."""
        return self.teacher.size if self.kind.reading.whole else 1

    def blank(self) -> nn.Module:
        """The head before training."""
        self._check_shape()
        head: nn.Module = self.kind.blank(self.ground)
        return head.to(self.target.device)

    def _check_shape(self) -> None:
        """Refuse a head that is too large before it is made: a system may end the process instead of refusing. Refuse
        one that makes no sense."""
        ground, kind = self.ground, self.kind  # made before: nothing of them may be on "meta"
        with torch.device("meta"):
            head = kind.made(ground)
        learning = sum(weight.numel() for weight in head.parameters() if weight.requires_grad)
        check_trainable(learning, self.target.device, "head", kind.smaller)
        most, rank = min(kind.output_width(head), head.shape.known), kind.rank_of(head)
        if rank > most:
            raise InputError(
                f"--rank {rank} is above {most}, the rank of the whole output matrix; give a smaller one, or"
                " leave it out"
            )

    def lesson(self, head: nn.Module) -> Lesson[Any]:
        lesson = self.kind.lesson(head, self.ground, Objective(loss=self.recipe.loss, decay=self.recipe.decay))
        lesson.unit = self.unit
        if self.kind.is_tempered and self.recipe.labels.tempered:
            lesson.temperature = self.recipe.labels.temperature
        return lesson

    def same(self) -> dict[str, Any]:
        """The conditions under which a checkpoint must have been made."""
        recipe = {"method": self.kind.method, **asdict(self.recipe)}
        same = {"recipe": recipe, "target": self.target.fingerprint(), "tokens": len(self.stream)}
        if self.kind.is_model:  # the same options may be those of a head
            same["is_model"] = True
        return same if self.author is None else same | {"author": self.author.target.fingerprint()}

    def train(self, advance: Advance, report: Callable[[TrainingReport], None]) -> Path:
        """Labels, then the training; what is there already is not made again."""
        head, _ = self.blank(), self.teacher  # faults of the recipe or the text are reported first
        with nullcontext() if rank() else claimed(self.out):
            if not rank():  # labels of other settings must not be trained on
                self.log.begin(self.same())
            batches = self._batches(advance)
            training = HeadTraining(
                self.lesson(head), batches, self.schedule(batches), self.out / CHECKPOINT, same=self.same()
            )
            training.train(self._logged(report))
            self.positions = batches.positions
            if not rank():
                self._write(head)
        return self.out

    def schedule(self, batches: Batches) -> Schedule:
        """Its steps are those that are really learnt: as large as the batches are, not as the recipe asked for."""
        recipe = self.recipe
        return Schedule(
            positions=batches.positions,
            epochs=recipe.epochs,
            batch=batches.size,
            rate=recipe.rate,
            seed=recipe.seed,
            save_every=recipe.save_every,
        )

    def _batches(self, advance: Advance) -> Batches:
        recipe = self.recipe
        if recipe.fresh:
            return FreshBatches(self.teacher, self.windows, recipe.batch, recipe.seed)
        if not rank():
            if self.elsewhere is not None:
                self.elsewhere(self.store, self.training, self.teacher.target.fingerprint(), advance)
            else:
                self.store.fill(self.teacher, advance)
        barrier()
        return StoredBatches(self.store.read(self.teacher), recipe.batch, recipe.seed, self.unit)

    def _logged(self, report: Callable[[TrainingReport], None]) -> Callable[[TrainingReport], None]:
        def logged(found: TrainingReport) -> None:
            if not rank():
                self.log.add(found._asdict())
                report(found)

        return logged

    def judge(self, head: nn.Module) -> TrainingReport | None:
        """On held-out text; None where nothing is held out."""
        labels = self.held_out_labels()
        return None if labels is None else judged(self.lesson(head), labels)

    def held_out_labels(self) -> Labels | None:
        if not self.held:
            return None
        try:
            teacher = teacher_of(self.lm, self.held, self.recipe, self.author)
        except InputError:  # less than one window
            return None
        numbers = np.linspace(0, len(teacher) - 1, min(HELD_OUT, len(teacher))).astype(int)
        return joined([teacher.label(int(number)) for number in numbers])

    def _write(self, head: nn.Module) -> None:
        found, recipe = self.judge(head), self.recipe
        trained = {
            "labels": asdict(recipe.labels),
            **({} if self.author is None else {"author": self.author.target.name}),
            "loss": recipe.loss,
            "positions": self.positions,
            "epochs": recipe.epochs,
            "training_tokens": len(self.stream),
            "held_out": None if found is None else {"loss": found.loss, "right": found.right, "tokens": found.expected},
        }
        target = self.target
        about = Provenance(
            target=target.fingerprint(),
            target_name=target.name,
            trained=trained,
            dtype=torch.bfloat16,
            int8=recipe.int8,
        )
        if self.kind.is_model:
            assert self.lm.vocabulary is not None, "training reads texts"
            self.lm.vocabulary.tokenizer.save_pretrained(self.out)
        self.kind.write(self.out, head, about)


def teacher_of(
    lm: LanguageModel, passages: Sequence[Passage], recipe: Recipe, author: LanguageModel | None = None
) -> Teacher:
    """The model, or an ``author`` in its place, that labels these passages."""
    assert lm.vocabulary is not None, "training reads texts"
    stream = stream_of(passages, lm.vocabulary, min(lm.target.eos, default=None))
    reading = recipe.head.fitted(lm.target).reading
    return Teacher((author or lm).target, stream, recipe.labels, reading, lm.target)


def barrier() -> None:
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
