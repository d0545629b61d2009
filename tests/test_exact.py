"""Losslessness as a theorem with a finite proof: the law of every text, with and without drafts, in fractions.

Each test plays the whole engine (session, verifier, tree, context, cache rows, drafter protocol) through every
random outcome and compares the law of complete texts with that of decoding one token after the other, computed by
recursion from the definition. Equal means equal fractions. The last tests break the engine on purpose and see the
comparison fail.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest

from enumeration import Coins, Exact, FractionLaw, Tokens, output_law, plain_law, weighted
from fraction_oracle import oracle_law
from paceline import verify
from paceline.context import Context, Criterion, Ending
from paceline.decode.planner import Fixed
from paceline.decode.serial import run
from paceline.decode.session import Session
from paceline.drafters import Budget, Drafter
from paceline.drafters.compose import Union
from paceline.law import Distribution, Sampling
from paceline.targets import base
from paceline.targets.base import Reach
from paceline.targets.table import Table, TableRows, TableTarget, random_table
from paceline.tree import EMPTY, ROOT, DraftTree, Ints, merge
from paceline.verify import Rule

LN2 = math.log(2)
RULES = pytest.mark.parametrize("rule", list(Rule))
WARM = Sampling(temperature=1.0)

Law = dict[tuple[Tokens, str], Fraction]
Draft = Callable[["Sight"], DraftTree]


@dataclass(frozen=True, kw_only=True)
class World:
    """A target, a prompt, settings, and when texts end."""

    size: int = 3
    table: Table = field(default_factory=lambda: remembered(3))
    prompt: Tokens = (0, 2)
    sampling: Sampling = WARM
    length: int = 3
    eos: frozenset[int] = frozenset()
    criteria: tuple[Criterion, ...] = ()
    context_length: int | None = None

    @cached_property
    def target(self) -> TableTarget:
        return TableTarget(self.table, self.size, eos=self.eos, context_length=self.context_length)

    @property
    def ending(self) -> Ending:
        return Ending(
            max_new_tokens=self.length,
            eos=self.eos,
            criteria=self.criteria,
            context_length=self.context_length,
        )

    def law(self, before: Tokens) -> Exact:
        bits = [Fraction(bit) for bit in self.table(before)]
        return oracle_law(bits, self.sampling, before, len(self.prompt))

    def finish(self, text: Tokens) -> str | None:
        """When a text ends and why, from the definition alone."""
        if text[-1] in self.eos:
            return "eos"
        if any(criterion(np.array(text)) for criterion in self.criteria):
            return "criterion"
        if len(text) - len(self.prompt) == self.length:
            return "length"
        return "context" if len(text) == self.context_length else None

    def plain(self) -> Law:
        return plain_law(self.law, self.finish, self.prompt)


def remembered(size: int, **options: Any) -> Table:
    return cache(random_table(size, **options))


@dataclass(frozen=True)
class Sight:
    """What a drafter under test may look at: more than any honest one."""

    world: World
    context: Context
    budget: Budget
    coins: Coins

    @property
    def text(self) -> Tokens:
        return tuple(self.context.tokens.tolist())

    def future(self, path: Tokens) -> int:
        """The token that the coupled rule will choose, should the text go on with ``path``."""
        before = self.text + path
        return self.coins.choose(len(before), weighted(self.world.law(before)))


class Sketch(Drafter):
    """Any draft at all."""

    name = "sketch"

    def __init__(self, world: World, draft: Draft, coins: Coins) -> None:
        self._world, self._draft, self._coins = world, draft, coins

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return self._draft(Sight(self._world, state, budget, self._coins))


def law_of(world: World, rule: Rule, *drafts: Draft, nodes: int = 99) -> Law:
    """The law of the engine's texts; of several drafts the union is drafted."""

    def play(coins: Coins) -> tuple[Tokens, str]:
        context = Context(world.prompt, world.sampling, world.ending)
        parts = [Sketch(world, draft, coins) for draft in drafts]
        drafter = parts[0] if len(parts) == 1 else Union(parts)
        law = FractionLaw(world.sampling, len(world.prompt))
        session = Session(
            context, world.target, world.target.open(), drafter, Fixed(nodes), rule, law, coins, checked=True
        )
        emitted = tuple(emission.token for emission in run(session))
        text = world.prompt + emitted
        assert text == tuple(context.tokens.tolist())
        assert law.calls == [text[:i] for i in range(len(world.prompt), len(text))]
        assert context.finish is not None
        return emitted, str(context.finish)

    return output_law(play)


