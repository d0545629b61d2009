"""The command line: thin commands, one file each. `main` is the entry point."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from paceline import __version__
from paceline.cli import bench, calibrate, chat, check, datastore, demo, dictionary, export, generate, methods, streams
from paceline.cli.common import refuse_beyond
from paceline.cli.failures import OURS, sentence
from paceline.cli.streams import say
from paceline.files import Terminated, terminable
from paceline.files.visible import one_line
from paceline.targets.trust import trusting

COMMANDS = (demo, generate, chat, calibrate, check, bench, datastore, dictionary, export, methods)

WITHOUT_A_FLAG = 'the prompt without a flag, as in: paceline generate "Once"'
OUTDATED = {
    "--draft": "--num-draft-tokens",
    "--draft-max": "--num-draft-tokens",
    "--draft-n": "--num-draft-tokens",
    "--spec-draft-n-max": "--num-draft-tokens",
    "--speculative-num-draft-tokens": "--num-draft-tokens",
    "--model-draft": "--draft-model",
    "--spec-draft-model": "--draft-model",
    "--speculative-model": "--draft-model",
    "--speculative-draft-model-path": "--draft-model",
    "--assistant-model": "--draft-model",
    "--spec-type": "--method",
    "--speculative-algorithm": "--method",
    "--speculative-config": "--method, --draft-model and --num-draft-tokens",
    "--prompt-lookup-num-tokens": "--method lookup and --num-draft-tokens",
    "--max-tokens": "--max-new-tokens",
    "-n": "--max-new-tokens",
    "--n-predict": "--max-new-tokens",
    "--predict": "--max-new-tokens",
    "--temp": "--temperature",
    "--repeat-penalty": "--repetition-penalty",
    "--system-prompt": "--system",
    "-p": WITHOUT_A_FLAG,
    "--prompt": WITHOUT_A_FLAG,
}
"""Flags that other tools have or had, and what to write here."""


class Parser(argparse.ArgumentParser):
    """Errors are one sentence, with exit code 2 and without the usage text in front of them."""

    def error(self, message: str) -> NoReturn:
        for word in message.replace("=", " ").split():
            if (new := OUTDATED.get(word)) is not None:
                message = f"{word} is another tool's flag; write {new}"
        self.exit(2, f"paceline: error: {one_line(message)}\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="paceline",
        description="Makes language models write faster without changing what they write.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        command.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. 0 is success, 1 a check that found a bug, 2 a mistake in what was asked, 130 an interruption and
    143 a termination."""
    try:
        streams.prepare()
        options = parser().parse_args(arguments)
        refuse_beyond(options)
        consent = trusting(getattr(options, "trust_remote_code", False))
        with terminable(), warnings.catch_warnings(), consent, streams.clean_logs():
            warnings.showwarning = _note
            code = int(options.run(options))
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
        say(f"paceline: error: {said}", file=sys.stderr)
        return 2


def _note(message: Warning | str, *_: object, **__: object) -> None:
    say(f"paceline: note: {one_line(str(message))}", file=sys.stderr)
