"""What a method costs beside the model: the microseconds of one draft and of learning from its round, without a model.

A made-up text goes on token by token, and every round is a real one for the drafter: it proposes, the draft is followed
as far as the text does, and it is shown the outcome, with rows as a model would have scored them. Only its own two
calls are timed. Reading those rows, the best tokens of each out of the whole vocabulary, is timed apart, by how many
there are.

With a model at hand the same rounds are made around its own forwards, and what is beside them is told as a share of the
round. A forward leaves nothing of a drafter's in the caches of the processor, so a draft takes longer there than it
does among its like; it is that draft which counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import torch

from paceline.context import Context, Ending
from paceline.drafters.base import Ask, Budget, Drafter, Plain, Seen
from paceline.law import KeyedDice, Law, Noise, Sampling
from paceline.law.scores import Array, Row
from paceline.law.settings import of_kernel
from paceline.law.table import Acts
from paceline.targets.base import SPARE_ROWS, Request, Rows, Target, Want
from paceline.targets.reading import Floats, Top
from paceline.targets.replay import ReplayRows
from paceline.targets.scores import Scores, read_wanted
from paceline.tree import EMPTY, ROOT, DraftTree, Ints
from paceline.verify import Verdict
from paceline_lab.bench.made_up import BEST, VOCABULARY, MadeUpModel
from paceline_lab.bench.race import Clock, Contestant, Race

CONTEXT = 4096
BEHIND = 512
"""Tokens before the drafts of a model's own rounds, at most: what is beside a forward does not grow with them."""
DEEPEST = 64
"""How many tokens in a row a draft may hold."""
WARM = 2
"""Rounds of a model that are not counted."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PLAIN = Plain.name
HISTORY = 2000
"""Tokens before a choice, which penalties look at."""
WARM_TEXT = Sampling(temperature=0.8)
CUTS = {
    f"t=0.8 {row.label} {row.tried[0]}": {row.name: row.tried[0]} for row in WARM_TEXT.rows if row.acts is Acts.AS_CUT
}
PENALTIES = {row.name: row.tried[0] for row in WARM_TEXT.rows if row.acts is Acts.ON_LOGITS and row.kind}
SETTINGS = {
    "greedy": Sampling(),
    **{name: replace(WARM_TEXT, **cut) for name, cut in CUTS.items()},
    "t=1": Sampling(temperature=1.0),
    "t=0.8 top-p 0.9, penalties": replace(of_kernel(0.8, "mass"), **PENALTIES),
}


class KnownScores(Scores):
    """Rows whose best tokens are known beforehand. Their states are those of a ``model``'s forward, where there was
    one."""

    def __init__(self, request: Request, top: Top, model: Scores | None = None) -> None:
        super().__init__(request, None)
        self._told, self._model = top, model

    @cached_property
    def _best(self) -> tuple[Ints, Floats]:
        return self._told.ids[:, 0], self._told.logits[:, 0]

    def hidden(self, layer: int) -> Array:
        return super().hidden(layer) if self._model is None else self._model.hidden(layer)

    def top(self, k: int) -> Top:
        return Top(self._told.ids[:, :k], self._told.logits[:, :k], self._told.log_z)


class RoundTimes(NamedTuple):
    """Seconds of one round; 0 of what it does not have."""

    nodes: int
    propose: float = 0.0
    observe: float = 0.0
    forward: float = 0.0
    read: float = 0.0


@dataclass(frozen=True)
class Cost:
    """Rounds of one method at one size: medians, in seconds."""

    nodes: float
    """Proposed on average."""
    propose: float
    observe: float
    draft: float
    """Both."""
    forward: float
    read: float
    """The best tokens of all rows, as many as the method asks for."""

    @classmethod
    def of(cls, rounds: Sequence[RoundTimes]) -> Cost:
        nodes, propose, observe, forward, read = zip(*rounds, strict=True)
        draft = [one.propose + one.observe for one in rounds]
        return cls(fmean(nodes), *map(median, (propose, observe, draft, forward, read)))

    @property
    def share(self) -> float:
        """What drafting and reading are of the round they make with the forward."""
        return (self.draft + self.read) / (self.draft + self.read + self.forward)


class DraftTimer(Contestant[None, RoundTimes]):
    """One method, drafting along a text; between forwards of the ``model`` behind its rows, if one is given. To be
    closed."""

    def __init__(
        self,
        name: str,
        drafter: Drafter,
        size: int,
        made: MadeUpModel,
        length: int,
        temperature: float,
        model: tuple[Target, Rows] | None = None,
    ) -> None:
        self.name, self._drafter, self._size, self._made, self._model = name, drafter, size, made, model
        sampling = Sampling(temperature=temperature, seed=1)
        self._context = Context(made.text[:length], sampling, Ending(max_new_tokens=len(made.text)))
        self._state = drafter.open(self._context)
        if drafter.needs.top:
            self._teach()

    def close(self) -> None:
        self._drafter.close(self._state)

    def do(self, task: None, clock: Clock) -> RoundTimes:
        """A round; the text decides what comes of it."""
        started = time.perf_counter()
        (tree,) = self._drafter.propose([Ask(self._state, Budget(self._size, DEEPEST))])
        propose, forward, reading, scores = time.perf_counter() - started, 0.0, 0.0, None
        if self._model is not None:
            target, rows = self._model
            tree = tree if target.reach(rows.committed).trees else tree.trunk()
            forward, scores = self._scored(target, rows, tree)
            if self._drafter.needs.top:
                reading = _seconds(partial(read_wanted, [scores]))
        seen = self._followed(tree, scores)
        started = time.perf_counter()
        self._drafter.observe([seen])
        return RoundTimes(len(tree), propose, time.perf_counter() - started, forward, reading)

    def _scored(self, target: Target, rows: Rows, tree: DraftTree) -> tuple[float, Scores]:
        """Seconds until the logits are there, on whatever device, and the scores; the rows are dropped again."""
        request = Request.of_tree(rows, self._context.root, tree, self._drafter.needs)
        started = time.perf_counter()
        (scores,) = target.score([request])
        float(scores.row(ROOT)[0])
        took = time.perf_counter() - started
        rows.keep([])
        return took, scores

    def _teach(self) -> None:
        """Score every token of the vocabulary once, so that drafts are as large as they get."""
        for tokens in np.array_split(np.arange(len(self._made.ids)), 64):
            request = Request.of_tree(ReplayRows(), int(tokens[0]), DraftTree.chain(tokens[1:]))
            told = KnownScores(request, self._made.top(tokens))
            self._drafter.propose([Ask(self._state, Budget(1, 1))])  # without a draft it may spare itself the learning
            self._drafter.observe([Seen(self._state, Verdict((), (int(tokens[0]),), 0), told)])

    def _followed(self, tree: DraftTree, scores: Scores | None) -> Seen:
        """The round as the text decides it, committed."""
        request = Request.of_tree(ReplayRows(), self._context.root, tree)
        text, place = self._made.text, len(self._context)
        path = tree.along(text[place : len(text) - 2])
        tokens = text[place : place + len(path) + 1].tolist()
        for token in tokens:
            self._context.commit(token)
        told = KnownScores(request, self._made.top(request.tokens), scores)
        return Seen(self._state, Verdict(tuple(path), tuple(tokens), len(path)), told)


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _raced(timers: Sequence[DraftTimer], rounds: int, warm: int) -> dict[str, Cost]:
    """So many rounds of each in turns, after ``warm`` others."""
    race = Race(contestants=timers, tidy=False)
    heats = list(race.run([None], passes=warm + rounds))[warm:]
    return {name: Cost.of([heat.laps[name].result for heat in heats]) for name in heats[0].laps}


def made_for(rounds: int) -> MadeUpModel:
    """A text for `costs` of so many rounds: most bring a token or two, copies bring more."""
    return MadeUpModel.made(CONTEXT + 65 * (rounds + rounds // 2))


def made_for_model(target: Target, rounds: int, warm: int = WARM) -> MadeUpModel:
    """A text for `shares` of so many rounds."""
    return MadeUpModel.made(behind(target) + (DEEPEST + 1) * (warm + rounds + 1), vocabulary=target.vocab_size)


def costs(
    methods: Mapping[str, Callable[[], Drafter]],
    *,
    sizes: Sequence[int],
    temperatures: Sequence[float],
    rounds: int,
    made: MadeUpModel | None = None,
) -> dict[float, dict[int, dict[str, Cost]]]:
    """By temperature, size and method. A drafter is fresh each time, since what it learnt before would count, and has
    the processor's caches to itself."""
    wide = cache((made or made_for(rounds)).wide)

    def timed(name: str, size: int, temperature: float) -> Cost:
        drafter = methods[name]()
        timer = DraftTimer(name, drafter, size, wide(max(BEST, drafter.needs.top)), CONTEXT, temperature)
        try:
            return _raced([timer], rounds, warm=rounds // 2)[name]
        finally:
            timer.close()

    return {at: {size: {name: timed(name, size, at) for name in methods} for size in sizes} for at in temperatures}


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
    made: MadeUpModel | None = None,
) -> dict[str, Cost]:
    """Rounds of every method at its size between a model's forwards, and of `PLAIN`, in turns."""
    length = behind(target)
    made = made or made_for_model(target, rounds, warm)
    wide = cache(made.wide)
    with ExitStack() as leaving:
        rows = target.open(length + SPARE_ROWS + max(size for _, size in drafters.values()))
        leaving.callback(rows.close)
        timers = list[DraftTimer]()
        for name, (drafter, size) in {PLAIN: (Plain(), 0), **drafters}.items():
            text = wide(max(BEST, drafter.needs.top))
            timers.append(DraftTimer(name, drafter, size, text, length, temperature, (target, rows)))
            leaving.callback(timers[-1].close)
        _read_text(target, rows, made.text[: length - 1])
        return _raced(timers, rounds, warm)


