"""Training a head on labels, resumable at every step, on one process or on several that are one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as distributed
from torch import nn

from paceline.errors import InputError
from paceline_make.heads.batches import Batches, rank, rows_of, world
from paceline_make.heads.labels import Labels
from paceline_make.heads.lesson import Lesson
from paceline_make.heads.loss import expected_tokens
from paceline_make.heads.store import batch_of
from paceline_make.states import read_state, save_state, usable

PIECE = 512
"""Positions in one forward: the logits of all steps are the largest thing in memory."""
MOST_EPOCHS = 10_000
RESTART = "delete it to train from the beginning with the labels that are kept, or give another folder"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long, how much at a time, how fast."""

    positions: int
    epochs: float = 3.0
    batch: int = 2048
    rate: float = 2e-3
    warmup: float = 0.05
    decay: float = 0.0
    seed: int = 0
    save_every: int = 100

    def __post_init__(self) -> None:
        for name in ("positions", "batch", "save_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} of a training is at least 1, not {getattr(self, name)}")
        if not 0 < self.epochs <= MOST_EPOCHS:
            raise InputError(f"epochs of a training are above 0 and at most {MOST_EPOCHS}, not {self.epochs}")
        if not 0 < self.rate < 1:
            raise InputError(f"the rate of a training is above 0 and below 1, not {self.rate}")

    @property
    def steps(self) -> int:
        return max(1, round(self.positions * self.epochs / self.batch))

    def share(self, step: int) -> float:
        """Of the peak rate: a line up, then half a cosine down to a hundredth."""
        begun = max(1, round(self.steps * self.warmup))
        if step < begun:
            return (step + 1) / begun
        along = (step - begun) / max(1, self.steps - begun)
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * along))


class TrainingReport(NamedTuple):
    """One step, as reported to an observer."""

    step: int
    steps: int
    loss: float
    right: list[float]
    """The share of right predictions of each step ahead."""
    expected: float
    positions_per_second: float


