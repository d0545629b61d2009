"""Dictionary drafting: the rest of a word or phrase that rarely continues in another way in a language.

The longest ending of the text that is an entry is looked up in a file that was built once from much plain text. Its
usual continuation there is the draft: a chain of a few tokens with their probabilities. The model's output is not used.

There may be several dictionaries, of several languages or subjects. The one that knows the longest ending proposes; of
equals the one whose entries were right more often in this text, its prompt included. A dictionary whose entries are
rarely right is of another language, and proposes nothing until they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, log
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from paceline.context import Context
from paceline.dictionary.index import Dictionary, Match, sureness
from paceline.dictionary.keys import LONGEST
from paceline.dictionary.shipped import shipped
from paceline.drafters.base import Budget, Drafter, Seen, at_least
from paceline.drafters.compose import Fallback
from paceline.drafters.lookup import Lookup
from paceline.drafters.sharing import Shared, stamp
from paceline.errors import InputError
from paceline.recent import RecentRatio
from paceline.targets.base import Target
from paceline.tree import EMPTY, FIXED, ROOT, DraftTree, Floats, line
from paceline.vocabulary import Vocabulary

NAME = "dictionary"
KEPT = 31 / 32
"""The weight that earlier entries keep with each new one, in the share of entries that came true."""
HOPELESS = 0.1
"""A dictionary with a smaller share of entries that come true drafts nothing, unless it is the only source."""
READ = 64
"""Tokens at the end of a text by which its language is recognised before its first draft."""
LEAST = 0.01
"""Branches with a smaller probability are left out."""
CHAINS = 2048
"""Drafts of a dictionary that are kept at most, at about half a kilobyte each."""

_dictionaries: Shared[Dictionary] = Shared()

_chains: WeakKeyDictionary[Dictionary, dict[tuple[int, int], DraftTree]] = WeakKeyDictionary()
"""Drafts by entry and length. Every second draft was proposed before, and building one takes as long as a look-up; so
all texts share these trees, whose arrays are read-only."""


def opened(path: str | Path) -> Dictionary:
    """The dictionary of a file, which all drafters share."""
    return _dictionaries.get(stamp(path), lambda: Dictionary.open(path))


def shipped_for(vocabulary: Vocabulary) -> tuple[Dictionary, ...]:
    """The dictionaries that come along for a tokenizer."""
    return tuple(map(opened, shipped(vocabulary.fingerprint)))


@dataclass(eq=False)
class HitRate(RecentRatio):
    """How often a dictionary's entries came true in one text recently, of those that were tried."""

    kept: float = KEPT

    @property
    def share(self) -> float:
        """The share of entries that came true; about half where few were tried."""
        return (self.above + 1) / (self.below + 2)

    def note(self, true: bool) -> None:
        self.add(true, 1)


@dataclass(eq=False)
class DictionaryState:
    """One text, and the dictionaries that complete it."""

    context: Context
    dictionaries: tuple[Dictionary, ...]
    watched: bool
    """Whether it is counted which entries come true."""
    records: list[HitRate] = field(init=False)
    expected: list[tuple[HitRate, int]] = field(default_factory=list)
    """The next token by each dictionary that knows an ending."""

    def __post_init__(self) -> None:
        self.records = [HitRate() for _ in self.dictionaries]
        self._asked = list(zip(range(len(self.records)), self.dictionaries, self.records, strict=True))
        self._chains = [_chains.setdefault(dictionary, {}) for dictionary in self.dictionaries]
        self._unread = self.watched
        """Whether the end of the text is still to be read: only once a draft is asked for."""

    def _read(self) -> None:
        """Count which entries came true in the end of the text."""
        self._unread = False
        tokens = self.context.tokens[-READ - LONGEST :].tolist()
        for end in range(1, len(tokens)):
            self._matched(tokens[max(0, end - LONGEST) : end])
            self.judge(tokens[end])

    def chain(self, budget: Budget) -> DraftTree:
        """The completion of the text, within a budget."""
        ending = self.context.listed(-LONGEST)
        which = 0
        if self.watched:
            which, found = self._chosen(ending)
        else:
            found = self.dictionaries[0].longest(self.dictionaries[0].packed(ending))
        if found is None:
            return EMPTY
        chains, key = self._chains[which], (found[1], min(budget.nodes, budget.depth))
        tree = chains.get(key)
        if tree is None:
            if len(chains) >= CHAINS:
                chains.clear()
            tree = chains[key] = chain(self.dictionaries[which], *key)
        return tree

    def matches(self) -> list[Match]:
        """The longest match, and those of shorter endings in the same dictionary."""
        ending = self.context.listed(-LONGEST)
        if not self.watched:
            return self.dictionaries[0].matches(ending)
        which, found = self._chosen(ending)
        return [] if found is None else self.dictionaries[which].matches(ending)

    def _chosen(self, ending: list[int]) -> tuple[int, tuple[int, int] | None]:
        """The dictionary that proposes, by its number, and its longest entry."""
        if self._unread:
            self._read()
        return self._matched(ending)

    def _matched(self, ending: list[int]) -> tuple[int, tuple[int, int] | None]:
        self.expected.clear()
        chosen: tuple[int, tuple[int, int] | None] = (0, None)
        best, width, packed = (0, 0.0), 0, b""
        for which, dictionary, record in self._asked:
            if dictionary.width != width:
                width, packed = dictionary.width, dictionary.packed(ending)
            if (found := dictionary.longest(packed)) is not None:
                self.expected.append((record, dictionary.first(found[1])))
                if record.share >= HOPELESS and (rank := (found[0], record.share)) > best:
                    chosen, best = (which, found), rank
        return chosen

    def judge(self, token: int) -> None:
        """The text went on with this token."""
        for record, expected in self.expected:
            record.note(expected == token)
        self.expected.clear()


