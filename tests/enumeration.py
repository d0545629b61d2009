"""Every random outcome of a decoding run, once, with its exact probability.

The engine runs unchanged; what is exchanged are the two things that hold numbers. `FractionLaw` turns a row of a
table target into a law of fractions, and `Coins` answers every random question by taking one of its outcomes
and remembering the others. `output_law` plays the run again and again, outcome by outcome, until none is left.

A coin is not a question but a *variable*: as in keyed noise, each (stream, index) has one uniform number, and
all that a question settles is the interval in which that number lies. Who asks a coin twice, about whatever
law, hears about the same number. So a drafter may look at the target's coins beforehand, and a rule that used
one coin for two decisions would be found out.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch

from fraction_oracle import oracle_law
from paceline.context import Context, Criterion, Ending
from paceline.drafters import Budget, Drafter
from paceline.drafters.compose import Union
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Distribution, Law, Sampling, Weight
from paceline.planning.fixed import Fixed
from paceline.targets.table import Table, TableTarget, random_table
from paceline.tree import DraftTree, Ints
from paceline.verify import Rule

WARM = Sampling(temperature=1.0)

Outcome = TypeVar("Outcome", bound=Hashable)
Tokens = tuple[int, ...]
Exact = dict[int, Fraction]
"""A law of the next token."""
TextLaw = dict[tuple[Tokens, str], Fraction]
"""A law of complete texts: the emitted tokens, and why they ended."""
Draft = Callable[["Sight"], DraftTree]


class Coins:
    """The dice of one play. ``script`` names the outcomes to take first; from there on the first of each."""

    public = None

    def __init__(self, script: Sequence[tuple[int, int]] = ()) -> None:
        self.probability = Fraction(1)
        self._script = script
        self._taken: list[tuple[int, int]] = []
        self._known: dict[Hashable, tuple[Fraction, Fraction]] = {}

    def choose(self, index: int, law: Distribution) -> int:
        return self.pick(("target", index), law)

    def draw(self, index: int, law: Distribution) -> int:
        return self.pick(("residual", index), law)

    def accept(self, index: int, token: int, chance: Weight) -> bool:
        return self._locate(("accept", index, token), (Fraction(0), min(Fraction(chance), Fraction(1)))) == 0

    def pick(self, coin: Hashable, law: Distribution) -> int:
        """The token in whose stretch of the unit interval the coin's number lies."""
        return int(law.ids[self._locate(coin, starts(law))])

    def fresh(self, law: Distribution) -> int:
        """A token by a coin of its own."""
        return self.pick(object(), law)

    def rest(self) -> list[tuple[int, int]] | None:
        """The script of the next play; None after the last one."""
        assert len(self._taken) >= len(self._script), "the same outcomes led to fewer questions than before"
        taken = self._taken
        while taken and taken[-1][0] == taken[-1][1] - 1:
            taken = taken[:-1]
        return [*taken[:-1], (taken[-1][0] + 1, taken[-1][1])] if taken else None

    def _locate(self, coin: Hashable, starts: Sequence[Fraction]) -> int:
        """In which of the stretches that begin at ``starts`` the number lies; narrows what is known of it."""
        low, high = self._known.get(coin, (Fraction(0), Fraction(1)))
        stretches = enumerate(zip(starts, [*starts[1:], Fraction(1)], strict=True))
        pieces = [(i, max(low, a), min(high, b)) for i, (a, b) in stretches if a < high and low < b and a < b]
        number, start, end = pieces[self._decide(len(pieces))]
        self.probability *= (end - start) / (high - low)
        self._known[coin] = start, end
        return number

    def _decide(self, count: int) -> int:
        if count == 1:
            return 0
        place = len(self._taken)
        taken, options = self._script[place] if place < len(self._script) else (0, count)
        assert options == count, "the same outcomes led to another question than before"
        self._taken.append((taken, count))
        return taken


