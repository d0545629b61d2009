"""The training loop: resumable, with one dial (how many tokens), in bfloat16 around float32 weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from paceline.errors import InputError
from paceline_make.models.schedule import ModelSchedule
from paceline_make.states import read_state, save_state, usable

Tokens: TypeAlias = NDArray[Any]
"""Ids, in integers of any width."""
Id = TypeVar("Id", bound=np.integer[Any])
Report = Callable[[int, int, float, float], None]
"""Called after a step: step, steps in all, loss, tokens per second."""
RESTART = "delete it to train this model from the beginning, or give another folder"
TOGETHER = 2048
"""Tokens in one forward: the logits are the largest thing in memory."""


def check_length(tokens: Tokens, schedule: ModelSchedule) -> None:
    """Refuse a text that holds no whole step from any beginning, and the token after it."""
    longest = max(schedule.window, schedule.long_window, schedule.tokens_per_step)
    if len(tokens) < (least := 2 * longest + 1):
        raise InputError(f"the text has {len(tokens):,} tokens, and this training needs {least:,}; give more text")


class TrainingRun:
    """One model in training on one stream of tokens; with a teacher, on the teacher's law instead of the next token."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokens: Tokens,
        schedule: ModelSchedule,
        checkpoint: Path,
        teacher: PreTrainedModel | None = None,
        compiled: bool = False,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise InputError("training a model from nothing needs torch 2.9 or newer")
        self.model, self.schedule = model, schedule
        self._device = model.device
        fused: Callable[[Any], Any] = torch.compile if compiled else lambda function: function
        self._forward = fused(model)
        self._teach = fused(teacher) if teacher is not None else None
        self._next_token, self._likeness = fused(next_token_loss), fused(likeness_loss)
        self._tokens = tokens
        check_length(tokens, schedule)
        self._checkpoint = checkpoint
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim != 2 or "embed" in name]
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"), schedule.matrix_rate),
            (torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0), schedule.other_rate),
        ]
        self.step = 0
        self._order: tuple[tuple[int, int, int], Tokens] | None = None
        if checkpoint.exists():
            with usable(checkpoint, RESTART):
                self._restore(read_state(checkpoint, map_location=self._device))

    def train(self, report: Report) -> None:
        """To the end. Stopped at any moment, a new run goes on from the last checkpoint."""
        self.model.train()
        while self.step < self.schedule.steps:
            began = time.perf_counter()
            loss = self._update()
            self.step += 1
            report(self.step, self.schedule.steps, loss, self.schedule.tokens_per_step / (time.perf_counter() - began))
            if self.step % self.schedule.save_every == 0 or self.step == self.schedule.steps:
                self._save()
        self.model.eval()

    def _update(self) -> float:
        share = self.schedule.rate(self.step)
        for optimizer, peak in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * share
            optimizer.zero_grad(set_to_none=True)
        total = 0.0
        batch = self._batch()
        for piece in batch.split(max(1, TOGETHER // (batch.shape[1] - 1))):
            loss = self._loss(piece) * (len(piece) / len(batch))
            loss.backward()
            total += float(loss.detach())
        if not math.isfinite(total):
            raise InputError(f"the loss is {total} at step {self.step}; lower the learning rates")
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, _ in self._optimizers:
            optimizer.step()
        return total

    def _batch(self) -> torch.Tensor:
        """The windows of this step: a function of seed and step, so that a resumed run reads on where it stopped."""
        schedule = self.schedule
        long = self.step >= schedule.short_steps
        window, step = (
            (schedule.long_window, self.step - schedule.short_steps) if long else (schedule.window, self.step)
        )
        rows_per_step = schedule.tokens_per_step // window
        steps_per_pass = (len(self._tokens) - 1 - window) // window // rows_per_step
        number, place = divmod(step, steps_per_pass)
        order = (schedule.seed, int(long), number)
        if self._order is None or self._order[0] != order:
            self._order = order, windows(self._tokens, window, np.random.default_rng(order))
        rows = self._order[1][place * rows_per_step : (place + 1) * rows_per_step]
        return torch.from_numpy(rows.astype(np.int64)).to(self._device)

    def _loss(self, piece: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            logits = self._forward(piece[:, :-1], use_cache=False).logits.flatten(0, 1)
            if self._teach is None:
                loss: torch.Tensor = self._next_token(logits, piece[:, 1:].flatten())
            else:
                with torch.no_grad():
                    taught = self._teach(piece[:, :-1], use_cache=False).logits.flatten(0, 1)
                loss = self._likeness(logits, taught)
            return loss

    def _save(self) -> None:
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer, _ in self._optimizers],
        }
        save_state(self._checkpoint, state)

    def _restore(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        for (optimizer, _), kept in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)


def next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with the token that came next."""
    return F.cross_entropy(logits.float(), tokens)


def likeness_loss(logits: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """Divergence from the teacher's law: what a drafter is for is to agree with its target, not with the text."""
    wanted = taught.float().log_softmax(-1)
    return F.kl_div(logits.float().log_softmax(-1), wanted, reduction="sum", log_target=True) / len(logits)


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, tokens: Tokens, window: int = 1024) -> float:
    """Mean loss per token, in nats, over whole windows."""
    count = (len(tokens) - 1) // window
    assert count > 0, f"{len(tokens)} held-out tokens do not fill a window of {window}"
    starts = torch.arange(count, device=model.device) * window
    text = torch.from_numpy(tokens.astype(np.int64)).to(model.device)
    rows = text[starts[:, None] + torch.arange(window + 1, device=model.device)]
    losses = [F.cross_entropy(model(row[None, :-1], use_cache=False).logits[0].float(), row[1:]).item() for row in rows]
    return sum(losses) / len(losses)


def windows(tokens: NDArray[Id], length: int, rng: np.random.Generator) -> NDArray[Id]:
    """Windows of ``length + 1`` tokens, each overlapping the next by one, from a random start, shuffled."""
    offset = int(rng.integers(0, length))
    count = (len(tokens) - offset - 1) // length
    starts = offset + length * rng.permutation(count)
    picked: NDArray[Id] = tokens[starts[:, None] + np.arange(length + 1)]
    return picked
