"""Dictionary drafting: the rest of a word, or of a phrase, that a language hardly ever goes on with in another way.

The longest ending of the text that is an entry is looked up in a file that was built once from much plain text. What
usually follows it there is the draft: a chain of a few tokens, with how likely each is. Nothing is read of the model.

Several dictionaries may be at hand, of several languages or subjects. The one that knows the longest ending proposes;
of equals the one whose entries came true more often in this text so far, its prompt included. One whose entries hardly
ever do is of another language, and says nothing until they do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, log
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

import numpy as np

from paceline.context import Context
from paceline.dictionary.index import Dictionary, Match
from paceline.dictionary.shipped import shipped
from paceline.dictionary.statistics import LONGEST
from paceline.drafters.base import Budget, Drafter, Seen
from paceline.drafters.compose import Fallback
from paceline.drafters.lookup import Lookup
from paceline.targets.base import Target
from paceline.tree import EMPTY, ROOT, DraftTree, Floats, Ints
from paceline.vocabulary import Vocabulary

NAME = "dictionary"
KEPT = 31 / 32
"""What every further entry of a dictionary leaves of the weight of those before, in how often they came true."""
HOPELESS = 0.1
"""A dictionary whose entries come true less often is silent, where there are others or somebody else drafts, too."""
READ = 64
"""Tokens at the end of a prompt from which is learnt whose language it is."""
LEAST = 0.01
"""A branch that is less likely than this after what is before it is left out."""


class Opening:
    """Dictionaries by their files: each is opened once in a process, however many drafters and texts use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: WeakValueDictionary[tuple[object, ...], Dictionary] = WeakValueDictionary()

    def __call__(self, path: str | Path) -> Dictionary:
        with self._lock:
            try:
                found = os.stat(path)
            except OSError:  # whoever opens it has the words for that
                return Dictionary.open(path)
            key = str(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = Dictionary.open(path)
            return known


opened = Opening()


def shipped_for(vocabulary: Vocabulary) -> tuple[Dictionary, ...]:
    """The dictionaries that come along for a tokenizer."""
    return tuple(map(opened, shipped(vocabulary.fingerprint)))


@dataclass(eq=False)
class Record:
    """How often a dictionary's entries came true in one text, of late."""

    said: float = 0.0
    true: float = 0.0
    share: float = 0.5
    """Of all of them; of a dictionary that hardly said anything, about half."""

    def note(self, true: bool) -> None:
        self.said = self.said * KEPT + 1
        self.true = self.true * KEPT + true
        self.share = (self.true + 1) / (self.said + 2)


@dataclass(eq=False)
class Completed:
    """One text, and who completes it."""

    context: Context
    dictionaries: tuple[Dictionary, ...]
    watched: bool
    """Whether it is kept count of who is right."""
    records: list[Record] = field(init=False)
    said: list[tuple[Record, int]] = field(default_factory=list)
    """Who says that the next token is which."""

    def __post_init__(self) -> None:
        self.records = [Record() for _ in self.dictionaries]
        self._asked = list(zip(self.dictionaries, self.records, strict=True))
        if self.watched and self.dictionaries:
            tokens = self.context.tokens[-READ - LONGEST :].tolist()
            for end in range(1, len(tokens)):
                self._chosen(tokens[max(0, end - LONGEST) : end])
                self.judge(tokens[end])

    def match(self) -> Match | None:
        """What completes the text."""
        ending = self.context.tokens[-LONGEST:].tolist()
        if self.watched:
            found = self._chosen(ending)
            return None if found is None else found[1]
        return self.dictionaries[0].match(ending)

    def matches(self) -> list[Match]:
        """The same, and what else the same dictionary knows, by shorter endings."""
        ending = self.context.tokens[-LONGEST:].tolist()
        if self.watched:
            found = self._chosen(ending)
            return [] if found is None else found[0].matches(ending)
        return self.dictionaries[0].matches(ending)

    def _chosen(self, ending: list[int]) -> tuple[Dictionary, Match] | None:
        """The dictionary that is to propose, and its longest match."""
        self.said.clear()
        found, best = None, (0, 0.0)
        for dictionary, record in self._asked:
            if (match := dictionary.match(ending)) is not None:
                self.said.append((record, match.tokens[0]))
                if record.share >= HOPELESS and (rank := (match.length, record.share)) > best:
                    found, best = (dictionary, match), rank
        return found

    def judge(self, token: int) -> None:
        """The text went on with this token."""
        for record, said in self.said:
            record.note(said == token)
        self.said.clear()


class DictSpec(Drafter):
    """Completes the longest ending that a dictionary knows."""

    name = NAME
    summary = "complete words and phrases as a language usually does, by a dictionary built from plain text"
    source = "DictSpec (Syvokon 2026)"
    requires = "a dictionary for the model's tokenizer: one that comes with paceline, or file=NAME.dict"
    unfit = "text of other languages than the dictionary's; a language whose words are one token each"
    nodes = LONGEST
    cautious = False
    """Whether a single dictionary falls silent, too, where it is hopeless."""

    def __init__(self, *, file: str | None = None, branches: int = 1) -> None:
        if branches < 1:
            raise ValueError(f"{NAME} drafts at least 1 branch, not {branches}")
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
            raise ValueError(
                f"no tokenizer is known by which a dictionary could be chosen; name one: {NAME}:file=NAME.dict"
            )
        if not (found := shipped_for(vocabulary)):
            raise ValueError(
                "no dictionary for this model's tokenizer comes with paceline; build one with 'paceline dict build' "
                f"and name it: {NAME}:file=NAME.dict"
            )
        return found

    def open(self, context: Context) -> Completed:
        dictionaries = self._dictionaries
        return Completed(context, dictionaries, self.cautious or len(dictionaries) != 1)

    def propose_one(self, state: Completed, budget: Budget) -> DraftTree:
        if not state.dictionaries:
            return EMPTY
        if self._branches > 1:
            return branched(state.matches(), self._branches, budget)
        match = state.match()
        return EMPTY if match is None else chain(match, min(budget.nodes, budget.depth))

    def observe(self, seen: Sequence[Seen]) -> None:
        for entry in seen:
            if entry.state.said and entry.verdict.tokens:
                entry.state.judge(entry.verdict.tokens[0])


class Hybrid(Fallback):
    """``dictionary,lookup``: what the language says, and where it says nothing, what the text said before."""

    name = "hybrid"
    summary = "dictionary, and where that has nothing to say, lookup"
    source = "DictSpec's hybrid with prompt n-grams (Syvokon 2026)"
    requires = DictSpec.requires
    unfit = "text of other languages than the dictionary's that does not repeat itself either"

    def __init__(self, *, file: str | None = None, branches: int = 1) -> None:
        super().__init__((DictSpec(file=file, branches=branches), Lookup()))


def _named(files: str) -> tuple[Dictionary, ...]:
    """The dictionaries of a list of files, each once."""
    names = [name.strip() for name in files.split(",")]
    if not all(names):
        raise ValueError(f"file={files!r} of {NAME} holds an empty name; write names with commas between them")
    return tuple(dict.fromkeys(map(opened, names)))


def _ready(length: int) -> tuple[Ints, tuple[str, ...]]:
    """Parents and sources of all chains of a length: to make them anew takes as long as the look-up."""
    parents = np.arange(ROOT, length - 1)
    parents.flags.writeable = False
    return parents, (NAME,) * length


_READY = [_ready(length) for length in range(LONGEST + 1)]


@lru_cache(maxsize=4096)
def _scores(first: float, rest: float, length: int) -> Floats:
    """Those of a chain; there are only so many, since a dictionary tells probabilities coarsely."""
    scores = np.array([first, *[rest] * (length - 1)])
    scores.flags.writeable = False
    return scores


def chain(match: Match, longest: int) -> DraftTree:
    """What a match proposes, up to so many tokens."""
    tokens = match.tokens[:longest]
    if not tokens:
        return EMPTY
    parents, sources = _READY[len(tokens)]
    return DraftTree(np.array(tokens, np.int64), parents, _scores(match.first, match.rest, len(tokens)), sources)


def branched(matches: Sequence[Match], branches: int, budget: Budget) -> DraftTree:
    """What the first matches propose, of those that add anything. A longer match knows better than a shorter one: what
    that says is as likely as the others leave room for it."""
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
