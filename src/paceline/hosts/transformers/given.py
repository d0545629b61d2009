"""Arguments of `generate` that it does not pass on to a callable.

transformers takes streamer, tokenizer, assistant model and `synced_gpus` aside for its own methods, and forgets them if
the method is a callable. A streamer that nobody feeds would leave its reader waiting for ever, so they are read where
they were given: from the frames of the `generate` in progress.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from transformers import GenerationMixin


@dataclass(frozen=True)
class Given:
    streamer: Any = None
    tokenizer: Any = None
    assistant_model: Any = None
    synced_gpus: Any = None


def given_to_generate() -> Given:
    """What the innermost `generate` of this thread was given; nothing where there is none."""
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = sys._getframe(1)
    while frame.f_code is not code:
        if frame.f_back is None:
            return Given()
        frame = frame.f_back
    names = frame.f_locals
    around = frame.f_back.f_locals if frame.f_back is not None else {}  # of the decorator, which has all keywords
    keywords = around.get("kwargs") or {}
    return Given(
        streamer=names.get("streamer"),
        tokenizer=keywords.get("tokenizer"),
        assistant_model=names.get("assistant_model"),
        synced_gpus=names.get("synced_gpus"),
    )
