"""Which tokens of a padded batch are real."""

from __future__ import annotations

import torch


def paddings(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None
) -> list[int]:
    """How many tokens of padding stand in front of each row; refuses what is not a left-padded batch."""
    if input_ids.shape[1] == 0:
        raise ValueError("the prompt is empty; give at least one token (the model's BOS, say) to go on from")
    counts = [0] * len(input_ids) if attention_mask is None else _in_front(input_ids, attention_mask)
    if position_ids is not None:
        _check_positions(position_ids, counts, input_ids.shape[1])
    return counts


def _in_front(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[int]:
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)} and the tokens {tuple(input_ids.shape)}; "
            "give one number per token"
        )
    real = (attention_mask != 0).cpu()
    for number, row in enumerate(real):
        if not row[-1]:
            raise ValueError(
                f"row {number} is padded on the right, where its text should go on; "
                "set padding_side='left' when making the tokenizer"
            )
        if not row[int(row.int().argmax()) :].all():
            raise ValueError(f"attention_mask hides tokens in the middle of row {number}; only left padding is served")
    return [int(row.int().argmax()) for row in real]


def _check_positions(position_ids: torch.Tensor, counts: list[int], length: int) -> None:
    """Positions are ours to count: the n-th real token stands at n."""
    positions = position_ids.cpu()
    fits = positions.ndim == 2 and positions.shape[1] == length and len(positions) in (1, len(counts))
    rows = positions.expand(len(counts), -1) if fits else positions
    for number, padding in enumerate(counts):
        if not fits or not torch.equal(rows[number, padding:], torch.arange(length - padding)):
            raise ValueError(
                "position_ids that do not count 0, 1, 2 from the first real token on are not served; leave them out"
            )
