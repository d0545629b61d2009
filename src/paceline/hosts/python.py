"""The Python API: text in, text out, around the engine that speaks token ids.

>>> lm = paceline.load("path/to/model")                                      # doctest: +SKIP
>>> for piece in lm.stream("Once upon a time", max_new_tokens=50):           # doctest: +SKIP
...     print(piece.text, end="")
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.context import Context, Criterion, Ending
from paceline.decode.account import Totals
from paceline.decode.planner import Planner, make_planner
from paceline.decode.serial import run
from paceline.decode.session import Emission, Round, Session, TokenLogprobs
from paceline.drafters import Drafter, make_drafter
from paceline.drafters.assistant import Assistant, DraftModel
from paceline.law import Sampling
from paceline.targets.base import Rows, Target
from paceline.verify import Rule
from paceline.vocabulary import StopStrings, TextStream, Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Prompt = str | Sequence[int] | NDArray[np.int64]

DEFAULT_METHOD = "lookup"
KEPT_DRAFTERS = 8
"""How many drafters a `LanguageModel` remembers; the oldest goes first."""
SPARE_ROWS = 64
"""Room in the cache for the rows of a draft, beyond those of the text."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to generate, apart from the sampling settings of `Sampling`."""

    method: str | Drafter | None = None
    """Default: `lookup`, or `assistant` where there is a draft model."""
    draft_model: str | Path | PreTrainedModel | LanguageModel | DraftModel | None = None
    """What the methods that draft with a model use, unless they name one."""
    planner: str | Planner = "fixed:10"
    rule: str = Rule.COUPLED
    max_new_tokens: int = 128
    stop: str | Sequence[str] | None = ()
    eos: int | Sequence[int] | None = None
    """End-of-text tokens instead of the model's own."""
    ignore_eos: bool = False
    criteria: tuple[Criterion, ...] = ()
    logprobs: int | None = None
    """None for none; 0 for the emitted tokens'; k for k alternatives besides."""

    def __post_init__(self) -> None:
        if self.rule not in list(Rule):
            raise ValueError(f"unknown rule {self.rule!r}; choose {' or '.join(Rule)}")
        if self.logprobs is not None and self.logprobs < 0:
            raise ValueError(f"logprobs is how many alternatives to report, 0 or more, not {self.logprobs}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")

    @property
    def drafter(self) -> Drafter:
        """The method as a new drafter. No model is loaded for it yet."""
        if isinstance(self.method, Drafter):
            if self.draft_model is not None:
                raise ValueError(f"method is a {type(self.method).__name__} already; give it its draft model itself")
            return self.method
        return make_drafter(self.spec, self.draft_model)

    @property
    def spec(self) -> str:
        """The method as written, or the default one."""
        if isinstance(self.method, str):
            return self.method
        return DEFAULT_METHOD if self.draft_model is None else Assistant.name

    @cached_property
    def sizes(self) -> Planner:
        return make_planner(self.planner) if isinstance(self.planner, str) else self.planner

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def ends(self, target: Target) -> frozenset[int]:
        """The tokens that end a text."""
        if self.ignore_eos:
            return frozenset()
        if self.eos is None:
            return target.eos
        return frozenset([self.eos] if isinstance(self.eos, int) else self.eos)


def split_settings(given: dict[str, Any]) -> tuple[Settings, Sampling]:
    """Keyword arguments of a call, sorted into the two kinds; a misspelt one is told, not dropped."""
    own = {f.name for f in fields(Settings)}
    sampling = {f.name for f in fields(Sampling)}
    for name in given:
        if name not in own | sampling:
            close = difflib.get_close_matches(name, own | sampling, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(own | sampling))}"
            raise ValueError(f"unknown setting {name!r}; {hint}")
    return (
        Settings(**{name: value for name, value in given.items() if name in own}),
        Sampling(**{name: value for name, value in given.items() if name in sampling}),
    )


@dataclass(frozen=True)
class Piece:
    """What a stream hands out: the text that became certain with one token (often none, when a character is cut).
    The last piece may have text and no token: what was held back because it might have begun a stop string."""

    text: str
    token: int | None
    source: str
    logprobs: TokenLogprobs | None = None
    round: int = 0


