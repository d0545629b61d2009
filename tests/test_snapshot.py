"""A model that its owner changes is not replayed as it was: recordings notice the change."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from transformers.models.llama import modeling_llama

import paceline
from changes import CHANGES, Adapter, adapt, replace_weights, scale_everything
from families import FAMILIES, build
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.snapshot import ModelSnapshot
from paceline.targets.hf.target import HFTarget
from scoring import CLOSE, SEEN, apart, gap_to_own, load_quietly, path_of, recorded, scored_anew, target_of
from thinning import crossed

UNRECORDED = "ignore:forwards are not recorded"

both_ways = pytest.mark.parametrize("lean", [False, True])


# --- changes that are recorded anew -------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "lean"), crossed(CHANGES, [False, True]))
def test_rows_are_those_of_the_model_as_it_is_now(change: Callable[[Any], None], lean: bool) -> None:
    target = recorded(build("llama").requires_grad_(False), lean=lean)
    before = scored_anew(target)
    change(target.model)
    assert gap_to_own(target) < CLOSE
    assert apart(scored_anew(target), before) > SEEN
    assert path_of(target).recorded


def test_a_soft_cap_in_the_configuration_and_a_function_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    target = recorded(build("gemma2").requires_grad_(False))
    before = scored_anew(target)
    target.model.config.final_logit_softcapping = 2.0
    assert gap_to_own(target) < CLOSE
    assert apart(scored_anew(target), before) > SEEN
    target = recorded(build("llama").requires_grad_(False))
    before, honest = scored_anew(target), modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(
        modeling_llama, "apply_rotary_pos_emb", lambda q, *others, **more: honest(2 * q, *others, **more)
    )
    assert gap_to_own(target) < CLOSE
    assert apart(scored_anew(target), before) > SEEN


# --- what is never recorded ---------------------------------------------------------------------------------


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
    adapt(target.model)
    scored_anew(target)
    for layer in target.model.get_decoder().layers:
        change(layer.mlp.down_proj)
    assert gap_to_own(target) == 0
    assert not path_of(target).recorded


def test_hooks_are_called_and_told_once(recwarn: pytest.WarningsRecorder) -> None:
    target, seen, strength = recorded(build("llama").requires_grad_(False)), list[int](), [1.0]
    layer = target.model.get_decoder().layers[1].mlp
    scored_anew(target)
    assert path_of(target).recorded
    hook = layer.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(4):
        scored_anew(target)
    assert len(seen) == 8, "a prompt and a draft of each text"
    hook.remove()
    hook = layer.register_forward_hook(lambda module, given, output: strength[0] * output)
    before = scored_anew(target)
    strength[0] = 3.0
    assert gap_to_own(target) == 0
    assert apart(scored_anew(target), before) > SEEN
    hook.remove()
    hook = layer.register_forward_hook(lambda module, given, output: -output)
    assert gap_to_own(target) == 0
    hook.remove()
    told = "forwards are not recorded, which costs speed and nothing else: a LlamaMLP is hooked"
    assert [str(warning.message) for warning in recwarn] == [told]
    assert gap_to_own(target) < CLOSE
    assert path_of(target).recorded


@pytest.mark.filterwarnings(UNRECORDED)
def test_hooks_on_all_modules_are_called() -> None:
    target = recorded(build("llama").requires_grad_(False))
    before = scored_anew(target)

    def double(module: nn.Module, given: Any, output: Any) -> Any:
        return 3 * output if isinstance(module, modeling_llama.LlamaMLP) else None

    everywhere = register_module_forward_hook(double)
    try:
        assert gap_to_own(target) == 0
        assert apart(scored_anew(target), before) > SEEN
    finally:
        everywhere.remove()
    assert apart(scored_anew(target), before) < CLOSE


@pytest.mark.filterwarnings(UNRECORDED)
def test_forwards_that_somebody_wrote_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    target, calls = recorded(build("llama").requires_grad_(False)), list[int]()
    norm, honest = target.model.get_decoder().norm, modeling_llama.LlamaMLP.forward
    scored_anew(target)

    def skip(states: Tensor) -> Tensor:
        calls.append(1)
        return states

    norm.forward = skip
    scored_anew(target)
    scored_anew(target)
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
    assert not path_of(target).recorded


# --- the look itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.interface])
def test_a_forward_changes_nothing_that_is_looked_at(name: str) -> None:
    target = HFTarget(build(name))
    target.limits = target_of(name).limits
    scored_anew(target)
    snapshot = ModelSnapshot(target.model)
    assert snapshot.obstacle is None
    scored_anew(target)
    assert snapshot.unchanged()


def test_memory_of_weights_stays_until_the_change_is_seen() -> None:
    """Otherwise a replay would read memory that is used for something else."""
    target = recorded(build("llama").requires_grad_(False))
    scored_anew(target)
    layer = target.model.get_decoder().layers[0].mlp.down_proj
    held = layer.weight.data_ptr()
    layer.weight.data = layer.weight.data.clone()
    others = [torch.empty_like(layer.weight) for _ in range(64)]
    assert held not in {other.data_ptr() for other in others}
    snapshot = target.own.snapshot
    assert snapshot is not None
    gone = weakref.ref(snapshot)
    del snapshot
    scored_anew(target)
    gc.collect()
    assert gone() is None


# --- texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "forgets"), [(replace_weights, False), (scale_everything, True)])
def test_the_next_text_is_that_of_the_model_as_it_is_now(change: Callable[[Any], None], forgets: bool) -> None:
    """Also where rows of its prompt are kept. What is changed in place has to be said."""

    def written(lm: paceline.LanguageModel) -> list[int]:
        return list(lm.generate(list(range(3, 20)), method="lookup", max_new_tokens=24).tokens)

    model = build("llama").requires_grad_(False)
    lm = paceline.LanguageModel(load_quietly(model))
    before = written(lm)
    change(model)
    if forgets:
        lm.forget()
    now = written(lm)
    assert now == written(paceline.LanguageModel(load_quietly(model)))
    assert now != before


def test_a_text_of_a_batch_takes_no_rows_of_the_model_as_it_was() -> None:
    """Neither of a text that was begun before the change, nor those that it took itself while it waited."""
    model, prompt = build("llama").requires_grad_(False), list(range(3, 40))
    lm = paceline.LanguageModel(load_quietly(model))
    with lm.batch(at_once=2) as batch:
        begun = batch.add(prompt, method="plain", max_new_tokens=24)
        for _ in range(3):
            batch.step()
        replace_weights(model)
        joined = batch.add(prompt, method="plain", max_new_tokens=24)
        while len(batch):
            batch.step()
    own = paceline.LanguageModel(load_quietly(model)).generate(prompt, method="plain", max_new_tokens=24)
    assert (joined.result().tokens, joined.result().cached_tokens) == (own.tokens, 0)
    assert begun.result().tokens != own.tokens


def test_after_forgetting_a_change_is_noticed_and_a_hook_is_not_recorded() -> None:
    """Also where a text that is being written takes the model as it is first."""
    target = recorded(build("llama").requires_grad_(False), lean=True)
    before = scored_anew(target)
    target.model.get_decoder().layers[1].mlp.register_forward_hook(lambda *_: None)
    target.forget()
    assert target.own.obstacle == "a LlamaMLP is hooked"
    assert path_of(target).lean is not None
    assert not path_of(target).lean.ready()
    replace_weights(target.model)
    with pytest.warns(UserWarning, match="a LlamaMLP is hooked"):
        assert apart(scored_anew(target), before) > SEEN
