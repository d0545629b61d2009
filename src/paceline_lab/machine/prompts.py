"""Prompts to measure with: of a suite, of a file, or a mixture, by name and in the model's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from paceline.api.model import LanguageModel
from paceline.context import Ints
from paceline.errors import InputError
from paceline_lab.bench.suites import encode, open_suite
from paceline_lab.bench.suites.prompts import Prompt, spread
from paceline_lab.bench.suites.suites import is_here

SAMPLES = 5
"""Prompts, where no number is asked for. UniSpec takes as many, of Ultrachat, and finds that more change little."""
LANGUAGES = ("en", "pl", "uk")


def prompts_of(
    asked: str | None,
    lm: LanguageModel,
    samples: int | None = None,
    *,
    tasks: Sequence[str] | None = None,
    languages: Sequence[str] | None = None,
    data: Path | None = None,
    most: int = SAMPLES,
) -> list[tuple[str, Ints]]:
    """``samples`` prompts of a suite or of a file of prompts, by name, in the model's tokens; by default requests and,
    if there are any, running texts to go on from. InputError if there are fewer than requested; without a number, up to
    ``most`` are taken. Languages take turns."""
    if lm.vocabulary is None:
        raise InputError(
            f"{lm.target.name} came without a tokenizer, and prompts are texts; put tokenizer.json and "
            "tokenizer_config.json into the model's folder"
        )
    vocabulary, count = lm.vocabulary, most if samples is None else samples
    if asked is None:
        found, asked = _mixed(count, languages or LANGUAGES, data), "the built-in mixture"
    else:
        spec = f"prompts:{asked}" if ":" not in asked and Path(asked).is_file() else asked
        found = list(open_suite(spec, limit=count, tasks=tasks, languages=languages, data=data).prompts)
        found = spread(found, min(count, len(found)))
        found = _in_turns(found, list(dict.fromkeys(prompt.language for prompt in found)))
    if samples is not None and len(found) < samples:
        raise InputError(f"{samples} prompts were asked for, and {asked} has {len(found)}; ask for fewer")
    return [(prompt.key, encode(vocabulary, prompt)) for prompt in found]


def _mixed(count: int, languages: Sequence[str], data: Path | None) -> list[Prompt]:
    """Requests and running texts take turns, and so do languages, so that any few of them are of several kinds."""
    requests = _in_turns(open_suite("dictspec", languages=languages, limit=count).prompts, languages)
    texts = list[Prompt]()
    if is_here("continuation", data):
        found = open_suite("continuation", languages=languages, limit=count, data=data).prompts
        texts = _in_turns(found, languages)
    return [prompt for pair in zip_longest(texts, requests) for prompt in pair if prompt is not None][:count]


def _in_turns(prompts: Sequence[Prompt], languages: Sequence[str]) -> list[Prompt]:
    """The first of each language, then the second of each."""
    rows = zip_longest(*([prompt for prompt in prompts if prompt.language == one] for one in languages))
    return [prompt for row in rows for prompt in row if prompt is not None]
