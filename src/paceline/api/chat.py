"""A conversation with a model: turns in, replies out.

A model with a chat template is spoken to through it. Any other model is given a transcript to write on, and is stopped
before it writes the user's next turn itself (`paceline.vocabulary.transcript`).

The next prompt begins with the very tokens of the last one and of its reply, as far as the template lets them stand, so
that the rows which a `LanguageModel` keeps serve again and only what is new is read. Encoding the whole transcript anew
would not do: a sampled text often stands in other tokens than a tokenizer would choose for it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import InputError
from paceline.vocabulary import Detokenizer, Vocabulary
from paceline.vocabulary.transcript import STOP, render

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.api.piece import Piece
    from paceline.api.writing import Generation

REPLACEMENT = "\ufffd"
LEADS = ("", "\n", "a", ".")
"""Texts to encode a continuation behind, for tokenizers that put a space before whatever begins a text."""


class Conversation:
    """The turns so far. ``settings`` are those of every reply, as for `LanguageModel.generate`."""

    def __init__(self, lm: LanguageModel, *, system: str | None = None, **settings: Any) -> None:
        if lm.vocabulary is None:
            raise InputError(f"{lm.target.name} came without a tokenizer, so it cannot be talked to")
        self._lm = lm
        self._vocabulary = lm.vocabulary
        self._system = system
        self._settings = settings
        self.reset()
        self.templated = render(lm.vocabulary, [*self.messages, _message("user", "Hello")]).templated
        if not self.templated:
            stop = settings.get("stop") or ()
            self._settings = settings | {"stop": (STOP, *((stop,) if isinstance(stop, str) else stop))}

    def reset(self) -> None:
        """Forget every turn; the system's words stay."""
        self.messages: list[dict[str, str]] = [_message("system", self._system)] if self._system else []
        self.replies: list[Generation] = []
        self._tokens: list[int] = []
        self._text = ""

    def reply(self, said: str) -> Generator[Piece, None, None]:
        """The model's reply as it becomes certain. The turn counts once the reply has come to its end, and its record
        is then the last of `replies`; closed before, the conversation stands as if nothing had been said."""
        messages = [*self.messages, _message("user", said)]
        rendered = render(self._vocabulary, messages).text
        limit = self._lm.target.context_length
        if limit is not None:
            self._vocabulary.refuse_beyond(rendered, limit)
        prompt = self._encode(rendered)
        if limit is not None and len(prompt) >= limit:
            raise InputError(
                f"the conversation has {len(prompt)} tokens and the model's context holds {limit}; start a new one"
            )
        writing = self._lm.write(prompt, **self._settings)
        yield from writing.pieces()
        written = writing.result()
        self.messages = [*messages, _message("assistant", written.text)]
        self.replies.append(written)
        self._keep(rendered, prompt, written)

    def _encode(self, rendered: str) -> list[int]:
        """The tokens of a text that, if it can be, begins with those of the last one."""
        if self._text and rendered.startswith(self._text):
            more = _continuation(self._vocabulary, self._tokens, rendered[len(self._text) :])
            if more is not None:
                return self._tokens + more
        encoded: list[int] = self._vocabulary.encode(rendered, add_special=not self.templated).tolist()
        return encoded

    def _keep(self, rendered: str, prompt: list[int], written: Generation) -> None:
        """Remember the tokens whose text stands: all of prompt and reply but what was cut off at the reply's end, be it
        a stop string or the first bytes of a character."""
        stream, spelled, kept, text = Detokenizer(self._vocabulary, skip_special=False, prefix=prompt), "", 0, ""
        for count, token in enumerate(written.tokens, start=1):
            spelled += stream.push(token)
            open_end = stream.copy().finish()
            if REPLACEMENT not in open_end and written.text.startswith(spelled + open_end):
                kept, text = count, spelled + open_end
        self._tokens, self._text = prompt + written.tokens[:kept], rendered + text


def _message(role: str, content: str | None) -> dict[str, str]:
    return {"role": role, "content": content or ""}


def _continuation(vocabulary: Vocabulary, tokens: Sequence[int], text: str) -> list[int] | None:
    """Tokens that spell ``text`` behind ``tokens``, or None where the tokenizer has no way to."""
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
