"""One text being written: the engine's session between two conversions of text."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.api.drafters import Lease
from paceline.api.piece import Piece
from paceline.api.settings import Settings
from paceline.context import Context, Ending
from paceline.engine.account import Round, Totals
from paceline.engine.explain import phases
from paceline.engine.loop import Emission, Session, refuse_foreign
from paceline.engine.serial import run
from paceline.errors import InputError
from paceline.law import Sampling
from paceline.targets.base import SPARE_ROWS, Rows
from paceline.targets.forked import note_use
from paceline.targets.lending import KeptRows
from paceline.verify import Rule
from paceline.vocabulary import StopStrings, TextStream

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel

Prompt = str | Sequence[int] | NDArray[np.int64]


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

    def explain(self) -> list[str]:
        """What the planner chose and why, a sentence per phase of the text."""
        return [phase.sentence() for phase in phases(self.rounds, self.emissions)]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        sources: list[list[str]] = [[] for _ in self.rounds]
        for emission in self.emissions:
            if emission.round < len(sources):  # not of a round in which the text was cancelled
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


class Writing:
    """One text being written: the engine's session between two conversions of text.

    To write it alone, read its `pieces`. To write several together, `begin` each, `feed` it what its session emitted,
    and `end` it.
    """

    def __init__(self, lm: LanguageModel, prompt: Prompt, number: int, settings: Settings, sampling: Sampling) -> None:
        note_use()
        self._lm = lm
        self._prompt = lm.encode(prompt)
        ending = Ending(
            max_new_tokens=settings.max_new_tokens,
            eos=settings.ends(lm.target),
            strings=_stop_strings(lm, settings.stops),
            criteria=settings.criteria,
            context_length=lm.target.context_length,
        )
        self.context = Context(self._prompt, sampling, ending, sample=number)
        refuse_foreign(self._prompt, lm.target)
        self._settings = settings
        self._lease: Lease | None = lm.lease(settings)
        self._drafter = self._lease.drafter
        self._planner = lm.planner(settings, self._drafter)
        self._lent: tuple[KeptRows, Rows] | None = None
        self.session: Session | None = None
        self.error: Exception | None = None
        """What ended it too early, if it was written together with others."""
        self._said: list[Piece] = []

    def pieces(self) -> Generator[Piece, None, None]:
        """The text, token by token. To be called once."""
        try:
            with closing(run(self.begin(self._lm.kept))) as emissions:
                for emission in emissions:
                    yield self._say(emission)
            yield from self._rest()
        finally:
            self.end()

    def begin(self, kept: KeptRows) -> Session:
        """The session that writes the text. Its rows are taken here and given back by `end`."""
        if self._lent is not None or self.session is not None:
            raise InputError("this text is being written, or has been; a text is written once")
        rows = kept.take(self._prompt[:-1], len(self.context) + self.context.room + SPARE_ROWS)
        self._lent = kept, rows
        self.session = Session(
            context=self.context,
            target=self._lm.target,
            rows=rows,
            drafter=self._drafter,
            planner=self._planner,
            rule=Rule(self._settings.rule),
            top_logprobs=self._settings.logprobs,
            strict=self._settings.strict,
        )
        return self.session

    def feed(self, emissions: Sequence[Emission]) -> list[Piece]:
        """The pieces of new tokens, and after the last token of the text what was held back."""
        return [*map(self._say, emissions), *self._rest()]

    def cancel(self) -> None:
        """Stop here. The `result` holds what was written."""
        self.context.cancel()
        if self.session is not None:
            said = sum(piece.token is not None for piece in self._said)
            self.feed(self.session.emissions[said:])

    def end(self) -> None:
        """Give the rows back, and the drafter. A second call changes nothing."""
        self._lease = None
        lent, self._lent = self._lent, None
        if lent is not None:
            kept, rows = lent
            kept.give(rows)

    def _say(self, emission: Emission) -> Piece:
        said = "" if self._text is None else self._text.push(emission.token)
        place = emission.token, emission.source, emission.logprobs, emission.round
        self._said.append(Piece(said, *place, emission.kind, emission.score))
        return self._said[-1]

    def _rest(self) -> list[Piece]:
        """The text that might have begun a stop string, once nothing can follow it."""
        if self._text is None or self.context.finish is None or not (rest := self._text.finish()):
            return []
        self._said.append(Piece(rest, None, ""))
        return self._said[-1:]

    @cached_property
    def _text(self) -> TextStream | None:
        if self._lm.vocabulary is None:
            return None
        return TextStream(self._lm.vocabulary, self._settings.stops, self._prompt.tolist())

    def result(self) -> Generation:
        """The text and its record, when it has ended; of a cancelled one as far as it was written."""
        if self.error is not None:
            raise self.error
        session = self.session
        if self.context.finish is None:
            raise InputError("this text is not finished; read its pieces, or step its batch, until it has ended")
        rounds = [] if session is None else session.rounds
        return Generation(
            text="".join(piece.text for piece in self._said),
            tokens=self.context.emitted.tolist(),
            finish=str(self.context.finish),
            prompt_tokens=self.context.prompt_length,
            cached_tokens=0 if session is None else session.reused,
            pieces=self._said,
            emissions=[] if session is None else session.emissions,
            rounds=rounds,
            totals=Totals.of(rounds, 0.0 if session is None else session.seconds_prefill),
        )


def _stop_strings(lm: LanguageModel, strings: tuple[str, ...]) -> StopStrings | None:
    if not strings:
        return None
    if lm.vocabulary is None:
        raise InputError(f"{lm.target.name} came without a tokenizer, so stop strings cannot be seen; leave them out")
    return StopStrings(lm.vocabulary, strings)
