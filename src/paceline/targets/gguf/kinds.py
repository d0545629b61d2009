"""Types of weights in GGUF files: those that the ``gguf`` package writes, and those that llama.cpp makes."""

from __future__ import annotations

from typing import NamedTuple

from paceline.errors import InputError

FLOATS = ("F32", "F16", "BF16")
WRITTEN = (*FLOATS, "Q8_0", "Q5_0", "Q4_0")
"""Types that need no llama.cpp: floats, and integers with a scale for every 32 of them."""
BLOCK, SUPER_BLOCK = 32, 256
"""Values of a row that share a scale: rows must be divisible by them."""
K_TYPES = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K")
MADE = {
    **dict.fromkeys(("Q4_1", "Q5_1", "IQ4_NL"), BLOCK),
    **dict.fromkeys((*K_TYPES, "IQ3_S", "IQ3_M", "IQ4_XS"), SUPER_BLOCK),
}
"""Types that llama.cpp's quantiser makes without statistics of activations -> the block that divides a row."""
TYPES = (*WRITTEN, *MADE)
BUNDLED = "paceline.bundled"
"""The key under which a file says of which bundled model it was made: heads for that draft for it."""


class Instead(NamedTuple):
    """Why transformers reads a file in llama.cpp's place."""

    why: str
    so: str
    """That it is read so, as a part of a sentence which goes on with what that needs."""
    otherwise: str
    """What else can be done where it cannot."""


def named_type(given: str) -> str:
    """The type that a user names, in any case, with - or _."""
    found = given.upper().replace("-", "_")
    if found not in TYPES:
        raise InputError(f"{given!r} is no type of weights that is written here; choose {', '.join(TYPES).lower()}")
    return found


def stored_type(shape: tuple[int, ...], kind: str) -> str:
    """The type of one tensor: vectors stay floats, and matrices whose rows the blocks do not divide become halves."""
    if len(shape) == 1:
        return "F32"
    return "F16" if kind not in FLOATS and shape[1] % BLOCK else kind
