"""The command line: thin commands, one file each. `main` is the entry point."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from paceline import __version__
from paceline.cli import completion, streams
from paceline.cli.arguments import Parser
from paceline.cli.failures import OURS, sentence
from paceline.cli.options import check_most
from paceline.cli.output import note, say, status, wipe
from paceline.errors import DefectError, InputError, RankLost
from paceline.files import Terminated, terminable
from paceline.targets.torchrun import follows, let_first_report, refuse_copies
from paceline.targets.trust import trusting

COMMANDS = (
    "paceline_lab.commands.demo",
    "paceline.cli.generate",
    "paceline.cli.chat",
    "paceline.cli.serve",
    "paceline_lab.commands.advise",
    "paceline_lab.commands.calibrate",
    "paceline_lab.commands.check",
    "paceline_lab.commands.bench",
    "paceline_make.commands.train",
    "paceline_make.commands.datastore",
    "paceline_make.commands.dictionary",
    "paceline_lab.commands.export",
    "paceline.cli.methods",
    "paceline.cli.completion",
)
"""The modules of the commands by name, for this package imports nothing of those that measure and make."""


def parser() -> Parser:
    """The whole command line."""
    top = Parser(prog="paceline", description="Makes language models write faster without changing what they write.")
    top.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        import_module(command).add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0 is success, 1 a check that found a bug, or a plug-in that failed, 2 a mistake in what was
    asked, 130 an interruption and 143 a termination."""
    called, silent = "paceline", False
    try:
        streams.prepare()
        commands = parser()
        completion.complete(commands)
        options = commands.parse_args(arguments)
        called = options.called
        check_most(options)
        if hasattr(options, "tensor_parallel"):  # one text for all processes; a training divides its work instead
            silent = follows()
            refuse_copies(options.tensor_parallel)
        if models := getattr(options, "models", None) or getattr(options, "model", None):
            with streams.muted(silent):
                status(f"loading {models[0] if isinstance(models, list) else models} ...")
        consent = trusting(getattr(options, "trust_remote_code", False))
        with terminable(), consent, streams.quiet_libraries(), streams.muted(silent):
            warnings.showwarning = lambda message, *_, **__: note(str(message))
            code = int(options.run(options))
        wipe()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        streams.silence()
        return 141
    except KeyboardInterrupt:
        say("\npaceline: interrupted", file=sys.stderr)
        return 130
    except Terminated as ended:
        say("\npaceline: terminated", file=sys.stderr)
        return int(str(ended.code))
    except Exception as error:
        if (said := sentence(error)) is None:
            error.add_note(OURS)
            raise
        if silent and isinstance(error, InputError | RankLost):
            let_first_report()
        else:
            say(f"{called}: error: {said}", file=sys.stderr)
        return 1 if isinstance(error, DefectError | RankLost) else 2
