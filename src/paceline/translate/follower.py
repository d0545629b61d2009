"""A text in the tokens of one tokenizer as it goes on, read in those of another.

The other tokenizer cuts the text in other places, and more text may change its last cuts. So all tokens that a text had
so far stay except the last ones: those from the word on in which the new bytes begin. Only these are read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from paceline.translate.spellings import Spellings

FARTHEST = 16
"""Tokens before the end among which a word's beginning is looked for."""
SPACES = frozenset(b" \n\t\r")


class Follower:
    """One text: its bytes, and the tokens ``ids`` that another vocabulary has for them."""

    def __init__(self, spellings: Spellings, ids: Sequence[int] = (), text: bytes = b"") -> None:
        """``ids`` spell ``text``; the first of them may spell something before it that is no part of the text, as a
        space of SentencePiece, and special tokens spell nothing."""
        self._spellings = spellings
        self.text = bytearray(text)
        self.ids = list(ids)
        self._ends: list[int] = []
        end = len(text)
        for token in reversed(self.ids):
            self._ends.append(end)
            end = max(0, end - len(spellings.of[token]))
        self._ends.reverse()

    def copy(self) -> Follower:
        other = copy(self)
        other.text, other.ids, other._ends = bytearray(self.text), list(self.ids), list(self._ends)
        return other

    def extend(self, more: bytes) -> int:
        """The text goes on. How many of the tokens stay; the others are replaced, and new ones follow."""
        kept = self._settled()
        start = self._ends[kept - 1] if kept else 0
        self.text += more
        tail = self._spellings.encode(bytes(self.text[start:]))
        old = self.ids[kept:]
        same = 0
        while same < min(len(old), len(tail)) and old[same] == tail[same]:
            same += 1
        kept += same
        self.ids[kept:] = tail[same:]
        end = self._ends[kept - 1] if kept else 0
        del self._ends[kept:]
        for token in self.ids[kept:]:
            end += len(self._spellings.of[token])
            self._ends.append(end)
        return kept

    def _settled(self) -> int:
        """The number of tokens before the last word, which more text cannot change."""
        last = len(self.ids)
        for number in range(last - 1, max(-1, last - 1 - FARTHEST), -1):
            spelled = self._spellings.of[self.ids[number]]
            if not spelled:  # a special token stands by itself
                return number + 1
            before = self._spellings.of[self.ids[number - 1]] if number else b""
            if before and spelled[0] in SPACES and before[-1] not in SPACES:
                return number
        return max(0, last - FARTHEST)
