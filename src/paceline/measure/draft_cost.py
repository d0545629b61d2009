"""What a method costs beside the model: the microseconds of one draft and of learning from its round, without a model.

A made-up text goes on token by token, and every round is a real one for the drafter: it proposes, the draft is followed
as far as the text does, and it is told, with rows as a model would have scored them. Only its own two calls are timed.
Reading those rows, the best tokens of each out of the whole vocabulary, is timed apart, by how many there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import torch

from paceline.context import Context, Ending
from paceline.drafters.base import Ask, Budget, Drafter, Seen
from paceline.law import Sampling
from paceline.targets.base import Request, Rows, Scores, Want
from paceline.targets.reading import Top
from paceline.tree import EMPTY, ROOT, DraftTree, Floats, Ints
from paceline.verify import Verdict

VOCABULARY = 151_936
CONTEXT = 4096
BEST = 10
"""How many best tokens every row tells of."""
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
            (tree,) = drafter.propose([Ask(state, Budget(nodes, 64))])
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
    scores.top(BEST)
    return scores.seconds_top


def costs(
    methods: Mapping[str, Callable[[], Drafter]],
    *,
    sizes: Sequence[int],
    temperatures: Sequence[float],
    rounds: int,
) -> dict[float, dict[int, dict[str, Cost]]]:
    """By temperature, size and method. A drafter is fresh each time: what it learnt before would count."""
    warm = rounds // 2
    foretold = Foretold.made(needed(warm + rounds))
    return {
        temperature: {
            size: {
                name: cost(make(), foretold, nodes=size, temperature=temperature, rounds=rounds, warm=warm)
                for name, make in methods.items()
            }
            for size in sizes
        }
        for temperature in temperatures
    }
