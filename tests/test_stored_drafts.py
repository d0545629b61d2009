"""What the model nearly said, kept and drafted from: `unispec` against the paper's loop, `recycling` and its shape."""

import math
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from engine import PROMPT, SIZE, habitual, tabled, write, write_slowly
from enumeration import Coins, FractionLaw, Tokens, World, output_law
from paceline.context import Context, Ending
from paceline.drafters import Budget, Drafter, Seen, make_drafter
from paceline.drafters.noise import SharedNoise
from paceline.drafters.recycling import LEVELS, WIDTH, Recycling, template
from paceline.drafters.store import Store
from paceline.drafters.unispec import Text, UniSpec
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Sampling
from paceline.planning.fixed import Fixed
from paceline.targets.base import Request
from paceline.targets.scores import Scores
from paceline.targets.table import TableTarget
from paceline.tree import EMPTY, DraftTree
from paceline.verify import Rule, Verdict

METHODS = pytest.mark.parametrize("method", ["unispec", "recycling"])
Word = tuple[int, ...]


def context_of(tokens: Sequence[int], *, eos: Sequence[int] = (), temperature: float = 0.0, seed: int = 0) -> Context:
    sampling = Sampling(temperature=temperature, seed=seed)
    return Context(tokens, sampling, Ending(max_new_tokens=1000, eos=frozenset(eos)))


def words(tree: DraftTree) -> list[Word]:
    return [tuple(int(tree.tokens[i]) for i in tree.path(node)) for node in range(len(tree))]


def round_of(
    state: Any, root: int, tree: DraftTree, rows: Sequence[dict[int, float]], path: Sequence[int], *, size: int = 50
) -> Seen:
    """A round whose rows give the named tokens those probabilities and no other token any."""
    logits = torch.full((len(rows), size), -math.inf)
    for row, law in enumerate(rows):
        for token, chance in law.items():
            logits[row, token] = math.log(chance)
    request = Request.of_tree(TableTarget(lambda _: [0.0] * size, size).open(), root, tree)
    return Seen(state, Verdict(tuple(path), (1,) * (len(path) + 1), len(path)), Scores(request, logits))


# --- the store ----------------------------------------------------------------------------------------------


@METHODS
def test_what_was_seen_last_is_what_is_proposed(method: str) -> None:
    drafter = make_drafter(method)
    state = drafter.open(context_of([7]))
    assert len(drafter.propose_one(state, Budget(9, 9))) == 0
    drafter.observe([round_of(state, 7, EMPTY, [{3: 0.7, 4: 0.3}], [])])
    assert {3, 4} == {word[0] for word in words(drafter.propose_one(drafter.open(context_of([7])), Budget(9, 1)))}
    drafter.observe([round_of(state, 7, EMPTY, [{5: 1.0}], [])])
    tree = drafter.propose_one(drafter.open(context_of([7])), Budget(9, 1))
    assert words(tree) == [(5,)]
    assert tree.scores.tolist() == [0.0]
    assert len(drafter.propose_one(drafter.open(context_of([8])), Budget(9, 9))) == 0


@METHODS
def test_of_two_rows_of_one_token_the_one_that_became_text_counts(method: str) -> None:
    tree = DraftTree.build([7, 9, 7], [-1, -1, 1])
    laws = [{9: 1.0}, {1: 1.0}, {7: 1.0}, {2: 1.0}]
    for path, known in (([0], 1), ([1, 2], 2), ([1], 2)):
        drafter = make_drafter(method)
        state = drafter.open(context_of([7]))
        drafter.observe([round_of(state, 3, tree, laws, path)])
        assert words(drafter.propose_one(drafter.open(context_of([7])), Budget(9, 1))) == [(known,)]


@METHODS
def test_private_stores_do_not_leak_and_a_shared_one_is_forgotten_when_told(method: str) -> None:
    for where, leaks in (("shared", True), ("private", False)):
        drafter = make_drafter(f"{method}:store={where}")
        state = drafter.open(context_of([7]))
        drafter.observe([round_of(state, 7, EMPTY, [{3: 1.0}], [])])
        assert len(drafter.propose_one(state, Budget(9, 9))) > 0
        assert (len(drafter.propose_one(drafter.open(context_of([7])), Budget(9, 9))) > 0) == leaks
        drafter.reset()
        fresh = drafter.open(context_of([7]))
        assert len(drafter.propose_one(fresh, Budget(9, 9))) == 0


