"""From logits to a law over the next token, and from keyed noise to a choice under that law.

This is the only room where scores become probabilities. `settings` is the table of what a user may ask for, made of
rows as `table` has them; `law` applies it to a row of logits (`scores`) by way of `adjust` and `warp`, `distribution`
is the result with the choices made by it, `noise` supplies the random bits, `on_device` those on another device;
`shortlist` are the few tokens that can win, which `contenders` finds on devices, `kernels` is what is compiled of both;
`outlook` is the law as a drafter expects it, `side_by_side` what changes the logits of several texts' drafts.
Everything is fetched on first use: the table can be read without numpy, and a law without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.law.distribution import Dice, Distribution, KeyedDice, Weight, race
    from paceline.law.law import Law, Place, laws
    from paceline.law.noise import Noise, Stream
    from paceline.law.outlook import Draw, Outlook
    from paceline.law.scores import log_normalizer, log_probabilities
    from paceline.law.settings import Processor, Sampling

_HOMES = {
    "Dice": "distribution",
    "Distribution": "distribution",
    "Draw": "outlook",
    "KeyedDice": "distribution",
    "Law": "law",
    "Noise": "noise",
    "Outlook": "outlook",
    "Place": "law",
    "Processor": "settings",
    "Sampling": "settings",
    "Stream": "noise",
    "Weight": "distribution",
    "laws": "law",
    "log_normalizer": "scores",
    "log_probabilities": "scores",
    "race": "distribution",
}

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
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
