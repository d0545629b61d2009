"""What a method costs beside the model: the microseconds of one draft and of learning from its round, without a model.

A made-up text goes on token by token, and every round is a real one for the drafter: it proposes, the draft is followed
as far as the text does, and it is told, with rows as a model would have scored them. Only its own two calls are timed.
Reading those rows, the best tokens of each out of the whole vocabulary, is timed apart, by how many there are.

With a model at hand the same rounds are made around its own forwards, and what is beside them is told as a share of the
round. A forward leaves nothing of a drafter's in the caches of the processor, so a draft takes longer there than it
does among its like; it is that draft which counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median

import numpy as np
import torch

from paceline.context import Context, Ending
from paceline.drafters.base import Ask, Budget, Drafter, Seen
from paceline.law import Sampling
from paceline.targets.base import SPARE_ROWS, Request, Rows, Target, Want
from paceline.targets.reading import Top
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, ROOT, DraftTree, Floats, Ints
from paceline.verify import Verdict

VOCABULARY = 151_936
CONTEXT = 4096
BEST = 10
"""How many best tokens every row tells of, where the drafter does not ask for more."""
BEHIND = 512
"""Tokens before the drafts of a model's own rounds, at most: what is beside a forward does not grow with them."""
DEEPEST = 64
"""How many tokens in a row a draft may hold."""
WARM = 2
"""Rounds of a model that are not counted."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TEXT = "made up: tokens by Zipf's law, a dozen or so at a time between passages of 4 to 40 tokens that stood before"


@dataclass(frozen=True, eq=False)
class Foretold:
    """A text, and what a model would say after each token: its rows' best tokens and how likely each is."""

    text: Ints
    ids: Ints
    logits: Floats

    @classmethod
    def made(cls, length: int, *, vocabulary: int = VOCABULARY, seed: int = 0) -> Foretold:
        random = np.random.default_rng(seed)
        names = random.permutation(vocabulary)
        text = _text(random, names, length)
        bands = np.concatenate([[0], np.cumsum(_bands(vocabulary))])
        ranks = random.integers(bands[:-1], bands[1:], size=(vocabulary, BEST))
        ids = names[random.permuted(ranks, axis=1)]
        for before, after in zip(text[:-1].tolist(), text[1:].tolist(), strict=True):
            others = [token for token in ids[before].tolist() if token != after]
            ids[before] = [after, *others[: BEST - 1]]
        weights = np.sort(random.exponential(size=(vocabulary, BEST)) ** 3, axis=1)[:, ::-1]
        shares = weights / weights.sum(axis=1, keepdims=True) * random.uniform(0.5, 1.0, (vocabulary, 1))
        return cls(text, ids, np.log(shares))

    def wide(self, best: int) -> Foretold:
        """The same, with rows that name more tokens: behind the best ones such as stand together by Zipf's law, ever
        less likely."""
        if best <= (known := self.ids.shape[1]):
            return self
        vocabulary = len(self.ids)
        random = np.random.default_rng(best)
        names = random.permutation(vocabulary)
        starts = np.exp(random.random((vocabulary, 1)) * np.log(vocabulary)).astype(np.int64)
        ids = np.empty((vocabulary, best), np.int64)
        ids[:, :known] = self.ids
        for rows in np.array_split(np.arange(vocabulary), 64):
            more = names[(starts[rows] + np.arange(best)) % vocabulary]
            named = (more[:, :, None] == self.ids[rows, None, :]).any(axis=2)
            fresh = named.argsort(axis=1, kind="stable")[:, : best - known]
            ids[rows, known:] = np.take_along_axis(more, fresh, 1)
        shares = np.exp(self.logits)
        left = np.maximum(1 - shares.sum(axis=1, keepdims=True), 1e-9) / (best - known)
        others = np.minimum(left, shares[:, -1:]) * np.linspace(1, 0.1, best - known)
        return Foretold(self.text, ids, np.hstack([self.logits, np.log(others)]))

    def top(self, tokens: Ints) -> Top:
        return Top(self.ids[tokens], self.logits[tokens].astype(np.float32), np.zeros(len(tokens)))


def _text(random: np.random.Generator, names: Ints, length: int) -> Ints:
    """Tokens by Zipf's law, with passages that stood before."""
    fresh: Ints = names[np.exp(random.random(length) * np.log(len(names))).astype(np.int64) - 1]
    place = 64
    while place < length:
        size, start = int(random.integers(4, 41)), int(random.integers(0, place - 40))
        fresh[place : place + size] = fresh[start : start + min(size, length - place)]
        place += size + int(random.integers(1, 24))
    return fresh


def _bands(vocabulary: int) -> Ints:
    """How many ranks each of a row's candidates is drawn from: ever more, and all of the vocabulary together."""
    shares = vocabulary ** (np.arange(1, BEST + 1) / BEST)
    sizes: Ints = np.maximum(1, shares * (vocabulary - BEST) / shares.sum()).astype(np.int64)
    return sizes


