"""Foresight ranks many candidates by probability / shared noise, so it needs rough probabilities of many tokens.

The target samples with the same noise (`noise`), and may well sample its fiftieth likeliest token. So a row holds 64
candidates where other stores keep ten, and the tokens that are frequent anywhere are candidates, too.

The law of the next token is estimated by a mixture of three ::

    after    what followed the root when it was last scored
    beside   what the row that chose the root said: the next token is often probable one place too early
    anywhere what was probable in recent rows at all

Their shares in the mixture are learnt from the text, token by token, by the probability that each gave to the token
that came. Deeper levels go on from `after` alone. Where there is no noise, the mixture itself ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Seen
from paceline.drafters.noise import Chances, Ids, SharedNoise
from paceline.drafters.store import Level, StoreDrafter, StoreState, tree_of, worth_of
from paceline.errors import InputError
from paceline.tree import EMPTY, ROOT, DraftTree, Floats, Ints

SHARES = (0.5, 0.2, 0.3)
"""The first shares of after, beside and anywhere."""
LEARNING = 0.03
"""The part of the shares that one token decides."""
LEAST = 0.02
"""No share falls below this: an estimate that was useless for long may become useful again."""
FADING = 0.995
"""The weight that earlier rows keep with each new row, in the probabilities of anywhere."""
HEAVIEST = 1e12
"""Before the newest row weighs this, all weights are scaled down, and the oldest rows are forgotten."""
RENEWED = 8
"""Rounds between two searches for the most probable tokens anywhere."""
NARROW = 10
"""Candidates of a row that count where there is no noise."""
BRANCHES = 8
"""Children that a node has at most; the root has as many as fit."""
BELOW = 1 - 2.0**-20
"""A node is worth less than its parent, if only by this, so that the worthiest nodes are connected."""
IMPOSSIBLE = float(np.finfo(np.float64).tiny)
"""Candidates up to this are left out: a number so small cannot be worth less than its parent."""
SELDOM = 4
"""While no drafts are asked for, one round in this many is learnt from; of texts written together, by one of them."""

NO_IDS: Ids = np.empty(0, np.int64)
NO_CHANCES: Chances = np.empty(0)


class Anywhere:
    """Recent rows of a model added up, for the tokens that are probable at all; and the shares of the estimates."""

    def __init__(self, size: int, most: int) -> None:
        self._mass = np.zeros(size)
        self._most = most
        self._rounds = 0
        self._weight = 1.0
        """The newest row's weight. It grows with each row, so older ones fade without a pass over the vocabulary."""
        self.shares = np.array(SHARES)
        self.unasked = count()
        """Rounds in which a text wanted no draft."""
        self.ids: Ids = NO_IDS
        self.chances: Chances = NO_CHANCES

    def add(self, ids: Ids, chances: Chances) -> None:
        """Rows that became text."""
        if (most := int(ids.max())) >= len(self._mass):
            self._mass = np.concatenate([self._mass, np.zeros(most + 1 - len(self._mass))])
        self._weight /= max(FADING ** len(ids), 1 / HEAVIEST)
        np.add.at(self._mass, ids.ravel(), chances.ravel() * self._weight)
        if self._weight > HEAVIEST:
            self._mass /= self._weight
            self._mass[self._mass < 1 / HEAVIEST] = 0.0
            self._weight = 1.0
        if self._rounds % RENEWED == 0 and (total := float(self._mass.sum())) > 0:
            self.ids = self._likeliest()
            self.chances = self._mass[self.ids] / total
        self._rounds += 1

    def _likeliest(self) -> Ids:
        """The tokens of the greatest mass, ascending. Only tokens with as much mass as the least of the last ones found
        come into question, so the vocabulary is passed over once, and not sorted."""
        if len(self.ids) < max(1, self._most) or not (least := float(self._mass[self.ids].min())) > 0:
            found = _best(self._mass, self._most)
        else:
            close = (self._mass >= least).nonzero()[0]
            found = close[_best(self._mass[close], self._most)]
        found.sort()
        return found


@dataclass(eq=False)
class ForesightState(StoreState):
    """One sequence, and the estimates of its next token beside the store's."""

    anywhere: Anywhere
    ids: Ids | None = None
    chances: Chances | None = None
    """The candidates of the row that chose the root, and their probabilities."""
    asked: bool = True
    """Whether a draft was wanted in this round."""
    spared: bool = False
    """Whether the rows of this round are left unread."""


