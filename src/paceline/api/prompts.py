"""Prompts as token ids: from a text, ids in any usual form, or the messages of a chat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.vocabulary.transcript import STOP, Transcripts, continuation, render

if TYPE_CHECKING:
    import torch

    from paceline.targets.base import Target
    from paceline.vocabulary import Vocabulary

Message: TypeAlias = Mapping[str, Any]
"""``{"role": "user", "content": "Hello"}``; other keys are for the model's chat template."""
Prompt: TypeAlias = "str | Sequence[int] | NDArray[Any] | torch.Tensor | Sequence[Message] | Mapping[str, Any]"
"""A text, token ids, the messages of a chat, or what a transformers tokenizer returns."""

TAKEN = "a prompt is text, token ids (a list, an array or a tensor of whole numbers) or the messages of a chat"
LONGEST_PREDICTION = 1 << 16
"""Tokens of a prediction for a model whose context has no limit."""
LONG_TOKEN = 16
"""Characters per token up to which a prediction is encoded."""
BEFORE = 64
"""Tokens of the prompt behind which its text must be spelled."""
ONE_MESSAGE = "a message is {'role': 'user', 'content': 'text'}"


class Reading(NamedTuple):
    """A prompt as the engine takes it."""

    tokens: NDArray[np.int64]
    chat: str | None = None
    """The text of a chat up to the reply, which is remembered with its tokens."""
    stops: tuple[str, ...] = ()
    """Texts that end the reply, of a model without a chat template."""
    messages: tuple[Message, ...] = ()
    """The messages of a chat."""


def read(
    prompt: object, target: Target, transcripts: Transcripts | None, variables: Mapping[str, Any] | None = None
) -> Reading:
    """The token ids of a prompt. ``transcripts`` remembers the chats of the model; None without a tokenizer.
    ``variables`` are for its chat template."""
    if variables and not is_chat(prompt):
        raise InputError("chat_template_kwargs are for the messages of a chat, and this prompt is none; leave them out")
    if isinstance(prompt, str):
        return Reading(_fitting(_speaking(transcripts, target, prompt).vocabulary.encode_prompt(prompt), target))
    if isinstance(prompt, Mapping) and "input_ids" in prompt:
        return Reading(_unpadded(prompt["input_ids"], prompt.get("attention_mask")))
    if is_chat(prompt):
        transcripts = _speaking(transcripts, target, "")
        messages = messages_of(prompt)
        chat = render(transcripts.vocabulary, messages, variables)
        _speaking(transcripts, target, chat.text)
        tokens = _fitting(transcripts.encode(chat), target)
        if (limit := target.context_length) is not None and len(tokens) >= limit:
            counts = f"{len(tokens)} tokens and the model's context holds {limit}"
            raise InputError(f"the conversation has {counts}; start a new one")
        return Reading(tokens, chat.text, () if chat.templated else (STOP,), tuple(messages))
    return Reading(_ids(prompt))


def predicted(
    given: str | list[int], prompt: NDArray[np.int64], target: Target, vocabulary: Vocabulary | None
) -> list[int]:
    """The tokens of a prediction as they would follow the prompt, no more than the context has room for."""
    if not given:
        return []
    limit = LONGEST_PREDICTION if target.context_length is None else max(0, target.context_length - len(prompt))
    if isinstance(given, str):
        if vocabulary is None:
            raise InputError(f"{target.name} came without a tokenizer; give the prediction as token ids")
        text = given[: LONG_TOKEN * limit]
        more = continuation(vocabulary, prompt[-BEFORE:].tolist(), text)
        given = vocabulary.encode(text, add_special=False).tolist() if more is None else more
    if given and (largest := max(given)) >= target.vocab_size:
        raise InputError(f"the prediction holds token {largest}, and {target.name} has {target.vocab_size} tokens")
    return given[:limit]


def is_chat(prompt: object) -> bool:
    """Whether a prompt is a list of messages."""
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def messages_of(prompt: Any) -> list[dict[str, Any]]:
    """The messages of a chat, with contents that are texts."""
    return [_message(number, message) for number, message in enumerate(prompt)]


def prompts_of(given: object) -> list[Any]:
    """The prompts of a batch: those of a list, or the rows of an array or of what a tokenizer returns."""
    if isinstance(given, Mapping) and "input_ids" in given:
        ids, masks = given["input_ids"], given.get("attention_mask")
        if masks is None:
            return list(ids)
        return [_unpadded(row, mask) for row, mask in zip(ids, masks, strict=True)]
    if is_chat(given) and isinstance(given, (list, tuple)) and "role" in given[0]:
        raise InputError("a batch is a list of prompts, and this is one chat; put it into a list, or call `chat`")
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        what = "one text" if isinstance(given, str) else _named(given)
        raise InputError(f"a batch is a list of prompts, not {what}; put it into a list, or call `generate`")
    return list(given)


