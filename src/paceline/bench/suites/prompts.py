"""What is written in a run: prompts, in the cells of a table of tasks and languages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt. Those of a ``chat`` are what a user says, turn by turn, and go through the model's chat template; any
    other is a text to go on from as it stands, and has one turn."""

    key: str
    """Its name, the same in every run of the suite, by which runs are compared."""
    task: str
    language: str
    turns: tuple[str, ...]
    chat: bool = True
    script: str | None = None
    """The text that is to follow, where a text is replayed and not written."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The prompts of a suite, and what must be known of where they come from."""

    suite: str
    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()
    """Sentences: cells that could not be built, and what stands in for what."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """File name -> the first 16 digits of its SHA-256."""

    @property
    def cells(self) -> dict[str, dict[str, int]]:
        """Task -> language -> how many prompts."""
        counts: dict[str, Counter[str]] = {}
        for prompt in self.prompts:
            counts.setdefault(prompt.task, Counter())[prompt.language] += 1
        return {task: dict(languages) for task, languages in counts.items()}
