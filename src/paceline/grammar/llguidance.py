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

from paceline.errors import InputError, need
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


def compiled(vocabulary: Vocabulary, grammar: Grammar) -> LLGuidanceMatcher:
    """A new matcher of a grammar, at its beginning."""
    with _LOCK:
        compiler = _COMPILERS.get(vocabulary)
        if compiler is None:
            compiler = _COMPILERS[vocabulary] = Compiler(vocabulary)
    return compiler.matcher(grammar)


class Compiler:
    """The grammars of one vocabulary. Several threads may ask."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens: Any = _Tokens(vocabulary)
        self._tokenizer: Any = LLTokenizer(tokens)
        self._made: OrderedDict[tuple[str, str, str], Any] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, grammar: Grammar) -> LLGuidanceMatcher:
        key = grammar.kind, grammar.text, grammar.layout
        with self._lock:
            if key not in self._made:
                self._made[key] = self._compiled(grammar)
                if len(self._made) > KEPT:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return LLGuidanceMatcher(self._made[key].deep_copy(), self._tokenizer.vocab_size - 1)

    def _compiled(self, grammar: Grammar) -> Any:
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
            schema["x-guidance"] = {**LAYOUTS[grammar.layout], **schema.get("x-guidance", {})}
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
