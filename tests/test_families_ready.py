"""The tiny models are worth testing on: what a decoder can get wrong shows in their logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from families import FAMILIES, RECURRENT, VOCAB, WINDOW, build, main, recurrent

CONTEXT = 40
SEEN = 0.01
"""Deviation of the logits below which a difference could pass for rounding."""

every_family = pytest.mark.parametrize("name", FAMILIES)
windowed_family = pytest.mark.parametrize("name", [n for n, f in FAMILIES.items() if f.window])


def context(rows: int = 1, length: int = CONTEXT) -> Tensor:
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def last_logits(model: PreTrainedModel, ids: Tensor, **more: Any) -> Tensor:
    logits: Tensor = model(ids, **more).logits[0, -1]
    return logits


def moved(before: Tensor, after: Tensor) -> float:
    return (after - before).std().item()


def with_other_token(ids: Tensor, index: int) -> Tensor:
    changed = ids.clone()
    changed[0, index] = (changed[0, index] + 5) % VOCAB
    return changed


@every_family
def test_logits_are_decided(name: str) -> None:
    with torch.no_grad():
        assert build(name)(context()).logits.std() >= 1


@every_family
def test_a_far_token_matters_where_it_is_seen_and_nowhere_else(name: str) -> None:
    model, ids, reach = build(name), context(), FAMILIES[name].reach
    before = last_logits(model, ids)
    seen = 2 if reach is None else CONTEXT - WINDOW
    assert moved(before, last_logits(model, with_other_token(ids, seen))) > SEEN
    if reach is not None:
        boundary = CONTEXT - reach
        assert moved(before, last_logits(model, with_other_token(ids, boundary))) > 0
        assert moved(before, last_logits(model, with_other_token(ids, boundary - 1))) == 0


@every_family
def test_order_matters(name: str) -> None:
    model, ids = build(name), context()
    swapped = ids.clone()
    swapped[0, [-4, -3]] = ids[0, [-3, -4]]
    assert moved(last_logits(model, ids), last_logits(model, swapped)) > SEEN


@pytest.mark.parametrize("name", [n for n, f in FAMILIES.items() if not f.alibi])
def test_a_position_off_by_one_shows(name: str) -> None:
    model, ids = build(name), context()
    positions = torch.arange(CONTEXT)[None]
    gap = positions + (positions >= CONTEXT - 3)
    before = last_logits(model, ids, position_ids=positions)
    assert moved(last_logits(model, ids), before) < 1e-5
    assert moved(before, last_logits(model, ids, position_ids=gap)) > SEEN


@windowed_family
def test_a_forgotten_window_shows(name: str) -> None:
    ids = context()
    windowed, wide = build(name), build(name, sliding_window=CONTEXT)
    assert moved(last_logits(windowed, ids), last_logits(wide, ids)) > SEEN


@pytest.mark.parametrize("name", [n for n, f in FAMILIES.items() if f.sinks])
def test_a_forgotten_sink_shows(name: str) -> None:
    model, ids = build(name), context()
    before = last_logits(model, ids)
    for parameter_name, parameter in model.named_parameters():
        if "sinks" in parameter_name:
            parameter.data.fill_(-1e9)
    assert moved(before, last_logits(model, ids)) > SEEN


@pytest.mark.parametrize("name", [n for n, f in FAMILIES.items() if f.softcap])
def test_a_forgotten_soft_cap_shows(name: str) -> None:
    ids = context()
    uncapped = build(name, attn_logit_softcapping=1e6)
    assert moved(last_logits(build(name), ids), last_logits(uncapped, ids)) > SEEN


@every_family
def test_greedy_text_goes_on(name: str) -> None:
    ids = context(rows=4, length=12)
    texts = build(name).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False, pad_token_id=0
    )
    assert texts.shape == (4, 72)
    assert min(len(set(text)) for text in texts[:, 12:].tolist()) >= 8


@every_family
def test_a_model_is_its_name_and_seed(name: str) -> None:
    torch.manual_seed(5)
    stream = torch.random.get_rng_state()
    first, other = build(name), build(name, seed=1)
    assert torch.equal(torch.random.get_rng_state(), stream)
    torch.manual_seed(6)
    again = build(name, dtype=torch.float64)
    for p, q, r in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q.float())
        assert not torch.equal(p, r)
    assert not first.training


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "gpt2", "gpt_oss", "bloom"])
def test_saved_models_load(name: str, tmp_path: Path) -> None:
    main([name, str(tmp_path)])
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "the next one takes the front: za liderem, за лідером, 🚴"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id
    assert max(*ids, tokenizer.eos_token_id) < len(tokenizer) == model.config.vocab_size
    built = build(name, vocab_size=len(tokenizer))
    assert torch.equal(last_logits(model, torch.tensor([ids])), last_logits(built, torch.tensor([ids])))


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_run(name: str) -> None:
    model, ids = recurrent(name), context()
    assert not torch.equal(last_logits(model, ids), last_logits(model, with_other_token(ids, 2)))
