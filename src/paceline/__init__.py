"""Lossless speculative decoding for any transformers causal language model.

This file is the only door. Names are fetched on first use, so that `import paceline` costs milliseconds and
brings in neither torch nor transformers.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "Budget": "paceline.drafters",
    "Context": "paceline.context",
    "DraftTree": "paceline.tree",
    "Drafter": "paceline.drafters",
    "Generation": "paceline.hosts.python",
    "LanguageModel": "paceline.hosts.python",
    "Piece": "paceline.hosts.python",
    "Sampling": "paceline.law",
    "Settings": "paceline.hosts.python",
    "TableTarget": "paceline.targets.table",
    "Want": "paceline.targets.base",
    "load": "paceline.hosts.python",
}
"""Exported name -> the module that defines it."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
