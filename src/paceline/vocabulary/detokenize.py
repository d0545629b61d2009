"""Text out of ids, one id at a time.

Two promises, for every sequence of ids, sensible or not:

- what has been returned is never taken back: it is a beginning of the tokenizer's own decode of whatever
  sequence the ids turn out to be, and with `finish` it is all of it;
- no half characters: bytes wait until they make a character, or until no continuation can make them one.

What can be told early follows from how a tokenizer repairs bytes that are no text:

- byte-level decoders put one U+FFFD for each maximal invalid stretch and go on at the next possible
  character, so every character is certain with its last byte;
- byte-fallback decoders judge a *run* of byte tokens as a whole. If any byte of it is wrong, each byte of the
  run becomes a U+FFFD, also those that were good characters. Hence a run that is valid so far stays untold
  until a token of another kind ends it, and a run that has gone wrong is told at once, byte by byte.
  `unsettled` shows the characters that wait for such a verdict.

An opaque decoder promises nothing of the kind, so with one both promises hold for ordinary text only.
"""

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

    `prefix` is what the sequence already holds (a prompt): its text is not repeated, and what follows is
    spelled as a continuation, so that the space before a first word survives. A character whose first bytes
    are in the prefix is returned with the token that completes it.
    """

    __slots__ = ("_text",)

    def __init__(self, vocabulary: "Vocabulary", skip_special: bool = True, prefix: Iterable[int] = ()) -> None:
        table = vocabulary.table
        self._text: PieceText | OpaqueText
        if table is not None:
            self._text = PieceText(table, skip_special)
        else:
            self._text = OpaqueText(lambda ids: vocabulary.text(ids, skip_special=skip_special))
        self._text.prime([int(token) for token in prefix])

    def push(self, token: int) -> str:
        """The text that has become certain with `token`, which may be none."""
        return self._text.push(token)

    def unsettled(self, since: int = 0) -> str:
        """The characters, from number `since`, that are text if the sequence ends here and still may become
        U+FFFD if it goes on. Changes nothing."""
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
    """The text of tokens that each have a piece of their own. No field is mutable, so copies are shallow."""

    __slots__ = ("_broken", "_opens", "_pieces", "_run", "_strip", "_table", "_tail", "_untold")

    def __init__(self, table: PieceTable, skip_special: bool) -> None:
        self._table = table
        self._pieces = table.plain if skip_special else table.all
        self._opens = True
        self._strip = table.spelling.strip_count
        self._tail = b""  # the bytes of an unfinished character
        self._run = ""  # the finished characters of an open byte run
        self._untold = 0  # bytes since the last told text
        self._broken = False  # the open run is known to be invalid, and told so far

    def push(self, token: int) -> str:
        piece = self._piece(token)
        if piece is None:
            return ""
        if self._opens:
            self._opens, piece = False, self._table.opening(token)
        if isinstance(piece, bytes):
            return self._run_on(piece) if self._table.spelling.byte_runs else self._decode(piece)
        text = self._close() + piece if self._untold or self._broken else piece
        return self._without_lead(text) if self._strip else text

    def finish(self) -> str:
        return self._close()

    def unsettled(self, since: int) -> str:
        return self._run[since:]

    def copy(self) -> Self:
        return copy.copy(self)

    def prime(self, prefix: Sequence[int]) -> None:
        """Only the tokens since the last one that settles all before it can matter to what follows."""
        start = next((i for i in reversed(range(len(prefix))) if self._settles(prefix[i])), 0)
        for token in prefix[start:]:
            self.push(token)
        self._run, self._untold = "", len(self._tail)

    def _settles(self, token: int) -> bool:
        """Whether a token surely ends any byte run and leaves nothing to strip."""
        piece = self._piece(token)
        return isinstance(piece, str) and piece.strip(self._table.spelling.strip) != ""

    def _piece(self, token: int) -> Piece | None:
        if not 0 <= token < len(self._pieces):
            assert token >= 0, f"token ids are not negative, got {token}"
            return None
        return self._pieces[token]

    def _decode(self, raw: bytes) -> str:
        """Byte-level: everything but an unfinished last character."""
        raw = self._tail + raw
        text, used = utf_8_decode(raw, "replace", False)
        self._tail = raw[used:]
        self._untold = len(self._tail)
        return text

    def _run_on(self, raw: bytes) -> str:
        """Byte fallback: nothing while the run is valid; U+FFFD for all of its bytes once it is not."""
        if self._broken:
            return REPLACEMENT * len(raw)
        self._untold += len(raw)
        raw = self._tail + raw
        try:
            text, used = utf_8_decode(raw, "strict", False)
        except UnicodeDecodeError:
            return self._break_run()
        self._tail = raw[used:]
        self._run += self._without_lead(text)
        return ""

    def _break_run(self) -> str:
        text = REPLACEMENT * self._untold
        self._tail, self._run, self._untold, self._broken, self._strip = b"", "", 0, True, 0
        return text

    def _close(self) -> str:
        """What is left of the bytes that waited, now that no byte of theirs can follow."""
        text = self._run
        if self._tail:
            whole_run = self._table.spelling.byte_runs
            text = REPLACEMENT * self._untold if whole_run else utf_8_decode(self._tail, "replace", True)[0]
        self._tail, self._run, self._untold, self._broken = b"", "", 0, False
        return text

    def _without_lead(self, text: str) -> str:
        """Takes the strippable characters off the front of the text, if this is its front."""
        if not self._strip or not text:
            return text
        bare = text.lstrip(self._table.spelling.strip)
        stripped = min(self._strip, len(text) - len(bare))
        self._strip = self._strip - stripped if not bare else 0
        return text[stripped:]


class OpaqueText:
    """The text of tokens whose decoder only speaks about sequences: differences of decodes.

    Each step decodes a window that reaches back over the tokens of the last telling, so that the decoder sees
    what joins old and new, and that starts where some telling ended, hence between two characters. `finish`
    decodes everything once and returns what the steps have left: the whole is the decoder's own wherever its
    text only ever grows at the end, and what else it may do cannot be known early.
    """

    __slots__ = ("_decode", "_heard", "_ids", "_start", "_told", "_window_told")

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._start = 0  # the first token of the window
        self._heard = 0  # how many tokens the told text is made of
        self._window_told = ""  # the told text of the window
        self._told: list[str] = []

    def push(self, token: int) -> str:
        self._ids.append(token)
        window = self._decode(self._ids[self._start :])
        if window.endswith(REPLACEMENT) or not window.startswith(self._window_told):
            return ""
        fresh = window[len(self._window_told) :]
        if fresh:
            self._told.append(fresh)
            self._start, self._heard = self._heard, len(self._ids)
            self._window_told = self._decode(self._ids[self._start :])
        return fresh

    def finish(self) -> str:
        told = "".join(self._told)
        whole = self._decode(self._ids)
        if whole.startswith(told):
            return whole[len(told) :]
        return self._decode(self._ids[self._start :])[len(self._window_told) :]

    def unsettled(self, since: int) -> str:
        return ""

    def copy(self) -> Self:
        twin = copy.copy(self)
        twin._ids, twin._told = self._ids.copy(), self._told.copy()
        return twin

    def prime(self, prefix: Sequence[int]) -> None:
        self._ids = list(prefix)
        text = self._decode(self._ids)
        self._window_told = text.rstrip(REPLACEMENT)
        self._heard = len(prefix) if text == self._window_told else 0
        self._told = [self._window_told]