@METHODS
def test_another_model_begins_with_an_empty_store_and_the_same_one_does_not(method: str) -> None:
    drafter, target = make_drafter(method), tabled()
    drafter.fit(target)
    state = drafter.open(context_of([3]))
    drafter.observe([round_of(state, 3, EMPTY, [{2: 1.0}], [], size=SIZE)])
    drafter.fit(target)
    assert len(drafter.propose_one(drafter.open(context_of([3])), Budget(9, 1))) == 1
    drafter.fit(tabled())
    assert len(drafter.propose_one(drafter.open(context_of([3])), Budget(9, 1))) == 0


@METHODS
def test_the_prompts_rows_teach_where_that_is_wanted(method: str) -> None:
    found = []
    for prefill in ("false", "true"):
        drafter = make_drafter(f"{method}:prefill={prefill}")
        session = write(tabled(), PROMPT * 4, drafter, max_new_tokens=2)
        found.append(session.rounds[0].drafted)
    assert found[0] == 0 < found[1]


def test_a_store_has_rows_for_tokens_that_it_was_not_told_of() -> None:
    store = Store(2)
    scores = round_of(None, 4, EMPTY, [{1: 0.5, 2: 0.5}], []).scores
    store.learn(scores.tokens, scores.top(2), np.array([[0.5, 0.5]]), slice(None))
    assert len(store) == 5
    assert sorted(store.tokens[4].tolist()) == [1, 2]
    assert not store.chances[:4].any()


@METHODS
def test_rows_that_say_nothing_teach_nothing(method: str) -> None:
    drafter = make_drafter(method)
    state = drafter.open(context_of([7]))
    for value in (-math.inf, math.nan):
        request = Request.of_tree(tabled().open(), 7, EMPTY)
        told = Scores(request, torch.full((1, 50), value))
        drafter.observe([Seen(state, Verdict((), (1,), 0), told)])
        assert len(drafter.propose_one(state, Budget(9, 9))) == 0


@METHODS
def test_an_open_text_goes_on_when_all_is_forgotten(method: str) -> None:
    drafter = make_drafter(method)
    state = drafter.open(context_of([7]))
    for _ in range(2):
        drafter.observe([round_of(state, 7, EMPTY, [{3: 0.5, 9: 0.5}], [])])
        assert len(drafter.propose_one(state, Budget(9, 9))) > 0
        drafter.reset()
        drafter.propose_one(state, Budget(9, 9)).check(50)


