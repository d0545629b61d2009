"""Packed weights: the same values in another order, and ordinary again in copies and state dicts."""

import copy
import operator
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine import write
from families import build
from paceline.drafters import make_drafter
from paceline.targets.base import Request, Want
from paceline.targets.hf import packed as packing
from paceline.targets.hf.joined import LinearSlice
from paceline.targets.hf.load import load_target
from paceline.targets.hf.packed import PackedLinear, ReadOnlyWeight, pack, parameter_count
from paceline.targets.hf.target import HFTarget
from paceline_lab.check.rescore import wider_twin
from scoring import CLOSE, CONTEXT, apart, filled, packs, path_gaps, random_tree, score, tokens
from thinning import crossed

pytestmark = pytest.mark.usefixtures("not_compiled")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def layered(dtype: torch.dtype = torch.float32, *, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 384, bias=bias), nn.Linear(384, 128, bias=bias)).to(dtype).requires_grad_(False)


@pytest.fixture(autouse=True)
def small_layers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SMALLEST", dict.fromkeys(packing.SMALLEST, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build("llama").save_pretrained(tmp_path)
    return tmp_path


@DTYPES
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_a_packed_layer_finds_what_the_ordinary_one_finds(dtype: torch.dtype, bias: bool, rows: int) -> None:
    ordinary, packed = layered(dtype, bias=bias), layered(dtype, bias=bias)
    assert pack(packed) is packs(dtype)
    assert {isinstance(layer, PackedLinear) for layer in packed} == {packs(dtype)}
    states = torch.randn(1, rows, 256, dtype=dtype)
    torch.testing.assert_close(packed(states), ordinary(states))


@DTYPES
def test_no_value_is_lost(dtype: torch.dtype) -> None:
    ordinary, packed = layered(dtype), layered(dtype)
    pack(packed)
    for name, weight in ordinary.state_dict().items():
        assert torch.equal(packed.state_dict()[name], weight)
    twin = copy.deepcopy(packed)
    assert [type(layer) for layer in twin] == [nn.Linear, nn.Linear]
    assert torch.equal(twin[0].weight, ordinary[0].weight)
    assert parameter_count(packed) == parameter_count(ordinary) == parameter_count(twin)


def test_a_model_the_engine_loads_is_packed_and_keeps_its_fingerprint(folder: Path) -> None:
    target, own = load_target(folder), load_target(build("llama"))
    assert any(isinstance(module, PackedLinear) for module in target.model.modules())
    assert target.fingerprint() == own.fingerprint()
    text, tree = tokens(CONTEXT), random_tree(3)
    logits = score(target, filled(target, text), 5, tree)
    assert path_gaps(own.model, logits, text, 5, tree) < CLOSE
    assert apart(logits, score(own, filled(own, text), 5, tree)) < CLOSE


def test_a_model_handed_over_is_left_as_it_is() -> None:
    model = build("llama")
    load_target(model)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())


def test_states_and_early_exits_are_read_from_packed_models_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = Want(hidden=frozenset({1}), early_exit=1)
    tree, found = random_tree(2), []
    targets = [load_target(folder), load_target(build("llama"))]
    monkeypatch.setattr(PackedLinear, "weight", property(lambda layer: pytest.fail("a forward unpacks nothing")))
    for target in targets:
        rows = filled(target, tokens(CONTEXT))
        found.append(target.submit([Request.of_tree(rows, 3, tree, want)]).result()[0])
    packed, ordinary = found
    assert apart(packed.early, ordinary.early) < CLOSE
    assert apart(packed.hidden(1), ordinary.hidden(1)) < CLOSE


def test_the_text_is_the_same(folder: Path) -> None:
    texts = [
        write(target, tokens(20).tolist(), make_drafter("lookup"), max_new_tokens=60).context.emitted.tolist()
        for target in (load_target(folder), load_target(build("llama")))
    ]
    assert texts[0] == texts[1]


def test_the_wider_twin_of_a_packed_model_is_ordinary(tmp_path: Path) -> None:
    build("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    twin = wider_twin(load_target(tmp_path))
    assert isinstance(twin, HFTarget)
    assert twin.dtype == "float32"
    assert not any(isinstance(module, PackedLinear) for module in twin.model.modules())
    assert next(iter(twin.model.parameters())).dtype is torch.float32


def test_a_machine_that_cannot_pack_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = layered()
    assert not pack(model)
    assert all(type(layer) is nn.Linear for layer in model)


def test_kernels_that_find_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, rows: honest(self, rows) * 1.01)
    assert not pack(layered())


