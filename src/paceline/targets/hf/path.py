"""Paths: ways to compute one forward.

A target has several paths, fastest first, and gives each forward to the first that takes it. The last one calls the
model itself and takes all. All paths compute the same rows, up to the rounding of kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray

from paceline.targets.base import NOTHING, Request, Want
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.scores import Scores
from paceline.targets.streams import LookAhead, Streams

UNTESTED_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, AttributeError)
"""Errors that untested combinations of modules may raise."""

OnExit = Callable[[torch.Tensor], None]
"""Called in the middle of a forward with the early logits ``[n, vocabulary]`` of the rows that want them."""


def ignore(_: torch.Tensor) -> None:
    """An `OnExit` that does nothing."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs that a forward computes for its rows."""

    want: Want
    logit_rows: torch.Tensor | None = None
    """Numbers of the packed rows whose logits are wanted; None for all."""
    early_rows: torch.Tensor | None = None
    """Numbers of the packed rows whose early logits are wanted; None for all."""
    on_exit: OnExit = ignore

    def leaving(self, states: torch.Tensor) -> torch.Tensor:
        """The states ``[n, width]`` of an early exit, of ``[sum n, width]``."""
        return states if self.early_rows is None else states[self.early_rows]

    @property
    def logits(self) -> bool:
        """Whether any row's logits are wanted."""
        return self.logit_rows is None or len(self.logit_rows) > 0


@dataclass(frozen=True, eq=False)
class ForwardJob:
    """The requests of one forward. Their rows are packed: ``[sum n]`` in the order of the requests."""

    requests: Sequence[Request]
    _heard: set[int] = field(default_factory=set, repr=False)
    """The numbers of requests whose early logits were passed on."""
    _errors: list[Exception] = field(default_factory=list, repr=False)

    @cached_property
    def want(self) -> Want:
        """The union of the requests' wants; hidden states are computed for all rows or for none."""
        want = NOTHING
        for request in self.requests:
            want = want | request.want
        return want

    @cached_property
    def spans(self) -> list[slice]:
        """Each request's rows among the packed ones."""
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
        """Numbers of the packed rows whose logits are wanted; None for all."""
        if self.scored == self.spans:
            return None
        return torch.cat([torch.arange(rows.start, rows.stop) for rows in self.scored])

    @cached_property
    def early(self) -> dict[int, slice]:
        """Of the requests with an early exit, by their numbers, the rows among the early ones."""
        found, start = dict[int, slice](), 0
        for number, request in enumerate(self.requests):
            if request.want.early_exit is not None:
                found[number] = slice(start, start + len(request.tokens))
                start += len(request.tokens)
        return found

    @cached_property
    def early_rows(self) -> torch.Tensor | None:
        """Numbers of the packed rows whose early logits are wanted; None for all."""
        if len(self.early) in (0, len(self.requests)):
            return None
        spans = (self.spans[number] for number in self.early)
        return torch.cat([torch.arange(rows.start, rows.stop) for rows in spans])

    @property
    def streamed(self) -> bool:
        """Whether any request asks for streams beside its rows."""
        return any(request.streams is not None for request in self.requests)

    @property
    def outputs(self) -> Outputs:
        """Made at each call: a cached one would keep job and rows in a cycle until the next garbage collection."""
        return Outputs(self.want, self.logit_rows, self.early_rows, self.hear)

    def hear(self, logits: torch.Tensor) -> None:
        """Pass on the early logits, before the later layers are computed; once, also where a forward is repeated.
        Errors are kept for the end of the forward, where none is taken for one of a path."""
        for number, rows in self.early.items():
            if (on_early := self.requests[number].on_early) is not None and number not in self._heard:
                self._heard.add(number)
                try:
                    on_early(logits[rows])
                except Exception as error:
                    self._errors.append(error)

    def check_heard(self) -> None:
        """Raise what was raised by a listener."""
        if self._errors:
            raise self._errors[0]


@dataclass
class Taps:
    """States by layer, ``[sum n, width]``, and early logits of a forward."""

    hidden: dict[int, torch.Tensor] = field(default_factory=dict)
    early: torch.Tensor | None = None

    def narrowed(self) -> Taps:
        """In float32."""
        hidden = {layer: states.float() for layer, states in self.hidden.items()}
        return Taps(hidden, None if self.early is None else self.early.float())


@dataclass(frozen=True)
class Found:
    """The result of a forward."""

    logits: torch.Tensor | None
    """Of the wanted rows, in order; None where none are wanted."""
    taps: Taps
    streamed: torch.Tensor | None = None
    """Logits of the streams behind the rows that have them, ``[rows, streams, vocabulary]``; None without streams."""

    def split(self, job: ForwardJob) -> list[Scores]:
        """Each request's share."""
        scores, first = self._split(job), 0
        for request, each in zip(job.requests, scores, strict=True):
            if request.streams is not None and self.streamed is not None:
                rows = request.streams.behind.tolist()
                each.streamed = dict(zip(rows, self.streamed[first : first + len(rows)], strict=True))
                first += len(rows)
        return scores

    def _split(self, job: ForwardJob) -> list[Scores]:
        if (
            len(job.requests) == 1
            and not job.requests[0].prompt
            and not (self.taps.hidden or self.taps.early is not None)
        ):
            return [Scores(job.requests[0], self.logits)]
        scores, first = [], 0
        for number, (request, span, scored) in enumerate(zip(job.requests, job.spans, job.scored, strict=True)):
            end = first + scored.stop - scored.start
            logits = None if self.logits is None or end == first else self.logits[first:end]
            hidden = {layer: self.taps.hidden[layer][span] for layer in request.want.hidden}
            rows = job.early.get(number)
            early = None if self.taps.early is None or rows is None else self.taps.early[rows]
            scores.append(Scores.of(request, logits, hidden, early))
            first = end
        return scores


def by_exit(requests: Sequence[Request], group: list[int]) -> list[list[int]]:
    """Requests of a group by their early exit; those without one go with the first."""
    exits = sorted({found for i in group if (found := requests[i].want.early_exit) is not None})
    if len(exits) < 2:
        return [group]
    return [
        [i for i in group if requests[i].want.early_exit in ((None, layer) if layer == exits[0] else (layer,))]
        for layer in exits
    ]


class ForwardPath(ABC):
    """One way to compute a forward."""

    @abstractmethod
    def takes(self, job: ForwardJob) -> bool:
        """Whether this path can compute the job. Asked before every forward, so it must be cheap; changes nothing."""

    @abstractmethod
    def run(self, job: ForwardJob) -> Found:
        """Note the requests' tokens in their rows, write their keys and values (`Segment.of_all` and
        `CacheRows.write`), and compute what is wanted. Called without gradients, one job at a time."""

    compiled = False
    """Whether a forward is one compiled call."""

    @property
    def streams_beside(self) -> bool:
        """Whether it computes streams beside rows (`Request.streams`); other paths leave them out."""
        return False

    @property
    def embedding_rows(self) -> NDArray[Any] | None:
        """Those of `Target.embedding_rows`."""
        return None

    def unembedded(self, states: torch.Tensor) -> torch.Tensor | None:
        """Logits of states ``[n, width]`` behind the final norm; None where the model's own head computes them."""
        return None

    def drafted(self, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        """Draft a token after another behind several texts, or None (`Target.drafted`)."""
        return None

    def streamed(self, asked: Sequence[LookAhead], streams: Streams) -> torch.Tensor | None:
        """Logits of the streams behind rows, or None (`HFTarget.streamed`)."""
        return None