def test_texts_in_several_threads_share_a_store_and_their_drafts_are_whole() -> None:
    drafter, target = UniSpec(), tabled()
    drafter.fit(target)
    expected = write_slowly(target, PROMPT, Sampling(), max_new_tokens=60).tokens
    texts: list[list[int]] = []

    def one() -> None:
        texts.append(write(target, PROMPT, drafter, max_new_tokens=60).context.emitted.tolist())

    threads = [Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [expected] * 4


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
    """The paper's loop, a node at a time. Of equally worthy nodes those found first."""
    first: dict[int, float] = dict(store.get(root, []))
    for token, chance in cache if drafter.next != "none" else []:
        if token != root or drafter.next == "all":
            first[token] = max(chance, first.get(token, 0.0))
    level: list[tuple[Word, float, float]] = [((token,), chance, chance) for token, chance in first.items()]
    everything = list(level)
    for _ in range(1, min(drafter.depth, budget.depth)):
        rank = [worth if drafter.by_path else own for _, own, worth in level]
        leaves = sorted(range(len(level)), key=lambda i: (-rank[i], i))[: drafter.k]
        grown = []
        for leaf in leaves:
            word, _, above = level[leaf]
            if rank[leaf] >= drafter.threshold and word[-1] not in eos:
                for token, chance in store.get(word[-1], []):
                    worth = chance * above if drafter.by_path else min(chance, above)
                    grown.append(((*word, token), chance, worth))
        level = grown
        everything += level
    best = sorted(range(len(everything)), key=lambda i: (-everything[i][2], i))[: budget.nodes]
    return {everything[i][0] for i in best}


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


def entered(store: dict[int, Row], into: Store) -> None:
    into.reset(len(store))
    for token, row in store.items():
        for place, (candidate, chance) in enumerate(row):
            into.tokens[token, place], into.chances[token, place] = candidate, chance


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("confidence", ["path", "token"])
@pytest.mark.parametrize("next_tokens", ["others", "all", "none"])
def test_the_draft_is_what_the_papers_loop_chooses(seed: int, confidence: str, next_tokens: str) -> None:
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
    state: Text = drafter.open(context_of([1, root], eos=list(eos)))
    entered(store, state.store)
    cache = filled(random, size, k)[0]
    if cache:
        padded = cache + [(0, 0.0)] * (k - len(cache))
        state.others = np.array([token for token, _ in padded])
        state.chances = np.array([chance for _, chance in padded])
    budget = Budget(int(random.integers(1, 40)), int(random.integers(1, 8)))
    tree = drafter.propose_one(state, budget)
    tree.check(size)
    assert len(set(words(tree))) == len(tree)
    assert set(words(tree)) == twin(store, cache, root, budget, drafter, eos)


def test_the_next_next_token_is_named_and_one_candidate_of_both_is_one_node() -> None:
    drafter = UniSpec()
    context = context_of([7])
    state = drafter.open(context)
    drafter.observe([round_of(state, 9, EMPTY, [{3: 0.2, 4: 0.8}], [])])
    drafter.observe([round_of(state, 7, EMPTY, [{9: 0.5, 4: 0.3, 5: 0.2}], [])])
    context.commit(9)
    tree = drafter.propose_one(state, Budget(9, 1))
    said = {int(token): (source, round(float(np.exp(score)), 3)) for token, source, score in _nodes(tree)}
    both = "unispec+unispec-next"
    assert said == {3: ("unispec", 0.2), 4: (both, 0.8), 5: ("unispec-next", 0.2)}
    alone = UniSpec(next="none")
    state = alone.open(context_of([9]))
    alone.observe([round_of(state, 9, EMPTY, [{3: 0.2, 4: 0.8}], [])])
    assert set(alone.propose_one(state, Budget(9, 1)).sources) == {"unispec"}


def _nodes(tree: DraftTree) -> list[tuple[int, str, float]]:
    return list(zip(tree.tokens.tolist(), tree.sources, tree.scores.tolist(), strict=True))


def test_without_scores_ranks_alone_decide() -> None:
    drafter = UniSpec(scores=False, next="none")
    state = drafter.open(context_of([0]))
    rows = [{1: 0.98, 2: 0.02}, {3: 0.9, 4: 0.1}, {5: 0.9, 6: 0.1}]
    drafter.observe([round_of(state, 0, DraftTree.build([1, 2], [-1, -1]), rows, [])])
    assert set(words(drafter.propose_one(state, Budget(4, 9)))) == {(1,), (2,), (1, 3), (2, 5)} - {(2, 5)} | {(1, 4)}


@pytest.mark.parametrize(
    "option",
    ["k=0", "depth=0", "threshold=2", "confidence=both", "next=some", "store=lent", "noise=loud"],
)
def test_an_option_that_cannot_be_is_told(option: str) -> None:
    with pytest.raises(ValueError, match=f"unispec .*{option.split('=')[0]}"):
        make_drafter(f"unispec:{option}")


# --- recycling ----------------------------------------------------------------------------------------------


def test_the_shape_has_the_papers_sizes() -> None:
    shape = template(80, 99)
    assert tuple(np.diff(shape.starts)) == LEVELS == (8, 21, 25, 15, 8, 3)
    tree = DraftTree.build(range(80), shape.parents)
    assert np.bincount(tree.depths()).tolist() == [0, *LEVELS]
    places = set(zip(shape.parents.tolist(), shape.ranks.tolist(), strict=True))
    assert len(places) == 80
    assert shape.ranks.max() == WIDTH - 1


@pytest.mark.parametrize("nodes", [1, 2, 7, 30, 79])
def test_a_smaller_shape_is_the_cheapest_part_of_a_larger(nodes: int) -> None:
    def paths(count: int, depth: int = 99) -> set[Word]:
        shape = template(count, depth)
        tree = DraftTree.build(shape.ranks, shape.parents)
        return set(words(tree))

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
    shape = template(80, 99)
    expected = set()
    for path in words(DraftTree.build(shape.ranks, shape.parents)):
        token, word = 9, []
        for rank in path:
            row = [] if token == 5 else store.get(token, [])
            if rank >= len(row):
                break
            token = row[rank][0]
            word.append(token)
        else:
            expected.add(tuple(word))
    assert set(words(tree)) == expected


# --- both, while text is written ----------------------------------------------------------------------------

VARIANTS = [
    "unispec",
    "unispec:noise=none,next=all,prefill=true",
    "unispec:confidence=token,k=3,threshold=0",
    "unispec:scores=false,store=private",
    "recycling",
    "recycling:noise=none,store=private,prefill=true",
]


@pytest.mark.parametrize("spec", VARIANTS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1e-3])
def test_the_text_is_plains(spec: str, temperature: float) -> None:
    accepted = 0
    for eos in (frozenset[int](), frozenset({4})):
        target = TableTarget(habitual(memory=1), SIZE, eos=eos)
        drafter = make_drafter(spec)
        for seed in range(3):
            sampling = Sampling(temperature=temperature, seed=seed)
            session = write(target, PROMPT, drafter, sampling=sampling, max_new_tokens=30, nodes=12)
            slow = write_slowly(target, PROMPT, sampling, max_new_tokens=30)
            assert session.context.emitted.tolist() == slow.tokens
            accepted += sum(round.accepted for round in session.rounds)
    assert accepted > 0


