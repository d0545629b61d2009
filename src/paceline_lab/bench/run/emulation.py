"""Known texts. They are followed by methods through a model's forwards, or replayed: then the text is the oracle, no
model is run, and the engine counts rounds for exactly that text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.api.model import LanguageModel
from paceline.api.pictures import TokenPicture
from paceline.api.settings import Options
from paceline.context import Ints
from paceline.drafters import make_drafter
from paceline.errors import InputError
from paceline.targets.replay import ReplayTarget, open_vocabulary
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.suites import Workload
from paceline_lab.bench.tally import StepTally


@dataclass(frozen=True, kw_only=True)
class KnownTexts:
    """Texts by the keys of their prompts, and where in each of them the prompt ends."""

    texts: dict[str, Ints]
    starts: dict[str, int]

    @classmethod
    def of(cls, workload: Workload, vocabulary: Vocabulary) -> KnownTexts:
        """The prompts of a workload whose texts are known. A text is encoded as a whole, as a model that wrote it well
        would have, and cut where the prompt's own ids end."""
        texts: dict[str, Ints] = {}
        starts: dict[str, int] = {}
        for prompt in workload.prompts:
            if prompt.script is None or prompt.chat:
                continue
            texts[prompt.key] = vocabulary.encode(prompt.turns[0] + prompt.script)
            starts[prompt.key] = min(len(vocabulary.encode(prompt.turns[0])), len(texts[prompt.key]) - 1)
        return cls(texts=texts, starts=starts)

    def prompt(self, key: str) -> Ints:
        """The ids of a text up to where writing begins."""
        return self.texts[key][: self.starts[key]]

    @property
    def lengths(self) -> dict[str, int]:
        """Prompt -> how many tokens follow it."""
        return {key: len(text) - self.starts[key] for key, text in self.texts.items()}


@dataclass(frozen=True, kw_only=True)
class Replay(KnownTexts):
    """Texts as one target."""

    target: ReplayTarget
    vocabulary: Vocabulary


def replay(workload: Workload, model: str | Path) -> Replay:
    """A workload whose texts are known, in the tokens of a model of which nothing but the tokenizer is read."""
    vocabulary = open_vocabulary(model)
    known = KnownTexts.of(workload, vocabulary)
    _refuse_alike(known.texts, known.starts)
    name = f"replay in the tokens of {model}"
    target = ReplayTarget(list(known.texts.values()), vocabulary.size, name=name)
    return Replay(target=target, vocabulary=vocabulary, texts=known.texts, starts=known.starts)


def _refuse_alike(texts: dict[str, Ints], starts: dict[str, int]) -> None:
    """Texts are recognised by the tokens read before the first round, all of a prompt but its last; one that begins
    like another would be mistaken for it."""
    for key, text in texts.items():
        read = text[: max(1, starts[key] - 1)]
        for other, twin in texts.items():
            if other == key:
                break
            if len(twin) >= len(read) and (twin[: len(read)] == read).all() and not np.array_equal(twin, text):
                raise InputError(
                    f"texts {other!r} and {key!r} begin alike, so the replay of one would be taken for the other's; "
                    "give a prompt long enough to tell them apart, or leave one out"
                )


@dataclass(frozen=True)
class ReplayedText:
    """One text, and how it was written."""

    key: str
    tally: StepTally
    picture: TokenPicture


def replayed(given: Replay, method: str, budget: int) -> Iterator[ReplayedText]:
    """Every text of a replay by a method, whose drafts have up to ``budget`` tokens.
    `paceline_make.dictionary.emulator` counts the same without the engine."""
    drafter = make_drafter(method)
    with ExitStack() as leaving:
        leaving.callback(drafter.dispose)
        for key, text in given.texts.items():
            drafter.reset()
            lm = LanguageModel(given.target, given.vocabulary)  # with no rows of the text before
            prompt = text[: given.starts[key]]
            size = len(text) - len(prompt)
            how = Options(planner=f"fixed:{budget}", max_new_tokens=size, ignore_eos=True, strict=True, method=drafter)
            found = lm.generate(prompt, **how)
            assert found.tokens == text[len(prompt) :].tolist(), "a draft changes no token of the text"
            shown = given.vocabulary.text(prompt)
            picture = TokenPicture(shown, tuple(found.pieces), found.totals, title=key)
            yield ReplayedText(key, StepTally.of(found.totals), picture)


def stopped() -> float:
    """A clock that stands still, for replays: their seconds would not be a model's."""
    return 0.0
