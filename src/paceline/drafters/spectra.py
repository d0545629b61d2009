"""SPECTRA's internal speculation: n-grams of the model's own predictions, in two stores read in two directions.

The model's choice after every scored row, those of refused nodes included, makes an n-gram with the tokens before it.
The *forward* store keeps it by its first token, for several tokens at a time. The *backward* store keeps its last token
by those before it, and is asked for the longest ending that it knows. A draft begins with the forward n-grams of the
root; the backward store adds to them and goes on behind them, level by level, while there is room.

Beside the draft a window of Jacobi guesses is scored, as in `lookahead`, whose n-grams come into the stores, too;
``window=0`` leaves it out. The text itself is in both stores. The external side is a corpus: what followed the text's
last words in a datastore joins the tree, under its own name.

``spectra:paper`` has the draft size that the UniSpec paper gives for it, 60 with the window. The division of the 60
between the window and the n-grams is our interpretation: as in Lookahead, about half each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter, Seen, at_least, one_of
from paceline.drafters.datastore import KEY, Datastore
from paceline.drafters.lookahead import ELSEWHERE, Recent, Window, shared_out, weighed
from paceline.drafters.noise import BEST, SharedNoise, choices, hides_noise, log_chances, wants_noise
from paceline.errors import InputError
from paceline.targets.base import NOTHING, Target, Want
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, ROOT, DraftTree, Floats, merge
from paceline.verify import Verdict
from paceline.vocabulary import Vocabulary

SHORTEST = 2
"""Tokens of context in the backward store, at least: single tokens are the forward store's."""
CONTEXTS = 1 << 17
"""Contexts in the backward store, at most."""


class NgramStore:
    """N-grams in both directions; texts written at the same time may share it."""

    def __init__(self, level: int, guesses: int) -> None:
        self._level = level
        self.lock = threading.Lock()
        self.forward: Recent[int, tuple[int, ...]] = Recent(guesses)
        self.backward: Recent[tuple[int, ...], int] = Recent(guesses, CONTEXTS)

    def put(self, gram: tuple[int, ...]) -> None:
        """Remember an n-gram of up to ``level`` tokens."""
        if len(gram) == self._level:
            self.forward.put(gram[0], gram[1:])
        for size in range(SHORTEST, len(gram)):
            self.backward.put(gram[-1 - size : -1], gram[-1])

    def after(self, text: tuple[int, ...]) -> tuple[int, list[int]]:
        """The length of the longest ending that the backward store knows, and what followed it, the latest first."""
        for size in range(len(text), SHORTEST - 1, -1):
            if known := self.backward.of(text[-size:]):
                return size, known
        return 0, []


class Going(NamedTuple):
    """A node that gets children: the last tokens up to it, and the rests of forward n-grams that agree with its path,
    with their weights."""

    node: int
    path: float
    tail: tuple[int, ...]
    rests: list[tuple[float, tuple[int, ...]]]


@dataclass(eq=False)
class SpectraState:
    """One text, and the store that it uses."""

    context: Context
    store: NgramStore
    noise: SharedNoise | None
    window: Window | None = None
    learnt: int = 0
    """The length of the text that is in the store."""


