"""The options of each kind of head that ``paceline train`` trains."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.cli.arguments import Parser
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline_make.heads.kinds.base import HeadKind

OUTPUTS = ("own", "model")
ANCHORS, RANK = 64, 32
FORMS, TUNES = ("adapter", "paper"), ("full", "lora")
LORA = TUNES[1]


class KindOptions(NamedTuple):
    """A kind of head on the command line."""

    method: str
    help: str
    description: str
    add: Callable[[Parser], None]
    kind: Callable[[argparse.Namespace], HeadKind[Any]]
    counts: tuple[str, ...]
    """Options that are at least 1."""
    decay: float | None
    """What a step ahead weighs beside the one before, unless the user says it; None where it depends on other
    options."""
    ahead: int = 5
    """Tokens that are learnt ahead, likewise."""
    rate: float | None = 0.002
    """The learning rate's peak, likewise; None where it depends on other options."""


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


def _add_output(parser: Parser, default: str) -> None:
    parser.add_argument(
        "--output",
        choices=OUTPUTS,
        default=default,
        help=f"own: an output matrix of the head's; model: the model's, which needs no place (default: {default})",
    )
    _add_part(parser)


def _own_output(options: argparse.Namespace) -> bool:
    """Whether the head has an output; a part of the vocabulary or thin matrices need one."""
    if options.output == "model" and (options.rank or options.kept):
        raise InputError("--rank and --kept are of an output of the head's; give --output own, or leave them out")
    return bool(options.output == "own")


def _add_medusa(parser: Parser) -> None:
    parser.argument("--blocks", "N", "blocks of each head (default: 1)", int, default=1)
    _add_output(parser, "own")


def _medusa(options: argparse.Namespace) -> HeadKind[Any]:
    from paceline_make.heads.kinds.medusa import MedusaKind

    own = _own_output(options)
    return MedusaKind(blocks=options.blocks, own_output=own, rank=options.rank, kept=options.kept)


def _add_hydra(parser: Parser) -> None:
    parser.argument("--blocks", "N", "blocks of each head (default: 1)", int, default=1)
    parser.flag("--prefix", "read the text through a layer of attention (Hydra++)")
    parser.argument("--units", "N", "of that layer's MLP (default: three times the model's width)", int)
    _add_part(parser)


def _hydra(options: argparse.Namespace) -> HeadKind[Any]:
    from paceline_make.heads.kinds.hydra import HydraKind

    if options.units is not None and not options.prefix:
        raise InputError("--units is of the layer that reads the text; give --prefix, or leave it out")
    return HydraKind(
        blocks=options.blocks, prefix=options.prefix, units=options.units, rank=options.rank, kept=options.kept
    )


def _add_states(parser: Parser) -> None:
    text = "layers whose inputs it reads, as 2,4,7 (default: three from all over the model)"
    parser.argument("--states", "N,...", text)
    parser.argument("--units", "N", "of its MLPs (default: three times the model's width)", int)


def _states(options: argparse.Namespace) -> tuple[int, ...]:
    if options.states is None:
        return ()
    try:
        found = tuple(int(each) for each in options.states.split(","))
    except ValueError:
        raise InputError(f"--states are numbers of layers, as 2,4,7, not {options.states!r}") from None
    if len({*found}) < len(found):
        raise InputError(f"--states names a layer twice: {options.states}")
    return found


def _add_eagle(parser: Parser) -> None:
    _add_states(parser)
    _add_output(parser, "model")


def _eagle(options: argparse.Namespace) -> HeadKind[Any]:
    from paceline_make.heads.kinds.eagle import EagleKind

    own, states = _own_output(options), _states(options)
    return EagleKind(states=states, units=options.units, own_output=own, rank=options.rank, kept=options.kept)


def _add_block(parser: Parser) -> None:
    parser.argument("--layers", "N", "layers (default: 2)", int, default=2)
    parser.argument(
        "--markov", "N", "rank of a bias by the token before, as DSpark has (default: none)", int, default=0
    )
    parser.argument("--anchors", "N", f"positions of a window that are learnt in a step (default: {ANCHORS})", int)
    _add_states(parser)
    _add_output(parser, "model")


def _block(options: argparse.Namespace) -> HeadKind[Any]:
    from paceline_make.heads.kinds.block import BlockKind

    if options.anchors is not None and options.anchors >= options.window:
        raise InputError(
            f"--anchors {options.anchors} are more than a window of {options.window} tokens has places for"
        )
    return BlockKind(
        states=_states(options),
        layers=options.layers,
        units=options.units,
        markov=options.markov,
        anchors=options.anchors or ANCHORS,
        own_output=_own_output(options),
        rank=options.rank,
        kept=options.kept,
    )


def _add_streaming(parser: Parser) -> None:
    parser.argument(
        "--target", "MODEL", "the model that is drafted for, whose continuations are learnt (default: --model's own)"
    )
    parser.add_argument(
        "--form",
        choices=FORMS,
        default=FORMS[0],
        help="adapter: the model stays as it is, and maps of low rank act on streams alone; paper: the model and its "
        f"streams learn together, with the same weights (default: {FORMS[0]})",
    )
    parser.add_argument(
        "--tune",
        choices=TUNES,
        help="of --form paper. full: all weights learn; lora: maps of low rank learn beside the linear ones, and are "
        f"added to their weights at the end (default: {TUNES[0]})",
    )
    text = "the model's last ones in which streams are computed (default: half of them)"
    parser.argument("--layers", "N", text, int)
    parser.argument("--rank", "N", f"of maps of low rank (default: {RANK})", int)


def _streaming(options: argparse.Namespace) -> HeadKind[Any]:
    from paceline_make.heads.kinds.streaming import StreamingKind
    from paceline_make.heads.kinds.tuned import TunedKind

    layers = options.layers or 0
    if options.form == FORMS[0]:
        if options.tune is not None:
            raise InputError(f"--tune {options.tune} is of --form paper; give that, or leave it out")
        return StreamingKind(layers=layers, rank=options.rank or RANK)
    if options.int8:
        raise InputError("--int8 stores heads, and --form paper writes a model; leave it out")
    if options.tune == LORA:
        return TunedKind(layers=layers, rank=options.rank or RANK)
    if options.rank is not None:
        raise InputError(f"--rank {options.rank} is of maps of low rank; give --tune {LORA}, or leave it out")
    return TunedKind(layers=layers)


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
    KindOptions(
        "medusa",
        "train Medusa's heads",
        "Each head predicts one place from the model's last state.",
        _add_medusa,
        _medusa,
        ("blocks",),
        0.8,
    ),
    KindOptions(
        "hydra",
        "train Hydra's heads",
        "Each head predicts one place from the model's last state and the tokens before that place.",
        _add_hydra,
        _hydra,
        ("blocks", "units"),
        1.0,
    ),
    KindOptions(
        "eagle",
        "train a head of EAGLE-3",
        "The head reads states of the model for the whole text, and in a draft its own outputs.",
        _add_eagle,
        _eagle,
        ("units",),
        0.8,
    ),
    KindOptions(
        "block",
        "train a block head (DFlash, DSpark)",
        "The head reads states of the model for the whole text, and predicts a block of tokens in one pass.",
        _add_block,
        _block,
        ("layers", "units", "anchors"),
        0.8,
    ),
    KindOptions(
        "streaming",
        "train streams of a draft model",
        "Streams are extra rows of a draft model's last layers, which guess the tokens after its next one.",
        _add_streaming,
        _streaming,
        ("layers", "rank"),
        None,
        3,
        None,
    ),
)
