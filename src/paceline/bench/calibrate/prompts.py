"""What is written in a calibration: a few prompts of several kinds and languages, or those that are given."""

from __future__ import annotations

from pathlib import Path

from paceline.bench.suites import encode, open_suite
from paceline.bench.suites.prompts import Prompt, spread
from paceline.bench.suites.suites import is_here
from paceline.context import Ints
from paceline.vocabulary import Vocabulary

SAMPLES = 5
"""As the paper has it: more changed its sizes little."""
LANGUAGES = ("en", "pl", "uk")


def prompts_of(asked: str | None, vocabulary: Vocabulary, samples: int = SAMPLES) -> list[tuple[str, Ints]]:
    """So many prompts of a suite or of a file of prompts, by their names, in the model's tokens; by default requests
    and, where there are any, running texts to go on from."""
    if asked is None:
        picked = _mixed()[:samples]
    else:
        spec = f"prompts:{asked}" if ":" not in asked and Path(asked).is_file() else asked
        found = list(open_suite(spec, limit=samples).prompts)
        picked = spread(found, min(samples, len(found)))
    return [(prompt.key, encode(vocabulary, prompt)) for prompt in picked]


def _mixed() -> list[Prompt]:
    """Requests and running texts take turns, and so do languages, so that any few of them are of several kinds."""
    requests = open_suite("dictspec", languages=LANGUAGES, limit=2).prompts
    if not is_here("continuation"):
        return list(requests)
    texts = open_suite("continuation", languages=LANGUAGES, limit=2).prompts
    ordered = [sorted(kind, key=lambda prompt: _turn(kind, prompt)) for kind in (texts, requests)]
    return [prompt for pair in zip(*ordered, strict=False) for prompt in pair]


def _turn(kind: tuple[Prompt, ...], prompt: Prompt) -> tuple[int, int]:
    """Which of its language a prompt is, then its language."""
    same = [one for one in kind if one.language == prompt.language]
    return same.index(prompt), LANGUAGES.index(prompt.language)
