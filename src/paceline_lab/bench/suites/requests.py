"""The requests of prompts in each language (``requests.toml``), and the suites ``stories`` and ``dictspec``.

``stories`` is our own and needs no data. The setting of ``dictspec`` is that of DictSpec's wall-clock runs (section 4.6
there: 20 prompts per language, up to 2,048 new tokens, batches of at most 5). The first four requests of Ukrainian and
of both scripts of Crimean Tatar are those that the paper prints; the others are our own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from paceline_lab.bench.suites.prompts import Prompt, chosen

FRAMED = (
    "the first four Crimean Tatar requests are the DictSpec paper's; the others are one frame with sixteen topics and "
    "have been read by no native speaker"
)


class Phrases(NamedTuple):
    """The requests of one language. Questions and sums are asked as they stand."""

    summarize: str
    answer: str
    """From a passage, which follows it."""
    question: str
    """The heading of the question after the passage."""
    complete: str
    """A Python function, which follows it."""
    translate: str | None = None
    """From English; None for English itself."""

    def about_passage(self, passage: str, question: str) -> str:
        space = "" if self.question.endswith("：") else " "
        return f"{self.answer}\n\n{passage}\n\n{self.question}{space}{question}"

    def with_code(self, code: str) -> str:
        return f"{self.complete}\n\n```python\n{code.rstrip()}\n```"


_TEXTS = tomllib.loads((files("paceline_lab.bench.suites") / "requests.toml").read_text(encoding="utf8"))
PHRASES: Mapping[str, Phrases] = {language: Phrases(**texts) for language, texts in _TEXTS["phrases"].items()}
_OURS: Mapping[str, Sequence[str]] = _TEXTS["dictspec"] | {
    language: [framed["frame"].format(topic) for topic in framed["topics"]]
    for language, framed in _TEXTS["framed"].items()
}
REQUESTS: Mapping[str, Sequence[str]] = {
    language: [*_TEXTS["printed"].get(language, []), *ours] for language, ours in _OURS.items()
}
"""Twenty requests for a long text in each language: prose that a language's dictionary should know."""
BEGINNINGS: Mapping[str, Sequence[str]] = _TEXTS["stories"]
"""Twelve beginnings of stories in each language of the bundled models."""


def stories(languages: Sequence[str] | None) -> list[Prompt]:
    """The beginnings in these languages, or in all."""
    return [
        Prompt(key=f"{language}-story-{number}", task="stories", language=language, turns=(text,), chat=False)
        for language in chosen("stories", "language", languages, list(BEGINNINGS))
        for number, text in enumerate(BEGINNINGS[language], start=1)
    ]


def dictspec(languages: Sequence[str] | None) -> tuple[list[Prompt], list[str]]:
    """The requests of these languages, or of all, and notes."""
    wanted = chosen("dictspec", "language", languages, list(REQUESTS))
    prompts = [
        Prompt(key=f"{language}-dictspec-{number}", task="dictspec", language=language, turns=(request,))
        for language in wanted
        for number, request in enumerate(REQUESTS[language], start=1)
    ]
    return prompts, [FRAMED] if any(language in _TEXTS["framed"] for language in wanted) else []
