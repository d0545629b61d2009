"""What the model nearly said, kept and drafted from: `unispec` node by node, `recycling` and its shape."""

import math
from typing import Any

import numpy as np
import pytest

from drafting import context_of, drafted, paths_of, round_of
from engine import PROMPT, SIZE, tabled, write
from paceline.drafters import Budget, make_drafter
from paceline.drafters.noise import SharedNoise
from paceline.drafters.recycling import LEVELS, TREES, WIDTH, Recycling, template
from paceline.drafters.store import SuccessorStore
from paceline.drafters.unispec import UniSpec, UniSpecState
from paceline.law import Sampling
from paceline.tree import DraftTree
from paceline.verify import Rule

METHODS = pytest.mark.parametrize("method", ["unispec", "recycling"])
Word = tuple[int, ...]


# --- the store ----------------------------------------------------------------------------------------------


@METHODS
def test_what_was_seen_last_is_what_is_proposed(method: str) -> None:
    drafter = make_drafter(method)
    state = drafter.open(context_of([7]))
    assert len(drafted(drafter, [7])) == 0
    drafter.observe([round_of(state, 7, [{3: 0.7, 4: 0.3}])])
    assert {3, 4} == {word[0] for word in paths_of(drafted(drafter, [7], Budget(9, 1)))}
    drafter.observe([round_of(state, 7, [{5: 1.0}])])
    tree = drafted(drafter, [7], Budget(9, 1))
    assert paths_of(tree) == [(5,)]
    assert tree.scores.tolist() == [0.0]
    assert len(drafted(drafter, [8])) == 0


@METHODS
def test_of_two_rows_of_one_token_the_one_that_became_text_counts(method: str) -> None:
    tree = DraftTree.build([7, 9, 7], [-1, -1, 1])
    laws = [{9: 1.0}, {1: 1.0}, {7: 1.0}, {2: 1.0}]
    for path, known in (([0], 1), ([1, 2], 2), ([1], 2)):
        drafter = make_drafter(method)
        state = drafter.open(context_of([7]))
        drafter.observe([round_of(state, 3, laws, tree, path)])
        assert paths_of(drafted(drafter, [7], Budget(9, 1))) == [(known,)]


@METHODS
def test_private_stores_do_not_leak_and_a_shared_one_is_forgotten_when_told(method: str) -> None:
    for where, leaks in (("shared", True), ("private", False), ("kept", True)):
        drafter = make_drafter(f"{method}:store={where}")
        state = drafter.open(context_of([7]))
        drafter.observe([round_of(state, 7, [{3: 1.0}])])
        assert len(drafter.propose_one(state, Budget(9, 9))) > 0
        assert (len(drafted(drafter, [7])) > 0) == leaks
        assert drafter.keeps == (where == "kept")
        drafter.reset()
        assert len(drafted(drafter, [7])) == 0


@pytest.mark.parametrize("spec", ["unispec", "foresight", "spectra:store=shared", "suffix:remember=99", "auto"])
def test_under_rejection_a_seed_repeats_its_text_and_its_drafts(spec: str) -> None:
    """A draft model samples beside a store, which knows of no other text."""
    target, drafter = tabled(), make_drafter(f"{spec},assistant" if spec != "auto" else spec, tabled())
    drafter.fit(target)
    how: dict[str, Any] = {"rule": Rule.REJECTION, "sampling": Sampling(temperature=1.0, seed=3), "nodes": 4}
    first, again = (write(target, PROMPT, drafter, max_new_tokens=40, **how) for _ in range(2))
    assert again.context.emitted.tolist() == first.context.emitted.tolist()
    assert [r.drafted for r in again.rounds] == [r.drafted for r in first.rounds]


@METHODS
def test_another_model_begins_with_an_empty_store_and_the_same_one_does_not(method: str) -> None:
    drafter, target = make_drafter(method), tabled()
    drafter.fit(target)
    state = drafter.open(context_of([3]))
    drafter.observe([round_of(state, 3, [{2: 1.0}], size=SIZE)])
    drafter.fit(target)
    assert len(drafted(drafter, [3], Budget(9, 1))) == 1
    drafter.fit(tabled())
    assert len(drafted(drafter, [3], Budget(9, 1))) == 0


@METHODS
def test_the_prompts_rows_teach_where_that_is_wanted(method: str) -> None:
    for prefill, known in (("false", {PROMPT[-1]}), ("true", set(PROMPT))):
        drafter = make_drafter(f"{method}:prefill={prefill}")
        write(tabled(), PROMPT * 4, drafter, max_new_tokens=1)
        assert {token for token in range(SIZE) if len(drafted(drafter, [token]))} == known


