"""Counts the steps of known texts with a dictionary, for many dictionaries at once and without a model.

Dictionaries of one (tokenizer, language, order, rule) differ in two numbers only: size and least probability. Their
entries are keys of the same statistics in order of frequency, so a smaller dictionary is the beginning of a larger one.
The proposal of a key at a low probability begins with its proposal at a higher one, or the key proposes all or nothing.
So the keys that match the ends of a text are looked up once, each with the number of tokens of its completion that the
text has. A particular dictionary decides only which of these keys it holds, and where it cuts their completions:

    accepted = min(length of the completion, tokens of it that the text has)

A walk over the text then steps from each place to the one behind the accepted tokens and the model's own token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary.header import EntryRule
from paceline.dictionary.keys import NOWHERE, places, rolling
from paceline.errors import InputError
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.tally import StepTally
from paceline_make.dictionary.counting import NgramCounts
from paceline_make.dictionary.endings import under
from paceline_make.dictionary.statistics import Statistics, statistics

BUDGET = 8
"""Tokens that a draft may have."""
BETWEEN = 2**40
"""Separates texts. It is no id, so no match or draft crosses it."""
NEVER = np.iinfo(np.int32).max
"""The rank of a key that a dictionary does not hold, whatever its size."""

Places = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Emulated:
    """A dictionary, and the steps that known texts take with it."""

    rule: EntryRule
    order: int
    size: int
    """Entries that were asked for."""
    min_probability: float
    entries: int
    """Actual entries: fewer than asked for if the counts give no more."""
    tally: StepTally

    def as_dict(self) -> dict[str, float]:
        """Plain data."""
        return {name: value for name, value in vars(self).items() if name != "tally"} | self.tally.as_dict()


def emulate(
    vocabulary: Vocabulary,
    counts: NgramCounts,
    documents: Sequence[str],
    *,
    orders: Sequence[int] = (1, 2, 3),
    sizes: Sequence[int],
    min_probabilities: Sequence[float],
    rules: Sequence[EntryRule] = (EntryRule.TOKEN,),
    budget: int = BUDGET,
) -> Iterator[Emulated]:
    """The dictionary of every order, rule, size and least probability on documents that it was not counted on, with
    drafts of up to ``budget`` tokens. ValueError where the tokenizer makes no token of the documents."""
    from paceline_make.dictionary.running import spelled  # needs pyarrow, which drafting does without

    if not 1 <= budget <= BUDGET:
        raise InputError(f"a draft has from 1 to {BUDGET} tokens, not {budget}")
    script = Script(vocabulary.encode_all(documents))
    if not script.size:
        raise InputError("the tokenizer makes no token of this text, for it drops what it does not know")
    grams = spelled(counts.grams, vocabulary)
    for order in orders:
        counted = statistics(grams[:order])
        for rule in rules:
            tables = Dictionaries.over(script, under(rule, counted, grams[:order]), budget)
            for least in min_probabilities:
                for size, (entries, tally) in zip(sizes, tables.tallies(least, sizes), strict=True):
                    yield Emulated(
                        rule=rule, order=order, size=size, min_probability=least, entries=entries, tally=tally
                    )


class Script:
    """Known texts, one behind the other. Each place is the last token that is known; the text goes on behind it."""

    def __init__(self, texts: Iterable[Sequence[int] | NDArray[Any]], prompts: Iterable[int] | None = None) -> None:
        """``prompts`` has how many tokens of each text are known before the first step; one by default."""
        kept = [np.asarray(text, np.int64) for text in texts]
        starts = [1] * len(kept) if prompts is None else list(prompts)
        pairs = [(text, start) for text, start in zip(kept, starts, strict=True) if len(text) > start]
        if any(start < 1 for _, start in pairs):
            raise InputError(
                "a text is continued behind its first token at the earliest; give prompts of 1 or more tokens"
            )
        parts, first, begins, ends = [np.full(1, BETWEEN, np.int64)], 1, list[int](), list[int]()
        for text, start in pairs:
            parts += [text, np.full(1, BETWEEN, np.int64)]
            begins.append(first + start - 1)
            ends.append(first + len(text) - 1)
            first += len(text) + 1
        self.tokens = np.concatenate(parts)
        self.first = begins[0] if begins else first
        self.onward = np.arange(len(self.tokens) + 1)
        """Where to go on from a place: from the end of a text at the beginning of the next."""
        self.onward[ends] = [*begins[1:], first][: len(ends)]
        self.left = np.zeros(len(self.tokens), np.int64)
        """How many tokens follow a place in its text; the model writes the last of them in any case."""
        for begin, end in zip(begins, ends, strict=True):
            self.left[begin : end + 1] = np.arange(end - begin, -1, -1)
        self.size = sum(end - begin for begin, end in zip(begins, ends, strict=True))
        """Tokens to write."""


@dataclass(frozen=True)
class Dictionaries:
    """All dictionaries of some statistics, over one script."""

    statistics: Statistics
    script: Script
    keys: Places
    """Those that any place matches."""
    matched: NDArray[np.int32]
    """By the number of tokens and the place, which of `keys` matches there, `NOWHERE` if none does."""
    agreed: NDArray[np.int8]
    """By the same, how many tokens of its completion the text has."""
    weakest: NDArray[np.float32]
    """For each of `keys` and each token of its completion, up to which least probability it is proposed."""

    @classmethod
    def over(cls, script: Script, statistics: Statistics, budget: int = BUDGET) -> Dictionaries:
        found = _found(script, statistics)
        keys, where = np.unique(found, return_inverse=True)
        matched = where.reshape(found.shape).astype(np.int32)
        if len(keys) and keys[0] == NOWHERE:
            keys, matched = keys[1:], matched - 1
        tokens, weakest = statistics.thresholds(keys, budget)
        return cls(statistics, script, keys, matched, _agreed(script, matched, tokens), weakest)

    def tallies(self, min_probability: float, sizes: Sequence[int]) -> Iterator[tuple[int, StepTally]]:
        """For dictionaries of each size at most: how many entries they really have, and what they bring."""
        candidates = self.statistics.candidates(min_probability)
        room = np.maximum(self.script.left - 1, 0)
        lengths = np.append((self.weakest >= np.float32(min_probability)).sum(1), 0)
        proposed = np.minimum(lengths[self.matched], room).astype(np.int8)
        accepted = np.minimum(proposed, self.agreed)
        ranks = _ranks(candidates, self.keys)[self.matched]
        for size in sizes:
            yield min(size, len(candidates)), self._tally(ranks < size, proposed, accepted)

    def _tally(self, held: NDArray[np.bool_], proposed: NDArray[np.int8], accepted: NDArray[np.int8]) -> StepTally:
        drafted, kept = np.zeros(held.shape[1], np.int8), np.zeros(held.shape[1], np.int8)
        for longer_held, theirs, of_these in zip(held, proposed, accepted, strict=True):
            np.copyto(drafted, theirs, where=longer_held)
            np.copyto(kept, of_these, where=longer_held)
        steps = _walked(self.script, kept)
        drafts, taken = drafted[steps], kept[steps]
        return StepTally(
            tokens=len(steps) + int(taken.sum(dtype=np.int64)),
            steps=len(steps),
            drafts=int((drafts > 0).sum()),
            proposed=int(drafts.sum(dtype=np.int64)),
            accepted=int(taken.sum(dtype=np.int64)),
        )


def _found(script: Script, statistics: Statistics) -> Places:
    """By the number of tokens and the place, the key that matches. Places with one token left need none."""
    shape = statistics.longest, len(script.tokens)
    hashes = np.zeros(shape, np.uint64)
    there = np.zeros(shape, bool)
    for size in range(1, min(statistics.longest, len(script.tokens)) + 1):
        hashes[size - 1] = rolling(script.tokens, size)
        there[size - 1, size - 1 :] = script.left[size - 1 :] > 1
    found = np.full(shape, NOWHERE, np.int64)
    wanted, where = np.unique(hashes[there], return_inverse=True)
    found[there] = statistics.find(wanted)[where]
    return found


def _agreed(script: Script, matched: NDArray[np.int32], completions: NDArray[np.int32]) -> NDArray[np.int8]:
    agreed = np.zeros(matched.shape, np.int8)
    depth, place = np.nonzero(matched >= 0)
    for step in range(completions.shape[1]):
        behind = np.minimum(place + 1 + step, len(script.tokens) - 1)
        same = completions[matched[depth, place], step] == script.tokens[behind]
        depth, place = depth[same], place[same]
        agreed[depth, place] += 1
    return agreed


def _ranks(candidates: Places, keys: Places) -> NDArray[np.int32]:
    """How many candidates come before each key; `NEVER` for one that is none, and at the end for no key at all."""
    ranks = places(keys, candidates)
    return np.append(np.where(ranks == NOWHERE, NEVER, ranks), NEVER).astype(np.int32)


def _walked(script: Script, accepted: NDArray[np.int8]) -> Places:
    """The places where a step begins."""
    reached = np.minimum(np.arange(1, len(accepted) + 1) + accepted, len(accepted))
    following: list[int] = script.onward[reached].tolist()
    place, end = script.first, len(following)
    steps = list[int]()
    while place < end:
        steps.append(place)
        place = following[place]
    return np.array(steps, np.int64)
