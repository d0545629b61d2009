"""What a drafter may ask of the `hf` target beyond tokens, and what its scores answer."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from families import FAMILIES, VOCAB, build
from paceline.law import log_normalizer
from paceline.targets.base import Request, Want
from paceline.targets.hf.target import HFTarget
from paceline.targets.replay import ReplayTarget
from paceline.targets.scores import Scores
from paceline.targets.table import TableTarget, random_table
from paceline.tree import ROOT, DraftTree
from scoring import (
    CLOSE,
    CONTEXT,
    apart,
    draft_for,
    filled,
    load_quietly,
    native,
    random_tree,
    read,
    target_of,
    tokens,
)

every_family = pytest.mark.parametrize("name", FAMILIES)
one_of_each_mode = pytest.mark.parametrize("name", ["gemma2", "falcon", "bloom"])

TEXT = tokens(CONTEXT)


@torch.no_grad()
def states(target: HFTarget, text: Sequence[int]) -> tuple[Tensor, ...]:
    ids = torch.tensor([list(text)])
    output = target.model(ids, attention_mask=torch.ones_like(ids), output_hidden_states=True, return_dict=True)
    return tuple(layer[0] for layer in output.hidden_states)


@every_family
def test_hidden_states_are_those_that_transformers_shows(name: str) -> None:
    target, tree = target_of(name), DraftTree.chain(tokens(4, 3))
    want = Want(hidden=frozenset({0, 1, 3}))
    expected = states(target, [*TEXT, 1, *tree.tokens])
    rows = target.open()
    for start, end in ((0, 11), (11, CONTEXT)):
        scores = read(target, rows, TEXT[start:end], want)
        for layer in want.hidden:
            assert apart(scores.hidden(layer), expected[layer][start:end]) < CLOSE
    scores = target.submit([Request.of_tree(rows, 1, tree, want)]).result()[0]
    for layer in want.hidden:
        assert apart(scores.hidden(layer), expected[layer][CONTEXT:]) < CLOSE
    with pytest.raises(KeyError):
        scores.hidden(2)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [*((name, {}) for name in FAMILIES), ("granite", {"logits_scaling": 8.0}), ("cohere2", {"logit_scale": 0.25})],
)
def test_an_early_exit_goes_through_the_models_own_norm_and_head(name: str, overrides: dict[str, Any]) -> None:
    """Taken where the last layer leaves off, it is no guess but the logits."""
    target = load_quietly(build(name, **overrides))
    last: list[Any] = []
    assert target.anatomy.layers is not None
    hook = target.anatomy.layers[-1].register_forward_hook(lambda module, given, output: last.append(output))
    expected = native(target.model, TEXT)
    hook.remove()
    with torch.no_grad():
        found = target.anatomy.unembed((last[0][0] if isinstance(last[0], tuple) else last[0])[0])
    assert apart(found, expected) < (5e-3 if target.anatomy.softcap else CLOSE)


@every_family
def test_a_drafter_may_use_the_models_embedding_and_head(name: str) -> None:
    target = target_of(name)
    want = Want(logits=True, hidden=frozenset({target.layers}))
    scores = target.submit([Request.of_prompt(target.open(), TEXT, want)]).result()[0]
    close = 5e-3 if target.anatomy.softcap else CLOSE
    assert apart(target.unembed(scores.hidden(target.layers)), scores.logits) < close
    states, module = target.embed(torch.from_numpy(TEXT)), target.model.get_input_embeddings()
    scaled = module(torch.from_numpy(TEXT)).detach()
    assert apart(states * float(getattr(module, "embed_scale", 1.0)), scaled) < 1e-5, "before the model's own scale"
    assert (states.dtype, states.device, states.requires_grad) == (target.model.dtype, target.model.device, False)


def test_targets_without_a_model_say_that_they_show_none() -> None:
    replay, table = ReplayTarget([[1, 2]], 4), TableTarget(random_table(4), 4)
    unembedded: Any = lambda t: t.unembed(torch.zeros(1, 4))  # noqa: E731
    for target, missing in (
        (replay, (lambda t: t.layers, lambda t: t.embed(torch.from_numpy(TEXT)), unembedded)),
        (table, (unembedded,)),
    ):
        for asked in missing:
            with pytest.raises(ValueError, match=f"^{target.name} shows no .*; choose a drafter that needs none$"):
                asked(target)


@one_of_each_mode
def test_early_logits_come_while_the_forward_goes_on(name: str) -> None:
    target = target_of(name)
    want, order, early = Want(early_exit=1), list[str](), dict[int, Tensor]()
    requests = [
        Request.of_tree(filled(target, TEXT), 1, draft_for(target, 0), want),
        Request.of_tree(filled(target, TEXT[:9]), 2, draft_for(target, 1)),
        Request.of_prompt(target.open(), TEXT[:5], want),
    ]

    def on_early(number: int, logits: Tensor) -> None:
        order.append(f"early {number}")
        early[number] = logits.clone()

    requests = [replace(request, on_early=partial(on_early, i)) for i, request in enumerate(requests)]
    assert target.anatomy.layers is not None
    hook = target.anatomy.layers[1].register_forward_hook(lambda *_: order.append("layer 1"))
    scores = target.submit(requests).result()
    hook.remove()
    packed = ["early 0", "early 2", "layer 1"]
    assert order == (packed if name == "gemma2" else ["early 0", "layer 1", "layer 1", "early 2", "layer 1"])
    for number, logits in early.items():
        assert torch.equal(scores[number].early, logits)
        assert len(logits) == len(requests[number].tokens)
    with torch.no_grad():
        expected = target.anatomy.unembed(states(target, TEXT[:5])[1])
    assert apart(scores[2].early, expected) < CLOSE
    with pytest.raises(AssertionError, match="no early exit was wanted"):
        _ = scores[1].early


@every_family
def test_prompts_have_logits_only_where_they_are_wanted(name: str) -> None:
    target = target_of(name)
    rows = [target.open() for _ in range(3)]
    requests = [
        Request.of_prompt(rows[0], TEXT[:9]),
        Request.of_prompt(rows[1], TEXT[:7], Want(logits=True)),
        Request.of_tree(rows[2], 1, DraftTree.chain(tokens(3))),
    ]
    silent, wanted, draft = target.submit(requests).result()
    with pytest.raises(ValueError, match=r"ask for them with Want\(logits=True\)"):
        _ = silent.logits
    assert apart(wanted.logits, native(target.model, TEXT[:7])) < CLOSE
    assert apart(draft.logits, native(target.model, np.array([1, *tokens(3)]))) < CLOSE


def test_the_head_is_spared_the_rows_nobody_asks_about() -> None:
    target, seen = target_of("llama"), list[int]()
    head = target.anatomy.head
    assert head is not None
    hook = head.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[1]))
    read(target, target.open(), TEXT)
    rows = [filled(target, TEXT), target.open()]
    seen.clear()
    target.submit([Request.of_prompt(rows[1], TEXT), Request.of_tree(rows[0], 1, random_tree(1, 6))]).result()
    hook.remove()
    assert seen == [7]


BAD_WANTS = {
    "layer beyond the last": (Want(hidden=frozenset({1, 4})), "has states 0 to 3; a drafter asks for"),
    "layer before the first": (Want(hidden=frozenset({-1})), "has states 0 to 3; a drafter asks for"),
    "exit beyond the last": (Want(early_exit=9), "has states 0 to 3; a drafter asks for"),
    "exit at the end": (Want(early_exit=3), "exits early from layers 0 to 2; a drafter asks for 3"),
}


@pytest.mark.parametrize("wrong", BAD_WANTS)
def test_a_wish_that_cannot_be_granted_is_one_sentence(wrong: str) -> None:
    want, sentence = BAD_WANTS[wrong]
    target = target_of("llama")
    with pytest.raises(ValueError, match=sentence) as told:
        target.submit([Request.of_prompt(target.open(), TEXT, want)])
    assert "\n" not in str(told.value)


def test_a_model_that_projects_between_norm_and_head_has_no_early_exit() -> None:
    target = load_quietly(build("opt", word_embed_proj_dim=32))
    with pytest.raises(ValueError, match="it has no early exit; choose another drafter"):
        target.submit([Request.of_prompt(target.open(), TEXT, Want(early_exit=1))])


def test_a_forward_is_left_at_one_layer() -> None:
    """Texts that leave at different layers have forwards of their own; what one text asks for is one layer."""
    target = target_of("llama")
    wants = [Want(early_exit=1), Want(), Want(early_exit=2), Want(early_exit=1)]

    def asked(want: Want) -> Request:
        return replace(Request.of_prompt(target.open(), TEXT, want), prompt=0)

    together = target.submit([asked(want) for want in wants]).result()
    for want, found in zip(wants, together, strict=True):
        (alone,) = target.submit([asked(want)]).result()
        assert apart(found.logits, alone.logits) < CLOSE
        if want.early_exit is not None:
            assert found.early.shape == alone.early.shape == found.logits.shape
            assert apart(found.early, alone.early) < CLOSE
    assert apart(together[0].early, together[2].early) > 100 * CLOSE
    with pytest.raises(ValueError, match="different early-exit layers"):
        _ = wants[0] | wants[2]


# --- scores -------------------------------------------------------------------------------------------------


def test_the_best_tokens_and_their_normaliser() -> None:
    target = target_of("llama")
    scores = target.submit([Request.of_tree(filled(target, TEXT), 1, random_tree(3))]).result()[0]
    logits = scores.logits.double().numpy()
    best = scores.top(5)
    order = np.argsort(-logits, axis=1)[:, :5]
    assert best.ids.tolist() == order.tolist()
    assert np.allclose(best.logits, np.take_along_axis(logits, order, axis=1))
    assert np.allclose(best.log_z, np.log(np.exp(logits - 20).sum(axis=1)) + 20, atol=1e-6)
    assert np.allclose(best.log_z, log_normalizer(scores.logits).numpy())
    assert scores.top(1000).ids.shape == (len(logits), VOCAB)
    assert scores.choices().tolist() == order[:, 0].tolist()
    assert [scores.choice(node) for node in (ROOT, 0, 1)] == order[:3, 0].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_go_to_the_lowest_id(dtype: torch.dtype) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[0, [70, 20, 90]] = logits[1, [96, 95]] = logits[2, [0, 96]] = 9.0
    rows = target_of("llama").open()
    scores = Scores(Request.of_tree(rows, 1, DraftTree.chain([2, 3])), logits)
    assert [scores.choice(node) for node in (ROOT, 0, 1)] == scores.choices().tolist() == [20, 95, 0]
