"""A server under load, with failing parts, and at its end: what is left by clients that go, and what it says."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psutil
import pytest

from http_server import (
    CHAT,
    COMPLETION,
    LONG,
    SECONDS,
    HttpServer,
    eventually,
    frames_of,
    parsed,
    pocket,
    process,
    read_all,
    running,
)
from paceline.drafters.lookup import Lookup
from paceline.errors import OutOfMemory
from paceline.integrations.server import tokens
from paceline.integrations.server.models import Limits
from paceline.integrations.server.settings import AtLeast

STREAMS = 16
POOL = 8
"""Threads of the event loop's own pool, which begin when they are first needed."""
TEXT = {"prompt": "Once upon a time", "max_tokens": 8, "seed": 1}
CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(sys.stdin.buffer.read())
print(connection.recv(100), flush=True)
connection.recv(1 << 30)
input()
"""


# --- clients that go -------------------------------------------------------------------------------------------


class Held:
    """What the process holds: threads, open files and memory."""

    def __init__(self) -> None:
        gc.collect()
        this = psutil.Process()
        self.threads, self.files, self.bytes = threading.active_count(), this.num_fds(), this.memory_info().rss


def leave_at_random(server: HttpServer, seed: int) -> None:
    """Ask for a text in one of the ways, and close the connection at some moment."""
    chance = random.Random(seed)
    body: dict[str, Any] = {**LONG, "seed": seed, "n": chance.choice([1, 1, 3])}
    if chance.random() < 0.3:
        body["method"] = chance.choice(["plain", "lookup", "suffix"])
    with closing(server.stream(body)) as connection:
        connection.settimeout(chance.choice([0.001, 0.05, 0.2]))
        try:
            for _ in range(chance.randrange(4)):
                connection.recv(1 << chance.randrange(16))
        except TimeoutError:
            pass


def check_that_nothing_is_left(server: HttpServer, right: str, count: int) -> None:
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda seed: leave_at_random(server, seed), range(count // 4)))
        server.at_rest()
        assert server.text() == right
        before = Held()
        list(clients.map(lambda seed: leave_at_random(server, seed), range(count)))
        server.at_rest()
        assert server.text() == right
        eventually(lambda: Held().threads <= before.threads + POOL, "as many threads as before")
        eventually(lambda: Held().files <= before.files + 2, "as many open files as before")
        assert Held().bytes < before.bytes + (64 << 20)


def test_streams_that_are_left_at_random_moments(server: HttpServer, right: str) -> None:
    check_that_nothing_is_left(server, right, 40)


@pytest.mark.slow
def test_500_streams_that_are_left_at_random_moments(server: HttpServer, right: str) -> None:
    check_that_nothing_is_left(server, right, 500)


@pytest.mark.usefixtures("unharmed")
def test_clients_that_are_killed(server: HttpServer) -> None:
    raw = json.dumps({**LONG, "stream": True}).encode()
    sent = server.head("POST", COMPLETION, {"content-length": str(len(raw))}) + raw
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    for _ in range(3):
        command = [sys.executable, "-c", CLIENT, server.address[0], str(server.address[1])]
        with subprocess.Popen(command, **pipes) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(sent)
            client.stdin.close()
            assert b"200" in client.stdout.readline()
            client.kill()
        server.at_rest()


# --- more than the server takes --------------------------------------------------------------------------------


def test_more_texts_than_may_wait() -> None:
    """All requests come at the same time, and each has its answer: a text, or when to come again."""
    limits = Limits(at_once=2, waiting=4)
    body = {**TEXT, "max_tokens": 200, "ignore_eos": True}
    with running(pocket(at_once=2), limits=limits) as server:
        alone = server.post(COMPLETION, body).json()["choices"]
        with ThreadPoolExecutor(24) as clients:
            answers = list(clients.map(lambda _: server.post(COMPLETION, body), range(24)))
        texts = [one for one in answers if one.status == 200]
        others = [one for one in answers if one.status != 200]
        assert all(one.json()["choices"] == alone for one in texts)
        assert len(texts) >= limits.at_once + limits.waiting
        assert others
        for one in others:
            assert one.status == 429
            assert int(one.headers["retry-after"]) >= 1
            assert one.error["type"] == "overloaded_error"
        server.at_rest()
        assert server.post(COMPLETION, {**TEXT, "n": 5}).status == 400
        with ExitStack() as streams:
            for _ in range(limits.at_once + limits.waiting):
                streams.enter_context(closing(server.stream(LONG)))
            eventually(lambda: server.served.admitted == limits.at_once + limits.waiting, "all of them let in")
            assert server.post(COMPLETION, TEXT).status == 429
        server.at_rest()
        assert server.post(COMPLETION, body).json()["choices"] == alone


def test_answers_that_take_too_long() -> None:
    with running(limits=Limits(seconds=0.5)) as server:
        answered = server.post(COMPLETION, LONG)
        assert answered.status == 504
        assert "not complete after 0.5 seconds" in answered.error["message"]
        for path in (COMPLETION, CHAT):
            more = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT else {}
            with closing(server.stream({**LONG, **more}, path)) as connection:
                answered = parsed(read_all(connection))
            assert answered.status == 200
            *_, error, done = frames_of(answered.body)
            assert json.loads(error)["error"]["code"] == "timeout"
            assert done == "[DONE]"
        server.at_rest()


# --- parts that fail -------------------------------------------------------------------------------------------


def fail(*_: Any, **__: Any) -> Any:
    raise ValueError("made to fail\nin two lines")


def no_memory(*_: Any, **__: Any) -> Any:
    raise OutOfMemory("no memory is left")


BROKEN: dict[str, tuple[Callable[[HttpServer], tuple[Any, str]], Any, dict[str, Any]]] = {
    "processor": (lambda _: (AtLeast, "__call__"), fail, {"min_tokens": 3}),
    "model": (lambda server: (server.served.lm.target, "submit"), fail, {}),
    "memory": (lambda server: (server.served.lm.target, "submit"), no_memory, {}),
    "vocabulary": (lambda server: (type(server.served.vocabulary), "encode_prompt"), fail, {}),
    "rows": (lambda server: (server.served.serving.kept, "take"), fail, {}),
}


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("part", BROKEN)
def test_a_part_that_fails(
    server: HttpServer, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One sentence for the client; its number and the traceback for the log."""
    place, does, more = BROKEN[part]
    body = {**TEXT, "prompt": f"A {part} that breaks", **more}
    with monkeypatch.context() as patch:
        patch.setattr(*place(server), does)
        answered = server.post(COMPLETION, body)
        with closing(server.stream(body)) as connection:
            streamed = parsed(read_all(connection))
    assert answered.status == 500
    said = [answered.error]
    if streamed.status == 200:
        *_, error, done = frames_of(streamed.body)
        assert done == "[DONE]"
        said.append(json.loads(error)["error"])
    else:
        assert streamed.status == 500
        said.append(streamed.error)
    for error in said:
        assert error["type"] == "server_error"
        assert "\n" not in error["message"]
        assert "Traceback" not in error["message"]
        if number := re.search(r"log has it as (\w+)", error["message"]):
            assert [record for record in caplog.records if number[1] in record.getMessage() and record.exc_info]
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 2
    assert server.post(COMPLETION, body).status == 200


