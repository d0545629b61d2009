"""The exact tests can fail: each way of breaking the engine or the contract bends the law, and is seen to.

Most breaks are mistakes that speculative decoders have been shipped with.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from drafts import SHAPES, another, heavy, narrow, opposite, sampled, uniform
from enumeration import Coins, Draft, Sight, World, law_of, remembered, weighted
from paceline import verify
from paceline.context import Context
from paceline.drafters import compose
from paceline.engine import loop as session
from paceline.errors import DrafterError
from paceline.law import Dice, Distribution, Sampling, Weight
from paceline.targets import base
from paceline.targets.table import TableRows
from paceline.tree import EMPTY, ROOT, Bools, DraftTree, Ints, merge
from paceline.verify import Rule, judge

PAIRS = World(size=4, table=remembered(4, seed=1), prompt=(3, 1), length=2)
TRIPLES = World(sampling=Sampling(temperature=1.0, top_k=2), eos=frozenset({1}))
RULES = pytest.mark.parametrize("rule", list(Rule))


# --- mistakes of the rejection rule -------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """`verify._accept_sampled` with its steps laid open."""

    order: Callable[[Distribution, Iterable[int]], Iterable[int]] = lambda p, drawn: drawn
    chance: Callable[[Distribution, Distribution, int], Weight] = lambda p, q, x: p.probability(x) / q.probability(x)
    left: Callable[[Distribution, Distribution, int], Distribution] = lambda p, q, x: p.minus(q)
    others: Callable[[Distribution, int], Distribution] = lambda q, x: q.without(x)
    coin: Callable[[int], int] = lambda x: x

    def __call__(self, p: Distribution, q: Distribution, drawn: Ints, dice: Dice, index: int) -> int:
        for token in self.order(p, drawn.tolist()):
            if dice.accept(index, self.coin(token), self.chance(p, q, token)):
                return token
            p, q = self.left(p, q, token), self.others(q, token)
        return dice.draw(index, p)


def likeliest_first(p: Distribution, drawn: Iterable[int]) -> list[int]:
    return sorted(drawn, key=p.probability, reverse=True)


MISTAKES = {
    "accepted with p": Steps(chance=lambda p, q, x: p.probability(x)),
    "residual not subtracted": Steps(left=lambda p, q, x: p),
    "residual without the refused token only": Steps(left=lambda p, q, x: p.without(x)),
    "likeliest child first": Steps(order=likeliest_first),
    "likeliest child only": Steps(order=lambda p, drawn: likeliest_first(p, drawn)[:1]),
    "drawn tokens stay in q": Steps(others=lambda q, x: q),
    "one coin for all children": Steps(coin=lambda x: 0),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistaken_rule_bends_the_law(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_accept_sampled", MISTAKES[mistake])
    assert law_of(PAIRS, Rule.REJECTION, sampled(heavy, (2,))) != PAIRS.plain()


def test_without_a_mistake_the_steps_are_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_accept_sampled", Steps())
    assert law_of(PAIRS, Rule.REJECTION, sampled(heavy, (2,))) == PAIRS.plain()


# --- coins used twice ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stuck:
    """Dice that throw the coin of a round's first index for all of its tokens."""

    coins: Coins
    index: int

    def choose(self, index: int, law: Distribution) -> int:
        return self.coins.choose(self.index, law)

    def draw(self, index: int, law: Distribution) -> int:
        return self.coins.draw(self.index, law)

    def accept(self, index: int, token: int, chance: Weight) -> bool:
        return self.coins.accept(self.index, token, chance)


