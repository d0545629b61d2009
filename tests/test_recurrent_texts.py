"""Whole texts of tiny models with layers that keep a state: those of transformers' `generate`, whatever drafts."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

import paceline
from paceline.targets.base import Request
from paceline.targets.hf.recurrent.rows import StatefulRows
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree
from paceline_lab.check.tiny import TINY_VOCABULARY, build, configuration

FAMILIES = ["qwen3_next", "kimi_linear", "olmo_hybrid", "lfm2", "mamba2", "bamba", "falcon_h1", "mamba", "jamba"]
METHODS = ["lookup", "suffix", "unispec", "auto"]
LENGTH = 64
"""Behind every prompt: more than the 64 rows that some layers of transformers read at once."""


@cache
def model_of(family: str) -> PreTrainedModel:
    config = configuration(family, "small")
    assert config is not None
    return build(config)


@cache
def opened(family: str) -> paceline.LanguageModel:
    return paceline.load(model_of(family), generation_config=False)


def prompts(count: int, *, seed: int = 0) -> list[list[int]]:
    """Of different lengths, each of which repeats itself, so that there is something to look up."""
    drawn = np.random.default_rng(seed)
    return [
        (drawn.integers(1, TINY_VOCABULARY, 5 + 4 * number).tolist() * 3)[: 9 + 7 * number] for number in range(count)
    ]


@cache
def expected(family: str, number: int) -> list[int]:
    """By transformers, greedy."""
    prompt = torch.tensor([prompts(5)[number]])
    with torch.no_grad():
        text = model_of(family).generate(
            prompt, max_new_tokens=LENGTH, do_sample=False, attention_mask=torch.ones_like(prompt)
        )
    return list(map(int, text[0, prompt.shape[1] :]))


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_texts_are_those_of_generate(family: str) -> None:
    lm = opened(family)
    for number, prompt in enumerate(prompts(3)):
        for method in ["plain", *(METHODS[number::2] if number else METHODS)]:
            text = lm.generate(prompt, max_new_tokens=LENGTH, temperature=0, method=method, ignore_eos=True)
            assert list(text.tokens) == expected(family, number), method


@pytest.mark.parametrize("family", FAMILIES)
def test_five_texts_at_once_are_those_of_generate(family: str) -> None:
    lm = opened(family)
    for method in ("plain", "unispec", "auto"):
        texts = lm.generate_batch(prompts(5), max_new_tokens=LENGTH, temperature=0, method=method, ignore_eos=True)
        assert [list(text.tokens) for (text,) in texts] == [expected(family, number) for number in range(5)], method


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_writes_one_text(family: str) -> None:
    lm, prompt = opened(family), prompts(2, seed=3)[1]
    texts = {
        method: tuple(
            lm.generate(prompt, max_new_tokens=64, temperature=0.7, seed=11, method=method, ignore_eos=True).tokens
        )
        for method in ["plain", *METHODS]
    }
    assert len(set(texts.values())) == 1, texts


@pytest.mark.parametrize("family", ["qwen3_next", "mamba2"])
def test_a_chat_goes_on_behind_its_own_text(family: str) -> None:
    """The next turn reads what is new, and writes what a fresh model writes."""
    lm, prompt = paceline.load(model_of(family), generation_config=False), prompts(3)[2]
    first = lm.generate(prompt, max_new_tokens=40, temperature=0, ignore_eos=True)
    longer = [*prompt, *first.tokens, 5, 6, 7]
    turn = lm.generate(longer, max_new_tokens=20, temperature=0, ignore_eos=True)
    assert turn.cached_tokens == len(prompt) + 39
    fresh = paceline.load(model_of(family), generation_config=False)
    assert fresh.generate(longer, max_new_tokens=20, temperature=0, ignore_eos=True).tokens == turn.tokens


@pytest.mark.parametrize("family", ["qwen3_next", "mamba2", "lfm2"])
def test_a_prompt_is_read_once_for_several_texts(family: str) -> None:
    lm, prompt = paceline.load(model_of(family), generation_config=False), prompts(5)[4]
    given = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
    texts = [text for (text,) in lm.generate_batch([prompt] * 3, **given)]
    assert sorted(text.cached_tokens for text in texts) == [0, len(prompt) - 1, len(prompt) - 1]
    first, again = (lm.generate(prompt, **given) for _ in range(2))
    assert again.cached_tokens == len(prompt) - 1
    assert {tuple(text.tokens) for text in (*texts, first)} == {tuple(again.tokens)}


def test_a_model_without_attention_has_no_limit_of_rows() -> None:
    from paceline.api.serving import rows_that_fit

    assert opened("mamba2").target.row_bytes() == 0
    assert rows_that_fit(opened("mamba2").target, 4) is None
    hybrid = opened("qwen3_next").target
    most = rows_that_fit(hybrid, 4)
    assert most is not None
    assert hybrid.sequence_bytes() > hybrid.row_bytes()


@pytest.mark.parametrize("family", ["mamba", "mamba2"])
def test_wider_floats(family: str) -> None:
    config = configuration(family, "small")
    assert config is not None
    lm = paceline.load(build(config).double(), generation_config=False)
    plain, drafted = (
        lm.generate(prompts(2)[1], max_new_tokens=30, temperature=0.7, seed=2, method=method, ignore_eos=True)
        for method in ("plain", "unispec")
    )
    assert plain.tokens == drafted.tokens


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2", "rwkv"])
def test_such_a_model_drafts_for_another(family: str) -> None:
    config = configuration("llama", "small")
    assert config is not None
    lm = paceline.load(build(config), generation_config=False)
    draft = opened(family)
    for temperature in (0.0, 0.7):
        given = {"max_new_tokens": 40, "temperature": temperature, "seed": 5, "ignore_eos": True}
        plain = lm.generate(prompts(2)[1], method="plain", **given)
        drafted = lm.generate(prompts(2)[1], method="assistant", draft_model=draft, **given)
        assert drafted.tokens == plain.tokens


def test_rows_that_were_kept_last_are_taken_back_without_reading() -> None:
    rows = opened("qwen3_next").target.open(8)
    assert isinstance(rows, StatefulRows)
    target = opened("qwen3_next").target
    target.score([Request.of_prompt(rows, np.arange(20))])
    rows.keep(range(20))
    target.score([Request.of_tree(rows, 3, DraftTree.chain([4, 5]))])
    rows.keep([0, 1])
    assert rows.rewind(21) == 20
    rows.check()


def test_rows_of_such_a_model_keep_states() -> None:
    target = opened("bamba").target
    assert isinstance(target, HFTarget)
    assert isinstance(target.open(8), StatefulRows)
