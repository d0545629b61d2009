"""The server and clients that are hostile, broken or unlucky: each has its answer, and the next one a right text."""

from __future__ import annotations

import logging
import socket
import struct
import time
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from http_server import (
    ASKED,
    COMPLETION,
    LONG,
    MODEST,
    RESPONSE,
    SECONDS,
    HttpServer,
    answer_of,
    encoded,
    eventually,
    parsed,
    read_all,
    running,
)
from paceline.integrations.server.models import Limits

pytestmark = pytest.mark.usefixtures("unharmed")
READ = 1.0
"""Seconds that the server of these tests waits for a request."""


def reset(connection: socket.socket) -> None:
    """Close a connection without the usual farewell."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


# --- bytes that come slowly, never, or not to the end ----------------------------------------------------------


def test_heads_that_do_not_come_are_not_waited_for(server: HttpServer) -> None:
    with ExitStack() as stack:
        began, waiting = time.monotonic(), []
        for sent in (b"", b"GET /hea", b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "):
            waiting.append(stack.enter_context(closing(server.connect())))
            waiting[-1].sendall(sent)
        for connection in waiting:
            assert read_all(connection) == b""
            assert time.monotonic() - began > READ / 2


def test_a_head_that_comes_a_byte_at_a_time_is_cut_off(server: HttpServer) -> None:
    with closing(server.connect()) as connection:
        for byte in server.head("GET", "/health", {"x": "y" * 10_000}):
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(0.01)
        else:
            pytest.fail("all of it was taken")


def test_a_body_that_comes_a_byte_at_a_time_is_refused(server: HttpServer) -> None:
    with closing(server.connect()) as connection:
        connection.sendall(server.head("POST", COMPLETION, {"content-length": "10000"}))
        end = time.monotonic() + SECONDS
        with suppress(OSError):
            connection.settimeout(0.02)
            while time.monotonic() < end:
                connection.sendall(b" ")
                with suppress(TimeoutError):
                    if connection.recv(1, socket.MSG_PEEK):
                        break
        connection.settimeout(SECONDS)
        answered = answer_of(connection)
    assert answered.status == 408
    assert "did not arrive" in answered.error["message"]


def test_connections_that_send_nothing_keep_nobody_out(server: HttpServer) -> None:
    silent = [server.connect() for _ in range(50)]
    assert server.text()
    for connection in silent:
        assert read_all(connection) == b""
        connection.close()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_connections_that_are_reset_before_the_request_is_complete(server: HttpServer, share: float) -> None:
    raw = encoded({"prompt": "a" * 200, **MODEST})
    sent = server.head("POST", COMPLETION, {"content-length": str(len(raw))}) + raw
    for _ in range(5):
        connection = server.connect()
        connection.sendall(sent[: int(share * len(sent))])
        reset(connection)


@pytest.mark.parametrize("streams", [True, False])
def test_connections_that_are_reset_while_the_answer_is_written(server: HttpServer, streams: bool) -> None:
    raw = encoded({**LONG, "stream": streams})
    for _ in range(5):
        connection = server.connect()
        connection.sendall(server.head("POST", COMPLETION, {"content-length": str(len(raw))}) + raw)
        if streams:
            connection.recv(300)
        else:
            eventually(lambda: server.served.serving.running, "a text being written")
        reset(connection)
        server.at_rest()


def test_a_client_that_reads_slowly_holds_up_nobody(server: HttpServer, right: str) -> None:
    with closing(server.stream({**LONG, "return_pieces": True})) as slow:
        assert slow.recv(10)
        assert [server.text() for _ in range(3)] == [right] * 3
        assert slow.recv(10)


def test_a_client_that_takes_nothing_is_given_up() -> None:
    """Its answer is far more than the buffers of a connection hold, and they are made small."""
    with running(limits=Limits(body_bytes=8 << 20), stall_seconds=0.5) as server, closing(socket.socket()) as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.settimeout(SECONDS)
        idle.connect(server.address)
        raw = encoded({"content": "a b c d " * 50_000, "with_pieces": True})
        idle.sendall(server.head("POST", "/tokenize", {"content-length": str(len(raw))}) + raw)
        time.sleep(1)
        eventually(lambda: _closed(server), "the connection closed by the server")


def _closed(server: HttpServer) -> bool:
    """Whether the server holds no connection of another client."""
    import psutil

    port = server.address[1]
    found = psutil.Process().net_connections("tcp")
    return not [one for one in found if one.laddr.port == port and one.status == "ESTABLISHED"]


# --- bytes that are too many, or no HTTP -----------------------------------------------------------------------


def test_bodies_that_are_too_large(server: HttpServer) -> None:
    assert server.refuses(COMPLETION, b"x" * (2 << 20))["code"] == "too_large"
    assert server.refuses(COMPLETION, b"", {"content-length": "99999999999"})["code"] == "too_large"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = server.head("POST", COMPLETION, {"transfer-encoding": "chunked"})
    assert server.exchange(head + 40 * chunk + b"0\r\n\r\n").error["code"] == "too_large"


NO_HTTP = [
    b"\r\n\r\n\r\n",
    b"\x00\x01\x02\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET /nowhere HTTP/9.9\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n broken\r\n: x\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -1\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    b"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: gzip\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n",
    b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"a" * 1_000_000,
    b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200_000,
]


@pytest.mark.parametrize("sent", NO_HTTP, ids=range(len(NO_HTTP)))
def test_bytes_that_are_no_request(server: HttpServer, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with closing(server.connect()) as connection:
        with suppress(OSError):
            connection.sendall(sent)
        raw = read_all(connection)
    if raw:
        answered = parsed(raw)
        assert 400 <= answered.status < 500
        assert answered.error
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


NO_JSON = {
    "nothing": b"",
    "bad JSON": b'{"prompt": "a"',
    "no object": b"[1, 2]",
    "null": b"null",
    "a number": b"1",
    "bad UTF-8": b'{"prompt": "\xff\xfe"}',
    "overlong UTF-8": b'{"prompt": "\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"prompt": "\xed\xa0\x80"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "a lone surrogate": b'{"prompt": "\\ud800"}',
    "a lone low surrogate": b'{"prompt": "\\udc00 a"}',
    "not a number": b'{"prompt": "a", "model": NaN}',
    "infinity": b'{"prompt": "a", "model": Infinity}',
    "an exponent": b'{"prompt": "a", "model": 1e999}',
    "a long number": b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
    "deep lists": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a NUL": b"\x00",
    "a form": b"prompt=a&max_tokens=1",
    "zipped": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}


@pytest.mark.parametrize("path", ASKED)
def test_bodies_that_are_no_request(server: HttpServer, path: str) -> None:
    for name, body in NO_JSON.items():
        error = server.refuses(path, body)
        assert "\n" not in error["message"], name
        assert len(error["message"]) < 700, name


def test_what_json_permits(server: HttpServer) -> None:
    """Keys that come twice, numbers that only Python has, and names that no header can have."""
    body = b'{"prompt": "b", "prompt": "a", "max_tokens": 1, "\xe6\x97\xa5\\n": {"x": NaN}, "y": 1e999}'
    answered = server.ask("POST", COMPLETION, body, {"content-type": "text/plain"})
    assert answered.status == 200
    assert answered.headers["x-paceline-ignored"] == "y, ??"
    deep: Any = 1
    for _ in range(90):
        deep = [deep]
    body = encoded({"input": "a", "max_output_tokens": 1, "metadata": {"x": deep}})
    assert server.ask("POST", RESPONSE, body).status == 200
    body = b'{"input": "a", "max_output_tokens": 1, "metadata": {"x": [NaN, -Infinity, 1e999]}}'
    assert server.ask("POST", RESPONSE, body).json()["metadata"] == {"x": [None] * 3}
    assert b"NaN" not in server.ask("POST", RESPONSE, body[:-1] + b', "stream": true}').body
