"""The entries of a dictionary as the sections of its file, and back; nothing in a section is believed.

What follows a key is mostly what follows the key that its next token leads to: behind "обов" stands "'яз", behind
"обов'яз" stands "ковий", and so "'язковий" need not be told behind "обов". An entry tells its next token; the tokens
after it only if the key that is reached is no entry (an *end*), or one that goes on in another way (a *stray*: no
corpus makes any, but a table may be made by hand).

Keys are told in ascending order, for many are the beginning of the next one; all else in the order of the table, in
which keys with the same ending, which often propose the same, are neighbours. Each is what packs best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary.statistics import LONGEST, NOWHERE, hashed
from paceline.dictionary.table import Table, ascending, different

Tokens = NDArray[np.int32]
Indices = NDArray[np.int64]
COLUMNS = np.arange(LONGEST)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much of what a dictionary's file holds."""

    entries: int
    completions: int
    """Different ones."""
    highest: int
    """The highest token id."""
    longest_prefix: int
    longest_completion: int
    alphabet: int
    """Different tokens."""
    key_tokens: int
    """Those that are told: of a key, what it has not in common with the one before it."""
    ends: int
    """Entries whose completions are told behind the first token."""
    strays: int
    """Of these, how many lead to another entry all the same."""
    tail_tokens: int
    """Those of what is told."""

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


def pack(table: Table, longest_prefix: int, longest_completion: int) -> tuple[Sizes, dict[str, bytes]]:
    """The sections of a table's file."""
    texts = table.texts[table.completions]
    keys = _told_forwards(table.prefixes)
    alphabet = np.union1d(table.prefixes[table.prefixes >= 0], texts[texts >= 0])
    shared = np.zeros(len(table), np.int64)
    if len(table) > 1:
        same = np.cumprod((keys[1:] == keys[:-1]) & (keys[1:] != NOWHERE), axis=1)
        shared[1:] = same.sum(axis=1)
    fresh = keys[(shared[:, None] <= COLUMNS) & (keys != NOWHERE)]
    reached = _reached(table.prefixes, texts[:, 0], longest_prefix)
    told = (reached == NOWHERE) | (_onward(texts, reached, longest_completion) != texts).any(axis=1)
    strays = np.flatnonzero(told & (reached != NOWHERE))
    lengths = (texts[told, 1:] != NOWHERE).sum(axis=1)
    sizes = Sizes(
        entries=len(table),
        completions=len(table.texts),
        highest=table.highest,
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
        "levels": (table.first << 4 | table.rest).astype(np.uint8).tobytes(),
        "firsts": places(texts[:, 0]),
        "strays": strays.astype("<u4").tobytes(),
        "lengths": lengths.astype(np.uint8).tobytes(),
        "tails": places(texts[told, 1:]),
    }


def unpack(sizes: Sizes, parts: Mapping[str, bytes]) -> Table:
    """The table of sections that are as long as they should be; one clause says why there is none."""
    for complaint in _complaints(sizes, parts):
        raise ValueError(complaint)
    alphabet = np.frombuffer(parts["alphabet"], "<u4").astype(np.int32)
    kind = f"<u{sizes.width}"
    shared, lengths = _shapes(parts)
    keys = _unshared(shared, lengths, np.frombuffer(parts["keys"], kind).astype(np.int32))
    if not _ascending(keys, shared):
        raise ValueError("its entries are out of order")
    levels = np.frombuffer(parts["levels"], np.uint8)
    prefixes = _as_in_a_table(_spelled(alphabet, keys[keys != NOWHERE]), lengths)
    firsts = _spelled(alphabet, np.frombuffer(parts["firsts"], kind))
    texts = _completed(sizes, prefixes, firsts, parts, _spelled(alphabet, np.frombuffer(parts["tails"], kind)))
    completions, which = different(texts)
    if len(completions) != sizes.completions:
        raise ValueError("it has another number of completions than it says")
    return Table(
        prefixes=prefixes,
        completions=which,
        first=(levels >> 4).astype(np.uint8),
        rest=(levels & 15).astype(np.uint8),
        texts=completions,
    )


def _told_forwards(prefixes: Tokens) -> Tokens:
    """The keys, ascending, left-aligned."""
    there = prefixes != NOWHERE
    keys = np.full_like(prefixes, NOWHERE)
    keys[there.sum(axis=1)[:, None] > COLUMNS] = prefixes[there]
    return keys[ascending(keys)]


def _as_in_a_table(tokens: Tokens, lengths: Indices) -> Tokens:
    """Keys of so many tokens each, right-aligned, in the order of a table."""
    prefixes = np.full((len(lengths), LONGEST), NOWHERE, np.int32)
    prefixes[LONGEST - lengths[:, None] <= COLUMNS] = tokens
    return prefixes[ascending(prefixes[:, ::-1])]


