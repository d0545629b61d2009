"""Compiled forwards in floats: close to torch's operations, and each row alone what it is beside others."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import families
import paceline
from families import build
from paceline.targets import cache as cache_rows
from paceline.targets.base import NOTHING, Request, Want
from paceline.targets.hf.fused.path import Fused
from paceline.targets.hf.integers import kernels
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.path import ForwardJob
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree
from scoring import apart, filled, load_quietly, mixed_requests, random_tree, tokens
from thinning import crossed

FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
CLOSE = {torch.float32: 5e-5, torch.bfloat16: 0.5}
"""To torch's operations, in deviations of the logits: these round to bfloat16 after each, which is not done here."""
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])

if kernels.without_numba() is not None:
    pytest.skip(f"nothing is compiled here: {kernels.without_numba()}", allow_module_level=True)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    had = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(had)


OF_24 = "heads of 24"
"""Whole vectors of no processor: 8 numbers are left over where vectors have 16."""


def odd_model(dtype: torch.dtype) -> LlamaForCausalLM:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "num_hidden_layers": 3}
    sizes = {"hidden_size": 72, "intermediate_size": 104, "vocab_size": families.VOCAB, "max_position_embeddings": 512}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return LlamaForCausalLM(LlamaConfig(**heads, **sizes)).to(dtype).eval()


def compiled(name: str, dtype: torch.dtype) -> HFTarget:
    model = odd_model(dtype) if name == OF_24 else build(name, dtype)
    target = HFTarget(model.requires_grad_(False))
    target.compiles = True
    return prepare(target)


@cache
def target_of(name: str, dtype: torch.dtype = torch.float32) -> HFTarget:
    return compiled(name, dtype)


def paths_of(target: HFTarget) -> tuple[Fused, Lean]:
    fused, lean = target.paths[:2]
    assert isinstance(fused, Fused)
    assert type(lean) is Lean
    return fused, lean


def scored(target: HFTarget, path: Lean, want: Want = NOTHING) -> list[Tensor]:
    found = []
    with target.using(path):
        for scores in target.submit(mixed_requests(target, want)).result():
            found += [scores.logits, *(scores.hidden(layer) for layer in sorted(want.hidden))]
            if want.early_exit is not None:
                found.append(scores.early)
    return found


@pytest.mark.parametrize(
    ("name", "threads", "dtype"),
    crossed([*FAMILIES, OF_24], [1, 3], [torch.float32, torch.bfloat16]),
    indirect=["threads"],
)
@pytest.mark.parametrize(
    "want", [NOTHING, Want(hidden=frozenset({0, 1, 2}), early_exit=1)], ids=["logits", "hidden states"]
)
def test_it_finds_what_torchs_operations_find(want: Want, name: str, threads: int, dtype: torch.dtype) -> None:
    target = target_of(name, dtype)
    fused, lean = paths_of(target)
    for ours, theirs in zip(scored(target, fused, want), scored(target, lean, want), strict=True):
        assert ours.shape == theirs.shape
        assert apart(ours, theirs) < CLOSE[dtype]


@pytest.mark.parametrize("name", FAMILIES)
def test_it_rounds_less_than_torchs_operations(name: str) -> None:
    """To bfloat16 only keys and values."""
    target = target_of(name, torch.bfloat16)
    fused, lean = paths_of(target)
    wide = HFTarget(build(name, torch.bfloat16).requires_grad_(False).float())
    exact = [scores.logits for scores in wide.submit(mixed_requests(wide)).result()]
    off = [
        [apart(ours, right) for ours, right in zip(scored(target, path), exact, strict=True)] for path in (fused, lean)
    ]
    assert max(off[0]) < 0.1
    assert max(off[0]) < 0.5 * max(off[1])


@pytest.mark.parametrize(
    ("name", "threads", "dtype"),
    crossed([*FAMILIES, OF_24], [1, 3], [torch.float32, torch.bfloat16]),
    indirect=["threads"],
)
def test_a_row_has_the_same_bits_alone_and_beside_others(name: str, threads: int, dtype: torch.dtype) -> None:
    target = target_of(name, dtype)
    together = target.submit(mixed_requests(target)).result()
    for scores, request in zip(together, mixed_requests(target), strict=True):
        [apart_] = target.submit([request]).result()
        assert torch.equal(scores.logits, apart_.logits)
    tree, text = random_tree(3, 12), tokens(37, 1)
    whole = together[0].logits
    for node in range(len(tree)):
        line = [int(tree.tokens[place]) for place in path_to(tree, node)]
        [chain] = target.submit([Request.of_tree(filled(target, text), 5, DraftTree.chain(line))]).result()
        assert torch.equal(whole[node + 1], chain.logits[-1])
        rows = filled(target, text)
        for token in (5, *line):
            [step] = target.submit([Request.of_tree(rows, token, DraftTree.chain([]))]).result()
            rows.keep([0])
        assert torch.equal(whole[node + 1], step.logits[0])


