"""Small runs of the engine on table targets, the same text written the slow way, and drafters that try things."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from paceline.context import Context, Ending
from paceline.drafters import Budget, Drafter, Plain, Seen, make_drafter
from paceline.drafters.compose import Fallback, Union
from paceline.drafters.networks.assistant import Assistant
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Distribution, KeyedDice, Law, Noise, Sampling
from paceline.planning.fixed import Fixed
from paceline.targets.base import Rows, Target, Want
from paceline.targets.table import Table, TableTarget
from paceline.tree import EMPTY, ROOT, DraftTree
from paceline.verify import Rule

SIZE = 6
PROMPT = [0, 3, 1, 4, 2, 0, 3]


def habitual(size: int = SIZE, *, seed: int = 0, memory: int = 2) -> Table:
    """A table with habits: after the same tokens the same law, which has a clear favourite; so texts repeat."""

    @cache
    def law_of(recent: tuple[int, ...]) -> list[float]:
        digest = hashlib.sha256(f"{seed}:{recent}".encode()).digest()
        random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        weights = random.integers(-2, 3, size).astype(float)
        weights[random.integers(size)] += 3.5
        return list(weights)

    return lambda history: law_of(history[-memory:])


def tabled(**options: Any) -> TableTarget:
    return TableTarget(habitual(), SIZE, **options)


def write(
    target: Target,
    prompt: Sequence[int],
    drafter: Drafter,
    *,
    nodes: int = 6,
    rule: Rule = Rule.COUPLED,
    sampling: Sampling | None = None,
    sample: int = 0,
    top_logprobs: int | None = None,
    rows: Rows | None = None,
    **ending: Any,
) -> Session:
    """One finished text, its cache rows checked after every round."""
    ending = {"max_new_tokens": 16, "eos": target.eos, "context_length": target.context_length} | ending
    context = Context(prompt, sampling or Sampling(), Ending(**ending), sample=sample)
    session = Session(
        context,
        target,
        rows or target.open(),
        drafter,
        Fixed(nodes),
        rule,
        top_logprobs=top_logprobs,
        checked=True,
    )
    handed_out = list(run(session))
    assert handed_out == session.emissions
    assert [emission.token for emission in handed_out] == context.emitted.tolist()
    return session


@dataclass(frozen=True)
class Slow:
    """One token after the other, by the definition: no session, no tree, no rows."""

    tokens: list[int]
    finish: str
    logprobs: list[list[float]]
    """The model's own, of every token of the vocabulary, at each place."""


def write_slowly(
    target: TableTarget,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    sample: int = 0,
    max_new_tokens: int = 16,
    ends: Any = lambda emitted: None,
) -> Slow:
    """``ends`` says of the emitted tokens whether and why they end before the length does."""
    law, dice = Law(sampling, len(prompt)), KeyedDice(Noise(sampling.seed, sample))
    text, logprobs, finish = list(prompt), list[list[float]](), None
    while finish is None:
        row = (np.array(target.table(tuple(text))) * np.log(2)).astype(target.dtype)
        logprobs.append(law.log_probabilities(row).tolist())
        text.append(dice.choose(len(text), law.distribution(row, np.array(text))))
        emitted = text[len(prompt) :]
        finish = "eos" if text[-1] in target.eos else ends(emitted)
        if finish is None and len(emitted) == max_new_tokens:
            finish = "length"
        if finish is None and len(text) == target.context_length:
            finish = "context"
    return Slow(text[len(prompt) :], finish, logprobs)


class Erratic(Drafter):
    """Any tree: now empty, now a chain, now bushy, with probes, with laws, over budget or beyond the end."""

    name = "erratic"

    def __init__(self, size: int = SIZE, seed: int = 0) -> None:
        self._size, self._seed = size, seed

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        random = np.random.default_rng([self._seed, len(state), state.root])
        kind = random.integers(5)
        if kind == 0:
            return EMPTY
        if kind == 1:
            return self._sampled(random, budget)
        probes: list[bool] = []
        nodes: dict[tuple[int, int], None] = {}
        for _ in range(int(random.integers(1, 2 * budget.nodes + 2))):
            node = int(random.integers(-1, len(nodes))), int(random.integers(self._size))
            if node not in nodes:
                nodes[node] = None
                probes.append(kind == 2 and bool(random.random() < 0.3))
        parents, tokens = zip(*nodes, strict=True)
        return DraftTree.build(tokens, parents, source=self.name, probes=probes if any(probes) else None)

    def _sampled(self, random: np.random.Generator, budget: Budget) -> DraftTree:
        law = Distribution(np.arange(self._size), random.random(self._size) + 0.1)
        tokens = random.choice(self._size, size=min(3, self._size), replace=False, p=law.probs)
        return DraftTree.build(tokens, [ROOT] * len(tokens), source=self.name, drawn={ROOT: law})


class Watched(Drafter):
    """Another drafter, with a record of its life; raises where it is told to."""

    name = "watched"

    def __init__(
        self, inner: Drafter, *, fails: str = "", after: int = 0, error: type[BaseException] = OSError
    ) -> None:
        self._inner = inner
        self.needs, self.prompt_needs = inner.needs, inner.prompt_needs
        self.opened = self.closed = 0
        self._fails, self._after, self._error = fails, after, error

    def open(self, context: Context) -> Any:
        self._maybe_fail("open")
        self.opened += 1
        return self._inner.open(context)

    def propose(self, asks: Sequence[Any]) -> list[DraftTree]:
        self._maybe_fail("propose")
        return self._inner.propose(asks)

    def observe(self, seen: Sequence[Any]) -> None:
        self._maybe_fail("observe")
        self._inner.observe(seen)

    def close(self, state: Any) -> None:
        self.closed += 1
        self._inner.close(state)

    def _maybe_fail(self, where: str) -> None:
        if where == self._fails:
            self._after -= 1
            if self._after < 0:
                raise self._error(where)


class Shown(Plain):
    """Wants the logits of the whole prompt, and remembers which tokens it was shown, by sequence."""

    prompt_needs = Want(logits=True)

    def __init__(self) -> None:
        self.shown: dict[Context, list[int]] = {}

    def observe(self, seen: Sequence[Seen]) -> None:
        for context, _, scores in seen:
            assert scores.logits.shape == (len(scores.tokens), SIZE)
            self.shown.setdefault(context, []).extend(scores.tokens.tolist())


METHODS: dict[str, Callable[[], Drafter]] = {
    "plain": lambda: make_drafter("plain"),
    "lookup": lambda: make_drafter("lookup"),
    "fallback": lambda: Fallback([make_drafter("lookup:min_ngram=3"), Erratic(seed=1)]),
    "union": lambda: Union([make_drafter("lookup"), Erratic(seed=2)]),
    "erratic": lambda: Erratic(seed=3),
    "assistant": lambda: Assistant(model=TableTarget(habitual(memory=1), SIZE)),
    "assistant's tree": lambda: Assistant(model=TableTarget(habitual(memory=1), SIZE), top=3),
    "assistant's beams": lambda: Assistant(model=TableTarget(habitual(memory=1), SIZE), beams=2, noise="none"),
    "nested": lambda: Union([Fallback([Plain(), Erratic(seed=4)]), make_drafter("lookup:max_ngram=1")]),
}
