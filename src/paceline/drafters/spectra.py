"""SPECTRA's internal speculation: what the model nearly said, kept in two stores that are read in two directions.

Every scored row says what the model would go on with, also the rows of what was refused. With the tokens before it that
is an n-gram of the model's own. The *forward* store keeps it by its first token: what follows once that token stands
there, several tokens at a time. The *backward* store keeps its last token by those before it: what comes next after
these words, looked up by the longest ending that is known. A draft begins with the forward n-grams of the root, and the
backward store fills in beside and behind them, level by level, for as long as there is room.

Beside the draft a window of Jacobi guesses is scored, as in `lookahead`, whose n-grams come into the stores with all
others; ``window=0`` leaves it out. The text itself is in both stores, too. The external side is a corpus: what followed
the text's last words in a datastore joins the same tree, under a name of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter, Seen
from paceline.drafters.datastore import KEY, Datastore
from paceline.drafters.lookahead import ELSEWHERE, Pool, Window, weighed
from paceline.drafters.noise import BEST, SharedNoise, choices, log_chances, wants_noise
from paceline.targets.base import NOTHING, Target, Want
from paceline.targets.scores import Scores
from paceline.tree import ROOT, DraftTree, Floats, merge
from paceline.verify import Verdict
from paceline.vocabulary import Vocabulary

SHORTEST = 2
"""So many tokens of context the backward store asks for at least: single tokens are the forward store's."""
CONTEXTS = 1 << 17
"""How many contexts the backward store holds at most; the oldest are forgotten."""


class Contexts:
    """For every short run of tokens the latest ``size`` different ones that came next."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._next: dict[tuple[int, ...], dict[int, None]] = {}

    def put(self, before: tuple[int, ...], token: int) -> None:
        """Remember what came next; of too many the one that was not seen for longest is forgotten."""
        known = self._next.get(before)
        if known is None:
            if len(self._next) >= CONTEXTS:
                del self._next[next(iter(self._next))]
            known = self._next[before] = {}
        known.pop(token, None)
        known[token] = None
        if len(known) > self._size:
            del known[next(iter(known))]

    def after(self, text: tuple[int, ...]) -> tuple[int, list[int]]:
        """The length of the longest known ending of ``text``, and what came next after it, the latest first."""
        for size in range(len(text), SHORTEST - 1, -1):
            if (known := self._next.get(text[-size:])) is not None:
                return size, list(known)[::-1]
        return 0, []


class Store:
    """Both directions of one memory of n-grams; texts written at the same time may share it."""

    def __init__(self, level: int, guesses: int) -> None:
        self._level = level
        self.lock = threading.Lock()
        self.forward = Pool(guesses)
        self.backward = Contexts(guesses)

    def put(self, gram: tuple[int, ...]) -> None:
        """Remember up to ``level`` tokens in a row, the last of which is what they lead to."""
        if len(gram) == self._level:
            self.forward.put(gram[0], gram[1:])
        for size in range(SHORTEST, len(gram)):
            self.backward.put(gram[-1 - size : -1], gram[-1])


class Going(NamedTuple):
    """A node that goes on: the last tokens up to it, and the forward n-grams that agree with its path, weighed."""

    node: int
    path: float
    tail: tuple[int, ...]
    rests: list[tuple[float, tuple[int, ...]]]


@dataclass(eq=False)
class Memory:
    """One text, and the store that it draws from."""

    context: Context
    store: Store
    noise: SharedNoise | None
    window: Window | None = None
    learnt: int = 0
    """How much of the text is in the store."""


@dataclass(eq=False)
class Sketch:
    """A tree being drafted, level by level."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


PLACES = 32
"""How many places of a corpus are asked what followed there."""


