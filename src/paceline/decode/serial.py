"""The serial driver: one sequence, each question answered at once. The slow twin of every faster driver."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing

from paceline.decode.session import Answer, Emission, Propose, Question, Session
from paceline.drafters.base import Ask
from paceline.targets.base import Target


def run(session: Session) -> Generator[Emission, None, None]:
    """Drive a session to its end, handing out tokens as rounds bring them.

    Closing the iterator closes the session. Tokens that were settled before something failed are handed out first.
    """
    answer: Answer | None = None
    given = 0
    with closing(session.flow()) as flow:
        while True:
            try:
                question = flow.send(answer)
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
            answer = ask(session.target, question)


def ask(target: Target, question: Question) -> Answer:
    """The answer to one question, straight from the drafter or the target."""
    if isinstance(question, Propose):
        return question.drafter.propose([Ask(question.state, question.budget)])[0]
    return target.submit([question.request]).result()[0]
