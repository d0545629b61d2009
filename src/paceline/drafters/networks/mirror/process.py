"""The draft model's process as a text's process sees it: begun once for a model, a type and a place, shared by all
drafters that name these, and gone with the last of them.

It may die, hang or send nonsense at any moment. Then it is ended, and each text that asks it for a window gets `Lost`.
Its messages are bounded in bytes and in number, and each text limits how long it waits for them.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from paceline.drafters.networks.mirror.cores import YIELDED, Writer
from paceline.drafters.networks.mirror.messages import (
    MOST_ANSWERED,
    Forward,
    Mangled,
    Message,
    MessageKind,
    Said,
    Window,
)
from paceline.drafters.networks.mirror.place import DraftPlace, begin
from paceline.drafters.sharing import Shared
from paceline.errors import InputError, reason
from paceline.recent import RecentMean
from paceline.targets.lending import Tray
from paceline.tree import Ints
from paceline.vocabulary import Vocabulary

PATIENCE = 60.0
"""Seconds without a word after which a process that owes one counts as stuck. No text waits for that."""
IN_ALL = 10.0
"""The factor by which the whole wait may be longer, whatever other messages arrive."""
LOADING = 600.0
"""Seconds to load a model, which may come from the hub."""
UNASKED = 1 << 12
"""Its words for one of ours: some for each piece of a long prompt."""
SHOWN = 300
"""Characters of what it says of itself."""
KEPT = 0.7
"""The weight that earlier forwards keep with each new one, in the seconds of a forward."""


class Lost(Exception):
    """There is no such process any more."""


@dataclass(eq=False)
class _Inbox:
    """Messages of the process that were not read yet."""

    news: threading.Condition = field(default_factory=threading.Condition)
    texts: set[int] = field(default_factory=set)
    """Those that are open; a window that comes too late is dropped."""
    windows: dict[int, tuple[Message, int]] = field(default_factory=dict)
    """The newest window of each text, not checked yet, and its bytes."""
    late: bool = False
    """Whether a text has waited in vain since the last window: then none waits."""
    facts: Said | None = None
    taught: dict[int, str | None] = field(default_factory=dict)
    """Its answers about a tokenizer, by the number of the question."""
    lost: str = ""
    """Why there is no process any more, once that is so."""
    heard: float = 0.0
    unasked: int = 0
    """Its words since the last one to it."""
    forwards: deque[Forward] = field(default_factory=partial(deque, maxlen=1 << 12))
    """The newest ones that nothing has asked for yet."""
    pace: dict[int, RecentMean] = field(default_factory=dict)
    """Seconds of a forward, by the bits of its number of rows."""

    def take(self, message: Message, size: int) -> None:
        """A message of ``size`` bytes."""
        self.heard = time.monotonic()
        self.unasked += 1
        if self.unasked > UNASKED:
            raise Mangled(f"it has said {UNASKED} words to one")
        match message.kind:
            case MessageKind.WINDOW:
                self.late = False
                if message.text in self.texts:
                    self.windows[message.text] = message, size
            case MessageKind.TOKENIZER if message.text in self.taught:
                self.taught[message.text] = _answer(message.said)
            case MessageKind.READY if self.facts is None:
                self.facts = message.said
            case MessageKind.FAILED:
                self.facts = message.said
                self.lost = _answer(self.facts) or "it failed"
            case MessageKind.FORWARD:
                self._note(Forward.of(message.said))
            case _:
                raise Mangled(f"a draft model says {message.kind.name}")

    def _note(self, spent: Forward) -> None:
        self.forwards.append(spent)
        size = spent.rows.bit_length()
        known = self.pace.get(size, RecentMean(KEPT))
        known.add(spent.seconds)
        self.pace[size] = known  # only now: others read it without the lock

    def lose(self, why: str) -> None:
        with self.news:
            self.lost = self.lost or why
            self.news.notify_all()


def _answer(said: Said) -> str:
    """In one line."""
    return " ".join(str(said.get("said", "it failed")).split())[:SHOWN]


class DraftProcess:
    """A running process. Several threads may use it."""

    _running: Shared[DraftProcess] = Shared()

    @classmethod
    def at(cls, place: DraftPlace, stamp: Any) -> DraftProcess:
        """The one of this place. One that was lost is begun again."""
        key = place, stamp
        found = cls._running.get(key, lambda: cls(place))
        if found.lost:
            cls._running.drop(key, found)
            found = cls._running.get(key, lambda: cls(place))
        return found

    def __init__(self, place: DraftPlace) -> None:
        self._inbox = inbox = _Inbox(heard=time.monotonic())
        self._place, begun = place, begin(place, partial(_read, inbox=inbox))
        self._link, self.pid = begun.link, begun.child.pid
        self._sending: Tray[int] = Tray(partial(_say_closed, begun.link, inbox))
        """Held while something is said. An abandoned text is closed in a finalizer, which must not wait for that."""
        self._numbers, self._taught = count(1), set[str]()
        self._writers: dict[int, Writer | None] = {}
        """Of each open text, the thread that has it and leaves cores free for its drafts; None while it has none."""
        self._end = weakref.finalize(self, begun.end)
        try:
            self._send(Message(MessageKind.READY, said=place.facts()))
            self.facts = self._introduced(place)
        except BaseException as error:
            self.close()
            if isinstance(error, Lost):
                raise InputError(f"the process of draft model {place.model} did not start: {error}") from None
            raise

    def _introduced(self, place: DraftPlace) -> dict[str, Any]:
        """Its report about the model, once that is loaded."""
        inbox = self._inbox
        with inbox.news:
            inbox.news.wait_for(lambda: inbox.facts is not None or inbox.lost, LOADING)
            facts = dict(inbox.facts or {})
        size, mark = facts.get("vocab_size"), facts.get("fingerprint", 0)  # None without a tokenizer
        if inbox.lost and facts.get("known") is True:
            raise InputError(inbox.lost)
        if inbox.lost or type(size) is not int or size < 1 or not (mark is None or isinstance(mark, str)):
            raise Lost(inbox.lost or (f"it says {str(facts)[:SHOWN]}" if facts else f"nothing in {LOADING:g} s"))
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
        inbox.taught[number] = None
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Lost):
            vocabulary.tokenizer.save_pretrained(folder)
            self._send(Message(MessageKind.TOKENIZER, number, said={"fingerprint": known, "folder": folder}))
            with inbox.news:
                inbox.news.wait_for(lambda: inbox.taught[number] is not None or inbox.lost, LOADING)
        said = inbox.taught.pop(number)
        if why := inbox.lost or ("it did not answer" if said is None else said):
            raise InputError(f"draft model {self._place.model} cannot read the target's tokens: {why}")
        self._taught.add(known)

    def open(self, facts: dict[str, Any], prompt: Ints) -> int:
        """Begin a text; its number."""
        number = next(self._numbers)
        self._writers[number] = None
        self._inbox.texts.add(number)
        try:
            self._send(Message(MessageKind.OPEN, number, len(prompt), {**facts, "prompt": prompt.tolist()}))
        except BaseException:
            del self._writers[number]
            self._inbox.texts.discard(number)
            raise
        return number

    def tell(self, kind: MessageKind, text: int, place: int, said: Said) -> int:
        """The bytes of the message."""
        return self._send(Message(kind, text, place, said))

    def wake(self, text: int) -> None:
        """Drafts are wanted: the thread that has the text now leaves the draft model's cores free."""
        writer = self._writers[text]
        if writer is None or not YIELDED.is_here(writer):
            self.rest(text)
            self._writers[text] = YIELDED.begin(self._place)

    def rest(self, text: int) -> None:
        """No drafts are wanted for now, so the text may use all cores."""
        if (writer := self._writers[text]) is not None:
            self._writers[text] = None
            YIELDED.end(self._place, writer)

    def forget(self, text: int) -> None:
        """The end of a text; nothing is raised where the process is gone. Safe in a finalizer."""
        if text not in self._writers:
            return
        self.rest(text)
        del self._writers[text]
        self._sending.give(text)

    def window(
        self, text: int, place: int, read: Callable[[Said], Window], *, asked: float, until: float = 0.0
    ) -> tuple[Window, int] | None:
        """The window behind a text of that length, for which it was ``asked`` then, and its bytes. None
        where it is not there; it is waited for ``until`` then, unless the process is late already."""
        inbox, now = self._inbox, time.monotonic()
        waits = until > now and not inbox.late
        with inbox.news:
            if waits:
                inbox.news.wait_for(lambda: text in inbox.windows or inbox.lost, until - now)
            found = inbox.windows.pop(text, None)
            inbox.late = inbox.late or (waits and found is None)
        if found is None or inbox.lost:
            self._check(asked)
            return None
        message, size = found
        try:
            if message.place != place:
                raise Mangled(f"a window follows {message.place} tokens of {place}")
            return read(message.said), size
        except Mangled as error:
            self._give_up(str(error))
            raise Lost(self.lost) from None

    def _check(self, asked: float) -> None:
        """`Lost` where it owes a window since then and is gone or stuck."""
        inbox, now = self._inbox, time.monotonic()
        if now - max(asked, inbox.heard) > PATIENCE:
            self._give_up(f"it has said nothing for {PATIENCE:g} s")
        if now - asked > IN_ALL * PATIENCE:
            self._give_up(f"a draft was not there after {IN_ALL * PATIENCE:g} s")
        if inbox.lost:
            raise Lost(inbox.lost)

    def seconds(self, rows: int) -> float:
        """Seconds of a forward of ``rows`` rows, from those that were seen; 0 if none was."""
        pace, bits = dict(self._inbox.pace), rows.bit_length()
        if not pace:
            return 0.0
        near = min(pace, key=lambda known: (abs(known - bits), -known))
        return pace[near].value * (2.0 ** (bits - near) if bits > near else 1.0)

    def heard(self) -> list[Forward]:
        """The draft model's forwards since the last call."""
        with self._inbox.news:
            found = list(self._inbox.forwards)
            self._inbox.forwards.clear()
        return found

    def _send(self, message: Message) -> int:
        with self._sending.held():
            if self.lost:
                raise Lost(self.lost)
            try:
                return _say(self._link, self._inbox, message)
            except OSError as error:
                self._give_up(f"it takes no more words ({error})")
                raise Lost(self.lost) from None
            except BaseException:  # Ctrl-C: the rest of this message would be looked for in the next one
                self._give_up("a word to it was left unfinished")
                raise

    def _give_up(self, why: str) -> None:
        self._inbox.lose(why)
        self._end()

    def close(self) -> None:
        self._give_up("it was ended")


def _say(link: Connection, inbox: _Inbox, message: Message) -> int:
    packed, inbox.unasked = message.packed(), 0
    link.send_bytes(packed)
    return len(packed)


def _say_closed(link: Connection, inbox: _Inbox, text: int) -> None:
    """A function, since a method would keep the process alive until the next garbage collection."""
    inbox.texts.discard(text)
    inbox.windows.pop(text, None)
    if not inbox.lost:
        try:
            _say(link, inbox, Message(MessageKind.CLOSE, text))
        except OSError as error:
            inbox.lose(f"it takes no more words ({error})")


def _read(link: Connection, inbox: _Inbox) -> None:
    """Messages as they come, until there are no more or one cannot be read."""
    why = "it is gone"
    try:
        while True:
            raw = link.recv_bytes(MOST_ANSWERED)
            message = Message.of(raw)
            with inbox.news:
                inbox.take(message, len(raw))
                inbox.news.notify_all()
    except (EOFError, OSError):
        pass
    except Mangled as error:
        why = str(error)
    except Exception as error:  # whatever it is, nothing reads from that process any more
        why = reason(error)
    inbox.lose(why)
