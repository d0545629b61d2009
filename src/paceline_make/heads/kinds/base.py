"""The contract of a kind of head: what it reads, how it begins, its lesson, and its files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch

from paceline.targets.base import Request, Target, Want
from paceline.targets.place import named_dtype
from paceline_make.heads.data import Ids
from paceline_make.heads.labels import Reading
from paceline_make.heads.lesson import Head, Lesson, known_tokens
from paceline_make.heads.loss import Objective

HEAD_WIDTH = 64
SAMPLE = 128
"""Tokens of the text that the target reads before training."""


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
        return self.embedding.shape[1]

    @cached_property
    def scale(self) -> float:
        """The root mean square of the states that the target's output reads."""
        tokens, last = self.ids[:SAMPLE].astype(np.int64), self.target.layers
        rows = self.target.open(len(tokens))
        try:
            (scores,) = self.target.score([Request.of_prompt(rows, tokens, Want(hidden=frozenset({last})))])
            return float(torch.as_tensor(scores.hidden(last)).float().pow(2).mean().sqrt())
        finally:
            rows.close()

    def own_rows(self, head: Any) -> torch.Tensor:
        """The target's output matrix for the tokens that a head knows."""
        return self.output[known_tokens(head)]

    def rarest(self) -> int:
        """A token that the text has least often."""
        return int(np.bincount(self.ids, minlength=self.target.vocab_size).argmin())

    def known(self, count: int) -> torch.Tensor:
        """The most frequent tokens of the text, and those that end a text, ascending."""
        counts = np.bincount(self.ids, minlength=self.target.vocab_size).astype(np.int64)
        counts[sorted(self.target.eos)] = counts.max() + 1
        return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:count]))


@dataclass(frozen=True, kw_only=True)
class About:
    """What the files of a head say of it."""

    target: str
    """The fingerprint of the model."""
    target_name: str
    trained: Mapping[str, Any]
    int8: bool = False
    """Store large matrices in 8-bit integers."""

    def fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, kw_only=True)
class HeadKind(ABC, Generic[Head]):
    """A kind of head, and the sizes that one chooses."""

    method: ClassVar[str]
    title: ClassVar[str]
    smaller: ClassVar[str]
    """Options that make it smaller."""

    @property
    def reading(self) -> Reading:
        return Reading()

    def fitted(self, target: Target) -> HeadKind[Head]:
        """The same with what it leaves to the target filled in."""
        return self

    @abstractmethod
    def made(self, ground: Ground) -> Head:
        """The head with any weights, also on ``meta``."""

    @abstractmethod
    def blank(self, ground: Ground) -> Head:
        """The head before training."""

    @abstractmethod
    def lesson(self, head: Head, ground: Ground, objective: Objective) -> Lesson[Head]: ...

    @abstractmethod
    def write(self, folder: Path, head: Head, about: About) -> None: ...

    @abstractmethod
    def read(self, folder: Path) -> Head:
        """The head that was written, in the type in which it is stored."""

    @abstractmethod
    def rows(self, head: Head) -> list[tuple[str, str]]:
        """Its sizes, for its card."""


def begin_as(output: torch.nn.Module, rows: torch.Tensor) -> None:
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


def parameters_in_all(head: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in head.parameters())
