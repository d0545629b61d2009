"""The contract of a kind of head: what it reads, how it begins, its lesson, and its files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch

from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.fitting import state_width
from paceline.drafters.networks.layers import LayerShape
from paceline.drafters.noise import NOISES
from paceline.engine.counters import Round
from paceline.targets.base import Request, Target, Want
from paceline.targets.place import named_dtype
from paceline_make.heads.data import Ids
from paceline_make.heads.judging import PROMPTS, tokens_per_round
from paceline_make.heads.labels import HeadReading
from paceline_make.heads.lesson import Head, Lesson, known_tokens
from paceline_make.heads.loss import Objective

HEAD_WIDTH = 64
ROPE: Mapping[str, Any] = {"rope_theta": 10_000.0}
SAMPLE, TOGETHER = 4096, 256
"""Tokens of the text that the target reads before training, and so many of them together."""
RIDGE, RATE = 1e-3, 2e-3
SPREAD = 0.02
"""The deviation of matrices that begin at random."""


@dataclass(eq=False)
class Ground:
    """What a head is made for: a target, the text that it learns from, and how many tokens ahead it predicts."""

    target: Target
    ids: Ids
    ahead: int
    seed: int = 0

    @cached_property
    def embedding(self) -> torch.Tensor:
        """The target's input embedding, in float32."""
        ids = torch.arange(self.target.vocab_size, device=self.target.device)
        embedded: torch.Tensor = self.target.embed(ids).float().clone()
        return embedded

    @cached_property
    def output(self) -> torch.Tensor:
        """The target's output matrix ``[ids, width]``, in float32, on the host."""
        with torch.inference_mode():
            kind = torch.float32 if self.target.exact else named_dtype(self.target.dtype)
            states = torch.eye(self.width, device=self.target.device, dtype=kind)
            own: torch.Tensor = self.target.unembed(states) - self.target.unembed(torch.zeros_like(states[:1]))
            found = own.float().cpu().T
        return found.clone()

    @property
    def width(self) -> int:
        """Of the target's states."""
        return state_width(self.target)

    def sample(self, *layers: int) -> torch.Tensor:
        """The target's states of these layers, side by side, for the beginning of the text, on the host."""
        tokens, rows, found = self.ids[:SAMPLE].astype(np.int64), self.target.open(SAMPLE), list[torch.Tensor]()
        try:
            for piece in np.array_split(tokens, -(-len(tokens) // TOGETHER)):
                (scores,) = self.target.score([Request.of_prompt(rows, piece, Want(hidden=frozenset(layers)))])
                found.append(
                    torch.cat([torch.as_tensor(scores.hidden(layer)) for layer in layers], dim=-1).float().cpu()
                )
                rows.rewind(0)
        finally:
            rows.close()
        return torch.cat(found).clone()

    def own_rows(self, head: Any) -> torch.Tensor:
        """The target's output matrix for the tokens that a head knows."""
        return self.output[known_tokens(head)]

    @cached_property
    def rarest(self) -> int:
        """A token that the text has least often."""
        return int(np.bincount(self.ids, minlength=self.target.vocab_size).argmin())

    def known(self, count: int) -> torch.Tensor:
        """The most frequent tokens of the text, and those that end a text, ascending."""
        counts = np.bincount(self.ids, minlength=self.target.vocab_size).astype(np.int64)
        counts[sorted(self.target.eos)] = counts.max() + 1
        return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:count]))


