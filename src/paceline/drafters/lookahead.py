"""Lookahead decoding: the model guesses n-grams of its future beside the draft that is being verified.

A window of guessed tokens lies ahead of the text: ``N - 1`` levels of ``W`` columns. Column ``i`` of level ``l`` stands
``i + l`` places after the root. The first level is a chain from the root on; every later level hangs from the same
columns of the level before. The model's choices behind the newest level are the next level, so each column is a Jacobi
iteration: wrong at first, and better the longer it lasts. The window begins as one level of ``W + N - 2`` columns,
random tokens of the prompt, and loses a column with every level that it gains. With all levels there, every round ::

    n-grams = columns, from the first level to the model's new choices: W of them, N tokens long
    levels  = levels[1:] + [the model's new choices]        one place further on, as the text is

The n-grams go into a pool, by their first token; those that begin with the root are the draft. The window's tokens are
probes: scored, never verified. If a planner leaves them out, the window does not change.

``lookahead:paper`` has the window and the guesses of the paper, W = G = 15 and N = 5. There the window's tokens count
as nodes of the draft: 60 of 120; a smaller draft keeps that share. A window that was narrowed grows back with random
tokens, so counted windows are for drafts of a fixed size.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter, Seen, at_least
from paceline.drafters.noise import BEST, SharedNoise, choices, log_chances, wants_noise
from paceline.targets.base import NOTHING, Want
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, ROOT, DraftTree, Ints, merge

ELSEWHERE = 1.0
"""The weight of all tokens that no n-gram names; the newest n-gram weighs as much."""
MISSING = -2
"""The number of a row that was not scored."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """For every key the latest ``size`` different values; of more than ``keys`` keys the oldest are forgotten."""

    def __init__(self, size: int, keys: int | None = None) -> None:
        self._size, self._keys = size, keys
        self._values: OrderedDict[Key, dict[Value, None]] = OrderedDict()  # a plain one finds its first key slowly

    def put(self, key: Key, value: Value) -> None:
        """Remember a value; of too many the one seen longest ago is forgotten."""
        known = self._values.get(key)
        if known is None:
            if len(self._values) == self._keys:
                self._values.popitem(last=False)
            known = self._values[key] = {}
        known.pop(value, None)
        known[value] = None
        if len(known) > self._size:
            del known[next(iter(known))]

    def of(self, key: Key) -> list[Value]:
        """The values of a key, the latest first."""
        return list(self._values.get(key, ()))[::-1]


@dataclass(eq=False)
class Window:
    """The guessed tokens ahead of one text."""

    levels_at_most: int
    width: int
    """Columns, once all levels are there."""
    levels: list[list[int]] = field(default_factory=list)
    """The first without its first column, which is the root."""
    coins: random.Random = field(default_factory=random.Random)

    @classmethod
    def ahead_of(cls, text: Ints, level: int, width: int) -> Window:
        """A window of random tokens of the prompt, which the model soon replaces."""
        window = cls(level - 1, width, coins=random.Random(len(text)))
        window.levels = [[window._any(text) for _ in range(width + level - 3)]]
        return window

    def _any(self, text: Ints) -> int:
        return int(text[self.coins.randrange(len(text))])

    @property
    def columns(self) -> int:
        """Columns of every level."""
        return len(self.levels[0]) + 1

    def widest(self, nodes: int) -> int:
        """The width at which the window now has at most ``nodes`` tokens."""
        return (nodes + 1) // len(self.levels) - (self.levels_at_most - len(self.levels))

    def resize(self, width: int, text: Ints) -> None:
        """Drop the farthest columns, or add some of random tokens of the text."""
        change, self.width = width - self.width, width
        if change:
            self.levels = [
                [*level, *(self._any(text) for _ in range(change))][: len(level) + change] for level in self.levels
            ]

    def tree(self, source: str) -> DraftTree:
        """The window as probes."""
        columns, tokens = self.columns, [token for level in self.levels for token in level]
        parents = list(range(-1, columns - 2))
        if len(self.levels) > 1:
            parents += range(-1, columns - 1)
            parents += range(columns - 1, len(tokens) - columns)
        return DraftTree.build(tokens, parents, source=source, probes=[True] * len(tokens))

    def newest(self, scores: Scores) -> Ints | None:
        """The numbers of the newest level's rows, the root's being 0; None where not all of the window was scored."""
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
        """The positions of the answers to the newest level, counted from the root's successor."""
        return np.arange(self.columns) + len(self.levels) - 1

    def move(self, root: int, said: Sequence[int]) -> list[tuple[int, ...]]:
        """Append what the model ``said`` after the newest level; returns the n-grams that this completes."""
        first, *later = self.levels
        if len(self.levels) < self.levels_at_most:
            self.levels = [list(level[1:]) for level in (first, *later, said)]
            return []
        columns = list(zip([root, *first], *later, said, strict=True))
        self.levels = [level[1:] if number == 0 else level for number, level in enumerate([*later, list(said)])]
        return columns


