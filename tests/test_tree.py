"""Draft trees: what is shared, what survives a cut, and what a drafter is told when it breaks a rule."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from paceline.errors import DrafterError
from paceline.law import Distribution
from paceline.tree import EMPTY, ROOT, UNSURE, DraftTree, ancestors, merge, offsets, rows_of

EVERY_TREE = pytest.mark.parametrize("seed", range(60))
VOCABULARY = 4
Path = tuple[int, ...]


def law(*tokens: int) -> Distribution:
    return Distribution(np.array(tokens), np.ones(len(tokens)))


def random_tree(seed: int, *, probes: bool = False, size: int | None = None) -> DraftTree:
    """Any tree a drafter may give: scores with ties, in any topological order; siblings differ, save probes."""
    random = np.random.default_rng(seed)
    tokens, parents, marks = list[int](), list[int](), list[bool]()
    while len(tokens) < (int(random.integers(0, 12)) if size is None else size):
        parent, token = int(random.integers(-1, len(tokens))), int(random.integers(VOCABULARY))
        probe = probes and bool(random.random() < 0.4)
        siblings = zip(tokens, parents, marks, strict=True)
        if probe or (token, parent) not in [(t, p) for t, p, m in siblings if not m]:
            tokens.append(token)
            parents.append(parent)
            marks.append(probe)
    scores = -random.integers(0, 3, len(tokens)).astype(float)
    return DraftTree.build(tokens, parents, source=f"s{seed % 3}", scores=scores, probes=marks if probes else None)


def words(tree: DraftTree) -> list[Path]:
    """The tokens from the root down to each node: what a node stands for, wherever it stands."""
    return [tuple(int(tree.tokens[i]) for i in tree.path(node)) for node in range(len(tree))]


def below(tree: DraftTree, nodes: Iterable[int]) -> set[int]:
    return {ancestor for node in nodes for ancestor in tree.path(node)}


# --- making trees -------------------------------------------------------------------------------------------


def test_beams_share_their_beginnings_and_stand_by_depth() -> None:
    tree = DraftTree.from_beams([[5, 6, 7], [5, 6], [8], [5, 9, 7], [8, 6]], source="b")
    assert tree.tokens.tolist() == [5, 8, 6, 9, 6, 7, 7]
    assert tree.parents.tolist() == [-1, -1, 0, 0, 1, 2, 3]
    assert tree.sources == ("b",) * 7
    assert len(DraftTree.from_beams([])) == len(DraftTree.from_beams([[], []])) == 0


def test_tokens_without_a_score_are_unsure() -> None:
    tree = DraftTree.from_beams([[5, 6, 7], [8, 9], [4]], scores=[[-1.0], [-2.0, -3.0, -4.0]])
    assert tree.tokens.tolist() == [5, 8, 4, 6, 9, 7]
    assert tree.scores.tolist() == [-1.0, -2.0, UNSURE, UNSURE, -3.0, UNSURE]


@EVERY_TREE
def test_beams_become_the_set_of_their_prefixes(seed: int) -> None:
    random = np.random.default_rng(seed)
    beams = [random.integers(0, 3, random.integers(0, 5)).tolist() for _ in range(random.integers(0, 6))]
    scores = [[-float(len(beam) + depth) for depth in range(len(beam))] for beam in beams]
    tree = DraftTree.from_beams(beams, scores=scores)
    tree.check(3)
    assert len(tree) == len(words(tree)) == len(set(words(tree)))
    assert set(words(tree)) == {tuple(beam[: i + 1]) for beam in beams for i in range(len(beam))}
    assert (np.diff(tree.depths()) >= 0).all()
    for node, word in enumerate(words(tree)):
        first = next(i for i, beam in enumerate(beams) if tuple(beam[: len(word)]) == word)
        assert tree.scores[node] == scores[first][len(word) - 1]


def test_beams_are_packed_as_in_the_papers_figure() -> None:
    """Fifteen tokens of three beams that share their beginnings become eight."""
    tree = DraftTree.from_beams([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 7, 8]])
    assert len(tree) == 8
    assert words(tree)[-2:] == [(1, 2, 3, 4, 6), (1, 2, 3, 7, 8)]


def test_a_chain_names_the_law_of_every_token() -> None:
    first, second = law(1, 2), law(0, 3)
    tree = DraftTree.chain([2, 3], laws=[first, second], scores=[-1.0, -2.0])
    assert tree.parents.tolist() == [-1, 0]
    assert tree.drawn == {ROOT: first, 0: second}
    assert tree.path_scores().tolist() == [-1.0, -3.0]


def test_rows_are_the_root_and_its_nodes() -> None:
    tokens, parents = rows_of(9, DraftTree.build([1, 2, 3], [-1, 0, -1]))
    assert tokens.tolist() == [9, 1, 2, 3]
    assert parents.tolist() == [-1, 0, 1, 0]


# --- reading trees ------------------------------------------------------------------------------------------


@EVERY_TREE
def test_what_a_tree_says_of_its_nodes(seed: int) -> None:
    tree = random_tree(seed, probes=seed % 2 == 0)
    for node in range(len(tree)):
        path = tree.path(node)
        assert path[-1] == node
        assert [ROOT, *path[:-1]] == [int(tree.parents[i]) for i in path]
        assert tree.depths()[node] == len(path)
        assert tree.path_scores()[node] == sum(tree.scores[i] for i in path)
    for parent in range(-1, len(tree)):
        real = [i for i in range(len(tree)) if tree.parents[i] == parent]
        if tree.probes is not None:
            real = [i for i in real if not tree.probes[i]]
        assert tree.children(parent).tolist() == real
        by_token = {int(tree.tokens[i]): i for i in real}
        assert [tree.child(parent, t) for t in range(VOCABULARY)] == [by_token.get(t) for t in range(VOCABULARY)]


@EVERY_TREE
def test_a_row_sees_its_ancestors_and_stands_behind_them(seed: int) -> None:
    _, parents = rows_of(0, random_tree(seed))
    seen = np.zeros((len(parents), len(parents)), bool)
    for row in range(len(parents)):
        ancestor = row
        while ancestor != -1:
            seen[row, ancestor] = True
            ancestor = int(parents[ancestor])
    assert (ancestors(parents) == seen).all()
    assert offsets(parents).tolist() == [int(row.sum()) - 1 for row in seen]


@pytest.mark.parametrize("length", range(4))
def test_a_row_of_a_chain_sees_all_before_it(length: int) -> None:
    chain = np.arange(-1, length - 1)
    assert (ancestors(chain) == np.tri(length, dtype=bool)).all()
    assert offsets(chain).tolist() == list(range(length))


# --- cutting trees ------------------------------------------------------------------------------------------


@EVERY_TREE
def test_the_head_is_the_first_nodes_and_keeps_their_laws(seed: int) -> None:
    tree = random_tree(seed, size=8)
    laws = {parent: law(*range(VOCABULARY)) for parent in (-1, 0, 3, 6)}
    tree = tree.select(range(8), drawn=laws)
    for count in range(10):
        for depth in (None, 1, 2, 9):
            kept = [i for i in range(min(count, 8)) if depth is None or len(tree.path(i)) <= depth]
            head = tree.head(count, depth=depth)
            assert words(head) == [words(tree)[i] for i in kept]
            held = {kept.index(p) if p != ROOT else ROOT: q for p, q in laws.items() if p in [ROOT, *kept]}
            assert head.drawn == held
    assert tree.head(8) is tree.head(9, depth=9) is tree


@EVERY_TREE
def test_the_trunk_is_the_line_of_first_children(seed: int) -> None:
    tree = random_tree(seed, probes=seed % 2 == 0)
    trunk = tree.trunk()
    assert trunk.parents.tolist() == list(range(-1, len(trunk) - 1))
    line: list[int] = []
    while len(children := tree.children(line[-1] if line else ROOT)):
        line.append(int(children[0]))
    assert words(trunk) == [words(tree)[i] for i in line]


def test_the_trunk_keeps_the_laws_of_its_line() -> None:
    at_root, at_first, at_second = law(0, 1), law(0, 2), law(3)
    laws = {ROOT: at_root, 0: at_first, 1: at_second}
    tree = DraftTree.build([0, 1, 2, 3], [-1, -1, 0, 1], drawn=laws)
    assert tree.trunk().drawn == {ROOT: at_root, 0: at_first}


@EVERY_TREE
def test_the_top_is_connected_best_and_forgets_its_laws(seed: int) -> None:
    tree = random_tree(seed)
    tree = tree.select(range(len(tree)), drawn={ROOT: law(*range(VOCABULARY))})
    totals, depths = tree.path_scores(), tree.depths()
    for count in range(len(tree)):
        top = tree.top(count)
        top.check(VOCABULARY)
        best = sorted(range(len(tree)), key=lambda i: (-totals[i], depths[i], i))[:count]
        assert words(top) == [words(tree)[i] for i in sorted(best)]
        assert not top.drawn
    assert tree.top(len(tree)) is tree


@EVERY_TREE
def test_probes_are_exempt_from_pruning(seed: int) -> None:
    tree = random_tree(seed, probes=True)
    assert tree.probes is not None
    probes = set(np.flatnonzero(tree.probes).tolist())
    real_above = below(tree, probes) - probes
    for count in range(len(real_above), len(tree)):
        top = tree.top(count)
        assert top.probes is not None
        assert top.probes.sum() == len(probes)
        assert len(top) == min(len(tree), count + len(probes))
        kept = {word for word, probe in zip(words(top), top.probes, strict=True) if not probe}
        assert {words(tree)[i] for i in real_above} <= kept


def test_a_selection_without_its_parents_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="must hold the parents"):
        DraftTree.chain([1, 2, 3]).select([0, 2])


# --- merging trees ------------------------------------------------------------------------------------------


@EVERY_TREE
def test_a_union_holds_every_path_once_with_all_its_sources(seed: int) -> None:
    trees = [random_tree(seed + 100 * i) for i in range(1 + seed % 4)]
    union = merge(trees)
    union.check(VOCABULARY)
    assert len(set(words(union))) == len(union)
    assert set(words(union)) == {word for tree in trees for word in words(tree)}
    for node, word in enumerate(words(union)):
        places = [(tree, words(tree).index(word)) for tree in trees if word in words(tree)]
        assert union.scores[node] == max(tree.scores[i] for tree, i in places)
        assert union.sources[node] == "+".join(dict.fromkeys(tree.sources[i] for tree, i in places))


def test_a_union_forgets_how_its_children_were_drawn() -> None:
    drawn = DraftTree.chain([1], laws=[law(1, 2)])
    assert not merge([drawn, DraftTree.chain([2])]).drawn
    assert not merge([drawn]).drawn
    assert len(merge([])) == len(merge([EMPTY, EMPTY])) == 0


def test_probes_do_not_merge() -> None:
    probing = DraftTree.build([1, 2], [-1, 0], probes=[True, True], source="w")
    union = merge([probing, DraftTree.chain([1, 2], source="c"), probing])
    assert union.sources == ("w", "w", "c", "c", "w", "w")
    assert union.probes is not None
    assert union.probes.tolist() == [True, True, False, False, True, True]
    assert words(union.trunk()) == [(1,), (1, 2)]


# --- what a drafter is told ---------------------------------------------------------------------------------


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("of 2 tokens needs as many parents", {"tokens": [1, 2], "parents": [-1]}),
    ("of 0 tokens needs as many parents", {"tokens": [], "parents": [], "scores": [0.0]}),
    ("as many parents, scores", {"tokens": [1], "parents": [-1], "scores": [0.0, 0.0]}),
    ("sources and probe marks", {"tokens": [1], "parents": [-1], "probes": []}),
    ("the parent of node 0 is 1; a parent is an earlier node", {"tokens": [1, 2], "parents": [1, -1]}),
    ("the parent of node 0 is 0", {"tokens": [1], "parents": [0]}),
    ("the parent of node 1 is -2", {"tokens": [1, 2], "parents": [-1, -2]}),
    ("token 4, and the target's vocabulary has 4", {"tokens": [1, 4], "parents": [-1, -1]}),
    ("token -3; token ids start at 0", {"tokens": [-3], "parents": [-1]}),
    ("log-probabilities, at most 0; it has 0.5", {"tokens": [1], "parents": [-1], "scores": [0.5]}),
    ("it has nan", {"tokens": [1], "parents": [-1], "scores": [float("nan")]}),
    ("carry the same token", {"tokens": [1, 2, 1], "parents": [-1, 0, -1]}),
    ("carry the same token", {"tokens": [1, 2, 2], "parents": [-1, 0, 0]}),
    ("node 1, which it does not have", {"tokens": [1], "parents": [-1], "drawn": {1: law(1)}}),
    ("node -2, which it does not have", {"tokens": [1], "parents": [-1], "drawn": {-2: law(1)}}),
    ("token 3 of a draft cannot come", {"tokens": [1, 3], "parents": [-1, -1], "drawn": {ROOT: law(1, 2)}}),
]


@pytest.mark.parametrize(("sentence", "tree"), BROKEN)
def test_a_broken_tree_is_told_which_rule_it_broke(sentence: str, tree: dict[str, Any]) -> None:
    with pytest.raises(DrafterError, match=sentence):
        DraftTree.build(**tree).check(VOCABULARY)


@pytest.mark.parametrize("tokens", [[1.5], [1, "2"], np.array([1.0]), [None]])
def test_token_ids_that_are_no_whole_numbers_are_refused_and_not_cut_off(tokens: Any) -> None:
    for make in (DraftTree.chain, lambda ids: DraftTree.build(ids, [-1] * len(ids))):
        with pytest.raises(TypeError):
            make(tokens)
    with pytest.raises(DrafterError, match="int64 arrays, not float64"):
        DraftTree(np.array([1.0]), np.array([-1]), np.array([0.0]), ("",)).check(VOCABULARY)


def test_a_sound_tree_is_told_nothing() -> None:
    EMPTY.check(0)
    DraftTree.build([1, 1, 1], [-1, 0, 0], probes=[False, False, True]).check(2)
    DraftTree.build([1, 3], [-1, -1], drawn={ROOT: law(1, 3)}, scores=[0.0, -np.inf]).check(4)
    DraftTree.build([9], [-1]).check()


def test_the_head_keeps_probes_that_still_hang_from_something() -> None:
    tree = DraftTree.build([1, 2, 3, 4, 5], [-1, 0, -1, 1, 2], probes=[False, False, True, True, True])
    cut = tree.head(1)
    assert cut.tokens.tolist() == [1, 3, 5]
    assert cut.probes is not None
    assert cut.probes.tolist() == [False, True, True]
    assert tree.head(2) is tree
    assert tree.head(0).tokens.tolist() == [3, 5]