@dataclass(frozen=True, kw_only=True)
class HeadKind(ABC, Generic[Head]):
    """A kind of head, and the sizes that one chooses."""

    method: ClassVar[str]
    title: ClassVar[str]
    smaller: ClassVar[str]
    """Options that make it smaller."""
    measure: ClassVar[str] = "tokens a round"
    """What its drafts are measured by."""
    is_tempered: ClassVar[bool] = False
    """Whether its logits are divided by the temperature of a draft."""
    is_model: ClassVar[bool] = False
    """Whether its folder is a model's as well, with the tokenizer beside it."""
    noises: ClassVar[Sequence[str]] = NOISES
    """The ways of ranking that are measured, to find the head's default."""
    together: ClassVar[int] = PROMPTS
    """Texts that are written together while it is measured."""

    @property
    def reading(self) -> HeadReading:
        return HeadReading()

    @property
    def usual_rate(self) -> float:
        """The learning rate's peak, unless a user says it."""
        return RATE

    @property
    def usual_decay(self) -> float:
        """What a step ahead weighs beside the one before, unless a user says it."""
        return 1.0

    def fitted(self, target: Target) -> HeadKind[Head]:
        """The same with what it leaves to the target filled in."""
        return self

    def output_width(self, head: Head) -> int:
        """Of what the output reads."""
        shape: Any = head.shape
        return int(shape.width)

    def rank_of(self, head: Head) -> int:
        """Of its thin matrices; 0 without any."""
        shape: Any = head.shape
        return int(shape.rank)

    def drafting(self, folder: Path, ahead: int) -> str:
        """The method that is measured, with the head in a folder that predicts so many tokens ahead."""
        return f"{self.method}:head='{folder}'"

    def measured(self, rounds: Sequence[Round]) -> float:
        """Its `measure` over rounds with a draft."""
        return tokens_per_round(rounds)

    @abstractmethod
    def made(self, ground: Ground) -> Head:
        """The head with any weights, also on ``meta``."""

    def drawn(self, ground: Ground) -> Head:
        """The head with weights of the seed, and the tokens that it knows."""
        torch.manual_seed(ground.seed)
        made = self.made(ground)
        head: Any = made
        if head.shape.kept:
            head.token_ids = ground.known(head.shape.kept)
        return made

    @abstractmethod
    def blank(self, ground: Ground) -> Head:
        """The head before training."""

    @abstractmethod
    def lesson(self, head: Head, ground: Ground, objective: Objective) -> Lesson[Head]: ...

    @abstractmethod
    def write(self, folder: Path, head: Head, about: Provenance) -> None: ...

    @staticmethod
    @abstractmethod
    def read(folder: Path) -> Head:
        """The head that was written, in the type in which it is stored."""

    @abstractmethod
    def rows(self, head: Head) -> list[tuple[str, str]]:
        """Its sizes, for its card."""


def begin_as(output: Any, rows: torch.Tensor) -> None:
    """Give an output matrix these rows; two thin ones the product that is nearest to them."""
    with torch.no_grad():
        if isinstance(output, torch.nn.Linear):
            output.weight.copy_(rows)
            return
        (inner, outer), (left, sizes, right) = output.children(), torch.linalg.svd(rows, full_matrices=False)
        roots = sizes[: len(inner.weight)].sqrt()
        inner.weight.copy_(roots[:, None] * right[: len(roots)])
        outer.weight.copy_(left[:, : len(roots)] * roots)


def key_heads_of(width: int) -> tuple[int, int]:
    """Attention heads for a layer of this width, and those of keys: half as many."""
    heads = max(1, width // HEAD_WIDTH)
    while width % heads or (width // heads) % 2:
        heads -= 1
    return heads, heads // 2 if heads % 2 == 0 else heads


def layer_of(width: int, units: int | None, *, head_norms: bool = False) -> LayerShape:
    """A layer of this width; its MLP has three times as many units unless it is said."""
    heads, shared = key_heads_of(width)
    return LayerShape(
        width=width,
        units=units or 3 * width,
        heads=heads,
        kv_heads=shared,
        head_size=width // heads,
        head_norms=head_norms,
    )


def states_of(target: Target) -> tuple[int, ...]:
    """States that a head of a text reads unless it is said: before an early layer, one in the middle, and the
    last."""
    count = target.layers
    return tuple(sorted({min(2, count - 1), count // 2, count - 1}))


def begin_layers(head: Any, ground: Ground, states: tuple[int, ...]) -> None:
    """For heads whose layers are added to the joined states: layers begin as nothing beside their input. The joined
    states begin as what is nearest to the last state, and the norm makes it as large as the output reads it."""
    last = ground.target.layers
    read, wanted = ground.sample(*states), ground.sample(last)
    weight = (read.T @ read).diagonal().mean() * RIDGE
    nearest = torch.linalg.solve(read.T @ read + weight * torch.eye(read.shape[1]), read.T @ wanted)
    with torch.no_grad():
        head.fc.weight.copy_(nearest.T)
        for layer in head.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        head.norm.weight.fill_(float(wanted.pow(2).mean().sqrt()))


def parameters_in_all(head: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in head.parameters())
