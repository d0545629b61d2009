"""How drafted tokens become tokens of the target.

none         the ids as they are: with unequal vocabularies they mean something else (the paper's first condition)
naive        decode the draft, encode the text: SentencePiece then puts a space before it
context:p    encode the last p tokens of the text with the draft, and drop as many tokens as the p have alone
lattice      the bytes of the draft in all spellings that are likely enough, as one tree
tli          tokens that both vocabularies have; the draft model chooses among them only

``context:0`` is ``naive`` without the space.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.errors import InputError

NONE, NAIVE, CONTEXT, LATTICE, TLI = "none", "naive", "context", "lattice", "tli"
PREFIX = 5
"""The tokens before a draft that ``context`` encodes with it, where it names none."""


@dataclass(frozen=True)
class Strategy:
    """One way to translate, as an option names it."""

    name: str
    prefix: int = 0
    """The tokens before a draft that are encoded with it."""

    @classmethod
    def parse(cls, text: str) -> Strategy:
        if text in (NONE, NAIVE, LATTICE, TLI):
            return cls(text)
        found = re.fullmatch(r"context(?::(-?\d+))?", text)
        if found is None:
            raise InputError(
                f"translate is none, naive, context, context:P, lattice or tli, not {text!r}; "
                "leave it out for what suits the two tokenizers"
            )
        prefix = PREFIX if found[1] is None else int(found[1])
        if prefix < 0:
            raise InputError(f"translate=context:P takes 0 or more tokens of the text, not {prefix}")
        return cls(CONTEXT, prefix)

    def __str__(self) -> str:
        return f"{self.name}:{self.prefix}" if self.name == CONTEXT else self.name