@pytest.mark.usefixtures("unharmed")
@pytest.mark.filterwarnings("ignore::paceline.DrafterWarning")
def test_a_drafter_that_fails_changes_no_text(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = server.text(method="plain", max_tokens=40)
    monkeypatch.setattr(Lookup, "propose_one", fail)
    assert server.text(method="lookup", max_tokens=40) == plain


@pytest.mark.usefixtures("unharmed")
def test_an_endpoint_that_fails(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_piece", fail)
    answered = server.post("/tokenize", {"content": "a", "with_pieces": True})
    assert answered.status == 500
    assert "made to fail" not in answered.error["message"]


# --- the end ---------------------------------------------------------------------------------------------------


@pytest.fixture
def streaming() -> Iterator[tuple[Any, list[socket.socket]]]:
    """A server in a process of its own with many streams, of which none has ended."""
    with process() as served, ExitStack() as stack:
        streams = [stack.enter_context(closing(served.http.stream(LONG))) for _ in range(STREAMS)]
        for connection in streams:
            assert b"200" in connection.recv(100)
        yield served, streams


@pytest.mark.parametrize(
    ("number", "code", "sentence"), [(signal.SIGINT, 0, "stopped"), (signal.SIGTERM, 143, "terminated")]
)
def test_the_end_of_a_server_that_writes(streaming: Any, number: int, code: int, sentence: str) -> None:
    """It waits a few seconds for answers, cuts off the others with an error, and says one sentence."""
    served, streams = streaming
    address, readers = served.http.address, ThreadPoolExecutor(STREAMS)
    with readers:
        ends = [readers.submit(read_all, connection) for connection in streams]
        found, errors, seconds = served.end(number)
        rests = [end.result() for end in ends]
    assert found == code
    assert seconds < 20  # some 4 on an idle machine
    said = [line for line in errors.splitlines() if line and "model=pocket" not in line]
    assert "Traceback" not in errors
    assert len(said) == 1, errors
    assert sentence in said[0]
    for rest in rests:
        assert b"data: [DONE]" in rest
        assert b'"code":"stopping"' in rest or b'"finish_reason":"length"' in rest
    with closing(socket.socket()) as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(address)


def test_the_end_of_a_server_that_is_idle() -> None:
    with process() as served, closing(served.http.connect()):
        assert served.http.ask("GET", "/health").status == 200
        code, errors, seconds = served.end(signal.SIGTERM)
    assert (code, seconds < 20) == (143, True)
    assert errors.split("\n") == ["", "paceline: terminated", ""]


def test_a_port_that_is_taken() -> None:
    with running() as server:
        command = [sys.executable, "-m", "paceline", "serve", "--model", "pocket", "--port", str(server.address[1])]
        found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=os.environ)
    assert found.returncode == 2
    assert f"port {server.address[1]}" in found.stderr
    assert "Traceback" not in found.stderr
