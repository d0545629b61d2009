"""From logits to a law over the next token, and from keyed noise to a choice under that law.

This is the only room where scores become probabilities. `settings` says what the user asked for, `law`
applies it to a row of logits by way of `adjust` and `warp`, `distribution` is the result, `noise` supplies
the random bits and `dice` throws them; `scores` normalises raw rows; `outlook` is the law as a drafter
expects it. `Law` and `Outlook` are fetched on first use, because they load torch.
"""

from typing import TYPE_CHECKING

from paceline.law.dice import Dice, KeyedDice
from paceline.law.distribution import Distribution, Weight, race
from paceline.law.noise import Noise, Stream
from paceline.law.scores import log_normalizer, log_probabilities
from paceline.law.settings import Processor, Sampling

if TYPE_CHECKING:
    from paceline.law.law import Law
    from paceline.law.outlook import Outlook

__all__ = [
    "Dice",
    "Distribution",
    "KeyedDice",
    "Law",
    "Noise",
    "Outlook",
    "Processor",
    "Sampling",
    "Stream",
    "Weight",
    "log_normalizer",
    "log_probabilities",
    "race",
]


def __getattr__(name: str) -> object:
    if name == "Law":
        from paceline.law.law import Law

        return Law
    if name == "Outlook":
        from paceline.law.outlook import Outlook

        return Outlook
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
