"""A process in the place of the one that drafts. It drafts tokens by chance, and is sure of them. At one step it does
what it must not do.

``FAULT`` in its environment says what, at which of its windows, of how many tokens they are, whose tokenizer they are
of, and in which file it leaves a line when it begins.
"""

import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline.drafters.mirror.frames import HEADER, MARK, MOST_ANSWERED, Facts, Forward, Frame, Go, Kind, Unpacker
from paceline.drafters.mirror.frames import Window as Draft
from paceline.tree import DraftTree

FAULT = "PACELINE_TEST_FAULT"
BEGIN = "import sys; from bad_worker import main; main(sys.argv[1:])"
NESTED = b"[" * 100_000


def plan(fault: str, step: int, size: int, log: Path | str, fingerprint: str | None = None) -> dict[str, str]:
    """Its part of the environment."""
    return {FAULT: json.dumps([fault, step, size, str(log), fingerprint])}


def hang(link: socket.socket, frame: Frame) -> None:
    signal.pause()


def stammer(link: socket.socket, frame: Frame, pause: float = 0.0) -> None:
    """Say for ever that it is at work."""
    while True:
        link.sendall(Frame(Kind.FORWARD, 0, 0, Forward(0.001, 1).body()).packed())
        time.sleep(pause)


def say(*said: bytes) -> Callable[[socket.socket, Frame], None]:
    return lambda link, frame: [link.sendall(each) for each in said] and None


def facts(kind: Kind, text: bytes) -> bytes:
    return Frame(kind, 1, 0, len(text).to_bytes(4, "little") + text).packed()


def answer(change: Callable[[Frame], Frame]) -> Callable[[socket.socket, Frame], None]:
    """A window that is wrong in one thing."""
    return lambda link, frame: link.sendall(change(window(frame, 3, 6)).packed())


def window(frame: Frame, levels: int, size: int) -> Frame:
    tokens = random.Random(frame.place).choices(range(size), k=levels)
    tree = DraftTree.build(tokens, range(-1, levels - 1), scores=[0.0] * levels)
    return Frame(Kind.WINDOW, frame.text, frame.place, Draft(tree).body())


def header(size: int) -> bytes:
    return HEADER.pack(MARK, Kind.WINDOW, 1, 1, size, 0)


NAMELESS = say(facts(Kind.READY, b'{"vocab_size": 6}'))
LOSES: dict[str, Callable[[socket.socket, Frame], Any]] = {
    "dies": lambda link, frame: os._exit(3),
    "says nonsense": say(b"nonsense" * 100),
    "fails": say(facts(Kind.FAILED, b'{"said": "no memory", "known": false}')),
    "nests its facts": say(facts(Kind.READY, NESTED)),
    "says what a text says": say(Frame(Kind.OPEN, 1, 1, b"").packed()),
    "announces a huge frame": say(header(MOST_ANSWERED + 1)),
    "stammers": stammer,
    "is at work on nothing": say(Frame(Kind.FORWARD, 0, 0, Forward(0.0, 0).body()).packed()),
    "cuts its window": answer(lambda frame: frame._replace(body=frame.body[:-3])),
    "drafts for another place": answer(lambda frame: frame._replace(place=frame.place + 1)),
    "drafts unknown tokens": lambda link, frame: link.sendall(window(frame, 3, 1 << 30).packed()),
    "drafts too much": lambda link, frame: link.sendall(window(frame, 100, 6).packed()),
}
"""After these it is lost at once."""
STALLS: dict[str, Callable[[socket.socket, Frame], Any]] = {
    "hangs": hang,
    "is at work for ever": lambda link, frame: stammer(link, frame, 0.01),
    "sends a part of a frame": lambda link, frame: (link.sendall(header(1000) + bytes(100)), hang(link, frame)),
}
"""After these it lives, and no window comes."""
AT_START: dict[str, Callable[[socket.socket, Frame], Any]] = {
    "is silent at start": hang,
    "dies at start": LOSES["dies"],
    "says nonsense at start": LOSES["says nonsense"],
    "nests its facts at start": LOSES["nests its facts"],
    "lies at start": say(facts(Kind.READY, b'{"vocab_size": "many"}')),
    "says nothing of its tokenizer": lambda link, frame: (NAMELESS(link, frame), hang(link, frame)),
    "stammers at start": stammer,
}
ALL = {**LOSES, **STALLS, **AT_START}


def frames(link: socket.socket) -> Iterator[Frame]:
    unpacker = Unpacker()
    while data := link.recv(1 << 16):
        yield from unpacker.feed(data)


def main(arguments: list[str]) -> None:
    link = socket.socket(fileno=int(arguments[0]))
    fault, step, size, log, fingerprint = json.loads(os.environ[FAULT])
    with Path(log).open("a", encoding="utf8") as file:
        file.write(f"{os.getpid()}\n")
    wait = Path(fault.removeprefix("waits for "))
    windows = 0
    for frame in frames(link):
        if frame.kind is Kind.READY:
            while fault.startswith("waits for ") and not wait.exists():
                time.sleep(0.01)
            if fault in AT_START:
                AT_START[fault](link, frame)
            ready = {"vocab_size": size, "fingerprint": fingerprint}
            link.sendall(Frame(Kind.READY, 0, 0, Facts(ready).body()).packed())
        if frame.kind is Kind.GO:
            windows += 1
            if windows == step and fault in ALL:
                ALL[fault](link, frame)
                continue
            link.sendall(window(frame, Go.of(frame.body, size).levels, size).packed())
    sys.exit(0)
