"""One text being written: the engine's session between two conversions of text."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.api.drafters import Lease
from paceline.api.pictures.tokens import in_brief
from paceline.api.piece import Piece, Pieces
from paceline.api.prompts import Prompt, Reading, predicted, read
from paceline.api.settings import Settings
from paceline.context import Context, Ending, Finish
from paceline.drafters.given import GRAMMAR, PREDICTION
from paceline.engine.counters import Round, Totals
from paceline.engine.emission import Emission
from paceline.engine.explain import phases
from paceline.engine.loop import Session
from paceline.engine.prompt import refuse_foreign
from paceline.engine.serial import run
from paceline.errors import InputError, need
from paceline.law import Sampling
from paceline.targets.base import SPARE_ROWS, Rows
from paceline.targets.forked import note_use
from paceline.targets.lending import KeptRows
from paceline.verify import Rule
from paceline.vocabulary import StopStrings
from paceline.vocabulary.transcript import Transcripts

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel

SHOWN = 40
"""Characters of a text in its `repr`."""
FIRST = 8
"""Token ids there, where there is no text."""
ENDLESS = 4096
"""New tokens of a text without a limit, by a model whose context has none either."""


@dataclass(frozen=True, repr=False)
class Generation:
    """One finished text and how it came about. Its pieces hold every token once, and their texts are the text.

    ``str`` is the text; a notebook shows the picture of its tokens.
    """

    text: str
    tokens: list[int]
    finish: str
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were not read again, their rows being left from the last text."""
    pieces: list[Piece]
    rounds: list[Round]
    totals: Totals
    sampling: Sampling
    """The settings of sampling that it was written with, its seed among them."""

    @property
    def seed(self) -> int:
        """With the same settings it writes the same text again."""
        return self.sampling.seed

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        if self.tokens and not self.text:  # of a model without a tokenizer
            begun = f"[{', '.join(map(str, self.tokens[:FIRST]))}{', …' if len(self.tokens) > FIRST else ''}]"
        else:
            begun = repr(self.text if len(self.text) <= SHOWN else f"{self.text[:SHOWN]}…")
        return f"Generation({begun}, {in_brief(self.totals)}, finish: {self.finish})"

    def _repr_html_(self) -> str:
        """The picture of its tokens, in a notebook."""
        from paceline.api.pictures import TokenPicture
        from paceline.api.pictures.notebook import fragment

        return fragment(TokenPicture("", tuple(self.pieces), self.totals))

    def openai_logprobs(self) -> dict[str, Any]:
        """The log-probabilities as the ``logprobs`` of a choice in OpenAI's chat API: plain data, fit for JSON.

        The end-of-text token is among them, if one ended the text.
        """
        found = [piece.logprobs.openai() for piece in self.pieces if piece.logprobs is not None]
        if not found and self.tokens:
            raise InputError("no log-probabilities were asked for; write generate(..., logprobs=5)")
        return {"content": found}

    def explain(self) -> list[str]:
        """The choices of the planner and their reasons, a sentence per phase of the text."""
        return [phase.sentence() for phase in phases(self.rounds, self.pieces)]

    def as_dict(self, *, rounds: bool = False) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it; with ``rounds`` also every round, and the source of every token."""
        found = {
            "text": self.text,
            "tokens": self.tokens,
            "finish": self.finish,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "seed": self.seed,
            "totals": self.totals.as_dict(),
        }
        if logprobs := [piece.logprobs.as_dict() for piece in self.pieces if piece.logprobs is not None]:
            found["logprobs"] = logprobs
        return found | (self._by_round() if rounds else {})

    def _by_round(self) -> dict[str, Any]:
        sources: list[list[str]] = [[] for _ in self.rounds]
        tokens = [piece for piece in self.pieces if piece.token is not None]
        for piece in tokens:
            if piece.round < len(sources):  # not of a round in which the text was cancelled
                sources[piece.round].append(piece.source)
        return {
            "sources": [piece.source for piece in tokens],
            "rounds": [r.as_dict() | {"sources": sources[number]} for number, r in enumerate(self.rounds)],
        }


class Writing:
    """One text being written: the engine's session between two conversions of text.

    To write it alone, read its `pieces`. To write several together, `begin` each, take from `feed` what its session
    emitted, and `end` it.
    """

    def __init__(
        self,
        lm: LanguageModel,
        prompt: Prompt | Reading,
        number: int,
        settings: Settings,
        sampling: Sampling,
        *,
        transcripts: Transcripts | None = None,
    ) -> None:
        """``number`` is that of a sample; ``transcripts`` remembers a chat in place of the model's own."""
        note_use()
        self._lm = lm
        self._transcripts = transcripts or lm.transcripts
        if not isinstance(prompt, Reading):
            prompt = read(prompt, lm.target, self._transcripts, settings.chat_template_kwargs)
        self._read = prompt
        self._prompt = self._read.tokens
        self._stops = (*self._read.stops, *settings.stops)
        ends = settings.ends(lm.target)
        self._sampling, sampling = sampling, _bound(sampling, settings, lm, ends)
        ending = Ending(
            max_new_tokens=settings.max_new_tokens or lm.target.context_length or ENDLESS,
            eos=ends,
            strings=_stop_strings(lm, self._stops),
            criteria=tuple(settings.criteria),
            context_length=lm.target.context_length,
        )
        draft_prompt = self._read.messages or None if settings.draft_prompt is None else settings.draft_prompt
        self.context = Context(self._prompt, sampling, ending, sample=number, draft_prompt=draft_prompt)
        refuse_foreign(self._prompt, lm.target)
        self.context.prediction = predicted(settings.predicted, self._prompt, lm.target, lm.vocabulary)
        self._settings = settings
        given = {PREDICTION: bool(self.context.prediction), GRAMMAR: sampling.grammar is not None}
        self._lease: Lease | None = lm.lease(settings, [name for name, there in given.items() if there])
        self._drafter = self._lease.drafter
        self._planner = lm.planner(settings, self._drafter)
        self._lent: tuple[KeptRows, Rows] | None = None
        self.session: Session | None = None
        self.error: Exception | None = None
        """The error that ended it too early."""
        self.batched = False
        """Whether a batch writes it."""
        self._lock = threading.RLock()
        """Held while the text goes on, so that another thread can cancel it and have its result."""
        self._alone = False
        """Whether its own `pieces` write it, and not a batch."""
        self._pieces = Pieces(lm.vocabulary, self._stops, self._prompt.tolist())
        self._said: list[Piece] = []
        self._fed = 0
        """How many pieces were handed out."""
        self._complete = False

    def __repr__(self) -> str:
        state = self.context.finish or ("being written" if self._lent else "not begun")
        return f"<writing of {len(self.context.emitted)} tokens, {state}>"

    def another(self, number: int) -> Writing:
        """Another sample, whose prompt and prediction are not read again."""
        settings = replace(self._settings, prediction=self.context.prediction or None)
        return Writing(self._lm, self._read, number, settings, self._sampling, transcripts=self._transcripts)

    @property
    def rendered(self) -> str:
        """The text of a chat up to the reply; empty of other prompts."""
        return self._read.chat or ""

    def pieces(self) -> Generator[Piece, None, None]:
        """The text, token by token. To be called once."""
        session, self._alone = self.begin(self._lm.kept), True
        try:
            with closing(run(session)) as emissions:
                while self._goes_on(emissions):
                    yield from self.feed()
            yield from self.feed(ended=True)
        except Exception as error:
            self.error = error
            raise
        finally:
            self.end()

    def _goes_on(self, emissions: Generator[Emission, None, None]) -> bool:
        """Write the next token; False at the end of the text, and once it was cancelled."""
        with self._lock:
            return self.context.finish is not Finish.CANCELLED and next(emissions, None) is not None

    def begin(self, kept: KeptRows) -> Session:
        """The session that writes the text. Its rows are taken here and given back by `end`."""
        if self._lent is not None or self.session is not None:
            raise InputError("this text is being written, or has been; a text is written once")
        self.session = Session(
            context=self.context,
            target=self._lm.target,
            rows=self._borrowed(kept),
            drafter=self._drafter,
            planner=self._planner,
            rule=Rule(self._settings.rule),
            top_logprobs=self._settings.logprobs,
            strict=self._settings.strict,
            observer=self._settings.observer,
        )
        return self.session

    def _borrowed(self, kept: KeptRows) -> Rows:
        rows = kept.take(self.context.tokens[:-1], self.context.reserve + SPARE_ROWS)
        self._lent = kept, rows
        return rows

    def rest(self) -> None:
        """Give the rows back for now; the text is not being written."""
        lent, self._lent = self._lent, None
        if lent is not None:
            kept, rows = lent
            kept.give(rows)

    def go_on(self, kept: KeptRows) -> Session:
        """The session again, on rows that hold as much of the text as is still kept."""
        assert self.session is not None and self._lent is None, "only a text that rests can go on"
        self.session.rows = self._borrowed(kept)
        return self.session

    def feed(self, *, ended: bool = False) -> list[Piece]:
        """The pieces since the last call; of a text that has ended, also what was held back at its end."""
        with self._lock:
            self._catch_up(ended)
            new, self._fed = self._said[self._fed :], len(self._said)
        return new

    def cancel(self) -> None:
        """Stop here, from any thread: what reads the pieces comes to their end within a round. The `result` holds what
        was written. A text that has ended stays as it is."""
        self.context.cancel()

    def end(self) -> None:
        """Give the rows back, and the drafter. A second call changes nothing."""
        self._lease = None
        self.rest()

    def _catch_up(self, ended: bool) -> None:
        """Make pieces of what was written since."""
        emissions = [] if self.session is None else self.session.emissions
        self._said += map(self._pieces.of, emissions[len(self._said) :])
        if ended and not self._complete and self.context.finish is not None:
            self._complete = True
            if rest := self._pieces.rest():  # of a text that was cancelled between two tokens
                self._said.append(Piece(rest, None, ""))
            self._remember()

    def _remember(self) -> None:
        """Remember a chat in the tokens of its reply."""
        if self._read.chat is not None and self._transcripts is not None:
            reply = "".join(piece.text for piece in self._said)
            self._transcripts.keep(self._read.chat, self._prompt.tolist(), reply, self.context.emitted.tolist())

    def result(self) -> Generation:
        """The text and its record, when it has ended; of a cancelled one as far as it was written. A text of which no
        piece was read is written to its end. What ended a text too early is raised again."""
        with self._lock:
            if self.session is None and not self.batched and self.error is None and self.context.finish is None:
                for _ in self.pieces():
                    pass
            if self.error is not None:
                raise self.error
            if self.context.finish is None or (self._lent is not None and not self._alone):
                raise InputError("this text is not finished; read its pieces, or step its batch, until it has ended")
            self._catch_up(ended=True)
            return self._generation()

    def _generation(self) -> Generation:
        session = self.session
        rounds = [] if session is None else session.rounds
        return Generation(
            text="".join(piece.text for piece in self._said),
            tokens=self.context.emitted.tolist(),
            finish=str(self.context.finish),
            prompt_tokens=self.context.prompt_length,
            cached_tokens=0 if session is None else session.reused or 0,
            pieces=self._said,
            rounds=rounds,
            totals=Totals.of(rounds, 0.0 if session is None else session.seconds_prefill),
            sampling=self._sampling,
        )


def _bound(sampling: Sampling, settings: Settings, lm: LanguageModel, ends: frozenset[int]) -> Sampling:
    """The settings with their grammar in the tokens of the model, if they have one."""
    if sampling.grammar is None:
        return sampling
    if lm.vocabulary is None:
        raise InputError(f"{lm.target.name} came without a tokenizer, so no grammar can be followed; leave it out")
    if settings.ignore_eos:
        raise InputError("a text with a grammar ends where that is complete; leave out ignore_eos or the grammar")
    need("llguidance", "a grammar", "grammar")
    from paceline.grammar.following import bound_to

    return replace(sampling, grammar=bound_to(sampling.grammar, lm.vocabulary, ends))


def _stop_strings(lm: LanguageModel, strings: tuple[str, ...]) -> StopStrings | None:
    if not strings:
        return None
    if lm.vocabulary is None:
        raise InputError(f"{lm.target.name} came without a tokenizer, so stop strings cannot be seen; leave them out")
    return StopStrings(lm.vocabulary, strings)
