"""Matchers by the library llguidance: the only file that imports it.

It gets the bytes of all tokens but special ones, and an end token that no model has: which tokens end a text differs
from text to text. Tokens that spell forced bytes otherwise than the tokenizer would are allowed (``no_forcing``), so
that what is allowed is a fact about bytes.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError, need, shown
from paceline.grammar.base import CHOICE, GBNF, JSON, LAYOUTS, REGEX, STUCK, Grammar
from paceline.vocabulary import Vocabulary

need("llguidance", "a grammar", "grammar")
from llguidance import LLMatcher, LLTokenizer  # noqa: E402
from llguidance.gbnf_to_lark import any_to_lark  # noqa: E402

KEPT = 32
"""Compiled grammars that a vocabulary keeps."""
ALL_SPELLINGS = '\n%llguidance {"no_forcing": true}\n'
REASON = 300
"""Characters of a reason, at most."""


def compiled(vocabulary: Vocabulary, grammar: Grammar) -> CompiledGrammar:
    """A grammar for these tokens; one with a mistake is refused."""
    with _LOCK:
        compiler = _COMPILERS.get(vocabulary)
        if compiler is None:
            compiler = _COMPILERS[vocabulary] = Compiler(vocabulary)
    return compiler.compiled(grammar)


class CompiledGrammar:
    """A grammar whose matchers are copies of the first one."""

    def __init__(self, first: Any, size: int) -> None:
        self._first, self._size = first, size
        self._lock = threading.Lock()

    def matcher(self) -> LLGuidanceMatcher:
        """A new matcher, at the beginning."""
        with self._lock:
            return LLGuidanceMatcher(self._first.deep_copy(), self._size)


class Slot:
    """The place of one grammar, which one thread compiles."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: CompiledGrammar | None = None


class Compiler:
    """The grammars of one vocabulary. Several threads may ask. A thread waits for a compilation only if it asks for the
    same grammar."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens: Any = _Tokens(vocabulary)
        self._tokenizer: Any = LLTokenizer(tokens)
        self._made: OrderedDict[tuple[str, str, str], Slot] = OrderedDict()
        self._lock = threading.Lock()

    def compiled(self, grammar: Grammar) -> CompiledGrammar:
        """A grammar of this vocabulary, compiled now or before."""
        key = grammar.kind, grammar.text, grammar.layout
        with self._lock:
            slot = self._made.setdefault(key, Slot())
            self._made.move_to_end(key)
            if len(self._made) > KEPT:
                self._made.popitem(last=False)
        with slot.lock:
            if slot.made is None:
                try:
                    slot.made = CompiledGrammar(self._first(grammar), self._tokenizer.vocab_size - 1)
                except BaseException:
                    self._drop(key, slot)
                    raise
            return slot.made

    def _drop(self, key: tuple[str, str, str], slot: Slot) -> None:
        """Keep no grammar that cannot be compiled."""
        with self._lock:
            if self._made.get(key) is slot:
                del self._made[key]

    def _first(self, grammar: Grammar) -> Any:
        refuse_mistakes(grammar)
        made = LLMatcher(self._tokenizer, rules(grammar) + ALL_SPELLINGS, log_level=0)
        if made.is_error():
            raise InputError(f"the grammar cannot be used: {_short(made.get_error())}")
        return made


class LLGuidanceMatcher:
    """A `Matcher`; see there."""

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher, self._size = matcher, size

    def consume(self, tokens: Sequence[int]) -> int:
        count: int = self._checked(self._matcher.try_consume_tokens(tokens)) if tokens else 0
        return count

    def rollback(self, count: int) -> None:
        self._checked(self._matcher.rollback(count))

    def allowed(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._checked(self._matcher.compute_bitmask()), np.uint8)
        return np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)

    def forced(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes())

    @property
    def accepting(self) -> bool:
        return bool(self._matcher.is_accepting())

    @property
    def stopped(self) -> bool:
        return bool(self._matcher.is_stopped())

    def _checked(self, found: Any) -> Any:
        if self._matcher.is_error():
            if self._matcher.get_error().startswith("NoExtension"):
                raise InputError(STUCK)
            raise InputError(f"the grammar is too complex to go on with: {_short(self._matcher.get_error())}")
        return found


def rules(grammar: Grammar) -> str:
    """The grammar in Lark's notation."""
    if grammar.kind == JSON:
        schema = json.loads(grammar.text)
        if isinstance(schema, dict):
            own = schema.get("x-guidance", {})
            if not isinstance(own, dict):
                raise InputError(f"x-guidance of a JSON schema is an object of options, not {shown(own)}")
            schema["x-guidance"] = {**LAYOUTS[grammar.layout], **own}
        return f"start: %json {json.dumps(schema, ensure_ascii=False)}"
    if grammar.kind == CHOICE:
        return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(grammar.text))
    if grammar.kind == REGEX:
        return str(json.loads(LLMatcher.grammar_from_regex(grammar.text))["grammars"][0]["lark_grammar"])
    if grammar.kind == GBNF:
        try:
            return str(any_to_lark(grammar.text))
        except Exception as error:  # of a parser that raises several kinds
            raise InputError(f"the grammar has a mistake: {_short(str(error))}") from None
    return grammar.text


def refuse_mistakes(grammar: Grammar) -> None:
    """Refuse a grammar as its user wrote it, in llguidance's words."""
    checks: dict[str, tuple[str, Callable[[str], str]]] = {
        JSON: ("the JSON schema cannot be used", LLMatcher.grammar_from_json_schema),
        REGEX: ("the regular expression has a mistake", LLMatcher.grammar_from_regex),
    }
    said, read = checks.get(grammar.kind, ("the grammar has a mistake", LLMatcher.grammar_from_lark))
    text = grammar.text if grammar.kind in checks else rules(grammar)
    if reason := LLMatcher.validate_grammar(read(text)):
        raise InputError(f"{said}: {_short(reason)}")


class _Tokens:
    """A vocabulary as llguidance reads one."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        unspoken = vocabulary.specials
        spelled = [b"" if token in unspoken else vocabulary.token_bytes(token) for token in range(vocabulary.size)]
        self.tokens = [*spelled, b"<end>"]
        self.eos_token_id = vocabulary.size
        self.special_token_ids = [vocabulary.size]

    def __call__(self, text: bytes) -> list[int]:
        raise AssertionError("no text is encoded, since no spelling is forced")


def _short(reason: str) -> str:
    said = " ".join(reason.partition("<state>")[0].split())
    return said if len(said) <= REASON else f"{said[:REASON]}..."


_COMPILERS: WeakKeyDictionary[Vocabulary, Compiler] = WeakKeyDictionary()
_LOCK = threading.Lock()
