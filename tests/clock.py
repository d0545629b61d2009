"""Time in tests: one that they move themselves, and patience where real threads and processes take some."""

import time
from collections.abc import Callable


class MadeClock:
    """A clock that moves by `TICK` seconds whenever somebody looks at it, and by what is slept."""

    TICK = 2**-10
    """Sums of it are exact."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.TICK
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def comes_true(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait for what other threads and processes do. However long it takes, a slow machine only takes longer."""
    end = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return true
