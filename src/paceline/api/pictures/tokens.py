"""The picture of a text as data: its tokens, the source of each, and its round.

What can be seen is a *cell*: usually one token, several where they make one character between them (the bytes of a
letter, a letter and the accents on it) or where their text became certain together. Putting a box around half a letter
would show a text that was never written.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paceline.verify import Kind

if TYPE_CHECKING:
    from paceline.api.piece import Piece
    from paceline.engine.counters import Totals

JOINERS = frozenset("\u200c\u200d")
"""Characters that shape what stands on both sides of them: their neighbours belong into one cell."""
VIRAMA = 9
"""The combining class of the signs that join the consonants of an Indic script."""
HALVES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
"""Half characters, which no file can hold."""


WHY_OWN = {
    Kind.UNTOLD: "the model itself",
    Kind.CORRECTED: "corrected: the model refused a draft",
    Kind.BONUS: "bonus: after a whole draft was accepted",
    Kind.PLAIN: "plain: no draft in that round",
}
"""The model's own tokens, in the words and the order of legends."""


@dataclass(frozen=True)
class Cell:
    """A unit of the drawing: a text and the pieces that it is made of. Without text it is the end of a text, where an
    end-of-text token or a stop string was cut off."""

    text: str
    pieces: tuple[Piece, ...]

    @property
    def source(self) -> str:
        """The source of its last token, the one that completed it; "" for the model itself."""
        return self.pieces[-1].source

    @property
    def kind(self) -> Kind:
        """The kind of its last token."""
        return Kind(self.pieces[-1].kind)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of its tokens, each once, in order."""
        return tuple(dict.fromkeys(piece.source for piece in self.pieces))

    @property
    def round(self) -> int:
        """The round that it began in."""
        return self.pieces[0].round


def cells(pieces: Iterable[Piece]) -> Iterator[Cell]:
    """Cells as soon as they are complete, so that a text can be drawn while it is being written."""
    text = ""
    held: list[Piece] = []
    waiting: list[Piece] = []
    for piece in pieces:
        if piece.token is not None:
            waiting.append(piece)
        if not piece.text:
            continue
        if held and waiting and not _joined(text, piece.text):
            yield Cell(text, tuple(held))
            text, held = "", []
        text, held, waiting = text + piece.text, held + waiting, []
    for said, made_of in ((text, held), ("", waiting)):
        if made_of:
            yield Cell(said, tuple(made_of))


def _joined(before: str, after: str) -> bool:
    """Whether two texts are drawn as one: a mark goes onto what stands before it, a virama binds two consonants."""
    bound = before[-1] in JOINERS or after[0] in JOINERS or unicodedata.combining(before[-1]) == VIRAMA
    return bound or unicodedata.category(after[0]).startswith("M")


@dataclass(frozen=True)
class TokenPicture:
    """One text with its tokens by source. ``facts`` say how it was written, in the order in which they are shown."""

    prompt: str
    pieces: tuple[Piece, ...]
    totals: Totals | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cells(self.pieces))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Tokens by source: the model itself ("") first, then the drafters, the most useful first."""
        found = Counter(piece.source for piece in self.pieces if piece.token is not None)
        drafters = sorted((name for name in found if name), key=lambda name: (-found[name], name))
        return {"": found[""], **{name: found[name] for name in drafters}}

    @cached_property
    def own(self) -> dict[Kind, int]:
        """The model's own tokens by kind, as far as there are any."""
        found = Counter(Kind(piece.kind) for piece in self.pieces if piece.token is not None and not piece.source)
        return {kind: found[kind] for kind in WHY_OWN if found[kind]}


def summary(totals: Totals) -> str:
    """The totals in one sentence."""
    return (
        f"{_in_rounds(totals)}: "
        f"{totals.tokens_per_round:.2f} per round, {totals.tokens_per_second:.1f} per second; "
        f"{totals.accepted} of {_count(totals.drafted, 'drafted token')} accepted"
    )


def in_brief(totals: Totals) -> str:
    """Tokens, rounds and speed in a few words."""
    return f"{_in_rounds(totals)}, {totals.tokens_per_second:.1f} tokens/s"


def last_line(totals: Totals) -> str:
    """The same with the ratio of tokens to rounds, which a text of one token has not."""
    each = f" ({totals.tokens_per_round:.1f} each), {totals.tokens_per_second:.1f} tokens/s"
    return f"{_in_rounds(totals)}{each if totals.rounds and totals.seconds else ''}"


def _in_rounds(totals: Totals) -> str:
    """Tokens and rounds. A text's first token comes with its prompt, which is no round."""
    if not totals.rounds:
        return f"{_count(totals.tokens, 'token')}, 0 rounds"
    behind = f", {totals.tokens_in_rounds} of them" if totals.tokens_of_prefill else ""
    return f"{_count(totals.tokens, 'token')}{behind} in {_count(totals.rounds, 'round')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