def path_to(tree: DraftTree, node: int) -> list[int]:
    path = [node]
    while tree.parents[path[0]] >= 0:
        path.insert(0, int(tree.parents[path[0]]))
    return path


@DTYPES
def test_a_text_may_be_read_partly_by_torchs_operations(dtype: torch.dtype) -> None:
    """They keep the same rows."""
    target, text = target_of("llama", dtype), tokens(30, 1)
    paths = paths_of(target)
    found = []
    for first, second in itertools.product(paths, paths):
        rows = target.open()
        with target.using(first):
            target.submit([Request.of_prompt(rows, text)]).result()
            rows.keep(range(len(text)))
        with target.using(second):
            found.append(target.submit([Request.of_tree(rows, 3, random_tree(2))]).result()[0].logits)
    assert max(apart(each, found[0]) for each in found) < CLOSE[dtype]


def replace_a_norm(model: Any) -> None:
    norm = model.model.layers[0].input_layernorm
    norm.weight = nn.Parameter(norm.weight.detach() * 6.0, requires_grad=False)


def write_to_a_norm(model: Any) -> None:
    model.model.layers[0].input_layernorm.weight.mul_(6.0)


def replace_a_weight(model: Any) -> None:
    layer = model.model.layers[0].mlp.down_proj
    layer.weight = nn.Parameter(layer.weight.detach() * 6.0, requires_grad=False)


def write_to_a_weight(model: Any) -> None:
    model.model.layers[0].mlp.down_proj.weight.mul_(6.0)


def move_a_weight(model: Any) -> None:
    layer = model.model.layers[0].mlp.down_proj
    layer.weight.data = layer.weight.data * 6.0


def give_a_bias(model: Any) -> None:
    layer = model.model.layers[0].mlp.down_proj
    layer.bias = nn.Parameter(torch.full_like(layer.weight[:, 0], 6.0), requires_grad=False)


def write_through_data(model: Any) -> None:
    model.model.layers[0].input_layernorm.weight.data.mul_(6.0)


def write_to_the_embedding(model: Any) -> None:
    model.model.embed_tokens.weight.copy_(model.model.embed_tokens.weight.roll(1, 0))


def replace_a_layer(model: Any) -> None:
    model.model.layers[0].self_attn.o_proj = model.model.layers[1].self_attn.o_proj


def change_eps(model: Any) -> None:
    model.model.layers[0].input_layernorm.variance_epsilon = 50.0


def hook_a_layer(model: Any) -> None:
    model.model.layers[1].mlp.down_proj.register_forward_hook(lambda module, given, found: found.roll(1, -1))


def hook_the_embedding(model: Any) -> None:
    model.model.embed_tokens.register_forward_hook(lambda module, given, found: found.roll(1, -1))


