"""UniSpec: a draft tree from what the model nearly said, by how likely it found it.

Each level of the tree takes the stored candidates of the level above, and a node is worth its candidate's likelihood
times its parent's worth. In the paper's letters, with ``S`` the store, ``C`` what the model found likely instead of the
token it chose last, *d* the depth, *k* the width and *r* the threshold ::

    level 1     S[root] + C                       the next token may be one that was nearly said a place earlier
    level i+1   S[u] for the k worthiest nodes u of level i, if worth at least r
    the draft   the g worthiest of all nodes

Worth never rises downwards, so the choice hangs together. With ``confidence=token`` a node is worth what its own
candidate is, and the worthiest are taken as far as their parents are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Seen
from paceline.drafters.lookahead import noise_option, shares_noise
from paceline.drafters.store import Chances, Ids, Store, Storing, foreseen
from paceline.tree import EMPTY, ROOT, DraftTree, Ints

FADING = 0.5
"""Without scores, how much less likely each candidate of a row is taken to be than the one before it."""


@dataclass(eq=False)
class Text:
    """One sequence, its store, and the candidates for the place of its last token."""

    context: Context
    store: Store
    shared: bool
    """Whether candidates are ranked with the public noise."""
    others: Ids | None = None
    chances: Chances | None = None


@dataclass(frozen=True, eq=False)
class Level:
    """The candidates of one depth: their tokens, how likely each is by itself, the worth to rank by, and below which
    candidate, counted through all levels, each stands."""

    tokens: Ids
    own: Chances
    worth: Chances
    parents: Ints


class UniSpec(Storing):
    """Algorithm 1 of the paper but for its calibration, which is a planner's."""

    name = "unispec"
    summary = "a tree of what the model nearly said after each token, by how likely it found it"
    source = "UniSpec (Do et al. 2025)"
    unfit = "every token of the text is new, or the text only copies (suffix is cheaper)"
    nodes = 60

    def __init__(
        self,
        *,
        k: int = 10,
        depth: int = 10,
        threshold: float = 0.05,
        confidence: str = "path",
        scores: bool = True,
        next: str = "others",
        noise: str = "shared",
        prefill: bool = False,
        store: str = "shared",
    ) -> None:
        for key, value in (("k", k), ("depth", depth)):
            if value < 1:
                raise ValueError(f"{self.name} needs {key} of at least 1, not {value}")
        if not 0 <= threshold <= 1:
            raise ValueError(f"{self.name} takes a threshold from 0 to 1, not {threshold}")
        if confidence not in ("path", "token"):
            raise ValueError(f"{self.name} takes confidence=path or confidence=token, not {confidence!r}")
        if next not in ("others", "all", "none"):
            raise ValueError(f"{self.name} takes next=others, next=all or next=none, not {next!r}")
        super().__init__(width=k, store=store, prefill=prefill)
        self.k, self.depth = k, depth
        self.threshold = threshold if scores else 0.0
        self.by_path = confidence == "path"
        self.next = next
        self._noise = noise_option(self.name, noise)
        self._ranks = None if scores else FADING ** np.arange(1.0, k + 1)
        self._both = f"{self.name}+{self.name}-next"

    def open(self, context: Context) -> Text:
        shared = self._ranks is None and shares_noise(context, self._noise)
        return Text(context, self._store(), shared)

    def observe(self, seen: Sequence[Seen]) -> None:
        for one in seen:
            text: Text = one.state
            found = self._learn(one, text.store)
            if found is not None:
                path = one.verdict.path
                last = path[-1] + 1 if path else 0
                text.others, text.chances = found[0].ids[last], found[1][last]

    def propose_one(self, state: Text, budget: Budget) -> DraftTree:
        if budget.empty:
            return EMPTY
        with state.store.lock:
            first, names = self._first(state)
            if not len(first.tokens):
                return EMPTY
            levels = self._grown(state, first, min(self.depth, budget.depth))
        return self._chosen(levels, names, budget.nodes)

    def _first(self, text: Text) -> tuple[Level, list[str]]:
        """The candidates for the next token, and who proposes each: one that both sources name is one candidate."""
        root = text.context.root
        tokens: list[int] = []
        own: list[float] = []
        names: list[str] = []
        if root < len(text.store):
            ids, chances = text.store.tokens[root : root + 1], text.store.chances[root : root + 1]
            believed = self._believed(text, chances, ids, 0)
            for token, chance in zip(ids[0].tolist(), believed[0].tolist(), strict=True):
                if chance > 0:
                    tokens.append(token)
                    own.append(chance)
            names = [self.name] * len(tokens)
        if self.next != "none" and text.others is not None and text.chances is not None:
            believed = self._believed(text, text.chances[None], text.others[None], 0)
            known = len(tokens)
            for token, chance in zip(text.others.tolist(), believed[0].tolist(), strict=True):
                if chance <= 0 or (token == root and self.next == "others"):
                    continue
                if token in tokens[:known]:
                    place = tokens.index(token)
                    own[place] = max(own[place], chance)
                    names[place] = self._both
                else:
                    tokens.append(token)
                    own.append(chance)
                    names.append(f"{self.name}-next")
        worth = np.array(own)
        return Level(np.array(tokens, np.int64), worth, worth, np.full(len(tokens), ROOT)), names

    def _believed(self, text: Text, chances: Chances, ids: Ids, place: int) -> Chances:
        """How likely each candidate is taken to be; 0 for the places of a row that hold none."""
        if text.shared:
            return foreseen(chances, ids, text.context, place)
        if self._ranks is not None:
            ranked: Chances = (chances > 0) * self._ranks[: chances.shape[1]]
            return ranked
        return chances

    def _grown(self, text: Text, first: Level, depth: int) -> list[Level]:
        """All levels, as far as there are nodes worth going on from."""
        ends, store, k = text.context.ending.eos, text.store, self.k
        size, rows = len(store), store.width
        levels, level, before = [first], first, 0
        for place in range(1, depth):
            rank = level.worth if self.by_path else level.own
            best = (-rank).argsort(kind="stable")[:k]
            going: list[int] = []
            tokens: list[int] = []
            for node, token, worth in zip(best.tolist(), level.tokens[best].tolist(), rank[best].tolist(), strict=True):
                if worth < self.threshold or worth <= 0:
                    break
                if token not in ends and token < size:
                    going.append(node)
                    tokens.append(token)
            if not going:
                break
            ids, chances = store.tokens.take(tokens, 0), store.chances.take(tokens, 0)
            own = self._believed(text, chances, ids, place)
            above = level.worth[going][:, None]
            worth = own * above if self.by_path else np.minimum(own, above)
            parents = np.repeat(going, rows)
            parents += before
            before += len(level.tokens)
            level = Level(ids.ravel(), own.ravel(), worth.ravel(), parents)
            levels.append(level)
        return levels

    def _chosen(self, levels: Sequence[Level], names: Sequence[str], nodes: int) -> DraftTree:
        """The worthiest nodes of all levels as a tree."""
        worth = np.concatenate([level.worth for level in levels])
        chosen = (-worth).argsort(kind="stable")[:nodes]
        chosen.sort()
        if not worth[chosen].all():
            chosen = chosen[worth[chosen] > 0]
        tokens = np.concatenate([level.tokens for level in levels])[chosen]
        own = np.concatenate([level.own for level in levels])[chosen]
        place = np.empty(len(worth) + 1, np.int64)
        place[chosen] = np.arange(len(chosen))
        place[-1] = ROOT
        parents = place[np.concatenate([level.parents for level in levels])[chosen]]
        first = int(chosen.searchsorted(len(names)))
        sources = (*[names[node] for node in chosen[:first].tolist()], *(self.name,) * (len(chosen) - first))
        return DraftTree(tokens.astype(np.int64), parents, np.log(own.astype(np.float64)), sources)
