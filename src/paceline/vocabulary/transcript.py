"""A conversation as the text that a model writes on.

A tokenizer with a chat template spells it; any other is given a transcript

    SYSTEM

    User: ...
    Assistant: ...
    User: ...
    Assistant:

and has to be stopped before it writes the user's next turn itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.vocabulary.tokens import Vocabulary

USER, ASSISTANT = "User", "Assistant"
STOP = f"\n{USER}:"
"""What ends a reply on a transcript."""


class Rendered(NamedTuple):
    """The text up to where the next reply begins."""

    text: str
    templated: bool
    """Whether it is the tokenizer's own template, which spells the special tokens too; none are to be added then."""


def render(vocabulary: Vocabulary, messages: Sequence[dict[str, str]]) -> Rendered:
    """A conversation by the tokenizer's chat template, or as a plain transcript where it has none."""
    spelled = vocabulary.conversation(list(messages))
    if spelled is not None:
        return Rendered(spelled, True)
    return Rendered("".join(map(_line, messages)) + f"{ASSISTANT}:", False)


def _line(message: dict[str, str]) -> str:
    """One turn of a transcript. A reply stands as the model wrote it, with the space that it began with."""
    match message["role"]:
        case "system":
            return f"{message['content']}\n\n"
        case "user":
            return f"{USER}: {message['content']}\n"
        case _:
            return f"{ASSISTANT}:{message['content']}\n"
