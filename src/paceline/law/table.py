"""The facts about a sampling setting, and how the fields of `Sampling` make a table of it.

A row holds all that the project knows about its setting. So a new setting is one field in `settings`, and functions
beside it for its effect. Functions that need numpy or torch may be named instead of given: the command line reads the
table for its help, and importing either would take as long as the help itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from importlib import import_module
from itertools import groupby
from numbers import Integral
from typing import Any, TypeAlias

Function: TypeAlias = "Callable[..., Any] | str"
"""A function, or ``module.name`` of one in this room."""
ROW = "sampling setting"


class Acts(Enum):
    ON_LOGITS = "before temperature, also on greedy decoding"
    AS_CUT = "after temperature: tokens are left out"


@dataclass(frozen=True, kw_only=True)
class InTransformers:
    """A setting as transformers applies it."""

    processor: str
    """The class of its logits processor."""
    argument: str | None = None
    """The attribute in which such a processor holds the value; None if the value cannot be read back from it."""
    given: Callable[[Any], Any] = lambda value: value
    """The value as the processor and `generate` take it."""
    if_unset: Any = None
    """The value there where a model samples and its file gives none."""
    always_given: bool = False
    """Whether `generate` needs the value even where it does nothing, since a model's file may say otherwise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SettingRow:
    """A row of the table. Adjacent rows with the same ``host`` act together: it gets the values of all of them, and so
    do ``side_by_side`` and ``reference``."""

    default: Any
    check: Callable[[str, Any], None]
    """Refuses a wrong value, given the setting's name."""
    name: str = ""
    """Of the field."""
    kind: type[int] | type[float] | None = None
    """Of a number; None for a list or a dict, which acts unless it is empty, and for what may be None."""
    help: str | None = None
    """Of the flag; None for no flag."""
    largest: float | None = None
    """The largest value on the command line."""

    acts: Acts | None = None
    """None for what does not act by itself."""
    host: Function | None = None
    """On logits: ``(*values) -> step``, a step being ``(scores, tokens, prompt length) -> scores`` and called for every
    token. As a cut: ``(candidates, *values) -> mask`` of the candidates that are kept."""
    side_by_side: Function | None = None
    """On logits of drafts of several texts, on a device; see `side_by_side`. None leaves it out there."""
    kernel: str | None = None
    """The field of `Warps` in which kernels know a cut. Where a cut without one acts, no kernel chooses tokens."""
    token: Callable[[Any], int] | None = None
    """The token that an entry of the value makes more or less likely, where entries name tokens."""
    stateful: bool = False
    """Whether functions of the user act, which may keep state: called once per emitted token, never for a draft."""
    along_path: bool = False
    """Whether it follows the text: drafts leave it out, and only rows along the text's path are read with it."""
    packs: Callable[[Any], Any] | None = None
    """The value as JSON, where it is neither a number nor made of numbers."""
    unpacks: Callable[[Any], Any] | None = None
    """The value of what ``packs`` returned."""

    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Libraries in which a setting acts by the same law -> its name there."""
    transformers: InTransformers | None = None

    label: str = ""
    """A short name, for tables."""
    tried: tuple[Any, ...] = ()
    """Values that `check` tries: one alone, one together with others. Functions get the size of the vocabulary."""
    reference: Callable[..., Any] | None = None
    """``(scores, emitted, *values) -> scores``, with how often each token was emitted: the same by another formula, for
    `check` to compare with where transformers has no processor for it."""
    stretch: Callable[[Any], float] | None = None
    """By how much it may multiply a difference of logits."""
    loosened: Callable[[Any, float], Any] | None = None
    """A cut's value that keeps tokens whose logits over the temperature were wrong by so much."""

    def active(self, value: Any) -> bool:
        """Whether a value changes anything."""
        if self.kind is not None or self.default is None:
            return bool(value != self.default)
        return len(value) > 0

    def within(self, value: Any, size: int) -> Any:
        """The value without entries that make a token beyond a vocabulary likely."""
        assert self.token is not None, "its entries name tokens"
        if isinstance(value, Mapping):
            return {entry: worth for entry, worth in value.items() if self.token(entry) < size}
        return tuple(entry for entry in value if self.token(entry) < size)

    def packed(self, value: Any) -> Any:
        """The value as JSON."""
        return packed(value) if self.packs is None else self.packs(value)

    def unpacked(self, value: Any) -> Any:
        """The value of `packed`."""
        if self.unpacks is not None:
            return self.unpacks(value)
        return dict(value) if isinstance(self.default, Mapping) else value

    def example(self, number: int, vocab_size: int) -> Any:
        """A value to try; the last one stands for those that are missing."""
        value = self.tried[min(number, len(self.tried) - 1)]
        return value(vocab_size) if callable(value) else value


def setting(default: Any, **row: Any) -> Any:
    """A field of `Sampling` with its row; see `SettingRow`."""
    unhashable = isinstance(default, Mapping)
    made = SettingRow(default=default, **row)
    value: Any = {"default_factory": lambda: type(default)()} if unhashable else {"default": default}
    return field(**value, hash=False if unhashable else None, metadata={ROW: made})


def table(kind: Any) -> tuple[SettingRow, ...]:
    """The rows of a class like `Sampling`, in the order of its fields."""
    return _table(kind)


@cache
def _table(kind: Any) -> tuple[SettingRow, ...]:
    return tuple(replace(each.metadata[ROW], name=each.name) for each in fields(kind))


def groups(kind: Any, acts: Acts) -> list[tuple[SettingRow, ...]]:
    """The rows of a class that act at this stage, in order, those that act together as one."""
    return _groups(kind, acts)


@cache
def _groups(kind: Any, acts: Acts) -> list[tuple[SettingRow, ...]]:
    return grouped(row for row in table(kind) if row.acts is acts)


def grouped(rows: Iterable[SettingRow]) -> list[tuple[SettingRow, ...]]:
    """Rows that act together."""
    return [tuple(group) for _, group in groupby(rows, key=lambda row: row.host)]


@cache
def function(given: Function) -> Callable[..., Any]:
    """The function that a row gives or names."""
    if not isinstance(given, str):
        return given
    module, _, name = given.partition(".")
    found: Callable[..., Any] = getattr(import_module(f"paceline.law.{module}"), name)
    return found


def packed(value: Any) -> Any:
    """A value as JSON; a dict as pairs, since keys of JSON are texts."""
    if isinstance(value, Mapping):
        return [[packed(entry), packed(worth)] for entry, worth in value.items()]
    if isinstance(value, Collection):
        return [packed(entry) for entry in value]
    return int(value) if isinstance(value, Integral) else float(value)
