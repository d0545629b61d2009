"""Reading a forward from inside: states of named layers and early-exit logits, only where somebody wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.targets.base import Want


class Anatomy:
    """Where a model keeps its decoder, its layers, its final norm and its head."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.decoder: nn.Module = model.get_decoder()
        self.head: nn.Module | None = model.get_output_embeddings()
        count = model.config.get_text_config().num_hidden_layers
        lists = [m for m in self.decoder.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
        self.layers: nn.ModuleList | None = lists[0] if lists else None
        norms = [m for m in self.decoder.children() if "Norm" in type(m).__name__]
        self.norm: nn.Module | None = norms[-1] if norms else None
        self.softcap: float | None = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    def check(self, want: Want, name: str) -> None:
        """A wish that this model cannot grant is told before the first forward."""
        wished = sorted(want.hidden | ({want.early_exit} if want.early_exit is not None else set()))
        if not wished:
            return
        if self.layers is None:
            raise ValueError(
                f"{name} shows no list of layers, so hidden states cannot be read; choose another drafter"
            )
        if wished[0] < 0 or wished[-1] > len(self.layers):
            raise ValueError(f"{name} has states 0 to {len(self.layers)}; a drafter asks for {wished}")
        if want.early_exit is not None and (self.norm is None or self.head is None):
            raise ValueError(
                f"{name} shows no final norm or head, so it has no early exit; choose another drafter"
            )

    def unembed(self, states: torch.Tensor) -> torch.Tensor:
        """States of an inner layer through the final norm and the head: a guess at the logits, good for drafts only."""
        assert self.norm is not None and self.head is not None
        logits: torch.Tensor = self.head(self.norm(states))
        return torch.tanh(logits / self.softcap) * self.softcap if self.softcap else logits


class Taps:
    """What one forward showed: states by layer, ``[sum n, width]``, and the early logits."""

    def __init__(self) -> None:
        self.hidden: dict[int, torch.Tensor] = {}
        self.early: torch.Tensor | None = None


@contextmanager
def tapped(anatomy: Anatomy, want: Want, on_early: Callable[[torch.Tensor], None] | None) -> Iterator[Taps]:
    """Hooks for one forward. ``on_early`` is called while the later layers are still to come."""
    taps = Taps()
    with ExitStack() as stack:
        for layer in sorted(want.hidden):
            stack.callback(
                _hook(anatomy, layer, lambda states, layer=layer: taps.hidden.__setitem__(layer, states))
            )
        if want.early_exit is not None:

            def leave(states: torch.Tensor) -> None:
                taps.early = anatomy.unembed(states)
                if on_early is not None:
                    on_early(taps.early)

            stack.callback(_hook(anatomy, want.early_exit, leave))
        yield taps


def _hook(anatomy: Anatomy, layer: int, take: Callable[[torch.Tensor], None]) -> Callable[[], None]:
    """Call ``take`` with ``[sum n, width]`` states of a layer: the input of layer ``layer``, or the decoder's output."""
    assert anatomy.layers is not None
    if layer < len(anatomy.layers):

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            take((args[0] if args else kwargs["hidden_states"])[0])

        return anatomy.layers[layer].register_forward_pre_hook(before, with_kwargs=True).remove

    def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        take((output[0] if isinstance(output, tuple) else output.last_hidden_state)[0])

    return anatomy.decoder.register_forward_hook(after).remove
