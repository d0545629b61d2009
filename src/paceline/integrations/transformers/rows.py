"""The rows of a `generate` call: what processes and stops each, and the sessions that write them to their ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from paceline.context import Context, Ending, Ints
from paceline.drafters import Drafter
from paceline.engine.batch import Batch
from paceline.engine.counters import SECONDS, Totals
from paceline.engine.loop import Session
from paceline.errors import called
from paceline.integrations.transformers.processors import BatchRow, RowProcessor, SplitProcessors, own_copies
from paceline.law import Sampling
from paceline.planning.base import Planner
from paceline.targets.base import Target
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


@dataclass(frozen=True)
class Decoding:
    """The settings common to all rows of a call."""

    target: Target
    drafter: Drafter
    planner: Planner
    rule: Rule
    sampling: Sampling
    strict: bool


@dataclass(eq=False)
class GenerateRow:
    """``padded`` is ``[1, length]``, the row as `generate` was given it, ``padding`` tokens of it in front."""

    number: int
    padded: torch.Tensor
    padding: int
    ends: Ends
    processor: RowProcessor
    tokens: list[int] = field(default_factory=list)
    """Those written so far."""
    ended: bool = False

    def session(self, decoding: Decoding, more: int | None = None) -> Session:
        """To write the row to its end; with ``more``, to go on behind an end for that many tokens.

        The text goes on as if it had never stopped, since the noise of a place does not depend on where a session
        began. Criteria are asked, and their answers ignored, as transformers does with rows that have ended.
        """
        text = self.padded[0, self.padding :].tolist() + self.tokens
        processors = () if self.processor.idle else (self.processor,)
        criteria = (self._asked if more is None else self._ignored,) if self.ends.asked else ()
        ending = Ending(
            max_new_tokens=self.ends.max_new_tokens if more is None else more,
            eos=self.ends.eos if more is None else frozenset(),
            criteria=criteria,
        )
        context = Context(text, replace(decoding.sampling, processors=processors), ending, sample=self.number)
        return Session.on_new_rows(
            context,
            decoding.target,
            decoding.drafter,
            decoding.planner,
            ahead=AHEAD,
            rule=decoding.rule,
            strict=decoding.strict,
        )

    def _asked(self, tokens: Ints) -> bool:
        """Whether a criterion ends the row, of those that we do not know; each is shown what it is used to."""
        padding = self.padded[:, : self.padding]
        ids = torch.cat([padding, torch.tensor(tokens, device=padding.device)[None]], dim=1)
        scores = None if self.processor.scores is None else tuple(self.processor.scores)
        ends = [called("stopping criterion", criterion, ids, scores) for criterion in self.ends.asked]
        return any(bool(torch.as_tensor(end).all()) for end in ends)

    def _ignored(self, tokens: Ints) -> bool:
        self._asked(tokens)
        return False


def rows_of(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    paddings: Sequence[int],
    split: SplitProcessors,
    criteria: Sequence[Any],
    config: GenerationConfig,
) -> list[GenerateRow]:
    """The rows of the batch, each with its own processors and criteria; a single one has the given ones."""
    ends = Ends.of(criteria, input_ids.shape[1], config.max_length)
    rows = []
    for number, padding in enumerate(paddings):
        padded = input_ids[number : number + 1]
        processors, asked = split.processors, ends.asked
        if len(paddings) > 1:
            batch_row = BatchRow(number, number // (config.num_return_sequences or 1))
            processors, asked = own_copies(processors, asked, model, batch_row)
        processor = RowProcessor(
            processors,
            padded[:, :padding],
            warpers=split.warpers,
            scores=bool(config.return_dict_in_generate and config.output_scores),
            logits=bool(config.return_dict_in_generate and config.output_logits),
        )
        rows.append(GenerateRow(number, padded, padding, replace(ends, asked=asked), processor))
    return rows


def write(rows: Sequence[GenerateRow], decoding: Decoding, show: Callable[[], None], *, padded: bool) -> Totals:
    """Write all rows, and tell what it took; ``show`` is called whenever some of them have got on.

    Rows that end early are ``padded``; where transformers has nothing to pad with, no token that ends a text, they go
    on until the last one has ended, and so they do here.
    """
    began = time.perf_counter()
    sessions = _write({row.session(decoding): row for row in rows}, decoding.target, show, ended=padded)
    longest = max(len(row.tokens) for row in rows)
    short = [] if padded else [row for row in rows if len(row.tokens) < longest]
    late = {row.session(decoding, longest - len(row.tokens)): row for row in short}
    sessions += _write(late, decoding.target, show, ended=False)
    return _totals(sessions, time.perf_counter() - began)


def _write(
    writing: dict[Session, GenerateRow], target: Target, show: Callable[[], None], *, ended: bool
) -> list[Session]:
    """All rows go together. What was settled before one of them failed is still shown. Returns the sessions."""
    try:
        with Batch(target, at_once=None) as batch:
            for session in writing:
                batch.join(session)
            while batch:
                turns = batch.step()
                for turn in turns:
                    writing[turn.session].tokens += [emission.token for emission in turn.emissions]
                    writing[turn.session].ended = ended and turn.ended
                show()
                for turn in turns:
                    if turn.error is not None:
                        raise turn.error
    finally:
        for session in writing:
            session.rows.close()
    return list(writing)


def _totals(sessions: Sequence[Session], seconds: float) -> Totals:
    """Counts are sums over the rows. Seconds are those of the clock: rows live through those of one another, so the
    sums over rows only say how they are shared among the phases."""
    lived = Totals.of([r for s in sessions for r in s.rounds], sum(s.seconds_prefill for s in sessions))
    share = seconds / (lived.seconds_prefill + lived.seconds)
    return replace(lived, **{name: share * getattr(lived, name) for name in ("seconds_prefill", *SECONDS)})
