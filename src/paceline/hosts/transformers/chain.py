"""The prepared list of logits processors, as our law takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import (
    LogitNormalization,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

ORDER: tuple[type[LogitsProcessor], ...] = (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    MinPLogitsWarper,
)
"""The warpers that a `Sampling` has fields for, in the order in which transformers and our law apply them."""


@dataclass(frozen=True)
class Division:
    """A list of processors, those at its two ends that say the same as fields of `Sampling` apart from the others.

    As fields they are known to drafters, which then rank by the law that the target will sample from.
    """

    processors: list[Any]
    warpers: list[Any]
    fields: dict[str, Any]


def divide(processors: Sequence[Any], *, sample: bool, penalty: bool = False) -> Division:
    """Greedy decoding has no warps: what would be warped is processed. A repetition penalty is only a field where it
    acts first and on just the text (``penalty``): not where padding is penalised too, or logits are kept."""
    kept = list(processors)
    penalties: dict[str, Any] = {}
    if penalty and kept and type(kept[0]) is RepetitionPenaltyLogitsProcessor and kept[0].prompt_ignore_length is None:
        penalties = {"repetition_penalty": float(kept.pop(0).penalty)}
    if not sample:
        return Division(kept, [], {"temperature": 0.0} | penalties)
    last = [kept.pop()] if kept and type(kept[-1]) is LogitNormalization else []  # leaves the law as it is
    warpers: list[Any] = []
    fields: dict[str, Any] = {}
    place = len(ORDER)
    while kept and (said := _field(kept[-1])) and ORDER.index(type(kept[-1])) < place:
        place = ORDER.index(type(kept[-1]))
        fields |= said
        warpers.insert(0, kept.pop())
    return Division(kept, warpers + last, {"temperature": 1.0} | fields | penalties)


def _field(warper: Any) -> dict[str, Any]:
    """What a warper is called in `Sampling`; nothing if it does more or other than that."""
    if getattr(warper, "filter_value", -torch.inf) != -torch.inf or getattr(warper, "min_tokens_to_keep", 1) != 1:
        return {}
    kind = type(warper)
    if kind is TemperatureLogitsWarper:
        return {"temperature": float(warper.temperature)}
    if kind is TopKLogitsWarper:
        return {"top_k": int(warper.top_k)}
    if kind is TopPLogitsWarper and warper.top_p > 0:
        return {"top_p": float(warper.top_p)}
    if kind is MinPLogitsWarper and warper.min_p < 1:
        return {"min_p": float(warper.min_p)}
    return {}


class Chain:
    """One row's processors as one, shown what transformers would show them: the padded text and float32 scores, where
    the ids are. Being called once per emitted token, it also keeps what `generate` can be asked to return."""

    def __init__(
        self, processors: Sequence[Any], padding: torch.Tensor, *, warpers: Sequence[Any], scores: bool, logits: bool
    ) -> None:
        self._processors = LogitsProcessorList(processors)
        self._warpers = LogitsProcessorList(warpers)
        self._padding = padding
        self.logits: list[torch.Tensor] | None = [] if logits else None
        """The model's own, one per emitted token."""
        self.scores: list[torch.Tensor] | None = [] if scores else None
        """Those that the token was chosen by."""

    @property
    def idle(self) -> bool:
        """Whether nothing is processed or kept, so that rows need not pass here."""
        return not self._processors and self.logits is None and self.scores is None

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        shown: Any = torch.cat([self._padding, ids.to(self._padding.device)], dim=1)
        scores = scores.to(self._padding.device, torch.float32)
        processed: torch.Tensor = self._processors(shown, scores)
        if self.logits is not None:
            self.logits.append(scores)
        if self.scores is not None:
            self.scores.append(self._warpers(shown, processed))
        return processed
