"""Ways to compute one forward, and what they have in common.

A target holds several paths, fastest first, and gives a forward to the first that takes it; the last one calls the
model itself and takes all. Paths differ in what they can compute, never in what they find: rows of different paths
lie within the noise of kernels of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch

from paceline.targets.base import NOTHING, OnEarly, Request, Want
from paceline.targets.scores import Scores

OnExit = Callable[[torch.Tensor], None]
"""Called in the middle of a forward with the early logits ``[sum n, vocabulary]``."""


def unheard(_: torch.Tensor) -> None:
    """An `OnExit` of nobody."""


@dataclass(frozen=True, eq=False)
class Asking:
    """What a forward is asked for, whatever the texts: all that its layers need to know besides the rows."""

    want: Want
    logit_rows: torch.Tensor | None = None
    """Numbers of the packed rows whose logits are wanted, or None for all of them."""
    on_exit: OnExit = unheard

    @property
    def logits(self) -> bool:
        """Whether any row's logits are wanted."""
        return self.logit_rows is None or len(self.logit_rows) > 0


@dataclass(frozen=True, eq=False)
class Job:
    """The requests of one forward. Their rows are packed: ``[sum n]`` in the order of the requests."""

    requests: Sequence[Request]
    on_early: OnEarly | None = None

    @cached_property
    def want(self) -> Want:
        """What any of the requests asks for; early logits and hidden states are found for all rows or for none."""
        want = NOTHING
        for request in self.requests:
            want = want | request.want
        return want

    @cached_property
    def spans(self) -> list[slice]:
        """Where each request's rows lie among the packed ones."""
        spans, start = [], 0
        for request in self.requests:
            spans.append(slice(start, start + len(request.tokens)))
            start += len(request.tokens)
        return spans

    @cached_property
    def scored(self) -> list[slice]:
        """Each request's packed rows whose logits are wanted."""
        starts = zip(self.requests, self.spans, strict=True)
        return [slice(span.start + request.scored.start, span.stop) for request, span in starts]

    @cached_property
    def logit_rows(self) -> torch.Tensor | None:
        """Numbers of the packed rows whose logits are wanted, or None for all of them."""
        if self.scored == self.spans:
            return None
        return torch.cat([torch.arange(rows.start, rows.stop) for rows in self.scored])

    @cached_property
    def asking(self) -> Asking:
        return Asking(self.want, self.logit_rows, self.early)

    def early(self, logits: torch.Tensor) -> None:
        """Pass the early logits ``[sum n, vocabulary]`` on; to be called while the later layers are still to come."""
        if self.on_early is None:
            return
        for number, (request, span) in enumerate(zip(self.requests, self.spans, strict=True)):
            if request.want.early_exit is not None:
                self.on_early(number, logits[span])


@dataclass
class Taps:
    """What a forward showed of its inside: states by layer, ``[sum n, width]``, and the early logits."""

    hidden: dict[int, torch.Tensor] = field(default_factory=dict)
    early: torch.Tensor | None = None


@dataclass(frozen=True)
class Found:
    """What a path found."""

    logits: torch.Tensor | None
    """Of the wanted rows only, joined in order; None where none is wanted."""
    taps: Taps

    def split(self, job: Job) -> list[Scores]:
        """Each request's share."""
        scores, first = [], 0
        for request, span, scored in zip(job.requests, job.spans, job.scored, strict=True):
            end = first + scored.stop - scored.start
            logits = None if self.logits is None or end == first else self.logits[first:end]
            hidden = {layer: self.taps.hidden[layer][span] for layer in request.want.hidden}
            exits = self.taps.early is not None and request.want.early_exit is not None
            early = self.taps.early[span] if self.taps.early is not None and exits else None
            scores.append(Scores.of(request, logits, hidden, early))
            first = end
        return scores


class Path(Protocol):
    """One way to compute a forward."""

    def takes(self, job: Job) -> bool:
        """Whether this path can compute the job as the model stands now: its owner may have changed it since the last
        one. Asked before every forward, so it must be cheap; changes nothing."""
        ...

    def run(self, job: Job) -> Found:
        """Note the requests' tokens in their rows, write their keys and values there (`Part.of_all` and
        `CacheRows.write`), and find what is wanted. Called without gradients, one job at a time."""
        ...
