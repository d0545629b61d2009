"""Batches under test: what is asked of a sequence, and what must hold of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from engine import PROMPT, SIZE, habitual
from paceline.context import Context, Ending
from paceline.drafters import Drafter
from paceline.engine.batch import Batch, Turn
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Sampling
from paceline.planning.base import Planner
from paceline.planning.fixed import Fixed
from paceline.targets.base import Pending, Request, Target
from paceline.targets.table import TableTarget
from paceline.verify import Rule

STEPS = 2000
"""More than any batch here takes: who waits for ever is told from who waits."""


class Spied(TableTarget):
    """Notes the requests of each forward; ``fails`` is raised in the middle of one, rows half written."""

    fails: BaseException | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(habitual(), SIZE, **options)
        self.seen: list[list[Request]] = []

    def submit(self, requests: Sequence[Request]) -> Pending:
        self.seen.append(list(requests))
        pending = super().submit(requests)
        error, self.fails = self.fails, None
        if error is not None:
            raise error
        return pending

    @property
    def prompt_rows(self) -> list[int]:
        """How many rows of prompts each forward scored."""
        return [sum(request.prompt for request in forward) for forward in self.seen]


@dataclass(frozen=True)
class Wish:
    """What is asked of one sequence; it can be written any number of times."""

    prompt: list[int] = field(default_factory=lambda: PROMPT)
    nodes: int = 6
    rule: Rule = Rule.COUPLED
    sampling: dict[str, Any] = field(default_factory=dict)
    processors: Callable[[], tuple[Any, ...]] = tuple
    sample: int = 0
    ending: dict[str, Any] = field(default_factory=dict)

    def session(self, target: Target, drafter: Drafter, planner: Planner | None = None) -> Session:
        sampling = Sampling(**self.sampling, processors=self.processors())
        context = Context(self.prompt, sampling, Ending(**{"max_new_tokens": 12} | self.ending), sample=self.sample)
        planner = planner or Fixed(self.nodes)
        return Session(context, target, target.open(), drafter, planner, self.rule, top_logprobs=2, checked=True)

    def alone(self, target: Target, drafter: Drafter) -> Session:
        session = self.session(target, drafter)
        list(run(session))
        return session


WARM = Wish(sampling={"temperature": 1.0})
CUTS: list[dict[str, Any]] = [{}, {"top_k": 4, "top_p": 0.9}, {"repetition_penalty": 1.2, "banned": ((5,), (0, 3))}]


class Uneven:
    """A processor with a memory: what it does depends on how often it was called."""

    calls = 0

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return scores.index_add(1, torch.tensor([self.calls % 3]), torch.full((1, 1), 2.0, dtype=scores.dtype))


def any_wish(random: np.random.Generator) -> Wish:
    """Of any length, from one token to many pieces, half of them with a common beginning; ended by anything."""
    beginning = random.integers(SIZE, size=60) if random.random() < 0.5 else np.arange(60) * 7 % 5
    prompt = [*beginning[: random.integers(60)], int(random.integers(SIZE))]
    sampling: dict[str, Any] = {"temperature": float(random.choice([0, 0.4, 1])), "seed": int(random.integers(99))}
    sampling |= CUTS[random.choice(3)]
    ending: dict[str, Any] = {"max_new_tokens": int(random.integers(1, 14))}
    last = int(random.integers(SIZE))
    ending |= [
        {},
        {"eos": frozenset({last})},
        {"criteria": (lambda text: text[-1] == text[-2] == last,)},
        {"context_length": len(prompt) + int(random.integers(1, 9))},
    ][random.choice(4)]
    return Wish(
        prompt,
        int(random.choice([0, 1, 3, 9])),
        Rule.REJECTION if random.random() < 0.3 else Rule.COUPLED,
        sampling,
        (lambda: (Uneven(),)) if random.random() < 0.2 else tuple,
        int(random.integers(4)),
        ending,
    )


def told(session: Session) -> Any:
    """Everything a session found that does not depend on how long it took, or on who had read its prompt before: a
    prompt whose rows are there already drafts for the first token, too."""
    return [(emission.token, emission.logprobs) for emission in session.emissions], session.context.finish


def finish(batch: Batch) -> list[Turn]:
    """Step until nobody is left."""
    turns = list[Turn]()
    for _ in range(STEPS):
        if not len(batch):
            return turns
        turns += batch.step()
    raise AssertionError("somebody waits for ever")


def check_rows(session: Session) -> None:
    """Rows are those of the text, and nothing is in the air."""
    rows, text = session.rows, session.context.tokens
    rows.check()
    assert rows.tentative == 0
    assert rows.tokens.tolist() == text[: rows.committed].tolist()
    assert rows.committed == len(text) - 1 or not session.emissions
