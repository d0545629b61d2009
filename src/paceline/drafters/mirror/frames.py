"""What a text's process and the process that drafts for it say to one another: frames of fixed layout over a socket.

A frame is a header with a check sum, and arrays of numbers whose sizes the header or the arrays before them say.
Nothing is unpickled. What does not fit is `Mangled`, and its receiver trusts the other side no more.

A window holds tokens and no laws. Under the rejection rule a law that tokens were sampled from decides what is
accepted, and a law from another process can be checked for its form, not for its truth: where the tokens were not
drawn from it, the text follows another law. So windows are the likeliest tokens, which either rule takes as they are,
and no answer of the process can change the text.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from paceline.tree import ROOT, DraftTree, Floats, Ints

HEADER = struct.Struct("<4sBIII I")
"""Mark, kind, text, place, bytes of the body, check sum of all that."""
MARK = b"pace"
MOST_BYTES = 1 << 28
MOST_ANSWERED = 1 << 20
"""The same of what the process that drafts may say: its windows are small."""


class Kind(IntEnum):
    """Who says it, and what it is."""

    READY = 1
    FAILED = 2
    OPEN = 3
    AHEAD = 4
    GO = 5
    CLOSE = 6
    FORWARD = 7
    WINDOW = 8
    TOKENIZER = 9


KINDS = frozenset(int(kind) for kind in Kind)


class Mangled(ValueError):
    """A frame that cannot be meant."""


class Frame(NamedTuple):
    """``text`` numbers a text, ``place`` is how long it is where that matters."""

    kind: Kind
    text: int
    place: int
    body: bytes

    def packed(self) -> bytes:
        head = HEADER.pack(MARK, self.kind, self.text, self.place, len(self.body), 0)
        return HEADER.pack(MARK, self.kind, self.text, self.place, len(self.body), _sum(head, self.body)) + self.body


def _sum(head: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(head[:-4]))


class Unpacker:
    """Frames from bytes as they arrive, with at most so many bytes in a body."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._waiting, self._most = bytearray(), most

    def feed(self, data: bytes) -> Iterator[Frame]:
        waiting = self._waiting
        waiting += data
        while len(waiting) >= HEADER.size:
            mark, kind, text, place, size, checked = HEADER.unpack_from(waiting)
            if mark != MARK or size > self._most or kind not in KINDS:
                raise Mangled(f"a frame begins with {bytes(waiting[: HEADER.size])!r}")
            if len(waiting) < HEADER.size + size:
                return
            head, body = bytes(waiting[: HEADER.size]), bytes(waiting[HEADER.size : HEADER.size + size])
            if _sum(head, body) != checked:
                raise Mangled(f"a frame of {size} bytes has another check sum")
            del waiting[: HEADER.size + size]
            yield Frame(Kind(kind), text, place, body)


