"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.streams import speaks_unicode
from paceline.errors import InputError
from paceline.files.reading import bounded, read_pipe
from paceline.files.visible import LINE, one_line, visible

if TYPE_CHECKING:
    from rich.text import Text

    from paceline.api.model import LanguageModel
    from paceline.api.settings import Settings
    from paceline.law import Sampling

Subparsers = Any
"""What argparse returns for subcommands; its own type is private."""


MOST = {
    **dict.fromkeys(("batch", "batches", "sequences", "threads"), 1024),
    **dict.fromkeys(("num_draft_tokens", "max_nodes", "budget", "rows"), 4096),
    **dict.fromkeys(("repeat", "passes", "samples"), 10_000),
    **dict.fromkeys(("limit", "rounds", "logprobs", "texts"), 1_000_000),
    **dict.fromkeys(("max_new_tokens", "lengths", "contexts"), 10_000_000),
    **dict.fromkeys(("top_k", "min_count", "ngrams"), 1 << 31),
    **dict.fromkeys(("sizes", "entries", "order"), 1 << 31),  # and closer where they are used
    **dict.fromkeys(("max_prefix", "max_completion"), 1 << 31),
    **dict.fromkeys(("seconds", "calibration_seconds"), 7 * 24 * 60 * 60),
    "seed": (1 << 64) - 1,
}
"""Options that say how much work there is -> the most that anybody means: beyond it a command would never end."""

ESCAPED = {code: f"\\u{code:04x}" for code in LINE if code > 31}
"""What a terminal would obey of the characters that JSON need not escape."""

MODEL = "pocket"
DRAFT_MODEL = "pocket-draft"

PROMPT = 1 << 26
"""Bytes of a prompt: more than any model's context holds."""

SAMPLING = (
    ("--temperature", float, "0 for the most probable token (default: 0)"),
    ("--top-k", int, "keep the K most probable tokens"),
    ("--top-p", float, "keep the most probable tokens that hold this share of the mass"),
    ("--min-p", float, "keep tokens at least this probable, relative to the best"),
    (
        "--repetition-penalty",
        float,
        "divide positive logits of tokens that occurred by this, multiply negative ones",
    ),
    ("--presence-penalty", float, "subtract this from the logits of tokens that were emitted"),
    ("--frequency-penalty", float, "subtract this for every time a token was emitted"),
    ("--seed", int, "same seed, same text, with every method of the coupled rule (default: 0)"),
)


def refuse_beyond(options: argparse.Namespace) -> None:
    """ValueError for an option that asks for more than `MOST`."""
    for name, most in MOST.items():
        given = getattr(options, name, None)
        for one in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(one, (int, float)) and not one <= most:
                raise InputError(f"--{name.replace('_', '-')} must be at most {most}, not {one}")


def utf8(given: str) -> str:
    """An argument that is text. Bytes that the locale has no characters for stand in it as lone surrogates."""
    try:
        given.encode()
        return given
    except UnicodeEncodeError:
        pass
    try:
        return decode(os.fsencode(given), "this")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which model, in which type, on which device."""
    parser.add_argument(
        "--model",
        "-m",
        default=MODEL,
        metavar="MODEL",
        help=f"a bundled model, or folder or name of a transformers causal LM (default: {MODEL})",
    )
    add_place(parser)
    add_trust(parser)


def add_place(parser: argparse.ArgumentParser, dtype: str | None = None) -> None:
    """In which type, and on which device."""
    parser.add_argument(
        "--dtype",
        default=dtype,
        metavar="TYPE",
        help=f"float64, float32, bfloat16 or float16 (default: {dtype or 'as the model has it'})",
    )
    parser.add_argument("--device", metavar="DEVICE", help="where to run it, e.g. cpu, cuda, mps (default: cpu)")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """For every command that opens a model or a tokenizer: `main` gives the consent to all that it opens."""
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python code that a model or tokenizer brings along, which can do anything on this machine",
    )


def add_draft_model(parser: argparse.ArgumentParser) -> None:
    """For commands that try methods: the bundled model brings its draft model along."""
    parser.add_argument(
        "--draft-model",
        "-md",
        metavar="MODEL",
        help=f"a small model that drafts, or none (default: {DRAFT_MODEL} for {MODEL} with or without ballast)",
    )


def draft_model(options: argparse.Namespace) -> str | None:
    """The draft model of `add_draft_model`'s option."""
    given: str | None = options.draft_model
    if given == "none":
        return None
    return given or (DRAFT_MODEL if options.model.partition("+")[0] == MODEL else None)


