"""The rows of the `hf` target, and how little it leaves behind in a model."""

from typing import Any

import numpy as np
import pytest
import torch

from engine import write
from families import FAMILIES, build
from paceline.drafters.lookup import Lookup
from paceline.targets.base import Request, Want
from paceline.targets.cache import CacheRows
from paceline.targets.hf.interface import ATTENTION_NAME
from paceline.targets.hf.target import HFTarget
from paceline.tree import ROOT, DraftTree
from scoring import (
    CLOSE,
    CONTEXT,
    apart,
    draft_for,
    filled,
    generated,
    load_quietly,
    native,
    path_gaps,
    random_tree,
    read,
    score,
    target_of,
    tokens,
)

every_family = pytest.mark.parametrize("name", FAMILIES)
one_of_each_mode = pytest.mark.parametrize("name", ["gemma2", "falcon", "bloom"])

TEXT = tokens(CONTEXT)


def cache_rows(target: HFTarget, capacity: int = 0) -> CacheRows:
    rows = filled(target, TEXT, capacity=capacity)
    assert isinstance(rows, CacheRows)
    return rows


def places(rows: CacheRows) -> list[int]:
    return [b.data_ptr() for layer in rows.layers.values() for b in (layer.keys, layer.values) if b is not None]


# --- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [0, 5, CONTEXT, CONTEXT + 1, 200])
def test_capacity_changes_nothing_but_where_rows_live(capacity: int) -> None:
    target = target_of("llama")
    rows = cache_rows(target, capacity)
    text = TEXT
    for seed in range(3):
        tree = random_tree(seed)
        assert path_gaps(target.model, score(target, rows, 1, tree), text, 1, tree) < CLOSE
        rows.keep([0, 1])
        rows.check()
        text = np.concatenate([text, [1], tree.tokens[:1]])


def test_buffers_that_are_large_enough_never_move() -> None:
    target = target_of("mistral")
    rows = target.open(len(TEXT) + 60 + 16)
    read(target, rows, TEXT)
    before = places(rows)
    session = write(target, TEXT, Lookup(), rows=rows, max_new_tokens=60)
    assert len(session.context.emitted) == 60
    assert places(rows) == before


def test_buffers_that_are_too_small_grow_by_doubling() -> None:
    target = target_of("llama")
    rows = target.open(1)
    moves = set()
    for token in tokens(200):
        score(target, rows, int(token))
        rows.keep([0])
        moves.add(rows.layers[0].capacity)
    assert moves == {1, 2, 4, 8, 16, 32, 64, 128, 256}


def test_a_path_is_kept_in_place() -> None:
    target = target_of("llama")
    rows = cache_rows(target, 100)
    before = places(rows)
    score(target, rows, 1, DraftTree.build(tokens(4), [ROOT, ROOT, 1, 1]))
    keys = rows.layers[2].keys
    assert keys is not None
    kept = keys[:, :, [CONTEXT, CONTEXT + 2, CONTEXT + 4]].clone()
    rows.keep([0, 2, 4])
    assert torch.equal(keys[:, :, CONTEXT : CONTEXT + 3], kept)
    assert places(rows) == before
    rows.check()


@pytest.mark.parametrize("wrong", ["committed", "tentative", "layer"])
def test_a_wrong_counter_is_told(wrong: str) -> None:
    target = target_of("llama")
    rows = cache_rows(target)
    score(target, rows, 1, random_tree(0))
    rows.check()
    if wrong == "layer":
        rows.layers[1].filled -= 1
    else:
        setattr(rows, wrong, getattr(rows, wrong) + 1)
    with pytest.raises(AssertionError, match="holds"):
        rows.check()


def test_an_interrupted_forward_leaves_nothing_to_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    target = load_quietly(build("gemma2"))
    rows = cache_rows(target)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = target.model.get_decoder().layers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        score(target, rows, 1, random_tree(1))
    hook.remove()
    assert target.model.config._attn_implementation != ATTENTION_NAME
    tree = random_tree(2)
    assert path_gaps(target.model, score(target, rows, 1, tree), TEXT, 1, tree) < CLOSE
    rows.check()


@one_of_each_mode
def test_rows_that_were_rewound_are_as_good_as_fresh_ones(name: str) -> None:
    target, tree = target_of(name), DraftTree.chain(tokens(5, 8))
    rows = cache_rows(target)
    score(target, rows, 1, draft_for(target, 0))
    rows.rewind(20)
    rows.check()
    read(target, rows, TEXT[20:25])
    expected = score(target, filled(target, TEXT[:25]), 1, tree)
    assert apart(score(target, rows, 1, tree), expected) < CLOSE


