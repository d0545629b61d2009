"""The serial driver: one sequence, each call answered at once. The slow twin of every faster driver."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing

from paceline.engine.calls import AFTER, Call, Timed, answers
from paceline.engine.emission import Emission
from paceline.engine.loop import Session


def run(session: Session) -> Generator[Emission, None, None]:
    """Drive a session to its end, handing out tokens as rounds emit them.

    Closing the iterator closes the session. Tokens that were settled before something failed are handed out first.
    """
    given = 0
    with closing(session.flow()) as flow:
        timed = Timed(flow)
        call: Call | None = None
        while True:
            try:
                call = timed.send(None if call is None else answers([call])[0])
                while call.verb in AFTER:
                    call = timed.send(answers([call])[0])
            except StopIteration:
                call = None
            except Exception:
                yield from session.emissions[given:]
                raise
            handed = time.perf_counter()
            yield from session.emissions[given:]
            timed.pause(time.perf_counter() - handed)
            given = len(session.emissions)
            if call is None:
                return
