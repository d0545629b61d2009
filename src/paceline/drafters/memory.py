"""A bounded memory of the texts that a drafter wrote, the oldest forgotten first.

There are two generations, each of half the size. New texts go into the younger; when that is full it becomes the older
one, and the older one is dropped. So nothing is ever removed from an index, and a memory of *n* tokens always holds the
last n/2 and never more than n.

Several processes may share one file: before it is written, it is read again if another process wrote it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from threading import Lock

import numpy as np

from paceline.drafters.endings import NONE, Endings
from paceline.drafters.tokenfile import WIDEST, TokenHeader
from paceline.errors import InputError
from paceline.files import exclusive, naming
from paceline.files.arrays import ArrayFile, ArrayFormat, checksum
from paceline.files.reading import damaged
from paceline.vocabulary import Vocabulary

MEMORY = ArrayFormat("memory", 2, TokenHeader, {"tokens": "U16 U32"}, "delete it to start over")
BEFORE = b"PACEMEMO"
"""With this a file of version 1 begins."""
FIELDS = struct.Struct("<8sIIQII16s32s44xI")
"""Its header: `BEFORE`, version, bytes of a token, tokens, highest id, texts, tokenizer, SHA-256 of the tokens that
stand behind it, and CRC-32 of the header up to there."""


class Generations:
    """Texts with a border behind each, in two halves. When the younger is full, the older is forgotten."""

    def __init__(self, half: int) -> None:
        self._half = half
        self.older, self.younger = Endings(), Endings()

    def append(self, tokens: list[int]) -> None:
        if self._half < 2 or not tokens:
            return
        tokens = tokens[1 - self._half :]
        if len(self.younger) + len(tokens) + 1 > self._half:
            self.older, self.younger = self.younger, Endings()
        self.younger.extend([*tokens, NONE])


class Memory:
    """An index of texts, shared by all texts of a drafter; kept in a file where one is named."""

    def __init__(self, limit: int, file: str | None = None) -> None:
        self._half = limit // 2
        self._file = file
        self._lock, self._writing = Lock(), Lock()
        self._texts = Generations(self._half)
        self._tokens_of: tuple[str, int] | None = None
        """The tokenizer's fingerprint and the size of the model's vocabulary."""
        self._fresh: list[list[int]] = []
        """Texts that are not in the file."""
        self._digest = ""
        """The digest of the file as it was last read or written here."""
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise InputError(f"cannot keep a memory in {file}: there is no folder {Path(file).parent}")

    def __len__(self) -> int:
        return len(self._texts.older) + len(self._texts.younger)

    def fit(self, vocab_size: int, vocabulary: Vocabulary | None) -> None:
        """Remember texts of this tokenizer, and read the file. Texts of another one are forgotten."""
        fingerprint = "" if vocabulary is None else vocabulary.fingerprint
        if self._tokens_of == (fingerprint, vocab_size):
            return
        self.clear()
        if self._file is not None and Path(self._file).exists():
            self._load(self._file, vocab_size, vocabulary)
        self._tokens_of = fingerprint, vocab_size

    def clear(self) -> None:
        with self._lock:
            self._texts, self._fresh = Generations(self._half), []

    def learn(self, tokens: list[int]) -> None:
        """Remember a text."""
        if not tokens:
            return
        with self._lock:
            self._texts.append(tokens)
            if self._file is not None:
                self._fresh.append(tokens)

    def following(self, ending: list[int], limit: int, count: int) -> list[tuple[list[int], int]]:
        """The tokens after each place that ends like this, up to ``count``, and the size of the match."""
        found: list[tuple[list[int], int]] = []
        with self._lock:
            for endings in (self._texts.younger, self._texts.older):
                for place, size in endings.like(ending, limit - len(found)):
                    tokens = endings.text[place + 1 : place + 1 + count]
                    if NONE in tokens:
                        tokens = tokens[: tokens.index(NONE)]
                    if tokens:
                        found.append((tokens, size))
        return sorted(found, key=lambda entry: -entry[1])

    def save(self) -> None:
        """Write the memory to its file, all of it or nothing."""
        if self._file is None or not self._fresh:
            return
        with self._writing, naming(self._file), exclusive(Path(self._file)):
            if (theirs := self._others(self._file)) is not None:
                self._join(theirs)
            with self._lock:  # others wait for their drafts: what takes long stands outside
                saved = len(self._fresh)
                copies = [endings.text[:] for endings in (self._texts.older, self._texts.younger)]
            tokens = np.array([token + 1 for text in copies for token in text], np.int64)
            header = TokenHeader.of(tokens, "" if self._tokens_of is None else self._tokens_of[0])
            MEMORY.write(self._file, header, {"tokens": tokens.astype(f"u{header.width}")})
            with self._lock:
                del self._fresh[:saved]
            self._digest = _opened(self._file).digest

    def _join(self, theirs: list[list[int]]) -> None:
        """Put what is not in the file behind what another process wrote there."""
        joined, known = Generations(self._half), self._fresh[:]
        for text in (*theirs, *known):
            joined.append(text)
        with self._lock:
            for text in self._fresh[len(known) :]:
                joined.append(text)
            self._texts = joined

    def _others(self, file: str) -> list[list[int]] | None:
        """The texts of the file, if another process wrote it since it was read or written here."""
        if self._tokens_of is None or not Path(file).exists():
            return None
        found = _opened(file)
        if found.digest == self._digest:
            return None
        fingerprint, vocab_size = self._tokens_of
        if fingerprint not in ("", found.description.tokenizer) or found.description.highest >= vocab_size:
            raise InputError(f"{file} holds the tokens of another model by now; name another file")
        return _texts(found)

    def _load(self, file: str, vocab_size: int, vocabulary: Vocabulary | None) -> None:
        found = _opened(file)
        found.description.check(file, vocab_size, vocabulary)
        for text in _texts(found):
            self._texts.append(text)
        self._digest = found.digest


def _texts(file: ArrayFile[TokenHeader]) -> list[list[int]]:
    """The texts of a file from the oldest."""
    texts: list[list[int]] = [[]]
    for token in file.verified()["tokens"].tolist():
        if token:
            texts[-1].append(token - 1)
        else:
            texts.append([])
    return texts[:-1]


def _opened(file: str) -> ArrayFile[TokenHeader]:
    """A file of this version or of the first one."""
    image = MEMORY.map(file)
    return _opened_before(file, image) if image[: len(BEFORE)] == BEFORE else MEMORY.read(file, image)


def _opened_before(file: str, image: memoryview) -> ArrayFile[TokenHeader]:
    with damaged(file, MEMORY.mend):
        if len(image) < FIELDS.size:
            raise ValueError("its header is cut off")
        _, version, width, count, highest, texts, tokenizer, digest, crc32 = FIELDS.unpack(image[: FIELDS.size])
        body = image[FIELDS.size :]
        if zlib.crc32(image[: FIELDS.size - 4]) != crc32 or sha256(body).digest() != digest:
            raise ValueError("it does not agree with its checksums")
        if version != 1 or width not in (2, 4) or len(body) != count * width or highest > WIDEST:
            raise ValueError("its header is not one of version 1")
        header = TokenHeader(tokenizer.rstrip(b"\0").decode("ascii"), texts, highest)
    arrays = {"tokens": np.frombuffer(body, f"<u{width}")}
    return ArrayFile(file, header, arrays, checksum(asdict(header), arrays), digest.hex(), MEMORY.mend)
