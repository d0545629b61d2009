"""Steps counted by the engine itself: a dictionary drafts, and a known text answers in a model's place.

It takes as long as decoding takes without its model, and counts what `emulator` counts; that they agree is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.api.pictures import TokenPicture
from paceline.api.piece import Piece
from paceline.bench.dictionaries.tally import Tally
from paceline.bench.run.contestant import Job
from paceline.bench.run.emulation import Replay
from paceline.bench.run.ours import Drafting, Ours
from paceline.engine.account import Totals
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Sampling
from paceline.verify import Kind
from paceline.vocabulary import TextStream, Vocabulary


@dataclass(frozen=True)
class Passage:
    """One text, and how it was written."""

    key: str
    tally: Tally
    picture: TokenPicture


def replayed(given: Replay, method: str, budget: int) -> Iterator[Passage]:
    """Every text of a replay by a method, whose drafts have up to so many tokens."""
    ours = Ours(f"{method}@fixed:{budget}", given.target, Drafting(vocabulary=given.vocabulary))
    for key, text in given.texts.items():
        ours.begin()
        prompt = text[: given.starts[key]]
        session = ours.session(
            Job(prompt=prompt, sampling=Sampling(), max_new_tokens=len(text) - len(prompt), eos=frozenset())
        )
        try:
            for _ in run(session):
                pass
        finally:
            session.rows.close()
        assert session.context.tokens.tolist() == text.tolist(), "a draft changes no token of the text"
        totals = Totals.of(session.rounds, session.seconds_prefill)
        pieces = tuple(_pieces(session, given.vocabulary))
        shown = given.vocabulary.text(prompt)
        yield Passage(key, Tally.of(totals), TokenPicture(shown, pieces, totals, title=key))


def _pieces(session: Session, vocabulary: Vocabulary) -> Iterator[Piece]:
    """The tokens as pictures want them."""
    prompt = session.context.prompt_length
    stream = TextStream(vocabulary, (), session.context.tokens[:prompt].tolist())
    for one in session.emissions:
        of = session.rounds[one.round]
        kind = Kind.of(one.source, of.drafted, of.refused)
        yield Piece(stream.push(one.token), one.token, one.source, None, one.round, kind, one.score)
    if rest := stream.finish():
        yield Piece(rest, None, "", round=len(session.rounds) - 1)
