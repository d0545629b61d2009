"""A process in the place of the one that drafts. It drafts tokens by chance, and is sure of them. At one step it does
what it must not do.

``FAULT`` in its environment says what, at which of its windows, of how many tokens they are, whose tokenizer they are
of, and in which file it leaves a line when it begins.
"""

import json
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from paceline.drafters.networks.mirror.messages import MOST_ANSWERED, Forward, Go, Message, MessageKind
from paceline.drafters.networks.mirror.messages import Window as Draft
from paceline.tree import DraftTree

FAULT = "PACELINE_TEST_FAULT"
BEGIN = "import sys; from bad_worker import main; main(sys.argv[1:])"
NESTED = b"[" * 100_000


def plan(fault: str, step: int, size: int, log: Path | str, fingerprint: str | None = None) -> dict[str, str]:
    """Its part of the environment."""
    return {FAULT: json.dumps([fault, step, size, str(log), fingerprint])}


Fault = Callable[[Connection, Message], Any]


def hang(link: Connection, message: Message) -> None:
    signal.pause()


def stammer(link: Connection, message: Message, pause: float = 0.0) -> None:
    """Say for ever that it is at work."""
    while True:
        link.send_bytes(Message(MessageKind.FORWARD, said=Forward(0.001, 1).said()).packed())
        time.sleep(pause)


def say(said: bytes) -> Fault:
    return lambda link, message: link.send_bytes(said)


def write(raw: bytes) -> Fault:
    """Bytes that are no message of the connection."""
    return lambda link, message: os.write(link.fileno(), raw)


def answer(change: Callable[[Message], Message]) -> Fault:
    """A window that is wrong in one thing."""
    return lambda link, message: link.send_bytes(change(window(message, 3, 6)).packed())


def window(message: Message, levels: int, size: int) -> Message:
    tokens = random.Random(message.place).choices(range(size), k=levels)
    tree = DraftTree.build(tokens, range(-1, levels - 1), scores=[0.0] * levels)
    return Message(MessageKind.WINDOW, message.text, message.place, Draft(tree).said())


def begin_of(size: int) -> bytes:
    """What stands before a message of so many bytes."""
    return struct.pack("!i", size)


NAMELESS = say(Message(MessageKind.READY, said={"vocab_size": 6}).packed())
LOSES: dict[str, Fault] = {
    "dies": lambda link, message: os._exit(3),
    "says nonsense": write(b"nonsense" * 100),
    "fails": say(Message(MessageKind.FAILED, said={"said": "no memory", "known": False}).packed()),
    "nests its facts": say(NESTED),
    "says what a text says": say(Message(MessageKind.OPEN, 1, 1).packed()),
    "announces a huge message": write(begin_of(MOST_ANSWERED + 1)),
    "stammers": stammer,
    "is at work on nothing": say(Message(MessageKind.FORWARD, said=Forward(0.0, 0).said()).packed()),
    "cuts its window": answer(lambda one: one._replace(said={**one.said, "scores": [0.0]})),
    "drafts for another place": answer(lambda one: one._replace(place=one.place + 1)),
    "drafts unknown tokens": lambda link, message: link.send_bytes(window(message, 3, 1 << 30).packed()),
    "drafts too much": lambda link, message: link.send_bytes(window(message, 100, 6).packed()),
}
"""After these it is lost at once."""
STALLS: dict[str, Fault] = {
    "hangs": hang,
    "is at work for ever": lambda link, message: stammer(link, message, 0.01),
    "sends a part of a message": lambda link, message: (
        write(begin_of(1000) + bytes(100))(link, message),
        hang(link, message),
    ),
}
"""After these it lives, and no window comes."""
AT_START: dict[str, Fault] = {
    "is silent at start": hang,
    "dies at start": LOSES["dies"],
    "says nonsense at start": LOSES["says nonsense"],
    "nests its facts at start": LOSES["nests its facts"],
    "lies at start": say(Message(MessageKind.READY, said={"vocab_size": "many"}).packed()),
    "says nothing of its tokenizer": lambda link, message: (NAMELESS(link, message), hang(link, message)),
    "stammers at start": stammer,
}
ALL = {**LOSES, **STALLS, **AT_START}


def messages(link: Connection) -> Iterator[Message]:
    with suppress(EOFError, OSError):
        while True:
            yield Message.of(link.recv_bytes())


def main(arguments: list[str]) -> None:
    link = Connection(int(arguments[0]))
    fault, step, size, log, fingerprint = json.loads(os.environ[FAULT])
    with Path(log).open("a", encoding="utf8") as file:
        file.write(f"{os.getpid()}\n")
    wait = Path(fault.removeprefix("waits for "))
    windows = 0
    for message in messages(link):
        if message.kind is MessageKind.READY:
            while fault.startswith("waits for ") and not wait.exists():
                time.sleep(0.01)
            if fault in AT_START:
                AT_START[fault](link, message)
            ready = {"vocab_size": size, "fingerprint": fingerprint}
            link.send_bytes(Message(MessageKind.READY, said=ready).packed())
        if message.kind is MessageKind.GO:
            windows += 1
            if windows == step and fault in ALL:
                ALL[fault](link, message)
                continue
            link.send_bytes(window(message, Go.of(message.said, size).levels, size).packed())
    sys.exit(0)