def _read_text(target: Target, rows: Rows, tokens: Ints) -> None:
    size = target.prefill_size(len(tokens))
    for start in range(0, len(tokens), size):
        piece = tokens[start : start + size]
        target.score([Request.of_prompt(rows, piece)])
        rows.keep(range(len(piece)))


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
    scores = Scores(Request.of_tree(ReplayRows(), 0, chain, Want(top=BEST)), logits)
    return _seconds(lambda: scores.top(BEST))


def law_costs(vocabulary: int, repeats: int) -> dict[str, dict[str, float]]:
    """What the law costs per emitted token, from logits to the choice: median milliseconds by settings and by how
    certain a row of logits is."""
    table, tokens = _law_rows(vocabulary), np.random.default_rng(1).integers(0, vocabulary, HISTORY)
    return {
        name: {kind: _milliseconds(row, sampling, tokens, repeats) for kind, row in table.items()}
        for name, sampling in SETTINGS.items()
    }


def _law_rows(vocabulary: int) -> dict[str, Row]:
    """From certain to uniform."""
    random = np.random.default_rng(0)
    spread = random.normal(0, 3, vocabulary).astype(np.float32)
    peaked, certain = spread.copy(), spread.copy()
    peaked[random.choice(vocabulary, 8, replace=False)] += 12
    certain[7] += 30
    flat = random.normal(0, 0.05, vocabulary).astype(np.float32)
    return {"certain": certain, "a few peaks": peaked, "deviation 3": spread, "nearly flat": flat}


def _milliseconds(row: Row, sampling: Sampling, tokens: np.ndarray, repeats: int) -> float:
    """The median over positions, each with its own noise."""
    law, dice = Law(sampling, len(tokens) // 2), KeyedDice(Noise(0))

    def choose(index: int) -> None:
        dice.choose(index, law.distribution(row, tokens))

    return 1000 * median(_seconds(partial(choose, index)) for index in range(repeats))
