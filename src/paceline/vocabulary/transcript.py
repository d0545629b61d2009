"""A conversation rendered as the text that a model continues.

A tokenizer with a chat template renders it. For any other tokenizer it is a plain transcript

    SYSTEM

    User: ...
    Assistant: ...
    User: ...
    Assistant:

and `STOP` keeps the model from writing the user's next turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.vocabulary.tokens import Vocabulary

USER, ASSISTANT = "User", "Assistant"
STOP = f"\n{USER}:"
"""Ends a reply on a transcript."""


class Rendered(NamedTuple):
    """A conversation's text up to the next reply."""

    text: str
    templated: bool
    """Whether the tokenizer's template rendered it, special tokens included; then encoding must not add any."""


def render(vocabulary: Vocabulary, messages: Sequence[dict[str, str]]) -> Rendered:
    """A conversation in the tokenizer's chat template, or as a plain transcript."""
    templated = vocabulary.conversation(list(messages))
    if templated is not None:
        return Rendered(templated, True)
    return Rendered("".join(map(_turn, messages)) + f"{ASSISTANT}:", False)


def _turn(message: dict[str, str]) -> str:
    """One turn of a transcript. A reply keeps the space that the model wrote in front."""
    match message["role"]:
        case "system":
            return f"{message['content']}\n\n"
        case "user":
            return f"{USER}: {message['content']}\n"
        case _:
            return f"{ASSISTANT}:{message['content']}\n"
