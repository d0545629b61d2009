"""A real server on a loopback socket for tests, in a thread or in a process of its own, and clients that misbehave."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel

import paceline
from paceline.integrations.server import requests
from paceline.integrations.server.app import make_app
from paceline.integrations.server.doors import Doors
from paceline.integrations.server.models import Limits, Models, ServedModel
from paceline.integrations.server.run import bind, server_for, url_of

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60.0
"""That nothing here takes, however busy the machine is."""
Json = dict[str, Any]
COMPLETION, CHAT, RESPONSE = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MODEST = {"max_tokens": 2, "seed": 1}
SAID = [{"role": "user", "content": "a"}]
ASKED: dict[str, tuple[type[BaseModel], Json]] = {
    COMPLETION: (requests.CompletionRequest, {"prompt": "a", **MODEST}),
    CHAT: (requests.ChatRequest, {"messages": SAID, **MODEST}),
    RESPONSE: (requests.ResponseRequest, {"input": "a", **MODEST}),
    "/tokenize": (requests.TokenizeRequest, {"content": "a"}),
    "/detokenize": (requests.DetokenizeRequest, {"tokens": [1]}),
    "/apply-template": (requests.TemplateRequest, {"messages": SAID}),
}
"""The endpoints, their bodies, and a request that each of them answers."""
LONG = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "seed": 1}
"""A text that no test waits for."""


class Answered(NamedTuple):
    """What a server answered."""

    status: int
    headers: dict[str, str]
    """By their names in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Json:
        """The error in OpenAI's form, whose shape is checked."""
        found: Json = self.json()["error"]
        assert set(found) == {"message", "type", "param", "code"}
        assert isinstance(found["message"], str)
        assert found["message"]
        return found


@dataclass
class HttpServer:
    """A server that runs, and ways to ask it."""

    url: str
    models: Models | None = None
    """Those that it serves, where it runs in this process."""
    sent: Mapping[str, str] = field(default_factory=dict)
    """Headers of every request."""

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    @property
    def served(self) -> ServedModel:
        """The first model, where it runs in this process."""
        assert self.models is not None, "it runs in a process of its own"
        return self.models.first

    def connect(self) -> socket.socket:
        """A connection."""
        return socket.create_connection(self.address, timeout=SECONDS)

    def head(self, method: str, path: str, headers: Mapping[str, str] | None = None, version: str = "1.1") -> bytes:
        """The head of a request as it is sent. A header whose value is None is left out."""
        host = f"{self.address[0]}:{self.address[1]}"
        lines = {"host": host, "connection": "close", **self.sent, **(headers or {})}
        sent = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
        return f"{method} {path} HTTP/{version}\r\n{sent}\r\n".encode("latin-1")

    def ask(
        self, method: str, path: str, body: bytes | str | Json | None = None, headers: Mapping[str, Any] | None = None
    ) -> Answered:
        """One request on a connection of its own."""
        raw = body if isinstance(body, bytes) else b"" if body is None else encoded(body)
        length = {"content-length": str(len(raw))} if body is not None else {}
        return self.exchange(self.head(method, path, {**length, **(headers or {})}) + raw)

    def post(self, path: str, body: Json, headers: Mapping[str, Any] | None = None) -> Answered:
        return self.ask("POST", path, body, headers)

    def exchange(self, sent: bytes) -> Answered:
        """The answer to these bytes. The server may answer, and close, before it has read all of them."""
        with closing(self.connect()) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # what it answered can still be read
                connection.sendall(sent)
            return answer_of(connection)

    def stream(self, body: Json, path: str = "/v1/completions") -> socket.socket:
        """A connection on which a stream was asked for."""
        raw = encoded({**body, "stream": True})
        connection = self.connect()
        connection.sendall(self.head("POST", path, {"content-length": str(len(raw))}) + raw)
        return connection

    def refuses(self, path: str, body: bytes | str | Json, headers: Mapping[str, Any] | None = None) -> Json:
        """The error of a request that the server must refuse."""
        answered = self.ask("POST", path, body, headers)
        assert 400 <= answered.status < 500, (body, answered)
        return answered.error

    def at_rest(self) -> None:
        """Wait until the server writes nothing."""
        served = self.served
        eventually(lambda: not (served.serving.running or served.serving.waiting or served.admitted), "no text left")

    def text(self, **body: Any) -> str:
        """A text of the first model, which must be right: the server is alive."""
        answered = self.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "seed": 1, **body})
        assert answered.status == 200, answered.body
        found: str = answered.json()["choices"][0]["text"]
        return found


