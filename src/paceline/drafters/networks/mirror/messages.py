"""Messages between a text's process and the process that drafts for it: JSON, which the standard library's `Connection`
carries message by message.

Nothing is unpickled. An invalid message is `Mangled`, and its receiver then ignores the other side.

A window holds tokens and no laws. Under the rejection rule a law that tokens were sampled from decides what is
accepted, and a law from another process can be checked for its form, not for its truth: where the tokens were not
drawn from it, the text follows another law. So windows are the likeliest tokens, which either rule takes as they are,
and no answer of the process can change the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from paceline.tree import ROOT, DraftTree, Floats, Ints

MOST_ANSWERED = 1 << 20
"""Bytes that a message of the process that drafts may have: its windows are small."""

Said = Mapping[str, Any]
NOTHING: Said = MappingProxyType({})


class MessageKind(StrEnum):
    """The sender, and the kind of message."""

    READY = "ready"
    FAILED = "failed"
    OPEN = "open"
    AHEAD = "ahead"
    GO = "go"
    CLOSE = "close"
    FORWARD = "forward"
    WINDOW = "window"
    TOKENIZER = "tokenizer"


class Mangled(ValueError):
    """A message that cannot be meant."""


class Message(NamedTuple):
    """``text`` numbers a text, ``place`` is how long it is where that matters."""

    kind: MessageKind
    text: int = 0
    place: int = 0
    said: Said = NOTHING

    def packed(self) -> bytes:
        return json.dumps([*self[:3], dict(self.said)], allow_nan=False, default=_number).encode()

    @classmethod
    def of(cls, raw: bytes) -> Message:
        try:
            kind, text, place, said = json.loads(raw)
            message = cls(MessageKind(kind), text, place, said)
        except (ValueError, TypeError, RecursionError) as error:
            raise Mangled(f"a message cannot be read: {error}") from None
        if not (isinstance(text, int) and isinstance(place, int) and isinstance(said, dict)):
            raise Mangled(f"a message is about text {text!r}, place {place!r} and says {type(said).__name__}")
        return message


def _number(value: Any) -> int | float:
    """Numbers of numpy."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def count(said: Said, name: str) -> int:
    """A whole number."""
    if type(found := said.get(name)) is not int:
        raise Mangled(f"{name} is {found!r}, no whole number")
    return found


def ints(said: Said, name: str) -> Ints:
    return _array(said, name, "biu").astype(np.int64)


def floats(said: Said, name: str) -> Floats:
    return _array(said, name, "biuf").astype(np.float64)


def _array(said: Said, name: str, kinds: str) -> np.ndarray[Any, Any]:
    try:
        found = np.asarray(said[name])
    except (KeyError, ValueError) as error:
        raise Mangled(f"{name} is no list of numbers: {error}") from None
    if found.ndim != 1 or (found.size and found.dtype.kind not in kinds):
        raise Mangled(f"{name} is no list of numbers")
    return found


def _checked_tree(tokens: Ints, parents: Ints, size: int) -> None:
    if len(tokens) != len(parents):
        raise Mangled(f"a tree has {len(tokens)} tokens and {len(parents)} parents")
    inside = ((tokens >= 0) & (tokens < size)).all()
    above = ((parents >= ROOT) & (parents < np.arange(len(parents)))).all()
    if not (inside and above):
        raise Mangled("a tree has foreign tokens or parents behind their children")


@dataclass(frozen=True)
class Ahead:
    """Draft windows of ``levels`` tokens for outcomes: that the text follows the tree in flight up to ``stops`` and
    goes on with ``proxies``."""

    levels: int
    tokens: Ints
    parents: Ints
    stops: Ints
    proxies: Ints

    def said(self) -> Said:
        lists = {name: getattr(self, name).tolist() for name in ("tokens", "parents", "stops", "proxies")}
        return {"levels": self.levels, **lists}

    @classmethod
    def of(cls, said: Said, size: int) -> Ahead:
        ahead = cls(count(said, "levels"), *(ints(said, name) for name in ("tokens", "parents", "stops", "proxies")))
        _checked_tree(ahead.tokens, ahead.parents, size)
        stops, proxies = ahead.stops, ahead.proxies
        inside = len(stops) == len(proxies) and ((stops >= ROOT) & (stops < len(ahead.tokens))).all()
        if ahead.levels < 0 or not (inside and ((proxies >= 0) & (proxies < size)).all()):
            raise Mangled("an outcome stops behind its tree or goes on with a foreign token")
        return ahead


@dataclass(frozen=True)
class Go:
    """These tokens followed; draft a window of ``levels`` tokens."""

    levels: int
    tokens: Ints

    def said(self) -> Said:
        return {"levels": self.levels, "tokens": self.tokens.tolist()}

    @classmethod
    def of(cls, said: Said, size: int) -> Go:
        go = cls(count(said, "levels"), ints(said, "tokens"))
        if go.levels < 0 or not ((go.tokens >= 0) & (go.tokens < size)).all():
            raise Mangled("a text goes on with foreign tokens")
        return go


@dataclass(frozen=True)
class Forward:
    """One forward of the draft model: its seconds, and the rows of all texts in it."""

    seconds: float
    rows: int

    def said(self) -> Said:
        return {"seconds": [self.seconds], "rows": self.rows}

    @classmethod
    def of(cls, said: Said) -> Forward:
        rows, seconds = count(said, "rows"), floats(said, "seconds")
        if not (len(seconds) == 1 and 0 <= seconds[0] < np.inf and rows > 0):
            raise Mangled("a forward without rows, or in no time that there is")
        return cls(float(seconds[0]), rows)


@dataclass(frozen=True)
class Window:
    """A draft. ``ready`` is how many of its levels were drafted before it was known to be needed; -1 if none of the
    outcomes that were drafted ahead came."""

    tree: DraftTree
    ready: int = -1
    forwards: int = 0
    drafted: int = 0
    """The work of the draft model since the last window: forwards, and tokens, also those of other outcomes."""
    inside: int = 0
    """How many of the last tokens of the text were a part of the window of another outcome, of which this is the rest;
    0 where the text came to the outcome itself."""

    def said(self) -> Said:
        tree = self.tree
        lists = {name: getattr(tree, name).tolist() for name in ("tokens", "parents", "scores")}
        counts = {name: getattr(self, name) for name in ("ready", "forwards", "drafted", "inside")}
        return {**counts, **lists}

    @classmethod
    def of(cls, said: Said, size: int, most: int, source: str) -> Window:
        """``size`` tokens are known, and ``most`` nodes were asked for."""
        ready, *counts = (count(said, name) for name in ("ready", "forwards", "drafted", "inside"))
        tokens, parents, scores = ints(said, "tokens"), ints(said, "parents"), floats(said, "scores")
        if len(tokens) > most or ready < -1 or min(counts) < 0:
            raise Mangled(f"a window has {len(tokens)} nodes where {most} were asked for")
        _checked_tree(tokens, parents, size)
        if len(scores) != len(tokens) or not (scores <= 0).all():
            raise Mangled("a token is without a score, or likelier than certain")
        return cls(DraftTree.build(tokens, parents, source=source, scores=scores), ready, *counts)
