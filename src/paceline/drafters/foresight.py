"""Foresight ranks many candidates by probability / shared noise, so it needs rough probabilities of many tokens.

The target samples with the same noise (`noise`), and may well sample its fiftieth likeliest token. So a row holds 64
candidates where other stores keep ten, and the tokens that are frequent anywhere are candidates, too.

The law of the next token is estimated by a mixture of three ::

    after    the prediction behind the root when it was last scored
    beside   the prediction of the row that chose the root: the next token is often probable one place too early
    anywhere the tokens that were probable in recent rows overall

Their shares in the mixture are learnt from the text, token by token, by the probability that each gave to the emitted
token. Deeper levels continue from `after` alone. Without noise, the mixture itself ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.context import Context
from paceline.dictionary.keys import starts
from paceline.drafters.base import Ask, Budget, Seen, at_least
from paceline.drafters.candidates import Candidates, added, best_of, trees_of
from paceline.drafters.noise import Chances, Ids, SharedNoise, exponentials_of
from paceline.drafters.store import StoreDrafter, StoreState, SuccessorStore
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

NO_IDS: Ids = np.empty(0, np.int64)
NO_CHANCES: Chances = np.empty(0)
NO_CANDIDATES = Candidates(NO_IDS, np.empty(0), np.empty(0), NO_IDS, NO_IDS)


class Anywhere:
    """Recent rows of a model added up, for the tokens that are probable at all; and the shares of the estimates."""

    def __init__(self, size: int, most: int) -> None:
        self._mass = np.zeros(size)
        self._most = most
        self._rounds = 0
        self._weight = 1.0
        """The newest row's weight. It grows with each row, so older ones fade without a pass over the vocabulary."""
        self.shares = np.array(SHARES)
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
        """The tokens of the greatest mass, ascending; none without mass. Only tokens with as much mass as the least of
        the last ones found come into question, so the vocabulary is passed over once, and not sorted."""
        if len(self.ids) < max(1, self._most) or not (least := float(self._mass[self.ids].min())) > 0:
            found = best_of(self._mass, self._most)
        else:
            close = (self._mass >= least).nonzero()[0]
            found = close[best_of(self._mass[close], self._most)]
        found.sort()
        return found[self._mass[found] > 0]