class Foresight(StoreDrafter):
    """A tree of many candidates, ranked by probability / noise."""

    name = "foresight"
    summary = "many successors that the model found probable, ranked by the noise that will choose among them"
    source = "unispec's store, widened for drafter-invariant sampling (Daliri 2024)"
    unfit = "greedy decoding: unispec is as good there and cheaper"
    nodes = 48

    def __init__(
        self,
        *,
        k: int = 64,
        anywhere: int = 256,
        beams: int = 4,
        depth: int = 8,
        threshold: float = 0.03,
        noise: str = "shared",
        prefill: bool = False,
        store: str = "shared",
    ) -> None:
        for key, value in (("k", k), ("beams", beams), ("depth", depth)):
            if value < 1:
                raise InputError(f"{self.name} needs {key} of at least 1, not {value}")
        if anywhere < 0:
            raise InputError(f"{self.name} takes anywhere=0 (none) or more tokens, not {anywhere}")
        if not 0 <= threshold <= 1:
            raise InputError(f"{self.name} takes a threshold from 0 to 1, not {threshold}")
        super().__init__(width=k, noise=noise, store=store, prefill=prefill)
        self.beams, self.depth, self.threshold = beams, depth, threshold
        self._most = anywhere
        self._anywhere = Anywhere(0, anywhere)

    def reset(self) -> None:
        super().reset()
        self._anywhere = Anywhere(self._size, self._most)

    def open(self, context: Context) -> ForesightState:
        store = self._store(context)
        anywhere = self._anywhere if store is self._shared else Anywhere(self._size, self._most)
        return ForesightState(context, store, SharedNoise.of(context, self._noise), anywhere)

    # what is learnt

    def read(self, seen: Sequence[Seen]) -> None:
        spared = _spared(seen)
        for number, one in enumerate(seen):
            one.state.spared = number in spared
        super().read([one for one in seen if not one.state.spared])

    def observe(self, seen: Sequence[Seen]) -> None:
        for one in seen:
            text: ForesightState = one.state
            with text.store.lock:
                if text.spared:
                    text.ids = text.chances = None
                    continue
                if one.verdict.tokens:
                    self._weigh(text, one.verdict.tokens)
                found = self._learn(one, text.store)
                if found is None:
                    continue
                top, chances = found
                kept = [0, *(node + 1 for node in one.verdict.path)]
                text.ids, text.chances = top.ids[kept[-1]], chances[kept[-1]]
                text.anywhere.add(top.ids[kept], chances[kept])

    def _weigh(self, text: ForesightState, tokens: tuple[int, ...]) -> None:
        """Move the shares towards the estimates that found the next token probable."""
        before = text.context.tokens[: -len(tokens)]
        estimates = self._estimates(text, int(before[-1]))
        shares = text.anywhere.shares
        # without noise `anywhere` is not used, and texts with noise may share it
        asked = shares[:-1] if text.noise is None else shares
        found = asked * [_chance(ids, chances, tokens[0]) for ids, chances in estimates[: len(asked)]]
        if (total := found.sum()) > 0:
            whole = asked.sum()
            asked += LEARNING * (found * (whole / total) - asked)
            np.fmax(asked, LEAST, out=asked)
            asked *= whole / asked.sum()

    def _estimates(self, text: ForesightState, root: int) -> tuple[tuple[Ids, Chances], ...]:
        """After, beside and anywhere; empty ones where nothing is known."""
        store, most = text.store, NARROW if text.noise is None else None
        after = (store.tokens[root, :most], store.chances[root, :most]) if root < len(store) else (NO_IDS, NO_CHANCES)
        beside = (NO_IDS, NO_CHANCES)
        if text.ids is not None and text.chances is not None:
            beside = text.ids[:most], text.chances[:most]
        anywhere = (NO_IDS, NO_CHANCES) if text.noise is None else (text.anywhere.ids, text.anywhere.chances)
        return after, beside, anywhere

    # what is drafted

    def propose_one(self, state: ForesightState, budget: Budget) -> DraftTree:
        if budget.empty:
            return EMPTY
        state.asked = True
        with state.store.lock:
            return self._tree(state, budget)

    def _first(self, text: ForesightState) -> tuple[Ints, Floats]:
        """The candidates for the next token, and their probabilities to be chosen."""
        estimates, shares = self._estimates(text, text.context.root), text.anywhere.shares.tolist()
        total = sum(share for (_, chances), share in zip(estimates, shares, strict=True) if chances.any())
        if not total:
            return np.empty(0, np.int64), np.empty(0)
        said = [chances * (share / total) for (_, chances), share in zip(estimates, shares, strict=True)]
        tokens, mixed = _added(np.concatenate([ids for ids, _ in estimates]), np.concatenate(said))
        known = mixed > 0
        candidates, weights = tokens[known], mixed[known]
        if text.noise is None:
            return candidates, weights / max(1.0, float(weights.sum()))
        odds = text.noise.wins(weights[None], candidates[None], 0)[0]
        likely = odds > IMPOSSIBLE
        return candidates[likely], odds[likely]

    def _tree(self, text: ForesightState, budget: Budget) -> DraftTree:
        """The worthiest nodes of all levels. A node is worth the probability of its path."""
        tokens, odds = self._first(text)
        best = _best(odds, budget.nodes)
        level = Level(tokens[best], odds[best], odds[best], np.full(len(best), ROOT))
        levels, before = [level], 0
        for place in range(1, min(self.depth, budget.depth)):
            going = self._going(text, level)
            if not len(going):
                break
            below = self._below(text, level, going, place, before)
            before += len(level.tokens)
            level = below
            levels.append(level)
        return self._chosen(levels, budget.nodes)

    def _going(self, text: ForesightState, level: Level) -> Ints:
        """The nodes of a level that go on: the worthiest ones above the threshold with a row, but no ends of text."""
        best = _best(level.worth, self.beams)
        ends, rows = text.context.ending.eos, len(text.store)
        going = [
            node
            for node, token, worth in zip(
                best.tolist(), level.tokens[best].tolist(), level.worth[best].tolist(), strict=True
            )
            if worth >= self.threshold and token not in ends and token < rows
        ]
        return np.array(going, np.int64)

    def _below(self, text: ForesightState, level: Level, going: Ints, place: int, before: int) -> Level:
        """The best children of the nodes that go on."""
        most = NARROW if text.noise is None else None
        rows = level.tokens[going]
        ids, chances = text.store.tokens.take(rows, 0)[:, :most], text.store.chances.take(rows, 0)[:, :most]
        odds = chances.astype(np.float64) if text.noise is None else text.noise.wins(chances, ids, place)
        if odds.shape[1] > BRANCHES:
            kept = (-odds).argpartition(BRANCHES - 1, axis=1)[:, :BRANCHES]
            kept += np.arange(0, odds.size, odds.shape[1])[:, None]
            ids, odds = ids.take(kept), odds.take(kept)
        worth = odds * (level.worth[going][:, None] * BELOW)
        parents = (going + before).repeat(odds.shape[1])
        tokens = ids.astype(np.int64).ravel()
        known = (worth > IMPOSSIBLE).ravel()
        if known.all():
            return Level(tokens, odds.ravel(), worth.ravel(), parents)
        return Level(tokens[known], odds.ravel()[known], worth.ravel()[known], parents[known])

    def _chosen(self, levels: Sequence[Level], nodes: int) -> DraftTree:
        chosen = np.sort(_best(worth_of(levels), nodes))
        return tree_of(levels, chosen, (self.name,) * len(chosen))