@RULES
def test_a_coin_that_decides_two_tokens_bends_the_law(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(tree: DraftTree, rule: Rule, dice: Coins, *, index: int, emit: Any) -> Any:
        return judge(tree, rule, Stuck(dice, index), index=index, emit=emit)

    monkeypatch.setattr(session, "judge", stuck)
    assert law_of(World(), rule, SHAPES["bushy"]) != World().plain()


def test_a_sampled_draft_must_not_know_the_coin_of_the_residual() -> None:
    def told(sight: Sight) -> DraftTree:
        if sight.coins.draw(len(sight.text), weighted(sight.world.law(sight.text))) == 0:
            return EMPTY
        return sampled(uniform, (1,))(sight)

    assert law_of(PAIRS, Rule.REJECTION, told) != PAIRS.plain()


def test_a_sampled_draft_must_not_know_the_coin_of_acceptance() -> None:
    def told(sight: Sight) -> DraftTree:
        p, q = weighted(sight.world.law(sight.text)), weighted(another(sight.world, sight.text))
        token = sight.coins.fresh(q)
        taken = sight.coins.accept(len(sight.text), token, p.probability(token) / q.probability(token))
        return DraftTree.chain([token], laws=[q]) if taken else EMPTY

    assert law_of(PAIRS, Rule.REJECTION, told) != PAIRS.plain()


# --- drafts that claim a law they do not have ---------------------------------------------------------------


def beams_in_disguise(sight: Sight) -> DraftTree:
    law = weighted(another(sight.world, sight.text))
    return DraftTree.chain([int(law.ids[np.argmax(law.weights)])], laws=[law])


def the_better_of_two(sight: Sight) -> DraftTree:
    law = weighted(another(sight.world, sight.text))
    first = sight.coins.fresh(law)
    return DraftTree.chain([min(first, sight.coins.fresh(law.without(first)))], laws=[law])


def out_of_order(sight: Sight) -> DraftTree:
    law = weighted(another(sight.world, sight.text))
    first = sight.coins.fresh(law)
    second = sight.coins.fresh(law.without(first))
    return DraftTree.build(sorted([first, second]), [ROOT, ROOT], drawn={ROOT: law})


@pytest.mark.parametrize("draft", [beams_in_disguise, the_better_of_two, out_of_order])
def test_a_false_claim_bends_the_law(draft: Draft) -> None:
    assert law_of(PAIRS, Rule.REJECTION, draft, nodes=1) != PAIRS.plain()
    assert law_of(PAIRS, Rule.COUPLED, draft, nodes=1) == PAIRS.plain()


def test_a_union_that_kept_its_laws_would_bend_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def keeping(trees: list[DraftTree]) -> DraftTree:
        united = merge(trees)
        return united.select(range(len(united)), drawn=trees[0].drawn)

    drafts = (sampled(heavy, (1,)), lambda sight: DraftTree.chain([2]))
    assert law_of(PAIRS, Rule.REJECTION, *drafts) == PAIRS.plain()
    monkeypatch.setattr(compose, "merge", keeping)
    assert law_of(PAIRS, Rule.REJECTION, *drafts) != PAIRS.plain()


def test_a_cut_by_score_that_kept_its_laws_would_bend_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def favouring_two(sight: Sight) -> DraftTree:
        tree = sampled(another, (2,))(sight)
        scores = [0.0 if token == 2 else -1.0 for token in tree.tokens]
        return DraftTree.build(tree.tokens, tree.parents, scores=scores, drawn=tree.drawn)

    def best(tree: DraftTree, count: int, *, depth: int | None = None) -> DraftTree:
        return tree.top(count)

    def best_still_drawn(tree: DraftTree, count: int, *, depth: int | None = None) -> DraftTree:
        cut = tree.top(count)
        return cut.select(range(len(cut)), drawn=tree.drawn)

    monkeypatch.setattr(DraftTree, "head", best)
    assert law_of(PAIRS, Rule.REJECTION, favouring_two, nodes=1) == PAIRS.plain()
    monkeypatch.setattr(DraftTree, "head", best_still_drawn)
    assert law_of(PAIRS, Rule.REJECTION, favouring_two, nodes=1) != PAIRS.plain()


# --- mistakes around the rule -------------------------------------------------------------------------------


@RULES
def test_a_row_that_sees_its_cousins_bends_the_law(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    def everything_before(parents: Ints) -> Bools:
        return np.tri(len(parents), dtype=np.bool_)

    monkeypatch.setattr(base, "ancestors", everything_before)
    assert law_of(World(), rule, SHAPES["bushy"]) != World().plain()


@RULES
def test_a_row_kept_from_the_wrong_place_bends_the_law(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows' own `check` would see it first."""
    world = World(length=4)
    assert law_of(world, rule, SHAPES["two branches"]) == world.plain()
    monkeypatch.setattr(TableRows, "_gather", lambda rows, path: None)
    with pytest.raises(AssertionError, match="holds another token"):
        law_of(world, rule, SHAPES["two branches"])
    monkeypatch.setattr(TableRows, "check", lambda rows: None)
    assert law_of(world, rule, SHAPES["two branches"]) != world.plain()


@RULES
def test_a_draft_carried_past_the_end_is_seen(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(eos=frozenset({1}))
    commit = Context.commit
    monkeypatch.setattr(Context, "commit", lambda context, token: commit(context, token) and False)
    with pytest.raises(AssertionError, match="takes no more tokens"):
        law_of(world, rule, SHAPES["bushy"])


def test_a_law_asked_for_a_node_that_is_not_walked_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager(tree: DraftTree, rule: Rule, dice: Dice, *, index: int, emit: Any) -> Any:
        yield ROOT
        return (yield from judge(tree, rule, dice, index=index, emit=emit))

    monkeypatch.setattr(session, "judge", eager)
    with pytest.raises(AssertionError, match="plain's calls"):
        law_of(World(), Rule.COUPLED, SHAPES["chain"])


def test_a_nondeterministic_engine_cannot_be_enumerated() -> None:
    random = np.random.default_rng(0)

    def whimsical(sight: Sight) -> DraftTree:
        return sampled([narrow, opposite][random.integers(2)], (2,))(sight)

    with pytest.raises(DrafterError, match="the same outcomes led to"):
        law_of(PAIRS, Rule.REJECTION, whimsical)
