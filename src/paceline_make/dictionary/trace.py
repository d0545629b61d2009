"""How an entry is made from counts, step by step, as in Table 1 of the DictSpec paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.dictionary.keys import NOWHERE, Indices, rolling
from paceline_make.dictionary.endings import EndingStatistics
from paceline_make.dictionary.statistics import Statistics

if TYPE_CHECKING:
    from paceline_make.dictionary.build import DictionarySettings
    from paceline_make.dictionary.running import SpelledNgrams

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """A possible continuation of a prefix."""

    tokens: Ids
    count: int
    probability: float
    cut: bool
    """Whether n-grams continue behind it."""
    verdict: str
    """``selected``, or why it is discarded."""

    @property
    def selected(self) -> bool:
        return self.verdict == "selected"


@dataclass(frozen=True)
class Choice:
    """The continuations of a prefix, the most probable first. Under the rule ``token`` an entry has a choice for each
    of its tokens, under the rule ``paper`` a single one."""

    prefix: Ids
    count: int
    """Occurrences of the prefix."""
    candidates: Sequence[Candidate]


@dataclass(frozen=True)
class Trace:
    """An entry with its n-grams, or the reason that there is none."""

    prefix: Ids
    count: int
    ngrams: Sequence[tuple[Ids, int]]
    """N-grams that begin with the prefix and continue, with their counts, the most frequent first."""
    choices: Sequence[Choice]
    completion: Ids
    rank: int | None
    """Its rank by frequency among all prefixes that propose something; None if it proposes nothing."""
    verdict: str
    """``kept``, or why it is no entry."""

    @property
    def kept(self) -> bool:
        return self.verdict == "kept"


def traced(
    found: Statistics, spelled: Sequence[SpelledNgrams], settings: DictionarySettings, ending: Sequence[int]
) -> Iterator[Trace]:
    """Every prefix that a text ends with, the longest first, down to the first that is an entry. ``found`` are the
    statistics under the rule of the settings."""
    candidates = found.candidates(settings.min_probability)
    for length in range(min(found.longest, len(ending)), 0, -1):
        prefix = tuple(ending[-length:])
        (key,) = found.find(rolling(np.array(prefix), length)[-1:])
        if key == NOWHERE:
            continue
        trace = _trace(found, spelled, settings, prefix, int(key), candidates)
        yield trace
        if trace.kept:
            return


def _trace(
    found: Statistics,
    spelled: Sequence[SpelledNgrams],
    settings: DictionarySettings,
    prefix: Ids,
    key: int,
    candidates: Indices,
) -> Trace:
    choices = list(_choices(found, spelled, settings, prefix))
    place = int(np.searchsorted(candidates, key))
    rank = place if place < len(candidates) and candidates[place] == key else None
    completion = tuple(token for choice in choices for one in choice.candidates if one.selected for token in one.tokens)
    if rank is None:
        verdict = "nothing follows in any n-gram" if not choices[0].candidates else choices[0].candidates[0].verdict
    elif rank >= settings.entries:
        verdict = f"too rare: {rank} that propose something are more frequent, and {settings.entries} are kept"
    else:
        verdict = "kept"
    ngrams = Counter[Ids]()
    for tokens, _, _, count in _through(found, spelled, prefix):
        ngrams[tokens] += count
    return Trace(prefix, int(found.counts[key]), ngrams.most_common(), choices, completion, rank, verdict)


def _choices(
    found: Statistics, spelled: Sequence[SpelledNgrams], settings: DictionarySettings, prefix: Ids
) -> Iterator[Choice]:
    """The choices of an entry, up to one that selects nothing."""
    whole = isinstance(found, EndingStatistics)
    longest = settings.longest_completion if whole else 1
    for _ in range(1 if whole else settings.longest_completion):
        (key,) = found.find(rolling(np.array(prefix), len(prefix))[-1:])
        times = int(found.counts[key]) if key != NOWHERE else 0
        counts, cut = Counter[Ids](), set[Ids]()
        for tokens, at, start, count in _through(found, spelled, prefix):
            if start < at + longest:
                follows = tokens[at : at + longest]
                counts[follows] += count
                cut |= {follows} if whole and len(tokens) > at + longest else set()
        choice = Choice(prefix, times, list(_judged(counts, cut, times, settings.min_probability)))
        yield choice
        if not choice.candidates or not choice.candidates[0].selected:
            return
        prefix = (*prefix, *choice.candidates[0].tokens)[-found.longest :]


def _judged(counts: Counter[Ids], cut: set[Ids], times: int, least: float) -> Iterator[Candidate]:
    ranked = sorted(counts.items(), key=lambda one: (-one[1], -len(one[0]), one[0]))
    for place, (tokens, count) in enumerate(ranked):
        share = min(count / max(times, 1), 1.0)
        if place:
            verdict = "less probable" if count < ranked[0][1] else "as probable, and behind it in order"
        else:
            verdict = "selected" if np.float32(share) >= np.float32(least) else f"below {least:g}"
        yield Candidate(tokens, count, share, tokens in cut, verdict)


def _through(found: Statistics, spelled: Sequence[SpelledNgrams], prefix: Ids) -> Iterator[tuple[Ids, int, int, int]]:
    """N-grams that begin with a prefix and go on: their tokens, where the prefix ends, where the last word begins, and
    the count. A prefix as long as any stands for all longer beginnings that end with it."""
    size = len(prefix)
    for one in spelled:
        width = one.tokens.shape[1]
        for depth in range(size, width if size == found.longest else min(size + 1, width)):
            there = (one.lengths > depth) & (one.repeated > depth - found.longest)
            for back in range(1, size + 1):
                there &= one.tokens[:, depth - back] == prefix[-back]
            for row in np.flatnonzero(there):
                tokens = tuple(one.tokens[row, : one.lengths[row]].tolist())
                yield tokens, depth, int(one.starts[row]), int(one.counts[row])