def _completed(sizes: Sizes, prefixes: Tokens, firsts: Tokens, parts: Mapping[str, bytes], tails: Tokens) -> Tokens:
    """The whole completions."""
    reached = _reached(prefixes, firsts, sizes.longest_prefix)
    told = reached == NOWHERE
    strays = np.frombuffer(parts["strays"], "<u4").astype(np.int64)
    if told[strays].any():
        raise ValueError("an entry strays from one that it does not lead to")
    told[strays] = True
    lengths = np.frombuffer(parts["lengths"], np.uint8).astype(np.int64)
    if told.sum() != len(lengths):
        raise ValueError("it has another number of ends than it says")
    texts = np.full((len(firsts), LONGEST), NOWHERE, np.int32)
    texts[:, 0] = firsts
    ends = np.full((len(lengths), LONGEST - 1), NOWHERE, np.int32)
    ends[COLUMNS[:-1] < lengths[:, None]] = tails
    texts[told, 1:] = ends
    going, longest = np.flatnonzero(~told), sizes.longest_completion
    for _ in range(longest - 1):  # each time one more token of what is not told is right
        texts[going, 1:longest] = texts[reached[going], : longest - 1]
    return texts


def _onward(texts: Tokens, reached: Indices, longest: int) -> Tokens:
    """Each entry's first token, and behind it what the entry proposes that it leads to; meaningless without one."""
    found = np.full_like(texts, NOWHERE)
    found[:, 0] = texts[:, 0]
    if len(texts):
        found[:, 1:longest] = texts[reached, : longest - 1]
    return found


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


def _spelled(alphabet: Tokens, places: NDArray[Any]) -> Tokens:
    """The tokens at some places of an alphabet, which may be empty where they are."""
    return alphabet[places] if len(alphabet) else np.zeros(places.shape, np.int32)


def _shapes(parts: Mapping[str, bytes]) -> tuple[Indices, Indices]:
    """How many tokens each key shares with the one before it, and how many it has."""
    shapes = np.frombuffer(parts["shapes"], np.uint8)
    return (shapes >> 4).astype(np.int64), (shapes & 15).astype(np.int64)


def _complaints(sizes: Sizes, parts: Mapping[str, bytes]) -> Iterator[str]:
    """What does not hold of sections whose sizes are right."""
    alphabet = np.frombuffer(parts["alphabet"], "<u4").astype(np.int64)
    if len(alphabet) and ((np.diff(alphabet) <= 0).any() or alphabet[-1] > sizes.highest):
        yield "its tokens are out of order"
    kind = f"<u{sizes.width}"
    for name in ("keys", "firsts", "tails"):
        if len(parts[name]) and np.frombuffer(parts[name], kind).max() >= len(alphabet):
            yield f"its {name} hold a token that it has not"
    shared, lengths = _shapes(parts)
    before = np.concatenate([[0], lengths[:-1]]) if len(lengths) else lengths
    if (lengths > sizes.longest_prefix).any() or (shared >= lengths).any() or (shared > before).any():
        yield "its keys have impossible shapes"
    if int((lengths - shared).sum()) != sizes.key_tokens:
        yield "its keys have another number of tokens than it says"
    strays = np.frombuffer(parts["strays"], "<u4").astype(np.int64)
    if len(strays) and ((np.diff(strays) <= 0).any() or strays[-1] >= sizes.entries):
        yield "its strays are out of order"
    tails = np.frombuffer(parts["lengths"], np.uint8).astype(np.int64)
    if len(tails) and tails.max() >= sizes.longest_completion:
        yield "a completion has an impossible length"
    if int(tails.sum()) != sizes.tail_tokens:
        yield "its completions have another number of tokens than it says"


def _unshared(shared: Indices, lengths: Indices, fresh: Tokens) -> Tokens:
    """Keys from what each has not in common with the one before: column by column, what is shared is what was told
    last."""
    keys = np.full((len(lengths), LONGEST), NOWHERE, np.int32)
    starts = np.cumsum(lengths - shared) - (lengths - shared)
    rows = np.arange(len(lengths))
    for column in range(LONGEST):
        told = np.flatnonzero((shared <= column) & (column < lengths))
        keys[told, column] = fresh[starts[told] + column - shared[told]]
        last = np.maximum.accumulate(np.where(shared <= column, rows, 0))
        held = np.flatnonzero((shared > column) & (column < lengths))
        keys[held, column] = keys[last[held], column]
    return keys


def _ascending(keys: Tokens, shared: Indices) -> bool:
    """Whether each key is after the one before it, from the first token on that they are said not to share."""
    rows = np.arange(1, len(keys))
    return bool((keys[rows, shared[1:]] > keys[rows - 1, shared[1:]]).all())