# --- drafts that no law has drawn --------------------------------------------------------------------------


def bushy(size: int, depth: int) -> DraftTree:
    return DraftTree.from_beams(list(itertools.product(range(size), repeat=depth)))


def scattered(sight: Sight) -> DraftTree:
    """Another random tree for every text."""
    random = np.random.default_rng(list(sight.text))
    beams = random.integers(0, sight.world.size, (random.integers(1, 5), 3)).tolist()
    return DraftTree.from_beams([beam[: random.integers(1, 4)] for beam in beams])


def probing(sight: Sight) -> DraftTree:
    """Probes beside, above and below real nodes, with the tokens of real siblings."""
    return DraftTree.build(
        tokens=[1, 1, 2, 0, 2, 2, 0],
        parents=[-1, -1, -1, 1, 0, 0, 5],
        probes=[False, True, True, True, False, True, True],
    )


SHAPES: dict[str, Draft] = {
    "empty": lambda sight: EMPTY,
    "chain": lambda sight: DraftTree.chain([1, 2, 0]),
    "two branches": lambda sight: DraftTree.from_beams([[0, 1], [2, 1, 1]]),
    "bushy": lambda sight: bushy(sight.world.size, 2),
    "bushier": lambda sight: bushy(sight.world.size, 3),
    "random": scattered,
    "merged": lambda sight: merge([bushy(2, 2), DraftTree.chain([0, 1, 2]), DraftTree.chain([2, 2])]),
    "too deep": lambda sight: DraftTree.chain([sight.context.root, *range(sight.world.size)] * 3),
    "probes": probing,
}

EVEN = remembered(3, step=2, spread=2)
SETTINGS: dict[str, World] = {
    "greedy": World(sampling=Sampling()),
    "warm": World(),
    "cold": World(sampling=Sampling(temperature=0.5)),
    "hot": World(sampling=Sampling(temperature=2.0), table=EVEN),
    "top-k": World(sampling=Sampling(temperature=1.0, top_k=2)),
    "top-p": World(sampling=Sampling(temperature=1.0, top_p=0.7)),
    "min-p": World(sampling=Sampling(temperature=1.0, min_p=0.3)),
    "all warps": World(sampling=Sampling(temperature=0.5, top_k=2, top_p=0.9, min_p=0.05), table=EVEN),
    "repetition": World(sampling=Sampling(temperature=1.0, repetition_penalty=2.0), table=EVEN),
    "presence": World(sampling=Sampling(temperature=1.0, presence_penalty=LN2)),
    "frequency": World(sampling=Sampling(temperature=1.0, frequency_penalty=-LN2)),
    "greedy penalties": World(sampling=Sampling(repetition_penalty=2.0, presence_penalty=LN2), table=EVEN),
    "bias": World(sampling=Sampling(temperature=1.0, logit_bias={1: 2 * LN2, 0: -LN2})),
    "bans": World(sampling=Sampling(temperature=1.0, banned=((0,), (2, 2, 2), (1, 2)))),
}


@RULES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_draft_bends_the_law_of_the_text(rule: Rule, shape: str, setting: str) -> None:
    world = SETTINGS[setting]
    assert law_of(world, rule, SHAPES[shape]) == world.plain()


