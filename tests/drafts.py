"""Drafts of every kind for the exact tests: without a law, with knowledge of the future, and sampled."""

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from enumeration import WARM, Coins, Draft, Exact, Sight, Tokens, World, remembered, weighted
from fraction_oracle import oracle_law
from paceline.law import Distribution
from paceline.tree import EMPTY, ROOT, DraftTree, merge

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


def heavy(world: World, before: Tokens) -> Exact:
    """Overrates one token, so that the residual is spread over several and a second child matters."""
    return {token: Fraction(5 if token == 0 else 1, world.size + 4) for token in range(world.size)}


GUESSES: tuple[Guess, ...] = (the_target, uniform, narrow, certain, another, opposite, heavy)


def sampled(guess: Guess, widths: tuple[int, ...], *, fixed: tuple[int, ...] = (), keyed: bool = False) -> Draft:
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
    """A shape that follows the values drawn so far: a second child only beside 0, offspring only of 1."""
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


def with_repeats(sight: Sight) -> DraftTree:
    """Three draws with replacement, each token once: given those before it, a new one has the law they left."""
    law = weighted(another(sight.world, sight.text))
    tokens = list(dict.fromkeys(sight.coins.fresh(law) for _ in range(3)))
    return DraftTree.build(tokens, [ROOT] * len(tokens), drawn={ROOT: law})
