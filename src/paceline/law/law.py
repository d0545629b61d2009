"""The law of the next token, given the model's logits and the tokens before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.law.adjust import Adjustment
from paceline.law.distribution import Distribution
from paceline.law.noise import Noise
from paceline.law.scores import Array, Row, Scored, far, fetched, full_precision, log_probabilities, own_copy
from paceline.law.settings import Sampling
from paceline.law.shortlist import Coins, on_host
from paceline.law.warp import Warps, check_peak, warped

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
T = TypeVar("T")


class Law:
    """`Sampling` applied to one sequence, whose first ``prompt_length`` tokens were not emitted.

    A row is ``[vocabulary]``, of any library and on any device; ``tokens`` is the whole token list before the place
    being decided, prompt included. No method changes either.
    """

    def __init__(self, sampling: Sampling, prompt_length: int) -> None:
        self.sampling = sampling
        self.prompt_length = prompt_length
        self._adjustment = Adjustment(sampling, prompt_length) if sampling.adjusts else None
        self.warps, self.stateful = Warps.of(sampling), sampling.stateful
        self.reads_ahead = self.warps.in_one_race and not self.stateful and not sampling.along_path
        """Whether places that the text may not reach can be read with its next one: processors and grammars are asked
        along the path alone, and only one race settles all places in the same wait."""

    @property
    def adjusts(self) -> bool:
        """Whether anything acts on the logits before temperature does."""
        return self._adjustment is not None

    @property
    def argmax_only(self) -> bool:
        """Whether the next token is the argmax of the model's own row, so that no row need be fetched."""
        return self.sampling.greedy and not self.adjusts

    @staticmethod
    def check_peak(peak: float) -> None:
        """Refuse a row whose largest score is not a number to choose by."""
        check_peak(peak)

    def adjust(self, row: Array, tokens: NDArray[np.int64]) -> Scored:
        """The logits after bias, penalties, bans and custom processors, in float32 at least.

        Custom processors are called once each and in order, so a stateful one sees the calls that plain
        decoding would make. Where nothing acts, the row itself may come back.
        """
        scores = full_precision(row)
        return scores if self._adjustment is None else self._adjustment.apply(own_copy(scores), tokens)

    def distribution(self, row: Array, tokens: NDArray[np.int64]) -> Distribution:
        """The law that plain decoding draws the next token from; of greedy decoding, a one-hot law."""
        return self.of_adjusted(self.adjust(row, tokens))

    def of_adjusted(self, scores: Scored) -> Distribution:
        """The law, of what `adjust` returned."""
        if not self.sampling.greedy:
            return warped(fetched(scores), self.warps)
        best = int(scores.argmax())  # the first of equals, which is the lowest id
        check_peak(float(scores[best]))
        return Distribution.one_hot(best)

    def log_probabilities(self, row: Array) -> Row:
        """The model's own, before any setting acts: what ``logprobs`` reports."""
        return log_probabilities(row)


class Place(NamedTuple):
    """A place in a text whose token must be chosen: the text's law, the logits there and the tokens before it."""

    law: Law
    row: Array
    tokens: NDArray[np.int64]
    noise: Noise | None = None
    """The public noise, where it alone decides which token wins."""


def laws(places: Sequence[Place]) -> list[Distribution | Exception]:
    """The law at each place. Where noise decides, tokens that cannot win are left out; the winner is the same. Rows of
    one device with the same settings are computed together. An error belongs to its place alone."""
    found: dict[int, Distribution | Exception] = {}
    races: dict[object, list[SampledPlace]] = {}
    for number, (law, row, tokens, noise) in enumerate(places):
        if noise is None or law.sampling.greedy:
            found[number] = _tried(law.distribution, row, tokens)
        elif not far(row):
            found[number] = _tried(_on_host, law, row, tokens, noise)
        elif isinstance(scores := _tried(law.adjust, row, tokens), Exception):
            found[number] = scores
        else:
            assert not isinstance(scores, np.ndarray), "what is far stays there"
            if law.stateful and len(places) > 1:
                scores = scores.clone()  # a processor may return the next place's scores in the same memory
            alike = law.warps, scores.device, scores.dtype, scores.shape
            races.setdefault(alike, []).append(SampledPlace(number, law, scores, (noise, len(tokens))))
    for together in races.values():
        found |= _raced(together)
    return [found[number] for number in range(len(places))]


def _raced(together: Sequence[SampledPlace]) -> dict[int, Distribution | Exception]:
    """The laws of places on one device with the same settings, by their numbers."""
    from paceline.law.contenders import contenders  # by operations of torch

    few = contenders([one.scores for one in together], together[0].law.warps, [one.coins for one in together])
    return {
        one.number: _tried(one.law.of_adjusted, one.scores) if some is None else some
        for one, some in zip(together, few, strict=True)
    }


def _on_host(law: Law, row: Array, tokens: NDArray[np.int64], noise: Noise) -> Distribution:
    scores = fetched(law.adjust(row, tokens))
    few = on_host(scores, law.warps, (noise, len(tokens)))
    return law.of_adjusted(scores) if few is None else few


class SampledPlace(NamedTuple):
    """A place whose token the public noise decides, with its adjusted logits."""

    number: int
    law: Law
    scores: torch.Tensor
    coins: Coins


def _tried(function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | Exception:
    try:
        return function(*given, **named)
    except Exception as error:
        return error