class Spectra(Drafter):
    """``level`` is the longest n-gram, ``guesses`` how many of each beginning are kept and how many nodes of each level
    of a draft go on, ``window`` the width of the window. With ``store=shared`` all texts of the drafter have one
    memory, without it each has its own. ``corpus`` is a datastore's file."""

    name = "spectra"
    summary = "n-grams that the model nearly said, read forward from the last token and backward by the longest context"
    source = "SPECTRA (Le et al. 2025)"
    needs = Want(top=BEST)
    unfit = "short texts, for its stores start empty; or rows that cost much, for its window takes 27 of them"

    def __init__(
        self,
        *,
        level: int = 5,
        guesses: int = 7,
        window: int = 7,
        store: str = "private",
        corpus: str | None = None,
        noise: str = "shared",
    ) -> None:
        if level < 3:
            raise ValueError(f"spectra needs level of at least 3, not {level}")
        if guesses < 1:
            raise ValueError(f"spectra needs guesses of at least 1, not {guesses}")
        if store not in ("private", "shared"):
            raise ValueError(f"spectra takes store=private or store=shared, not {store!r}")
        if window < 0 or window == 1:
            raise ValueError(f"spectra takes window=0 (none) or a window of at least 2, not {window}")
        self.level, self.guesses, self.window = level, guesses, window
        self.nodes = guesses * (level - 1)
        self._noise = wants_noise(self.name, noise)
        if not self._noise:
            self.needs = NOTHING
        self._corpus = None if corpus is None else Datastore(corpus)
        self._common = Store(level, guesses) if store == "shared" else None

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        if self._corpus is not None:
            self._corpus.check(target.vocab_size, vocabulary)

    def reset(self) -> None:
        if self._common is not None:
            self._common = Store(self.level, self.guesses)

    def open(self, context: Context) -> Memory:
        store = self._common or Store(self.level, self.guesses)
        state = Memory(context, store, SharedNoise.of(context, self._noise))
        if self.window:
            state.window = Window.ahead_of(context.tokens, self.level, self.window)
        with store.lock:
            self._learn_text(state)
        return state

    def observe(self, seen: Sequence[Seen]) -> None:
        for state, verdict, scores in seen:
            if verdict.tokens:
                with state.store.lock:
                    for gram in self._nearly_said(state, verdict, scores):
                        state.store.put(gram)
                    self._learn_text(state)

    def _learn_text(self, state: Memory) -> None:
        tokens = state.context.tokens[max(0, state.learnt - self.level + 1) :].tolist()
        known = min(state.learnt, self.level - 1)
        for end in range(known, len(tokens)):
            state.store.put(tuple(tokens[max(0, end - self.level + 1) : end + 1]))
        state.learnt = len(state.context)

    def _nearly_said(self, state: Memory, verdict: Verdict, scores: Scores) -> Iterator[tuple[int, ...]]:
        """An n-gram for every scored row, the window's among them; and the window moves on."""
        context, keep = state.context, self.level - 1
        length = len(context) - len(verdict.tokens)
        before = tuple(context.tokens[max(0, length - keep) : length].tolist())
        tails, depths = [before], [0]
        for token, parent in zip(scores.tokens[1:].tolist(), scores.parents[1:].tolist(), strict=True):
            tails.append((*tails[parent], token)[-keep:])
            depths.append(depths[parent] + 1)
        ahead = np.array(depths) - len(verdict.tokens)
        said = choices(scores, np.arange(len(tails)), state.noise, ahead)
        if state.window is not None and (newest := state.window.newest(scores)) is not None:
            state.window.move(int(scores.tokens[0]), said[newest].tolist(), context.tokens)
        for tail, token in zip(tails, said.tolist(), strict=True):
            yield (*tail, token)

    def propose_one(self, state: Memory, budget: Budget) -> DraftTree:
        keep = self.level - 1
        text = state.context.tokens
        sketch = Sketch()
        with state.store.lock:
            rests = [(ELSEWHERE / (1 + age), rest) for age, rest in enumerate(state.store.forward.after(int(text[-1])))]
            going = [Going(ROOT, 0.0, tuple(text[-keep:].tolist()), rests)]
            for depth in range(min(budget.depth, 2 * keep)):
                going = self._level(state, sketch, going, depth)
                if not going or len(sketch.tokens) >= 2 * budget.nodes + self.guesses:
                    break
        tree = DraftTree.build(sketch.tokens, sketch.parents, source=self.name, scores=sketch.scores)
        if self._corpus is not None:
            tree = merge([tree, self._retrieved(state, self._corpus, budget)])
        tree = tree.top(budget.nodes)
        return tree if state.window is None else merge([tree, state.window.tree(self.name)])

    def _retrieved(self, state: Memory, corpus: Datastore, budget: Budget) -> DraftTree:
        """What the corpus goes on with; together its places weigh as much as the ending that they match is long."""
        ending = state.context.tokens[-KEY:].tolist()
        found = corpus.following(ending, PLACES, 2 * (self.level - 1))
        weights = [size * ELSEWHERE / len(found) for _, size in found]
        guesses = [told for told, _ in found]
        return weighed(guesses, weights, budget, state.noise, f"{self.name} corpus")

    def _level(self, state: Memory, sketch: Sketch, going: Sequence[Going], depth: int) -> list[Going]:
        """Hang the next level below the nodes that go on, and say which of it go on."""
        votes = [_votes(state.store.backward, front) for front in going]
        scores = _believed(votes, state, depth)
        following: list[Going] = []
        at = 0
        for front, weights in zip(going, votes, strict=True):
            for token in weights:
                node, score = len(sketch.tokens), float(scores[at])
                at += 1
                sketch.tokens.append(token)
                sketch.parents.append(front.node)
                sketch.scores.append(score)
                if token not in state.context.ending.eos:
                    rests = [(weight, rest[1:]) for weight, rest in front.rests if rest[0] == token and len(rest) > 1]
                    tail = (*front.tail, token)[-(self.level - 1) :]
                    following.append(Going(node, front.path + score, tail, rests))
        following.sort(key=lambda front: -front.path)
        return following[: self.guesses]


def _votes(backward: Contexts, front: Going) -> dict[int, float]:
    """What may come next, weighed: by how late it was seen, and after how long a context."""
    weights: dict[int, float] = {}
    for weight, rest in front.rests:
        weights[rest[0]] = weights.get(rest[0], 0.0) + weight
    size, tokens = backward.after(front.tail)
    for age, token in enumerate(tokens):
        weights[token] = weights.get(token, 0.0) + size * ELSEWHERE / (1 + age)
    return weights


def _believed(votes: Iterable[dict[int, float]], state: Memory, depth: int) -> Floats:
    """Log-probabilities of all that is voted for, in order."""
    tokens, weights, groups = list[int](), list[float](), list[int]()
    for group, voted in enumerate(votes):
        tokens += voted
        weights += voted.values()
        groups += [group] * len(voted)
    ahead = np.full(len(tokens), depth)
    return log_chances(
        np.array(weights), ELSEWHERE, np.array(groups, np.int64), state.noise, ahead, np.array(tokens, np.int64)
    )
