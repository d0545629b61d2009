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
from paceline.drafters.redrafter.checkpoint import write_head
from paceline.drafters.redrafter.head import HeadShape, RecurrentHead
from paceline.errors import InputError
from paceline.files import check_folder, claimed
from paceline.train.redrafter.data import Passage, Stream, divided, stream_of
from paceline.train.redrafter.labels import Labels, LabelSettings, Teacher
from paceline.train.redrafter.loop import HeadTraining, Report, Schedule, judged, rank
from paceline.train.redrafter.store import LabelStore, bytes_of

LOG, CHECKPOINT, LABELS = "log.jsonl", "training.pt", "labels"
HELD_OUT = 32
"""Held-out windows that a head is judged by."""
SPREAD = 0.02


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides what comes out."""

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


class Workshop:
    """One head, from the texts to its folder."""

    def __init__(self, lm: LanguageModel, passages: Sequence[Passage], recipe: Recipe, out: Path) -> None:
        if lm.vocabulary is None:
            raise InputError(
                f"{lm.target.name} came without a tokenizer, and training reads texts; put it beside the model"
            )
        check_folder(out, LOG, "training")
        self.lm, self.target, self.vocabulary, self.recipe, self.out = lm, lm.target, lm.vocabulary, recipe, out
        self.training, self.held = divided(passages, recipe.held_out)

    @cached_property
    def stream(self) -> Stream:
        end = min(self.target.eos, default=None)
        return stream_of(self.training, self.vocabulary, end)

    @cached_property
    def teacher(self) -> Teacher:
        return Teacher(self.target, self.stream, self.recipe.labels)

    @property
    def windows(self) -> int:
        return min(len(self.teacher), max(1, round(self.recipe.positions / self.teacher.size)))

    @property
    def bytes(self) -> int:
        """What the labels take on disk, at most."""
        return bytes_of(self.windows, self.teacher)

    @cached_property
    def store(self) -> LabelStore:
        return LabelStore(self.out / LABELS, self.windows)

    @cached_property
    def embedding(self) -> torch.Tensor:
        """The target's input embedding, in float32."""
        ids = torch.arange(self.target.vocab_size, device=self.target.device)
        return self.target.embed(ids).float().clone()

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

    def _begin_with_the_models_own(self, head: RecurrentHead) -> None:
        """An output of the model's width begins as the model's own head: what states mean is known then."""
        shape = head.shape
        if shape.rank or shape.exit != shape.width:
            return
        with torch.inference_mode():
            states = torch.eye(shape.width, device=self.target.device, dtype=self.target.dtype)
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
        """What a checkpoint must have been made with."""
        recipe = asdict(self.recipe)
        return {"recipe": recipe, "target": self.target.fingerprint(), "tokens": len(self.stream)}

    def train(self, advance: Callable[[int, int], None], report: Callable[[Report], None]) -> Path:
        """Labels, then the training; what is there already is not made again."""
        head, _ = self.blank(), self.teacher  # what is wrong with the recipe or the text is said first
        with joined_processes(), nullcontext() if rank() else claimed(self.out):
            self._check_log()
            if not rank():
                self.store.fill(self.teacher, advance)
            barrier()
            labels = self.store.read()
            recipe = self.recipe
            schedule = Schedule(
                positions=len(labels.tokens),
                epochs=recipe.epochs,
                batch=recipe.batch,
                rate=recipe.rate,
                seed=recipe.seed,
                save_every=recipe.save_every,
            )
            training = HeadTraining(head, self.embedding, labels, schedule, self.out / CHECKPOINT, same=self.same())
            training.train(self._logged(report))
            if not rank():
                self._write(head, labels)
        return self.out

    def _check_log(self) -> None:
        """Labels of other settings must not be trained on."""
        first = json.dumps({"same": self.same()}, sort_keys=True)
        log = self.out / LOG
        if rank():
            return
        begun = log.read_text().partition("\n")[0] if log.exists() else ""
        if begun and begun != first:
            raise InputError(f"{self.out} holds a training with other settings or texts; choose another folder")
        if not begun:
            log.write_text(first + "\n")

    def _logged(self, report: Callable[[Report], None]) -> Callable[[Report], None]:
        def logged(found: Report) -> None:
            if not rank():
                with (self.out / LOG).open("a") as log:
                    log.write(json.dumps(found._asdict()) + "\n")
                report(found)

        return logged

    def judge(self, head: RecurrentHead) -> Report | None:
        """On held-out text; None where nothing is held out."""
        labels = self.held_out_labels()
        return None if labels is None else judged(head, self.embedding, labels)

    def held_out_labels(self) -> Labels | None:
        from paceline.train.redrafter.labels import joined

        if not self.held:
            return None
        stream = stream_of(self.held, self.vocabulary, min(self.target.eos, default=None))
        if len(stream) <= self.recipe.labels.window + self.recipe.labels.ahead:
            return None
        teacher = Teacher(self.target, stream, self.recipe.labels)
        numbers = np.linspace(0, len(teacher) - 1, min(HELD_OUT, len(teacher))).astype(int)
        return joined([teacher.label(int(number)) for number in numbers])

    def _write(self, head: RecurrentHead, labels: Labels) -> None:
        found = self.judge(head)
        trained = {
            "labels": asdict(self.recipe.labels),
            "positions": len(labels.tokens),
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
