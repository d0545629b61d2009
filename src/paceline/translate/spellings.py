"""A vocabulary as bytes: what its tokens spell in the middle of a text, and which tokens spell some bytes.

A tokenizer encodes whole texts: SentencePiece puts a space before whatever begins, normalisers change combining marks,
and no string holds half a character. A draft begins anywhere. So bytes are encoded by the tokenizer's model itself,
behind its normaliser, and the result is compared with the bytes. What the model does not spell (half a character, a
literal ``▁`` in SentencePiece) is spelled by the longest tokens that fit, single bytes at worst.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.vocabulary import Vocabulary

MARKER = "▁"
"""SentencePiece's sign for a space."""


class Spellings:
    """The ordinary tokens of a vocabulary by their bytes. Special tokens spell nothing: no bytes lead to one."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.table is None:
            raise InputError(
                f"{vocabulary!r} decodes in a way that is not known token by token, so no bytes can be translated; "
                "choose a draft model with the target's tokenizer"
            )
        specials = vocabulary.specials
        self.of: list[bytes] = [
            b"" if token in specials else vocabulary.token_bytes(token) for token in range(vocabulary.size)
        ]
        """The bytes of every id; empty for special and unused ones."""
        self._encoder = _Encoder(vocabulary)
        alike: dict[bytes, list[int]] = {}
        for token, spelled in enumerate(self.of):
            if spelled:
                alike.setdefault(spelled, []).append(token)
        self.longest = max(map(len, alike), default=0)
        pieces = vocabulary.table.all
        self._ids = {
            spelled: min(tokens, key=lambda token: (isinstance(pieces[token], bytes), token))
            for spelled, tokens in alike.items()
        }
        for spelled in [spelled for spelled, tokens in alike.items() if len(tokens) > 1]:
            self._ids[spelled] = self._written(vocabulary, spelled, alike[spelled])

    def _written(self, vocabulary: Vocabulary, spelled: bytes, tokens: Sequence[int]) -> int:
        """Of several tokens for the same bytes, the one that the tokenizer writes, at the end of a text or alone; if it
        writes none of them, a piece before a byte token such as ``<0x79>``."""
        whole = vocabulary.encode(spelled.decode(errors="replace"), add_special=False).tolist()
        own = self.encode(spelled)
        return next((ids[-1] for ids in (whole, own) if ids and ids[-1] in tokens), self._ids[spelled])

    def id_of(self, spelled: bytes) -> int | None:
        """The token of these bytes; of several, the one that the tokenizer writes."""
        return self._ids.get(spelled)

    def spell(self, ids: Sequence[int]) -> bytes:
        """The bytes of tokens in the middle of a text."""
        return b"".join([self.of[token] if token < len(self.of) else b"" for token in ids])

    def beginning(self, data: bytes, start: int = 0) -> Iterator[int]:
        """The tokens that spell the bytes from ``start`` on, shortest first."""
        for end in range(start + 1, min(len(data), start + self.longest) + 1):
            if (token := self._ids.get(data[start:end])) is not None:
                yield token

    def completing(self, data: bytes, most: int) -> list[int]:
        """Tokens that begin with these bytes and go on behind them, those of lowest id first: tokenizers number their
        tokens by how often they are needed."""
        spelled, ids = self._sorted
        first, last = bisect_left(spelled, data), bisect_left(spelled, data + b"\xff" * self.longest)
        longer = ids[first + (first < last and spelled[first] == data) : last]
        return np.sort(longer if len(longer) <= most else np.partition(longer, most)[:most]).tolist()  # type: ignore[no-any-return]

    @cached_property
    def _sorted(self) -> tuple[list[bytes], NDArray[np.int64]]:
        """Bytes in their order, and the tokens of each."""
        spelled = sorted(self._ids)
        return spelled, np.array([self._ids[each] for each in spelled], np.int64)

    def encode(self, data: bytes) -> list[int]:
        """Tokens that spell just these bytes in the middle of a text: the tokenizer's own wherever they are whole
        characters. Bytes that the vocabulary lacks end the result."""
        ids: list[int] = []
        for part in _parts(data):
            if isinstance(part, str):
                ids += self._text(part)
            else:
                ids += self._by_length(part)
        spelled = self.spell(ids)
        return ids if spelled == data else self._by_length(data)

    def _text(self, text: str) -> list[int]:
        if self._encoder.marks and MARKER in text:  # a literal one would be read as a space
            before, _, after = text.partition(MARKER)
            return self._text(before) + self._by_length(MARKER.encode()) + self._text(after)
        found = self._encoder.ids(text)
        raw = text.encode()
        return found if found is not None and self.spell(found) == raw else self._by_length(raw)

    def _by_length(self, data: bytes) -> list[int]:
        """The longest token that fits, and so on."""
        ids: list[int] = []
        start = 0
        while start < len(data):
            for end in range(min(len(data), start + self.longest), start, -1):
                if (token := self._ids.get(data[start:end])) is not None:
                    ids.append(token)
                    start = end
                    break
            else:
                return ids
        return ids


class _Encoder:
    """A tokenizer's model behind its normaliser. The steps before the model are the pre-tokenizer's for tokenizers of
    bytes, and for SentencePiece the marker in place of spaces, without one at the beginning."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        backend: Any = vocabulary.backend
        self._model, self._pre = backend.model, backend.pre_tokenizer
        table = vocabulary.table
        self._bytewise = table is not None and table.spelling.byte_level
        self.marks = not self._bytewise and MARKER in "".join(filter(None, map(backend.id_to_token, range(2000))))

    def ids(self, text: str) -> list[int] | None:
        """The model's tokens; None where it has no way to spell the text."""
        try:
            return [token.id for piece in self._pieces(text) for token in self._model.tokenize(piece)]
        except Exception:  # the tokenizers library raises nothing narrower for a piece without an unknown token
            return None

    def _pieces(self, text: str) -> list[str]:
        if self._bytewise:
            return [text] if self._pre is None else [piece for piece, _ in self._pre.pre_tokenize_str(text)]
        if self.marks:
            return [text.replace(" ", MARKER)]
        return [text] if self._pre is None else [piece for piece, _ in self._pre.pre_tokenize_str(text)]


_WHOLE = re.compile(
    rb"(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})+"
)
"""Bytes that are whole characters of UTF-8."""


def _parts(data: bytes) -> Iterator[str | bytes]:
    """Whole characters as text, what is between them as bytes."""
    start = 0
    for found in _WHOLE.finditer(data):
        if found.start() > start:
            yield data[start : found.start()]
        yield found[0].decode()
        start = found.end()
    if start < len(data):
        yield data[start:]
