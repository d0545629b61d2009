"""The draft model's process as a text's process sees it: started once for a model, a type and a place, shared by all
drafters that name these, and gone with the last of them.

It may die, hang or say nonsense at any moment. Then it is ended, and whoever asks it for a window is told `Lost`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from paceline.drafters.mirror.frames import Facts, Forward, Frame, Kind, Mangled, Unpacker, Window
from paceline.drafters.mirror.place import Place, reach, usable_cores
from paceline.drafters.mirror.vocabularies import packed
from paceline.drafters.sharing import Shared
from paceline.errors import InputError
from paceline.targets.lending import Tray
from paceline.tree import Ints
from paceline.vocabulary import Vocabulary

READ = 1 << 16
PATIENCE = 20.0
"""Seconds without a word after which a process that owes one counts as stuck."""
LOADING = 600.0
NEWEST = 0.3
"""The weight of the newest forward in the running mean of a forward's seconds."""


class Lost(Exception):
    """There is no such process any more."""


@dataclass(eq=False)
class Writer:
    """A thread that has texts with drafts from here. Torch counts its threads for each thread by itself."""

    had: int = 0
    texts: int = 0


class Yielded:
    """The cores of draft models while they have texts: who writes these has fewer threads of torch then, since a thread
    on a core that another process uses holds up all others."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a text that is abandoned ends in a finalizer, maybe inside of `begin`
        self._busy: Counter[Place] = Counter()
        self._here = threading.local()

    def begin(self, place: Place) -> Writer:
        import torch

        with self._lock:
            writer = self._writer()
            if not writer.texts and not writer.had:
                writer.had = torch.get_num_threads()
            writer.texts += 1
            self._busy[place] += 1
            self._share_out(writer)
        return writer

    def end(self, place: Place, writer: Writer) -> None:
        """A text of ``writer`` has ended, maybe in another thread."""
        with self._lock:
            writer.texts -= 1
            self._busy -= Counter([place])
            self._share_out(self._writer())

    def _writer(self) -> Writer:
        if not hasattr(self._here, "writer"):
            self._here.writer = Writer()
        found: Writer = self._here.writer
        return found

    def _share_out(self, writer: Writer) -> None:
        """For this thread; ``writer`` is what it has."""
        import torch

        if not writer.had:
            return
        taken = {core for place in self._busy for core in place.cpus} if writer.texts else set()
        least = min(writer.had, len(usable_cores()) - len(taken)) if taken else writer.had
        torch.set_num_threads(max(1, least))
        if not writer.texts:
            writer.had = 0


YIELDED = Yielded()


@dataclass(eq=False)
class _Inbox:
    """What the process said and nobody has read yet."""

    news: threading.Condition = field(default_factory=threading.Condition)
    texts: set[int] = field(default_factory=set)
    """Those that are open; a window that comes too late is dropped."""
    windows: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """The newest window of each text, with its length, not decoded yet."""
    facts: Facts | None = None
    answers: dict[int, str] = field(default_factory=dict)
    """What it said to a tokenizer, by the number of the question."""
    lost: str = ""
    """Why there is no process any more, once that is so."""
    heard: float = 0.0
    forwards: deque[Forward] = field(default_factory=partial(deque, maxlen=1 << 12))
    """The newest ones that nobody has asked for yet."""
    pace: dict[int, float] = field(default_factory=dict)
    """Seconds of a forward, by the bits of its number of rows."""

    def take(self, frame: Frame) -> None:
        self.heard = time.monotonic()
        match frame.kind:
            case Kind.WINDOW:
                if frame.text in self.texts:
                    self.windows[frame.text] = frame.place, frame.body
            case Kind.TOKENIZER:
                self.answers[frame.text] = str(Facts.of(frame.body).values.get("said"))
            case Kind.READY:
                self.facts = Facts.of(frame.body)
            case Kind.FAILED:
                facts = Facts.of(frame.body).values
                self.facts, self.lost = Facts(facts), str(facts.get("said"))
            case Kind.FORWARD:
                spent = Forward.of(frame.body)
                if not spent.rows:
                    return
                self.forwards.append(spent)
                size = spent.rows.bit_length()
                known = self.pace.get(size, spent.seconds)
                self.pace[size] = known + NEWEST * (spent.seconds - known)
            case _:
                raise Mangled(f"a draft model says {frame.kind.name}")


class DraftProcess:
    """A running process. Several threads may use it."""

    _running: Shared[DraftProcess] = Shared()

    @classmethod
    def at(cls, place: Place, stamp: Any) -> DraftProcess:
        """The one of this place. One that was lost is started again."""
        key = place, stamp
        found = cls._running.get(key, lambda: cls(place))
        if found.lost:
            cls._running.drop(key, found)
            found = cls._running.get(key, lambda: cls(place))
        return found

    def __init__(self, place: Place) -> None:
        self._inbox = inbox = _Inbox(heard=time.monotonic())
        self._place, reached = place, reach(place, partial(_read, inbox=inbox))
        self._link, self.pid = reached.link, reached.pid
        """Its number here; 0 where it is on another machine."""
        self._sending: Tray[int] = Tray(partial(_say_closed, reached.link, inbox))
        """Held while something is said. An abandoned text is closed in a finalizer, which must not wait for that."""
        self._numbers, self._taught = count(1), set[str]()
        self._writers: dict[int, Writer] = {}
        """Of each open text, the thread that has it."""
        self._end = weakref.finalize(self, reached.end)
        try:
            self._send(Frame(Kind.READY, 0, 0, Facts(place.facts()).body()))
            self.facts = self._introduced(place)
        except Lost as error:
            raise InputError(f"the process of draft model {place.model} did not start: {error}") from None
        except BaseException:
            self.close()
            raise

    def _introduced(self, place: Place) -> dict[str, Any]:
        """What it says of its model once that is loaded."""
        inbox = self._inbox
        with inbox.news:
            inbox.news.wait_for(lambda: inbox.facts is not None or inbox.lost, LOADING)
            facts = dict(inbox.facts.values) if inbox.facts is not None else {}
            if inbox.lost or not facts:
                raise InputError(
                    inbox.lost
                    if facts.get("known")
                    else f"the process of draft model {place.model} did not start: {inbox.lost or 'it said nothing'}"
                )
        return facts

    @property
    def lost(self) -> str:
        """Why it is gone, or "" while it is there."""
        return self._inbox.lost

    def teach(self, vocabulary: Vocabulary) -> None:
        """A target's tokenizer, once. InputError where its tokens cannot be translated."""
        inbox, known = self._inbox, vocabulary.fingerprint
        if known in self._taught:
            return
        number = next(self._numbers)
        body = Facts({"fingerprint": known, "files": packed(vocabulary)}).body()
        with contextlib.suppress(Lost):
            self._send(Frame(Kind.TOKENIZER, number, 0, body))
        with inbox.news:
            inbox.news.wait_for(lambda: number in inbox.answers or inbox.lost, LOADING)
            if said := inbox.lost or inbox.answers.pop(number, "it did not answer"):
                raise InputError(f"draft model {self._place.model} cannot read the target's tokens: {said}")
        self._taught.add(known)

    def open(self, facts: dict[str, Any], prompt: Ints) -> int:
        """Begin a text; its number."""
        number, body = next(self._numbers), Facts(facts, prompt).body()
        self._writers[number] = YIELDED.begin(self._place)
        self._inbox.texts.add(number)
        try:
            self._send(Frame(Kind.OPEN, number, len(prompt), body))
        except BaseException:
            YIELDED.end(self._place, self._writers.pop(number))
            self._inbox.texts.discard(number)
            raise
        return number

    def tell(self, kind: Kind, text: int, place: int, body: bytes = b"") -> None:
        self._send(Frame(kind, text, place, body))

    def forget(self, text: int) -> None:
        """The end of a text; nothing is raised where the process is gone. Safe in a finalizer."""
        if (writer := self._writers.pop(text, None)) is None:
            return
        YIELDED.end(self._place, writer)
        self._sending.give(text)

    def window(self, text: int, place: int, read: Callable[[bytes], Window], patience: float) -> tuple[Window, int]:
        """The window behind a text of that length, and the bytes of its frame. Waits for it."""
        inbox, began = self._inbox, time.monotonic()
        with inbox.news:
            while not inbox.lost:
                at, body = inbox.windows.get(text, (-1, b""))
                if at == place:
                    del inbox.windows[text]
                    break
                left = max(began, inbox.heard) + patience - time.monotonic()
                if left <= 0:
                    self._give_up(f"it has said nothing for {patience:g} s")
                    break
                inbox.news.wait(left)
            if inbox.lost:
                raise Lost(inbox.lost)
        try:
            return read(body), len(body)
        except Mangled as error:
            self._give_up(str(error))
            raise Lost(str(error)) from None

    def seconds(self, rows: int) -> float:
        """Of a forward of so many rows, from those that were seen; 0 where none was."""
        pace, bits = dict(self._inbox.pace), rows.bit_length()
        if not pace:
            return 0.0
        near = min(pace, key=lambda known: (abs(known - bits), -known))
        return pace[near] * (2.0 ** (bits - near) if bits > near else 1.0)

    def heard(self) -> list[Forward]:
        """The draft model's forwards since the last call."""
        with self._inbox.news:
            found = list(self._inbox.forwards)
            self._inbox.forwards.clear()
        return found

    def _send(self, frame: Frame) -> None:
        with self._sending.held():
            if self.lost:
                raise Lost(self.lost)
            try:
                _say(self._link, frame)
            except OSError as error:
                self._give_up(f"it takes no more words ({error})")
                raise Lost(self.lost) from None
            except BaseException:  # Ctrl-C: the rest of this frame would be looked for in the next one
                self._give_up("a word to it was left unfinished")
                raise

    def _give_up(self, why: str) -> None:
        self._inbox.lost = self._inbox.lost or why
        self._end()

    def close(self) -> None:
        self._give_up("it was ended")