@dataclass(eq=False)
class Sketch:
    """A tree that grows level by level."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


PLACES = 32
"""Places of a corpus that are asked what followed, at most."""


class Spectra(Drafter):
    """``level`` is the length of the longest n-gram, ``guesses`` the number of n-grams kept for each beginning and of
    nodes of each level that go on, ``window`` the width of the window. With ``store=shared`` all texts of the drafter
    have one store, but under hidden coins (`hides_noise`). ``corpus`` is a datastore's file."""

    name = "spectra"
    summary = "n-grams of the model's best tokens, looked up forward from the last token and by the longest context"
    source = "SPECTRA (Le et al. 2025)"
    needs = Want(top=BEST)
    skips = True
    unfit = "short texts, because its stores begin empty; machines on which rows are expensive: its window has 27"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"paper": {"guesses": 8, "counted": True, "noise": "none"}}
    )

    def __init__(
        self,
        *,
        level: int = 5,
        guesses: int = 7,
        window: int = 7,
        counted: bool = False,
        store: str = "private",
        corpus: str | None = None,
        noise: str = "shared",
    ) -> None:
        at_least(self.name, 3, level=level)
        at_least(self.name, 1, guesses=guesses)
        one_of(self.name, ("private", "shared"), store=store)
        if window < 0 or window == 1:
            raise InputError(f"spectra takes window=0 (none) or a window of at least 2, not {window}")
        self.level, self.guesses, self.window = level, guesses, window
        self._counted = counted and window > 0
        self.nested = not self._counted
        self.nodes = (guesses + window * self._counted) * (level - 1)
        self._noise = wants_noise(self.name, noise)
        if not self._noise:
            self.needs = NOTHING
        self._corpus = None if corpus is None else Datastore.shared(corpus)
        self._common = NgramStore(level, guesses) if store == "shared" else None

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        if self._corpus is not None:
            self._corpus.check(target.vocab_size, vocabulary)

    def reset(self) -> None:
        if self._common is not None:
            self._common = NgramStore(self.level, self.guesses)

    def open(self, context: Context) -> SpectraState:
        shared = None if hides_noise(context) else self._common
        store = shared or NgramStore(self.level, self.guesses)
        state = SpectraState(context, store, SharedNoise.of(context, self._noise))
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

    def _learn_text(self, state: SpectraState) -> None:
        tokens = state.context.tokens[max(0, state.learnt - self.level + 1) :].tolist()
        known = min(state.learnt, self.level - 1)
        for end in range(known, len(tokens)):
            state.store.put(tuple(tokens[max(0, end - self.level + 1) : end + 1]))
        state.learnt = len(state.context)

    def _nearly_said(self, state: SpectraState, verdict: Verdict, scores: Scores) -> Iterator[tuple[int, ...]]:
        """An n-gram for every scored row, the window's among them. Moves the window on."""
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
            state.window.move(int(scores.tokens[0]), said[newest].tolist())
        for tail, token in zip(tails, said.tolist(), strict=True):
            yield (*tail, token)

    def propose_one(self, state: SpectraState, budget: Budget) -> DraftTree:
        keep = self.level - 1
        text = state.context.tokens
        sketch, probes = Sketch(), EMPTY
        if state.window is not None and self._counted:
            probes, budget = shared_out(state.window, self.window / self.nodes, budget, text, self.name)
        elif state.window is not None:
            probes = state.window.tree(self.name)
        with state.store.lock:
            rests = [(ELSEWHERE / (1 + age), rest) for age, rest in enumerate(state.store.forward.of(int(text[-1])))]
            going = [Going(ROOT, 0.0, tuple(text[-keep:].tolist()), rests)]
            for depth in range(min(budget.depth, 2 * keep)):
                going = self._level(state, sketch, going, depth)
                if not going or len(sketch.tokens) >= 2 * budget.nodes + self.guesses:
                    break
        tree = DraftTree.build(sketch.tokens, sketch.parents, source=self.name, scores=sketch.scores)
        if self._corpus is not None:
            tree = merge([tree, self._retrieved(state, self._corpus, budget)])
        return merge([tree.top(budget.nodes), probes])

    def _retrieved(self, state: SpectraState, corpus: Datastore, budget: Budget) -> DraftTree:
        """The draft from the corpus. Together its places weigh as much as the matched ending is long."""
        ending = state.context.tokens[-KEY:].tolist()
        found = corpus.following(ending, PLACES, 2 * (self.level - 1))
        weights = [size * ELSEWHERE / len(found) for _, size in found]
        return weighed([tokens for tokens, _ in found], weights, budget, state.noise, f"{self.name} corpus")

    def _level(self, state: SpectraState, sketch: Sketch, going: Sequence[Going], depth: int) -> list[Going]:
        """Add the next level below the nodes that go on; returns those of it that go on."""
        votes = [_votes(state.store, front) for front in going]
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


def _votes(store: NgramStore, front: Going) -> dict[int, float]:
    """The tokens that may come next. They weigh more the later they were seen, and after a longer context."""
    weights: dict[int, float] = {}
    for weight, rest in front.rests:
        weights[rest[0]] = weights.get(rest[0], 0.0) + weight
    size, tokens = store.after(front.tail)
    for age, token in enumerate(tokens):
        weights[token] = weights.get(token, 0.0) + size * ELSEWHERE / (1 + age)
    return weights


def _believed(votes: Iterable[dict[int, float]], state: SpectraState, depth: int) -> Floats:
    """Log-probabilities of all tokens that are voted for, in order."""
    tokens, weights, groups = list[int](), list[float](), list[int]()
    for group, voted in enumerate(votes):
        tokens += voted
        weights += voted.values()
        groups += [group] * len(voted)
    ahead = np.full(len(tokens), depth)
    return log_chances(
        np.array(weights), ELSEWHERE, np.array(groups, np.int64), state.noise, ahead, np.array(tokens, np.int64)
    )
