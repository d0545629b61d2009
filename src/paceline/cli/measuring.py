"""Options and words that commands share which measure: demo, calibrate, and those of bench."""

from __future__ import annotations

import argparse
import math

from paceline.cli.common import utf8
from paceline.errors import InputError

LOOPING = 0.2
"""Share of repeated 8-grams from which texts count as loops."""
STABLE = 1.3
"""Ratio of slowest to fastest time for the same work up to which a measurement counts as stable."""
BUNDLED_TEMPERATURE = 0.8
"""The bundled models fall into loops when they are greedy, which flatters methods that look things up."""
PROMPTS = {
    "English": "The old man sat down by the fire and began to tell the story of",
    "Polish": "Stary człowiek usiadł przy ogniu i zaczął opowiadać o tym, jak",
    "Ukrainian": "Старий чоловік сів біля вогню і почав розповідати про те, як",
}
DRAFT = 4
"""Draft tokens per round: in float32 on a CPU every further row of a forward costs, and few are accepted so far out."""


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """Prompts instead of `PROMPTS`; `prompts_of` reads them."""
    parser.add_argument(
        "--prompt",
        type=utf8,
        action="append",
        metavar="TEXT",
        help="write on from this, not from the built-in ones; may repeat",
    )


def prompts_of(options: argparse.Namespace) -> dict[str, str]:
    """Prompts by their languages, or by their numbers."""
    if options.prompt is None:
        return PROMPTS
    if not all(options.prompt):
        raise InputError("a --prompt is empty; give it at least a word to go on from")
    return {f"prompt {number}": prompt for number, prompt in enumerate(options.prompt, start=1)}


def add_length(parser: argparse.ArgumentParser, default: int | None, told: object = None) -> None:
    """How many tokens a text has; ``told`` is the default in words."""
    parser.add_argument(
        "--max-new-tokens", type=int, default=default, metavar="N", help=f"tokens per text (default: {told or default})"
    )


def add_draft_length(parser: argparse.ArgumentParser, default: int | None, told: object = None, of: str = "") -> None:
    """How many tokens a draft has, of the methods ``of`` some kind."""
    parser.add_argument(
        "--num-draft-tokens",
        type=int,
        default=default,
        metavar="K",
        help=f"draft tokens per round{of} (default: {told or default})",
    )


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same texts (default: 0)")


def add_temperature(parser: argparse.ArgumentParser) -> None:
    """The temperature that `temperature_of` reads."""
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help=f"0 is greedy (default: 0; {BUNDLED_TEMPERATURE:g} on the bundled models, which loop when greedy)",
    )


def temperature_of(options: argparse.Namespace) -> float:
    """As asked, or as suits the model."""
    from paceline.targets.pocket.open import is_bundled

    if options.temperature is not None:
        return float(options.temperature)
    return BUNDLED_TEMPERATURE if is_bundled(options.model) else 0.0


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, metavar="N", help="threads of torch (default: as torch chooses)")


def check_counts(options: argparse.Namespace, *names: str) -> None:
    """Refuse counts below 1."""
    for name in names:
        given = getattr(options, name)
        if given is not None and given < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {given}")


def counted(count: int, noun: str) -> str:
    """A number with its noun in the singular or plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def interval(value: float, low: float, high: float) -> str:
    """A value with its bounds, where it has any."""
    return f"{value:.2f}" + ("" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]")
