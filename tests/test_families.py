"""Every family: a draft is scored as if each of its paths were the only text, and leaves no trace once it is judged.

Models that build their position bias from the key's index (`alibi`) are scored in chains, whose rows have the index of
their position; the others in trees. Each law is shown to see the mistakes it is there for.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engine import write
from families import FAMILIES, WINDOW
from paceline.drafters.lookup import Lookup
from paceline.targets.base import Request
from paceline.targets.cache import CacheRows
from paceline.targets.hf import attention
from paceline.targets.hf.attention import View
from paceline.targets.hf.interface import ATTENTION_NAME, attend
from paceline.targets.hf.load import load_target
from paceline.targets.hf.own import Mode
from paceline.targets.hf.target import HFTarget
from paceline.tree import ROOT, DraftTree, Ints
from scoring import (
    CLOSE,
    CONTEXT,
    SEEN,
    Knowing,
    apart,
    draft_for,
    filled,
    generated,
    leaves,
    masked,
    path_gaps,
    random_tree,
    read,
    score,
    stepwise,
    target_of,
    tokens,
)

every_family = pytest.mark.parametrize("name", FAMILIES)
interface_family = pytest.mark.parametrize("name", [name for name, f in FAMILIES.items() if f.interface])

ROUNDS = 4


def expected_mode(name: str) -> Mode:
    family = FAMILIES[name]
    return Mode.PACKED if family.interface else Mode.CHAINED if family.alibi else Mode.MASKED


@every_family
def test_drafts_reach_a_family_in_the_best_way_it_allows(name: str) -> None:
    target = target_of(name)
    assert target.mode is expected_mode(name)
    assert target.limits.trees is not FAMILIES[name].alibi
    assert target.limits.depth is None


@every_family
def test_a_family_is_the_same_from_its_folder(name: str, tmp_path: Path) -> None:
    target = target_of(name)
    target.model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        opened = load_target(tmp_path)
    assert (opened.mode, opened.limits, opened.eos) == (target.mode, target.limits, target.eos)
    assert opened.fingerprint() == target.fingerprint()


@every_family
def test_a_tree_is_its_paths(name: str) -> None:
    """Against the model alone, against each path as a chain on rows of its own, and one row at a time."""
    target = target_of(name)
    for seed in range(4):
        text, root, tree = tokens(CONTEXT, seed), seed + 1, draft_for(target, seed)
        logits = score(target, filled(target, text), root, tree)
        assert path_gaps(target.model, logits, text, root, tree) < CLOSE
        for leaf in leaves(tree):
            path = tree.path(leaf)
            chain = score(target, filled(target, text), root, DraftTree.chain(tree.tokens[path]))
            assert apart(logits[[0, *(node + 1 for node in path)]], chain) < CLOSE
        deepest = tree.path(int(tree.depths().argmax()))
        plain = stepwise(target, filled(target, text), np.concatenate([[root], tree.tokens[deepest]]))
        assert apart(logits[[0, *(node + 1 for node in deepest)]], plain) < CLOSE


@every_family
def test_going_on_behind_a_kept_path_is_never_having_drafted(name: str) -> None:
    assert gap_after_keeping(target_of(name)) < CLOSE


def gap_after_keeping(target: HFTarget) -> float:
    """Rounds of draft and keep; the worst difference of a scored tree from the same tree on rows that only read."""
    random, text, worst = np.random.default_rng(5), tokens(CONTEXT), 0.0
    rows = filled(target, text, capacity=8)
    for number in range(ROUNDS):
        root, tree = number + 1, draft_for(target, number)
        logits = score(target, rows, root, tree)
        rows.check()
        worst = max(worst, apart(logits, score(target, filled(target, text), root, tree)))
        path = tree.path(int(random.integers(len(tree))))
        rows.keep([0, *(node + 1 for node in path)])
        rows.check()
        text = np.concatenate([text, [root], tree.tokens[path]])
        assert rows.tokens.tolist() == text.tolist()
    return worst


@every_family
def test_greedy_text_is_what_transformers_generates(name: str) -> None:
    target, prompt = target_of(name), tokens(2 * WINDOW, seed=3)
    text = generated(target.model, prompt, 44)
    assert write(target, prompt, Lookup(), max_new_tokens=44).context.emitted.tolist() == text
    known = np.concatenate([prompt, text])
    session = write(target, prompt, Knowing(known), nodes=9, max_new_tokens=44)
    assert session.context.emitted.tolist() == text
    assert sum(round.accepted for round in session.rounds) > (15 if target.limits.trees else 5)


@every_family
def test_sequences_packed_together_are_each_scored_as_if_alone(name: str) -> None:
    target = target_of(name)
    texts = [tokens(CONTEXT, 1), tokens(3, 2), tokens(WINDOW, 3), tokens(CONTEXT + 5, 4)]
    together, alone = ([request(target, i, text) for i, text in enumerate(texts)] for _ in range(2))
    found = target.submit(together).result()
    for number, (one, own) in enumerate(zip(found, alone, strict=True)):
        expected = target.submit([own]).result()[0]
        assert one.tokens.tolist() == expected.tokens.tolist()
        if number != 1:
            assert apart(one.logits, expected.logits) < CLOSE
    for number, (packed, own) in enumerate(zip(together, alone, strict=True)):
        for kept in (packed.rows, own.rows):
            kept.keep([0, 1])
            kept.check()
        tree = draft_for(target, number)
        assert apart(score(target, packed.rows, 1, tree), score(target, own.rows, 1, tree)) < CLOSE


def request(target: HFTarget, number: int, text: Ints) -> Request:
    """The second sequence is still reading its prompt, the others have a draft."""
    if number == 1:
        return Request.of_prompt(target.open(), text)
    return Request.of_tree(filled(target, text), 1, draft_for(target, number))


@interface_family
def test_the_way_through_masks_is_right_too(name: str) -> None:
    target = masked(name)
    text = tokens(CONTEXT)
    rows = target.open()
    read(target, rows, text[:13])
    read(target, rows, text[13:])
    for seed in range(2):
        tree = random_tree(seed)
        assert path_gaps(target.model, score(target, rows, 1, tree), text, 1, tree) < CLOSE
        path = tree.path(len(tree) - 1)
        rows.keep([0, *(node + 1 for node in path)])
        rows.check()
        text = np.concatenate([text, [1], tree.tokens[path]])


# --- the mistakes -------------------------------------------------------------------------------------------


def show_siblings(target: HFTarget, patch: pytest.MonkeyPatch) -> None:
    honest = attention.fill_mask

    def filled_wrongly(mask: torch.Tensor, request: Request, start: int, window: int | None) -> None:
        honest(mask, request, start, window)
        fresh = request.rows.committed - start
        for row, parent in enumerate(request.parents.tolist()):
            twins = np.flatnonzero(request.parents[:row] == parent)
            mask[row, fresh + twins] = 0

    patch.setattr(attention, "fill_mask", filled_wrongly)


def forget_windows(target: HFTarget, patch: pytest.MonkeyPatch) -> None:
    honest = View.of
    patch.setattr(View, "of", lambda part, window, like, group: honest(part, None, like, group))


def shift_positions(target: HFTarget, patch: pytest.MonkeyPatch) -> None:
    honest = target.model.forward
    patch.setattr(
        target.model,
        "forward",
        lambda position_ids, **inputs: honest(position_ids=position_ids + 1, **inputs),
    )


def drop(argument: str) -> Callable[[HFTarget, pytest.MonkeyPatch], None]:
    def mistake(target: HFTarget, patch: pytest.MonkeyPatch) -> None:
        def forgetful(*given: Any, **options: Any) -> Any:
            assert options.pop(argument) is not None
            return attend(*given, **options)

        patch.setitem(ALL_ATTENTION_FUNCTIONS, ATTENTION_NAME, forgetful)

    return mistake


MISTAKES: dict[str, Callable[[HFTarget, pytest.MonkeyPatch], None]] = {
    "siblings visible": show_siblings,
    "windows off": forget_windows,
    "positions one on": shift_positions,
    "soft-cap off": drop("softcap"),
    "sinks off": drop("s_aux"),
}


def possible_mistakes(name: str) -> list[str]:
    """Alibi models get neither masks nor positions from us, so there is nothing to do wrong but keeping."""
    family = FAMILIES[name]
    possible = {
        "siblings visible": not family.alibi,
        "windows off": bool(family.windowed),
        "positions one on": not family.alibi,
        "soft-cap off": family.softcap,
        "sinks off": family.sinks,
    }
    return [mistake for mistake, is_possible in possible.items() if is_possible]


@pytest.mark.parametrize(("name", "mistake"), [(name, m) for name in FAMILIES for m in possible_mistakes(name)])
def test_a_mistake_shows(name: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, text = target_of(name), tokens(CONTEXT)
    tree = DraftTree.build(tokens(8, 6), [ROOT, ROOT, 0, 0, 1, 1, 2, 5])
    rows = filled(target, text)
    MISTAKES[mistake](target, monkeypatch)
    target.look()
    logits = score(target, rows, 1, tree)
    monkeypatch.undo()
    target.look()
    assert path_gaps(target.model, logits, text, 1, tree) > SEEN
    assert path_gaps(target.model, score(target, rows, 1, tree), text, 1, tree) < CLOSE


@every_family
def test_a_row_kept_in_the_wrong_place_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row of a path replaced by the one before it; their order alone would change nothing."""
    target, honest = target_of(name), CacheRows._gather  # opened first: the probe would refuse such rows

    def misplaced(rows: CacheRows, path: Ints) -> None:
        honest(rows, np.append(path[:-1], max(0, path[-1] - 1)))

    monkeypatch.setattr(CacheRows, "_gather", misplaced)
    assert gap_after_keeping(target) > SEEN
