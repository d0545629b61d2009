"""From logits to a law over the next token, and from keyed noise to a choice under that law.

This is the only room where scores become probabilities. `settings` says what the user asked for, `law`
applies it to a row of logits by way of `adjust` and `warp`, `distribution` is the result, `noise` supplies
the random bits, `on_device` those on another device, and `dice` throws them; `contenders` finds the few tokens that
can win, `kernels` is what is compiled of both; `scores` normalises raw rows; `outlook` is the law as a drafter
expects it. What loads torch is fetched on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from paceline.law.dice import Dice, KeyedDice
from paceline.law.distribution import Distribution, Weight, race
from paceline.law.noise import Noise, Stream
from paceline.law.outlook import Draw, Outlook
from paceline.law.scores import log_normalizer, log_probabilities
from paceline.law.settings import Processor, Sampling

if TYPE_CHECKING:
    from paceline.law.law import Law, Place, laws

__all__ = [
    "Dice",
    "Distribution",
    "Draw",
    "KeyedDice",
    "Law",
    "Noise",
    "Outlook",
    "Place",
    "Processor",
    "Sampling",
    "Stream",
    "Weight",
    "laws",
    "log_normalizer",
    "log_probabilities",
    "race",
]


def __getattr__(name: str) -> object:
    home = {"Law": "law", "Place": "law", "laws": "law"}.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
