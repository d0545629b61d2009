"""A training from texts to a head in a folder: `Recipe` says what, `Workshop` makes it, each thing once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

from paceline.api.model import LanguageModel
from paceline.drafters.networks.redrafter.checkpoint import write_head
from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead
from paceline.errors import InputError
from paceline.files import check_folder, claimed, naming, write_whole
from paceline.targets.place import free_memory, named_dtype
from paceline_make.redrafter.data import TokenStream, divided, stream_of
from paceline_make.redrafter.labels import Labels, LabelSettings, Teacher, joined
from paceline_make.redrafter.lessons import FreshLessons, Lessons, StoredLessons, rank
from paceline_make.redrafter.loop import HeadTraining, Schedule, TrainingReport, judged
from paceline_make.redrafter.store import Advance, LabelStore, bytes_of
from paceline_make.texts.fields import Passage

LOG, CHECKPOINT, LABELS = "log.jsonl", "training.pt", "labels"
HELD_OUT = 32
"""Held-out windows that a head is judged by."""
SPREAD = 0.02
TRAINED_BYTES = 16
"""Of a parameter: its weight, its gradient, and the optimizer's two moments."""
Elsewhere = Callable[[LabelStore, Sequence[Passage], str, Advance], None]
"""Fills a store with labels of these passages by the model of that fingerprint."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the result."""

    exit: int | None = None
    """The width of the blocks; None for the model's own width."""
    blocks: int = 2
    rank: int = 0
    kept: int = 0
    recurrent: bool = True
    labels: LabelSettings = field(default_factory=LabelSettings)
    positions: int = 1_000_000
    epochs: float = 3.0
    batch: int = 2048
    rate: float = 2e-3
    seed: int = 0
    held_out: float = 0.02
    int8: bool = False
    save_every: int = 100
    fresh: bool = False
    """Label windows when they are learnt, and store nothing."""