class _Reader:
    """Arrays out of a body, in the order in which they were written."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def ints(self, count: int) -> Ints:
        return self._array(np.dtype("<i4"), count).astype(np.int64)

    def floats(self, count: int) -> Floats:
        return self._array(np.dtype("<f8"), count)

    def _array(self, kind: np.dtype[Any], count: int) -> np.ndarray:
        end = self._at + kind.itemsize * count
        if count < 0 or end > len(self._body):
            raise Mangled(f"a body of {len(self._body)} bytes is to hold {end}")
        found = np.frombuffer(self._body, kind, count, self._at)
        self._at = end
        return found

    def end(self) -> None:
        if self._at != len(self._body):
            raise Mangled(f"{len(self._body) - self._at} bytes stand behind the end of a body")


def _ints(*arrays: Sequence[int] | Ints) -> bytes:
    return b"".join(np.asarray(array, "<i4").tobytes() for array in arrays)


def _checked_tree(tokens: Ints, parents: Ints, size: int) -> None:
    inside = ((tokens >= 0) & (tokens < size)).all()
    above = ((parents >= ROOT) & (parents < np.arange(len(parents)))).all()
    if not (inside and above):
        raise Mangled("a tree has foreign tokens or parents behind their children")


@dataclass(frozen=True)
class Facts:
    """What READY, OPEN and TOKENIZER say in words and numbers, and the tokens of a prompt."""

    values: Mapping[str, Any]
    tokens: Sequence[int] | Ints = ()

    def body(self) -> bytes:
        text = json.dumps(self.values, allow_nan=False).encode()
        return _ints([len(text)]) + text + _ints(self.tokens)

    @classmethod
    def of(cls, body: bytes) -> Facts:
        size = int(_Reader(body).ints(1)[0])
        if not 0 <= size <= len(body) - 4 or (len(body) - 4 - size) % 4:
            raise Mangled("a text of facts is longer than its body")
        try:
            facts = json.loads(body[4 : 4 + size])
        except (ValueError, RecursionError) as error:
            raise Mangled(f"facts cannot be read: {error}") from None
        if not isinstance(facts, dict):
            raise Mangled("facts are no mapping")
        return cls(facts, np.frombuffer(body, "<i4", offset=4 + size).astype(np.int64))


@dataclass(frozen=True)
class Ahead:
    """Draft windows of ``levels`` tokens for outcomes: that the text follows the tree in flight up to ``stops`` and
    goes on with ``proxies``."""

    levels: int
    tokens: Ints
    parents: Ints
    stops: Ints
    proxies: Ints

    def body(self) -> bytes:
        return _ints(
            [self.levels, len(self.tokens), len(self.stops)], self.tokens, self.parents, self.stops, self.proxies
        )

    @classmethod
    def of(cls, body: bytes, size: int) -> Ahead:
        read = _Reader(body)
        levels, nodes, branches = read.ints(3).tolist()
        ahead = cls(levels, read.ints(nodes), read.ints(nodes), read.ints(branches), read.ints(branches))
        read.end()
        _checked_tree(ahead.tokens, ahead.parents, size)
        stops, proxies = ahead.stops, ahead.proxies
        if levels < 0 or not ((stops >= ROOT) & (stops < nodes) & (proxies >= 0) & (proxies < size)).all():
            raise Mangled("an outcome stops behind its tree or goes on with a foreign token")
        return ahead


@dataclass(frozen=True)
class Go:
    """These tokens followed; draft a window of ``levels`` tokens."""

    levels: int
    tokens: Ints

    def body(self) -> bytes:
        return _ints([self.levels, len(self.tokens)], self.tokens)

    @classmethod
    def of(cls, body: bytes, size: int) -> Go:
        read = _Reader(body)
        levels, count = read.ints(2).tolist()
        go = cls(levels, read.ints(count))
        read.end()
        if levels < 0 or not ((go.tokens >= 0) & (go.tokens < size)).all():
            raise Mangled("a text goes on with foreign tokens")
        return go


@dataclass(frozen=True)
class Forward:
    """One forward of the draft model: its seconds, and the rows of all texts in it."""

    seconds: float
    rows: int

    def body(self) -> bytes:
        return _ints([self.rows]) + np.array([self.seconds], "<f8").tobytes()

    @classmethod
    def of(cls, body: bytes) -> Forward:
        read = _Reader(body)
        rows, seconds = int(read.ints(1)[0]), float(read.floats(1)[0])
        read.end()
        if not (0 <= seconds < np.inf and rows > 0):
            raise Mangled("a forward without rows, or in no time that there is")
        return cls(seconds, rows)


@dataclass(frozen=True)
class Window:
    """A draft. ``ready`` is how many of its levels were drafted before it was known to be needed; -1 if none of the
    outcomes that were drafted ahead came."""

    tree: DraftTree
    ready: int = -1
    forwards: int = 0
    drafted: int = 0
    """What the draft model did since the last window: forwards, and tokens, also those of other outcomes."""

    def body(self) -> bytes:
        tree = self.tree
        counts = [self.ready, self.forwards, self.drafted, len(tree)]
        return _ints(counts, tree.tokens, tree.parents) + tree.scores.astype("<f8").tobytes()

    @classmethod
    def of(cls, body: bytes, size: int, most: int, source: str) -> Window:
        """``size`` tokens are known, and ``most`` nodes were asked for."""
        read = _Reader(body)
        ready, forwards, drafted, nodes = read.ints(4).tolist()
        if not 0 <= nodes <= most or ready < -1 or min(forwards, drafted) < 0:
            raise Mangled(f"a window has {nodes} nodes where {most} were asked for")
        tokens, parents, scores = read.ints(nodes), read.ints(nodes), read.floats(nodes)
        read.end()
        _checked_tree(tokens, parents, size)
        if not (scores <= 0).all():
            raise Mangled("a token is likelier than certain")
        return cls(DraftTree.build(tokens, parents, source=source, scores=scores), ready, forwards, drafted)
