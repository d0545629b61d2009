"""A draft scored in pieces, later ones below rows of earlier ones, is the draft scored at once."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from families import FAMILIES, WINDOW
from paceline.targets.base import Request, Rows
from paceline.targets.hf.target import HFTarget
from paceline.targets.table import TableTarget, random_table
from paceline.tree import DraftTree, Ints, rows_of
from scoring import CLOSE, CONTEXT, SEEN, apart, draft_for, filled, masked, random_tree, score, target_of, tokens

every_family = pytest.mark.parametrize("name", FAMILIES)


def pieces(rows: Rows, root: int, tree: DraftTree, cuts: list[int]) -> list[Request]:
    """The rows of a draft as requests that end at ``cuts``; each is to be scored before the next is made."""
    ids, parents = rows_of(root, tree)
    edges = [0, *cuts, len(ids)]
    return [Request(rows, ids[a:b], parents[:b], held=a) for a, b in pairwise(edges)]


def grown(target: HFTarget, rows: Rows, root: int, tree: DraftTree, cuts: list[int]) -> torch.Tensor:
    parts = pieces(rows, root, tree, cuts)
    return torch.cat([target.submit([part]).result()[0].logits for part in parts])


def some_cuts(tree: DraftTree, seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    return sorted(random.choice(np.arange(1, len(tree) + 1), size=min(3, len(tree)), replace=False).tolist())


@every_family
def test_growing_a_draft_is_scoring_it_at_once(name: str) -> None:
    target = target_of(name)
    for seed in range(4):
        for length in (CONTEXT, 1):
            text, root, tree = tokens(length, seed), seed + 1, draft_for(target, seed)
            whole = score(target, filled(target, text), root, tree)
            assert apart(grown(target, filled(target, text), root, tree, some_cuts(tree, seed)), whole) < CLOSE
        bare = score(target, target.open(), 1, tree)
        assert apart(grown(target, target.open(), 1, tree, some_cuts(tree, seed)), bare) < CLOSE


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.alibi])
def test_so_it_is_where_the_model_gets_all_of_its_keys_back(name: str) -> None:
    target = masked(name)
    text, tree = tokens(CONTEXT), random_tree(3)
    whole = score(target, filled(target, text), 5, tree)
    assert apart(grown(target, filled(target, text), 5, tree, some_cuts(tree, 1)), whole) < CLOSE


@every_family
def test_a_path_through_grown_rows_can_be_kept(name: str) -> None:
    target = target_of(name)
    text, tree, after = tokens(CONTEXT), draft_for(target, 1), draft_for(target, 2)
    rows = filled(target, text, capacity=8)
    grown(target, rows, 4, tree, some_cuts(tree, 2))
    rows.check()
    path = tree.path(int(tree.depths().argmax()))
    rows.keep([0, *(node + 1 for node in path)])
    rows.check()
    went = np.concatenate([text, [4], tree.tokens[path]])
    assert rows.tokens.tolist() == went.tolist()
    assert apart(score(target, rows, 7, after), score(target, filled(target, went), 7, after)) < CLOSE


def test_sequences_grow_together_each_at_its_own_pace() -> None:
    target = target_of("mistral")
    texts = [tokens(CONTEXT, 1), tokens(3, 2), tokens(WINDOW, 3)]
    trees = [random_tree(seed, 9) for seed in range(3)]
    cuts = [[1, 4], [5, 6], [2, 9]]
    rows = [filled(target, text) for text in texts]
    parts = [pieces(r, 1, tree, cut) for r, tree, cut in zip(rows, trees, cuts, strict=True)]
    found: list[list[torch.Tensor]] = [[], [], []]
    for step in zip(*parts, strict=True):
        for number, one in enumerate(target.submit(step).result()):
            found[number].append(one.logits)
    for text, tree, logits in zip(texts, trees, found, strict=True):
        assert apart(torch.cat(logits), score(target, filled(target, text), 1, tree)) < CLOSE


def test_rows_that_are_not_held_are_gone() -> None:
    """Growing again from an earlier piece: what was scored since leaves no trace."""
    target, text, tree = target_of("llama"), tokens(CONTEXT), random_tree(4, 8)
    rows = filled(target, text)
    first, second = pieces(rows, 3, tree, [4])
    target.submit([first]).result()
    other = Request(rows, np.array([9, 9, 9]), np.array([*first.parents, 3, 4, 5]), held=4)
    target.submit([other]).result()
    logits = target.submit([second]).result()[0].logits
    assert apart(logits, score(target, filled(target, text), 3, tree)[4:]) < CLOSE


def test_a_held_row_that_is_read_as_its_neighbour_is_seen() -> None:
    """The law above is no formality: parents off by one change what is scored."""
    target, text, tree = target_of("llama"), tokens(CONTEXT), DraftTree.build([5, 6, 7, 8], [-1, -1, 0, 1])
    rows = filled(target, text)
    first, second = pieces(rows, 3, tree, [3])
    target.submit([first]).result()
    wrong = Request(rows, second.tokens, swapped(second.parents), held=3)
    logits = target.submit([wrong]).result()[0].logits
    assert apart(logits, score(target, filled(target, text), 3, tree)[3:]) > SEEN


def swapped(parents: Ints) -> Ints:
    wrong = parents.copy()
    wrong[-2:] = wrong[-2:][::-1]
    return wrong


def test_a_table_grows_as_a_model_does() -> None:
    target = TableTarget(random_table(7, seed=2), 7)
    tree = random_tree(2, 9)
    tree = DraftTree.build((tree.tokens % 7).tolist(), tree.parents.tolist())
    whole = target.submit([Request.of_tree(target.open(), 2, tree)]).result()[0].logits
    rows = target.open()
    found = [target.submit([part]).result()[0].logits for part in pieces(rows, 2, tree, [2, 5])]
    assert np.array_equal(np.concatenate(found), whole)
    rows.keep([0])
    rows.check()