def _spared(seen: Sequence[Seen]) -> set[int]:
    """The numbers of texts whose rows are not read: no draft was asked for, so most of what the rows teach would go
    unused. Of texts that learn together one is read at a time, in turn."""
    idle: dict[Anywhere, list[int]] = {}
    for number, one in enumerate(seen):
        text: ForesightState = one.state
        if not one.verdict.tokens:  # a piece of the prompt
            continue
        if not text.asked:
            idle.setdefault(text.anywhere, []).append(number)
        text.asked = False
    for anywhere, numbers in idle.items():
        turn, rest = divmod(next(anywhere.unasked), SELDOM)
        if rest == SELDOM - 1:
            del numbers[turn % len(numbers)]
    return {number for numbers in idle.values() for number in numbers}


def _best(worth: Floats, count: int) -> Ints:
    """The places of the ``count`` worthiest, in no order."""
    if count >= len(worth):
        return np.arange(len(worth))
    return (-worth).argpartition(count - 1)[:count]


def _added(ids: Ids, weights: Floats) -> tuple[Ints, Floats]:
    """Every token once, ascending, with the sum of its weights."""
    order = ids.argsort(kind="stable")
    tokens = ids[order].astype(np.int64)
    starts = np.concatenate(([True], tokens[1:] != tokens[:-1])).nonzero()[0]
    return tokens[starts], np.add.reduceat(weights[order], starts, dtype=np.float64)


def _chance(ids: Ids, chances: Chances, token: int) -> float:
    found = (ids == token).nonzero()[0]
    return float(chances[found[0]]) if len(found) else 0.0