@dataclass(frozen=True)
class Generation:
    """One finished text and how it came about. Its pieces hold every token once, and their texts are the text."""

    text: str
    tokens: list[int]
    finish: str
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were not read again, their rows being left from the last text."""
    pieces: list[Piece]
    emissions: list[Emission]
    rounds: list[Round]
    totals: Totals

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        sources: list[list[str]] = [[] for _ in self.rounds]
        for emission in self.emissions:
            sources[emission.round].append(emission.source)
        return {
            "text": self.text,
            "tokens": self.tokens,
            "sources": [emission.source for emission in self.emissions],
            "finish": self.finish,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "logprobs": [asdict(e.logprobs) for e in self.emissions if e.logprobs is not None],
            "rounds": [asdict(r) | {"sources": sources[number]} for number, r in enumerate(self.rounds)],
            "totals": self.totals.as_dict(),
        }


class LanguageModel:
    """A target with its vocabulary. Keeps the cached rows of the last text, so that one which begins alike (the next
    turn of a chat, another sample of a prompt) reads only what is new.

    Texts may be written from several threads; their forwards take turns. Whoever changes a loaded model's weights or
    adapters calls `forget`, since kept rows are the old weights'."""

    def __init__(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        self.target = target
        self.vocabulary = vocabulary
        self._spare: Rows | None = None
        self._drafters: dict[tuple[str, Any], tuple[Drafter, Any]] = {}
        self._draft_models: dict[str, DraftModel] = {}
        self._fitting = threading.Lock()
        self._taking = threading.Lock()

    def generate(self, prompt: Prompt, **settings: Any) -> Generation:
        """One text. Settings are the fields of `Settings` and of `paceline.Sampling`."""
        return self.sample(prompt, n=1, **settings)[0]

    def sample(self, prompt: Prompt, *, n: int, **settings: Any) -> list[Generation]:
        """``n`` texts from one prompt, different under any temperature above 0; the first is what `generate` gives.

        Processors and criteria that keep state see all of them, one after the other.
        """
        if n < 1:
            raise ValueError(f"cannot draw {n} samples; ask for 1 or more")
        how = split_settings(settings)
        return [self._finish(Writing(self, prompt, number, *how)) for number in range(n)]

    def stream(self, prompt: Prompt, **settings: Any) -> Generator[Piece, None, None]:
        """The text as it becomes certain. Closing the iterator ends the generation."""
        return self.write(prompt, **settings).pieces()

    def write(self, prompt: Prompt, **settings: Any) -> Writing:
        """Like `stream`, for those who want the `Generation` afterwards: read its `pieces`, then its `result`."""
        return Writing(self, prompt, 0, *split_settings(settings))

    def drafter(self, settings: Settings) -> Drafter:
        """The drafter that settings ask for, fitted to this model. One named by a spec is kept, with what it learns
        across texts, and so is the draft model that settings name: specs share it."""
        if isinstance(settings.method, Drafter):
            settings.drafter.fit(self.target, self.vocabulary)
            return settings.drafter
        named = settings.draft_model
        key = settings.spec, str(named) if isinstance(named, (str, Path)) else id(named)
        with self._fitting:
            if key not in self._drafters:
                drafter = replace(settings, draft_model=self._draft_model(settings)).drafter
                drafter.fit(self.target, self.vocabulary)
                while len(self._drafters) >= KEPT_DRAFTERS:
                    self._drafters.pop(next(iter(self._drafters)))
                self._drafters[key] = drafter, named  # held, so that no other object comes by its identity
            return self._drafters[key][0]

    def _draft_model(self, settings: Settings) -> Any:
        """The draft model of the settings, loaded where they name it."""
        named = settings.draft_model
        if not isinstance(named, (str, Path)):
            return named
        _ = settings.drafter  # a mistake in the spec is told before a model is loaded
        if str(named) not in self._draft_models:
            self._draft_models[str(named)] = DraftModel.load(named, self.target)
        return self._draft_models[str(named)]

    def forget(self) -> None:
        """Give back the memory of the last text, and that of the drafters with their models."""
        with self._taking:
            old, self._spare = self._spare, None
        with self._fitting:
            self._drafters.clear()
            self._draft_models.clear()
        if old is not None:
            old.close()

    def encode(self, prompt: Prompt) -> NDArray[np.int64]:
        """A prompt as token ids, with the special tokens that the tokenizer puts before a text."""
        if not isinstance(prompt, str):
            return np.asarray(prompt)
        if self.vocabulary is None:
            raise ValueError(f"{self.target.name} came without a tokenizer; give the prompt as token ids")
        return self.vocabulary.encode(prompt)

    @staticmethod
    def _finish(writing: Writing) -> Generation:
        for _ in writing.pieces():
            pass
        return writing.result()

    def take_rows(self, capacity: int) -> Rows:
        """The spare rows, or new ones while those are in use."""
        with self._taking:
            rows, self._spare = self._spare, None
        return rows if rows is not None else self.target.open(capacity)

    def return_rows(self, rows: Rows) -> None:
        """Keep the rows for the next text that begins alike."""
        with self._taking:
            old, self._spare = self._spare, rows
        if old is not None:
            old.close()


class Writing:
    """One text being written: the engine's session between two conversions of text."""

    def __init__(self, lm: LanguageModel, prompt: Prompt, number: int, settings: Settings, sampling: Sampling) -> None:
        self._lm = lm
        self._prompt = lm.encode(prompt)
        self._stops = _stop_strings(lm, settings.stops)
        ending = Ending(
            max_new_tokens=settings.max_new_tokens,
            eos=settings.ends(lm.target),
            strings=self._stops,
            criteria=settings.criteria,
            context_length=lm.target.context_length,
        )
        self.context = Context(self._prompt, sampling, ending, sample=number)
        self._settings = settings
        self._drafter, self._planner = lm.drafter(settings), settings.sizes
        self.session: Session | None = None
        self._said: list[Piece] = []

    def pieces(self) -> Generator[Piece, None, None]:
        """The text, token by token. To be called once."""
        rows = self._lm.take_rows(len(self.context) + self.context.room + SPARE_ROWS)
        try:
            self.session = Session(
                context=self.context,
                target=self._lm.target,
                rows=rows,
                drafter=self._drafter,
                planner=self._planner,
                rule=Rule(self._settings.rule),
                top_logprobs=self._settings.logprobs,
            )
            yield from self._spoken(self.session)
        finally:
            self._lm.return_rows(rows)

    def _spoken(self, session: Session) -> Generator[Piece, None, None]:
        text = self._text()
        with closing(run(session)) as emissions:
            for emission in emissions:
                said = "" if text is None else text.push(emission.token)
                self._said.append(Piece(said, emission.token, emission.source, emission.logprobs, emission.round))
                yield self._said[-1]
        if text is not None and (rest := text.finish()):
            self._said.append(Piece(rest, None, ""))
            yield self._said[-1]

    def _text(self) -> TextStream | None:
        if self._lm.vocabulary is None:
            return None
        return TextStream(self._lm.vocabulary, self._settings.stops, self._prompt.tolist())

    def result(self) -> Generation:
        """The finished text and its record, when `pieces` has come to its end."""
        session = self.session
        assert session is not None and self.context.finish is not None, "the text is still being written"
        return Generation(
            text="".join(piece.text for piece in self._said),
            tokens=self.context.emitted.tolist(),
            finish=str(self.context.finish),
            prompt_tokens=self.context.prompt_length,
            cached_tokens=session.reused,
            pieces=self._said,
            emissions=session.emissions,
            rounds=session.rounds,
            totals=Totals.of(session.rounds, session.seconds_prefill),
        )


def _stop_strings(lm: LanguageModel, strings: tuple[str, ...]) -> StopStrings | None:
    if not strings:
        return None
    if lm.vocabulary is None:
        raise ValueError(f"{lm.target.name} came without a tokenizer, so stop strings cannot be seen; leave them out")
    return StopStrings(lm.vocabulary, strings)


def load(
    model: str | Path | PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: str | None = None,
    device: str | None = None,
    device_map: str | dict[str, Any] | None = None,
) -> LanguageModel:
    """A bundled model, a transformers causal LM by path or name, or a loaded one (then with its tokenizer).

    Bundled are ``pocket``, ``pocket-draft`` and ``pocket-foreign``; ``pocket+ballast:500M`` is the same function at
    the cost of a model of that size, ``pocket+ballast:500M/150k`` with as many token ids. A folder that happens to be
    called like one of them is reached as ``./pocket``.
    """
    from paceline.targets.load import open_model

    target, own = open_model(model, dtype=dtype, device=device, device_map=device_map)
    tokenizer = own if tokenizer is None else tokenizer
    return LanguageModel(target, Vocabulary.of(tokenizer) if tokenizer is not None else None)
