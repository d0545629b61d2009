"""The entries of a dictionary as the sections of its file, and back. The reader checks every section.

The completion of a key is mostly its next token and the completion of the longer key: behind "обов" stands "'яз",
behind "обов'яз" stands "ковий", so "'язковий" need not be written behind "обов". An entry stores its next token. It
stores the tokens after that only if the longer key is no entry (an *end*), or is an entry that continues differently (a
*stray*). The rule `token` makes no strays; the rule `paper` makes some, up to 15 in 100 entries.

Keys are written in ascending order, because many are the beginning of the next one. All else is written in the order of
the entries, in which keys with the same ending are neighbours and often propose the same. Each packs best that way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary.entries import Entries, ascending, different
from paceline.dictionary.keys import LONGEST, NOWHERE, Indices, Tokens, hashed
from paceline.files.shape import Bounds

COLUMNS = np.arange(LONGEST)
MOST = 1 << 24
"""Entries, completions and different tokens at most."""
Number = Annotated[int, Bounds(0, MOST)]
TokenNumber = Annotated[int, Bounds(0, MOST * LONGEST)]
Length = Annotated[int, Bounds(1, LONGEST)]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The numbers that the sizes of a file's sections follow from."""

    entries: Number
    completions: Number
    """Different ones."""
    highest: Annotated[int, Bounds(0, 2**31 - 1)]
    """The highest token id."""
    longest_prefix: Length
    longest_completion: Length
    alphabet: Number
    """Different tokens."""
    key_tokens: TokenNumber
    """Written tokens of keys: those that a key does not share with the one before it."""
    ends: Number
    """Entries whose completions are written behind the first token."""
    strays: Number
    """How many of these lead to another entry all the same."""
    tail_tokens: TokenNumber
    """Written tokens of completions, without the first ones."""

    @property
    def width(self) -> int:
        """Bytes of a token's place in the alphabet."""
        return 2 if self.alphabet <= 2**16 else 4

    @property
    def sections(self) -> dict[str, int]:
        """Their sizes in bytes, in the order of the file."""
        return {
            "alphabet": 4 * self.alphabet,
            "shapes": self.entries,
            "keys": self.width * self.key_tokens,
            "levels": self.entries,
            "firsts": self.width * self.entries,
            "strays": 4 * self.strays,
            "lengths": self.ends,
            "tails": self.width * self.tail_tokens,
        }


def pack(entries: Entries, longest_prefix: int, longest_completion: int) -> tuple[Sizes, dict[str, bytes]]:
    """The sections of a file of these entries."""
    texts = entries.texts[entries.completions]
    keys = np.full_like(entries.prefixes, NOWHERE)
    there = entries.prefixes != NOWHERE
    keys[there.sum(axis=1)[:, None] > COLUMNS] = entries.prefixes[there]
    keys = keys[ascending(keys)]
    alphabet = np.union1d(keys[keys >= 0], texts[texts >= 0])
    shared = np.zeros(len(entries), np.int64)
    if len(entries) > 1:
        shared[1:] = np.cumprod((keys[1:] == keys[:-1]) & (keys[1:] != NOWHERE), axis=1).sum(axis=1)
    fresh = keys[(shared[:, None] <= COLUMNS) & (keys != NOWHERE)]
    reached = _reached(entries.prefixes, texts[:, 0], longest_prefix)
    onward = np.full_like(texts, NOWHERE)
    onward[:, 1:longest_completion] = texts[reached, : longest_completion - 1]
    written = (reached == NOWHERE) | (onward[:, 1:] != texts[:, 1:]).any(axis=1)
    strays = np.flatnonzero(written & (reached != NOWHERE))
    lengths = (texts[written, 1:] != NOWHERE).sum(axis=1)
    sizes = Sizes(
        entries=len(entries),
        completions=len(entries.texts),
        highest=entries.highest,
        longest_prefix=longest_prefix,
        longest_completion=longest_completion,
        alphabet=len(alphabet),
        key_tokens=len(fresh),
        ends=len(lengths),
        strays=len(strays),
        tail_tokens=int(lengths.sum()),
    )

    def places(tokens: NDArray[Any]) -> bytes:
        found = np.searchsorted(alphabet, tokens[tokens != NOWHERE])
        return bytes(found.astype(f"<u{sizes.width}"))

    return sizes, {
        "alphabet": alphabet.astype("<u4").tobytes(),
        "shapes": (shared << 4 | (keys != NOWHERE).sum(axis=1)).astype(np.uint8).tobytes(),
        "keys": places(fresh),
        "levels": (entries.first << 4 | entries.rest).astype(np.uint8).tobytes(),
        "firsts": places(texts[:, 0]),
        "strays": strays.astype("<u4").tobytes(),
        "lengths": lengths.astype(np.uint8).tobytes(),
        "tails": places(texts[written, 1:]),
    }


