"""Rotary embeddings that follow the largest position of a forward: drafts stop short of where rotation changes, and
the text across it is the one that transformers writes."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine import write
from families import build
from paceline.drafters import Drafter, Plain
from paceline.drafters.lookup import Lookup
from paceline.law import Sampling
from paceline.targets.base import Request
from paceline.targets.hf.load import load_target
from paceline.targets.hf.rope import rotary_modules
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree, Ints
from scoring import CLOSE, SEEN, Knowing, apart, filled, generated, load_quietly, random_tree, score, tokens
from thinning import crossed

SWITCH = 24
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.3 + 0.2 * i for i in range(8)],
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "longrope": ("llama", {"rope_parameters": LONG | {"original_max_position_embeddings": SWITCH, "factor": 8.0}}),
    "longrope read anew": (
        "phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": SWITCH, "sliding_window": None},
    ),
    "dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": SWITCH}),
}
every_kind = pytest.mark.parametrize("kind", CONFIGS)

NEW = 44


def model_of(kind: str) -> PreTrainedModel:
    name, overrides = CONFIGS[kind]
    return build(name, **overrides)


def switching(kind: str) -> HFTarget:
    return load_quietly(model_of(kind))


@every_kind
def test_it_is_told_where_drafts_end(kind: str) -> None:
    where = "end at" if kind == "dynamic" else "stop short of"
    with pytest.warns(UserWarning, match=f"so drafts {where} position {SWITCH}$"):
        target = load_target(model_of(kind))
    assert [target.reach(p).depth for p in (0, SWITCH - 2, SWITCH - 1)] == [SWITCH - 1, 1, 0]
    assert target.reach(SWITCH + 1).depth == (0 if kind == "dynamic" else None)
    assert all(target.reach(position).trees for position in range(SWITCH + 2))


def test_equal_factors_are_no_switch() -> None:
    rope = LONG | {"long_factor": [1.0] * 8, "original_max_position_embeddings": SWITCH, "factor": 8.0}
    assert load_target(build("llama", rope_parameters=rope)).switch is None


def test_dynamic_scaling_goes_past_the_trained_length() -> None:
    assert switching("dynamic").context_length == 4 * SWITCH
    assert switching("longrope").context_length == 4096


@every_kind
def test_the_switch_shows(kind: str) -> None:
    """A row that is rotated as of the other side is another row; so the tests of this file can fail."""
    target = switching(kind)
    text = tokens(SWITCH - 1)
    rows = filled(target, text)
    short = score(target, rows, 1)
    beyond = score(target, rows, 1, DraftTree.chain(tokens(6)))
    assert apart(beyond[:1], short) > SEEN


@pytest.mark.parametrize(
    ("kind", "length"), crossed(CONFIGS, [1, 9, SWITCH - 2, SWITCH - 1, SWITCH, SWITCH + 1, SWITCH + 9])
)
def test_greedy_text_across_the_switch_is_what_transformers_generates(kind: str, length: int) -> None:
    model, prompt = model_of(kind), tokens(length, 3)
    text = generated(model, prompt, NEW)
    target = switching(kind)
    for drafter in (Plain(), Lookup(), Knowing(np.concatenate([prompt, text]))):
        assert write(target, prompt, drafter, max_new_tokens=NEW, nodes=8).context.emitted.tolist() == text


@pytest.mark.parametrize(("kind", "seed"), crossed(CONFIGS, range(3)))
def test_sampled_text_across_the_switch_is_plains(kind: str, seed: int) -> None:
    target, prompt = switching(kind), tokens(SWITCH // 2, seed)
    sampling = Sampling(temperature=1.0, seed=seed)
    options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": NEW, "nodes": 8}
    plain = write(target, prompt, Plain(), **options).context.tokens
    drafters: list[Drafter] = [Lookup(), Knowing(plain)]
    for drafter in drafters:
        assert write(target, prompt, drafter, **options).context.tokens.tolist() == plain.tolist()


@every_kind
def test_no_draft_reaches_across(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, scored = switching(kind), list[Ints]()
    prompt = tokens(9, 3)
    text = generated(target.model, prompt, NEW)
    honest = target.submit

    def watched(requests: list[Request]) -> Any:
        scored.extend(request.positions for request in requests)
        return honest(requests)

    monkeypatch.setattr(target, "submit", watched)
    session = write(target, prompt, Knowing(np.concatenate([prompt, text])), max_new_tokens=NEW)
    assert sum(round.accepted for round in session.rounds) > 5
    assert not any(positions[0] < SWITCH <= positions.max() for positions in scored)
    beyond = [len(positions) for positions in scored if positions[0] >= SWITCH]
    assert (max(beyond) == 1) == (kind == "dynamic")


@pytest.mark.parametrize(("kind", "again"), crossed(CONFIGS, [9, SWITCH - 1, SWITCH + 1, SWITCH + 6]))
def test_rows_of_an_earlier_text_are_reused_only_where_they_are_rotated_alike(kind: str, again: int) -> None:
    target, prompt = switching(kind), tokens(9, 3)
    for first in (prompt, tokens(SWITCH + 4, 3)):
        earlier = write(target, first, Lookup(), max_new_tokens=30)
        text = earlier.context.tokens[:again].copy()
        fresh = write(target, text, Lookup(), max_new_tokens=30)
        reused = write(target, text, Lookup(), max_new_tokens=30, rows=earlier.rows)
        assert reused.context.tokens.tolist() == fresh.context.tokens.tolist()


@every_kind
def test_sequences_on_both_sides_do_not_turn_each_other(kind: str) -> None:
    target = switching(kind)
    lengths = (5, SWITCH + 7, 11, SWITCH + 3)

    def requests() -> list[Request]:
        texts = [(tokens(length, length), length) for length in lengths]
        trees = [random_tree(length, 6) if length < SWITCH else DraftTree.chain([]) for length in lengths]
        drafts = [Request.of_tree(filled(target, t), 1, tree) for (t, _), tree in zip(texts, trees, strict=True)]
        return [*drafts, Request.of_prompt(target.open(), tokens(SWITCH + 2, 1))]

    together = target.submit(requests()).result()
    for scores, request in zip(together[:-1], requests()[:-1], strict=True):
        assert apart(scores.logits, target.submit([request]).result()[0].logits) < CLOSE


@every_kind
def test_a_model_that_went_far_is_as_good_as_new(kind: str) -> None:
    """Neither its owner's long text nor ours changes what the other one finds next."""
    model, prompt = model_of(kind), tokens(9, 3)
    target = load_quietly(model)
    expected = generated(model_of(kind), prompt, NEW)
    far = tokens(60, 8)
    before = [dict(module._buffers) for module in rotary_modules(model)]
    assert len(before) == 1
    write(target, far, Lookup(), max_new_tokens=8)
    for module, buffers in zip(rotary_modules(model), before, strict=True):
        assert all(module._buffers[name] is buffer for name, buffer in buffers.items())
    assert generated(model, prompt, NEW) == expected
    with torch.no_grad():
        model(torch.from_numpy(far)[None])
    assert write(target, prompt, Lookup(), max_new_tokens=NEW).context.emitted.tolist() == expected
