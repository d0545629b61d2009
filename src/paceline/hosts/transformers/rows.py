"""One row of a `generate` call: its prompt, what processes and stops it, and the sessions that write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from paceline.context import Context, Ending, Ints
from paceline.decode.planner import Planner
from paceline.decode.session import Session
from paceline.drafters import Drafter
from paceline.hosts.transformers.chain import Chain
from paceline.law import Sampling
from paceline.targets.base import SPARE_ROWS, Target
from paceline.verify import Rule

AHEAD = 1024
"""How much text memory is set aside for at first: a generous ``max_new_tokens`` is seldom used up."""


@dataclass(frozen=True)
class Ends:
    """A list of stopping criteria: what our own stop rules say as well, and the criteria that have to be asked."""

    max_new_tokens: int
    eos: frozenset[int]
    asked: list[Any]

    @classmethod
    def of(cls, criteria: Sequence[Any], padded_length: int, max_length: int) -> Ends:
        lengths = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
        ends = [c for c in criteria if type(c) is EosTokenCriteria]
        return cls(
            max_new_tokens=max(1, min(lengths, default=max_length) - padded_length),
            eos=frozenset(int(token) for c in ends for token in c.eos_token_id),
            asked=[c for c in criteria if type(c) not in (MaxLengthCriteria, EosTokenCriteria)],
        )


class Within:
    """A planner whose drafts end where the model's context does. The text may go on: transformers stops there for no
    model, and one without rotary positions fails there, but a draft must not fail before the text does."""

    def __init__(self, planner: Planner, length: int) -> None:
        self._planner = planner
        self._length = length

    def nodes(self, contexts: Sequence[Context]) -> list[int]:
        granted = self._planner.nodes(contexts)
        return [max(0, min(n, self._length - len(c))) for n, c in zip(granted, contexts, strict=True)]


@dataclass(frozen=True)
class Way:
    """How all rows of a call are written."""

    target: Target
    drafter: Drafter
    planner: Planner
    rule: Rule
    sampling: Sampling


@dataclass(eq=False)
class Row:
    """``padded`` is ``[1, length]``, the row as `generate` was given it, ``padding`` tokens of it in front."""

    number: int
    padded: torch.Tensor
    padding: int
    ends: Ends
    chain: Chain
    tokens: list[int] = field(default_factory=list)
    """Those written so far."""
    ended: bool = False

    def session(self, way: Way, more: int | None = None) -> Session:
        """To write the row to its end; with ``more``, to go on behind an end for so many tokens.

        The text goes on as if it had never stopped, since the noise of a place does not depend on where a session
        began. Criteria are asked, and their answers ignored, as transformers does with rows that have ended.
        """
        text = self.padded[0, self.padding :].tolist() + self.tokens
        sampling = way.sampling if self.chain.idle else replace(way.sampling, processors=(self.chain,))
        criteria = (self._asked if more is None else self._ignored,) if self.ends.asked else ()
        ending = Ending(
            max_new_tokens=self.ends.max_new_tokens if more is None else more,
            eos=self.ends.eos if more is None else frozenset(),
            criteria=criteria,
        )
        context = Context(text, sampling, ending, sample=self.number)
        return Session(
            context=context,
            target=way.target,
            rows=way.target.open(len(context) + min(context.room, AHEAD) + SPARE_ROWS),
            drafter=way.drafter,
            planner=way.planner,
            rule=way.rule,
        )

    def _asked(self, tokens: Ints) -> bool:
        """Whether a criterion ends the row, of those that we do not know; each is shown what it is used to."""
        padding = self.padded[:, : self.padding]
        ids = torch.cat([padding, torch.tensor(tokens, device=padding.device)[None]], dim=1)
        scores = None if self.chain.scores is None else tuple(self.chain.scores)
        return bool(StoppingCriteriaList(self.ends.asked)(ids, scores).all())

    def _ignored(self, tokens: Ints) -> bool:
        self._asked(tokens)
        return False
