"""A grammar as a user describes it, and what a matcher of it does."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import InputError, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


JSON, REGEX, CHOICE, LARK, GBNF = "json", "regex", "choice", "lark", "gbnf"
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "line": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "any": {"whitespace_flexible": True},
}
"""Layouts of JSON, as llguidance takes them."""

LARGEST = 128 << 10
"""Bytes of a grammar's text, at most."""
STUCK = "no token of the model's vocabulary can go on with the grammar here; change the grammar"


@dataclass(frozen=True)
class Grammar:
    """What a text must be. Make one with `json_schema`, `json_object`, `regex`, `choice`, `lark` or `gbnf`.

    The text is free up to and including the marker ``after``, such as ``</think>``, if there is one; the grammar
    applies from the next token on. The text cannot end before, unless the marker is ``optional``.
    """

    kind: str
    text: str
    """The schema, the expression or the rules; of a choice its texts as a JSON list."""
    layout: str = ""
    """Of JSON: a key of `LAYOUTS`."""
    after: str | None = None
    optional: bool = False
    """Whether the text may end without its marker."""
    not_before: str | None = None
    """Another marker: up to it ``after`` is not looked for, such as the end of reasoning."""

    def __post_init__(self) -> None:
        try:
            size = sum(len((part or "").encode()) for part in (self.text, self.after, self.not_before))
        except UnicodeEncodeError:
            raise InputError("the grammar holds half a character (a surrogate alone); write whole characters") from None
        if size > LARGEST:
            raise InputError(f"a grammar has at most {LARGEST >> 10} KiB of text, and this one has {size} bytes")

    @classmethod
    def json_schema(
        cls, schema: Mapping[str, Any] | bool | str, *, layout: str = "line", after: str | None = None
    ) -> Grammar:
        """JSON that is valid under a schema, which is a dict or JSON itself. The keys stand in the order of the schema.

        ``layout`` is ``line`` for ``{"a": [1, 2]}``, ``compact`` for ``{"a":[1,2]}``, and ``any`` for blanks and lines
        anywhere between tokens of JSON.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise InputError(f"the schema is no JSON: {error}") from None
        if not isinstance(schema, (Mapping, bool)):
            raise InputError(f"a JSON schema is a dict, True or False, not {shown(schema)}")
        if layout not in LAYOUTS:
            raise InputError(f"layout is {', '.join(LAYOUTS)}, not {shown(layout)}")
        try:
            text = json.dumps(schema, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the schema cannot be written as JSON: {error}") from None
        return cls(JSON, text, layout, _marker(after))

    @classmethod
    def json_object(cls, *, layout: str = "line", after: str | None = None) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"}, layout=layout, after=after)

    @classmethod
    def regex(cls, expression: str, *, after: str | None = None) -> Grammar:
        """A text that an expression matches as a whole, in the syntax of Rust's regex: without look-around and
        references."""
        return cls(REGEX, _text("a regular expression", expression), "", _marker(after))

    @classmethod
    def choice(cls, texts: Sequence[str], *, after: str | None = None) -> Grammar:
        """One of these texts."""
        if not isinstance(texts, Collection) or isinstance(texts, (str, bytes, Mapping)) or not texts:
            raise InputError(f"a choice is a list of texts, such as ['yes', 'no'], not {shown(texts)}")
        chosen = [_text("an entry of a choice", text) for text in texts]
        return cls(CHOICE, json.dumps(chosen, ensure_ascii=False), "", _marker(after))

    @classmethod
    def lark(cls, rules: str, *, after: str | None = None) -> Grammar:
        """A grammar in Lark's notation, with the extensions of llguidance; its first rule is ``start``."""
        return cls(LARK, _text("a grammar", rules), "", _marker(after))

    @classmethod
    def gbnf(cls, rules: str, *, after: str | None = None) -> Grammar:
        """A grammar in llama.cpp's notation, an EBNF; its first rule is ``root``."""
        return cls(GBNF, _text("a grammar", rules), "", _marker(after))

    def packed(self) -> dict[str, Any]:
        """The description as JSON."""
        return {field.name: getattr(self, field.name) for field in fields(Grammar)}

    @staticmethod
    def unpacked(given: Mapping[str, Any] | None) -> Grammar | None:
        """The grammar of `packed`."""
        return None if given is None else Grammar(**given)


class Matcher(Protocol):
    """A grammar and the tokens that it has consumed."""

    def consume(self, tokens: Sequence[int]) -> int:
        """Consume tokens up to the first that is not allowed; returns their number."""

    def rollback(self, count: int) -> None:
        """Take back the last tokens that were consumed."""

    def allowed(self) -> NDArray[np.bool_]:
        """Whether each token of the vocabulary may come next."""

    def forced(self) -> bytes:
        """The bytes that must come next, as far as there is no choice."""

    @property
    def accepting(self) -> bool:
        """Whether the text may end here."""

    @property
    def stopped(self) -> bool:
        """Whether it must end here."""


def _text(one: str, given: object) -> str:
    if not isinstance(given, str) or not given:
        raise InputError(f"{one} is a text that is not empty, not {shown(given)}")
    return given


def _marker(given: object) -> str | None:
    return None if given is None else _text("the marker after which a grammar applies", given)
