"""The values of options: checked, joined, and read from the files that they name. `arguments` declares them."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.output import say
from paceline.errors import InputError
from paceline.files.reading import bounded, read_pipe
from paceline.law.settings import Sampling
from paceline.law.table import Acts, table

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.api.settings import Settings

DEFAULT_MODEL = "pocket"
DRAFT_MODEL = "pocket-draft"
BUNDLED_TEMPERATURE = 0.8
"""The bundled models fall into loops when they are greedy, which flatters methods that look things up."""
DRAFT = 4
"""Draft tokens per round: in float32 on a CPU every further row of a forward costs, and few are accepted so far out."""
LONG = 60
"""The most characters of a wrong argument in a message."""
NO_LIMIT = -1
"""Of ``--max-new-tokens``: as long as the model's context allows."""
PROMPT_BYTES = 1 << 26
"""Bytes of a prompt: more than any model's context holds."""
PROMPTS = {
    "English": "The old man sat down by the fire and began to tell the story of",
    "Polish": "Stary człowiek usiadł przy ogniu i zaczął opowiadać o tym, jak",
    "Ukrainian": "Старий чоловік сів біля вогню і почав розповідати про те, як",
}
FLAGS = tuple(row for row in table(Sampling) if row.help is not None)
"""The sampling settings that have a flag."""

# --- numbers ---

MOST = {
    **dict.fromkeys(("batch", "sequence", "threads", "max_batch", "max_kept", "clients"), 1024),
    **dict.fromkeys(("max_waiting", "max_connections", "requests"), 1_000_000),
    **dict.fromkeys(("max_tokens", "max_rows"), 1 << 31),
    "max_body": 4096,
    "port": 65535,
    **dict.fromkeys(("num_draft_tokens", "max_nodes", "budget", "rows"), 4096),
    **dict.fromkeys(("repeat", "passes", "samples"), 10_000),
    **dict.fromkeys(("ahead", "blocks", "layers", "tracks", "segments"), 1024),
    **dict.fromkeys(
        ("window", "exit", "rank", "kept", "width", "units", "markov", "anchors", "batch_size", "vocabulary"),
        10_000_000,
    ),
    "bits": 8,
    **dict.fromkeys(("tensor_parallel", "devices"), 1024),
    **dict.fromkeys(("positions", "tokens"), 1 << 40),
    "epochs": 10_000,
    **dict.fromkeys(("limit", "rounds", "logprobs", "texts"), 1_000_000),
    **dict.fromkeys(("max_new_tokens", "length", "context", "characters"), 10_000_000),
    **dict.fromkeys(("min_count", "ngrams"), 1 << 31),
    **dict.fromkeys(("sizes", "size", "order"), 1 << 31),  # and closer where they are used
    **dict.fromkeys(("max_prefix", "max_completion"), 1 << 31),
    "seconds": 7 * 24 * 60 * 60,
    **{row.name: row.largest for row in FLAGS if row.largest is not None},
}
"""Options that say how much work there is -> the largest value: beyond it a command would never end."""


def check_most(options: argparse.Namespace) -> None:
    """Refuse a number above its limit in `MOST`."""
    for name, most in MOST.items():
        given = getattr(options, name, None)
        for one in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(one, (int, float)) and not one <= most:
                raise InputError(f"--{name.replace('_', '-')} must be at most {most}, not {one}")


def check_counts(options: argparse.Namespace, *names: str) -> None:
    """Refuse counts below 1."""
    for name in names:
        given = getattr(options, name)
        for one in given if isinstance(given, (list, tuple)) else [given]:
            if one is not None and one < 1:
                raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {one}")


def temperature_of(options: argparse.Namespace) -> float:
    """The temperature that was asked for, or the one that suits the model."""
    from paceline.targets.mlx.names import MLX_MARK
    from paceline.targets.pocket.names import is_bundled

    if options.temperature is not None:
        return float(options.temperature)
    return BUNDLED_TEMPERATURE if is_bundled(options.model.removeprefix(MLX_MARK)) else 0.0


# --- models and settings ---


def load_model(options: argparse.Namespace, *, generation_config: bool = False) -> LanguageModel:
    """The model of `add_model`'s options, for what is measured without its own settings of generation."""
    from paceline.api.model import load

    lm = load(
        options.model,
        dtype=options.dtype,
        quantize=options.quantize,
        device=options.device,
        probe=not getattr(options, "no_probe", False),
        generation_config=generation_config,
        tensor_parallel=getattr(options, "tensor_parallel", None),
    )
    if said := getattr(lm.target, "note", None):
        say(f"{options.model} is {said}", file=sys.stderr)
    return lm


def draft_model(options: argparse.Namespace) -> str | None:
    """The draft model of `add_draft_model`'s option."""
    given: str | None = options.draft_model
    if given == "none":
        return None
    return given or (DRAFT_MODEL if options.model.partition("+")[0] == DEFAULT_MODEL else None)


