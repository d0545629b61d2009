"""A conversation rendered as the text that a model continues, and that text in the tokens that were written.

A tokenizer with a chat template renders it. For any other tokenizer it is a plain transcript

    SYSTEM

    User: ...
    Assistant: ...
    User: ...
    Assistant:

and `STOP` keeps the model from writing the user's next turn. Where the last message is the assistant's, the model
continues that message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.vocabulary.detokenize import Detokenizer
from paceline.vocabulary.tokens import Vocabulary

USER, ASSISTANT = "User", "Assistant"
STOP = f"\n{USER}:"
"""Ends a reply on a transcript."""
REPLACEMENT = "\ufffd"
LEADS = ("", "\n", "a", ".")
"""Texts to encode a continuation behind, for tokenizers that put a space before whatever begins a text."""
KEPT = 32
"""How many conversations are remembered."""


class Rendered(NamedTuple):
    """A conversation's text up to the next reply."""

    text: str
    templated: bool
    """Whether the tokenizer's template rendered it, special tokens included; then encoding must not add any."""


def render(
    vocabulary: Vocabulary, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any] | None = None
) -> Rendered:
    """A conversation in the tokenizer's chat template, which sees these variables, or as a plain transcript."""
    templated = vocabulary.conversation(list(messages), variables or {})
    if templated is not None:
        return Rendered(templated, True)
    if variables:
        raise InputError("chat_template_kwargs are for a chat template, and this model has none; leave them out")
    turns = "".join(map(_turn, messages))
    return Rendered(turns[:-1] if messages[-1]["role"] == "assistant" else f"{turns}{ASSISTANT}:", False)


def _turn(message: dict[str, Any]) -> str:
    """One turn of a transcript. A reply keeps the space that the model wrote in front."""
    match message["role"]:
        case "system":
            return f"{message['content']}\n\n"
        case "user":
            return f"{USER}: {message['content']}\n"
        case "assistant":
            return f"{ASSISTANT}:{message['content']}\n"
    raise InputError(
        f"this model has no chat template, and a plain transcript has no turns of {message['role']!r}; "
        "the roles are system, user and assistant"
    )


class Transcripts:
    """The last conversations of a model, each with the very tokens that its text was written in.

    A longer conversation begins with the tokens of the one that it continues, as far as the template keeps its text:
    then their KV rows are reused and only the new part is read. Re-encoding the whole text would not do: a sampled text
    often consists of other tokens than a tokenizer would choose for it.

    One that ``remembers`` nothing encodes every conversation as the tokenizer does, so its tokens depend on its text
    alone, and not on the texts that this process has written.

    Several threads may use it: its dict is replaced, never changed.
    """

    def __init__(self, vocabulary: Vocabulary, *, remembers: bool = True) -> None:
        self.vocabulary, self.remembers = vocabulary, remembers
        self._known: dict[str, list[int]] = {}

    def encode(self, rendered: Rendered) -> NDArray[np.int64]:
        """The tokens of a conversation that, if they can, begin with those of the longest one that it continues."""
        text = rendered.text
        whole = self.vocabulary.encode(text, add_special=not rendered.templated)
        for known, tokens in sorted(self._known.items(), key=lambda each: -len(each[0])):
            if text.startswith(known):
                more = continuation(self.vocabulary, tokens, text[len(known) :], whole.tolist())
                if more is not None:
                    return np.asarray(tokens + more)
        return whole

    def keep(self, text: str, prompt: Sequence[int], reply: str, tokens: Sequence[int]) -> None:
        """Remember a conversation and its reply by the tokens whose text stands: all but what was cut off at the
        reply's end, be it a stop string or the first bytes of a character. Where the reply ends with blanks, also
        without these, for many templates leave them out."""
        if not self.remembers:
            return
        stream, spelled = Detokenizer(self.vocabulary, skip_special=False, prefix=prompt), ""
        last, standing, bare = "", {"": 0}, reply.rstrip()
        for count, token in enumerate(tokens, start=1):
            spelled += stream.push(token)
            open_end = stream.copy().finish()
            if REPLACEMENT not in open_end and reply.startswith(spelled + open_end):
                if last != bare:
                    del standing[last]
                last = spelled + open_end
                standing[last] = count
        new = {text + said: [*prompt, *tokens[:count]] for said, count in standing.items()}
        known = {text: tokens for text, tokens in self._known.items() if text not in new} | new
        self._known = dict(list(known.items())[-KEPT:])

    def clear(self) -> None:
        """Remember none."""
        self._known = {}


def continuation(
    vocabulary: Vocabulary, tokens: Sequence[int], text: str, whole: Sequence[int] = ()
) -> list[int] | None:
    """Tokens that spell ``text`` behind ``tokens``, or with which ``whole`` ends, the encoding of all the text: some
    tokenizers decode a space behind special tokens that they encode without one. None where there are no such tokens.
    """
    alone = vocabulary.encode(text, add_special=False).tolist()
    if alone and alone == list(whole[-len(alone) :]):
        return list(alone)
    for lead in LEADS:
        before = vocabulary.encode(lead, add_special=False).tolist() if lead else []
        found = vocabulary.encode(lead + text, add_special=False).tolist()
        rest = found[len(before) :]
        if found[: len(before)] == before and _spelled(vocabulary, tokens, rest) == text:
            return list(rest)
    return None


def _spelled(vocabulary: Vocabulary, prefix: Sequence[int], tokens: Sequence[int]) -> str:
    stream = Detokenizer(vocabulary, skip_special=False, prefix=prefix)
    return "".join(map(stream.push, tokens)) + stream.finish()
