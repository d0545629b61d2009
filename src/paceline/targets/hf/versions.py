"""The versions of transformers that this release knows, for sentences about models that cannot be opened."""

from __future__ import annotations

import re

import transformers

TRANSFORMERS_VERSION = transformers.__version__
NEWEST = (5, 24)
"""The newest minor version of transformers that this release was tested with."""

STATES_SINCE = (5, 15)
"""The minor version of transformers since which layers compute their states by functions that can be replaced."""


def installed() -> tuple[int, ...]:
    """The major and minor version of the installed transformers."""
    return tuple(map(int, re.findall(r"\d+", TRANSFORMERS_VERSION)[:2]))


def refused(sentence: str, advice: str = "", model_class: type | None = None) -> str:
    """A sentence that refuses a model, with what helps: an older transformers, if the installed one is newer than those
    that were tested and the class may be its own, or else the ``advice``."""
    theirs = model_class is None or model_class.__module__.startswith("transformers.models.")
    if theirs and installed() > NEWEST:
        major, minor = NEWEST
        advice = (
            f"transformers {TRANSFORMERS_VERSION} is newer than {major}.{minor}, the newest that this release of "
            f"paceline was tested with: pip install 'transformers<{major}.{minor + 1}'"
        )
    return f"{sentence}; {advice}" if advice else sentence