def writing_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that `add_writing`'s options give, without those left out. What is misspelt or impossible is refused
    here, before a model is loaded."""
    from paceline.api.settings import split_settings

    names = [
        "method",
        "draft_model",
        "draft_device",
        "planner",
        "rule",
        "max_new_tokens",
        "logprobs",
        "chat_template_kwargs",
        *(row.name for row in FLAGS),
    ]
    settings = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    if options.max_new_tokens == NO_LIMIT:
        settings["max_new_tokens"] = None
    if options.num_draft_tokens is not None:
        if options.planner is not None:
            raise InputError("--num-draft-tokens K is short for --planner fixed:K; give one of the two")
        settings["planner"] = f"fixed:{options.num_draft_tokens}"
    if options.stop:
        settings["stop"] = tuple(options.stop)
    if options.ignore_eos:
        settings["ignore_eos"] = True
    how, _ = split_settings(settings)
    how.planner_for(how.drafter)
    return settings


def describe(lm: LanguageModel) -> dict[str, Any]:
    """The facts that a measurement must report of its model."""
    from paceline.targets.setup import described

    return described(lm.target)


def provenance(lm: LanguageModel, how: Settings, sampling: Sampling, given: Collection[str]) -> dict[str, Any]:
    """The model of a text and all its settings under the names of their flags: those ``given``, those of the model, and
    ours."""
    return {
        **describe(lm),
        "method": how.spec,
        "planner": how.drafter.planner if how.planner is None else how.planner,
        **{
            name: getattr(how, name) for name in ("draft_model", "draft_device", "rule", "max_new_tokens", "ignore_eos")
        },
        "stop": how.stops,
        **{row.name: getattr(sampling, row.name) for row in sampling.rows if row.help is not None},
        "from_model": from_model(lm, how, sampling, given),
    }


def from_model(lm: LanguageModel, how: Settings, sampling: Sampling, given: Collection[str]) -> dict[str, Any]:
    """The settings that act on a text and are its model's own."""
    of_text, off = {**vars(how), **vars(sampling)}, {row.name: row.default for row in sampling.rows}
    idle = {row.name for row in sampling.rows if row.acts is Acts.AS_CUT} if sampling.greedy else set[str]()
    own = {name: value for name, value in lm.defaults.items() if name not in {*given, *idle}}
    return {name: value for name, value in own.items() if of_text[name] == value != off.get(name)}


def remarks(made_by: Mapping[str, Any], given: Collection[str]) -> list[str]:
    """The settings of a text that were not asked for: the model's own, and a new seed."""
    own = {
        name.replace("_", " "): f"{len(value)} entries" if isinstance(value, tuple) else value
        for name, value in made_by["from_model"].items()
    }
    said = [f"the model's {', '.join(f'{name} {value}' for name, value in own.items())}"] if own else []
    return said if "seed" in given or not made_by["temperature"] else [*said, f"seed {made_by['seed']}"]


def json_object(text: str) -> dict[str, Any]:
    """An argument that is a JSON object."""
    try:
        found = json.loads(utf8(text))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        short = text if len(text) <= LONG else f"{text[:LONG]}..."
        raise argparse.ArgumentTypeError(f'it is a JSON object such as {{"enable_thinking": false}}, not {short}')
    return found


# --- texts ---


def utf8(given: str) -> str:
    """An argument that is text. Bytes that the locale has no characters for are in it as lone surrogates."""
    try:
        given.encode()
        return given
    except UnicodeEncodeError:
        pass
    try:
        return decode(os.fsencode(given), "this")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def decode(raw: bytes, where: str) -> str:
    """Bytes from outside as text."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise InputError(
            f"{where} is not UTF-8 text (byte 0x{byte:02x} at offset {error.start}); convert it, for example with iconv"
        ) from None


def read_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt from the command line, from a file, or from standard input where it is ``-``."""
    if (argument is None) == (file is None):
        raise InputError("give a prompt or --prompt-file FILE, one of the two")
    if argument is not None and argument != "-":
        return argument
    try:
        if file is None or str(file) == "-":
            return decode(bounded(sys.stdin.buffer, "standard input", PROMPT_BYTES), "standard input")
        return decode(read_pipe(file, PROMPT_BYTES), str(file))
    except OSError as error:
        raise InputError(f"cannot read {error.filename or file}: {error.strerror}") from None


def prompts_of(options: argparse.Namespace) -> dict[str, str]:
    """Prompts by their languages, or by their numbers."""
    if options.prompt is None:
        return PROMPTS
    if not all(options.prompt):
        raise InputError("a --prompt is empty; give it at least a word")
    return {f"prompt {number}": prompt for number, prompt in enumerate(options.prompt, start=1)}


# --- files ---

INPUTS = (
    *("model", "draft_model", "tokenizer", "method", "methods", "peers", "prompt_file", "prompts", "prediction"),
    *("json_schema", "draft_models", "api_key_file"),
    *("suite", "text", "dict", "data", "runs", "trace", "files"),
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