def test_a_store_has_rows_for_tokens_that_it_was_not_told_of() -> None:
    store = SuccessorStore(2)
    scores = round_of(None, 4, [{1: 0.5, 2: 0.5}]).scores
    store.learn(scores.tokens, scores.top(2), np.array([[0.5, 0.5]]), slice(None))
    assert len(store) == 5
    assert sorted(store.tokens[4].tolist()) == [1, 2]
    assert not store.chances[:4].any()


@METHODS
def test_an_open_text_goes_on_when_all_is_forgotten(method: str) -> None:
    drafter = make_drafter(method)
    state = drafter.open(context_of([7]))
    for _ in range(2):
        drafter.observe([round_of(state, 7, [{3: 0.5, 9: 0.5}])])
        assert len(drafter.propose_one(state, Budget(9, 9))) > 0
        drafter.reset()
        drafter.propose_one(state, Budget(9, 9)).check(50)


# --- unispec ------------------------------------------------------------------------------------------------

Row = list[tuple[int, float]]


def twin(
    store: dict[int, Row],
    cache: Row,
    root: int,
    budget: Budget,
    drafter: UniSpec,
    eos: frozenset[int],
) -> set[Word]:
    """The draft with the options of ``drafter``, a node at a time. Of equally worthy nodes those found first."""
    first: dict[int, float] = dict(store.get(root, []))
    for token, chance in cache if drafter.next != "none" else []:
        if token != root or drafter.next == "all":
            first[token] = max(chance, first.get(token, 0.0))
    level: list[tuple[Word, float]] = [((token,), chance) for token, chance in first.items()]
    everything = list(level)
    for _ in range(1, min(drafter.depth, budget.depth)):
        leaves = sorted(range(len(level)), key=lambda i: (-level[i][1], i))[: drafter.k]
        grown = []
        for word, worth in (level[leaf] for leaf in leaves):
            if worth >= drafter.threshold and word[-1] not in eos:
                for token, chance in store.get(word[-1], []):
                    grown.append(((*word, token), chance * worth if drafter.by_path else chance))
        level = grown
        everything += level
    best: set[Word] = set()
    while len(best) < min(budget.nodes, len(everything)):
        there = [
            i for i, (word, _) in enumerate(everything) if word not in best and (not word[:-1] or word[:-1] in best)
        ]
        best.add(everything[min(there, key=lambda i: (-everything[i][1], i))][0])
    return best


def filled(random: np.random.Generator, size: int, k: int) -> dict[int, Row]:
    """Rows for most tokens: some full, some short."""
    store = {}
    for token in range(size):
        count = int(random.integers(0, k + 1)) if random.random() < 0.4 else k
        weights = np.sort(random.exponential(size=k) ** 2)[::-1][:count]
        chances = (weights / (weights.sum() + random.random() + 1e-9)).astype(np.float32)
        row = random.permutation(size)[:count].tolist()
        store[token] = list(zip(row, chances.astype(float).tolist(), strict=True))
    return store


def entered(store: dict[int, Row], into: SuccessorStore) -> None:
    into.reset(len(store))
    for token, row in store.items():
        for place, (candidate, chance) in enumerate(row):
            into.tokens[token, place], into.chances[token, place] = candidate, chance


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("confidence", ["path", "token"])
@pytest.mark.parametrize("next_tokens", ["others", "all", "none"])
def test_the_draft_is_what_the_loop_chooses(seed: int, confidence: str, next_tokens: str) -> None:
    random = np.random.default_rng(seed)
    size, k = 25, int(random.integers(1, 6))
    drafter = UniSpec(
        k=k,
        depth=int(random.integers(1, 6)),
        threshold=float(random.choice([0.0, 0.05, 0.3])),
        confidence=confidence,
        next=next_tokens,
    )
    store, root = filled(random, size, k), int(random.integers(size))
    eos = frozenset(random.integers(0, size, 2).tolist())
    state: UniSpecState = drafter.open(context_of([1, root], eos=list(eos)))
    entered(store, state.store)
    cache = filled(random, size, k)[0]
    if cache:
        padded = cache + [(0, 0.0)] * (k - len(cache))
        state.others = np.array([token for token, _ in padded])
        state.chances, state.length = np.array([chance for _, chance in padded]), len(state.context)
    budget = Budget(int(random.integers(1, 40)), int(random.integers(1, 8)))
    tree = drafter.propose_one(state, budget)
    tree.check(size)
    assert len(set(paths_of(tree))) == len(tree)
    assert set(paths_of(tree)) == twin(store, cache, root, budget, drafter, eos)


