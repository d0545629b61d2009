"""The prepared lists of logits processors and stopping criteria, as our law takes them and as one row has them.

transformers calls one object for all rows at once. Here rows are at different places, so each row has objects of its
own, which see a batch of one. What a processor of transformers' own holds for every row is cut down to the row's.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import logits_process
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    LogitNormalization,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.stopping_criteria import MaxTimeCriteria, StopStringCriteria

from paceline.errors import InputError, called
from paceline.law import Sampling
from paceline.law.table import Acts, SettingRow, table

STATELESS = (MaxTimeCriteria, StopStringCriteria)
"""Not worth a copy for every row."""


class FieldProcessor(NamedTuple):
    """A processor that says the same as a field of `Sampling`."""

    processor: type[LogitsProcessor]
    row: SettingRow
    attribute: str
    """That holds the field's value."""


@dataclass(frozen=True)
class SplitProcessors:
    """A list of processors, those at its two ends that say the same as fields of `Sampling` apart from the others.

    As fields they are known to drafters, which then rank by the law that the target will sample from.
    """

    processors: list[Any]
    warpers: list[Any]
    fields: dict[str, Any]


def split_processors(processors: Sequence[Any], *, sample: bool, penalty: bool = False) -> SplitProcessors:
    """Greedy decoding has no warps: what would be warped is processed. A repetition penalty is only a field where it
    acts first and on just the text (``penalty``): not where padding is penalised too, or logits are kept."""
    kept = list(processors)
    penalties: dict[str, Any] = {}
    if penalty and kept and (penalties := _field(kept[0], _field_processors(warpers=False))):
        del kept[0]
    if not sample:
        return SplitProcessors(kept, [], {"temperature": 0.0} | penalties)
    last = [kept.pop()] if kept and type(kept[-1]) is LogitNormalization else []  # leaves the law as it is
    warpers: list[Any] = []
    fields: dict[str, Any] = {}
    known = _field_processors(warpers=True)
    while kept and (said := _field(kept[-1], known)):
        known = known[: [one.processor for one in known].index(type(kept[-1]))]  # the later ones are out of order
        fields |= said
        warpers.insert(0, kept.pop())
    return SplitProcessors(kept, warpers + last, {"temperature": 1.0} | fields | penalties)


def _field_processors(*, warpers: bool) -> list[FieldProcessor]:
    """The processors that a `Sampling` has fields for, in the order in which transformers and our law apply them: those
    from the temperature on, or those before."""
    return [
        FieldProcessor(getattr(logits_process, theirs.processor), row, theirs.argument)
        for row in table(Sampling)
        if (theirs := row.transformers) and theirs.argument and warpers == (row.acts is not Acts.ON_LOGITS)
    ]


def _field(processor: Any, known: Sequence[FieldProcessor]) -> dict[str, Any]:
    """The fields of `Sampling` that equal a processor; none if it does more or something else."""
    found = next((one for one in known if one.processor is type(processor)), None)
    own = {"filter_value": -torch.inf, "min_tokens_to_keep": 1, "prompt_ignore_length": None}
    if found is None or any(getattr(processor, name, usual) != usual for name, usual in own.items()):
        return {}
    assert found.row.kind is not None, "only numbers are read back"
    value = found.row.kind(getattr(processor, found.attribute))
    try:
        found.row.check(found.row.name, value)
    except InputError:  # transformers takes more: a nucleus of nothing, which is the best token, say
        return {}
    return {found.row.name: value}


class RowProcessor:
    """One row's processors as one, shown what transformers would show them: the padded text and float32 scores, where
    the ids are. Being called once per emitted token, it also keeps what `generate` can be asked to return."""

    def __init__(
        self, processors: Sequence[Any], padding: torch.Tensor, *, warpers: Sequence[Any], scores: bool, logits: bool
    ) -> None:
        self._processors = list(processors)
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
        processed = scores
        for processor in self._processors:
            processed = called("logits processor", processor, shown, processed)
        if self.logits is not None:
            self.logits.append(scores)
        if self.scores is not None:
            self.scores.append(self._warpers(shown, processed))
        return processed


class BatchRow(NamedTuple):
    """A row of the expanded batch, and the prompt it goes on from."""

    number: int
    prompt: int


def own_copies(
    processors: Sequence[Any], criteria: Sequence[Any], model: PreTrainedModel, batch_row: BatchRow
) -> tuple[list[Any], list[Any]]:
    """Copies for one row. Processors and criteria are copied together: they may share what they know."""
    if not processors and not criteria:
        return [], []
    try:
        mine, asked = copy.deepcopy((list(processors), list(criteria)), _shared([*processors, *criteria], model))
    except Exception as error:
        names = ", ".join(sorted({type(each).__name__ for each in (*processors, *criteria)}))
        raise InputError(
            f"one of {names} cannot be copied for the rows of a batch ({error}); generate one row at a time"
        ) from error
    for processor in mine:
        _cut(processor, batch_row)
    return mine, asked


def _shared(items: Sequence[Any], model: PreTrainedModel) -> dict[int, Any]:
    """The objects that copies share with the originals: models and tokenizers, which are large and keep no state
    here."""
    held = [value for item in items for value in getattr(item, "__dict__", {}).values()]
    kinds = (torch.nn.Module, PreTrainedTokenizerBase)
    shared = [*model.modules(), *(value for value in held if isinstance(value, kinds))]
    shared += [item for item in items if type(item) in STATELESS]
    return {id(each): each for each in shared}


def _row_of(values: torch.Tensor | None, number: int) -> torch.Tensor | None:
    return values if values is None or len(values) == 1 else values[number : number + 1]


def _cut(processor: Any, batch_row: BatchRow) -> None:
    """Cut what one of transformers' own processors holds for all rows down to one row."""
    kind, (number, prompt) = type(processor), batch_row
    if kind is RepetitionPenaltyLogitsProcessor and isinstance(processor.prompt_ignore_length, torch.Tensor):
        processor.prompt_ignore_length = _row_of(processor.prompt_ignore_length, number)
    elif kind is PrefixConstrainedLogitsProcessor:
        allowed = processor._prefix_allowed_tokens_fn
        processor._prefix_allowed_tokens_fn = lambda _, text: allowed(number, text)
    elif kind is EncoderRepetitionPenaltyLogitsProcessor:
        processor.encoder_input_ids = _row_of(processor.encoder_input_ids, prompt)
    elif kind is EncoderNoRepeatNGramLogitsProcessor:
        processor.generated_ngrams, processor.batch_size = [processor.generated_ngrams[prompt]], 1
    elif kind is UnbatchedClassifierFreeGuidanceLogitsProcessor:
        held = processor.unconditional_context
        for name in ("input_ids", "attention_mask"):
            held[name] = _row_of(held[name], number)
