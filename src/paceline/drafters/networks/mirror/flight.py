"""A text as the draft model's process has it, and a window of it in flight.

A window is asked for when the target has decided (`RemoteText.go`), and waited for when it is needed
(`WindowInFlight.result`). In between the caller does other work and holds the window as a value. Who makes windows is a
`WindowSource`: the process, or its slow twin, which makes the same ones in turns with the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from paceline.context import Context
from paceline.drafters.base import InFlight
from paceline.drafters.counters import Counter, Tally
from paceline.drafters.networks.mirror.messages import Ahead, Go, MessageKind, Said, Window
from paceline.drafters.networks.mirror.process import Lost
from paceline.drafters.networks.reading import DRAFT_FORWARDS, DRAFT_TOKENS
from paceline.tree import Ints
from paceline.vocabulary import Vocabulary

LEVELS_AHEAD = Counter(
    "levels_ahead", "levels of drafts that were there before the target had decided what they follow"
)
DRAFTS_ANEW = Counter("drafts_anew", "drafts that began only then: none was begun ahead for that decision")
DRAFTS_INSIDE = Counter("drafts_inside", "drafts that were the rest of one that was begun ahead for another decision")
BYTES_EXCHANGED = Counter("bytes_exchanged", "bytes to and from the process of the draft model")


class WindowSource(Protocol):
    """Makes windows for texts, which it numbers. Every method may raise `Lost`."""

    facts: dict[str, Any]

    @property
    def lost(self) -> str: ...

    def teach(self, vocabulary: Vocabulary) -> None: ...

    def open(self, facts: dict[str, Any], prompt: Ints) -> int: ...

    def tell(self, kind: MessageKind, text: int, place: int, said: Said) -> int: ...

    def window(
        self, text: int, place: int, read: Callable[[Said], Window], *, asked: float, until: float = 0.0
    ) -> tuple[Window, int] | None: ...

    def seconds(self, rows: int) -> float: ...

    def wake(self, text: int) -> None: ...

    def rest(self, text: int) -> None: ...

    def forget(self, text: int) -> None: ...


@dataclass(eq=False)
class WindowInFlight(InFlight):
    """The window behind a text that was ``place`` tokens long when it was ``asked`` for."""

    text: RemoteText
    place: int
    asked: float = field(default_factory=time.monotonic)
    window: Window | None = None
    """Once it has arrived."""

    @property
    def landed(self) -> bool:
        return self.window is not None

    def result(self, until: float = 0.0) -> Window | None:
        """The window, if it is there by then. Handed out once; one that is late may still be asked for."""
        text = self.text
        if self.landed:
            return None
        with suppress(Lost):  # the drafter finds it out by `lost`
            found = text.source.window(text.number, self.place, text.read, asked=self.asked, until=until)
            if found is not None:
                text.count(*found)
                self.window = found[0]
                return self.window
        return None


class RemoteText:
    """One text at a source of windows."""

    def __init__(
        self, source: WindowSource, context: Context, facts: dict[str, Any], *, nodes: int, tally: Tally
    ) -> None:
        """``nodes`` bounds its windows."""
        self.source, self._context, self._tally = source, context, tally
        self.read = partial(Window.of, size=facts["vocab_size"], most=nodes, source=facts["source"])
        self.number = source.open(facts, context.tokens)
        self._known = len(context)
        """How many of its tokens the source knows."""
        self._last: WindowInFlight | None = None

    @property
    def lost(self) -> str:
        """Why there are no more windows, or ""."""
        return self.source.lost

    @property
    def free(self) -> bool:
        """Whether the source can take a message: no window is awaited. One at a time is, so that nothing piles up
        before a process that is late; a window that has arrived and was not used is dropped."""
        return self._last is None or self._last.landed or self._last.result() is not None

    def ahead(self, asked: Ahead) -> None:
        """Draft windows behind these outcomes of the draft that the target scores."""
        self._tell(MessageKind.AHEAD, asked.said())

    def go(self, levels: int) -> WindowInFlight:
        """Tell what followed, and ask for the window behind it; one that is begun now has so many ``levels``."""
        text: Ints = self._context.tokens[self._known :]
        self._known = len(self._context)
        self._tell(MessageKind.GO, Go(levels, text).said())
        self._last = WindowInFlight(self, self._known)
        return self._last

    def _tell(self, kind: MessageKind, said: Said) -> None:
        with suppress(Lost):  # the drafter finds it out by `lost`
            self._tally.add(BYTES_EXCHANGED, self.source.tell(kind, self.number, len(self._context), said))

    def count(self, window: Window, size: int) -> None:
        """Count a window of so many bytes."""
        counts: Mapping[Counter, float] = {
            DRAFT_FORWARDS: window.forwards,
            DRAFT_TOKENS: window.drafted,
            LEVELS_AHEAD: max(window.ready, 0),
            DRAFTS_ANEW: window.ready < 0,
            DRAFTS_INSIDE: window.inside > 0,
            BYTES_EXCHANGED: size,
        }
        for counter, count in counts.items():
            self._tally.add(counter, count)

    def wake(self) -> None:
        """Drafts are wanted: the thread that has the text leaves the draft model its cores."""
        self.source.wake(self.number)

    def rest(self) -> None:
        """No drafts are wanted for now."""
        self.source.rest(self.number)

    def forget(self) -> None:
        """The end of the text. Safe in a finalizer."""
        self.source.forget(self.number)
