"""Reading states of named layers and early-exit logits in a forward, by hooks, where they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.errors import InputError
from paceline.targets.base import Want
from paceline.targets.hf.path import Outputs, Taps

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Take = Callable[[torch.Tensor], None]


class Anatomy:
    """A model's decoder, layers, final norm and head."""

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config.get_text_config()
        self.decoder: nn.Module = _part(model, "get_decoder")
        self.head: nn.Module | None = _part(model, "get_output_embeddings")
        count = config.num_hidden_layers
        lists = [m for m in self.decoder.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
        self.layers: nn.ModuleList | None = lists[0] if lists else None
        norms = [m for m in self.decoder.children() if "Norm" in type(m).__name__]
        self.norm: nn.Module | None = norms[-1] if norms else None
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.scale = 1.0
        """The factor by which the model multiplies its head's output; found by `calibrate`."""

    def check(self, want: Want, name: str) -> None:
        """Refuse what this model cannot compute, before the first forward."""
        wanted = sorted(want.hidden | ({want.early_exit} if want.early_exit is not None else set()))
        if not wanted:
            return
        if self.layers is None:
            raise InputError(f"{name} shows no list of layers, so hidden states cannot be read; choose another drafter")
        count = len(self.layers)
        if wanted[0] < 0 or wanted[-1] > count:
            raise InputError(f"{name} has states 0 to {count}; a drafter asks for {wanted}")
        if want.early_exit == count:
            raise InputError(f"{name} exits early from layers 0 to {count - 1}; a drafter asks for {count}")
        if want.early_exit is not None and not self._has_exit():
            raise InputError(f"{name} shows no final norm or head, so it has no early exit; choose another drafter")

    def _has_exit(self) -> bool:
        """Whether the head reads what the norm gives: some models project states in between."""
        norm = getattr(self.norm, "weight", None)
        read = getattr(self.head, "in_features", None)
        if read is None and (weight := getattr(self.head, "weight", None)) is not None:
            read = weight.shape[-1]
        return norm is not None and bool(norm.shape[-1] == read)

    def calibrate(self, raw: torch.Tensor, logits: torch.Tensor) -> None:
        """Find the scale of the head's output: some configurations multiply by a number, some divide."""
        logits, raw = logits.double(), raw.double()
        if self.softcap:
            logits = torch.atanh((logits / self.softcap).clamp(-0.999, 0.999)) * self.softcap
        middle = raw.abs() < raw.abs().median()
        scale = float((logits * raw)[middle].sum() / (raw * raw)[middle].sum())
        self.scale = scale if abs(scale - 1) > 0.02 else 1.0

    def unembed(self, states: torch.Tensor) -> torch.Tensor:
        """States of an inner layer through the final norm and the head: a guess at the logits, for drafts only."""
        assert self.norm is not None
        return self.logits(self.norm(states))

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """States behind the final norm through the head, with the model's scale and soft-cap."""
        assert self.head is not None
        return self.finished(self.head(states))

    def finished(self, raw: torch.Tensor) -> torch.Tensor:
        """The head's output with the model's scale and soft-cap."""
        logits = raw * self.scale
        return torch.tanh(logits / self.softcap) * self.softcap if self.softcap else logits


def _part(model: PreTrainedModel, getter: str) -> Any:
    """The module that a model's untyped getter returns."""
    return getattr(model, getter)()


@contextmanager
def tapped(anatomy: Anatomy, outputs: Outputs) -> Iterator[Taps]:
    """Hooks for one forward of the model."""
    taps, want = Taps(), outputs.want

    def leave(states: torch.Tensor) -> None:
        taps.early = anatomy.unembed(outputs.leaving(states))
        outputs.on_exit(taps.early)

    with ExitStack() as stack:
        for layer in sorted(want.hidden):
            stack.callback(_hook(anatomy, layer, partial(taps.hidden.__setitem__, layer)))
        if want.early_exit is not None:
            stack.callback(_hook(anatomy, want.early_exit, leave))
        yield taps


def _hook(anatomy: Anatomy, layer: int, take: Take) -> Callable[[], None]:
    """Call ``take`` with a layer's states ``[sum n, width]``: the input of layer ``layer``, or the decoder's output."""
    assert anatomy.layers is not None
    if layer < len(anatomy.layers):

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            take((args[0] if args else kwargs["hidden_states"])[0])

        return anatomy.layers[layer].register_forward_pre_hook(before, with_kwargs=True).remove

    def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        take((output[0] if isinstance(output, tuple) else output.last_hidden_state)[0])

    return anatomy.decoder.register_forward_hook(after).remove
