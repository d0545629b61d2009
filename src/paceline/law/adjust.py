"""Adjustments of the logits before temperature: bias, penalties, bans and custom processors, in steps.

A step is the same for numpy's rows and for torch's on another device: both are indexed and calculated with alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.errors import CallbackError, InputError, called, name_of
from paceline.law.scores import Array, full_precision
from paceline.law.table import Acts, function

if TYPE_CHECKING:
    from paceline.grammar.base import Grammar
    from paceline.grammar.following import TextMatcher
    from paceline.law.settings import Processor, Sampling

Tokens = NDArray[np.int64]
Step: TypeAlias = Callable[[Array, Tokens, int], Array]
"""``(scores, tokens, prompt length) -> scores``; it may write to the scores that it is given."""


class Adjustment:
    """One `Sampling` applied to rows that follow a token list; each step writes to the row it is given.

    The order is transformers': sequence bias, repetition penalty, bad words, custom processors. Presence and
    frequency penalties, which it lacks, follow the repetition penalty. What does not act has no step.
    """

    def __init__(self, sampling: Sampling, prompt_length: int) -> None:
        groups = list(sampling.groups(Acts.ON_LOGITS))
        self._steps: list[Step] = [function(rows[0].host)(*values) for rows, values in groups if rows[0].host]
        self._prompt_length = prompt_length
        naming = [(row, getattr(sampling, row.name)) for row in sampling.rows if row.token is not None]
        self._naming = " or ".join(row.name for row, _ in naming)
        self._largest = max((row.token(entry) for row, value in naming if row.token for entry in value), default=-1)

    def apply(self, scores: Array, tokens: Tokens) -> Array:
        if self._largest >= len(scores):
            raise InputError(
                f"{self._naming} names token {self._largest}, and the model has {len(scores)} tokens; "
                "use ids of the model's own tokenizer"
            )
        for step in self._steps:
            scores = step(scores, tokens, self._prompt_length)
        return scores


class Bias:
    """Adds a number to the scores of some tokens."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._tokens = _Lasting(np.array(list(biases), np.int64))
        self._biases = _Lasting(np.array(list(biases.values()), np.float64))

    def __call__(self, scores: Array, tokens: Tokens, prompt_length: int) -> Array:
        scores[self._tokens.beside(scores)] += self._biases.beside(scores)
        return scores


class Repetition:
    """Divides the positive scores of tokens in the text by the penalty, and multiplies the negative ones."""

    def __init__(self, penalty: float) -> None:
        self._penalty = penalty

    def __call__(self, scores: Array, tokens: Tokens, prompt_length: int) -> Array:
        seen = _beside(scores, _scored(np.unique(tokens), scores))
        before = scores[seen]
        scores[seen] = before.clip(max=0) * self._penalty + before.clip(min=0) / self._penalty
        return scores


class Emitted:
    """Subtracts from the scores of emitted tokens: once each, and every time."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency

    def __call__(self, scores: Array, tokens: Tokens, prompt_length: int) -> Array:
        ids, counts = np.unique(tokens[prompt_length:], return_counts=True)
        seen = _scored(ids, scores)
        penalties = self._presence + self._frequency * counts[: seen.size]
        scores[_beside(scores, seen)] -= _beside(scores, penalties)
        return scores


class Bans:
    """Makes the last token of a sequence impossible where the others stand before it."""

    def __init__(self, entries: Sequence[Sequence[int]]) -> None:
        self._tokens = _Lasting(np.array([entry[0] for entry in entries if len(entry) == 1], np.int64))
        self._impossible = _Lasting(np.full(self._tokens.size, -np.inf))
        self._phrases: dict[int, list[tuple[int, ...]]] = {}  # longer entries by their last token but one
        for entry in entries:
            if len(entry) > 1:
                self._phrases.setdefault(entry[-2], []).append(tuple(entry))

    def __call__(self, scores: Array, tokens: Tokens, prompt_length: int) -> Array:
        if self._tokens.size:
            scores[self._tokens.beside(scores)] = self._impossible.beside(scores)
        if self._phrases and tokens.size:
            for *prefix, last in self._phrases.get(int(tokens[-1]), []):
                if tokens[-len(prefix) :].tolist() == prefix:
                    scores[last] = -np.inf
        return scores


class Processors:
    """The user's own functions, each called once and in order, with tensors as transformers calls its own."""

    def __init__(self, processors: Sequence[Processor]) -> None:
        self._processors = processors

    def __call__(self, scores: Array, tokens: Tokens, prompt_length: int) -> Array:
        import torch

        rows = torch.as_tensor(scores)[None]
        ids = torch.tensor(tokens, device=rows.device)[None]  # a copy, which a processor may keep
        for processor in self._processors:
            rows = called("logits processor", processor, ids, rows)
            if getattr(rows, "shape", None) != (1, len(scores)):
                given = tuple(rows.shape) if isinstance(rows, torch.Tensor) else type(rows).__name__
                shape = f"scores of shape (1, {len(scores)})"
                raise CallbackError(f"the logits processor {name_of(processor)} returned {given}, not {shape}")
        return full_precision(rows[0])


class Allowed:
    """Makes tokens impossible that a grammar does not allow."""

    def __init__(self, grammar: Grammar) -> None:
        opens = getattr(grammar, "open", None)
        if opens is None:
            raise InputError("a grammar needs the tokenizer of a model; give it to a text of a loaded model")
        self._following: TextMatcher = opens()

    def __call__(self, scores: Array, tokens: Tokens, prompt_length: int) -> Array:
        self._following.go_to(tokens[prompt_length:])
        scores[_beside(scores, ~self._following.mask(len(scores)))] = -np.inf
        return scores


class _Lasting:
    """Ids or numbers that are the same for every row, and stay where the rows are."""

    def __init__(self, numbers: NDArray[Any]) -> None:
        self._numbers, self.size = numbers, numbers.size
        self._sent: Array = numbers
        self._place: tuple[Any, Any] | None = None

    def beside(self, scores: Array) -> Array:
        place = scores.dtype, getattr(scores, "device", None)
        if self._place != place:
            self._sent, self._place = _beside(scores, self._numbers), place
        return self._sent


def _scored(ids: Tokens, scores: Array) -> Tokens:
    """Those of the ascending ids that have a score: embeddings may hold more tokens than the output layer."""
    return ids[: np.searchsorted(ids, len(scores))]


def _beside(scores: Array, numbers: NDArray[Any]) -> Array:
    """Ids, or numbers in the scores' precision, where the scores are."""
    if isinstance(scores, np.ndarray):
        return numbers.astype(scores.dtype) if numbers.dtype.kind == "f" else numbers
    from paceline.law.on_device import sent_beside

    return sent_beside(scores, numbers)
