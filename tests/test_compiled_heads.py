"""Layers of heads in one compiled call: rows are those of the heads' own modules."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import paceline
from paceline.drafters.networks.block.head import BlockHead
from paceline.drafters.networks.block.network import BlockModel
from paceline.drafters.networks.block.shape import BlockShape
from paceline.drafters.networks.compiled import CompiledLinear, compile_linears
from paceline.drafters.networks.eagle.fitting import FittedEagle
from paceline.drafters.networks.eagle.head import EagleHead, EagleShape
from paceline.drafters.networks.eagle.model import EagleModel
from paceline.drafters.networks.layers import LayerShape
from paceline.drafters.networks.medusa.head import MedusaHeads, MedusaShape
from paceline.drafters.networks.medusa.network import MedusaNetwork
from paceline.drafters.networks.rotary import Rotary
from paceline.errors import InputError
from paceline.targets.base import Request, Target
from paceline.targets.hf.fused.weights import of_bytes, of_floats, product, rounded_product
from paceline.targets.hf.integers.linear import quantized
from paceline.tree import Ints

TEXT: Ints = np.array([5, 9, 77, 1234, 8000, 5, 9, 2])
WIDTH = 256
CLOSE = {"float32": 5e-3, "bfloat16": 3e-2}
"""A number next to a border between two integers of 8 bits may fall on either side."""
ROUNDED = 3e-2
"""By 8 bits."""
PARTS: dict[str, dict[str, Any]] = {
    "eagle": {"form": "eagle"},
    "eagle3": {"form": "eagle3"},
    "deep": {"form": "eagle3", "layers": 3, "windows": (0, 3, 0), "norm_output": True},
    "mtp": {"form": "mtp"},
}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def target(request: pytest.FixtureRequest) -> Target:
    found = paceline.load("pocket", dtype=request.param, generation_config=False).target
    if not found.compiled:
        pytest.skip("another kind of forward is faster on this machine")
    return found


def gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """As a share of the expected numbers."""
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def shown(count: int, target: Target) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randn(count, WIDTH, generator=random).to(getattr(torch, target.dtype))


def eagle(parts: dict[str, Any], target: Target) -> EagleModel:
    torch.manual_seed(3)
    layer = LayerShape(width=WIDTH, units=320, heads=4, kv_heads=2, head_size=32, head_norms=True, bias=True)
    shape = EagleShape(layer=layer, vocab_size=target.vocab_size, state_width=WIDTH, **parts)
    head = EagleHead(shape, Rotary.of({}, 32)).to(getattr(torch, target.dtype)).requires_grad_(False)
    for name, weight in head.named_parameters():
        if weight.ndim == 1:  # norms and biases that are not all alike
            torch.nn.init.uniform_(weight, 0.5, 1.5) if "norm" in name else torch.nn.init.normal_(weight)
    return EagleModel(FittedEagle(head, (1,), None, None), target)


def levels(model: EagleModel, target: Target) -> list[torch.Tensor]:
    """Logits of a text in two pieces, of two trees behind it side by side, and the keys of the first text."""
    states, found, rows = shown(len(TEXT), target), list[torch.Tensor](), [model.open(2), model.open(2)]
    for each in rows:
        each.show(0, states)
    for start, end in ((0, 3), (3, 8)):
        asked = [Request(each, TEXT[start:end], np.arange(-1, end - start - 1)) for each in rows]
        found += [scores.logits for scores in model.submit(asked).result()]
        for each in rows:
            each.keep(range(end - start))
    first, second = np.array([-1, -1]), np.array([-1, -1, 1, 0, 1])
    for tokens, parents, held in ((np.array([4, 6]), first, 0), (np.array([7, 8, 9]), second, 2)):
        found += [s.logits for s in model.submit([Request(each, tokens, parents, held=held) for each in rows]).result()]
    return [*found, *rows[0].layers[0].span(0, rows[0].committed)]


@pytest.mark.parametrize("kind", PARTS)
def test_rows_of_eagle_are_those_of_its_modules(kind: str, target: Target) -> None:
    model = eagle(PARTS[kind], target)
    assert model._compiled is not None
    found = levels(model, target)
    model._compiled = None
    for ours, theirs in zip(found, levels(model, target), strict=True):
        assert gap(ours, theirs) < CLOSE[target.dtype]


def test_a_tree_at_the_very_beginning_is_left_to_the_modules(target: Target) -> None:
    model = eagle(PARTS["eagle3"], target)
    rows = model.open(4)
    rows.show(0, shown(1, target))
    request = Request(rows, np.array([1, 2, 3]), np.array([-1, 0, 0]))
    assert model._compiled is not None
    assert not model._compiled.takes([request])
    assert model.submit([request]).result()[0].logits.isfinite().all()


def test_another_kind_of_attention_is_left_to_the_modules(target: Target) -> None:
    layer = LayerShape(width=WIDTH, units=64, heads=2, kv_heads=1, head_size=32, gated=True)
    shape = EagleShape(form="eagle", layer=layer, vocab_size=target.vocab_size, state_width=WIDTH)
    head = EagleHead(shape, Rotary.of({}, 32)).to(getattr(torch, target.dtype)).requires_grad_(False)
    assert EagleModel(FittedEagle(head, (1,), None, None), target)._compiled is None


@pytest.mark.parametrize("parts", [{}, {"causal": (True, True)}, {"taps": 2, "group": 4}], ids=str)
def test_blocks_are_those_of_their_modules(parts: dict[str, Any], target: Target) -> None:
    torch.manual_seed(3)
    layer = LayerShape(width=WIDTH, units=320, heads=4, kv_heads=2, head_size=32, head_norms=True)
    sizes: dict[str, Any] = {"windows": (None, None), "causal": (False, False), **parts}
    shape = BlockShape(layer=layer, vocab_size=8192, block=5, mask_token=3, states=(1, 2), **sizes)
    head = BlockHead(shape).to(getattr(torch, target.dtype)).requires_grad_(False)
    model = BlockModel(head, target)
    assert (model._compiled is None) == ("taps" in parts), "blocks with convolutions are left to their modules"

    def blocks() -> torch.Tensor:
        texts = [model.open(2) for _ in range(2)]
        joined = shown(len(TEXT), target).repeat(1, len(shape.states))
        for number, rows in enumerate(texts):
            count = len(TEXT) - 3 * number
            rows.show(0, model.taken(joined[:count]))
            model.submit([Request(rows, TEXT[:count], np.arange(-1, count - 1))])
            rows.keep(range(count))
        return model.blocks(texts, [7, 8])

    found = blocks()
    model._compiled = None
    assert gap(found, blocks()) < CLOSE[target.dtype]


def test_the_output_is_that_of_the_model(target: Target) -> None:
    states: Any = shown(5, target)
    assert gap(target.unembed(states), cast(Any, target).anatomy.logits(states)) < CLOSE[target.dtype]


def test_the_output_takes_states_of_the_models_width_alone(target: Target) -> None:
    kind = getattr(torch, target.dtype)
    assert target.unembed(torch.empty(0, WIDTH, dtype=kind)).shape == (0, target.vocab_size)
    for shape in ((3, WIDTH // 2), (3, 2 * WIDTH)):
        with pytest.raises(RuntimeError):
            target.unembed(torch.zeros(shape, dtype=kind))
    batch = torch.randn(2, 3, WIDTH).to(kind)
    found = target.unembed(batch)
    assert found.shape == (2, 3, target.vocab_size)
    assert gap(found.flatten(0, 1), target.unembed(batch.flatten(0, 1))) < CLOSE[target.dtype]


def test_a_narrow_head_without_an_output_is_refused() -> None:
    layer = LayerShape(width=WIDTH // 2, units=64, heads=4, kv_heads=2, head_size=32)
    with pytest.raises(InputError, match="cannot use the target's output, which reads states of 256"):
        EagleShape(form="eagle3", layer=layer, vocab_size=100, state_width=WIDTH, own_embedding=True)


@pytest.mark.parametrize("bias", [False, True])
def test_a_large_linear_layer_is_computed_in_integers(target: Target, bias: bool) -> None:
    torch.manual_seed(5)
    kind = getattr(torch, target.dtype)
    layer = nn.Linear(640, 512, bias=bias).to(kind).requires_grad_(False)
    small, whole = nn.Linear(64, 64), nn.Linear(640, 512)
    head = nn.ModuleList([nn.Sequential(layer, small), whole])
    compile_linears(head, [whole])
    [first, kept] = head[0]
    assert isinstance(first, CompiledLinear)
    assert kept is small
    assert head[1] is whole
    for shape in ((0, 640), (1, 640), (2, 3, 640), (40, 640)):
        rows = torch.randn(shape).to(kind)
        given = rows.clone()
        found, expected = first(rows), layer(rows)
        assert found.shape == expected.shape
        assert found.dtype == kind
        assert not len(rows) or gap(found, expected) < ROUNDED
        assert torch.equal(rows, given), "what it reads is not its own"


@pytest.mark.parametrize("inputs", [640, 641, 63])
def test_products_of_floats_are_those_of_their_integers(inputs: int) -> None:
    """Also where zeros are added to rows, of rows of zeros, and not of rows that are no numbers."""
    torch.manual_seed(6)
    weight, rows = torch.randn(40, inputs), torch.randn(5, inputs)
    rows[1], rows[3, 2] = 0.0, float("nan")
    integers, scales = quantized(weight)
    steps = rows.abs().amax(1, keepdim=True) / 127
    whole = (rows / steps).nan_to_num(0.0).round().double()
    found = rounded_product(rows, of_bytes(integers, scales))
    expected = (whole @ integers.double().T) * steps.nan_to_num(0.0) * scales
    assert found[3].isnan().all()
    assert gap(found[[0, 1, 2, 4]], expected[[0, 1, 2, 4]]) < 1e-6


def test_medusas_heads_may_be_matrices_alone(target: Target) -> None:
    """Then all of their weights are integers, and none is a parameter."""
    heads = MedusaHeads(MedusaShape(width=WIDTH, vocab_size=8192, heads=2, blocks=0)).requires_grad_(False)
    expected = heads(shown(3, target).float())
    compile_linears(heads, ())
    assert not list(heads.parameters())
    assert MedusaNetwork(heads, target).heads is heads
    assert gap(heads(shown(3, target).float()), expected) < ROUNDED


def test_products_do_not_lie_on_another_default_device() -> None:
    weight, rows = torch.randn(64, 64), torch.randn(3, 64)
    integers, floats, whole = of_bytes(*quantized(weight)), of_floats(weight), rows.round()
    assert floats is not None

    def found() -> list[torch.Tensor]:
        return [rounded_product(rows, integers), product(rows, floats), product(whole, integers)]

    with torch.device("meta"):
        elsewhere = found()
    assert all(map(torch.equal, elsewhere, found()))