class Told(Scores):
    """Rows whose best tokens are known beforehand."""

    def __init__(self, request: Request, top: Top) -> None:
        super().__init__(request, None)
        self._told = top

    def choices(self) -> Ints:
        return self._told.ids[:, 0]

    def choice(self, node: int) -> int:
        return int(self._told.ids[node - ROOT, 0])

    def top(self, k: int) -> Top:
        return Top(self._told.ids[:, :k], self._told.logits[:, :k], self._told.log_z)


class NoRows(Rows):
    """The cache of a model that is not there."""

    def _copy(self, other: Rows, count: int) -> None:
        pass

    def _gather(self, rows: Ints) -> None:
        pass

    def check(self) -> None:
        pass


@dataclass(frozen=True)
class Cost:
    """Of one method at one size: microseconds of a round's proposing and learning, and nodes proposed on average."""

    microseconds: float
    propose: float
    observe: float
    nodes: float


def cost(drafter: Drafter, foretold: Foretold, *, nodes: int, temperature: float, rounds: int, warm: int) -> Cost:
    """The medians over so many rounds, after ``warm`` others."""
    sampling = Sampling(temperature=temperature, seed=1)
    context = Context(foretold.text[:CONTEXT], sampling, Ending(max_new_tokens=len(foretold.text)))
    state = drafter.open(context)
    if drafter.needs.top:
        _teach(drafter, state, foretold)
    proposing, learning, sizes = list[float](), list[float](), list[int]()
    try:
        for number in range(warm + rounds):
            started = time.perf_counter()
            (tree,) = drafter.propose([Ask(state, Budget(nodes, DEEPEST))])
            proposed = time.perf_counter()
            seen = _followed(state, context, tree, foretold)
            told = time.perf_counter()
            drafter.observe([seen])
            if number >= warm:
                proposing.append(proposed - started)
                learning.append(time.perf_counter() - told)
                sizes.append(len(tree))
    finally:
        drafter.close(state)
    both = [one + other for one, other in zip(proposing, learning, strict=True)]
    whole, propose, observe = (1e6 * median(times) for times in (both, proposing, learning))
    return Cost(whole, propose, observe, fmean(sizes))


def _teach(drafter: Drafter, state: object, foretold: Foretold) -> None:
    """Let every token of the vocabulary be scored once, so that drafts are as large as they get."""
    for tokens in np.array_split(np.arange(len(foretold.ids)), 64):
        request = Request.of_tree(NoRows(), int(tokens[0]), DraftTree.chain(tokens[1:]))
        told = Told(request, foretold.top(tokens))
        drafter.propose([Ask(state, Budget(1, 1))])  # who is not asked for drafts may spare itself the learning
        drafter.observe([Seen(state, Verdict((), (int(tokens[0]),), 0), told)])


def _followed(state: object, context: Context, tree: DraftTree, foretold: Foretold) -> Seen:
    """The round as the text decides it, committed."""
    request = Request.of_tree(NoRows(), context.root, tree)
    path, tokens, node = list[int](), list[int](), ROOT
    place = len(context)
    while True:
        token = int(foretold.text[place + len(tokens)])
        tokens.append(token)
        context.commit(token)
        child = tree.child(node, token)
        if child is None or place + len(tokens) + 1 >= len(foretold.text):
            break
        path.append(child)
        node = child
    return Seen(state, Verdict(tuple(path), tuple(tokens), len(path)), Told(request, foretold.top(request.tokens)))


def needed(rounds: int) -> int:
    """How long a text may get in so many rounds: most bring a token or two, copies bring more."""
    return CONTEXT + 65 * rounds