def _say(link: socket.socket, frame: Frame) -> None:
    link.settimeout(PATIENCE)
    said = memoryview(frame.packed())
    for start in range(0, len(said), READ):  # the limit is for a call: a tokenizer over a slow link may take longer
        link.sendall(said[start : start + READ])


def _say_closed(link: socket.socket, inbox: _Inbox, text: int) -> None:
    """A function, since a method would keep the process alive until the next garbage collection."""
    inbox.texts.discard(text)
    inbox.windows.pop(text, None)
    if not inbox.lost:
        with contextlib.suppress(OSError):
            _say(link, Frame(Kind.CLOSE, text, 0, b""))


def _read(link: socket.socket, inbox: _Inbox) -> None:
    """Frames as they come, until there are no more or one cannot be read."""
    unpacker, why = Unpacker(), "it is gone"
    try:
        while data := _received(link):
            with inbox.news:
                for frame in unpacker.feed(data):
                    inbox.take(frame)
                inbox.news.notify_all()
    except Mangled as error:
        why = str(error)
    with inbox.news:
        inbox.lost = inbox.lost or why
        inbox.news.notify_all()


def _received(link: socket.socket) -> bytes:
    while True:
        try:
            return link.recv(READ)
        except TimeoutError:
            continue
        except OSError:
            return b""
