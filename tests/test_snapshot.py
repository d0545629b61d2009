"""A model that its owner changes is not played back as it was: whatever a recording took from it is looked up."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from transformers.models.llama import modeling_llama

from families import FAMILIES, build
from paceline.targets.hf.fixed.replay import FixedPath
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.snapshot import ModelSnapshot
from paceline.targets.hf.target import HFTarget
from scoring import CLOSE, CONTEXT, SEEN, apart, filled, random_tree, score, target_of, tokens
from tape import taped

TEXT, TREE = tokens(CONTEXT), random_tree(1, 12)
UNRECORDED = "ignore:forwards are not recorded"

both_ways = pytest.mark.parametrize("lean", [False, True])


def recorded(model: Any, *, lean: bool = False) -> HFTarget:
    """A target that plays back."""
    target = HFTarget(model, fixed_shapes=True)
    target.fixed = FixedPath(target.own, taped)
    target.fixed.lean = Lean.of(target.own) if lean else None
    target._one_at_a_time = target.fixed.slab.lock
    target.paths = [target.fixed, target.own]
    return target


def fixed_of(target: HFTarget) -> FixedPath:
    assert target.fixed is not None
    return target.fixed


def rows_of(target: HFTarget) -> Tensor:
    """Of a tree behind a text that is read anew."""
    rows = filled(target, TEXT)
    found = score(target, rows, 1, TREE)
    rows.close()
    return found


def gap_to_own(target: HFTarget) -> float:
    found, paths = rows_of(target), target.paths
    target.paths = [target.own]
    expected = rows_of(target)
    target.paths = paths
    return apart(found, expected)


# --- changes that are recorded anew -------------------------------------------------------------------------


def change_eps(model: Any) -> None:
    model.model.norm.variance_epsilon = 10.0


def change_scaling(model: Any) -> None:
    model.model.layers[1].self_attn.scaling = 1.0


def turn_faster(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(3)


def turn_behind_the_back(model: Any) -> None:
    model.model.rotary_emb.inv_freq.data = model.model.rotary_emb.inv_freq.data * 3


def turn_longer(model: Any) -> None:
    model.model.rotary_emb.attention_scaling = 2.0


@torch.no_grad()
def write_weights(model: Any) -> None:
    model.model.layers[0].mlp.down_proj.weight.mul_(-2)


def replace_weights_data(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.up_proj.weight.data = -2 * layer.mlp.up_proj.weight.data


def turn_a_weight_over(model: Any) -> None:
    """The same memory, read the other way."""
    weight = model.model.layers[0].self_attn.o_proj.weight
    weight.data = weight.data.t()


def become_another_class(model: Any) -> None:
    model.model.layers[0].mlp.act_fn.__class__ = nn.Tanh


def put_another_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = nn.Tanh()


CHANGES: list[Callable[[Any], None]] = [
    change_eps,
    change_scaling,
    turn_faster,
    turn_behind_the_back,
    turn_longer,
    write_weights,
    replace_weights_data,
    turn_a_weight_over,
    become_another_class,
    put_another_activation,
]


@both_ways
@pytest.mark.parametrize("change", CHANGES)
def test_rows_are_those_of_the_model_as_it_is_now(change: Callable[[Any], None], lean: bool) -> None:
    target = recorded(build("llama").requires_grad_(False), lean=lean)
    before = rows_of(target)
    change(target.model)
    assert gap_to_own(target) < CLOSE
    assert apart(rows_of(target), before) > SEEN
    assert fixed_of(target).recorded


def test_a_soft_cap_in_the_configuration_and_a_function_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    target = recorded(build("gemma2").requires_grad_(False))
    before = rows_of(target)
    target.model.config.final_logit_softcapping = 2.0
    assert gap_to_own(target) < CLOSE
    assert apart(rows_of(target), before) > SEEN
    target = recorded(build("llama").requires_grad_(False))
    before, honest = rows_of(target), modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(
        modeling_llama, "apply_rotary_pos_emb", lambda q, *others, **more: honest(2 * q, *others, **more)
    )
    assert gap_to_own(target) < CLOSE
    assert apart(rows_of(target), before) > SEEN


# --- what is never recorded ---------------------------------------------------------------------------------


class Adapter(nn.Module):
    """A low-rank addition that flags and numbers of Python decide on."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.on, self.scaling = layer, True, {"default": 4.0}
        self.down, self.up = nn.Linear(layer.in_features, 4), nn.Linear(4, layer.out_features)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.layer(rows)
        return found + self.up(self.down(rows)) * self.scaling["default"] if self.on else found


def switch_off(adapter: Adapter) -> None:
    adapter.on = False


def scale(adapter: Adapter) -> None:
    adapter.scaling["default"] = 40.0


