"""What options mean: checked, joined, and read from where they point to. `arguments` declares them."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.output import say
from paceline.errors import InputError
from paceline.files.reading import bounded, read_pipe

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.api.settings import Settings
    from paceline.law import Sampling

MODEL = "pocket"
DRAFT_MODEL = "pocket-draft"
BUNDLED_TEMPERATURE = 0.8
"""The bundled models fall into loops when they are greedy, which flatters methods that look things up."""
DRAFT = 4
"""Draft tokens per round: in float32 on a CPU every further row of a forward costs, and few are accepted so far out."""
PROMPT = 1 << 26
"""Bytes of a prompt: more than any model's context holds."""
PROMPTS = {
    "English": "The old man sat down by the fire and began to tell the story of",
    "Polish": "Stary człowiek usiadł przy ogniu i zaczął opowiadać o tym, jak",
    "Ukrainian": "Старий чоловік сів біля вогню і почав розповідати про те, як",
}
SAMPLING = (
    ("temperature", float, "0 for the most probable token (default: 0)"),
    ("top_k", int, "keep the K most probable tokens"),
    ("top_p", float, "keep the most probable tokens that hold this share of the mass"),
    ("min_p", float, "keep tokens at least this probable, relative to the best"),
    ("repetition_penalty", float, "divide positive logits of tokens that occurred by this, multiply negative ones"),
    ("presence_penalty", float, "subtract this from the logits of tokens that were emitted"),
    ("frequency_penalty", float, "subtract this for every time a token was emitted"),
    ("seed", int, "same seed, same text, with every method of the coupled rule (default: 0)"),
)
"""Name, type and help of the sampling settings."""

# --- numbers ---

MOST = {
    **dict.fromkeys(("batch", "sequence", "threads"), 1024),
    **dict.fromkeys(("num_draft_tokens", "max_nodes", "budget", "rows"), 4096),
    **dict.fromkeys(("repeat", "passes", "samples"), 10_000),
    **dict.fromkeys(("ahead", "blocks"), 1024),
    **dict.fromkeys(("window", "exit", "rank", "kept", "batch_size"), 10_000_000),
    "positions": 1 << 40,
    "epochs": 10_000,
    **dict.fromkeys(("limit", "rounds", "logprobs", "texts"), 1_000_000),
    **dict.fromkeys(("max_new_tokens", "length", "context", "characters"), 10_000_000),
    **dict.fromkeys(("top_k", "min_count", "ngrams"), 1 << 31),
    **dict.fromkeys(("sizes", "size", "order"), 1 << 31),  # and closer where they are used
    **dict.fromkeys(("max_prefix", "max_completion"), 1 << 31),
    "seconds": 7 * 24 * 60 * 60,
    "seed": (1 << 64) - 1,
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
    from paceline.targets.pocket.names import is_bundled

    if options.temperature is not None:
        return float(options.temperature)
    return BUNDLED_TEMPERATURE if is_bundled(options.model) else 0.0


# --- models and settings ---


def load_model(options: argparse.Namespace) -> LanguageModel:
    """The model of `add_model`'s options. Other libraries' progress bars and retries are for terminals, if at all."""
    from paceline.api.model import load
    from paceline.targets.pocket.names import is_bundled

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not (sys.stderr.isatty() or is_bundled(options.model)):
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
    probe = not getattr(options, "no_probe", False)
    lm = load(options.model, dtype=options.dtype, quantize=options.quantize, device=options.device, probe=probe)
    if note := getattr(lm.target, "note", None):
        say(f"{options.model} is {note}", file=sys.stderr)
    return lm


def draft_model(options: argparse.Namespace) -> str | None:
    """The draft model of `add_draft_model`'s option."""
    given: str | None = options.draft_model
    if given == "none":
        return None
    return given or (DRAFT_MODEL if options.model.partition("+")[0] == MODEL else None)


def writing_settings(options: argparse.Namespace) -> tuple[dict[str, Any], Settings, Sampling]:
    """The settings that `add_writing`'s options give, as a dict without those left out, and as `Settings` and
    `Sampling` with their defaults. A misspelt method or planner is refused here, before a model is loaded."""
    from paceline.api.settings import split_settings

    names = [
        "method",
        "draft_model",
        "draft_device",
        "planner",
        "rule",
        "max_new_tokens",
        "logprobs",
        *(name for name, _, _ in SAMPLING),
    ]
    settings = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    if options.num_draft_tokens is not None:
        if options.planner is not None:
            raise InputError("--num-draft-tokens K is short for --planner fixed:K; give one of the two")
        settings["planner"] = f"fixed:{options.num_draft_tokens}"
    if options.stop:
        settings["stop"] = tuple(options.stop)
    if options.ignore_eos:
        settings["ignore_eos"] = True
    how, sampling = split_settings(settings)
    how.planner_for(how.drafter)
    return settings, how, sampling


def describe(lm: LanguageModel) -> dict[str, Any]:
    """What a measurement must say of the model it was made on."""
    from paceline.targets.setup import described

    return described(lm.target)


def provenance(lm: LanguageModel, how: Settings, sampling: Sampling) -> dict[str, Any]:
    """The model of a text and all its settings, given ones and defaults, under the names of their flags."""
    return {
        **describe(lm),
        "method": how.spec,
        "planner": how.drafter.planner if how.planner is None else how.planner,
        **{
            name: getattr(how, name) for name in ("draft_model", "draft_device", "rule", "max_new_tokens", "ignore_eos")
        },
        "stop": how.stops,
        **{name: getattr(sampling, name) for name, _, _ in SAMPLING},
    }


# --- texts ---


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
            return decode(bounded(sys.stdin.buffer, "standard input", PROMPT), "standard input")
        return decode(read_pipe(file, PROMPT), str(file))
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
    *("model", "draft_model", "tokenizer", "method", "methods", "peers", "prompt_file", "prompts"),
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
