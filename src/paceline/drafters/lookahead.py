"""Lookahead decoding: the model guesses n-grams of its own future beside the draft that is being verified.

A window of tokens lies ahead of the text, ``N - 1`` levels of ``W`` columns. Column ``i`` of level ``l`` stands ``i +
l`` places after the root; the first level is a line of guesses from the root on, every later one hangs from its own
column of the level before. What the model would say after the newest level makes the next one, so each column is a
Jacobi iteration: wrong at first, and better the longer it lasts. With all levels full, every round ::

    n-grams = columns, from the first level to what the model just said: W of them, N tokens long
    levels  = levels[1:] + [what the model just said]        one place further on, as the text is

The n-grams go into a pool, keyed by their first token; those that begin with the root are the draft. The window's
tokens are probes: scored, never verified, and where a planner leaves them out the window stands still.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter, Seen
from paceline.drafters.noise import BEST, SharedNoise, choices, log_chances, wants_noise
from paceline.targets.base import NOTHING, Want
from paceline.targets.scores import Scores
from paceline.tree import ROOT, DraftTree, Ints, merge

ELSEWHERE = 1.0
"""What the newest n-gram weighs, too, is the weight of none of them being right."""


MISSING = -2
"""Instead of a row that was not scored."""


class Pool:
    """For every token the latest ``size`` different n-grams that began with it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._after: dict[int, dict[tuple[int, ...], None]] = {}

    def put(self, first: int, rest: tuple[int, ...]) -> None:
        """Remember what followed; of too many the one that was not seen for longest is forgotten."""
        known = self._after.setdefault(first, {})
        known.pop(rest, None)
        known[rest] = None
        if len(known) > self._size:
            del known[next(iter(known))]

    def after(self, first: int) -> list[tuple[int, ...]]:
        """What followed a token, the latest first."""
        return list(self._after.get(first, ()))[::-1]


@dataclass(eq=False)
class Window:
    """The guesses ahead of one text, and how they get better."""

    levels_at_most: int
    width: int
    levels: list[list[int]] = field(default_factory=list)
    """The first without its first column, which is the root."""
    coins: random.Random = field(default_factory=random.Random)

    @classmethod
    def ahead_of(cls, text: Ints, level: int, width: int) -> Window:
        """Filled with tokens of the prompt, whichever: the model soon replaces them."""
        window = cls(level - 1, width, coins=random.Random(len(text)))
        window.levels = [[window._any(text) for _ in range(width - 1)]]
        return window

    def _any(self, text: Ints) -> int:
        return int(text[self.coins.randrange(len(text))])

    def tree(self, source: str) -> DraftTree:
        """The window as probes."""
        tokens = [token for level in self.levels for token in level]
        parents = list(range(-1, self.width - 2))
        if len(self.levels) > 1:
            parents += range(-1, self.width - 1)
            parents += range(self.width - 1, len(tokens) - self.width)
        return DraftTree.build(tokens, parents, source=source, probes=[True] * len(tokens))

    def newest(self, scores: Scores) -> Ints | None:
        """The rows of the newest level, root row 0; None where the window was not scored whole."""
        below, same = dict[tuple[int, int], int](), list[int]()
        for row, (parent, token) in enumerate(zip(scores.parents.tolist(), scores.tokens.tolist(), strict=True)):
            same.append(below.setdefault((same[parent] if parent >= 0 else -1, token), row))
        rows = [0]
        for token in self.levels[0]:
            rows.append(below.get((rows[-1], token), MISSING))
        for level in self.levels[1:]:
            rows = [below.get((row, token), MISSING) for row, token in zip(rows, level, strict=True)]
        return None if MISSING in rows else np.array(rows)

    def places(self) -> Ints:
        """How many places after the root's successor the answers to the newest level stand."""
        return np.arange(self.width) + len(self.levels) - 1

    def move(self, root: int, said: Sequence[int], text: Ints) -> list[tuple[int, ...]]:
        """Take in what the model ``said`` after the newest level; the columns that are complete by it, if any."""
        first, *later = self.levels
        if len(self.levels) < self.levels_at_most:
            self.levels = [[*level[1:], self._any(text)] for level in (first, *later)]
            self.levels.append([*said[1:], self._any(text)])
            return []
        columns = list(zip([root, *first], *later, said, strict=True))
        self.levels = [level[1:] if number == 0 else level for number, level in enumerate([*later, list(said)])]
        return columns


