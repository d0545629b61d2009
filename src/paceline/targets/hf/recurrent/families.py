"""The modules of transformers that keep a state in a way of their own, and which model files are known."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from paceline.targets.hf.names import CACHE_NAMES
from paceline.targets.hf.recurrent import functions
from paceline.targets.hf.recurrent.forward import RecurrentForward
from paceline.targets.hf.recurrent.kinds import Function
from paceline.targets.hf.recurrent.mixers import MIXER, Family, Mixer, Outputs, State, replace


@cache
def _cache_name(right: Function) -> str:
    """The argument of a module's forward that takes the cache, whose name depends on the version of transformers."""
    accepted = inspect.signature(right).parameters
    return next(name for name in CACHE_NAMES if name in accepted)


def _named(right: Function, held: Any) -> dict[str, Any]:
    return {_cache_name(right): held}


class LinearCache:
    """The cache that lightning attention asks for its state."""

    def __init__(self, state: State | None) -> None:
        self.held = None if state is None else state[0]

    def get_linear_cache(self, layer_idx: int) -> torch.Tensor | None:
        return self.held

    def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
        self.held = linear_cache


class Lightning(Mixer):
    """MiniMax's lightning attention, one matrix for each head."""

    rows: ClassVar = ("hidden_states", "position_embeddings", "position_ids")
    dropped: ClassVar = ("attention_mask", *CACHE_NAMES)

    def call(self, right: Function, module: Any, given: dict[str, Any], state: State | None) -> tuple[Outputs, State]:
        held = LinearCache(state)
        out, after = right(module, **given, attention_mask=None, **_named(right, held))
        return (out,), (after,)

    def result(self, outputs: Outputs) -> tuple[torch.Tensor, None]:
        return outputs[0], None


class CompressedCache:
    """The cache that Zaya's projection asks for its states: the last inputs of its convolutions, and the last value."""

    def __init__(self, state: State | None) -> None:
        self.inputs: torch.Tensor | None = None if state is None else state[0]
        self.value: torch.Tensor | None = None if state is None else state[1]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.inputs

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int) -> None:
        self.inputs = conv_states

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.value

    def update_recurrent_state(self, recurrent_states: torch.Tensor, layer_idx: int) -> None:
        self.value = recurrent_states


class Compressed(Mixer):
    """Zaya's projection to queries, keys and values."""

    rows: ClassVar = ("hidden_states",)
    dropped: ClassVar = ("conv_mask", *CACHE_NAMES)

    def call(self, right: Function, module: Any, given: dict[str, Any], state: State | None) -> tuple[Outputs, State]:
        held = CompressedCache(state)
        out = right(module, **given, **_named(right, held))
        assert held.inputs is not None and held.value is not None, "the module keeps both"
        return tuple(out), (held.inputs, held.value)

    def result(self, outputs: Outputs) -> Outputs:
        return outputs


class Griffin(Mixer):
    """RecurrentGemma's block. Its own forward cannot read several rows behind a text, so its steps are repeated here;
    the convolution is computed as those of other families."""

    rows: ClassVar = ("input_states",)

    def run(self, forward: RecurrentForward, right: Function, module: Any, given: dict[str, Any]) -> Any:
        rows, conv = given["input_states"], module.conv_1d
        gates = module.act_fn(module.linear_y(rows))
        forward.enter(MIXER, forward.number())
        mixed = forward.convolved(_causal, module.linear_x(rows).transpose(1, 2), conv.weight[:, 0], conv.bias, None)
        mixed = module.rg_lru(mixed.transpose(1, 2), given["position_ids"])
        return module.linear_out(mixed * gates), None

    def call(self, right: Function, module: Any, given: dict[str, Any], state: State | None) -> tuple[Outputs, State]:
        raise AssertionError("all rows are computed at once")

    def result(self, outputs: Outputs) -> Any:
        raise AssertionError("all rows are computed at once")


def _causal(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, activation: None) -> torch.Tensor:
    return F.conv1d(F.pad(inputs, (weight.shape[-1] - 1, 0)), weight[:, None], bias, groups=len(weight))


class GatedUnit(Mixer):
    """The recurrence inside RecurrentGemma's block, whose state is an attribute."""

    rows: ClassVar = ("activations", "position_ids")

    def call(self, right: Function, module: Any, given: dict[str, Any], state: State | None) -> tuple[Outputs, State]:
        before, module.recurrent_states = module.recurrent_states, None if state is None else state[0]
        try:
            out = right(module, **given)
            return (out,), (module.recurrent_states,)
        finally:
            module.recurrent_states = before

    def result(self, outputs: Outputs) -> torch.Tensor:
        return outputs[0]


class MatrixMemory(Mixer):
    """xLSTM's layer, which gets and returns its three tensors. They are rounded to the model's type, as its cache
    does."""

    rows: ClassVar = ("x",)
    dropped: ClassVar = ("state",)

    def call(self, right: Function, module: Any, given: dict[str, Any], state: State | None) -> tuple[Outputs, State]:
        out, after = right(module, **given, state=state)
        return (out,), tuple(each.to(given["x"].dtype) for each in after)

    def result(self, outputs: Outputs) -> tuple[torch.Tensor, None]:
        return outputs[0], None


class WindowCache:
    """The cache that a module asks for the last inputs of its convolutions, by their numbers."""

    def __init__(self, numbers: tuple[int, ...], state: State | None) -> None:
        self._numbers = numbers
        self._held = {} if state is None else dict(zip(numbers, state, strict=True))

    @property
    def state(self) -> State:
        return tuple(self._held[number] for number in self._numbers)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self._held.get(state_idx)

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int = 0
    ) -> torch.Tensor:
        before = self._held.get(state_idx)
        missing = max(0, conv_kernel_size - conv_states.shape[-1])
        full = F.pad(conv_states, (missing, 0)) if before is None else torch.cat([before, conv_states], dim=-1)
        self._held[state_idx] = full[..., -conv_kernel_size:]
        return full