def output_law(play: Callable[[Coins], Outcome]) -> dict[Outcome, Fraction]:
    """The law of what a random program returns."""
    law: defaultdict[Outcome, Fraction] = defaultdict(Fraction)
    script: list[tuple[int, int]] | None = []
    while script is not None:
        coins = Coins(script)
        law[play(coins)] += coins.probability
        script = coins.rest()
    assert sum(law.values()) == 1
    return dict(law)


@lru_cache(maxsize=4096)
def starts(law: Distribution) -> tuple[Fraction, ...]:
    """Where the stretch of each token begins, when the unit interval is divided among them."""
    return (Fraction(0), *accumulate(law.probs[:-1]))


class FractionLaw(Law):
    """`paceline.law.Law` in exact arithmetic, for rows of whole bits; notes for which tokens it is asked."""

    def __init__(self, sampling: Sampling, prompt_length: int) -> None:
        super().__init__(sampling, prompt_length)
        self.calls: list[Tokens] = []

    @property
    def argmax_only(self) -> bool:
        return False

    def distribution(self, row: torch.Tensor, tokens: Ints) -> Distribution:
        before = tuple(tokens.tolist())
        self.calls.append(before)
        return exact_law(whole_bits(row.tolist()), self.sampling, before, self.prompt_length)


@cache
def exact_law(bits: Tokens, sampling: Sampling, before: Tokens, prompt_length: int) -> Distribution:
    return weighted(oracle_law(bits, sampling, before, prompt_length))


def whole_bits(logits: Iterable[float]) -> Tokens:
    bits = [logit / math.log(2) for logit in logits]
    assert all(abs(bit - round(bit)) < 1e-9 for bit in bits), f"{bits} are not whole bits"
    return tuple(round(bit) for bit in bits)


def weighted(law: Exact) -> Distribution:
    """A law of fractions in the form the engine works on."""
    tokens = sorted(law)
    weights = np.array([law[token] for token in tokens], dtype=object)
    return Distribution(np.array(tokens, dtype=np.int64), weights)


def plain_law(next_token: Callable[[Tokens], Exact], finish: Callable[[Tokens], str | None], prompt: Tokens) -> TextLaw:
    """Complete texts of decoding one token after the other: the definition, by recursion."""
    texts: TextLaw = {}

    def go_on(before: Tokens, probability: Fraction) -> None:
        for token, share in next_token(before).items():
            text = (*before, token)
            ended = finish(text)
            if ended is None:
                go_on(text, probability * share)
            else:
                texts[text[len(prompt) :], ended] = probability * share

    go_on(prompt, Fraction(1))
    return texts


def remembered(size: int, **options: Any) -> Table:
    return cache(random_table(size, **options))


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

    def plain(self) -> TextLaw:
        return plain_law(self.law, self.finish, self.prompt)


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


def played(
    world: World,
    rule: Rule,
    drafter: Drafter,
    coins: Coins,
    nodes: int = 99,
    law_type: type[FractionLaw] = FractionLaw,
) -> Session:
    """A text of the engine, written with these coins."""
    context = Context(world.prompt, world.sampling, world.ending)
    law = law_type(world.sampling, len(world.prompt))
    rows = world.target.open()
    session = Session(context, world.target, rows, drafter, Fixed(nodes), rule, law, coins, checked=True)
    text = world.prompt + tuple(emission.token for emission in run(session))
    assert text == tuple(context.tokens.tolist())
    assert law.calls == [text[:i] for i in range(len(world.prompt), len(text))], "plain's calls, in order"
    return session


def outcome_of(session: Session) -> tuple[Tokens, str]:
    """A text as `plain_law` names it."""
    return tuple(session.context.emitted.tolist()), str(session.context.finish)


def law_of(
    world: World, rule: Rule, *drafts: Draft, nodes: int = 99, law_type: type[FractionLaw] = FractionLaw
) -> TextLaw:
    """The law of the engine's texts; of several drafts the union is drafted."""

    def play(coins: Coins) -> tuple[Tokens, str]:
        parts = [Sketch(world, draft, coins) for draft in drafts]
        drafter = parts[0] if len(parts) == 1 else Union(parts)
        return outcome_of(played(world, rule, drafter, coins, nodes, law_type))

    return output_law(play)
