"""A matcher at the place of a text: it goes on with the text's tokens, and goes back where another text is asked for.

What may come next is a function of the emitted tokens alone. End tokens are allowed exactly where the grammar is
complete, and special tokens are not allowed. A text that has left the grammar, as a draft may, can only end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.grammar.base import STUCK, Grammar, Matcher
from paceline.grammar.llguidance import CompiledGrammar, compiled
from paceline.vocabulary import Vocabulary

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class BoundGrammar(Grammar):
    """A grammar for the tokens of one vocabulary."""

    vocabulary: Vocabulary = field(repr=False, compare=False)
    ends: frozenset[int] = field(repr=False, compare=False)
    """The tokens that end a text."""
    compiled: CompiledGrammar = field(repr=False, compare=False)

    def open(self) -> TextMatcher:
        """At the beginning of a text. The matcher is this text's, a copy: the thread that writes all texts opens it and
        must not wait for a compilation."""
        return TextMatcher(self.compiled.matcher(), self)


def bound_to(grammar: Grammar, vocabulary: Vocabulary, ends: frozenset[int]) -> BoundGrammar:
    """A grammar for texts in these tokens, which ``ends`` end. A grammar with a mistake is refused here."""
    if not ends:
        raise InputError("a text with a grammar ends by a token, and this model names none; give eos")
    found = compiled(vocabulary, grammar)
    return BoundGrammar(**grammar.packed(), vocabulary=vocabulary, ends=ends, compiled=found)


class TextMatcher:
    """A matcher that follows one text."""

    def __init__(self, matcher: Matcher, grammar: BoundGrammar) -> None:
        self._matcher, self._vocabulary, self._ends = matcher, grammar.vocabulary, grammar.ends
        self._markers = tuple(one.encode() for one in (grammar.not_before, grammar.after) if one)
        self._optional = grammar.optional
        self._tokens: Ints = np.empty(0, np.int64)
        self._start = None if self._markers else 0
        """The emitted tokens before the grammar applies; None while a marker has not come."""
        self._matched = 0
        """The tokens that the matcher has consumed."""
        self._sought, self._tail = self._markers, b""
        """The markers that have not come, and the bytes that may begin the first of them."""
        self._forced = (0, b"")
        """Bytes that were forced behind a number of matched tokens."""

    def go_to(self, emitted: Ints) -> None:
        """Be behind these tokens."""
        known = self._tokens
        shared = min(len(known), len(emitted))
        if not np.array_equal(known[:shared], emitted[:shared]):
            shared = int((known[:shared] != emitted[:shared]).argmax())
        if shared < len(known):
            self._back(shared)
        self._tokens = emitted.copy()
        self._ahead(emitted[shared:].tolist(), shared)

    @property
    def free(self) -> bool:
        """Whether the marker has not come yet."""
        return self._start is None

    @property
    def broken(self) -> bool:
        """Whether the tokens have left the grammar."""
        return self._start is not None and self._start + self._matched < len(self._tokens)

    @property
    def stopped(self) -> bool:
        """Whether only an end token may come next."""
        return self.broken or (not self.free and self._matcher.stopped)

    def forced(self) -> bytes:
        """The bytes that must come next. They may be many, so the rest of those that were computed is used first."""
        if self._start is None or self.broken:
            return b""
        behind, forced = self._forced
        since = self._tokens[self._start + behind : self._start + self._matched].tolist()
        spelled = b"".join(map(self._vocabulary.token_bytes, since))
        if len(spelled) < len(forced) and forced.startswith(spelled):
            return forced[len(spelled) :]
        self._forced = self._matched, self._matcher.forced()
        return self._forced[1]

    def mask(self, width: int) -> Bools:
        """Whether each token may come next, for a row of logits."""
        allowed = np.zeros(width, np.bool_) if self._start is not None else np.ones(width, np.bool_)
        ending = self._optional if self.free else self.broken
        if self._start is not None and not ending:
            tokens = self._matcher.allowed()[:width]
            allowed[: len(tokens)] = tokens
            ending = self._matcher.accepting
        allowed[[token for token in self._ends if token < width]] = ending
        if not allowed.any():
            raise InputError(STUCK)
        return allowed

    def _back(self, length: int) -> None:
        """Keep so many tokens."""
        if self._start is None or (self._markers and length < self._start):
            kept, self._start = 0, None
            self._sought, self._tail = self._markers, b""
            self._seek(b"".join(map(self._vocabulary.token_bytes, self._tokens[:length].tolist())))
        else:
            kept = min(self._matched, length - self._start)
        if kept < self._matched:
            self._matcher.rollback(self._matched - kept)
            self._matched = kept
        if kept < self._forced[0]:
            self._forced = 0, b""

    def _ahead(self, tokens: Sequence[int], length: int) -> None:
        """Go on with tokens after so many."""
        for number, token in enumerate(tokens):
            if self._start is not None:
                break
            if self._seek(self._vocabulary.token_bytes(token)):
                self._start = length + number + 1
        if self._start is None or self._start + self._matched < length:
            return
        rest = tokens[max(0, self._start - length) :]
        within = takewhile(lambda token: token < self._vocabulary.size and token not in self._ends, rest)
        self._matched += self._matcher.consume(list(within))

    def _seek(self, spelled: bytes) -> bool:
        """Look for the markers in the next bytes; whether all have come."""
        self._tail += spelled
        while self._sought:
            _, found, behind = self._tail.partition(self._sought[0])
            if not found:
                self._tail = self._tail[max(0, len(self._tail) - len(self._sought[0]) + 1) :]
                return False
            self._sought, self._tail = self._sought[1:], behind
        return True
