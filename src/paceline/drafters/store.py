"""For every token of the vocabulary the most probable next tokens when the target last scored it.

A forward over a draft gives a row of logits for every node, also for refused ones, and all of them teach: the best
tokens of a row and their probabilities are kept under the row's own token, over what was known of it before. A draft
from this store needs one scored row per token, and no search.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import RLock
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from paceline.context import Context
from paceline.drafters.base import Drafter, Seen, one_of
from paceline.drafters.noise import Chances, SharedNoise, hides_noise, wants_noise
from paceline.targets.base import Target, Want
from paceline.targets.reading import Top
from paceline.tree import Ints
from paceline.vocabulary import Vocabulary


class SuccessorStore:
    """``[vocabulary, width]``: tokens, best first, and their probabilities, 0 where nothing is known. Every token that
    a row names has a row itself.

    A vocabulary of 150,000 at a width of 10 takes 12 MB of addresses, and memory only for tokens that were seen. Texts
    of several threads may share it. `lock` keeps it from changing while several rows are read for one draft.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.lock = RLock()
        self.tokens: NDArray[np.int32] = np.zeros((0, width), np.int32)
        self.chances: NDArray[np.float32] = np.zeros((0, width), np.float32)

    def __len__(self) -> int:
        """The number of tokens with a row."""
        return len(self.tokens)

    def reset(self, size: int | None = None) -> None:
        """Forget all, and have rows for ``size`` tokens."""
        with self.lock:
            rows = len(self) if size is None else size
            self.tokens = np.zeros((rows, self.width), np.int32)
            self.chances = np.zeros((rows, self.width), np.float32)

    def learn(self, tokens: Ints, top: Top, chances: Chances, order: Ints | slice) -> None:
        """Keep the best tokens ``top`` after each of the ``tokens``; of equal tokens the last in ``order`` counts."""
        if not len(tokens):
            return
        with self.lock:
            most = max(int(tokens.max()), int(top.ids.max()))
            if most >= len(self):
                self._grow(most + 1)
            rows, width = tokens[order], top.ids.shape[1]
            if width == self.width:
                self.tokens[rows], self.chances[rows] = top.ids[order], chances[order]
            else:
                self.tokens[rows, :width], self.chances[rows, :width] = top.ids[order], chances[order]

    def _grow(self, size: int) -> None:
        tokens, chances = self.tokens, self.chances
        self.reset(size)
        self.tokens[: len(tokens)], self.chances[: len(chances)] = tokens, chances


def probabilities(top: Top) -> Chances:
    """The probabilities of the best tokens after each row; 0 after a row that is not numbers."""
    with np.errstate(invalid="ignore"):
        found: Chances = np.exp(top.logits - top.log_z[:, None].astype(np.float32))
    np.fmax(found, 0.0, out=found)
    np.fmin(found, 1.0, out=found)
    return found


def kept_last(seen: Seen) -> Ints:
    """The numbers of a round's rows, those that became text last."""
    kept = np.zeros(1 + len(seen.verdict.path), np.int64)
    kept[1:] = seen.verdict.path
    kept[1:] += 1
    others = np.ones(len(seen.scores.tokens), np.bool_)
    others[kept] = False
    return np.concatenate([others.nonzero()[0], kept])


@dataclass(eq=False)
class StoreState:
    """One sequence, the store that it uses, and the noise by which candidates are ranked, if by any."""

    context: Context
    store: SuccessorStore
    noise: SharedNoise | None


class StoreDrafter(Drafter):
    """A drafter that learns from the best tokens of scored rows: into one store for all texts, or one for each.
    A store that is ``kept`` is shared, too, and measurements do not empty it between prompts. Under hidden coins every
    text has its own (`hides_noise`)."""

    skips = True

    def __init__(self, *, width: int, noise: str, store: str, prefill: bool) -> None:
        one_of(self.name, ("shared", "private", "kept"), store=store)
        self._noise = wants_noise(self.name, noise)
        self.needs = Want(top=width)
        if prefill:
            self.prompt_needs = Want(top=width, logits=True)
        self._prefill = prefill
        self._shared = None if store == "private" else SuccessorStore(width)
        self.keeps = store == "kept"
        self._width = width
        self._size = 0
        self._target: ReferenceType[Target] | None = None

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        if self._target is None or self._target() is not target:
            self._target = ref(target)
            self._size = target.vocab_size
            self.reset()

    def reset(self) -> None:
        if self._shared is not None:
            self._shared.reset(self._size)

    def open(self, context: Context) -> StoreState:
        return StoreState(context, self._store(context), SharedNoise.of(context, self._noise))

    def _store(self, context: Context) -> SuccessorStore:
        """The store of a new text."""
        if self._shared is not None and not hides_noise(context):
            return self._shared
        own = SuccessorStore(self._width)
        own.reset(self._size)
        return own

    def _learn(self, seen: Seen, store: SuccessorStore) -> tuple[Top, Chances] | None:
        """Keep the best tokens of a round's rows, or of a prompt's; returns them, or None where they are not read."""
        if not seen.verdict.tokens and not self._prefill:
            return None
        top = seen.scores.top(self._width)
        chances = probabilities(top)
        whole = len(seen.verdict.path) + 1 == len(chances)
        store.learn(seen.scores.tokens, top, chances, slice(None) if whole else kept_last(seen))
        return top, chances
