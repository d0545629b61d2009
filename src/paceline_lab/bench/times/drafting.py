"""Seconds of drafting: of one draft, and of learning from its round, without a model or between the forwards of one.

A made-up text goes on token by token, and every round is a real one for the drafter: it proposes, the draft is followed
as far as the text does, and it is shown the outcome, with rows as a model would have scored them. Only its own two
calls are timed, and with a model the forward and the reading of the best tokens that the method asks for.

A forward leaves nothing of a drafter's in the caches of the processor, so a draft takes longer between forwards than it
does among its like; it is that draft which counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache, cached_property
from statistics import fmean
from typing import NamedTuple, TypeVar

import numpy as np

from paceline.context import Context, Ending
from paceline.drafters.base import Ask, Budget, Drafter, Plain, Seen
from paceline.law import Sampling
from paceline.law.scores import Array
from paceline.targets.base import SPARE_ROWS, Request, Rows, Target
from paceline.targets.reading import Floats, Top
from paceline.targets.replay import ReplayRows
from paceline.targets.scores import Scores, read_wanted
from paceline.tree import ROOT, DraftTree, Ints
from paceline.verify import Verdict
from paceline_lab.bench.race import Clock, Progress, silent
from paceline_lab.bench.times.made_up import BEST, MadeUpModel
from paceline_lab.bench.times.steps import TimedLine, TimedStep, medians, read_text

Result = TypeVar("Result")

CONTEXT = 4096
BEHIND = 512
"""Tokens before the drafts of a model's own rounds, at most: what is beside a forward does not grow with them."""
DEEPEST = 64
"""How many tokens in a row a draft may hold."""
WARM = 2
"""Rounds of a model that are not counted."""


class KnownScores(Scores):
    """Rows whose best tokens are known beforehand. Their states are those of a ``model``'s forward, where there was
    one."""

    def __init__(self, request: Request, top: Top, model: Scores | None = None) -> None:
        super().__init__(request, None)
        self._best_tokens, self._model = top, model

    @cached_property
    def _best(self) -> tuple[Ints, Floats]:
        return self._best_tokens.ids[:, 0], self._best_tokens.logits[:, 0]

    def hidden(self, layer: int) -> Array:
        return super().hidden(layer) if self._model is None else self._model.hidden(layer)

    def top(self, k: int) -> Top:
        return Top(self._best_tokens.ids[:, :k], self._best_tokens.logits[:, :k], self._best_tokens.log_z)


class DraftTask(NamedTuple):
    """A method to time."""

    method: str
    make: Callable[[], Drafter]
    """A fresh drafter, since what it learnt before would count. It fits the model, if there is one."""
    temperature: float
    budget: int | None = None
    """None for its own size."""
    calibrated: bool = False
    """Whether the budget was found by a calibration."""

    def size(self, drafter: Drafter) -> int:
        """How many nodes a draft may have."""
        return drafter.nodes if self.budget is None else self.budget


class DraftTimer(TimedStep):
    """One method, drafting along a text; between forwards of the ``model`` behind its rows, if one is given. To be
    closed."""

    def __init__(
        self,
        asked: DraftTask,
        drafter: Drafter,
        made: MadeUpModel,
        length: int,
        model: tuple[Target, Rows] | None = None,
    ) -> None:
        self._size = asked.size(drafter)
        sized = "calibrated" if asked.calibrated else "own" if asked.budget is None else "given"
        super().__init__(method=asked.method, temperature=asked.temperature, budget=self._size, sized=sized)
        self._drafter, self._made, self._model = drafter, made, model
        self.nodes: list[int] = []
        """How many it drafted, round by round."""
        sampling = Sampling(temperature=asked.temperature, seed=1)
        self._context = Context(made.text[:length], sampling, Ending(max_new_tokens=len(made.text)))
        self._state = drafter.open(self._context)
        if drafter.needs.top:
            self._teach()

    def close(self) -> None:
        self._drafter.close(self._state)

    def do(self, task: None, clock: Clock) -> Mapping[str, float]:
        """A round; the text decides its outcome."""
        (tree,), propose = _timed(clock, lambda: self._drafter.propose([Ask(self._state, Budget(self._size, DEEPEST))]))
        scores, between = None, dict[str, float]()
        if self._model is not None:
            target, rows = self._model
            tree = tree if target.reach(rows.committed).trees else tree.trunk()
            scores, between = self._scored(target, rows, tree, clock)
        seen = self._followed(tree, scores)
        _, learn = _timed(clock, lambda: self._drafter.observe([seen]))
        self.nodes.append(len(tree))
        return {"propose": propose, "learn": learn, "draft": propose + learn, **between}

    def _scored(self, target: Target, rows: Rows, tree: DraftTree, clock: Clock) -> tuple[Scores, dict[str, float]]:
        """The scores, and the seconds until the logits are there, on whatever device, and of reading them; the rows are
        dropped again."""
        request = Request.of_tree(rows, self._context.root, tree, self._drafter.needs)

        def forward() -> Scores:
            (scores,) = target.score([request])
            scores.row(ROOT)[0].item()
            return scores

        scores, took = _timed(clock, forward)
        rows.keep([])
        reading = _timed(clock, lambda: read_wanted([scores]))[1] if self._drafter.needs.top else 0.0
        return scores, {"forward": took, "read": reading}

    def _teach(self) -> None:
        """Score every token of the vocabulary once, so that drafts are as large as they get."""
        for tokens in np.array_split(np.arange(len(self._made.ids)), 64):
            request = Request.of_tree(ReplayRows(), int(tokens[0]), DraftTree.chain(tokens[1:]))
            known = KnownScores(request, self._made.top(tokens))
            self._drafter.propose([Ask(self._state, Budget(1, 1))])  # without a draft it may spare itself the learning
            self._drafter.observe([Seen(self._state, Verdict((), (int(tokens[0]),), 0), known)])

    def _followed(self, tree: DraftTree, scores: Scores | None) -> Seen:
        """The round as the text decides it, committed."""
        request = Request.of_tree(ReplayRows(), self._context.root, tree)
        text, place = self._made.text, len(self._context)
        path = tree.along(text[place : len(text) - 2])
        tokens = text[place : place + len(path) + 1].tolist()
        for token in tokens:
            self._context.commit(token)
        known = KnownScores(request, self._made.top(request.tokens), scores)
        return Seen(self._state, Verdict(tuple(path), tuple(tokens), len(path)), known)


