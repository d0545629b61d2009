"""Special tokens in the text of pieces, which leaves them out."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable

from paceline.api.piece import Piece
from paceline.vocabulary import Detokenizer, Vocabulary


class SpecialNames:
    """Puts the names of special tokens into the text of pieces, each where its token stands.

    The text of a token may come with a later piece: it waits while it may begin a stop string. So a name waits until
    the text before it is there.
    """

    def __init__(self, vocabulary: Vocabulary, names: Iterable[str] | None) -> None:
        """`names` are those that matter, each as a part of them; without, all."""
        wanted = None if names is None else list(names)
        self._names = {
            token: name
            for token in vocabulary.specials
            if (name := str(vocabulary.backend.id_to_token(token)))
            and (wanted is None or any(name in one for one in wanted))
        }
        self._text = Detokenizer(vocabulary, prefix=vocabulary.encode("a", add_special=False)[-1:].tolist())
        self._length = self._seen = 0
        """Characters of the tokens so far, and of the pieces."""
        self._waiting = deque[tuple[int, str]]()
        """Names, and the number of characters before each."""

    @property
    def tokens(self) -> Container[int]:
        """The tokens whose names are put into the text."""
        return self._names

    def text(self, piece: Piece) -> str:
        """The text of a piece, with the names whose place is certain."""
        if not self._names:
            return piece.text
        if piece.token is not None:
            self._length += len(self._text.push(piece.token))
            if piece.token in self._names:
                self._waiting.append((self._length + len(self._text.unsettled()), self._names[piece.token]))
        parts, text = list[str](), piece.text
        while self._waiting and self._waiting[0][0] <= self._seen + len(text):
            place, name = self._waiting.popleft()
            before = max(0, place - self._seen)
            parts += [text[:before], name]
            self._seen, text = self._seen + before, text[before:]
        self._seen += len(text)
        return "".join((*parts, text))