def test_layers_with_ways_of_their_own_are_left_alone() -> None:
    class Scaled(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return super().forward(rows) * 2

    model = nn.Sequential(Scaled(64, 64), nn.Linear(64, 64).double())
    assert not pack(model)
    hooked = layered()
    hooked[0].register_forward_hook(lambda *_: None)
    assert pack(hooked)
    assert [type(layer) for layer in hooked] == [nn.Linear, PackedLinear]


def test_a_model_that_is_not_all_in_memory_is_left_alone() -> None:
    model = layered()
    model[1].to("meta")
    assert not pack(model)


def test_one_layer_at_a_time() -> None:
    """The ordinary weight is gone before the next is packed, so a model needs its own memory and no more."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(5))).requires_grad_(False)
    alive = [weakref.ref(layer) for layer in model]
    counts = []
    honest = packing._tried

    def counting(layer: nn.Linear, **options: bool) -> PackedLinear | None:
        counts.append(sum(ref() is not None for ref in alive))
        return honest(layer, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_tried", counting)
        pack(model)
    assert counts[-1] <= 2 < counts[0]


def test_tied_weights_are_counted_once(tmp_path: Path) -> None:
    model = build("llama")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path)
    target = load_target(tmp_path)
    assert isinstance(target.model.lm_head, PackedLinear)
    assert parameter_count(target.model) == sum(weight.numel() for weight in model.parameters())
    assert target.fingerprint() == load_target(model).fingerprint()


def test_a_changed_weight_changes_the_fingerprint(folder: Path) -> None:
    target = load_target(folder)
    before = target.fingerprint()
    next(target.model.parameters()).data.add_(1)
    assert target.fingerprint() != before


@pytest.mark.parametrize("change", [lambda m: m.double(), lambda m: m.load_state_dict(m.state_dict())])
def test_whoever_would_change_packed_weights_is_told(change: Callable[[nn.Module], object], folder: Path) -> None:
    with pytest.raises(ValueError, match="load it with transformers, change it, and hand it over"):
        change(load_target(folder).model)


WRITES: dict[str, Callable[[nn.Module], object]] = {
    "in place": lambda layer: layer.weight.zero_(),
    "past autograd": lambda layer: layer.weight.data.mul_(2),
    "to a view": lambda layer: layer.weight.detach()[3:].view(-1).add_(1),
    "to a part": lambda layer: layer.weight.chunk(2)[0].fill_(0),
    "by index": lambda layer: operator.setitem(layer.weight, 0, 0.0),
    "by operator": lambda layer: operator.isub(layer.weight, 1),
    "as result": lambda layer: torch.add(layer.weight, 1, out=layer.weight),
    "by initialisation": lambda layer: nn.init.zeros_(layer.weight),
    "of other data": lambda layer: setattr(layer.weight, "data", torch.zeros_like(layer.weight)),
    "of another tensor": lambda layer: setattr(layer, "weight", torch.zeros_like(layer.weight)),
    "of another parameter": lambda layer: setattr(layer, "weight", nn.Parameter(torch.zeros(1))),
}


@pytest.mark.parametrize(("write", "mode"), crossed(WRITES, [torch.enable_grad, torch.no_grad, torch.inference_mode]))
def test_a_weight_that_is_only_shown_cannot_be_written_to(write: str, mode: Any, folder: Path) -> None:
    model: Any = load_target(folder).model
    alone, joined = model.lm_head, model.model.layers[0].self_attn.q_proj
    assert (type(alone), type(joined)) == (PackedLinear, LinearSlice)
    for layer in (alone, joined):
        with mode(), pytest.raises(ValueError, match="load it with transformers, change it, and hand it over"):
            WRITES[write](layer)


def test_what_is_made_of_a_shown_weight_is_ordinary() -> None:
    ordinary, packed = layered(), layered()
    pack(packed)
    weight, plain = packed[0].weight, ordinary[0].weight
    made = [weight * 2, weight.clone(), weight.bfloat16(), weight @ weight.T, copy.deepcopy(weight)]
    made.append(pickle.loads(pickle.dumps(weight)))
    assert {type(tensor) for tensor in made} == {torch.Tensor}
    made[-1].zero_()
    target = torch.empty_like(plain)
    target.copy_(weight)
    target += weight
    assert torch.equal(target, 2 * plain)
    assert [type(row) for row in weight[:2]] == [ReadOnlyWeight, ReadOnlyWeight]
    assert torch.equal(packed[0].weight, plain)


def test_tensors_of_a_state_dict_are_copies_and_parameters_leave_packed_weights_out(folder: Path) -> None:
    model = load_target(folder).model
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for name, weight in model.state_dict().items():
        if name.endswith("_proj.weight"):
            weight.zero_()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert parameter_count(model) == sum(weight.numel() for weight in before.values()) > model.num_parameters()


def test_a_packed_model_can_be_saved_and_pickled(folder: Path, tmp_path: Path) -> None:
    target = load_target(folder)
    target.model.save_pretrained(tmp_path / "again")
    assert load_target(tmp_path / "again").fingerprint() == target.fingerprint()
    layer = pickle.loads(pickle.dumps(target.model.lm_head))
    assert type(layer) is nn.Linear
    assert torch.equal(layer.weight, target.model.lm_head.weight)
