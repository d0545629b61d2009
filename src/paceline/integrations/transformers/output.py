"""The output of rows, in the shapes of transformers: padded columns, one per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from paceline.integrations.transformers.rows import GenerateRow


class Columns:
    """Hands a streamer one token of every row at a time, as soon as all rows are that far."""

    def __init__(self, streamer: Any, rows: Sequence[GenerateRow], pad: int | None) -> None:
        self._streamer = streamer
        self._rows = rows
        self._pad = pad
        self._shown = 0

    def show(self) -> None:
        """Put what has become known. A row that has ended is padded."""
        if self._streamer is None:
            return
        writing = [len(row.tokens) for row in self._rows if not row.ended]
        ready = min(writing) if writing else max(len(row.tokens) for row in self._rows)
        for place in range(self._shown, ready):
            self._streamer.put(torch.tensor([_token(row, place, self._pad) for row in self._rows]))
        self._shown = max(self._shown, ready)

    def end(self) -> None:
        if self._streamer is not None:
            self._streamer.end()


def sequences(input_ids: torch.Tensor, rows: Sequence[GenerateRow], pad: int | None) -> torch.Tensor:
    """The prompts with what was written behind them; rows that ended early are padded. Tokens are 64 bits wide
    whatever the prompts were given as, as with transformers."""
    steps = range(max(len(row.tokens) for row in rows))
    written = [[_token(row, place, pad) for place in steps] for row in rows]
    return torch.cat([input_ids, torch.tensor(written, device=input_ids.device)], dim=1)


def record(found: Any, rows: Sequence[GenerateRow], pad: int | None) -> GenerateDecoderOnlyOutput:
    """What ``return_dict_in_generate`` asks for, as far as it is defined here."""
    processors = [row.processor for row in rows]
    return GenerateDecoderOnlyOutput(
        sequences=found,
        scores=_steps([each.scores for each in processors], pad),
        logits=_steps([each.logits for each in processors], pad),
    )


def _steps(kept: Sequence[list[torch.Tensor] | None], pad: int | None) -> Any:
    """A tuple of ``[rows, vocabulary]``, one per step. What the model would say behind the end of a row is never
    computed: there the padding is certain, so that its log-probability is 0 and adds nothing to a row's sum."""
    lists = [each for each in kept if each is not None]
    if not lists:
        return None
    certain = torch.full_like(max(lists, key=len)[0], -torch.inf)
    if pad is not None and pad < certain.shape[1]:
        certain[0, pad] = 0.0
    steps = range(max(map(len, lists)))
    return tuple(torch.cat([each[place] if place < len(each) else certain for each in lists]) for place in steps)


def _token(row: GenerateRow, place: int, pad: int | None) -> int:
    if place < len(row.tokens):
        return row.tokens[place]
    assert pad is not None, "rows of unequal length are only left where there is a token to pad with"
    return pad