@torch.no_grad()
def merge(adapter: Adapter) -> None:
    adapter.layer.weight += 4 * adapter.up.weight @ adapter.down.weight
    adapter.on = False


@both_ways
@pytest.mark.parametrize("change", [switch_off, scale, merge])
@pytest.mark.filterwarnings(UNRECORDED)
def test_adapters_are_asked_in_every_forward(change: Callable[[Adapter], None], lean: bool) -> None:
    target = recorded(build("llama").requires_grad_(False), lean=lean)
    for layer in target.model.get_decoder().layers:
        layer.mlp.down_proj = Adapter(layer.mlp.down_proj).requires_grad_(False)
    rows_of(target)
    for layer in target.model.get_decoder().layers:
        change(layer.mlp.down_proj)
    assert gap_to_own(target) == 0
    assert not fixed_of(target).recorded


def test_hooks_are_called_and_told_once(recwarn: pytest.WarningsRecorder) -> None:
    target, seen, strength = recorded(build("llama").requires_grad_(False)), list[int](), [1.0]
    layer = target.model.get_decoder().layers[1].mlp
    rows_of(target)
    assert fixed_of(target).recorded
    hook = layer.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(4):
        rows_of(target)
    assert len(seen) == 8, "a prompt and a draft of each text"
    hook.remove()
    hook = layer.register_forward_hook(lambda module, given, output: strength[0] * output)
    before = rows_of(target)
    strength[0] = 3.0
    assert gap_to_own(target) == 0
    assert apart(rows_of(target), before) > SEEN
    hook.remove()
    hook = layer.register_forward_hook(lambda module, given, output: -output)
    assert gap_to_own(target) == 0
    hook.remove()
    told = "forwards are not recorded, which costs speed and nothing else: a LlamaMLP is hooked"
    assert [str(warning.message) for warning in recwarn] == [told]
    assert gap_to_own(target) < CLOSE
    assert fixed_of(target).recorded


@pytest.mark.filterwarnings(UNRECORDED)
def test_hooks_on_all_modules_are_called() -> None:
    target = recorded(build("llama").requires_grad_(False))
    before = rows_of(target)

    def double(module: nn.Module, given: Any, output: Any) -> Any:
        return 3 * output if isinstance(module, modeling_llama.LlamaMLP) else None

    everywhere = register_module_forward_hook(double)
    try:
        assert gap_to_own(target) == 0
        assert apart(rows_of(target), before) > SEEN
    finally:
        everywhere.remove()
    assert apart(rows_of(target), before) < CLOSE


@pytest.mark.filterwarnings(UNRECORDED)
def test_forwards_that_somebody_wrote_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    target, calls = recorded(build("llama").requires_grad_(False)), list[int]()
    norm, honest = target.model.get_decoder().norm, modeling_llama.LlamaMLP.forward
    rows_of(target)

    def skip(states: Tensor) -> Tensor:
        calls.append(1)
        return states

    norm.forward = skip
    rows_of(target)
    rows_of(target)
    assert len(calls) == 4
    del norm.forward
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda mlp, states: -honest(mlp, states))
    assert gap_to_own(target) == 0


def test_what_could_not_be_probed_at_load_is_not_recorded_later() -> None:
    model = build("llama").requires_grad_(False)
    hook = model.model.layers[0].register_forward_hook(lambda *_: None)
    target = HFTarget(model, fixed_shapes=True)
    with pytest.warns(UserWarning, match="fixed shapes are not used, .*: a LlamaDecoderLayer is hooked"):
        prepare(target)
    hook.remove()
    assert gap_to_own(target) == 0
    assert not fixed_of(target).recorded


# --- the look itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.interface])
def test_a_forward_changes_nothing_that_is_looked_at(name: str) -> None:
    target = HFTarget(build(name))
    target.limits = target_of(name).limits
    rows_of(target)
    snapshot = ModelSnapshot(target.model)
    assert snapshot.obstacle is None
    rows_of(target)
    assert snapshot.unchanged()


def test_memory_of_weights_stays_until_the_change_is_seen() -> None:
    """Otherwise a replay would read what is somebody else's by then."""
    target = recorded(build("llama").requires_grad_(False))
    rows_of(target)
    layer = target.model.get_decoder().layers[0].mlp.down_proj
    held = layer.weight.data_ptr()
    layer.weight.data = layer.weight.data.clone()
    others = [torch.empty_like(layer.weight) for _ in range(64)]
    assert held not in {other.data_ptr() for other in others}
    snapshot = fixed_of(target)._snapshot
    assert snapshot is not None
    gone = weakref.ref(snapshot)
    del snapshot
    rows_of(target)
    gc.collect()
    assert gone() is None
