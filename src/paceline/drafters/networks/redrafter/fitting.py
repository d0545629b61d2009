"""Which head drafts for a model: one in a folder, or the one that comes with the package for a bundled model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.drafters.networks.redrafter.checkpoint import HeadConfig, read_head
from paceline.drafters.networks.redrafter.drafter import SHIPPED, shipped_head
from paceline.drafters.networks.redrafter.head import RecurrentHead, widened
from paceline.drafters.sharing import Shared, stamp
from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.targets.hf.packed import pack
from paceline.targets.hf.speed import packing_pays
from paceline.targets.place import named_dtype
from paceline.targets.pocket.names import BALLAST_MARK

ALIKE = torch.zeros(1, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class FittedHead:
    """A head in the type and on the device of its target."""

    head: RecurrentHead
    noise: str | None = None
    """How its drafts are best ranked, if that was measured."""


_read: Shared[FittedHead] = Shared()


def head_for(named: str | Path, target: Target) -> FittedHead:
    """The head for a target, read once in a process. On a model with ballast it is as much wider as the model, and
    computes the same."""
    width = int(target.embed(ALIKE.to(target.device)).shape[-1])
    folder = shipped_head(target.name) if named == SHIPPED else Path(named)
    if folder is None:
        raise InputError(
            f"no head for {target.name} comes with paceline; train one with 'paceline train redrafter' and give "
            f"head=FOLDER"
        )
    kind = torch.float32 if target.exact else named_dtype(target.dtype)
    key = stamp(folder), str(kind), target.device, width

    def made() -> FittedHead:
        head, config = read_head(folder)
        check_fit(head, config, target, width, folder)
        ratio = width // head.shape.width
        head = widened(head.float(), ratio) if ratio > 1 else head
        head = head.to(device=target.device, dtype=kind).requires_grad_(False)
        if packing_pays(head):
            pack(head)
        return FittedHead(head, config.noise)

    return _read.get(key, made)


def check_fit(head: RecurrentHead, config: HeadConfig, target: Target, width: int, folder: Path) -> None:
    """ValueError unless the head can read the target's states and name its tokens."""
    shape = head.shape
    ballast = BALLAST_MARK in target.name and width % shape.width == 0
    if shape.width != width and not ballast:
        raise InputError(
            f"the head in {folder} reads states of width {shape.width}, and those of {target.name} are {width} wide; "
            f"train one for this model"
        )
    if shape.vocab_size > target.vocab_size or (
        shape.vocab_size < target.vocab_size and BALLAST_MARK not in target.name
    ):
        raise InputError(
            f"the head in {folder} names {shape.vocab_size} tokens, and {target.name} has {target.vocab_size}; "
            f"train one for this model"
        )
    other = BALLAST_MARK in target.name or target.exact  # these weights are the same, and look others
    if config.target and not other and config.target != target.fingerprint():
        raise InputError(
            f"the head in {folder} was trained for {config.target_name or 'a model with other weights'}, not for "
            f"{target.name}; its drafts would be refused. Train one for this model"
        )
