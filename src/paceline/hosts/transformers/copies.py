"""Processors and criteria of a batch, as one row has them.

transformers calls one object for all rows at once. Here rows are at different places, so each row has objects of its
own, which see a batch of one. What a processor of transformers' own holds for every row is cut down to the row's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.stopping_criteria import MaxTimeCriteria, StopStringCriteria

STATELESS = (MaxTimeCriteria, StopStringCriteria)
"""Not worth a copy."""


class Place(NamedTuple):
    """A row of the expanded batch, and the prompt it goes on from."""

    row: int
    prompt: int


def own_copies(
    processors: Sequence[Any], criteria: Sequence[Any], model: PreTrainedModel, place: Place
) -> tuple[list[Any], list[Any]]:
    """Copies for one row. Processors and criteria are copied together: they may share what they know."""
    if not processors and not criteria:
        return [], []
    try:
        mine, asked = copy.deepcopy((list(processors), list(criteria)), _shared([*processors, *criteria], model))
    except Exception as error:
        names = ", ".join(sorted({type(each).__name__ for each in (*processors, *criteria)}))
        raise ValueError(
            f"one of {names} cannot be copied for the rows of a batch ({error}); generate one row at a time"
        ) from error
    for processor in mine:
        if (cut := CUTS.get(type(processor))) is not None:
            cut(processor, place)
    return mine, asked


def _shared(items: Sequence[Any], model: PreTrainedModel) -> dict[int, Any]:
    """What copies have in common with the originals: models and tokenizers, which are large and keep no state here."""
    held = [value for item in items for value in getattr(item, "__dict__", {}).values()]
    kinds = (torch.nn.Module, PreTrainedTokenizerBase)
    shared = [*model.modules(), *(value for value in held if isinstance(value, kinds))]
    shared += [item for item in items if type(item) in STATELESS]
    return {id(each): each for each in shared}


def _row_of(values: torch.Tensor | None, number: int) -> torch.Tensor | None:
    return values if values is None or len(values) == 1 else values[number : number + 1]


def _cut_repetition(processor: Any, place: Place) -> None:
    if isinstance(processor.prompt_ignore_length, torch.Tensor):
        processor.prompt_ignore_length = _row_of(processor.prompt_ignore_length, place.row)


def _cut_allowed(processor: Any, place: Place) -> None:
    allowed = processor._prefix_allowed_tokens_fn
    processor._prefix_allowed_tokens_fn = lambda _, text: allowed(place.row, text)


def _cut_prompts(processor: Any, place: Place) -> None:
    processor.encoder_input_ids = _row_of(processor.encoder_input_ids, place.prompt)


def _cut_ngrams(processor: Any, place: Place) -> None:
    processor.generated_ngrams = [processor.generated_ngrams[place.prompt]]
    processor.batch_size = 1


def _cut_guidance(processor: Any, place: Place) -> None:
    for name in ("input_ids", "attention_mask"):
        held = processor.unconditional_context
        held[name] = _row_of(held[name], place.row)


CUTS: dict[type, Callable[[Any, Place], None]] = {
    RepetitionPenaltyLogitsProcessor: _cut_repetition,
    PrefixConstrainedLogitsProcessor: _cut_allowed,
    EncoderRepetitionPenaltyLogitsProcessor: _cut_prompts,
    EncoderNoRepeatNGramLogitsProcessor: _cut_ngrams,
    UnbatchedClassifierFreeGuidanceLogitsProcessor: _cut_guidance,
}
