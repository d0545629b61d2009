"""Prompts by task and language: their selection and their encoding."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from paceline.context import Ints
from paceline.errors import InputError
from paceline.vocabulary import Vocabulary
from paceline.vocabulary.transcript import render

CELL = 80
"""Prompts of one task in one language, in every suite that has more to choose from."""
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt. The turns of a ``chat`` are what a user says and go through the model's chat template; any other
    prompt has one turn, a text to continue."""

    key: str
    """Its name, the same in every run of the suite, by which runs are compared."""
    task: str
    language: str
    turns: tuple[str, ...]
    chat: bool = True
    script: str | None = None
    """The text that follows, where a text is replayed or followed and not written freely."""
    reference: tuple[str, ...] = field(default=(), compare=False)
    """A good answer to each turn, where the source has them. They change nothing of what is written."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The prompts of a suite, and where they come from."""

    suite: str
    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()
    """Sentences: cells that could not be built, and substitutes for absent sources."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """File name -> the first 16 digits of its SHA-256."""

    @property
    def cells(self) -> dict[str, dict[str, int]]:
        """Task -> language -> how many prompts."""
        counts: dict[str, Counter[str]] = {}
        for prompt in self.prompts:
            counts.setdefault(prompt.task, Counter())[prompt.language] += 1
        return {task: dict(languages) for task, languages in counts.items()}


def encode(vocabulary: Vocabulary, prompt: Prompt, turn: int = 0, answers: Sequence[str] = ()) -> Ints:
    """The tokens before the answer to ``turn``, given the ``answers`` to the turns before it.

    A chat goes through the model's template, or a plain transcript where there is none; a text stands as it is. Special
    tokens are the tokenizer's own either way.
    """
    assert turn < len(prompt.turns), f"{prompt.key} has {len(prompt.turns)} turns and no turn {turn}"
    assert len(answers) == turn, "every turn before this one has its answer"
    if not prompt.chat:
        return vocabulary.encode(prompt.turns[turn])
    messages = list[dict[str, str]]()
    for text, answer in zip(prompt.turns, answers, strict=False):
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": prompt.turns[turn]})
    rendered = render(vocabulary, messages)
    return vocabulary.encode(rendered.text, add_special=not rendered.templated)


def spread(items: Sequence[Item], limit: int | None) -> list[Item]:
    """``limit`` items at equal distances, the first among them; all of them where there are no more.

    Of items in blocks of equal size, none is passed over as long as ``limit`` is no less than the number of blocks.
    """
    if limit is None or limit >= len(items):
        return list(items)
    return [items[number * len(items) // limit] for number in range(limit)]


def thinned(prompts: Sequence[Prompt], limit: int | None) -> tuple[Prompt, ...]:
    """``limit`` prompts of each task in each language, in the order in which they stand."""
    cells: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in prompts:
        cells.setdefault((prompt.task, prompt.language), []).append(prompt)
    kept = {prompt.key for cell in cells.values() for prompt in spread(cell, limit)}
    return tuple(prompt for prompt in prompts if prompt.key in kept)


def chosen(suite: str, what: str, asked: Sequence[str] | None, there: Sequence[str]) -> list[str]:
    """Those of ``there`` that were asked for, in its order. ValueError for a name that is not there."""
    for name in asked or ():
        if name not in there:
            raise InputError(f"{suite} has no {what} {name!r}{hint(name, there)}; there is {', '.join(there)}")
    return [name for name in there if asked is None or name in asked]


def hint(name: str, there: Sequence[str]) -> str:
    """A question after the name that was probably meant."""
    close = difflib.get_close_matches(name, there, n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
