"""Two vocabularies: prompts of one in the tokens of the other, and pairs of equal tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.files.reading import whole_characters
from paceline.translate.follower import Follower
from paceline.translate.spellings import Spellings
from paceline.vocabulary import Vocabulary

Ints = NDArray[np.int64]

WORD_WINDOW = 16
"""Tokens before a draft among which a word's beginning is looked for."""
TAIL = 32
"""Bytes at the end of a prompt that a tokenizer has to leave as they are."""
KEPT = 1 << 16
"""First tokens that are remembered."""
SPACES = frozenset(b" \n\t\r")


class Bridge:
    """The target's vocabulary and the draft model's."""

    def __init__(self, target: Vocabulary, drafter: Vocabulary) -> None:
        self.target, self.drafter = Spellings(target), Spellings(drafter)
        self._target, self._drafter = target, drafter
        self._begun: dict[bytes, int] = {}

    # from the target to the draft model

    def text(self, ids: Sequence[int]) -> bytes:
        """The bytes of a whole text of the target, special tokens left out."""
        table, of = self._target.table, self.target.of
        assert table is not None, "opaque vocabularies have no spellings"
        first = next((place for place, token in enumerate(ids) if token < len(of) and of[token]), len(ids))
        if first == len(ids):
            return b""
        opening = table.opening(ids[first])
        begun = opening.encode() if isinstance(opening, str) else opening
        found = begun + self.target.spell(ids[first + 1 :])
        spelling = table.spelling
        bare = found.lstrip(spelling.strip.encode())
        return found[min(spelling.strip_count, len(found) - len(bare)) :]

    def follower(self, text: bytes, start: Sequence[int] = ()) -> Follower:
        """A text as the draft model's tokenizer has it, its own special tokens in front; where it has none there, the
        tokens ``start``."""
        whole = whole_characters(text)
        ids = self._drafter.encode(text[:whole].decode(errors="replace")).tolist()
        if not self.drafter.spell(ids).endswith(text[max(0, whole - TAIL) : whole]):  # the tokenizer changes this text
            front = [token for token in self._drafter.encode("").tolist() if not self.drafter.of[token]]
            ids = [*front, *self.drafter.encode(text[:whole])]
        follower = Follower(self.drafter, ids or start, self.drafter.spell(ids))
        if whole < len(text):
            follower.extend(text[whole:])
        return follower

    def rendered(self, prompt: str | Sequence[Mapping[str, Any]], start: Sequence[int] = ()) -> Follower | None:
        """A prompt that is meant for the draft model. None for the messages of a chat that it has no template for."""
        text = prompt if isinstance(prompt, str) else self._conversation(prompt)
        if text is None:
            return None
        ids = self._drafter.encode_prompt(text).tolist() or start
        return Follower(self.drafter, ids, self.drafter.spell(ids))

    def _conversation(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        try:
            return self._drafter.conversation([dict(message) for message in messages])
        except InputError:  # its template takes no such conversation, for example no message of the system
            return None

    # from the draft model to the target

    def window(self, ids: Sequence[int]) -> bytes:
        """The last bytes of a text of the target, from a word's beginning on."""
        data = self.target.spell(ids[-WORD_WINDOW:])
        for place in range(len(data) - 1, 0, -1):
            if data[place] in SPACES and data[place - 1] not in SPACES:
                return data[place:]
        return data

    def naive(self, data: bytes) -> list[int]:
        """The tokens of drafted bytes, encoded as a separate text."""
        return self._target.encode(data.decode(errors="replace"), add_special=False).tolist()  # type: ignore[no-any-return]

    def behind(self, ids: Sequence[int], data: bytes) -> list[int]:
        """The tokens of drafted bytes encoded with these tokens before them, less as many as these have alone."""
        prefix = self.target.spell(ids)
        alone = len(self.target.encode(prefix))
        return self.target.encode(prefix + data)[alone:]

    def begun(self, data: bytes) -> int | None:
        """The target's first token of some bytes; None where it lacks them."""
        token = self._begun.get(data)
        if token is None:
            if len(self._begun) >= KEPT:
                self._begun.clear()
            ids = self.target.encode(data)
            token = self._begun[data] = ids[0] if ids else -1
        return None if token < 0 else token

    @cached_property
    def shared(self) -> tuple[Ints, Ints]:
        """The tokens that spell the same in both: those of the target, ascending, and those of the draft model."""
        pairs = [
            (token, other)
            for token, spelled in enumerate(self.target.of)
            if spelled and self.target.id_of(spelled) == token and (other := self.drafter.id_of(spelled)) is not None
        ]
        both = np.array(pairs, np.int64).reshape(-1, 2)
        return both[:, 0].copy(), both[:, 1].copy()
