"""Emulation: a text is the oracle, so no model is run and rounds are counted for exactly that text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.context import Ints
from paceline.measure.workload import Prompt, Workload
from paceline.targets.replay import ReplayTarget, open_vocabulary
from paceline.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Texts as one target, and where in each of them the prompt ends."""

    target: ReplayTarget
    vocabulary: Vocabulary
    texts: dict[str, Ints]
    starts: dict[str, int]

    def prompt(self, prompt: Prompt, turn: int, answers: Sequence[str]) -> Ints:
        """The ids of a text up to where it is to be written on."""
        return self.texts[prompt.key][: self.starts[prompt.key]]

    @property
    def lengths(self) -> dict[str, int]:
        """Prompt -> how many tokens follow it."""
        return {key: len(text) - self.starts[key] for key, text in self.texts.items()}


def replay(workload: Workload, model: str | Path) -> Replay:
    """A workload whose texts are known, in the tokens of a model of which nothing but the tokenizer is read.

    A text is encoded as a whole, as a model that wrote it well would have, and cut where the prompt's own ids end.
    """
    vocabulary = open_vocabulary(model)
    texts: dict[str, Ints] = {}
    starts: dict[str, int] = {}
    for prompt in workload.prompts:
        assert prompt.script is not None, "a text that is replayed is known"
        texts[prompt.key] = vocabulary.encode(prompt.turns[0] + prompt.script)
        starts[prompt.key] = min(len(vocabulary.encode(prompt.turns[0])), len(texts[prompt.key]) - 1)
    name = f"replay in the tokens of {model}"
    target = ReplayTarget(list(texts.values()), vocabulary.size, name=name)
    return Replay(target=target, vocabulary=vocabulary, texts=texts, starts=starts)


def stopped() -> float:
    """A clock for work that stands for another machine's: what it takes here says nothing."""
    return 0.0