def add_writing(parser: argparse.ArgumentParser) -> None:
    """How to write: drafting, sampling, and where to end."""
    parser.add_argument(
        "--method",
        metavar="SPEC",
        help="how to draft; 'paceline methods' lists them (default: auto)",
    )
    parser.add_argument("--draft-model", "-md", metavar="MODEL", help="a small model that drafts, named as in --model")
    parser.add_argument(
        "--num-draft-tokens",
        "--num-speculative-tokens",
        dest="num_draft_tokens",
        type=int,
        metavar="K",
        help="draft tokens per round: --planner fixed:K (default: as suits the method)",
    )
    parser.add_argument(
        "--planner",
        metavar="P",
        help="how large drafts are: fixed:K, fixed for the method's own size, calibrated for the size that 'paceline "
        "calibrate' found, or adaptive for what is worth its time in every round (default: adaptive for auto, "
        "otherwise fixed)",
    )
    parser.add_argument(
        "--rule", metavar="RULE", help="how drafts are accepted: coupled or rejection (default: coupled)"
    )
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="stop after N tokens (default: 128)")
    for flag, kind, text in SAMPLING:
        parser.add_argument(flag, type=kind, metavar=flag[2:].split("-")[-1][0].upper(), help=text)
    parser.add_argument(
        "--stop", type=utf8, action="append", metavar="STR", help="stop before this string; may be repeated"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on past the end-of-text token")


def writing_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of `add_writing`'s options: only what was given, so that the defaults stand in one place."""
    names = ["method", "draft_model", "planner", "rule", "max_new_tokens"]
    names += [flag[2:].replace("-", "_") for flag, _, _ in SAMPLING]
    settings = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.num_draft_tokens is not None:
        if options.planner is not None:
            raise InputError("--num-draft-tokens K is short for --planner fixed:K; give one of the two")
        settings["planner"] = f"fixed:{options.num_draft_tokens}"
    if options.stop:
        settings["stop"] = tuple(options.stop)
    if options.ignore_eos:
        settings["ignore_eos"] = True
    return settings


def add_pictures(parser: argparse.ArgumentParser) -> None:
    """Whether to show where tokens came from."""
    parser.add_argument("--show", choices=("tokens",), help="tokens: mark each token by who proposed it")
    add_color(parser)


def add_explain(parser: argparse.ArgumentParser) -> None:
    """Whether to tell what the planner chose."""
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say what the planner chose and why, a line per phase of the text, and what not drafting would have cost",
    )


def add_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colours in the terminal; auto also heeds NO_COLOR (default: auto)",
    )


def wants_color(options: argparse.Namespace) -> bool:
    """Whether standard output should be coloured."""
    if options.color != "auto":
        return bool(options.color == "always")
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show(text: Text, color: bool, *, end: str = "\n", width: int | None = None) -> None:
    """Print a picture, wrapped at a width or left to the terminal. Without colours it is plain text."""
    from rich.console import Console

    console = Console(
        file=sys.stdout,
        force_terminal=color,
        no_color=not color,
        color_system="truecolor" if color and not _tells_its_colors() else "auto",
        width=width,
        highlight=False,
        legacy_windows=False,
    )
    drawn = text.copy()
    drawn.plain = visible(text.plain)
    console.print(drawn, end=end, soft_wrap=width is None)
    sys.stdout.flush()


def _tells_its_colors() -> bool:
    """Whether there is a terminal that says which colours it has. Anything else that is sent colours on request gets
    them all, for on too few of them sources cannot be told apart."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


@contextmanager
def progress(first: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error, moved by what is being done, how much is done and how much there is; silent where
    standard error is no terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    # seldom, for a bar is drawn beside what is being timed
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2) as bar:
        task = bar.add_task(escape(one_line(first)), total=None)

        def advance(doing: str, done: int, total: int) -> None:
            """Where there is nothing to count, an empty bar and not a full one."""
            bar.update(task, description=escape(one_line(doing)), completed=done, total=total or None)

        yield advance


def describe(lm: LanguageModel) -> dict[str, Any]:
    """What a measurement must say of the model it was made on."""
    from paceline.targets.setup import described

    return described(lm.target)


def asked(how: Settings, sampling: Sampling) -> dict[str, Any]:
    """The settings of a text, given ones and defaults, under the names of their flags."""
    named = ("draft_model", "rule", "max_new_tokens", "ignore_eos")
    return {
        "method": how.spec,
        "planner": how.drafter.planner if how.planner is None else how.planner,
        **{name: getattr(how, name) for name in named},
        "stop": how.stops,
        **{name: getattr(sampling, name) for name in (flag[2:].replace("-", "_") for flag, _, _ in SAMPLING)},
    }


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")


def print_json(data: Mapping[str, Any]) -> None:
    """One line of JSON. Minus infinity, the log-probability of a token that cannot be, has no number there: null."""
    sys.stdout.write(json.dumps(_finite(data), ensure_ascii=not speaks_unicode(), allow_nan=False).translate(ESCAPED))
    sys.stdout.write("\n")


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def load_model(options: argparse.Namespace) -> LanguageModel:
    """The model of `add_model`'s options. Other libraries' progress bars and retries are for terminals, if at all."""
    from transformers.utils import logging as transformers_logging

    from paceline.api.model import load

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    return load(options.model, dtype=options.dtype, device=options.device)


INPUTS = (
    *("model", "draft_model", "tokenizer", "method", "methods", "peers", "prompt_file", "prompts"),
    *("suite", "text", "dict", "data", "runs"),
)
"""Options that name something to read, alone or within a spec."""


def inputs_of(options: argparse.Namespace) -> list[Path]:
    """Every file and folder here that the options name to be read."""
    found = list[str]()
    for name in INPUTS:
        given = getattr(options, name, None)
        for one in given if isinstance(given, list) else [given]:
            text = str(one[-1] if isinstance(one, tuple) else one or "")
            tails = (text[mark.end() :] for mark in re.finditer("[:=]", text))
            found += [text, *tails, *(piece.strip("'\" ") for piece in re.split("[:=,+@]", text))]
    return [Path(one) for one in dict.fromkeys(found) if one and os.path.exists(one)]


def read_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt from the command line, from a file, or from standard input where it is ``-``."""
    if (argument is None) == (file is None):
        raise InputError("give a prompt or --prompt-file FILE, one of the two")
    if argument is not None and argument != "-":
        return argument
    try:
        if file is None or str(file) == "-":
            return decode(bounded(sys.stdin.buffer, "standard input", PROMPT), "standard input")
        return decode(read_pipe(file, PROMPT), str(file))
    except OSError as error:
        raise InputError(f"cannot read {error.filename or file}: {error.strerror}") from None


def decode(raw: bytes, where: str) -> str:
    """Bytes from outside as text."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise InputError(
            f"{where} is not UTF-8 text (byte 0x{byte:02x} at offset {error.start}); convert it, for example with iconv"
        ) from None