@dataclass(eq=False)
class ForesightState(StoreState):
    """One sequence, and the estimates of its next token beside the store's."""

    anywhere: Anywhere
    ids: Ids | None = None
    chances: Chances | None = None
    """The candidates of the row that chose the root, and their probabilities."""
    length: int = 0
    """The length of the text of which that is the root."""


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
        at_least(self.name, 1, k=k, beams=beams, depth=depth)
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

    # learning

    def observe(self, seen: Sequence[Seen]) -> None:
        for one in seen:
            text: ForesightState = one.state
            with text.store.lock:
                if one.verdict.tokens:
                    self._weigh(text, one.verdict.tokens)
                found = self._learn(one, text.store)
                if found is None:
                    continue
                top, chances = found
                kept = [0, *(node + 1 for node in one.verdict.path)]
                text.ids, text.chances, text.length = top.ids[kept[-1]], chances[kept[-1]], len(text.context)
                text.anywhere.add(top.ids[kept], chances[kept])

    def _weigh(self, text: ForesightState, tokens: tuple[int, ...]) -> None:
        """Move the shares towards the estimates that found the next token probable."""
        estimates = self._estimates(text, len(text.context) - len(tokens))
        shares = text.anywhere.shares
        # without noise `anywhere` is not used, and texts with noise may share it
        asked = shares[:-1] if text.noise is None else shares
        found = asked * [_chance(ids, chances, tokens[0]) for ids, chances in estimates[: len(asked)]]
        if (total := found.sum()) > 0:
            whole = asked.sum()
            asked += LEARNING * (found * (whole / total) - asked)
            np.fmax(asked, LEAST, out=asked)
            asked *= whole / asked.sum()

    def _estimates(self, text: ForesightState, length: int) -> tuple[tuple[Ids, Chances], ...]:
        """After, beside and anywhere, when the text was so long; empty ones where nothing is known."""
        store, most, root = text.store, NARROW if text.noise is None else None, int(text.context.tokens[length - 1])
        after = (store.tokens[root, :most], store.chances[root, :most]) if root < len(store) else (NO_IDS, NO_CHANCES)
        beside = (NO_IDS, NO_CHANCES)
        if text.ids is not None and text.chances is not None and text.length == length:
            beside = text.ids[:most], text.chances[:most]
        anywhere = (NO_IDS, NO_CHANCES) if text.noise is None else (text.anywhere.ids, text.anywhere.chances)
        return after, beside, anywhere

    # drafting

    def propose_one(self, state: ForesightState, budget: Budget) -> DraftTree:
        return self.propose([Ask(state, budget)])[0]

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        drafts = [EMPTY] * len(asks)
        for together in _alike(asks):
            texts, budgets = zip(*(asks[number] for number in together), strict=True)
            with texts[0].store.lock:
                trees = self._trees(texts, budgets)
            for number, tree in zip(together, trees, strict=True):
                drafts[number] = tree
        return drafts

    def _trees(self, texts: Sequence[ForesightState], budgets: Sequence[Budget]) -> list[DraftTree]:
        """The worthiest nodes of all levels. A node is worth the probability of its path."""
        level = self._first(texts)
        levels, before = [level], 0
        depths = [min(self.depth, budget.depth) for budget in budgets]
        for place in range(1, max(depths)):
            going = self._going(texts, level, [depth > place for depth in depths])
            if not len(going):
                break
            below = self._below(texts, level, going, place, before)
            before += len(level.tokens)
            level = below
            levels.append(level)
        return trees_of(levels, [budget.nodes for budget in budgets], self.name)

    def _first(self, texts: Sequence[ForesightState]) -> Candidates:
        """The candidates for the next token, and their probabilities to be chosen."""
        ids, said = list[Ids](), list[Chances]()
        shares, sizes, whose = list[float](), list[int](), list[int]()
        for number, text in enumerate(texts):
            estimates = zip(self._estimates(text, len(text.context)), text.anywhere.shares.tolist(), strict=True)
            known = [(*estimate, share) for estimate, share in estimates if len(estimate[1]) and estimate[1][0] > 0]
            total = sum(share for _, _, share in known)
            for tokens, chances, share in known:
                ids.append(tokens)
                said.append(chances)
                shares.append(share / total)
                sizes.append(len(tokens))
                whose.append(number)
        if not ids:
            return NO_CANDIDATES
        weights = np.concatenate(said) * np.array(shares).repeat(sizes)
        numbers = np.array(whose).repeat(sizes)
        return self._likely(texts, *added(numbers, np.concatenate(ids), weights))

    def _likely(self, texts: Sequence[ForesightState], numbers: Ints, ids: Ints, weights: Floats) -> Candidates:
        """The candidates that have a chance, of these weights."""
        odds = weights
        if (noise := texts[0].noise) is not None:
            fresh = starts(numbers)
            sizes = np.bincount(numbers)[numbers[fresh]]
            odds = noise.won(weights, fresh, sizes, _exponentials(texts, numbers, ids, 0))
        first = Candidates(ids, odds, odds, np.full(len(odds), ROOT), numbers)
        likely = odds > IMPOSSIBLE
        return first if likely.all() else first.only(likely)

    def _going(self, texts: Sequence[ForesightState], level: Candidates, deeper: Sequence[bool]) -> Ints:
        """The nodes of a level that go on: of each text that may go ``deeper`` the worthiest ones above the threshold,
        if they have a row and end no text."""
        likely = (level.worth >= self.threshold).nonzero()[0]
        columns = (level.texts[likely], -level.worth[likely], likely, level.tokens[likely])
        rows, going = len(texts[0].store), list[int]()
        left = [self.beams * more for more in deeper]
        for number, _, node, token in sorted(zip(*(column.tolist() for column in columns), strict=True)):
            if left[number] and token not in texts[number].context.ending.eos and token < rows:
                going.append(node)
            left[number] = max(0, left[number] - 1)
        return np.array(going, np.int64)

    def _below(
        self, texts: Sequence[ForesightState], level: Candidates, going: Ints, place: int, before: int
    ) -> Candidates:
        """The best children of the nodes that go on."""
        store, noise = texts[0].store, texts[0].noise
        most = NARROW if noise is None else None
        rows, numbers = level.tokens[going], level.texts[going]
        ids, chances = store.tokens.take(rows, 0)[:, :most], store.chances.take(rows, 0)[:, :most]
        odds = chances.astype(np.float64)
        if noise is not None:
            starts, width = np.arange(0, odds.size, odds.shape[1]), odds.shape[1]
            drawn = _exponentials(texts, numbers.repeat(width), ids.astype(np.int64).ravel(), place)
            odds = noise.won(odds.ravel(), starts, width, drawn).reshape(odds.shape)
        if odds.shape[1] > BRANCHES:
            kept = (-odds).argpartition(BRANCHES - 1, axis=1)[:, :BRANCHES]
            kept += np.arange(0, odds.size, odds.shape[1])[:, None]
            ids, odds = ids.take(kept), odds.take(kept)
        worth = (odds * (level.worth[going][:, None] * BELOW)).ravel()
        width = odds.shape[1]
        below = Candidates(
            ids.astype(np.int64).ravel(), odds.ravel(), worth, (going + before).repeat(width), numbers.repeat(width)
        )
        known = worth > IMPOSSIBLE
        return below if known.all() else below.only(known)


def _exponentials(texts: Sequence[ForesightState], numbers: Ints, ids: Ints, ahead: int) -> Floats:
    """The noise of candidates of texts that all are ranked by noise."""
    return exponentials_of([text.noise for text in texts if text.noise is not None], numbers, ids, ahead)


def _alike(asks: Sequence[Ask]) -> list[list[int]]:
    """The numbers of texts that draft together: of one store, and where noise counts of one temperature."""
    groups: dict[tuple[SuccessorStore, float | None], list[int]] = {}
    for number, (text, budget) in enumerate(asks):
        if not budget.empty:
            sharpness = None if text.noise is None else text.noise.sharpness
            groups.setdefault((text.store, sharpness), []).append(number)
    return list(groups.values())


def _chance(ids: Ids, chances: Chances, token: int) -> float:
    found = (ids == token).nonzero()[0]
    return float(chances[found[0]]) if len(found) else 0.0
