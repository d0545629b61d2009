"""The entries of a dictionary as the sections of its file, and back. The reader checks every section.

The completion of a key is mostly its next token and the completion of the longer key: behind "обов" stands "'яз",
behind "обов'яз" stands "ковий", so "'язковий" need not be written behind "обов". An entry stores its next token. It
stores the tokens after that only if the longer key is no entry (an *end*), or is an entry that continues differently (a
*stray*). The rule `token` makes no strays; the rule `paper` makes some, up to 15 in 100 entries.

Keys are written in ascending order, because many are the beginning of the next one, which does not repeat it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary.entries import Entries, ascending, different
from paceline.dictionary.header import MOST, DictionaryHeader
from paceline.dictionary.keys import LONGEST, NOWHERE, Indices, Tokens, hashed, places

COLUMNS = np.arange(LONGEST)
Sections = Mapping[str, NDArray[Any]]
TYPES = {
    "alphabet": "U32",
    "shared": "U8",
    "lengths": "U8",
    "keys": "U16 U32",
    "levels": "U8",
    "firsts": "U16 U32",
    "strays": "U32",
    "ends": "U8",
    "tails": "U16 U32",
}
"""The types of the sections; `_Sections` says what they hold."""


def pack(entries: Entries, longest_prefix: int, longest_completion: int) -> Sections:
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
    place = np.uint16 if len(alphabet) <= 2**16 else np.uint32

    def numbered(tokens: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = np.searchsorted(alphabet, tokens[tokens != NOWHERE])
        return found.astype(place)

    return {
        "alphabet": alphabet.astype(np.uint32),
        "shared": shared.astype(np.uint8),
        "lengths": (keys != NOWHERE).sum(axis=1).astype(np.uint8),
        "keys": numbered(fresh),
        "levels": entries.first << np.uint8(4) | entries.rest,
        "firsts": numbered(texts[:, 0]),
        "strays": strays.astype(np.uint32),
        "ends": (texts[written, 1:] != NOWHERE).sum(axis=1).astype(np.uint8),
        "tails": numbered(texts[written, 1:]),
    }


@dataclass(frozen=True)
class _Sections:
    """The arrays of a file."""

    alphabet: Indices
    """The token ids that occur, ascending; elsewhere a token is its place among them."""
    shared: Indices
    """Tokens that each key shares with the one before it. Keys are in ascending order of their first tokens, then of
    the others; continuations are in the order of the keys read backwards."""
    lengths: Indices
    """Tokens of each key."""
    keys: Indices
    """The tokens of each key that it does not share."""
    levels: Indices
    """For each entry the level of the first token's probability (times 16), and of the later ones."""
    firsts: Indices
    """The first token that each entry proposes."""
    strays: Indices
    """The entries that go on in another way than the one that they lead to, ascending."""
    ends: Indices
    """For each stray, and for each entry that leads to none: tokens behind the first."""
    tails: Indices
    """These tokens."""

    def faults(self, header: DictionaryHeader) -> Iterator[str]:
        """The fault of the sections."""
        if (np.diff(self.alphabet) <= 0).any() or (self.alphabet > header.highest).any():
            yield "its tokens are out of order"
        for name in ("keys", "firsts", "tails"):
            if (getattr(self, name) >= len(self.alphabet)).any():
                yield f"its {name} hold a token that it has not"
        before = np.concatenate([[0], self.lengths[:-1]])[: len(self.lengths)]
        if (
            (self.lengths > header.longest_prefix).any()
            or (self.shared >= self.lengths).any()
            or (self.shared > before).any()
        ):
            yield "its keys have impossible shapes"
        if int((self.lengths - self.shared).sum()) != len(self.keys):
            yield "its keys have another number of tokens than it says"
        if (np.diff(self.strays) <= 0).any() or (self.strays >= header.entries).any():
            yield "its strays are out of order"
        if (self.ends >= header.longest_completion).any():
            yield "a completion has an impossible length"
        if int(self.ends.sum()) != len(self.tails):
            yield "its completions have another number of tokens than it says"


def unpack(header: DictionaryHeader, parts: Sections) -> Entries:
    """The entries in sections; a ValueError says in a few words what is wrong with them."""
    _check_sizes(header, parts)
    found = _Sections(**{name: part.astype(np.int64) for name, part in parts.items()})
    for fault in found.faults(header):
        raise ValueError(fault)
    alphabet = found.alphabet.astype(np.int32)
    keys = _unshared(found.shared, found.lengths, found.keys)
    rows = np.arange(1, len(keys))
    if not (keys[rows, found.shared[1:]] > keys[rows - 1, found.shared[1:]]).all():
        raise ValueError("its entries are out of order")
    prefixes = np.full((len(keys), LONGEST), NOWHERE, np.int32)
    prefixes[LONGEST - found.lengths[:, None] <= COLUMNS] = alphabet[keys[keys != NOWHERE]]
    prefixes = prefixes[ascending(prefixes[:, ::-1])]
    texts = _completed(header, prefixes, alphabet[found.firsts], found, alphabet[found.tails])
    completions, which = different(texts)
    if len(completions) != header.completions:
        raise ValueError("it has another number of completions than it says")
    return Entries(
        prefixes=prefixes,
        completions=which,
        first=(found.levels >> 4).astype(np.uint8),
        rest=(found.levels & 15).astype(np.uint8),
        texts=completions,
    )


def _check_sizes(header: DictionaryHeader, parts: Sections) -> None:
    """Refuse sections that are too long for their entries, before they take eight bytes a number."""
    if {len(parts[name]) for name in ("shared", "lengths", "levels", "firsts")} != {header.entries}:
        raise ValueError("it has another number of entries than it says")
    most = {
        "alphabet": MOST,
        "keys": header.entries * header.longest_prefix,
        "strays": header.entries,
        "ends": header.entries,
        "tails": header.entries * (header.longest_completion - 1),
    }
    for name, count in most.items():
        if len(parts[name]) > count:
            raise ValueError(f"its {name} are more than its entries can have")


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


def _completed(header: DictionaryHeader, prefixes: Tokens, firsts: Tokens, found: _Sections, tails: Tokens) -> Tokens:
    """Whole completions."""
    reached = _reached(prefixes, firsts, header.longest_prefix)
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
    going, longest = np.flatnonzero(~written), header.longest_completion
    for _ in range(longest - 1):  # each time one more token of the unwritten ones is right
        texts[going, 1:longest] = texts[reached[going], : longest - 1]
    return texts


def _reached(prefixes: Tokens, firsts: Tokens, longest: int) -> Indices:
    """The entry that each leads to: the one whose key is its own and its next token; `NOWHERE` if there is none."""
    led = np.concatenate([prefixes[:, 1:], firsts[:, None]], axis=1)
    led[:, :-longest] = NOWHERE
    known, wanted = hashed(prefixes), hashed(led)
    order, sought = np.argsort(known, kind="stable"), np.argsort(wanted)  # in order, seeking is several times faster
    found = np.empty(len(order), np.int64)
    found[sought] = np.append(order, NOWHERE)[places(wanted[sought], known[order])]
    proved = (prefixes[found] == led).all(axis=1)  # a hash alone proves nothing
    return np.where(proved & (found != NOWHERE), found, NOWHERE)