def swap_the_activation(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn = nn.ReLU()


CHANGES = [
    *(replace_a_norm, write_to_a_norm, replace_a_weight, write_to_a_weight, move_a_weight, give_a_bias),
    *(
        write_through_data,
        write_to_the_embedding,
        replace_a_layer,
        change_eps,
        hook_a_layer,
        hook_the_embedding,
        swap_the_activation,
    ),
]


@DTYPES
@pytest.mark.parametrize("change", CHANGES)
def test_what_an_owner_changes_takes_effect(change: Any, dtype: torch.dtype) -> None:
    target = compiled("llama", dtype)
    before = [scores.logits for scores in target.submit(mixed_requests(target)).result()]
    change(target.model)
    after = [scores.logits for scores in target.submit(mixed_requests(target)).result()]
    with target.using(target.own):
        own = [scores.logits for scores in target.submit(mixed_requests(target)).result()]
    for was, ours, theirs in zip(before, after, own, strict=True):
        assert apart(ours, theirs) < 4 * CLOSE[dtype]
        assert apart(was, theirs) > 2 * apart(ours, theirs)


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (
            "in compiling",
            "a forward is left to torch, for numba does not compile it (SyntaxError: no such instruction)",
        ),
        ("in what it finds", "a forward is left to torch, for it finds other numbers than torch"),
    ],
)
def test_a_forward_that_is_wrong_here_is_left_to_torch(fails: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Fused._run

    def wrong(self: Fused, job: Any) -> Any:
        if fails == "in compiling":
            raise SyntaxError("no such instruction")
        found = run(self, job)
        if found.logits is not None:
            found.logits.mul_(1.01)
        return found

    monkeypatch.setattr(Fused, "_run", wrong)
    target = compiled("llama", torch.float32)
    assert type(target.paths[0]) is Lean
    assert target.note == said


def test_models_are_compiled_that_are_opened_by_name_and_no_others(tmp_path: Path) -> None:
    """A model that somebody else holds may be changed in ways that no table shows."""
    families.save("llama", tmp_path)
    assert isinstance(paceline.load(tmp_path, dtype="float32").target.paths[0], Fused)
    assert isinstance(paceline.load("pocket").target.paths[0], Fused)
    assert not any(isinstance(path, Fused) for path in load_quietly(build("llama")).paths)
    families.save("gpt2", tmp_path / "other")
    assert not any(isinstance(path, Fused) for path in paceline.load(tmp_path / "other", dtype="float32").target.paths)


def test_all_methods_write_the_same_text_bit_by_bit() -> None:
    """In float32, where other kernels round otherwise for other numbers of rows."""
    lm = paceline.load("pocket")
    found = {
        method: list(
            lm.stream("Once upon a time", max_new_tokens=40, seed=1, temperature=0.8, method=method, logprobs=0)
        )
        for method in ("plain", "lookup", "auto")
    }
    chosen = {
        method: [(one.token, one.logprob) for piece in pieces for one in (piece.logprobs,) if one is not None]
        for method, pieces in found.items()
    }
    assert len(chosen["plain"]) == 40
    assert chosen["plain"] == chosen["lookup"] == chosen["auto"]


def test_layers_of_unequal_size_are_left_to_torch() -> None:
    model = build("llama").requires_grad_(False)
    mlp = model.model.layers[1].mlp
    for name in ("gate_proj", "up_proj"):
        setattr(mlp, name, nn.Linear(model.config.hidden_size, 24, bias=False).requires_grad_(False))
    mlp.down_proj = nn.Linear(24, model.config.hidden_size, bias=False).requires_grad_(False)
    target = HFTarget(model)
    target.compiles = True
    prepare(target)
    assert type(target.paths[0]) is Lean
    assert target.note == "a forward is left to torch, for some layers are computed in another way"


def test_a_weight_of_another_size_than_its_layer_says_is_not_read() -> None:
    target = compiled("llama", torch.float32)
    fused = target.paths[0]
    head = target.model.lm_head
    head.weight = nn.Parameter(head.weight.detach()[:8].clone(), requires_grad=False)
    assert not fused.takes(ForwardJob([Request.of_prompt(target.open(), tokens(5))]))


def test_wider_layers_get_wider_memory() -> None:
    target = compiled("llama", torch.float32)
    wide = target.model.config.intermediate_size + 64
    for layer in target.model.model.layers:
        for name in ("gate_proj", "up_proj"):
            setattr(layer.mlp, name, nn.Linear(target.model.config.hidden_size, wide, bias=False).requires_grad_(False))
        layer.mlp.down_proj = nn.Linear(wide, target.model.config.hidden_size, bias=False).requires_grad_(False)
    fused, lean = paths_of(target)
    for ours, theirs in zip(scored(target, fused), scored(target, lean), strict=True):
        assert apart(ours, theirs) < CLOSE[torch.float32]


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_memory_that_grows_may_be_interrupted(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target, text = target_of("llama"), tokens(60, 1)
    rows, moved, calls = filled(target, text[:20]), cache_rows._moved, itertools.count(1)

    def interrupted(*given: Any) -> Tensor:
        if next(calls) == at:
            raise KeyboardInterrupt
        return moved(*given)

    monkeypatch.setattr(cache_rows, "_moved", interrupted)
    with pytest.raises(KeyboardInterrupt):
        target.submit([Request.of_prompt(rows, text[20:])]).result()
    rows.rewind(20)
    found = [target.submit([Request.of_prompt(rows, text[20:], ends_prompt=True)]).result()[0].logits]
    again = (
        target.submit([Request.of_prompt(filled(target, text[:20]), text[20:], ends_prompt=True)]).result()[0].logits
    )
    assert torch.equal(found[0], again)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_torchs_default_type_does_not_matter(kind: torch.dtype) -> None:
    wanted = paceline.load("pocket").generate("Once upon a time", max_new_tokens=12, seed=1).tokens
    torch.set_default_dtype(kind)
    try:
        assert paceline.load("pocket").generate("Once upon a time", max_new_tokens=12, seed=1).tokens == wanted
    finally:
        torch.set_default_dtype(torch.float32)


def test_without_a_compiler_torch_computes_and_a_note_says_so() -> None:
    script = "import paceline; t = paceline.load('pocket').target; print(type(t.paths[0]).__name__, t.note)"
    found = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
    )
    assert found.stdout.startswith("Lean a forward is left to torch, for numba does not compile it (")