def even_text(text: Ints) -> bool:
    return len(text) % 2 == 0 and bool(text[-1] == 1)


ENDINGS: dict[str, World] = {
    "eos 0": World(eos=frozenset({0})),
    "eos 1": World(eos=frozenset({1})),
    "any of two": World(eos=frozenset({1, 2}), length=4),
    "one token": World(length=1),
    "two tokens": World(length=2),
    "criterion": World(criteria=(even_text,)),
    "criteria": World(criteria=(even_text, lambda text: bool(text[-1] == text[-2]))),
    "context": World(context_length=4),
    "context before eos": World(context_length=4, eos=frozenset({2})),
    "short prompt": World(prompt=(1,), eos=frozenset({0})),
    "long prompt": World(prompt=(1, 2, 0, 1, 2, 2, 1, 0, 0), eos=frozenset({0})),
}


@RULES
@pytest.mark.parametrize("shape", ["chain", "bushy", "bushier", "random", "too deep"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_text_ends_where_plain_decoding_ends_it(rule: Rule, shape: str, ending: str) -> None:
    world = ENDINGS[ending]
    assert law_of(world, rule, SHAPES[shape]) == world.plain()


@RULES
@pytest.mark.parametrize("nodes", range(6))
def test_any_budget_cuts_any_draft_without_a_trace(rule: Rule, nodes: int) -> None:
    world = World()
    assert law_of(world, rule, SHAPES["bushier"], nodes=nodes) == world.plain()


@RULES
@pytest.mark.parametrize("reach", [Reach(trees=False), Reach(depth=1), Reach(depth=0), Reach(trees=False, depth=1)])
def test_a_target_of_short_reach_keeps_the_law(rule: Rule, reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(world.target, "reach", lambda position: reach)
    for draft in (SHAPES["bushier"], sampled(uniform, (2, 2))):
        assert law_of(world, rule, draft) == world.plain()


# --- drafts that look at the coins of the target -----------------------------------------------------------


def foreseen(sight: Sight) -> DraftTree:
    """Exactly what the target is going to write."""
    path: Tokens = ()
    for _ in range(sight.budget.depth):
        path += (sight.future(path),)
    return DraftTree.chain(path)


def avoided(sight: Sight) -> DraftTree:
    """Everything but what the target is going to write."""
    future = sight.future(())
    return DraftTree.from_beams([[t, t] for t in range(sight.world.size) if t != future])


def fickle(sight: Sight) -> DraftTree:
    """The right token where it is 0, a wrong one elsewhere, and another shape for each."""
    future = sight.future(())
    if future == 0:
        return DraftTree.from_beams([[0, sight.future((0,))], [1]])
    return DraftTree.chain([0, future])


def hedged(sight: Sight) -> DraftTree:
    """What the target would write after each token, also after those that it will not take."""
    tokens = range(sight.world.size)
    return DraftTree.from_beams([[token, sight.future((token,))] for token in tokens])


@RULES
@pytest.mark.parametrize("draft", [foreseen, avoided, fickle, hedged])
@pytest.mark.parametrize("setting", ["warm", "cold", "top-k", "presence"])
def test_public_noise_may_be_known_to_the_draft(rule: Rule, draft: Draft, setting: str) -> None:
    world = SETTINGS[setting]
    assert law_of(world, rule, draft) == world.plain()


# --- drafts that were sampled ------------------------------------------------------------------------------

Guess = Callable[[World, Tokens], Exact]


def the_target(world: World, before: Tokens) -> Exact:
    return world.law(before)


def uniform(world: World, before: Tokens) -> Exact:
    """Wider than a target that was cut."""
    return dict.fromkeys(range(world.size), Fraction(1, world.size))


def narrow(world: World, before: Tokens) -> Exact:
    return {0: Fraction(2, 5), world.size - 1: Fraction(3, 5)}


def certain(world: World, before: Tokens) -> Exact:
    return {len(before) % world.size: Fraction(1)}


def another(world: World, before: Tokens) -> Exact:
    """A model that has learnt something else."""
    bits = remembered(world.size, seed=7)(before)
    return oracle_law([Fraction(bit) for bit in bits], WARM, before)


def opposite(world: World, before: Tokens) -> Exact:
    """Likes best what the target likes least: what a cut target rules out, before all."""
    law = world.law(before)
    weights = {token: 1 / law.get(token, Fraction(1, 64)) for token in range(world.size)}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


GUESSES: tuple[Guess, ...] = (the_target, uniform, narrow, certain, another, opposite)


def sampled(
    guess: Guess, widths: tuple[int, ...], *, fixed: tuple[int, ...] = (), keyed: bool = False
) -> Draft:
    """``widths[d]`` children of every node at depth ``d``, drawn without replacement from the guess.

    At the depths ``fixed`` they are no sample but the lowest tokens. A drawn child has a coin of its own, or,
    ``keyed``, that of its index in the text: shared by all nodes of a depth, and by the rounds.
    """

    def draft(sight: Sight) -> DraftTree:
        nodes: list[tuple[int, int]] = []
        drawn: dict[int, Distribution] = {}
        level: list[tuple[int, Tokens]] = [(ROOT, sight.text)]
        for depth, width in enumerate(widths):
            parents, level = level, []
            for parent, before in parents:
                law = weighted(guess(sight.world, before))
                tokens = list(range(width))
                if depth not in fixed:
                    drawn[parent] = law
                    tokens = draw(sight.coins, law, width, len(before) if keyed else None)
                for token in tokens:
                    level.append((len(nodes), (*before, token)))
                    nodes.append((token, parent))
        return DraftTree.build([t for t, _ in nodes], [p for _, p in nodes], drawn=drawn)

    return draft


def draw(coins: Coins, law: Distribution, count: int, index: int | None = None) -> list[int]:
    """Tokens in the order of a draw without replacement."""
    tokens: list[int] = []
    for number in range(min(count, len(law.ids))):
        tokens.append(coins.fresh(law) if index is None else coins.pick(("draft", index, number), law))
        law = law.without(tokens[-1])
    return tokens


def learned(sight: Sight) -> DraftTree:
    """A tree whose shape follows the values drawn so far: a second child only beside 0, offspring only of 1."""
    law = weighted(another(sight.world, sight.text))
    first = sight.coins.fresh(law)
    tokens, parents, drawn = [first], [ROOT], {ROOT: law}
    if first == 0:
        tokens.append(sight.coins.fresh(law.without(0)))
        parents.append(ROOT)
    for node, token in enumerate(list(tokens)):
        if token == 1:
            drawn[node] = weighted(uniform(sight.world, (*sight.text, token)))
            tokens.append(sight.coins.fresh(drawn[node]))
            parents.append(node)
    return DraftTree.build(tokens, parents, drawn=drawn)


PAIRS = World(size=4, table=remembered(4, seed=1), prompt=(3, 1), length=2)
CUT = replace(PAIRS, sampling=Sampling(temperature=1.0, top_k=2))
STRICT = replace(PAIRS, sampling=Sampling(temperature=0.5, top_p=0.9, presence_penalty=LN2))


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize("world", [PAIRS, CUT, STRICT], ids=["warm", "cut", "strict"])
def test_sampled_children_keep_the_law(world: World, guess: Guess, width: int) -> None:
    assert law_of(world, Rule.REJECTION, sampled(guess, (width,))) == world.plain()


@pytest.mark.parametrize("widths", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("guess", [the_target, narrow, another])
def test_sampled_trees_keep_the_law(guess: Guess, widths: tuple[int, ...]) -> None:
    for world in (World(), World(sampling=Sampling(temperature=1.0, top_k=2), eos=frozenset({1}))):
        assert law_of(world, Rule.REJECTION, sampled(guess, widths)) == world.plain()
