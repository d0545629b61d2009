"""A datastore: the tokens of a corpus, and all its places sorted by the tokens there.

Places are sorted by their next 16 tokens (`KEY`), so all places of a given ending are adjacent and are found by
bisection; they are not compared further. Both arrays stay in the file, which is mapped into memory: opening it costs
nothing, several processes share it, and a search touches a few dozen pages.

A file is safetensors (`files.arrays`): ``tokens``, with `KEY` borders behind the last text, and ``places`` in order.
They are not checked when it is opened. Damaged ones name places that do not exist or do not match: the values read are
cut to the file and to the model's vocabulary, so at worst a draft is refused. `verified` reads all of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from paceline.drafters.sharing import Shared, stamp
from paceline.drafters.tokenfile import TokenHeader
from paceline.errors import DamagedFile, InputError
from paceline.files.arrays import ArrayFormat
from paceline.vocabulary import Vocabulary

DATASTORE = ArrayFormat(
    "datastore",
    2,
    TokenHeader,
    {"tokens": "U16 U32", "places": "U32"},
    "'paceline datastore build' makes one",
)
BEFORE = b"PACEREST"
"""With this a file of version 1 begins."""
KEY = 16
"""Tokens by which places are sorted, and so the length of the longest ending that can be looked up."""
SHORTEST = 2


class Datastore:
    """A datastore's file, open for looking up endings."""

    def __init__(self, path: str) -> None:
        self.path = path
        image = DATASTORE.map(path)
        if image[: len(BEFORE)] == BEFORE:
            again = f"paceline datastore build --text TEXTS --out {path}"
            raise InputError(f"{path} was written by an earlier version of paceline; build it again: {again}")
        self.file = DATASTORE.read(path, image)
        self.header = self.file.description
        self._tokens, self._order = self.file.arrays["tokens"].data, self.file.arrays["places"].data
        if len(self._tokens) != len(self._order) + KEY:
            raise DamagedFile(f"{path} is damaged: it has {len(self._order)} places of {len(self._tokens)} tokens")
        self._vocab_size = self.header.highest + 1

    @classmethod
    def shared(cls, path: str) -> Datastore:
        """The datastore of a file, which all drafters share."""
        return _datastores.get(stamp(path), lambda: cls(path))

    def __len__(self) -> int:
        return len(self._order)

    def check(self, vocab_size: int, vocabulary: Vocabulary | None) -> None:
        """Refuse to draft for another tokenizer."""
        self.header.check(self.path, vocab_size, vocabulary)

    def find(self, ending: list[int], longest: int = KEY, shortest: int = SHORTEST) -> tuple[int, range]:
        """The longest ending of those sizes that is in the corpus: its size, and where in the order its places lie.

        Shorter endings of an ending in the corpus are there, too, so the size is found by bisection as well.
        """
        stored = [token + 1 for token in ending[-longest:]]
        low, high, start = shortest - 1, len(stored), 0  # of size low something is known, of more than high nothing
        while low < high:
            size = (low + high + 1) // 2
            first = self._first(stored[len(stored) - size :])
            if first is None:
                high = size - 1
            else:
                low, start = size, first
        if low < shortest:
            return 0, range(0)
        wanted = stored[len(stored) - low :]
        return low, range(start, bisect_right(self._order, wanted, start, key=lambda place: self._at(place, low)))

    def _at(self, place: int, size: int) -> list[int]:
        return self._tokens[place : place + size].tolist()

    def _first(self, wanted: list[int]) -> int | None:
        size = len(wanted)
        first = bisect_left(self._order, wanted, key=lambda place: self._at(place, size))
        return first if first < len(self._order) and self._at(self._order[first], size) == wanted else None

    def following(
        self,
        ending: list[int],
        limit: int,
        count: int,
        longest: int = KEY,
        shortest: int = SHORTEST,
        *,
        spread: bool = True,
    ) -> list[tuple[list[int], int]]:
        """The tokens after the longest ending that is in the corpus, up to ``count`` from each place, and its size.

        Of more than ``limit`` places, evenly spaced ones are taken: they are sorted by what follows, so each
        continuation is represented by its share. Without ``spread`` the first are taken.
        """
        size, found = self.find(ending, longest, shortest)
        taken: Sequence[int] = found[:limit]
        if spread and len(found) > limit:
            taken = [found[i * len(found) // limit] for i in range(limit)]
        return [(ids, size) for i in taken if (ids := self._ids(self._order[i] + size, count))]

    def _ids(self, start: int, count: int) -> list[int]:
        """The ids from a place on, up to a border or to what is no id of the tokenizer's."""
        ids = [token - 1 for token in self._tokens[start : start + count]]
        for i, token in enumerate(ids):
            if not 0 <= token < self._vocab_size:
                return ids[:i]
        return ids


_datastores: Shared[Datastore] = Shared()