def encoded(body: str | Json) -> bytes:
    """A body in bytes."""
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def answer_of(connection: socket.socket) -> Answered:
    """The answer on a connection that the server closes after it."""
    return parsed(read_all(connection))


def read_all(connection: socket.socket) -> bytes:
    """All bytes until the end of a connection."""
    found = bytearray()
    while True:
        try:
            part = connection.recv(1 << 16)
        except ConnectionResetError:
            break
        if not part:
            break
        found += part
    return bytes(found)


def parsed(raw: bytes) -> Answered:
    """The first answer in these bytes."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    assert first.startswith("HTTP/1.1 "), f"no answer but {raw[:80]!r}"
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = int(first.split()[1])
    if headers.get("transfer-encoding") == "chunked":
        return Answered(status, headers, _unchunked(body))
    return Answered(status, headers, body[: int(headers.get("content-length", len(body)))])


def _unchunked(body: bytes) -> bytes:
    found = bytearray()
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        found += body[:length]
        body = body[length + 2 :]
    return bytes(found)


def frames_of(body: bytes) -> list[str]:
    """The data of a stream's frames."""
    return [line.removeprefix("data: ") for line in body.decode().split("\n") if line.startswith("data: ")]


def pocket(**limits: Any) -> Models:
    """The bundled model as a server serves it."""
    lm = paceline.load("pocket")
    return Models([ServedModel(name="pocket", lm=lm, serving=lm.serving(**limits))])


@contextmanager
def running(
    models: Models | None = None,
    *,
    limits: Limits | None = None,
    doors: Doors | None = None,
    **how: Any,
) -> Iterator[HttpServer]:
    """A server in a thread, with more settings of `server_for`. It is stopped at the end, with its models."""
    models, limits = models or pocket(), limits or Limits()
    with closing(bind("127.0.0.1", 0)) as bound:
        ready = threading.Event()
        server = server_for(
            make_app(models, limits=limits, doors=doors),
            head_seconds=limits.read_seconds,
            ready=ready.set,
            **how,
        )
        url = url_of(bound)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="server")
        thread.start()
        try:
            assert ready.wait(SECONDS), "the server did not start"
            yield HttpServer(url, models)
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive(), "the server did not end"


class Process(NamedTuple):
    """``paceline serve`` in a process of its own."""

    http: HttpServer
    process: subprocess.Popen[str]

    def end(self, signal: int) -> tuple[int, str, float]:
        """Its exit code after a signal, what it wrote to standard error, and how many seconds it took."""
        began = time.perf_counter()
        self.process.send_signal(signal)
        errors = self.process.communicate(timeout=SECONDS)[1]
        return self.process.returncode, errors, time.perf_counter() - began


@contextmanager
def process(*options: str, model: str = "pocket") -> Iterator[Process]:
    """A server as users start it, with these options."""
    command = [sys.executable, "-m", "paceline", "serve", "--model", model, "--port", "0", "--no-probe", *options]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, **pipes) as started:
        try:
            assert started.stdout is not None
            greeting = started.stdout.readline()
            found = re.search(r"http://\S+", greeting)
            assert found is not None, f"it said {greeting!r} and {started.communicate()[1]!r}"
            yield Process(HttpServer(found[0].rstrip("/")), started)
        finally:
            if started.poll() is None:
                started.kill()


def eventually(holds: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Wait until something holds, which must be soon."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"after {seconds:g} seconds there is still not: {what}"
        time.sleep(0.02)
