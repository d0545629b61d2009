"""A conversation as the text that a model continues.

A tokenizer with a chat template renders it; for any other it is a plain transcript

    SYSTEM

    User: ...
    Assistant: ...
    User: ...
    Assistant:

and the model has to be stopped before it writes the user's next turn itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.vocabulary.tokens import Vocabulary

USER, ASSISTANT = "User", "Assistant"
STOP = f"\n{USER}:"
"""Ends a reply on a transcript."""


class Rendered(NamedTuple):
    """A text up to where the next reply begins."""

    text: str
    templated: bool
    """Whether it is the tokenizer's template, which spells the special tokens too; then none may be added."""


def render(vocabulary: Vocabulary, messages: Sequence[dict[str, str]]) -> Rendered:
    """A conversation in the tokenizer's chat template, or as a plain transcript."""
    templated = vocabulary.conversation(list(messages))
    if templated is not None:
        return Rendered(templated, True)
    return Rendered("".join(map(_turn, messages)) + f"{ASSISTANT}:", False)


def _turn(message: dict[str, str]) -> str:
    """One turn of a transcript. A reply stands as the model wrote it, with the space that it began with."""
    match message["role"]:
        case "system":
            return f"{message['content']}\n\n"
        case "user":
            return f"{USER}: {message['content']}\n"
        case _:
            return f"{ASSISTANT}:{message['content']}\n"
