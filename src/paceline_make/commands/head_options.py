"""The options of each kind of head that ``paceline train`` trains."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.cli.arguments import Parser

if TYPE_CHECKING:
    from paceline_make.heads.kinds.base import HeadKind


class KindOptions(NamedTuple):
    """A kind of head on the command line."""

    method: str
    help: str
    description: str
    add: Callable[[Parser], None]
    kind: Callable[[argparse.Namespace], HeadKind[Any]]
    counts: tuple[str, ...]
    """Options that are at least 1."""
    decay: float
    """What a step ahead weighs beside the one before, unless the user says it."""


def _add_part(parser: Parser) -> None:
    parser.argument("--rank", "N", "output matrix of two thin ones of this width (default: one whole)", int, default=0)
    parser.argument("--kept", "N", "know only the N most frequent tokens of the data (default: all)", int, default=0)


def _add_recurrent(parser: Parser) -> None:
    parser.argument("--exit", "N", "the width of the head's blocks (default: the model's)", int)
    parser.argument("--blocks", "N", "blocks (default: 2)", int, default=2)
    _add_part(parser)
    parser.flag("--cumulative", "add embeddings up in place of the recurrent state")


def _recurrent(options: argparse.Namespace) -> HeadKind[Any]:
    from paceline_make.heads.kinds.recurrent import RecurrentKind

    return RecurrentKind(
        exit=options.exit,
        blocks=options.blocks,
        rank=options.rank,
        kept=options.kept,
        recurrent=not options.cumulative,
    )


KINDS = (
    KindOptions(
        "redrafter",
        "train a recurrent head for the method redrafter",
        "The head passes a recurrent state from token to token.",
        _add_recurrent,
        _recurrent,
        ("exit",),
        1.0,
    ),
)
