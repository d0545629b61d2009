"""The lean path finds what the model itself finds, takes what it knows, and leaves alone what it does not."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from changes import CHANGES, adapt
from families import FAMILIES, LLAMA, VOCAB, WINDOW, build
from paceline.targets.base import NOTHING, Request, Want
from paceline.targets.hf import lean as lean_path
from paceline.targets.hf import operations, variants
from paceline.targets.hf.joined import LinearSlice
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.own import Mode
from paceline.targets.hf.packed import PackedLinear, parameter_count
from paceline.targets.hf.path import ForwardJob
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.variants import VARIANTS
from paceline.targets.load import open_model
from paceline.targets.scores import Scores
from paceline.tree import ROOT, DraftTree
from scoring import (
    CLOSE,
    CONTEXT,
    SEEN,
    apart,
    filled,
    gap_to_own,
    load_quietly,
    native,
    packs,
    path_gaps,
    random_tree,
    score,
    scored_anew,
    tokens,
)
from thinning import crossed

KNOWN = ["llama", "mistral", "qwen2", "qwen3"]
TEXT = tokens(CONTEXT)
DTYPES = {torch.float32: 0.0, torch.float64: 1e-12, torch.bfloat16: 0.05, torch.float16: 0.01}
"""How far rows of both paths may lie apart, in deviations of the logits. Operations are the same, so in float32 not at
all; norms of narrower types are left a rounding, for kernels differ between machines."""

pytestmark = pytest.mark.usefixtures("not_compiled")
every_known = pytest.mark.parametrize("name", KNOWN)


def lean_of(target: HFTarget) -> Lean:
    found = [path for path in target.paths if isinstance(path, Lean)]
    assert len(found) == 1, "the lean path was not taken up at load"
    return found[0]


def is_taken(target: HFTarget) -> bool:
    job = ForwardJob([Request.of_prompt(target.open(), TEXT)])
    return any(isinstance(path, Lean) and path.takes(job) for path in target.paths)


def along(target: HFTarget, path: Any, requests: list[Request]) -> list[Scores]:
    """The scores of one path."""
    with target.using(path):
        return target.submit(requests).result()


def same(one: Tensor, other: Tensor, close: float) -> bool:
    return torch.equal(one, other) if close == 0 else apart(one, other) < close


# --- equal to the model's own forward -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@every_known
def test_every_row_and_state_is_the_models_own(name: str, dtype: torch.dtype) -> None:
    """Prompts with and without logits, chains, trees and single rows, packed in one forward, over three rounds."""
    target, close = load_quietly(build(name, dtype)), DTYPES[dtype]
    want = Want(hidden=frozenset({0, 1, 3}), early_exit=2)
    drafts = [random_tree(1), DraftTree.chain(tokens(7, 2)), DraftTree.chain([]), random_tree(3, 30)]
    found = []
    for path in (lean_of(target), target.own):
        shown, early = list[Tensor](), list[Tensor]()
        rows = [filled(target, TEXT[: CONTEXT - 5 * i]) for i in range(len(drafts))]
        for _ in range(3):
            requests = [
                Request.of_tree(r, 1, draft, want if i else NOTHING, on_early=early.append)
                for i, (r, draft) in enumerate(zip(rows, drafts, strict=True))
            ]
            fresh = [target.open(), target.open()]
            requests += [Request.of_prompt(fresh[0], TEXT), Request.of_prompt(fresh[1], TEXT[:9], Want(logits=True))]
            scores = along(target, path, requests)
            shown += [s.logits for i, s in enumerate(scores) if i != 4]
            shown += [s.hidden(layer) for s in scores[1:4] for layer in want.hidden]
            shown += [s.early for s in scores[1:4]]
            for row in rows:
                row.keep([0])
            for row in [*rows, *fresh]:
                row.check()
        found.append([*shown, *early])
    assert len(found[0]) == len(found[1]) > 30
    for ours, theirs in zip(*found, strict=True):
        assert same(ours, theirs, close)


@every_known
def test_a_level_is_scored_behind_held_rows(name: str) -> None:
    target = load_quietly(build(name))
    tree = DraftTree.build(tokens(6, 4), [ROOT, ROOT, 0, 1, 1, 3])
    whole = score(target, filled(target, TEXT), 1, tree)
    rows = filled(target, TEXT)
    parents = np.array([-1, 0, 0, 1, 2, 2, 4])
    levels = [(0, 3), (3, 6), (6, 7)]
    line = np.array([1, *tree.tokens])
    found = []
    for start, end in levels:
        request = Request(rows, line[start:end], parents[:end], held=start)
        found.append(along(target, lean_of(target), [request])[0].logits)
    assert apart(torch.cat(found), whole) < CLOSE
    rows.keep([0, 2, 4])
    rows.check()


@every_known
def test_a_prompt_that_wants_nothing_leaves_the_rows_that_the_model_would(name: str) -> None:
    """Its last layer only writes keys and values."""
    target = load_quietly(build(name))
    scored = []
    for path in (lean_of(target), target.own):
        rows = target.open()
        along(target, path, [Request.of_prompt(rows, TEXT)])
        rows.keep(range(len(TEXT)))
        rows.check()
        scored.append(score(target, rows, 1, random_tree(2)))
        rows.check()
    assert torch.equal(*scored)


def test_a_prompt_may_be_asked_for_its_last_state_alone() -> None:
    target = load_quietly(build("llama"))
    want = Want(hidden=frozenset({3}))
    ours, theirs = (
        along(target, path, [Request.of_prompt(target.open(), TEXT, want)])[0].hidden(3)
        for path in (lean_of(target), target.own)
    )
    assert torch.equal(ours, theirs)


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


@pytest.mark.parametrize("kind", ROPES)
def test_rotations_that_follow_the_position_alone_are_kept_in_tables(kind: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(lean_path, "TABLE", 8)
    target = load_quietly(build("llama", rope_parameters=ROPES[kind]))
    text, tree = tokens(300, 5), random_tree(4)
    for length in (5, 300, 40):
        rows = filled(target, text[:length])
        ours = along(target, lean_of(target), [Request.of_tree(rows, 1, tree)])[0].logits
        rows.keep([])
        assert torch.equal(ours, along(target, target.own, [Request.of_tree(rows, 1, tree)])[0].logits)


def test_rotations_that_follow_the_forward_are_left_to_the_model() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    target = load_quietly(build("llama", rope_parameters=rope, max_position_embeddings=64))
    assert not is_taken(target)


RELATIVES: dict[str, dict[str, Any]] = {
    "ministral": {"sliding_window": WINDOW, "head_dim": 16},
    "llama": {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu", "num_key_value_heads": 1},
    "qwen3": {"attention_bias": True, "head_dim": 32, "num_key_value_heads": 4, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("model_type", RELATIVES)
def test_relatives_and_options(model_type: str) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **(LLAMA | RELATIVES[model_type] | {"vocab_size": VOCAB}))
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    target, tree = load_quietly(model.eval()), random_tree(5)
    rows = filled(target, TEXT)
    ours = along(target, lean_of(target), [Request.of_tree(rows, 1, tree)])[0].logits
    assert path_gaps(model, ours, TEXT, 1, tree) < CLOSE


@pytest.mark.parametrize(
    ("name", "dtype"), crossed(["pocket", "pocket-draft", "pocket+ballast:20M"], ["float32", "bfloat16"])
)
def test_bundled_models_go_this_way(name: str, dtype: str) -> None:
    target, _ = open_model(name, dtype=dtype)
    rows, tree = filled(target, TEXT), random_tree(6)
    ours = along(target, lean_of(target), [Request.of_tree(rows, 1, tree)])[0].logits
    rows.keep([])
    theirs = along(target, target.own, [Request.of_tree(rows, 1, tree)])[0].logits
    assert is_taken(target)
    assert torch.equal(ours, theirs) if dtype == "float32" else apart(ours, theirs) < 0.05


# --- what its owner does to a model -------------------------------------------------------------------------


def hook_a_linear_layer(model: Any) -> None:
    model.model.layers[1].mlp.up_proj.register_forward_hook(lambda module, given, output: 2 * output)


def hook_the_head(model: Any) -> None:
    model.lm_head.register_forward_pre_hook(lambda module, given: (given[0] + 1,))


def change_the_embedding(model: Any) -> None:
    model.model.embed_tokens.register_forward_hook(lambda module, given, output: output.flip(-1))


SEEN_CHANGES = [*CHANGES, adapt, hook_a_linear_layer, hook_the_head, change_the_embedding]


class OtherNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states).flip(-1)


class OtherMLP(LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


class OtherAttention(LlamaAttention):
    def forward(self, *given: Any, **options: Any) -> Any:
        output, weights = super().forward(*given, **options)
        return -output, weights


def subclass_a_norm(model: Any) -> None:
    norm = OtherNorm(64)
    norm.load_state_dict(model.model.norm.state_dict())
    model.model.norm = norm


def subclass_an_mlp(model: Any) -> None:
    mlp = OtherMLP(model.config)
    mlp.load_state_dict(model.model.layers[0].mlp.state_dict())
    model.model.layers[0].mlp = mlp.eval()


def subclass_an_attention(model: Any) -> None:
    attention = OtherAttention(model.config, 2)
    attention.load_state_dict(model.model.layers[2].self_attn.state_dict())
    model.model.layers[2].self_attn = attention.eval()


def hook_a_layer(model: Any) -> None:
    model.model.layers[1].register_forward_hook(lambda module, given, output: 2 * output)


def hook_an_mlp(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_pre_hook(lambda module, given: (2 * given[0],))


def wrap_a_forward(model: Any) -> None:
    norm = model.model.layers[0].post_attention_layernorm
    honest = norm.forward
    norm.forward = lambda states: -honest(states)


def wrap_the_model(model: Any) -> None:
    honest = model.model.forward

    def stretched(position_ids: Tensor, **inputs: Any) -> Any:
        return honest(position_ids=2 * position_ids, **inputs)

    model.model.forward = stretched


def drop_a_layer(model: Any) -> None:
    model.config.num_hidden_layers = 2


STRANGE_CHANGES: list[Callable[[Any], None]] = [
    subclass_a_norm,
    subclass_an_mlp,
    subclass_an_attention,
    hook_a_layer,
    hook_an_mlp,
    wrap_a_forward,
    wrap_the_model,
    drop_a_layer,
]


@pytest.mark.parametrize("change", SEEN_CHANGES)
def test_a_model_changed_after_load_is_computed_as_it_is_now(change: Callable[[Any], None]) -> None:
    target = load_quietly(build("llama").requires_grad_(False))
    before = scored_anew(target)
    change(target.model)
    assert is_taken(target)
    assert gap_to_own(target) < CLOSE
    assert apart(scored_anew(target), before) > SEEN


@pytest.mark.parametrize("change", STRANGE_CHANGES)
def test_what_is_strange_is_left_to_the_model(change: Callable[[Any], None]) -> None:
    target = load_quietly(build("llama").requires_grad_(False))
    before = scored_anew(target)
    assert is_taken(target)
    change(target.model)
    assert not is_taken(target)
    assert gap_to_own(target) == 0
    assert apart(scored_anew(target), before) > SEEN


@pytest.mark.parametrize("change", [c for c in STRANGE_CHANGES if c not in (wrap_the_model, drop_a_layer)])
def test_what_is_strange_from_the_start_is_left_to_the_model(change: Callable[[Any], None]) -> None:
    model = build("llama").requires_grad_(False)
    change(model)
    assert not is_taken(load_quietly(model))


def test_a_hook_that_is_taken_off_opens_the_path_again() -> None:
    target = load_quietly(build("qwen3"))
    hook = target.model.get_decoder().layers[0].register_forward_hook(lambda *_: None)
    assert not is_taken(target)
    hook.remove()
    assert is_taken(target)
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not is_taken(target)
    everywhere.remove()
    assert is_taken(target)


def test_functions_replaced_in_the_models_file_close_the_path_until_they_are_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = load_quietly(build("llama"))
    norm, turn = LlamaRMSNorm.forward, modeling_llama.apply_rotary_pos_emb

    def faster(query: Tensor, *others: Any, **options: Any) -> Any:
        return turn(2 * query, *others, **options)

    for place, name, change in (
        (LlamaRMSNorm, "forward", lambda self, states: -norm(self, states)),
        (modeling_llama, "apply_rotary_pos_emb", faster),
        (modeling_llama, "LlamaRotaryEmbedding", nn.Identity),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, change)
            assert not is_taken(target)
            assert gap_to_own(target) == 0
        assert is_taken(target)
    monkeypatch.setattr(modeling_llama, "__warningregistry__", {}, raising=False)
    assert is_taken(target)


def test_a_refusal_is_remembered_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    target, looks = load_quietly(build("llama")), list[Any]()
    honest = variants._computed

    def counted(model: Any, kind: Any) -> Any:
        looks.append(model)
        return honest(model, kind)

    monkeypatch.setattr(variants, "_computed", counted)
    layers = target.model.get_decoder().layers
    hook = layers[1].mlp.register_forward_hook(lambda *_: None)
    for _ in range(3):
        assert not is_taken(target)
    layers[1].mlp.up_proj.register_forward_hook(lambda *_: None)
    assert not is_taken(target)
    hook.remove()
    for _ in range(3):
        assert is_taken(target)
    assert len(looks) == 3, "once for each change"
    part, layers[2]._modules["self_attn"] = layers[2].self_attn, None
    assert not is_taken(target)
    del layers[2]._modules["self_attn"]
    for _ in range(3):
        assert not is_taken(target)
    layers[2].self_attn = part
    assert is_taken(target)


def test_rows_may_be_read_along_one_path_and_drafted_for_along_the_other() -> None:
    """A pruned model still numbers its layers as they once stood, and so do its rows."""
    model = build("llama").requires_grad_(False)
    model.model.layers = nn.ModuleList([model.model.layers[2], model.model.layers[0]])
    model.config.num_hidden_layers = 2
    target, tree = load_quietly(model), random_tree(7)
    rows = filled(target, TEXT)
    assert is_taken(target)
    ours = score(target, rows, 1, tree)
    rows.keep([])
    theirs = along(target, target.own, [Request.of_tree(rows, 1, tree)])[0].logits
    assert torch.equal(ours, theirs)
    assert path_gaps(model, ours, TEXT, 1, tree) < CLOSE


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_cast_in_inference_mode_goes_this_way(dtype: torch.dtype) -> None:
    target = load_quietly(build("llama").requires_grad_(False))
    score(target, filled(target, TEXT), 1)
    with torch.inference_mode():
        target.model.to(dtype)
    assert is_taken(target)
    assert gap_to_own(target) < (1e-12 if dtype is torch.float64 else 0.05)


def test_what_breaks_after_load_is_told_once_and_left_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Tensor:
        raise KeyError("weight")

    target, tree = load_quietly(build("llama")), random_tree(7)
    rows = filled(target, TEXT)
    expected = along(target, target.own, [Request.of_tree(rows, 1, tree)])[0].logits
    rows.keep([])
    monkeypatch.setattr(operations, "_rotated", broken)
    with pytest.warns(UserWarning, match="layers are left to transformers, .*: KeyError: 'weight'"):
        assert torch.equal(score(target, rows, 1, tree), expected)
    rows.check()
    rows.keep([])
    assert not is_taken(target)
    assert torch.equal(score(target, rows, 1, tree), expected)


def test_an_error_that_is_the_models_own_is_raised() -> None:
    target = load_quietly(build("llama"))

    def refuse(*_: Any) -> None:
        raise ValueError("not today")

    hook = target.model.lm_head.register_forward_hook(refuse)
    with pytest.raises(ValueError, match="not today"):
        score(target, filled(target, TEXT), 1)
    hook.remove()
    assert is_taken(target)


def test_other_structures_and_other_modes_go_the_models_own_way() -> None:
    for name in sorted(FAMILIES.keys() - set(KNOWN)):
        assert Lean.of(HFTarget(build(name)).own) is None
    target = load_quietly(build("llama"))
    target.own.mode = Mode.MASKED
    assert not is_taken(target)


def test_a_name_alone_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    home = "transformers.models.llama.modeling_llama"
    assert home in VARIANTS
    double = type("LlamaForCausalLM", (type(model),), {"__module__": home})
    model.__class__ = double
    assert not is_taken(load_quietly(model))


# --- the probe ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_disagree_at_load_close_the_path(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = operations._rotated
    monkeypatch.setattr(operations, "_rotated", lambda heads, turns: honest(heads, (turns[0], -turns[1])))
    target = load_quietly(build("llama", dtype))
    assert not is_taken(target)
    tree = random_tree(8)
    assert path_gaps(target.model, score(target, filled(target, TEXT), 1, tree), TEXT, 1, tree) < 0.1


@pytest.mark.parametrize("error", [RuntimeError, KeyError, TypeError])
def test_a_path_that_breaks_at_load_is_closed(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Tensor:
        raise error("no such kernel")

    monkeypatch.setattr(operations, "_rotated", broken)
    assert not is_taken(load_quietly(build("llama")))


def test_positions_beyond_the_trained_ones_are_rotated_as_the_model_turns_them() -> None:
    target = load_quietly(build("llama", max_position_embeddings=64))
    text = tokens(200, 9)
    assert apart(score(target, filled(target, text), 1), native(target.model, np.append(text, 1))[-1:]) < CLOSE


# --- layers that are joined ---------------------------------------------------------------------------------


def joinable(dtype: torch.dtype = torch.float32, width: int = 256) -> Any:
    """A model as the engine would load it, whose layers are large enough to be packed, or not."""
    shape = {"hidden_size": width, "intermediate_size": width + 64, "tie_word_embeddings": True}
    return HFTarget(build("llama", dtype, **shape).requires_grad_(False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 256])
def test_joined_layers_lose_nothing(dtype: torch.dtype, width: int) -> None:
    plain, target = joinable(dtype, width), joinable(dtype, width)
    fingerprint, weights = plain.fingerprint(), plain.model.state_dict()
    count = parameter_count(plain.model)
    target.pack()
    attention = target.model.model.layers[0].self_attn
    joined = width == 64 or packs(dtype)  # so narrow a layer is joined without being packed
    assert isinstance(attention.k_proj, LinearSlice) is joined
    assert target.fingerprint() == fingerprint
    assert parameter_count(target.model) == count
    twin = copy.deepcopy(target.model)
    assert not any(isinstance(module, PackedLinear) for module in twin.modules())
    for held in (target.model.state_dict(), twin.state_dict()):
        assert held.keys() == weights.keys()
        assert all(torch.equal(held[name], weight) for name, weight in weights.items())
    if not joined:
        return
    with pytest.raises(ValueError, match="packed for this CPU"):
        attention.k_proj.weight.zero_()
    assert torch.equal(attention.k_proj.weight, weights["model.layers.0.self_attn.k_proj.weight"])
    with pytest.raises(ValueError, match="packed for this CPU"):
        target.model.to(torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 256])
def test_joined_layers_find_what_they_found(dtype: torch.dtype, width: int) -> None:
    plain, target = prepare(joinable(dtype, width)), prepare(joinable(dtype, width).pack())
    tree = random_tree(9)
    expected = score(plain, filled(plain, TEXT), 1, tree)
    for path in (lean_of(target), target.own):
        rows = filled(target, TEXT)
        found = along(target, path, [Request.of_tree(rows, 1, tree)])[0].logits
        assert apart(found, expected) < (CLOSE if dtype is torch.float32 else 0.2)
    assert is_taken(target)


def test_a_joined_layer_that_is_called_by_itself_is_computed_from_its_own_rows() -> None:
    target = joinable().pack()
    attention = target.model.model.layers[0].self_attn
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    one, other = torch.randn(2, 1, 3, 256)
    expected = [layer(one).clone() for layer in (query, key, value)]
    query(one)
    key(other)
    assert torch.equal(value(one), expected[2])
    for write in (one.mul_, one.data.mul_, one.numpy().__imul__):
        query(one)
        write(2)
        torch.testing.assert_close(key(one), 2 * expected[1])
        one.div_(2)
    with torch.inference_mode():
        rows = one.clone()
        assert torch.equal(query(rows), expected[0])
        rows.mul_(2)
        torch.testing.assert_close(key(rows), 2 * expected[1])


def test_a_joined_layer_that_is_called_by_itself_keeps_no_rows_and_no_gradients() -> None:
    target = joinable(width=64).pack()
    attention = target.model.model.layers[0].self_attn
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        layer.joint.layer.requires_grad_(True)
    rows = torch.randn(1, 3, 64)
    with torch.no_grad():
        attention.q_proj(rows)
    assert attention.k_proj(rows).requires_grad
    gone = weakref.ref(rows)
    attention.q_proj(rows)
    del rows
    gc.collect()
    assert gone() is None


def test_a_hooked_share_is_called() -> None:
    target = prepare(joinable().pack())
    before = scored_anew(target)
    layer = target.model.model.layers[1]
    hooks = [
        layer.self_attn.k_proj.register_forward_hook(lambda module, given, output: 2 * output),
        layer.mlp.gate_proj.register_forward_pre_hook(lambda module, given: (given[0] + 1,)),
    ]
    replaced = target.model.model.layers[0].self_attn.v_proj
    honest, replaced.forward = replaced.forward, lambda rows: -honest(rows)
    assert is_taken(target)
    assert gap_to_own(target) == 0
    assert apart(scored_anew(target), before) > SEEN
    assert not any(part.qkv_joint and part.gate_up_joint for part in lean_of(target).modules.layers[:2])
    for hook in hooks:
        hook.remove()
    del replaced.forward
    assert is_taken(target)
    assert all(part.qkv_joint and part.gate_up_joint for part in lean_of(target).modules.layers)
    assert torch.equal(scored_anew(target), before)


def test_what_cannot_be_joined_stays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("qwen2", hidden_size=256, intermediate_size=320).requires_grad_(False)
    HFTarget(model).pack()
    assert type(model.model.layers[0].self_attn.q_proj) is PackedLinear
    assert isinstance(model.model.layers[0].mlp.gate_proj, LinearSlice)
    other = build("gemma2", hidden_size=256, intermediate_size=320).requires_grad_(False)
    HFTarget(other).pack()
    assert not any(isinstance(module, LinearSlice) for module in other.modules())
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    target = joinable().pack()
    assert not any(isinstance(module, PackedLinear) for module in target.model.modules())


def test_angles_for_two_types_in_turn_are_computed_once_for_each() -> None:
    """A table that grew with each change of type soon took all memory: streams of a draft model are another type."""
    rotary = modeling_llama.LlamaRotaryEmbedding(
        AutoConfig.for_model("llama", hidden_size=32, num_attention_heads=2, num_key_value_heads=1)
    )
    table = lean_path.RotaryTable()
    positions = torch.arange(5)
    for turn in range(40):
        like = torch.empty(0, dtype=(torch.float32, torch.bfloat16)[turn % 2])
        found = table.at(positions, 5, rotary, like)
        wanted = lean_path.cos_sin_at(positions, rotary, like)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        assert len(table.upto(5, rotary, like)) == lean_path.TABLE
    assert len(table.upto(lean_path.TABLE + 1, rotary, like)) == 2 * lean_path.TABLE