def test_the_next_next_token_is_named_and_one_candidate_of_both_is_one_node() -> None:
    drafter = UniSpec()
    context = context_of([7])
    state = drafter.open(context)
    drafter.observe([round_of(state, 9, [{3: 0.2, 4: 0.8}])])
    context.commit(9)
    drafter.observe([round_of(state, 7, [{9: 0.5, 4: 0.3, 5: 0.2}])])
    tree = drafter.propose_one(state, Budget(9, 1))
    nodes = zip(tree.tokens.tolist(), tree.sources, np.exp(tree.scores).round(3).tolist(), strict=True)
    said = {token: (source, chance) for token, source, chance in nodes}
    both = "unispec+unispec-next"
    assert said == {3: ("unispec", 0.2), 4: (both, 0.8), 5: ("unispec-next", 0.2)}
    alone = UniSpec(next="none")
    state = alone.open(context_of([9]))
    alone.observe([round_of(state, 9, [{3: 0.2, 4: 0.8}])])
    assert set(alone.propose_one(state, Budget(9, 1)).sources) == {"unispec"}


def test_without_scores_ranks_alone_decide() -> None:
    drafter = UniSpec(scores=False, next="none")
    state = drafter.open(context_of([0]))
    rows = [{1: 0.98, 2: 0.02}, {3: 0.9, 4: 0.1}, {5: 0.9, 6: 0.1}]
    drafter.observe([round_of(state, 0, rows, DraftTree.build([1, 2], [-1, -1]))])
    assert set(paths_of(drafter.propose_one(state, Budget(4, 9)))) == {(1,), (2,), (1, 3), (2, 5)} - {(2, 5)} | {(1, 4)}


# --- recycling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", list(TREES))
def test_the_shape_has_the_papers_sizes(tree: str) -> None:
    shape = template(80, 99, tree)
    assert tuple(np.diff(shape.starts)) == LEVELS == (8, 21, 25, 15, 8, 3)
    depths = DraftTree.build(range(80), shape.parents).depths()
    assert np.bincount(depths).tolist() == [0, *LEVELS]
    places = set(zip(shape.parents.tolist(), shape.ranks.tolist(), strict=True))
    assert len(places) == 80
    assert shape.ranks.max() == WIDTH - 1


@pytest.mark.parametrize("tree", list(TREES))
@pytest.mark.parametrize("nodes", [1, 2, 7, 30, 53, 79])
def test_a_smaller_shape_is_the_cheapest_part_of_a_larger(nodes: int, tree: str) -> None:
    def paths(count: int, depth: int = 99) -> set[Word]:
        shape = template(count, depth, tree)
        return set(paths_of(DraftTree.build(shape.ranks, shape.parents)))

    def cost(path: Word) -> int:
        return math.prod(rank + 1 for rank in path)

    assert paths(nodes) < paths(nodes + 1)
    assert len(paths(nodes)) == nodes
    assert max(map(cost, paths(nodes))) <= min(map(cost, paths(80) - paths(nodes)))
    assert all(len(path) <= 2 for path in paths(nodes, 2))


def test_the_shape_is_filled_by_rank() -> None:
    random = np.random.default_rng(0)
    store = {token: row for token, row in filled(random, 40, WIDTH).items() if len(row) == WIDTH or token == 3}
    drafter = Recycling()
    state = drafter.open(context_of([9], eos=[5]))
    entered({token: store.get(token, []) for token in range(40)}, state.store)
    tree = drafter.propose_one(state, Budget(80, 99))
    tree.check(40)
    shape = template(80, 99, "cheapest")
    expected = set()
    for path in paths_of(DraftTree.build(shape.ranks, shape.parents)):
        token, word = 9, []
        for rank in path:
            row = [] if token == 5 else store.get(token, [])
            if rank >= len(row):
                break
            token = row[rank][0]
            word.append(token)
        else:
            expected.add(tuple(word))
    assert set(paths_of(tree)) == expected


def test_candidates_are_foreseen_as_the_clocks_will_ring() -> None:
    context = context_of([1, 2], temperature=1.0)
    ids, chances = np.array([[3, 8, 5], [2, 0, 9]]), np.array([[0.5, 0.3, 0.1], [1.0, 0.0, 0.0]])
    found = SharedNoise(context).wins(chances, ids, 2)
    clocks = context.exponentials(2, ids.ravel()).reshape(2, 3)
    speed = chances / clocks
    assert np.allclose(found[0], speed[0] / (speed[0].sum() + 0.1))
    assert np.allclose(found[1], [1.0, 0.0, 0.0])
