"""Drafters under test: texts, rounds whose rows are known, and what a draft says."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine import write
from enumeration import Coins, Tokens, World, outcome_of, output_law, played
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, Drafter, Plain, Seen
from paceline.engine.loop import Session
from paceline.law import Sampling
from paceline.targets.base import Request, Target
from paceline.targets.scores import Scores
from paceline.targets.table import TableTarget
from paceline.tree import EMPTY, DraftTree
from paceline.verify import Rule, Verdict

PLENTY = Budget(99, 99)
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "warm": {"temperature": 1.0, "seed": 3},
    "cold": {"temperature": 0.3, "seed": 4},
    "the best": {"temperature": 1.3, "top_k": 5, "seed": 5},
    "nucleus": {"temperature": 1.0, "top_p": 0.7, "seed": 6},
    "the likely": {"temperature": 1.0, "min_p": 0.3, "seed": 7},
    "all three": {"temperature": 1.1, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "seed": 2**40 + 8},
}
"""Of texts whose drafts are chosen in different ways."""


def context_of(tokens: Sequence[int], *, eos: Sequence[int] = (), room: int = 1000, **sampling: Any) -> Context:
    return Context(tokens, Sampling(**sampling), Ending(max_new_tokens=room, eos=frozenset(eos)))


def drafted(drafter: Drafter, tokens: Sequence[int], budget: Budget = PLENTY, **how: Any) -> DraftTree:
    """The draft for a text that begins with these tokens."""
    (tree,) = drafter.propose([Ask(drafter.open(context_of(tokens, **how)), budget)])
    tree.check()
    return tree


def as_plain(target: Target, prompt: Sequence[int], drafter: Drafter, *, nodes: int = 6, **how: Any) -> Session:
    """A text written with a drafter, which is the text of plain decoding."""
    plain = write(target, prompt, Plain(), **how)
    session = write(target, prompt, drafter, nodes=nodes, **how)
    assert session.context.emitted.tolist() == plain.context.emitted.tolist()
    return session


def paths_of(tree: DraftTree) -> list[Tokens]:
    """The tokens of the path to every node."""
    return [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]


def round_of(
    state: Any,
    root: int,
    rows: Sequence[dict[int, float]],
    tree: DraftTree = EMPTY,
    path: Sequence[int] = (),
    *,
    last: int = 1,
    size: int = 50,
) -> Seen:
    """A round that accepted the nodes of a path and emitted ``last`` behind them. Its rows give the named tokens those
    probabilities and no other token any."""
    logits = torch.full((len(rows), size), -math.inf)
    for row, law in enumerate(rows):
        for token, chance in law.items():
            logits[row, token] = math.log(chance)
    return seen_of(state, root, logits, (*tree.tokens[list(path)].tolist(), last), tree, path)


def seen_of(
    state: Any,
    root: int,
    logits: torch.Tensor | None = None,
    tokens: Tokens = (1,),
    tree: DraftTree = EMPTY,
    path: Sequence[int] = (),
) -> Seen:
    """A round with these logits."""
    request = Request.of_tree(TableTarget(lambda _: [0.0], 1).open(), root, tree)
    return Seen(state, Verdict(tuple(path), tokens, len(path)), Scores(request, logits))


def flipped(whole: bytes, place: int) -> bytes:
    """A file of which one byte is another."""
    return whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :]


def law_with(world: World, rule: Rule, make: Callable[[], Drafter], nodes: int) -> tuple[dict[Any, Any], int]:
    """The law of texts that a new drafter drafts for in every play, and how many nodes were drafted in all plays."""
    drafted = 0

    def play(coins: Coins) -> tuple[Tokens, str]:
        nonlocal drafted
        drafter = make()
        drafter.fit(world.target)
        session = played(world, rule, drafter, coins, nodes)
        drafted += sum(round.drafted for round in session.rounds)
        return outcome_of(session)

    return output_law(play), drafted
