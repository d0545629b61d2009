"""`foresight`: shares of its estimates, trees by the noise, and rounds that are not read."""

import warnings
from typing import Any

import numpy as np
import pytest

from drafting import context_of, round_of
from engine import PROMPT, tabled, write
from paceline.drafters import Ask, Budget
from paceline.drafters.foresight import LEAST, SHARES, Anywhere, Foresight, ForesightState
from paceline.targets.table import TableTarget
from paceline.tree import ROOT

VOCABULARY = 300


def fitted(**options: Any) -> Foresight:
    drafter = Foresight(**options)
    drafter.fit(TableTarget(lambda _: [0.0] * VOCABULARY, VOCABULARY))
    return drafter


def say(drafter: Foresight, text: ForesightState, law: dict[int, float], token: int) -> None:
    """The root's row says this, and the token was written."""
    root = text.context.root
    text.context.commit(token)
    drafter.observe([round_of(text, root, [law], last=token, size=VOCABULARY)])


# --- what the idea of the next token is made of ----------------------------------------------------------------


def test_shares_stay_a_distribution_and_move_to_the_idea_that_was_right() -> None:
    """The row of a place names what comes one place later, what the root's own row said never comes."""
    drafter, random = fitted(), np.random.default_rng(0)
    text = drafter.open(context_of([0], temperature=1.0))
    later = int(random.integers(100, 200))
    for _ in range(300):
        now, later = later, int(random.integers(100, 200))
        say(drafter, text, {later: 0.6, int(random.integers(200, 300)): 0.4}, now)
        shares = text.anywhere.shares
        assert shares.sum() == pytest.approx(1.0)
        assert shares.min() >= 0.9 * LEAST
    assert text.anywhere.shares.argmax() == 1
    assert text.anywhere.shares[1] > 0.8 > SHARES[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_the_same_follows_the_same_the_share_of_after_grows(temperature: float) -> None:
    """A greedy text leaves the share of `anywhere` alone, which only sampled ones use."""
    drafter = fitted()
    text = drafter.open(context_of([0], temperature=temperature))
    for number in range(300):
        token = (number + 1) % 50
        say(drafter, text, {token: 0.7, 299: 0.3}, token)
    after, beside, anywhere = text.anywhere.shares.tolist()
    assert after > max(SHARES[0], beside, anywhere)
    assert after + beside + anywhere == pytest.approx(1.0)
    assert temperature or anywhere == pytest.approx(SHARES[2], abs=0.01)


def test_no_idea_is_given_credit_for_what_none_of_them_named() -> None:
    drafter = fitted()
    text = drafter.open(context_of([0], temperature=1.0))
    for number in range(20):
        say(drafter, text, {250: 0.5, 251: 0.5}, number + 1)
    assert text.anywhere.shares.tolist() == list(SHARES)


def test_anywhere_finds_likely_tokens_and_forgets_them() -> None:
    for most in (3, 1000):
        found = Anywhere(VOCABULARY, most)
        assert found.ids.size == 0
        for _ in range(40):
            found.add(np.array([[7, 9, 4]]), np.array([[0.5, 0.3, 0.1]]))
        if most == 3:
            assert found.ids.tolist() == [4, 7, 9]
        assert found.ids[found.chances.argmax()] == 7
        assert found.chances.sum() == pytest.approx(1.0)
        for _ in range(8000):
            found.add(np.array([[1, 2, 3]]), np.array([[0.5, 0.3, 0.1]]))
        likely = dict(zip(found.ids.tolist(), found.chances.tolist(), strict=True))
        assert likely[1] == pytest.approx(5 / 9, rel=1e-6)
        assert likely.get(7, 0.0) < 1e-12


def test_anywhere_takes_a_long_prompt_at_once_and_tokens_that_it_was_not_told_of() -> None:
    found = Anywhere(0, 5)
    found.add(np.full((200_000, 1), 8), np.full((200_000, 1), 0.5))
    assert found.ids[found.chances.argmax()] == 8
    assert found.chances.max() == pytest.approx(1.0)


def test_a_token_that_was_only_ever_likely_elsewhere_is_drafted_when_it_is_in_luck() -> None:
    """Nothing was ever said after the root nor of its place: what is likely anywhere is all there is."""
    hits = 0
    for seed in range(20):
        drafter = fitted(store="shared")
        teacher = drafter.open(context_of([1], temperature=1.0, seed=99))
        for _ in range(9):
            say(drafter, teacher, dict.fromkeys(range(100, 120), 0.05), 1)
        context = context_of([50, 51], temperature=1.0, seed=seed)
        clocks = context.exponentials(0, np.arange(100, 120))
        tree = drafter.propose_one(drafter.open(context), Budget(3, 1))
        assert set(tree.tokens.tolist()) == {100 + int(place) for place in np.argsort(clocks)[:3]}
        hits += len(tree)
        silent = fitted(anywhere=0)
        assert len(silent.propose_one(silent.open(context), Budget(3, 1))) == 0
    assert hits == 60


# --- the tree --------------------------------------------------------------------------------------------------


def stored(text: ForesightState, random: np.random.Generator, *, sharp: float) -> None:
    """Random rows for most tokens, a row for the root's place, and some tokens likely anywhere."""
    width = text.store.width
    for token in range(len(text.store)):
        count = int(random.integers(0, width + 1))
        weights = np.sort(random.exponential(size=count) ** sharp)[::-1]
        text.store.tokens[token, :count] = random.permutation(len(text.store))[:count]
        text.store.chances[token, :count] = weights / (weights.sum() + random.random())
    text.ids, text.chances, text.length = text.store.tokens[0].copy(), text.store.chances[0].copy(), len(text.context)
    text.anywhere.add(text.store.tokens[1:9], text.store.chances[1:9])


@pytest.mark.parametrize("temperature", [0.0, 1e-3, 0.02, 0.7, 1.0, 5.0])
def test_trees_of_random_stores_are_whole(temperature: float) -> None:
    random = np.random.default_rng(3)
    for number in range(25):
        ends = random.integers(0, VOCABULARY, 3).tolist()
        drafter = fitted(
            k=int(random.choice([1, 5, 64])),
            beams=int(random.integers(1, 9)),
            depth=int(random.integers(1, 9)),
            threshold=float(random.choice([0.0, 0.03, 0.3])),
        )
        root = int(random.integers(VOCABULARY))
        text = drafter.open(context_of([1, root], eos=ends, temperature=temperature, seed=number))
        stored(text, random, sharp=float(random.choice([1.0, 8.0])))
        budget = Budget(int(random.integers(1, 200)), int(random.integers(1, 10)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = drafter.propose_one(text, budget)
        tree.check(VOCABULARY)
        assert len(tree) <= budget.nodes
        assert tree.depth <= min(budget.depth, drafter.depth)
        assert np.isfinite(tree.scores).all()
        inner = {int(tree.tokens[parent]) for parent in tree.parents.tolist() if parent != ROOT}
        assert not inner & set(ends)


def test_the_worthiest_nodes_are_kept() -> None:
    random = np.random.default_rng(4)
    drafter = fitted()
    text = drafter.open(context_of([1, 2], temperature=1.0, seed=5))
    stored(text, random, sharp=3.0)
    large = drafter.propose_one(text, Budget(150, 8))
    small = drafter.propose_one(text, Budget(20, 8))
    assert len(small) == 20
    assert np.sort(small.path_scores())[0] >= np.sort(large.path_scores())[::-1][19] - 1e-3


def test_an_empty_budget_and_an_empty_store_are_no_draft() -> None:
    drafter = fitted()
    text = drafter.open(context_of([1], temperature=1.0))
    for budget in (Budget(0, 5), Budget(5, 0), Budget(5, 5)):
        assert len(drafter.propose_one(text, budget)) == 0


# --- noise -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["greedy", "hidden", "none"])
def test_where_the_noise_is_not_public_or_not_wanted_none_is_used(how: str) -> None:
    drafts = []
    for seed in range(3):
        drafter = fitted(noise="none" if how == "none" else "shared")
        context = context_of([1, 2], temperature=0.0 if how == "greedy" else 1.0, seed=seed)
        context.foreseeable = how != "hidden"
        text = drafter.open(context)
        stored(text, np.random.default_rng(8), sharp=2.0)
        tree = drafter.propose_one(text, Budget(40, 6))
        drafts.append((tree.tokens.tolist(), tree.parents.tolist(), tree.scores.tolist()))
    assert drafts[0][0]
    assert drafts[0] == drafts[1] == drafts[2]


def test_another_model_and_a_reset_begin_anew_and_the_same_model_goes_on() -> None:
    target, drafter = tabled(), Foresight()
    drafter.fit(target)
    write(target, PROMPT, drafter, max_new_tokens=16)
    context = context_of(PROMPT)

    def drafted() -> int:
        return len(drafter.propose_one(drafter.open(context), Budget(9, 9)))

    learnt = drafter.open(context).anywhere.shares.tolist()
    assert learnt != list(SHARES)
    drafter.fit(target)
    assert drafted() > 0
    assert drafter.open(context).anywhere.shares.tolist() == learnt
    for forget in (drafter.reset, lambda: drafter.fit(tabled())):
        forget()
        assert drafted() == 0
        assert drafter.open(context).anywhere.shares.tolist() == list(SHARES)
        write(target, PROMPT, drafter, max_new_tokens=16)
        assert drafted() > 0


def test_private_stores_keep_shares_and_likely_tokens_to_themselves() -> None:
    drafter = Foresight(store="private")
    drafter.fit(tabled())
    write(tabled(), PROMPT, drafter, max_new_tokens=16)
    fresh = drafter.open(context_of(PROMPT))
    assert fresh.anywhere.shares.tolist() == list(SHARES)
    assert fresh.anywhere.ids.size == 0
    assert len(drafter.propose_one(fresh, Budget(9, 9))) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("seeds", [[5, 5, 5, 5], [1, 2, 3, 4]])
def test_texts_that_draft_together_have_the_drafts_that_each_has_alone(temperature: float, seeds: list[int]) -> None:
    drafter = fitted()
    texts = [
        drafter.open(context_of([1, number], temperature=temperature, seed=seed, eos=[number + 7]))
        for number, seed in enumerate(seeds)
    ]
    stored(texts[0], np.random.default_rng(6), sharp=2.0)
    budgets = [Budget(40, 6), Budget(8, 1), Budget(0, 3), Budget(25, 3)]
    together = drafter.propose([Ask(*asked) for asked in zip(texts, budgets, strict=True)])
    assert [len(tree) for tree in together] == [40, 8, 0, 25]
    for tree, text, budget in zip(together, texts, budgets, strict=True):
        alone = drafter.propose_one(text, budget)
        paths = [{tuple(one.tokens[one.path(node)].tolist()) for node in range(len(one))} for one in (tree, alone)]
        assert paths[0] == paths[1]
        assert np.sort(tree.scores) == pytest.approx(np.sort(alone.scores))