@dataclass(frozen=True)
class _Sections:
    """The numbers in the sections of a file."""

    alphabet: Indices
    shared: Indices
    """Tokens that each key shares with the one before it."""
    lengths: Indices
    """Tokens of each key."""
    keys: NDArray[Any]
    """Places in the alphabet, as in `firsts` and `tails`."""
    levels: NDArray[np.uint8]
    firsts: NDArray[Any]
    strays: Indices
    ends: Indices
    """Tokens behind the first of each completion that is written."""
    tails: NDArray[Any]

    @classmethod
    def of(cls, sizes: Sizes, parts: Mapping[str, bytes]) -> _Sections:
        def numbers(name: str, width: int) -> NDArray[Any]:
            return np.frombuffer(parts[name], f"<u{width}")

        shapes = numbers("shapes", 1).astype(np.int64)
        return cls(
            alphabet=numbers("alphabet", 4).astype(np.int64),
            shared=shapes >> 4,
            lengths=shapes & 15,
            keys=numbers("keys", sizes.width),
            levels=numbers("levels", 1),
            firsts=numbers("firsts", sizes.width),
            strays=numbers("strays", 4).astype(np.int64),
            ends=numbers("lengths", 1).astype(np.int64),
            tails=numbers("tails", sizes.width),
        )

    def faults(self, sizes: Sizes) -> Iterator[str]:
        """The faults in sections of the right sizes."""
        if (np.diff(self.alphabet) <= 0).any() or (self.alphabet > sizes.highest).any():
            yield "its tokens are out of order"
        for name in ("keys", "firsts", "tails"):
            if (getattr(self, name) >= len(self.alphabet)).any():
                yield f"its {name} hold a token that it has not"
        before = np.concatenate([[0], self.lengths[:-1]])[: len(self.lengths)]
        if (
            (self.lengths > sizes.longest_prefix).any()
            or (self.shared >= self.lengths).any()
            or (self.shared > before).any()
        ):
            yield "its keys have impossible shapes"
        if int((self.lengths - self.shared).sum()) != sizes.key_tokens:
            yield "its keys have another number of tokens than it says"
        if (np.diff(self.strays) <= 0).any() or (self.strays >= sizes.entries).any():
            yield "its strays are out of order"
        if (self.ends >= sizes.longest_completion).any():
            yield "a completion has an impossible length"
        if int(self.ends.sum()) != sizes.tail_tokens:
            yield "its completions have another number of tokens than it says"


def unpack(sizes: Sizes, parts: Mapping[str, bytes]) -> Entries:
    """The entries in sections of the right sizes; otherwise a ValueError that says in a few words what is wrong."""
    found = _Sections.of(sizes, parts)
    for fault in found.faults(sizes):
        raise ValueError(fault)
    alphabet = found.alphabet.astype(np.int32)
    keys = _unshared(found.shared, found.lengths, found.keys)
    rows = np.arange(1, len(keys))
    if not (keys[rows, found.shared[1:]] > keys[rows - 1, found.shared[1:]]).all():
        raise ValueError("its entries are out of order")
    prefixes = np.full((len(keys), LONGEST), NOWHERE, np.int32)
    prefixes[LONGEST - found.lengths[:, None] <= COLUMNS] = alphabet[keys[keys != NOWHERE]]
    prefixes = prefixes[ascending(prefixes[:, ::-1])]
    texts = _completed(sizes, prefixes, alphabet[found.firsts], found, alphabet[found.tails])
    completions, which = different(texts)
    if len(completions) != sizes.completions:
        raise ValueError("it has another number of completions than it says")
    return Entries(
        prefixes=prefixes,
        completions=which,
        first=found.levels >> np.uint8(4),
        rest=found.levels & np.uint8(15),
        texts=completions,
    )


def _unshared(shared: Indices, lengths: Indices, fresh: NDArray[Any]) -> Tokens:
    """Whole keys: column by column, a shared token is the one that was written last."""
    keys = np.full((len(lengths), LONGEST), NOWHERE, np.int32)
    starts = np.cumsum(lengths - shared) - (lengths - shared)
    rows = np.arange(len(lengths))
    for column in range(LONGEST):
        written = np.flatnonzero((shared <= column) & (column < lengths))
        keys[written, column] = fresh[starts[written] + column - shared[written]]
        last = np.maximum.accumulate(np.where(shared <= column, rows, 0))
        held = np.flatnonzero((shared > column) & (column < lengths))
        keys[held, column] = keys[last[held], column]
    return keys


def _completed(sizes: Sizes, prefixes: Tokens, firsts: Tokens, found: _Sections, tails: Tokens) -> Tokens:
    """Whole completions."""
    reached = _reached(prefixes, firsts, sizes.longest_prefix)
    written = reached == NOWHERE
    if written[found.strays].any():
        raise ValueError("an entry strays from one that it does not lead to")
    written[found.strays] = True
    if written.sum() != len(found.ends):
        raise ValueError("it has another number of ends than it says")
    texts = np.full((len(firsts), LONGEST), NOWHERE, np.int32)
    texts[:, 0] = firsts
    ends = np.full((len(found.ends), LONGEST - 1), NOWHERE, np.int32)
    ends[COLUMNS[:-1] < found.ends[:, None]] = tails
    texts[written, 1:] = ends
    going, longest = np.flatnonzero(~written), sizes.longest_completion
    for _ in range(longest - 1):  # each time one more token of the unwritten ones is right
        texts[going, 1:longest] = texts[reached[going], : longest - 1]
    return texts


def _reached(prefixes: Tokens, firsts: Tokens, longest: int) -> Indices:
    """The entry that each leads to: the one whose key is its own and its next token; `NOWHERE` if there is none."""
    led = np.concatenate([prefixes[:, 1:], firsts[:, None]], axis=1)
    led[:, :-longest] = NOWHERE
    if not len(led):
        return np.zeros(0, np.int64)
    known, wanted = hashed(prefixes), hashed(led)
    order, sought = np.argsort(known, kind="stable"), np.argsort(wanted)  # in order, seeking is several times faster
    found = np.empty(len(order), np.int64)
    found[sought] = order[np.minimum(np.searchsorted(known[order], wanted[sought]), len(order) - 1)]
    return np.where((prefixes[found] == led).all(axis=1), found, NOWHERE)  # a hash alone proves nothing
