"""The dictionaries that come with the package, for the bundled models. `CARD.md` says what they are made of."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from paceline.dictionary.file import FORMAT

FOLDER = Path(__file__).parent


@cache
def shipped(fingerprint: str) -> tuple[Path, ...]:
    """Those for the tokenizer of this fingerprint, in the order of their names."""
    return tuple(
        path for path in sorted(FOLDER.glob("*.dict")) if FORMAT.open(path).description.tokenizer == fingerprint
    )