class DictSpec(Drafter):
    """Completes the longest ending that a dictionary knows."""

    name = NAME
    summary = "complete words and phrases from a dictionary that was counted on plain text"
    source = "DictSpec (Syvokon 2026)"
    requires = "a dictionary for the model's tokenizer: one that comes with paceline, or file=NAME.dict"
    unfit = "a language without a dictionary, or one whose words are one token each"
    skips = True
    nodes = LONGEST
    cautious = False
    """Whether a single dictionary, too, stops drafting where its entries do not come true."""

    def __init__(self, *, file: str | None = None, branches: int = 1) -> None:
        at_least(NAME, 1, branches=branches)
        self._branches = branches
        self.nodes = LONGEST * branches
        self._named = file is not None
        self._dictionaries = () if file is None else _named(file)

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        dictionaries = self._dictionaries if self._named else self._chosen(vocabulary)
        for dictionary in dictionaries:
            dictionary.check(target.vocab_size, vocabulary)
        self._dictionaries = dictionaries

    def _chosen(self, vocabulary: Vocabulary | None) -> tuple[Dictionary, ...]:
        """The dictionaries where none is named."""
        if vocabulary is None:
            raise InputError(f"the model has no tokenizer to choose a dictionary by; name one: {NAME}:file=NAME.dict")
        if not (found := shipped_for(vocabulary)):
            raise InputError(
                "no dictionary for this model's tokenizer comes with paceline; build one with 'paceline dict build' "
                f"and name it: {NAME}:file=NAME.dict"
            )
        return found

    def open(self, context: Context) -> DictionaryState:
        dictionaries = self._dictionaries
        return DictionaryState(context, dictionaries, self.cautious or len(dictionaries) != 1)

    def propose_one(self, state: DictionaryState, budget: Budget) -> DraftTree:
        if not state.dictionaries:
            return EMPTY
        if self._branches > 1:
            return branched(state.matches(), self._branches, budget)
        return state.chain(budget)

    @property
    def observes(self) -> bool:
        return self.cautious or len(self._dictionaries) != 1 or type(self).observe is not DictSpec.observe

    def observe(self, seen: Sequence[Seen]) -> None:
        for entry in seen:
            if entry.state.expected and entry.verdict.tokens:
                entry.state.judge(entry.verdict.tokens[0])


class Hybrid(Fallback):
    """``dictionary,lookup``."""

    name = "hybrid"
    summary = "dictionary, and lookup where the dictionary proposes nothing"
    source = "DictSpec's hybrid with prompt n-grams (Syvokon 2026)"
    requires = DictSpec.requires
    unfit = "text that repeats nothing, in a language without a dictionary"

    def __init__(self, *, file: str | None = None, branches: int = 1) -> None:
        super().__init__((DictSpec(file=file, branches=branches), Lookup()))


def _named(files: str) -> tuple[Dictionary, ...]:
    """The dictionaries of a list of files, each once."""
    names = [name.strip() for name in files.split(",")]
    if not all(names):
        raise InputError(f"file={files!r} of {NAME} holds an empty name; write names with commas between them")
    return tuple(dict.fromkeys(map(opened, names)))


@lru_cache(maxsize=4096)
def _scores(levels: int, length: int) -> Floats:
    """Log-probabilities of a chain. There are few different ones, since a dictionary stores probabilities coarsely."""
    first, rest = sureness(levels)
    scores = np.array([first, *[rest] * (length - 1)])
    scores.setflags(write=False)
    return scores


def chain(dictionary: Dictionary, answer: int, longest: int) -> DraftTree:
    """The tokens that an entry proposes, at most ``longest``."""
    tokens = dictionary.proposed(answer)[:longest].astype(np.int64)
    count = len(tokens)
    if not count:
        return EMPTY
    tokens.setflags(write=False)
    return DraftTree(tokens, line(count)[0], _scores(answer >> 24, count), (NAME,) * count, FIXED)


def branched(matches: Sequence[Match], branches: int, budget: Budget) -> DraftTree:
    """The proposals of the first matches that add anything. A longer match knows better than a shorter one, which has
    the probability that the longer ones leave."""
    if not matches:
        return EMPTY
    nodes: dict[tuple[int, int], int] = {}
    left: dict[int, float] = {}
    tokens, parents, scores = list[int](), list[int](), list[float]()
    for match in matches:
        node, known = ROOT, len(tokens)
        for place, token in enumerate(match.tokens[: budget.depth]):
            child = nodes.get((node, token))
            if child is None:
                chance = exp(match.rest if place else match.first)
                free = left.get(node, 1.0)
                if free * chance < LEAST:
                    break
                left[node] = free * (1 - chance)
                child = nodes[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
                scores.append(log(free * chance))
            node = child
        branches -= len(tokens) > known
        if not branches:
            break
    return DraftTree.build(tokens, parents, source=NAME, scores=scores).top(budget.nodes)
