"""Lossless speculative decoding for any transformers causal language model.

This file is the only entrance. Names are fetched on first use, so that `import paceline` costs milliseconds and imports
neither torch nor transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.api.batch import TextBatch as TextBatch
    from paceline.api.chat import Conversation as Conversation
    from paceline.api.model import LanguageModel as LanguageModel
    from paceline.api.model import load as load
    from paceline.api.piece import Piece as Piece
    from paceline.api.settings import Options as Options
    from paceline.api.settings import Settings as Settings
    from paceline.api.writing import Generation as Generation
    from paceline.api.writing import Writing as Writing
    from paceline.context import Context as Context
    from paceline.drafters import Ask as Ask
    from paceline.drafters import Budget as Budget
    from paceline.drafters import Drafter as Drafter
    from paceline.drafters import Seen as Seen
    from paceline.drafters.counters import Counter as Counter
    from paceline.engine.observe import Observed as Observed
    from paceline.errors import CallbackError as CallbackError
    from paceline.errors import DefectError as DefectError
    from paceline.errors import DrafterError as DrafterError
    from paceline.errors import DrafterWarning as DrafterWarning
    from paceline.errors import InputError as InputError
    from paceline.errors import PacelineError as PacelineError
    from paceline.errors import UnsupportedModel as UnsupportedModel
    from paceline.grammar import Grammar as Grammar
    from paceline.integrations.transformers import custom_generate as custom_generate
    from paceline.law import Distribution as Distribution
    from paceline.law import Sampling as Sampling
    from paceline.targets.base import Want as Want
    from paceline.targets.scores import Scores as Scores
    from paceline.targets.table import TableTarget as TableTarget
    from paceline.tree import DraftTree as DraftTree

__version__ = "0.1.0"

_HOME = {
    "Ask": "paceline.drafters",
    "Budget": "paceline.drafters",
    "CallbackError": "paceline.errors",
    "Context": "paceline.context",
    "Conversation": "paceline.api.chat",
    "Counter": "paceline.drafters.counters",
    "DefectError": "paceline.errors",
    "Distribution": "paceline.law",
    "DraftTree": "paceline.tree",
    "Drafter": "paceline.drafters",
    "DrafterError": "paceline.errors",
    "DrafterWarning": "paceline.errors",
    "Generation": "paceline.api.writing",
    "Grammar": "paceline.grammar",
    "InputError": "paceline.errors",
    "LanguageModel": "paceline.api.model",
    "Observed": "paceline.engine.observe",
    "Options": "paceline.api.settings",
    "PacelineError": "paceline.errors",
    "Piece": "paceline.api.piece",
    "Sampling": "paceline.law",
    "Scores": "paceline.targets.scores",
    "Seen": "paceline.drafters",
    "Settings": "paceline.api.settings",
    "TableTarget": "paceline.targets.table",
    "TextBatch": "paceline.api.batch",
    "UnsupportedModel": "paceline.errors",
    "Want": "paceline.targets.base",
    "Writing": "paceline.api.writing",
    "custom_generate": "paceline.integrations.transformers",
    "load": "paceline.api.model",
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
    return ["__version__", *__all__]
