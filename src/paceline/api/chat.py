"""A conversation with a model: turns in, replies out."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Unpack

from paceline.api.piece import Piece
from paceline.api.settings import Options, split_settings
from paceline.api.writing import Generation, Writing
from paceline.errors import InputError
from paceline.vocabulary.transcript import Transcripts, render

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel


class Conversation:
    """The turns so far. ``settings`` are those of every reply, as for `LanguageModel.generate`; a turn may have others.

    >>> talk = lm.conversation(system="Be brief.", temperature=0.8)          # doctest: +SKIP
    >>> print(talk.say("Hello"))                                             # doctest: +SKIP
    >>> for piece in talk.stream("And then?"):                               # doctest: +SKIP
    ...     print(piece.text, end="")

    A model with a chat template is prompted through it. Any other model is given a transcript to continue, and is
    stopped before it writes the user's next turn itself. The tokens of earlier turns stay as they were written, so
    that a turn reads only what is new.
    """

    def __init__(self, lm: LanguageModel, *, system: str | None = None, **settings: Unpack[Options]) -> None:
        if lm.vocabulary is None:
            raise InputError(
                f"{lm.target.name} came without a tokenizer, so it cannot chat; put tokenizer.json and "
                "tokenizer_config.json into the model's folder"
            )
        if system is not None and not isinstance(system, str):
            raise InputError(f"system is the message before the first turn, a text, not {system!r}")
        self._lm = lm
        self._vocabulary = lm.vocabulary
        self._system = system
        how, _ = split_settings(settings)  # a misspelt one is refused here
        self._settings = settings
        self.reset()
        first = [*self.messages, {"role": "user", "content": "Hello"}]
        self.templated = render(lm.vocabulary, first, how.chat_template_kwargs).templated
        """Whether the model has a chat template."""

    def __repr__(self) -> str:
        return f"<conversation with {self._lm.target.name}, {len(self.messages)} messages>"

    def reset(self) -> None:
        """Forget every turn; the system's words stay."""
        self.messages: list[dict[str, str]] = [{"role": "system", "content": self._system}] if self._system else []
        """The turns, as `LanguageModel.chat` takes them."""
        self.replies: list[Generation] = []
        """The record of every reply."""
        self._transcripts = Transcripts(self._vocabulary)

    def say(self, text: str, **settings: Unpack[Options]) -> Generation:
        """The model's reply. ``settings`` are this turn's, before those of the conversation."""
        for _ in self.stream(text, **settings):
            pass
        return self.replies[-1]

    def stream(self, text: str, **settings: Unpack[Options]) -> Generator[Piece, None, None]:
        """The model's reply as it becomes certain. The turn counts once the reply has come to its end, and its record
        is then the last of `replies`; closed before, the conversation stands as if nothing had been said."""
        if not isinstance(text, str):
            raise InputError(f"a turn of a conversation is a text, not a {type(text).__name__}")
        messages = [*self.messages, {"role": "user", "content": text}]
        how = self._lm.settings_for(messages, {**self._settings, **settings})
        writing = Writing(self._lm, messages, 0, *how, transcripts=self._transcripts)
        return self._reply(messages, writing)

    def _reply(self, messages: list[dict[str, str]], writing: Writing) -> Generator[Piece, None, None]:
        yield from writing.pieces()
        written = writing.result()
        self.messages = [*messages, {"role": "assistant", "content": written.text}]
        self.replies.append(written)