@one_of_each_mode
def test_a_common_beginning_is_read_once(name: str) -> None:
    target = target_of(name)
    rows = cache_rows(target)
    other = np.concatenate([TEXT[:20], tokens(12, 9)])
    assert rows.common_prefix(other) == 20
    assert rows.common_prefix(TEXT[:7]) == 7
    reused = write(target, other, Lookup(), rows=rows, max_new_tokens=10)
    fresh = write(target, other, Lookup(), max_new_tokens=10)
    assert reused.context.emitted.tolist() == fresh.context.emitted.tolist()
    tree = DraftTree.chain(tokens(5, 8))
    rows.rewind(len(other))
    assert apart(score(target, rows, 1, tree), score(target, filled(target, other), 1, tree)) < CLOSE


@every_family
def test_a_prompt_read_in_pieces_is_the_same_prompt(name: str) -> None:
    target = target_of(name)
    expected = native(target.model, np.append(TEXT, 1))
    for piece in (3, 7, 512):
        rows = target.open()
        for start in range(0, len(TEXT), piece):
            part = TEXT[start : start + piece]
            found = read(target, rows, part, Want(logits=True)).logits
            assert apart(found, expected[start : start + len(part)]) < CLOSE
        rows.check()
        assert apart(score(target, rows, 1), expected[-1:]) < CLOSE


def test_the_size_of_the_pieces_does_not_change_the_text() -> None:
    target = load_quietly(build("gemma3"))
    expected = generated(target.model, TEXT, 12)
    for piece in (3, 7, 512):
        target.prefill_chunk = piece
        assert write(target, TEXT, Lookup(), max_new_tokens=12).context.emitted.tolist() == expected


# --- the model that was handed over -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma2", "falcon", "gptj", "bloom"])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-5), (torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_other_types_of_numbers(name: str, dtype: torch.dtype, close: float) -> None:
    """Soft-capped and old attention code computes in float32 inside float64 models, so 1e-5 is as good as exact."""
    target = load_quietly(build(name, dtype))
    rows, tree = filled(target, TEXT), draft_for(target, 1)
    logits = score(target, rows, 1, tree)
    assert (logits.dtype, f"torch.{target.dtype}") == (dtype, str(dtype))
    assert path_gaps(target.model, logits, TEXT, 1, tree) < close
    rows.check()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "falcon", "bloom"])
def test_a_model_stays_as_its_owner_set_it_up(name: str, implementation: str) -> None:
    if (name, implementation) == ("bloom", "sdpa"):
        pytest.skip("bloom has one attention only")
    model = build(name, attn_implementation=implementation)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    config, text = model.config.to_dict(), generated(model, TEXT, 12)
    target = load_quietly(model)
    write(target, TEXT, Lookup(), max_new_tokens=12)
    target.submit([Request.of_prompt(target.open(), TEXT, Want(hidden=frozenset({1}), early_exit=1))])
    assert model.config._attn_implementation == implementation
    assert model.config.to_dict() == config
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert generated(model, TEXT, 12) == text


def test_our_attention_refuses_forwards_that_are_not_ours() -> None:
    model = build("llama")
    model.config._attn_implementation = ATTENTION_NAME
    with pytest.raises(RuntimeError, match="choose 'sdpa' for others"):
        model(torch.tensor([[1, 2]]))


@pytest.mark.parametrize("name", ["llama", "falcon", "bloom", "gpt2"])
def test_configurations_that_want_no_cache_or_do_not_speak_of_one(name: str) -> None:
    expected = generated(build(name), TEXT, 8)
    silent = build(name)
    del silent.config.use_cache
    for model in (build(name, use_cache=False), silent):
        text = write(load_quietly(model), TEXT, Lookup(), max_new_tokens=8).context.emitted
        assert text.tolist() == expected


def test_equal_weights_have_one_fingerprint() -> None:
    prints = {load_quietly(build("llama", seed=seed)).fingerprint() for seed in (0, 0, 1)}
    assert len(prints) == 2


@pytest.mark.parametrize("name", ["llama", "falcon"])
def test_rows_made_in_inference_mode_serve_outside_it(name: str) -> None:
    """Callers wrap some of their calls in inference mode and others not; buffers grow in either."""
    with torch.inference_mode():
        target = load_quietly(build(name))
        rows = target.open()
        inside = write(target, TEXT[:20], Lookup(), rows=rows, max_new_tokens=8).context.emitted
        copied = target.open()
        copied.adopt(rows, 20)
    again = write(target, TEXT[:20], Lookup(), rows=copied, max_new_tokens=8).context.emitted
    longer = write(target, TEXT[:20], Lookup(), rows=rows, max_new_tokens=200).context.emitted
    with torch.inference_mode():
        back = write(target, TEXT[:20], Lookup(), rows=rows, max_new_tokens=8).context.emitted
    assert inside.tolist() == again.tolist() == longer[:8].tolist() == back.tolist()