@dataclass(eq=False)
class Ahead:
    """One text, its window and its pool."""

    context: Context
    window: Window
    pool: Pool
    noise: SharedNoise | None
    pooled: int = 0
    """How much of the text is in the pool."""

    def learn_text(self, size: int) -> None:
        """The n-grams of the text itself, each once."""
        tokens = self.context.tokens[max(0, self.pooled - size + 1) :].tolist()
        for start in range(len(tokens) - size + 1):
            self.pool.put(tokens[start], tuple(tokens[start + 1 : start + size]))
        self.pooled = len(self.context)


class Lookahead(Drafter):
    """The paper's window and pool. ``level``, ``window`` and ``guesses`` are its N, W and G."""

    name = "lookahead"
    summary = "n-grams that the model guesses ahead of the text, by a Jacobi window scored beside the draft"
    source = "lookahead decoding (Fu et al. 2024)"
    needs = Want(top=BEST)
    unfit = "rows cost much: the window takes about window x (level - 1) of them in every round"

    def __init__(
        self,
        *,
        level: int = 5,
        window: int = 7,
        guesses: int = 7,
        pool_from_prompt: bool = True,
        noise: str = "shared",
    ) -> None:
        for key, value, least in (("level", level, 3), ("window", window, 2), ("guesses", guesses, 1)):
            if value < least:
                raise ValueError(f"lookahead needs {key} of at least {least}, not {value}")
        self.level, self.window, self.guesses = level, window, guesses
        self.pool_from_prompt = pool_from_prompt
        self._noise = wants_noise(self.name, noise)
        self.nodes = guesses * (level - 1)
        if not self._noise:
            self.needs = NOTHING

    def open(self, context: Context) -> Ahead:
        window = Window.ahead_of(context.tokens, self.level, self.window)
        state = Ahead(context, window, Pool(self.guesses), SharedNoise.of(context, self._noise))
        if self.pool_from_prompt:
            state.learn_text(self.level)
        return state

    def propose_one(self, state: Ahead, budget: Budget) -> DraftTree:
        guesses = state.pool.after(state.context.root)
        weights = [ELSEWHERE / (1 + age) for age in range(len(guesses))]
        drafted = weighed(guesses, weights, budget, state.noise, self.name)
        return merge([drafted, state.window.tree(self.name)])

    def observe(self, seen: Sequence[Seen]) -> None:
        for state, verdict, scores in seen:
            if not verdict.tokens:
                continue
            rows = state.window.newest(scores)
            if rows is not None:
                context = state.context
                ahead = state.window.places() - len(verdict.tokens)
                said = choices(scores, rows, state.noise, ahead).tolist()
                for first, *rest in state.window.move(int(scores.tokens[0]), said, context.tokens):
                    state.pool.put(first, tuple(rest))
            if self.pool_from_prompt:
                state.learn_text(self.level)


def weighed(
    guesses: Iterable[Sequence[int]],
    weights: Sequence[float],
    budget: Budget,
    noise: SharedNoise | None,
    source: str,
) -> DraftTree:
    """Guesses as one tree, cut to the budget. A node is as likely as the guesses through it weigh beside those through
    its parent, `ELSEWHERE` among them; with ``noise``, to win that race.
    """
    place: dict[tuple[int, int], int] = {}
    tokens, parents, weight, depths = list[int](), list[int](), list[float](), list[int]()
    for guess, own in zip(guesses, weights, strict=True):
        node = ROOT
        for depth, token in enumerate(guess[: budget.depth]):
            parent, node = node, place.setdefault((node, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(parent)
                weight.append(0.0)
                depths.append(depth)
            weight[node] += own
    groups, ahead, ids = (np.array(numbers, np.int64) for numbers in (parents, depths, tokens))
    scores = log_chances(np.array(weight), ELSEWHERE, groups - ROOT, noise, ahead, ids)
    return DraftTree.build(tokens, parents, source=source, scores=scores).top(budget.nodes)