class HeadTraining:
    """One head on one set of labels."""

    def __init__(
        self,
        lesson: Lesson[Any],
        batches: Batches,
        schedule: Schedule,
        checkpoint: Path,
        *,
        same: dict[str, Any] | None = None,
        autocast: torch.dtype | None = torch.bfloat16,
    ) -> None:
        """``same`` is what a checkpoint must have been made with to go on from it."""
        self.lesson, self.batches, self.schedule = lesson, batches, schedule
        self.head: nn.Module = lesson.head
        self._device, self._autocast = lesson.embedding.device, autocast
        self._checkpoint, self._same = checkpoint, {**(same or {}), "schedule": asdict(schedule)}
        fused = self._device.type in ("cpu", "cuda")
        parameters = [weight for weight in self.head.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(
            parameters, lr=schedule.rate, betas=(0.9, 0.98), weight_decay=schedule.decay, fused=fused
        )
        self.step = 0
        if checkpoint.exists():
            with usable(checkpoint, RESTART):
                self._restore(read_state(checkpoint, map_location=self._device))

    def train(self, report: Callable[[TrainingReport], None]) -> None:
        """To the end. Stopped at any moment, a new run goes on from the last checkpoint."""
        self._be_one()
        while self.step < self.schedule.steps:
            began = time.perf_counter()
            loss, right, expected = self._update()
            self.step += 1
            pace = self.schedule.batch / (time.perf_counter() - began)
            report(TrainingReport(self.step, self.schedule.steps, loss, right, expected, pace))
            if self.step % self.schedule.save_every == 0 or self.step == self.schedule.steps:
                self._save()

    def _be_one(self) -> None:
        """Several processes begin with the weights of the first: machines may draw or round others."""
        for weight in self.head.state_dict().values() if world() > 1 else ():
            distributed.broadcast(weight, 0)

    def _update(self) -> tuple[float, list[float], float]:
        for group in self._optimizer.param_groups:
            group["lr"] = self.schedule.rate * self.schedule.share(self.step)
        self._optimizer.zero_grad(set_to_none=True)
        labels, count = self.batches.at(self.step)
        total = torch.zeros(1 + 2 * (labels.tokens.shape[1] - self.lesson.first) + 1, dtype=torch.float64)
        for piece in pieces_of(labels, self.lesson.unit):
            batch = batch_of(labels, piece, torch.float32, self._device)
            with torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None):
                learnt = self.lesson.learn(batch, self.step)
            share = len(piece) / count
            (learnt.loss * share).backward()
            total += self._figures(learnt, share, len(piece))
        self._share(total)
        loss = float(total[0])
        if not math.isfinite(loss):
            mend = (
                "lower the rate" if self.step else "nothing is learnt yet: take fewer blocks, or make the labels again"
            )
            raise InputError(f"the loss is {loss} at step {self.step}; {mend}")
        right, counted = total[1:-1].view(2, -1)
        if counted.any():  # else the weights would move on by what earlier steps found
            nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
            self._optimizer.step()
        return loss, (right / counted.clamp_min(1)).tolist(), float(total[-1]) / count

    def _figures(self, learnt: Any, share: float, count: int) -> torch.Tensor:
        expected = expected_tokens(learnt.right, learnt.counted) * count
        sums = [learnt.loss.detach().reshape(1) * share, learnt.right.sum(dim=0), learnt.counted.sum(dim=0)]
        return torch.cat([*(each.double().cpu() for each in sums), torch.tensor([expected], dtype=torch.float64)])

    def _share(self, total: torch.Tensor) -> None:
        """Of several processes each has a part of the batch: sums of gradients are those of the whole. A process that
        had nothing to learn adds zeros, since the others wait for it."""
        if world() == 1:
            return
        distributed.all_reduce(total)
        for weight in self.head.parameters():
            if weight.requires_grad:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                distributed.all_reduce(weight.grad)

    def _save(self) -> None:
        if rank():
            return
        state = {"step": self.step, "head": self.head.state_dict(), "optimizer": self._optimizer.state_dict()}
        save_state(self._checkpoint, {**state, "same": self._same})

    def _restore(self, state: dict[str, Any]) -> None:
        if state["same"] != self._same:
            differs = [name for name in self._same if state["same"].get(name) != self._same[name]]
            raise InputError(
                f"{self._checkpoint.parent} holds a training with other settings ({', '.join(differs)}); choose another"
                " folder, or give the same settings to go on"
            )
        self.step = state["step"]
        self.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])


def pieces_of(labels: Labels, unit: int) -> list[np.ndarray]:
    """The positions of a batch in pieces for one forward each, which divide no window of a head that learns from
    those."""
    numbers = np.arange(len(labels.tokens) // unit)
    parts = np.array_split(numbers, max(1, -(-len(labels.tokens) // max(PIECE, unit))))
    return [rows_of(part, unit) for part in parts if len(part)]


@torch.no_grad()
def judged(lesson: Lesson[Any], labels: Labels) -> TrainingReport:
    """Loss and accuracy on labels that were not trained on."""
    count = len(labels.tokens)
    steps = labels.tokens.shape[1] - lesson.first
    loss, expected, right, counted = 0.0, 0.0, torch.zeros(steps), torch.tensor(0.0)
    for piece in pieces_of(labels, lesson.unit):
        learnt = lesson.learn(batch_of(labels, piece, torch.float32, lesson.embedding.device))
        loss += float(learnt.loss) * len(piece) / count
        expected += expected_tokens(learnt.right, learnt.counted) * len(piece) / count
        right = right + learnt.right.sum(dim=0).cpu()
        counted = counted + learnt.counted.sum(dim=0).cpu()
    return TrainingReport(0, 0, loss, (right / counted.clamp_min(1)).tolist(), expected, 0.0)