def _timed(clock: Clock, act: Callable[[], Result]) -> tuple[Result, float]:
    began = clock()
    return act(), clock() - began


def made_for(target: Target | None, rounds: int) -> MadeUpModel:
    """A text for ``rounds`` rounds: most bring a token or two, copies bring more."""
    if target is None:
        return MadeUpModel.made(CONTEXT + 65 * (rounds + rounds // 2))
    return MadeUpModel.made(behind(target) + (DEEPEST + 1) * (WARM + rounds + 1), vocabulary=target.vocab_size)


def behind(target: Target) -> int:
    """How many tokens stand before the drafts of a model's own rounds."""
    return BEHIND if target.context_length is None else max(1, min(BEHIND, target.context_length - 2 * DEEPEST))


def drafting(
    methods: Sequence[DraftTask],
    *,
    rounds: int,
    made: MadeUpModel | None = None,
    target: Target | None = None,
    progress: Progress = silent,
) -> Iterator[TimedLine]:
    """``rounds`` rounds of every method. With a model they take turns between its forwards, plain decoding among them;
    without one each has the processor's caches to itself."""
    wide = cache((made or made_for(target, rounds)).wide)
    groups, warm = [[asked] for asked in methods], rounds // 2
    if target is not None:
        warm = WARM
        groups = [
            [DraftTask(Plain.name, Plain, temperature, 0), *(one for one in methods if one.temperature == temperature)]
            for temperature in dict.fromkeys(one.temperature for one in methods)
        ]
    for group in groups:
        with ExitStack() as leaving:
            timers = _timers(group, wide, target, leaving)
            for timer, line in zip(timers, medians(timers, rounds, warm, progress), strict=True):
                yield line.found(nodes=fmean(timer.nodes[-rounds:]), **_share(line.milliseconds))


def _timers(
    group: Sequence[DraftTask], wide: Callable[[int], MadeUpModel], target: Target | None, leaving: ExitStack
) -> list[DraftTimer]:
    """Those that take turns; with a model all behind the same rows of it."""
    drafters = [asked.make() for asked in group]
    length, model = CONTEXT, None
    if target is not None:
        length = behind(target)
        most = max(asked.size(drafter) for asked, drafter in zip(group, drafters, strict=True))
        rows = read_text(target, wide(BEST).text[: length - 1], 1 + SPARE_ROWS + most)
        model = target, leaving.enter_context(closing(rows))
    timers = list[DraftTimer]()
    for asked, drafter in zip(group, drafters, strict=True):
        text = wide(max(BEST, drafter.needs.top))
        timers.append(leaving.enter_context(closing(DraftTimer(asked, drafter, text, length, model))))
    return timers


def _share(parts: Mapping[str, float]) -> dict[str, float]:
    """The shares of drafting and reading in the round, if there is a forward."""
    if "forward" not in parts:
        return {}
    beside = parts["draft"] + parts["read"]
    return {"share": beside / (beside + parts["forward"])}