# --- texts ---


def _speaking(transcripts: Transcripts | None, target: Target, text: str) -> Transcripts:
    """The memory of a model that has a tokenizer, for a text that its context may hold."""
    if transcripts is None:
        raise InputError(
            f"{target.name} came without a tokenizer; put tokenizer.json and tokenizer_config.json into the model's "
            "folder, or in Python give the prompt as token ids"
        )
    if (limit := target.context_length) is not None:
        transcripts.vocabulary.refuse_beyond(text, limit)
    return transcripts


def _fitting(tokens: NDArray[np.int64], target: Target) -> NDArray[np.int64]:
    """The ids that the model's tokenizer made of a text, if the model has all these tokens."""
    if len(tokens) and (largest := int(tokens.max())) >= target.vocab_size:
        raise InputError(
            f"the tokenizer of {target.name} does not fit the model: it gives token {largest}, and the model has "
            f"{target.vocab_size} tokens; put the model's own tokenizer files into its folder"
        )
    return tokens


def _message(number: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputError(f"message {number} of the chat is {_named(message)}; {ONE_MESSAGE}")
    if not isinstance(message.get("role"), str):
        raise InputError(f"message {number} of the chat has no role; {ONE_MESSAGE}")
    content = message.get("content")
    content = getattr(content, "text", content)  # of a reply that was put in as it came
    if isinstance(content, (list, tuple)):
        content = "".join(_text_part(number, part) for part in content)
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise InputError(f"the content of message {number} of the chat is {_named(content)}; {ONE_MESSAGE}")
    return {**message, "content": content}


def _text_part(number: int, part: Any) -> str:
    """One part of a content that is a list, as multi-modal models take it."""
    if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
        return text
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise InputError(f"message {number} of the chat has a part of type {kind!r}; models here read text only")


# --- ids ---


def _unpadded(ids: object, mask: object) -> NDArray[np.int64]:
    """The ids of one text without its padding."""
    found, shown = _ids(ids), None if mask is None else _array(mask)
    if shown is None:
        return found
    if shown.size != len(found):
        raise InputError(f"attention_mask has {shown.size} entries for {len(found)} token ids")
    kept: NDArray[Any] = found[shown.reshape(-1) != 0]
    return kept


def _ids(given: Any) -> NDArray[Any]:
    """Token ids in one row, of whatever holds them."""
    given = getattr(given, "ids", given)  # of the tokenizers library
    if isinstance(given, (list, tuple)) and given:
        if any(isinstance(one, str) for one in given):
            raise InputError("a prompt is one text, and this is a list of texts; use generate_batch")
        if _nested(given[0]):
            return _ids(given[0]) if len(given) == 1 else _refuse_batch(len(given))
        for one in given:
            if isinstance(one, bool) or not hasattr(one, "__index__"):
                raise InputError(f"{TAKEN}; this {type(given).__name__} holds {_named(one)}")
    found = _array(given)
    if found is None or found.ndim not in (1, 2):
        raise InputError(f"{TAKEN}, not {_named(given)}")
    if found.ndim == 2:
        found = found[0] if len(found) == 1 else _refuse_batch(len(found))
    if len(found) == 0:
        raise InputError("the prompt is empty; give at least one token (the model's BOS, say)")
    if found.dtype.kind not in "iu":
        raise InputError(f"{TAKEN}, not {_named(given)}")
    return found


def _nested(one: object) -> bool:
    return isinstance(one, (list, tuple)) or getattr(one, "ndim", 0) > 0


def _array(given: Any) -> NDArray[Any] | None:
    """A sequence, an array or a tensor on any device as an array; None of anything else."""
    if isinstance(given, np.ndarray):
        return given
    if hasattr(given, "tolist"):
        given = given.tolist()
    elif not isinstance(given, Sequence) or isinstance(given, (bytes, bytearray)):
        return None
    try:
        return np.asarray(given)
    except (ValueError, OverflowError):
        return None


def _refuse_batch(count: int) -> NDArray[np.int64]:
    raise InputError(f"a prompt is one text, and this is a batch of {count}; use generate_batch")


def _named(given: object) -> str:
    """The given value, in a few words."""
    kind = type(given).__name__
    if isinstance(given, (bool, int, float)) or given is None:
        return repr(given)
    if isinstance(given, Mapping):
        return f"a {kind} without input_ids"
    shape, of = getattr(given, "shape", None), getattr(given, "dtype", None)
    return f"a {kind}" if shape is None else f"a {kind} of shape {tuple(shape)} and type {of}"
