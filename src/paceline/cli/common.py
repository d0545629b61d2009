"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.hosts.python import LanguageModel

Subparsers = Any
"""What argparse returns for subcommands; its own type is private."""


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which model, in which type, on which device."""
    parser.add_argument("--model", required=True, metavar="PATH", help="folder or name of a transformers causal LM")
    parser.add_argument(
        "--dtype", metavar="TYPE", help="float64, float32, bfloat16 or float16 (default: the model's own)"
    )
    parser.add_argument("--device", metavar="DEVICE", help="where to run it, e.g. cpu, cuda, mps (default: cpu)")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")


def print_json(data: Mapping[str, Any]) -> None:
    """One line of JSON. Minus infinity, the log-probability of a token that cannot be, has no number there: null."""
    print(json.dumps(_finite(data), ensure_ascii=False, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def load_model(options: argparse.Namespace) -> LanguageModel:
    """The model of `add_model`'s options. Other libraries' progress bars and retries are for terminals, if at all."""
    from transformers.utils import logging as transformers_logging

    from paceline.hosts.python import load

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    return load(options.model, dtype=options.dtype, device=options.device)


def read_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt from the command line, from a file, or from standard input where it is ``-``."""
    if (argument is None) == (file is None):
        raise ValueError("give a prompt or --prompt-file FILE, one of the two")
    if argument is not None and argument != "-":
        return argument
    raw = sys.stdin.buffer.read() if file is None else file.read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        where = file if file is not None else "standard input"
        byte = raw[error.start]
        raise ValueError(
            f"{where} is not UTF-8 text (byte 0x{byte:02x} at offset {error.start}); convert it, for example with iconv"
        ) from None