@dataclass(eq=False)
class LookaheadState:
    """One text, its window and its pool."""

    context: Context
    window: Window
    pool: Recent[int, tuple[int, ...]]
    noise: SharedNoise | None
    pooled: int = 0
    """The length of the text that is in the pool."""

    def learn_text(self, size: int) -> None:
        """The n-grams of the text itself, each once."""
        tokens = self.context.tokens[max(0, self.pooled - size + 1) :].tolist()
        for start in range(len(tokens) - size + 1):
            self.pool.put(tokens[start], tuple(tokens[start + 1 : start + size]))
        self.pooled = len(self.context)


class Lookahead(Drafter):
    """The paper's window and pool. ``level``, ``window`` and ``guesses`` are its N, W and G."""

    name = "lookahead"
    summary = "n-grams that the model guesses ahead of the text, in a Jacobi window scored beside the draft"
    source = "lookahead decoding (Fu et al. 2024)"
    needs = Want(top=BEST)
    skips = True
    unfit = "machines on which rows are expensive: the window has about window x (level - 1) in every round"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"paper": {"window": 15, "guesses": 15, "counted": True, "pool_from_prompt": False, "noise": "none"}}
    )

    def __init__(
        self,
        *,
        level: int = 5,
        window: int = 7,
        guesses: int = 7,
        counted: bool = False,
        pool_from_prompt: bool = True,
        noise: str = "shared",
    ) -> None:
        at_least(self.name, 3, level=level)
        at_least(self.name, 2, window=window)
        at_least(self.name, 1, guesses=guesses)
        self.level, self.window, self.guesses = level, window, guesses
        self.pool_from_prompt = pool_from_prompt
        self._noise = wants_noise(self.name, noise)
        self._counted, self.nested = counted, not counted
        self.nodes = (guesses + window * counted) * (level - 1)
        if not self._noise:
            self.needs = NOTHING

    def open(self, context: Context) -> LookaheadState:
        window = Window.ahead_of(context.tokens, self.level, self.window)
        state = LookaheadState(context, window, Recent(self.guesses), SharedNoise.of(context, self._noise))
        if self.pool_from_prompt:
            state.learn_text(self.level)
        return state

    def propose_one(self, state: LookaheadState, budget: Budget) -> DraftTree:
        probes = state.window.tree(self.name)
        if self._counted:
            probes, budget = shared_out(state.window, self.window / self.nodes, budget, state.context.tokens, self.name)
        guesses = state.pool.of(state.context.root)
        weights = [ELSEWHERE / (1 + age) for age in range(len(guesses))]
        return merge([weighed(guesses, weights, budget, state.noise, self.name), probes])

    def observe(self, seen: Sequence[Seen]) -> None:
        for state, verdict, scores in seen:
            if not verdict.tokens:
                continue
            rows = state.window.newest(scores)
            if rows is not None:
                ahead = state.window.places() - len(verdict.tokens)
                said = choices(scores, rows, state.noise, ahead).tolist()
                for first, *rest in state.window.move(int(scores.tokens[0]), said):
                    state.pool.put(first, tuple(rest))
            if self.pool_from_prompt:
                state.learn_text(self.level)


def shared_out(window: Window, share: float, budget: Budget, text: Ints, source: str) -> tuple[DraftTree, Budget]:
    """The window at the width that is its ``share`` of the nodes, as probes, and what is left of the budget."""
    width = min(round(share * budget.nodes), window.widest(budget.nodes))
    if width < 2:
        return EMPTY, budget
    window.resize(width, text)
    probes = window.tree(source)
    return probes, Budget(max(budget.nodes - len(probes), 0), budget.depth)


def weighed(
    guesses: Iterable[Sequence[int]],
    weights: Sequence[float],
    budget: Budget,
    noise: SharedNoise | None,
    source: str,
) -> DraftTree:
    """N-grams as one tree, cut to the budget. A node's probability is the weight of the n-grams through it among those
    through its parent and `ELSEWHERE`; with ``noise``, the probability to win that race."""
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
