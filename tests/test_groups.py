"""Weights rounded to 4 bits: what a group is, what is lost, and what cannot be had in 4 bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import families
import paceline
from paceline.errors import InputError
from paceline.targets.hf.integers import groups, kernels
from paceline.targets.hf.integers.groups import in_groups
from paceline.targets.hf.integers.linear import Int4Linear

if kernels.obstacle() is not None:
    pytest.skip(f"nothing is compiled here: {kernels.obstacle()}", allow_module_level=True)


def restored(weight: torch.Tensor) -> torch.Tensor:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight
    return Int4Linear(layer).unpacked_weight()


@pytest.mark.parametrize("inputs", [32, 96, 512, 1056])
def test_it_loses_no_more_than_half_a_step_of_each_group(inputs: int) -> None:
    weight = torch.randn(24, inputs)
    weight[:, 5] *= 20.0
    values, multipliers, scales = in_groups(weight)
    assert int(values.min()) >= -8
    assert int(values.max()) <= 7
    steps = (multipliers * scales[:, None]).abs()
    numbers = torch.arange(inputs)
    own = steps[:, numbers // 512 * 16 + numbers % 32 // 2]
    off = (restored(weight) - weight).abs()
    inside = off <= 0.5001 * own
    cut_off = (values == 7) | (values == -8)
    assert bool((inside | cut_off).all())
    assert float(off[cut_off].max()) < 1.5 * float(own.max())


def test_it_loses_as_little_as_a_float_for_each_group() -> None:
    """Of 32 neighbours, as llama.cpp's Q4_0 has it."""
    weight = torch.randn(256, 1024)
    parts = weight.view(256, -1, 32)
    steps = (parts.gather(2, parts.abs().argmax(2, keepdim=True)) / -8).half().float()
    theirs = (parts / steps).round().clamp(-8, 7) * steps
    lost = (theirs.view_as(weight) - weight).square().mean()
    assert float((restored(weight) - weight).square().mean()) < 1.02 * float(lost)


def test_zeros_stay_zeros_and_groups_stand_alone() -> None:
    weight = torch.randn(8, 128)
    weight[3] = 0.0
    weight[5, groups_of_first(128)] = 0.0
    found = restored(weight)
    assert bool((found[3] == 0).all())
    assert bool((found[5, groups_of_first(128)] == 0).all())


def groups_of_first(inputs: int) -> torch.Tensor:
    numbers = torch.arange(inputs)
    return (numbers // groups.SPAN == 0) & (numbers % (2 * groups.PAIRS) // 2 == 0)


def test_a_model_in_4_bits_says_so_and_its_head_has_8() -> None:
    lm = paceline.load("pocket", quantize="int4")
    assert lm.target.dtype == "int4"
    model = lm.target.model
    assert isinstance(model.model.layers[0].mlp.down_proj, Int4Linear)
    assert not isinstance(model.lm_head, Int4Linear)
    texts = {
        method: lm.generate("The old house", max_new_tokens=24, temperature=0.8, seed=2, method=method).tokens
        for method in ("plain", "auto", "lookup")
    }
    assert texts["plain"] == texts["auto"] == texts["lookup"]


def test_what_4_bits_cannot_be_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("paceline.targets.hf.integers.target.without_numba", lambda: "numba is not installed")
        with pytest.raises(InputError, match="quantize=int4 needs compiled products, and numba is not installed"):
            paceline.load("pocket", quantize="int4")
    families.save("gpt2", tmp_path)
    with pytest.raises(InputError, match="linear layers hold 0% of its weights"):
        paceline.load(tmp_path, quantize="int4")


def test_products_that_are_wrong_here_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.CompiledNibbles.__call__

    def wrong(self: kernels.CompiledNibbles, rows: torch.Tensor) -> torch.Tensor:
        return right(self, rows) + (len(rows) == 5)

    assert kernels.obstacle_to_nibbles() is None
    kernels.obstacle_to_nibbles.cache_clear()
    monkeypatch.setattr(kernels.CompiledNibbles, "__call__", wrong)
    try:
        with pytest.raises(InputError, match="compiles wrong sums; use quantize=int8"):
            paceline.load("pocket", quantize="int4")
    finally:
        kernels.obstacle_to_nibbles.cache_clear()
