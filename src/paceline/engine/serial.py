"""The serial driver: one sequence, each question answered at once. The slow twin of every faster driver."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing

from paceline.engine.calls import Answer, Learn, Review, answered
from paceline.engine.loop import Emission, Session


def run(session: Session) -> Generator[Emission, None, None]:
    """Drive a session to its end, handing out tokens as rounds bring them.

    Closing the iterator closes the session. Tokens that were settled before something failed are handed out first.
    """
    given = 0
    with closing(session.flow()) as flow:
        answer: Answer = None
        while True:
            try:
                question = flow.send(answer)
                while isinstance(question, (Learn, Review)):  # the round is not over, nor are its tokens handed out
                    question = flow.send(answered([question], session.target)[0])
            except StopIteration:
                question = None
            except Exception:
                yield from session.emissions[given:]
                raise
            handed = time.perf_counter()
            yield from session.emissions[given:]
            session.seconds_away += time.perf_counter() - handed
            given = len(session.emissions)
            if question is None:
                return
            answer = answered([question], session.target)[0]