def made_for(rounds: int) -> Foretold:
    """A text for `costs` of so many rounds."""
    return Foretold.made(needed(rounds + rounds // 2))


def made_for_model(target: Target, rounds: int, warm: int = WARM) -> Foretold:
    """A text for `shares` of so many rounds."""
    return Foretold.made(behind(target) + (DEEPEST + 1) * (warm + rounds + 1), vocabulary=target.vocab_size)


def reading(rows: Sequence[int], *, repeats: int, vocabulary: int = VOCABULARY) -> dict[str, dict[int, float]]:
    """Milliseconds of the best tokens and the normaliser of so many rows, by dtype: medians."""
    random = torch.Generator().manual_seed(0)
    found: dict[str, dict[int, float]] = {}
    for name, dtype in DTYPES.items():
        logits = (3 * torch.randn(max(rows), vocabulary, generator=random)).to(dtype)
        found[name] = {}
        for count in rows:
            times = [_read(logits[:count]) for _ in range(1 + repeats)][1:]
            found[name][count] = 1e3 * median(times)
    return found


def _read(logits: torch.Tensor) -> float:
    chain = DraftTree.chain([0] * (len(logits) - 1)) if len(logits) > 1 else EMPTY
    scores = Scores(Request.of_tree(NoRows(), 0, chain, Want(top=BEST)), logits)
    started = time.perf_counter()
    scores.top(BEST)
    return time.perf_counter() - started


def costs(
    methods: Mapping[str, Callable[[], Drafter]],
    *,
    sizes: Sequence[int],
    temperatures: Sequence[float],
    rounds: int,
    made: Foretold | None = None,
) -> dict[float, dict[int, dict[str, Cost]]]:
    """By temperature, size and method. A drafter is fresh each time: what it learnt before would count."""
    warm = rounds // 2
    wide = cache((made or made_for(rounds)).wide)

    def timed(drafter: Drafter, size: int, temperature: float) -> Cost:
        text = wide(max(BEST, drafter.needs.top))
        return cost(drafter, text, nodes=size, temperature=temperature, rounds=rounds, warm=warm)

    return {
        temperature: {
            size: {name: timed(make(), size, temperature) for name, make in methods.items()} for size in sizes
        }
        for temperature in temperatures
    }


@dataclass(frozen=True)
class Share:
    """Of one method in a model's rounds: medians, in milliseconds."""

    nodes: float
    """Proposed on average."""
    forward: float
    draft: float
    """Proposing and learning."""
    read: float
    """The best tokens of all rows, as many as the method asks for."""

    @property
    def share(self) -> float:
        """What drafting and reading are of the round they make with the forward."""
        return (self.draft + self.read) / (self.draft + self.read + self.forward)


def behind(target: Target) -> int:
    """How many tokens stand before the drafts of a model's own rounds."""
    return BEHIND if target.context_length is None else max(1, min(BEHIND, target.context_length - 2 * DEEPEST))


def shares(
    target: Target,
    drafters: Mapping[str, tuple[Drafter, int]],
    *,
    temperature: float,
    rounds: int,
    warm: int = WARM,
    made: Foretold | None = None,
) -> tuple[float, dict[str, Share]]:
    """Milliseconds of a plain forward, and of every method at its size; they take turns, so that a slow moment of the
    machine meets all of them."""
    length = behind(target)
    made = made or made_for_model(target, rounds, warm)
    wide = cache(made.wide)
    riders = {
        name: _Rider(drafter, size, wide(max(BEST, drafter.needs.top)), length, temperature)
        for name, (drafter, size) in drafters.items()
    }
    rows = target.open(length + SPARE_ROWS + max(size for _, size in drafters.values()))
    plain = list[float]()
    try:
        _read_text(target, rows, made.text[: length - 1])
        for turn in range(warm + rounds):
            plain.append(_forward(target, Request.of_tree(rows, int(made.text[length - 1]), EMPTY))[0])
            for rider in list(riders.values())[:: -1 if turn % 2 else 1]:
                rider.ride(target, rows)
    finally:
        rows.close()
        for rider in riders.values():
            rider.drafter.close(rider.state)
    return 1e3 * median(plain[warm:]), {name: rider.share(warm) for name, rider in riders.items()}


class _Rider:
    """One method, drafting between a model's forwards."""

    def __init__(self, drafter: Drafter, size: int, foretold: Foretold, length: int, temperature: float) -> None:
        self.drafter, self._size, self._foretold = drafter, size, foretold
        sampling = Sampling(temperature=temperature, seed=1)
        self._context = Context(foretold.text[:length], sampling, Ending(max_new_tokens=len(foretold.text)))
        self.state = drafter.open(self._context)
        self._taken: list[tuple[float, float, float]] = []
        self._nodes: list[int] = []
        if drafter.needs.top:
            _teach(drafter, self.state, foretold)

    def ride(self, target: Target, rows: Rows) -> None:
        """A round: the model scores the draft behind the same rows as ever, and the text decides what comes of it."""
        started = time.perf_counter()
        (tree,) = self.drafter.propose([Ask(self.state, Budget(self._size, DEEPEST))])
        drafting = time.perf_counter() - started
        if not target.reach(rows.committed).trees:
            tree = tree.trunk()
        top = self.drafter.needs.top
        forward, scores = _forward(target, Request.of_tree(rows, self._context.root, tree, Want(top=top)))
        started = time.perf_counter()
        scores.read_top()
        reading = time.perf_counter() - started
        seen = _followed(self.state, self._context, tree, self._foretold)
        started = time.perf_counter()
        self.drafter.observe([seen])
        drafting += time.perf_counter() - started
        self._taken.append((forward, drafting, reading))
        self._nodes.append(len(tree))

    def share(self, warm: int) -> Share:
        return Share(
            fmean(self._nodes[warm:]), *(1e3 * median(times) for times in zip(*self._taken[warm:], strict=True))
        )


def _read_text(target: Target, rows: Rows, tokens: Ints) -> None:
    size = target.prefill_size(len(tokens))
    for start in range(0, len(tokens), size):
        piece = tokens[start : start + size]
        target.submit([Request.of_prompt(rows, piece)]).result()
        rows.keep(range(len(piece)))


def _forward(target: Target, request: Request) -> tuple[float, Scores]:
    """Seconds until the logits are there, on whatever device, and the scores; the rows are dropped again."""
    started = time.perf_counter()
    (scores,) = target.submit([request]).result()
    scores.row(ROOT)[0].item()
    took = time.perf_counter() - started
    request.rows.keep([])
    return took, scores
