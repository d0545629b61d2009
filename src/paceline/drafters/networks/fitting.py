"""Heads fitted to a target: compared with it before anything runs, as wide as it, in its type and on its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from paceline.drafters.networks.heads import folder_of
from paceline.drafters.sharing import Shared, stamp
from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.targets.hf.packed import pack
from paceline.targets.hf.speed import packing_pays
from paceline.targets.pocket.bundle import layers_in
from paceline.targets.pocket.names import BALLAST_MARK
from paceline.targets.pocket.shape import read_ballast

Head = TypeVar("Head", bound=nn.Module)
ALIKE = torch.zeros(1, dtype=torch.int64)
LIGHT = 128_000_000
"""Bytes of a head that one thread reads in about the time for which threads wait for more work and hold up others."""


@dataclass(frozen=True, kw_only=True)
class HeadFacts:
    """What a head says of the target that it was made for."""

    width: int
    """Of the target's states."""
    vocab_size: int | None = None
    """Of the target; None where the head says nothing of it."""
    target: str = ""
    """The fingerprint of the target; empty where nothing is said."""
    target_name: str = ""
    noise: str | None = None
    """How its drafts are best ranked, if that was measured."""


@dataclass(frozen=True, eq=False)
class FittedHead(Generic[Head]):
    """A head in the type and on the device of its target."""

    head: Head
    noise: str | None = None
    light: bool = True
    """Whether one thread reads its weights about as fast as several."""


_read: Shared[nn.Module] = Shared()
"""Heads that drafters use: the same object is fitted again, so that rows by it are still its own."""
_facts: WeakKeyDictionary[nn.Module, HeadFacts] = WeakKeyDictionary()
_sizes: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Their bytes: packed weights do not say how large they are."""


def place_of(target: Target) -> torch.device:
    """Where a target's states are, and so its heads: other libraries' devices show theirs in the host's memory."""
    try:
        return torch.device(target.device)
    except RuntimeError:
        return torch.device("cpu")


def like_embeddings(target: Target) -> torch.Tensor:
    """One embedding of a target's."""
    return cast("torch.Tensor", target.embed(ALIKE.to(place_of(target))))


def state_width(target: Target) -> int:
    """The number of channels of a target's states."""
    return int(like_embeddings(target).shape[-1])


def fitted_head(
    named: str | Path,
    target: Target,
    method: str,
    read: Callable[[Path], tuple[Head, HeadFacts]],
    widened: Callable[[Head, int], Head],
    compiled: Callable[[Head], Sequence[nn.Module]] = lambda _: (),
) -> FittedHead[Head]:
    """The head for a target, read once in a process. On a model with ballast it is as many times wider as the model
    (`widened`), and computes the same. Beside a compiled target its large linear layers are compiled, too, and the
    parts that are ``compiled`` as a whole.
    """
    width, folder = state_width(target), folder_of(named, target.bundled or target.name, method)
    # Not the target's own type: another library's states come in float32, whatever it computes in.
    kind = torch.float32 if target.exact else like_embeddings(target).dtype
    key = method, stamp(folder), str(kind), target.device, width, target.compiled

    def made() -> nn.Module:
        head, facts = read(folder)
        check_fit(facts, target, width, folder)  # before it is made as wide
        ratio = width // facts.width
        head = widened(head.float(), ratio) if ratio > 1 else head
        head = head.to(device=place_of(target), dtype=kind).requires_grad_(False)
        _sizes[head] = sum(part.numel() * part.element_size() for part in (*head.parameters(), *head.buffers()))
        if target.compiled:
            from paceline.drafters.networks.compiled import compile_linears  # loads numba

            compile_linears(head, compiled(head))
        elif packing_pays(head):
            pack(head)
        _facts[head] = facts
        return head

    head: Head = _read.get(key, made)  # type: ignore[assignment]
    check_fit(_facts[head], target, width, folder)  # it may have been made for another target of this width
    output = target.vocab_size * width * like_embeddings(target).element_size()
    return FittedHead(head, _facts[head].noise, _sizes[head] + output <= LIGHT)


def check_fit(facts: HeadFacts, target: Target, width: int, folder: Path) -> None:
    """`InputError` unless a head can read the target's states, of this width, and name its tokens."""
    has_ballast = BALLAST_MARK in (target.bundled or target.name)
    if facts.width != width and not (has_ballast and width % facts.width == 0):
        raise InputError(
            f"the head in {folder} reads states of width {facts.width}, and those of {target.name} are {width} wide; "
            f"train one for this model"
        )
    size = target.vocab_size if facts.vocab_size is None else facts.vocab_size
    if size > target.vocab_size or (size < target.vocab_size and not has_ballast):
        raise InputError(
            f"the head in {folder} names {size} tokens, and {target.name} has {target.vocab_size}; "
            f"train one for this model"
        )
    other = has_ballast or target.exact or target.rounded  # these weights are the same, and look others
    if facts.target and not other and facts.target != target.fingerprint():
        raise InputError(
            f"the head in {folder} was trained for {facts.target_name or 'a model with other weights'}, not for "
            f"{target.name}; its drafts would be refused. Train one for this model"
        )


def layers_without_ballast(target: Target) -> int:
    """The number of a target's layers; of one with ballast those of the small model, whose heads it takes."""
    name = target.bundled or target.name
    return layers_in(read_ballast(name).source) if BALLAST_MARK in name else target.layers


def states_before(layers: Sequence[int], target: Target) -> tuple[int, ...]:
    """The numbers, as `Want.hidden` has them, of the states that these layers read; `InputError` where there is no such
    layer. The input of a layer is the output of as many layers as its number says, so its number is that of its input.
    On a target with ballast the layers are the small model's, which stand further apart."""
    count = layers_without_ballast(target)
    if wrong := [layer for layer in layers if not 0 <= layer < count]:
        raise InputError(
            f"the head reads the state before layer {wrong[0]} of {target.name}, which has the layers 0 to "
            f"{count - 1}; give a head for this model"
        )
    return tuple(layer * target.layers // count for layer in layers)
