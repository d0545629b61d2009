"""The prompts of a completion: texts or token ids, one or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.integrations.server.errors import ApiError, short
from paceline.integrations.server.models import ServedModel

ONE_PROMPT = str | NDArray[np.int64]


def prompts_of(given: str | list[Any], served: ServedModel) -> list[ONE_PROMPT]:
    """The prompts that a request gives. Every entry is checked, up to the first mistake."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError("prompt is an empty list; give a text or token ids", param="prompt")
    if type(given[0]) is int:
        return [_ids(given, served)]
    return [_prompt(number, one, served) for number, one in enumerate(given)]


def _prompt(number: int, given: Any, served: ServedModel) -> ONE_PROMPT:
    """An entry of a list of prompts."""
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        return _ids(given, served)
    raise ApiError(f"prompt.{number}: give a text or a list of token ids, not {short(given)}", param="prompt")


def _ids(ids: Sequence[Any], served: ServedModel) -> NDArray[np.int64]:
    size = served.lm.target.vocab_size
    for token in ids:
        if type(token) is not int:
            raise ApiError(f"prompt: a token id is a whole number, not {short(token)}", param="prompt")
        if not 0 <= token < size:
            raise ApiError(f"prompt names token {short(token)}, and the model has {size} tokens", param="prompt")
    return np.asarray(ids, np.int64)
