"""The arguments of `generate`: those that can be honoured are read, all others are refused in a sentence.

transformers takes streamer, tokenizer, assistant model and `synced_gpus` aside for its own methods, and forgets them if
the method is a callable. A streamer without tokens would leave its reader waiting for ever, so they are read where they
were given: from the frames of the `generate` in progress.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sized
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from paceline.errors import InputError
from paceline.targets.hf.names import CACHE_NAMES
from paceline.targets.hf.target import refuse_unknown

HANDLED = frozenset({"attention_mask", "position_ids", *CACHE_NAMES})
HARMLESS = frozenset({"use_cache", "logits_to_keep", "return_dict"})
"""They say how transformers would compute, not what."""
NOT_TEXT = ("mm_encoder", "pixel", "image", "video", "audio", "input_features", "vision")
TEXT_AT_ZERO = frozenset({"token_type_ids", "mm_token_type_ids"})
"""One number per token, which is 0 for text."""

OTHER_METHODS = {
    "num_beams": ((None, 1), "asks for beam search, which drafts do not serve; set num_beams=1"),
    "num_beam_groups": ((None, 1), "asks for beam search, which drafts do not serve; leave it out"),
    "constraints": ((None,), "asks for constrained beam search, which drafts do not serve; leave it out"),
    "force_words_ids": ((None,), "asks for constrained beam search, which drafts do not serve; leave it out"),
    "penalty_alpha": ((None, 0), "asks for contrastive search, which drafts do not serve; leave it out"),
    "dola_layers": ((None,), "asks for DoLa decoding, which drafts do not serve; leave it out"),
    "prompt_lookup_num_tokens": ((None,), "asks for transformers' own drafts; leave it out, method 'lookup' does it"),
    "assistant_early_exit": ((None,), "asks for transformers' own drafts; leave it out"),
    "use_mtp": ((None, False), "asks for transformers' own drafts; leave it out"),
    "token_healing": ((None, False), "changes the prompt, which is not supported; leave it out"),
    "output_attentions": (
        (None, False),
        "is not supported, as drafts are scored with another attention; leave it out",
    ),
    "output_hidden_states": ((None, False), "is not supported while drafts are scored; leave it out"),
}
"""Setting -> the values that ask for nothing special, and what is the matter with all others."""


@dataclass(frozen=True)
class Withheld:
    """Arguments of `generate` that it does not pass on to a callable."""

    streamer: Any
    tokenizer: Any
    assistant_model: Any
    synced_gpus: Any


def withheld_by_generate() -> Withheld:
    """The arguments that the innermost `generate` of this thread does not pass on."""
    frame = _frame_of_generate()
    if frame is None:
        raise InputError(
            "what custom_generate makes is called by generate alone: write model.generate(..., custom_generate=...)"
        )
    names = frame.f_locals
    if missing := [name for name in ("streamer", "assistant_model", "synced_gpus") if name not in names]:
        raise InputError(
            f"{' and '.join(missing)} cannot be read from the generate of transformers {transformers.__version__}, so "
            "that they would be lost; use another version of transformers, 5.0 or later"
        )
    around = frame.f_back.f_locals if frame.f_back is not None else {}  # of the decorator, which has all keywords
    return Withheld(
        streamer=names["streamer"],
        tokenizer=(around.get("kwargs") or {}).get("tokenizer"),
        assistant_model=names["assistant_model"],
        synced_gpus=names["synced_gpus"],
    )


def _frame_of_generate() -> FrameType | None:
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def refuse(model: Any, config: GenerationConfig, model_kwargs: dict[str, Any]) -> None:
    """Raise for anything that would change the result and that we would not honour."""
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"custom_generate serves transformers models, not a {type(model).__name__}")
    if model.config.is_encoder_decoder:
        raise InputError(
            f"{type(model).__name__} is an encoder-decoder; custom_generate serves decoder-only language models"
        )
    refuse_unknown(model.config, type(model))
    for name, (harmless, complaint) in OTHER_METHODS.items():
        value = getattr(config, name, None)
        if not any(value is each or value == each for each in harmless):
            raise InputError(f"{name}={value!r} {complaint}")
    if config.cache_implementation == "quantized":
        raise InputError("cache_implementation='quantized' changes the text; leave it out, rows are kept as they are")
    for name in CACHE_NAMES:
        _refuse_cache(name, model_kwargs.get(name))
    _refuse_unknown(model_kwargs, mixed=model.config.get_text_config() is not model.config)


def refuse_companions(assistant_model: Any, synced_gpus: Any) -> None:
    """Arguments of `generate` that are not part of its configuration."""
    if assistant_model is not None:
        raise InputError(
            "assistant_model is for transformers' own drafts; give custom_generate(draft_model=...) instead"
        )
    if synced_gpus:
        raise InputError(
            "synced_gpus keeps several processes in step, token by token, which drafts do not; "
            "generate without custom_generate there"
        )


def _is_filled(cache: Any) -> bool:
    """Whether a cache holds a part of a text. One that has only layers with a state knows no length."""
    try:
        return bool(cache.get_seq_length() > 0)
    except ValueError:
        return bool(cache.has_previous_state())


def _refuse_cache(name: str, cache: Any) -> None:
    if cache is None:
        return
    if getattr(cache, "_is_user_defined", False) or _is_filled(cache):
        raise InputError(f"{name} cannot be read or filled, for rows are kept apart; leave it out")


def _refuse_unknown(model_kwargs: dict[str, Any], *, mixed: bool) -> None:
    if model_kwargs.get("inputs_embeds") is not None:
        raise InputError("inputs_embeds has no tokens to draft from; give input_ids")
    asked = {name for name, value in model_kwargs.items() if not _is_nothing(name, value, mixed=mixed)}
    names = sorted(asked - HANDLED - HARMLESS)
    if seen := [name for name in names if name.startswith(NOT_TEXT)]:
        raise InputError(
            f"{', '.join(seen)}: pictures, videos and sounds are not served; give text alone, or generate without "
            "custom_generate"
        )
    if names:
        raise InputError(f"{', '.join(names)} cannot be passed on to a model that scores drafts; leave it out")


def _is_nothing(name: str, value: Any, *, mixed: bool) -> bool:
    """Whether an argument asks for nothing. transformers itself hands models of ``mixed`` input, such as text and
    pictures, an empty dictionary, and their processors mark every token of a text as text."""
    if isinstance(value, torch.Tensor):
        return mixed and name in TEXT_AT_ZERO and not value.any()
    return value is None or value is False or (isinstance(value, Sized) and len(value) == 0)


def paddings(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None
) -> list[int]:
    """The number of padding tokens before each row; refuses a batch that is not left-padded."""
    if input_ids.shape[1] == 0:
        raise InputError("the prompt is empty; give at least one token (the model's BOS, say)")
    counts = [0] * len(input_ids) if attention_mask is None else _in_front(input_ids, attention_mask)
    if position_ids is not None:
        _check_positions(position_ids, counts, input_ids.shape[1])
    return counts


def _in_front(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[int]:
    if attention_mask.shape != input_ids.shape:
        raise InputError(
            f"attention_mask has shape {tuple(attention_mask.shape)} and the tokens {tuple(input_ids.shape)}; "
            "give one number per token"
        )
    real = (attention_mask != 0).cpu()
    for number, row in enumerate(real):
        if not row[-1]:
            raise InputError(
                f"row {number} is padded on the right, where its text should go on; "
                "set padding_side='left' when making the tokenizer"
            )
        if not row[int(row.int().argmax()) :].all():
            raise InputError(f"attention_mask hides tokens in the middle of row {number}; only left padding is served")
    return [int(row.int().argmax()) for row in real]


def _check_positions(position_ids: torch.Tensor, counts: list[int], length: int) -> None:
    """Positions are ours to count: the n-th real token stands at n."""
    positions = position_ids.cpu()
    fits = positions.ndim == 2 and positions.shape[1] == length and len(positions) in (1, len(counts))
    rows = positions.expand(len(counts), -1) if fits else positions
    for number, padding in enumerate(counts):
        if not fits or not torch.equal(rows[number, padding:], torch.arange(length - padding)):
            raise InputError(
                "position_ids that do not count 0, 1, 2 from the first real token on are not served; leave them out"
            )
