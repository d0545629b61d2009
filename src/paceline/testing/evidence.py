"""The rejection rule keeps a law, not a text, so its samples are tested against the law.

For every emitted token the law given the tokens before it is known, from rows scored independently of any draft. Two
tests, both valid for sequences, since each step is judged given its past: the place of the token in its own law is
uniform (Kolmogorov-Smirnov), and what was drafted is emitted as often as the law says (a sum of martingale
differences, by Freedman's bound, which holds for few tokens as for many). The second has its power just where
acceptance goes wrong. It weighs each token by something fixed before the node's coins were thrown: whether it is a
child, where children are fixed, or q, where they were sampled from it (which child was drawn is itself correlated
with what is emitted, and should be).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from paceline.context import Context, Ints
from paceline.drafters import Drafter
from paceline.engine.loop import Session
from paceline.engine.observe import Observed, Observer
from paceline.engine.serial import run
from paceline.law import Distribution, Law
from paceline.law.scores import Row, fetched, full_precision
from paceline.planning.base import Planner
from paceline.targets.base import Request, Rows, Target, Want
from paceline.tree import EMPTY, ROOT, DraftTree
from paceline.verify import Rule

WIDE_ROWS = 16
"""Rows of a forward over a text that is known."""
ALARM = 1e-6
"""Below this p-value a run is called a bug; a whole check asks a few hundred times."""


class Evidence(NamedTuple):
    """The evidence of one emitted token about a law."""

    place: float | None
    """In the law's distribution function; None for a token that the law rules out."""
    surplus: float = 0.0
    """Its weight less the mean weight under the law."""
    variance: float = 0.0


def p_value(evidence: Sequence[Evidence]) -> float:
    """The smaller of the two tests' p-values, doubled since there are two."""
    from scipy.stats import kstest

    places = [each.place for each in evidence if each.place is not None]
    uniform = float(kstest(places, "uniform").pvalue) if places else 1.0
    surplus, variance = sum(each.surplus for each in evidence), sum(each.variance for each in evidence)
    drafted = 2 * math.exp(-(surplus**2) / (2 * (variance + abs(surplus) / 3) + 1e-9))
    return min(1.0, 2 * min(uniform, drafted))


def gather(
    emitted: Ints, first: int, laws: Iterable[Distribution], trees: dict[int, DraftTree], seed: tuple[int, int]
) -> Iterator[Evidence]:
    """Evidence of one text, which began at index ``first``; ``trees`` by the length at which they were drafted."""
    coins = np.random.default_rng(seed)
    tree, node = EMPTY, ROOT
    for index, (token, law) in enumerate(zip(emitted.tolist(), laws, strict=True), start=first):
        if index in trees:
            tree, node = trees[index], ROOT
        at = np.flatnonzero(law.ids == token)
        if len(at):
            probs = np.asarray(law.probs, np.float64)
            q = tree.drawn.get(node)
            weights = np.isin(law.ids, tree.tokens[tree.children(node)]) if q is None else q.probabilities(law.ids)
            weights = np.asarray(weights, np.float64)
            mean = float(probs @ weights)
            place = float(probs[: at[0]].sum() + coins.random() * probs[at[0]])
            yield Evidence(place, float(weights[at[0]]) - mean, float(probs @ (weights - mean) ** 2))
        else:
            yield Evidence(None)
        child = tree.child(node, token)
        tree, node = (EMPTY, ROOT) if child is None else (tree, child)


def teacher_forced(target: Target, tokens: Ints, first: int, width: int = WIDE_ROWS) -> Iterator[Row]:
    """The row before each of ``tokens[first:]``, scored on fresh rows, ``width`` at a time. If rows may be unordered,
    they are: every second piece takes the places of another text."""
    rows, beside = target.open(len(tokens)), target.open(width) if target.unordered else None
    try:
        for number, start in enumerate(range(0, len(tokens) - 1, width)):
            if beside is not None and not beside.rewind(0) and number % 2 == 0:
                target.submit([Request.of_prompt(beside, tokens[: width // 2])]).result()
                beside.keep(range(len(tokens[: width // 2])))
            piece = tokens[start : min(start + width, len(tokens) - 1)]
            scores = target.submit([Request.of_prompt(rows, piece, Want(logits=True))]).result()[0]
            rows.keep(range(len(piece)))
            yield from fetched(full_precision(scores.logits))[max(0, first - 1 - start) :]
    finally:
        rows.close()
        if beside is not None:
            beside.close()


def law_evidence(
    context: Context, target: Target, drafter: Drafter, planner: Planner, rows: Rows, witness: Observer | None = None
) -> Iterator[Evidence]:
    """A text under the rejection rule, and the evidence of each of its tokens about the law."""
    drafts = dict[int, DraftTree]()

    def note(seen: Observed) -> None:
        drafts[seen.round.position] = seen.draft
        if witness is not None:
            witness(seen)

    list(run(Session(context, target, rows, drafter, planner, Rule.REJECTION, checked=True, observer=note)))
    tokens, first = context.tokens, context.prompt_length
    law = Law(context.sampling, first)
    scored = teacher_forced(target, tokens, first)
    laws = (law.distribution(row, tokens[:index]) for index, row in enumerate(scored, start=first))
    seed = context.sampling.seed, context.noise.sample
    return gather(tokens[first:], first, laws, drafts, seed=seed)