class Windowed(Mixer):
    """A module whose state is the last inputs of convolutions."""

    dropped: ClassVar = ("conv_mask", *CACHE_NAMES)

    def numbers(self, module: Any) -> tuple[int, ...]:
        """Of the convolutions."""
        return (module.conv_idx,)

    def call(self, right: Function, module: Any, given: dict[str, Any], state: State | None) -> tuple[Outputs, State]:
        held = WindowCache(self.numbers(module), state)
        out = right(module, **given, **_named(right, held))
        return (out,), held.state

    def result(self, outputs: Outputs) -> torch.Tensor:
        return outputs[0]


class Ngrams(Windowed):
    """Qwen4's embedding of n-grams in a layer: a convolution, and the last tokens, which it keeps as inputs of another
    one."""

    rows: ClassVar = ("hidden_states", "input_ids")

    def numbers(self, module: Any) -> tuple[int, ...]:
        return 1, 2


class DynamicConvolution(Windowed):
    """Inkling's convolution with weights for each row."""

    rows: ClassVar = ("hidden_states", "dynamic_input")


class Column:
    """A tensor of RWKV's states, ``[batch, width, layers]``, of which only one layer's are there."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def __getitem__(self, place: Any) -> torch.Tensor:
        return self.value

    def __setitem__(self, place: Any, value: torch.Tensor) -> None:
        self.value = value


class LastInput(Column):
    """The input before. RWKV adds it to inputs ``[batch, 1, width]``, which would mix the rows of a batch."""

    def __init__(self, value: torch.Tensor, rows: int) -> None:
        super().__init__(value)
        self._single = rows == 1

    def __getitem__(self, place: Any) -> torch.Tensor:
        return self.value[:, None] if self._single else self.value


class TimeMix(Mixer):
    """RWKV's attention: the last input, and the weighted mean of all values as numerator, denominator and maximum."""

    rows: ClassVar = ("hidden",)
    dropped: ClassVar = ("state", "use_cache")

    def call(self, right: Function, module: Any, given: dict[str, Any], state: State | None) -> tuple[Outputs, State]:
        rows = given["hidden"]
        if state is None:
            zero = rows.new_zeros(len(rows), module.attention_hidden_size, dtype=torch.float32)
            state = rows.new_zeros(len(rows), rows.shape[-1]), zero, zero, zero - 1e30
        last, *mean = state
        columns = [None, LastInput(last, rows.shape[1]), *map(Column, mean)]
        out, _ = right(module, **given, state=columns, use_cache=True)
        return (out,), tuple(column.value for column in columns[1:] if column is not None)

    def result(self, outputs: Outputs) -> tuple[torch.Tensor, None]:
        return outputs[0], None


class ChannelMix(TimeMix):
    """RWKV's feed-forward layer, which sees the last input as well."""

    def call(self, right: Function, module: Any, given: dict[str, Any], state: State | None) -> tuple[Outputs, State]:
        rows = given["hidden"]
        last = LastInput(rows.new_zeros(len(rows), rows.shape[-1]) if state is None else state[0], rows.shape[1])
        out, _ = right(module, **given, state=[last])
        return (out,), (last.value,)


FAMILIES = {
    "minimax": Family({"MiniMaxLightningAttention": Lightning()}, uses_cache=False, slides=True),
    "zaya": Family({"ZayaCCAProjection": Compressed()}),
    "recurrent_gemma": Family(
        {"RecurrentGemmaRecurrentBlock": Griffin(), "RecurrentGemmaRglru": GatedUnit()}, uses_cache=False
    ),
    "xlstm": Family({"xLSTMLayer": MatrixMemory()}, takes_cache=False, uses_cache=False, attends=False),
    "inkling": Family({}, measures=True),
    "inkling2": Family({"Inkling2DynamicShortConvolution": DynamicConvolution()}, measures=True),
    "inkling2_loop": Family({"Inkling2LoopDynamicShortConvolution": DynamicConvolution()}, measures=True),
    "qwen4_exp": Family({"Qwen4ExpTextPLELayer": Ngrams()}, indexes=True),
    "rwkv": Family(
        {"RwkvSelfAttention": TimeMix(), "RwkvFeedForward": ChannelMix()},
        takes_cache=False,
        uses_cache=False,
        attends=False,
    ),
}
"""By names of model files."""

USUAL = Family({})
"""Of model files in which no module is replaced."""

MASKS = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
"""Of types of layers the names of their masks, in families that measure."""


def family_of(home: str) -> Family | None:
    """The family that a model file of transformers belongs to, by the module's name."""
    package, _, name = home.rpartition(".modeling_")
    found = FAMILIES.get(name) if package.startswith("transformers.models.") else None
    return found if found is not None and found.mixers.keys() <= vars(sys.modules[home]).keys() else None


def knows(home: str) -> bool:
    """Whether a model file, by its module's name, keeps states in a way that is known."""
    return family_of(home) is not None or functions.knows(home)


def install(homes: Iterable[str]) -> None:
    """Replace the functions and the modules' forwards in these files; once."""
    homes = list(homes)
    functions.install(homes)
    for home in homes:
        if (family := family_of(home)) is not None:
            for name, mixer in family.mixers.items():
                replace(getattr(sys.modules[home], name), mixer)
