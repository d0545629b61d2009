"""Text from ids, one id at a time.

Two promises, for every sequence of ids, sensible or not:

- text that was returned is never taken back: it is a beginning of the tokenizer's own decode of the whole sequence, and
  with `finish` it is all of it;
- no half characters: bytes wait until they make a character, or until no continuation can make them one.

When text is certain depends on how a tokenizer repairs invalid bytes:

- byte-level decoders put one U+FFFD for each maximal invalid stretch and go on at the next possible character, so every
  character is certain with its last byte;
- byte-fallback decoders judge a *run* of byte tokens as a whole. If any byte of it is wrong, each byte of the run
  becomes a U+FFFD, also those that were good characters. So a run that is valid so far waits until a token of another
  kind ends it, and a run that has gone wrong is returned at once, byte by byte. `unsettled` shows the characters that
  wait.

An opaque decoder gives no such guarantees, so with one both promises hold for ordinary text only.
"""

from __future__ import annotations

import copy
from codecs import utf_8_decode
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Self

from paceline.vocabulary.spelling import Piece, PieceTable

if TYPE_CHECKING:
    from paceline.vocabulary.tokens import Vocabulary

REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one growing sequence.

    `prefix` is the beginning of the sequence (a prompt): its text is not returned, and what follows is spelled as a
    continuation, so that the space before a first word survives. A character whose first bytes are in the prefix is
    returned with the token that completes it.
    """

    __slots__ = ("_text",)

    def __init__(self, vocabulary: Vocabulary, skip_special: bool = True, prefix: Iterable[int] = ()) -> None:
        table = vocabulary.table
        self._text: PieceText | OpaqueText
        if table is not None:
            self._text = PieceText(table, skip_special)
        else:
            self._text = OpaqueText(lambda ids: vocabulary.text(ids, skip_special=skip_special))
        self._text.prime([int(token) for token in prefix])

    def push(self, token: int) -> str:
        """The text that has become certain with `token`; it may be empty."""
        return self._text.push(token)

    def unsettled(self, since: int = 0) -> str:
        """The characters, from number `since`, that are text if the sequence ends here and may become U+FFFD if it goes
        on. Changes nothing."""
        return self._text.unsettled(since)

    def finish(self) -> str:
        """The rest of the text, now that no token follows."""
        return self._text.finish()

    def copy(self) -> Self:
        """An independent detokenizer in the same state."""
        twin = copy.copy(self)
        twin._text = self._text.copy()
        return twin


class PieceText:
    """The text of tokens that each have their own piece. No field is mutable, so copies are shallow."""

    __slots__ = ("_broken", "_opens", "_pieces", "_run", "_strip", "_table", "_tail", "_waiting")

    def __init__(self, table: PieceTable, skip_special: bool) -> None:
        self._table = table
        self._pieces = table.plain if skip_special else table.all
        self._opens = True
        self._strip = table.spelling.strip_count
        self._tail = b""  # the bytes of an unfinished character
        self._run = ""  # the finished characters of an open byte run
        self._waiting = 0  # bytes since the last returned text
        self._broken = False  # the open run is known to be invalid, and returned so far

    def push(self, token: int) -> str:
        piece = self._piece(token)
        if piece is None:
            return ""
        if self._opens:
            self._opens, piece = False, self._table.opening(token)
        if isinstance(piece, bytes):
            return self._run_on(piece) if self._table.spelling.byte_runs else self._decode(piece)
        text = self._close() + piece if self._waiting or self._broken else piece
        return self._without_lead(text) if self._strip else text

    def finish(self) -> str:
        return self._close()

    def unsettled(self, since: int) -> str:
        return self._run[since:]

    def copy(self) -> Self:
        return copy.copy(self)

    def prime(self, prefix: Sequence[int]) -> None:
        """Read a prefix. Only the tokens since the last one that settles all before it can matter to what follows."""
        start = next((i for i in reversed(range(len(prefix))) if self._settles(prefix[i])), 0)
        for token in prefix[start:]:
            self.push(token)
        self._run, self._waiting = "", len(self._tail)

    def _settles(self, token: int) -> bool:
        """Whether a token surely ends any byte run and leaves nothing to strip."""
        piece = self._piece(token)
        return isinstance(piece, str) and piece.strip(self._table.spelling.strip) != ""

    def _piece(self, token: int) -> Piece | None:
        assert token >= 0, f"token ids are not negative, got {token}"
        return self._pieces[token] if token < len(self._pieces) else None

    def _decode(self, raw: bytes) -> str:
        """Byte-level: everything but an unfinished last character."""
        raw = self._tail + raw
        text, used = utf_8_decode(raw, "replace", False)
        self._tail = raw[used:]
        self._waiting = len(self._tail)
        return text

    def _run_on(self, raw: bytes) -> str:
        """Byte fallback: nothing while the run is valid; U+FFFD for all of its bytes once it is not."""
        if self._broken:
            return REPLACEMENT * len(raw)
        self._waiting += len(raw)
        raw = self._tail + raw
        try:
            text, used = utf_8_decode(raw, "strict", False)
        except UnicodeDecodeError:
            text = REPLACEMENT * self._waiting
            self._tail, self._run, self._waiting, self._broken, self._strip = b"", "", 0, True, 0
            return text
        self._tail = raw[used:]
        self._run += self._without_lead(text)
        return ""

    def _close(self) -> str:
        """The text of the bytes that waited, now that no byte of theirs can follow."""
        text = self._run
        if self._tail:
            whole_run = self._table.spelling.byte_runs
            text = REPLACEMENT * self._waiting if whole_run else utf_8_decode(self._tail, "replace", True)[0]
        self._tail, self._run, self._waiting, self._broken = b"", "", 0, False
        return text

    def _without_lead(self, text: str) -> str:
        """The text without the strippable characters at its front, if it is the front of the whole text."""
        if not self._strip or not text:
            return text
        bare = text.lstrip(self._table.spelling.strip)
        stripped = min(self._strip, len(text) - len(bare))
        self._strip = self._strip - stripped if not bare else 0
        return text[stripped:]


class OpaqueText:
    """The text of tokens whose decoder only decodes sequences: differences of decodes.

    Each step decodes a window that includes the tokens of the last returned text, so that the decoder joins old and new
    text. The window starts where a returned text ended, hence between two characters. `finish` decodes everything once
    and returns the rest: the whole is the decoder's own text if that only ever grows at the end. What else a decoder
    does cannot be known early.
    """

    __slots__ = ("_decode", "_ids", "_known", "_returned", "_start", "_window")

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._start = 0  # the first token of the window
        self._known = 0  # how many tokens the returned text is made of
        self._window = ""  # the returned text of the window
        self._returned: list[str] = []

    def push(self, token: int) -> str:
        self._ids.append(token)
        window = self._decode(self._ids[self._start :])
        if window.endswith(REPLACEMENT) or not window.startswith(self._window):
            return ""
        fresh = window[len(self._window) :]
        if fresh:
            self._returned.append(fresh)
            self._start, self._known = self._known, len(self._ids)
            self._window = self._decode(self._ids[self._start :])
        return fresh

    def finish(self) -> str:
        returned = "".join(self._returned)
        whole = self._decode(self._ids)
        if whole.startswith(returned):
            return whole[len(returned) :]
        return self._decode(self._ids[self._start :])[len(self._window) :]

    def unsettled(self, since: int) -> str:
        return ""

    def copy(self) -> Self:
        twin = copy.copy(self)
        twin._ids, twin._returned = self._ids.copy(), self._returned.copy()
        return twin

    def prime(self, prefix: Sequence[int]) -> None:
        self._ids = list(prefix)
        text = self._decode(self._ids)
        self._window = text.rstrip(REPLACEMENT)
        self._known = len(prefix) if text == self._window else 0
        self._returned = [self._window]