@METHODS
def test_the_public_noise_is_worth_looking_at(method: str) -> None:
    accepted = {}
    for noise in ("shared", "none"):
        drafter = make_drafter(f"{method}:noise={noise}")
        rounds = []
        for seed in range(6):
            sampling = Sampling(temperature=1.0, seed=seed)
            target = TableTarget(habitual(24, memory=1), 24)
            rounds += write(target, PROMPT, drafter, sampling=sampling, max_new_tokens=40, nodes=4).rounds
        accepted[noise] = sum(round.accepted for round in rounds) / len(rounds)
    assert accepted["shared"] > 1.2 * accepted["none"] > 0


def test_candidates_are_foreseen_as_the_clocks_will_ring() -> None:
    context = context_of([1, 2], temperature=1.0)
    ids, chances = np.array([[3, 8, 5], [2, 0, 9]]), np.array([[0.5, 0.3, 0.1], [1.0, 0.0, 0.0]])
    found = SharedNoise(context).wins(chances, ids, 2)
    clocks = context.exponentials(2, ids.ravel()).reshape(2, 3)
    speed = chances / clocks
    assert np.allclose(found[0], speed[0] / (speed[0].sum() + 0.1))
    assert np.allclose(found[1], [1.0, 0.0, 0.0])


def law_with(world: World, rule: Rule, make: Callable[[], Drafter], nodes: int) -> dict[Any, Any]:
    """The law of texts that a drafter of its own drafts for in every play."""

    def play(coins: Coins) -> tuple[Tokens, str]:
        context = Context(world.prompt, world.sampling, world.ending)
        law = FractionLaw(world.sampling, len(world.prompt))
        rows = world.target.open()
        session = Session(context, world.target, rows, make(), Fixed(nodes), rule, law, coins, checked=True)
        emitted = tuple(emission.token for emission in run(session))
        return emitted, str(context.finish)

    return output_law(play)


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("spec", ["unispec:prefill=true", "unispec:prefill=true,noise=none", "recycling:prefill=true"])
def test_the_law_of_the_text_is_plains(rule: Rule, spec: str) -> None:
    world = World(prompt=(0, 2, 1, 0, 2), length=3, eos=frozenset({1}))
    assert law_with(world, rule, lambda: make_drafter(spec), nodes=5) == world.plain()
