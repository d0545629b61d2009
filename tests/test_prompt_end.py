"""The root scored with the end of its prompt: the same rows, logits and states as in a forward of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from families import FAMILIES, VOCAB, build
from paceline.targets.base import NOTHING, Reach, Request, Rows, Target, Want
from paceline.targets.cache import CacheRows
from paceline.targets.hf.own import Mode
from paceline.targets.hf.target import HFTarget
from paceline.targets.replay import ReplayTarget
from paceline.targets.scores import Scores
from paceline.targets.table import TableTarget, random_table
from paceline.tree import EMPTY, ROOT, DraftTree, Ints
from scoring import CONTEXT, apart, draft_for, filled, load_quietly, read, tokens
from test_rope_switch import CONFIGS, SWITCH
from thinning import thinned

EXACT, INEXACT = 1e-9, 1e-4
NARROW = {"gemma2", "bloom", "falcon", "falcon_alibi", "gptj"} | {n for n, family in FAMILIES.items() if family.moe}
"""Models that compute something in float32 whatever their type; some mixtures of experts know no wider one."""
TEXTS = [tokens(n, n) for n in (1, 2, 9, CONTEXT)]
EVERYTHING = Want(logits=True, hidden=frozenset({0, 1, 3}), early_exit=1, top=4)


def own(name: str, **overrides: Any) -> HFTarget:
    moe = name in FAMILIES and FAMILIES[name].moe
    target = load_quietly(build(name, torch.float32 if moe else torch.float64, **overrides))
    target.paths = [target.own]
    return target


def alone(name: str) -> HFTarget:
    target = load_quietly(build(name, torch.float64))
    target.limits = Reach(alone=True)
    return target


def modelled() -> dict[str, Callable[[], HFTarget]]:
    """Every way in which a model scores rows."""
    ways: dict[str, Callable[[], HFTarget]] = {name: lambda name=name: own(name) for name in FAMILIES}
    for name in ("llama", "mistral", "qwen2", "qwen3"):
        ways[f"{name} lean"] = lambda name=name: load_quietly(build(name, torch.float64))
    ways["llama alone"] = lambda: alone("llama")
    ways["mistral masked"] = lambda: HFTarget(build("mistral", torch.float64), mode=Mode.MASKED)
    ways["llama recorded"] = lambda: load_quietly(build("llama", torch.float64), fixed_shapes=True)
    for kind, (name, overrides) in CONFIGS.items():
        ways[kind] = lambda name=name, overrides=overrides: own(name, **overrides)
    return ways


MODELS = modelled()


def in_two(target: Any, text: Ints, want: Want) -> tuple[Rows, Scores | None, Scores]:
    """The prompt without its root, and then the root."""
    rows = target.open()
    prompt = read(target, rows, text[:-1], want) if len(text) > 1 else None
    scores = target.submit([Request.of_tree(rows, int(text[-1]), EMPTY, want)]).result()[0]
    rows.keep([0])
    return rows, prompt, scores


def same_logits(found: Scores, expected: Scores, close: float) -> None:
    assert np.array_equal(found.logits, expected.logits) or apart(found.logits, expected.logits) < close
    assert np.array_equal(found.row(ROOT), found.logits[0])
    assert found.choices().tolist() == expected.choices().tolist()
    assert found.top(4).ids.tolist() == expected.top(4).ids.tolist()


def same_scores(found: Scores, expected: Scores, want: Want, close: float) -> None:
    assert (found.tokens.tolist(), found.parents.tolist()) == (expected.tokens.tolist(), expected.parents.tolist())
    same_logits(found, expected, close)
    assert all(apart(found.hidden(layer), expected.hidden(layer)) < close for layer in want.hidden)
    assert want.early_exit is None or apart(found.early, expected.early) < close


def same_rows(found: Rows, expected: Rows, close: float) -> None:
    found.check()
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert isinstance(found, CacheRows)
    assert isinstance(expected, CacheRows)
    for number, layer in expected.layers.items():
        pairs = zip(found.layers[number].span(0, found.committed), layer.span(0, expected.committed), strict=True)
        assert all(apart(*pair) < close for pair in pairs)


@pytest.mark.parametrize("way", thinned(MODELS))
def test_several_prompts_end_in_one_forward_beside_drafts_and_pieces_of_others(way: str) -> None:
    target = MODELS[way]()
    for want in (NOTHING, EVERYTHING):
        ends_in_one_forward(target, want, INEXACT if way in NARROW else EXACT)


def ends_in_one_forward(target: HFTarget, want: Want, close: float) -> None:
    drafter, drafting = filled(target, TEXTS[2]), draft_for(target, 1)
    if target.switch is not None:
        drafting = drafting.head(9, depth=SWITCH - 1 - len(TEXTS[2]))
    draft = Request.of_tree(drafter, 1, drafting, want)
    expected = [in_two(target, text, want) for text in TEXTS]
    drafted = target.submit([draft]).result()[0]
    drafter.keep([])
    rows = [target.open() for _ in TEXTS]
    ends = [Request.of_prompt(r, text, want, ends_prompt=True) for r, text in zip(rows, TEXTS, strict=True)]
    piece = Request.of_prompt(target.open(), TEXTS[1], NOTHING)
    found = target.submit([*ends[:2], draft, piece, *ends[2:]]).result()
    same_scores(found[2], drafted, want, close)
    for scores, row, text, (twin, prompt, root) in zip([*found[:2], *found[4:]], rows, TEXTS, expected, strict=True):
        same_scores(scores, root, want, close)
        assert (scores.prompt is None) == (prompt is None)
        if scores.prompt is not None and prompt is not None and want.logits:
            same_scores(scores.prompt, prompt, want, close)
        row.keep(range(len(text)))
        same_rows(row, twin, close)


def test_a_long_prompt_ends_with_its_last_piece() -> None:
    target = load_quietly(build("llama", torch.float64))
    for want in (NOTHING, EVERYTHING):
        twin, _, root = in_two(target, TEXTS[3], want)
        rows = target.open()
        read(target, rows, TEXTS[3][:20], want)
        scores = target.submit([Request.of_prompt(rows, TEXTS[3][20:], want, ends_prompt=True)]).result()[0]
        rows.keep(range(CONTEXT - 20))
        same_scores(scores, root, want, EXACT)
        same_rows(rows, twin, EXACT)


@pytest.mark.parametrize("lean", [True, False])
def test_the_head_reads_the_root_alone(lean: bool) -> None:
    target = load_quietly(build("llama")) if lean else own("llama")
    seen: list[int] = []
    assert target.anatomy.head is not None
    target.anatomy.head.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[1]))
    ends = [Request.of_prompt(target.open(), text, ends_prompt=True) for text in TEXTS]
    found = target.submit(ends).result()
    assert seen == [len(TEXTS)]
    assert [len(scores.logits) for scores in found] == [1] * len(TEXTS)
    for scores in found[1:]:
        assert scores.prompt is not None
        with pytest.raises(ValueError, match=r"ask for them with Want\(logits=True\)"):
            _ = scores.prompt.logits


def test_a_draft_can_hang_from_a_root_that_ends_its_prompt() -> None:
    target, text = load_quietly(build("gemma2", torch.float64)), TEXTS[3]
    tree = draft_for(target, 3)
    rows = filled(target, text[:-1])
    expected = target.submit([Request.of_tree(rows, int(text[-1]), tree)]).result()[0]
    line = np.concatenate([text, tree.tokens])
    parents = np.concatenate([np.arange(-1, len(text) - 1), tree.parents + len(text)])
    found = target.submit([Request(target.open(), line, parents, prompt=len(text) - 1)]).result()[0]
    same_scores(found, expected, NOTHING, INEXACT)


OTHERS: dict[str, Callable[[], Target]] = {
    "table": lambda: TableTarget(random_table(VOCAB), VOCAB),
    "replay": lambda: ReplayTarget([[*TEXTS[3], 5, 6]], VOCAB),
}


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("way", OTHERS)
def test_targets_without_a_model_do_the_same(way: str, logits: bool) -> None:
    target, want = OTHERS[way](), Want(logits=logits)
    twin, prompt, root = in_two(target, TEXTS[3], want)
    rows = target.open()
    scores = target.submit([Request.of_prompt(rows, TEXTS[3], want, ends_prompt=True)]).result()[0]
    rows.keep(range(CONTEXT))
    rows.check()
    assert rows.tokens.tolist() == twin.tokens.tolist()
    same_scores(scores, root, NOTHING, EXACT)
    assert scores.prompt is not None
    assert prompt is not None
    if logits:
        same_scores(scores.prompt, prompt, NOTHING, EXACT)
    chain = DraftTree.chain([5, 6])
    after = [target.submit([Request.of_tree(r, 5, chain)]).result()[0] for r in (rows, twin)]
    same_scores(*after, NOTHING, EXACT)
