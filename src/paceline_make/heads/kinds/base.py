"""The contract of a kind of head: what it reads, how it begins, its lesson, and its files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch

from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.targets.place import named_dtype
from paceline_make.heads.data import Ids
from paceline_make.heads.labels import Reading
from paceline_make.heads.lesson import Head, Lesson
from paceline_make.heads.loss import Objective


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


def parameters_in_all(head: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in head.parameters())


def check_part(kept: int, vocab_size: int) -> None:
    if not 0 <= kept <= vocab_size:
        raise InputError(f"a head cannot know {kept} of {vocab_size} tokens")