class Workshop:
    """One head, from the texts to its folder."""

    def __init__(
        self,
        lm: LanguageModel,
        passages: Sequence[Passage],
        recipe: Recipe,
        out: Path,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """``elsewhere`` makes labels in the place of this process."""
        if lm.vocabulary is None:
            raise InputError(
                f"{lm.target.name} came without a tokenizer, and training reads texts; put it beside the model"
            )
        check_folder(out, LOG, "training")
        self.lm, self.target, self.recipe, self.out = lm, lm.target, recipe, out
        self.elsewhere = elsewhere
        self.training, self.held = divided(passages, recipe.held_out)

    @property
    def stream(self) -> TokenStream:
        return self.teacher.stream

    @cached_property
    def teacher(self) -> Teacher:
        return teacher_of(self.lm, self.training, self.recipe.labels)

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
    def embedding(self) -> torch.Tensor:
        """The target's input embedding, in float32."""
        ids = torch.arange(self.target.vocab_size, device=self.target.device)
        embedded: torch.Tensor = self.target.embed(ids).float().clone()
        return embedded

    @cached_property
    def shape(self) -> HeadShape:
        recipe, width = self.recipe, self.embedding.shape[1]
        return HeadShape(
            width=width,
            vocab_size=self.target.vocab_size,
            exit=recipe.exit or width,
            blocks=recipe.blocks,
            recurrent=recipe.recurrent,
            rank=recipe.rank,
            kept=recipe.kept,
        )

    def blank(self) -> RecurrentHead:
        """The head before training."""
        self._check_memory()
        torch.manual_seed(self.recipe.seed)
        head = RecurrentHead(self.shape)
        with torch.no_grad():
            for weight in head.parameters():
                if weight.ndim == 2:
                    weight.normal_(0, SPREAD if weight.shape[0] == head.shape.known else weight.shape[1] ** -0.5)
                else:
                    weight.zero_()
        if self.shape.kept:
            head.token_ids = torch.from_numpy(self.known())
        self._begin_with_the_models_own(head)
        return head.to(self.target.device)

    def _check_memory(self) -> None:
        """Refuse a head that is too large before it is made: a system may end the process instead of refusing."""
        with torch.device("meta"):
            needed = TRAINED_BYTES * RecurrentHead(self.shape).parameters_in_all
        free = free_memory(torch.device(self.target.device))
        if free is not None and needed > free:
            raise InputError(
                f"training a head of this shape takes {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; make "
                "it smaller (--exit, --blocks, --rank, --kept)"
            )

    def _begin_with_the_models_own(self, head: RecurrentHead) -> None:
        """An output of the model's width begins as the model's own head: what states mean is known then."""
        shape = head.shape
        if shape.rank or shape.exit != shape.width:
            return
        with torch.inference_mode():
            kind = torch.float32 if self.target.exact else named_dtype(self.target.dtype)
            states = torch.eye(shape.width, device=self.target.device, dtype=kind)
            own = (self.target.unembed(states) - self.target.unembed(torch.zeros_like(states[:1]))).float().cpu().T
        rows = own if head.token_ids is None else own[head.token_ids]
        output: Any = head.lm_head[shape.blocks]
        output.weight.data.copy_(rows)

    def known(self) -> np.ndarray:
        """The most frequent tokens of the text, and those that end a text, ascending."""
        counts = np.bincount(self.stream.ids, minlength=self.target.vocab_size).astype(np.int64)
        counts[sorted(self.target.eos)] = counts.max() + 1
        return np.sort(np.argsort(-counts, kind="stable")[: self.shape.kept])

    def same(self) -> dict[str, Any]:
        """The conditions under which a checkpoint must have been made."""
        recipe = asdict(self.recipe)
        return {"recipe": recipe, "target": self.target.fingerprint(), "tokens": len(self.stream)}

    def train(self, advance: Advance, report: Callable[[TrainingReport], None]) -> Path:
        """Labels, then the training; what is there already is not made again."""
        head, _ = self.blank(), self.teacher  # faults of the recipe or the text are reported first
        with nullcontext() if rank() else claimed(self.out):
            self._check_log()
            lessons = self._lessons(advance)
            recipe = self.recipe
            schedule = Schedule(
                positions=lessons.positions,
                epochs=recipe.epochs,
                batch=recipe.batch,
                rate=recipe.rate,
                seed=recipe.seed,
                save_every=recipe.save_every,
            )
            training = HeadTraining(head, self.embedding, lessons, schedule, self.out / CHECKPOINT, same=self.same())
            training.train(self._logged(report))
            if not rank():
                self._write(head, lessons.positions)
        return self.out

    def _lessons(self, advance: Advance) -> Lessons:
        recipe = self.recipe
        if recipe.fresh:
            return FreshLessons(self.teacher, self.windows, recipe.batch, recipe.seed)
        if not rank():
            if self.elsewhere is not None:
                self.elsewhere(self.store, self.training, self.target.fingerprint(), advance)
            else:
                self.store.fill(self.teacher, advance)
        barrier()
        return StoredLessons(self.store.read(self.teacher), recipe.batch, recipe.seed)

    def _check_log(self) -> None:
        """Labels of other settings must not be trained on."""
        first = json.dumps({"same": self.same()}, sort_keys=True)
        log = self.out / LOG
        if rank():
            return
        begun = log.read_text(errors="replace").partition("\n")[0] if log.exists() else ""
        if begun and begun != first:
            raise InputError(f"{self.out} holds a training with other settings or texts; choose another folder")
        if not begun:
            write_whole(log, first + "\n")

    def _logged(self, report: Callable[[TrainingReport], None]) -> Callable[[TrainingReport], None]:
        def logged(found: TrainingReport) -> None:
            if not rank():
                file = self.out / LOG
                with naming(file), file.open("a") as log:
                    log.write(json.dumps(found._asdict()) + "\n")
                report(found)

        return logged

    def judge(self, head: RecurrentHead) -> TrainingReport | None:
        """On held-out text; None where nothing is held out."""
        labels = self.held_out_labels()
        return None if labels is None else judged(head, self.embedding, labels)

    def held_out_labels(self) -> Labels | None:
        if not self.held:
            return None
        try:
            teacher = teacher_of(self.lm, self.held, self.recipe.labels)
        except InputError:  # less than one window
            return None
        numbers = np.linspace(0, len(teacher) - 1, min(HELD_OUT, len(teacher))).astype(int)
        return joined([teacher.label(int(number)) for number in numbers])

    def _write(self, head: RecurrentHead, positions: int) -> None:
        found = self.judge(head)
        trained = {
            "labels": asdict(self.recipe.labels),
            "positions": positions,
            "epochs": self.recipe.epochs,
            "training_tokens": len(self.stream),
            "held_out": None if found is None else {"loss": found.loss, "right": found.right, "tokens": found.expected},
        }
        write_head(
            self.out,
            head,
            target=self.target.fingerprint(),
            target_name=self.target.name,
            trained=trained,
            dtype=torch.bfloat16,
            int8=self.recipe.int8,
        )


def teacher_of(lm: LanguageModel, passages: Sequence[Passage], settings: LabelSettings) -> Teacher:
    """A model that labels these passages."""
    assert lm.vocabulary is not None, "training reads texts"
    end = min(lm.target.eos, default=None)
    return Teacher(lm.target, stream_of(passages, lm.vocabulary, end), settings)


@contextmanager
def joined_processes() -> Iterator[None]:
    """The processes that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or distributed.is_initialized():
        yield
        return
    distributed.init_process_group("gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def barrier() -> None:
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
