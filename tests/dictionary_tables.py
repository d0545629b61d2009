"""Small dictionaries made by hand, the same looked up without an index, files that lie, and n-grams."""

import hashlib
import json
import lzma
import random
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from paceline.dictionary import file, old
from paceline.dictionary.entries import Entries as Table
from paceline.dictionary.header import DictionaryHeader
from paceline.dictionary.keys import LONGEST, NOWHERE
from paceline.files.arrays import KEY, checksum
from paceline_make.texts.words import TAB, in_python, patterns

Entries = dict[tuple[int, ...], tuple[tuple[int, ...], int, int]]
"""What is proposed behind some tokens, and the levels of the first one's probability and the rest's."""

SAID = {
    "tokenizer": "0123456789abcdef",
    "tokenizer_name": "made-up",
    "language": "uk",
    "licence": "CC0 – без обмежень",
    "order": 3,
    "min_probability": 0.5,
    "longest_prefix": LONGEST,
    "longest_completion": LONGEST,
    "corpus": {"words": 12, "different_ngrams": {"1": 3}},
}


def made_up(seed: int, size: int, ids: Sequence[int]) -> Entries:
    """Entries of few ids, so that many of their keys end each other."""
    dice = random.Random(seed)
    found = Entries()
    while len(found) < size:
        key = tuple(dice.choices(ids, k=dice.randint(1, LONGEST)))
        if len(key) > 2 and found and dice.random() < 0.6:
            key = (*key[: dice.randint(1, 3)], *dice.choice(list(found)))[-LONGEST:]
        found[key] = (tuple(dice.choices(ids, k=dice.randint(1, LONGEST))), dice.randrange(16), dice.randrange(16))
    return found


def walked(seed: int, size: int, ids: Sequence[int]) -> Entries:
    """Entries as a corpus makes them: each goes on as the one that it leads to; some of those are left out."""
    dice = random.Random(seed)
    following = dict[tuple[int, ...], int]()
    text = dice.choices(ids, k=size)
    for end in range(1, size):
        for length in range(1, min(end, LONGEST) + 1):
            following.setdefault(tuple(text[end - length : end]), text[end])
    found = Entries()
    for key in dice.sample(sorted(following), size):
        here, completion = key, list[int]()
        while len(completion) < LONGEST and here in following:
            completion.append(following[here])
            here = (*here, completion[-1])[-LONGEST:]
        found[key] = (tuple(completion), dice.randrange(16), dice.randrange(16))
    return found


def table_of(entries: Entries) -> Table:
    keys = sorted(entries, key=lambda key: key[::-1])
    texts = sorted({text for text, _, _ in entries.values()})
    prefixes = np.full((len(keys), LONGEST), NOWHERE, np.int32)
    completions = np.full((len(texts), LONGEST), NOWHERE, np.int32)
    for row, key in enumerate(keys):
        prefixes[row, LONGEST - len(key) :] = key
    for row, text in enumerate(texts):
        completions[row, : len(text)] = text
    told = [entries[key] for key in keys]
    return Table(
        prefixes=prefixes,
        completions=np.array([texts.index(text) for text, _, _ in told], np.int32),
        first=np.array([first for _, first, _ in told], np.uint8),
        rest=np.array([rest for _, _, rest in told], np.uint8),
        texts=completions,
    )


def write(path: Path, entries: Entries, **said: Any) -> DictionaryHeader:
    return file.write(path, table_of(entries), **{**SAID, **said})


def longest_first(entries: Entries, ending: Sequence[int]) -> list[tuple[int, tuple[int, ...], int, int]]:
    """Every entry that a text ends with, by trying each ending."""
    return [
        (length, *entries[key])
        for length in range(LONGEST, 0, -1)
        if length <= len(ending) and (key := tuple(ending[len(ending) - length :])) in entries
    ]


def taken_apart(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What a file says of itself, and its sections."""
    opened = file.FORMAT.open(path)
    return asdict(opened.description), {name: array.copy() for name, array in opened.arrays.items()}


def sealed(described: Any, sections: Mapping[str, NDArray[Any]], **metadata: Any) -> bytes:
    """A file of these parts, with the checksum that belongs to them, if there can be one."""
    crc32 = 0
    with suppress(ValueError):
        crc32 = checksum(described, sections)
    metadata = {"kind": "dictionary", "version": 4, "crc32": crc32, "description": described, **metadata}
    text = json.dumps(metadata, sort_keys=True, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return save(dict(sections), {KEY: text})


def written_before(described: Mapping[str, Any], sections: Mapping[str, NDArray[Any]], version: int = 3) -> bytes:
    """The same dictionary as earlier versions wrote it."""
    sizes = {
        "alphabet": len(sections["alphabet"]),
        "key_tokens": len(sections["keys"]),
        "ends": len(sections["ends"]),
        "strays": len(sections["strays"]),
        "tail_tokens": len(sections["tails"]),
    }
    shapes = sections["shared"] << np.uint8(4) | sections["lengths"]
    others = ("keys", "levels", "firsts", "strays", "ends", "tails")
    parts = [sections["alphabet"], shapes, *(sections[name] for name in others)]
    text = json.dumps({**sizes, **described}, sort_keys=True, ensure_ascii=False).encode()
    return packed_before(text, b"".join(part.tobytes() for part in parts), version)


def packed_before(text: bytes, whole: bytes, version: int = 3, packed: bytes | None = None) -> bytes:
    """A file of an earlier version, of these sections or of what is packed already."""
    if packed is None:
        packed = lzma.compress(whole, format=lzma.FORMAT_RAW, filters=old.FILTERS)
    digest = hashlib.sha256(text + packed).digest()
    fields = struct.pack("<8sII32sQ4x", old.MAGIC, version, len(text), digest, len(packed))
    return fields + struct.pack("<I", zlib.crc32(fields)) + text + packed


SEGMENT, UNIT, WORD = map(re.compile, patterns(in_python))


def segments(line: str) -> list[list[str]]:
    """The units of each segment of a line."""
    return [UNIT.findall(segment) for segment in SEGMENT.findall(line)]


def ngrams(line: str, order: int) -> Iterator[str]:
    """Every n-gram of a line of up to so many words."""
    for units in segments(line):
        for start in range(len(units)):
            first = WORD.findall(units[start])[0]
            for end in range(start + 1, min(start + order, len(units)) + 1):
                yield TAB.join((first, *units[start + 1 : end]))
