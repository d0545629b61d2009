"""The server at its address: binding, connections that send too slowly, and the end."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from paceline.errors import InputError
from paceline.integrations.server.errors import ApiError

HEAD_BYTES = 64 << 10
"""Of the first line and the headers of a request, at most."""
KEPT_SECONDS = 75
"""That an idle connection stays open."""
PARTING_SECONDS = 3
"""Between the order to end and the end of connections whose answers are not complete."""
BACKLOG = 1024


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address; port 0 for any free one."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"--host {host} is no address of this machine: {error.strerror or error}") from None
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} of {host} is in use; choose another with --port") from None
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return bound


def url_of(bound: socket.socket) -> str:
    """The address of a server on this socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class PatientProtocol(H11Protocol):
    """A connection whose head must arrive in time: one that sends nothing, or a byte now and then, is closed. So is one
    whose client takes nothing of what it asked for."""

    head_seconds = 30.0
    stall_seconds = 120.0
    """That a client may take nothing."""
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()
        elif self._deadline is None and (before is None or before.response_complete):
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, in the form of all errors, unless another answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(ApiError("this is no request by HTTP/1.1", code="invalid_http").body()).encode()
            head = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
            events = h11.Response(status_code=400, headers=head), h11.Data(data=body), h11.EndOfMessage()
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
            if self.cycle is not None:
                self.cycle.disconnected = True  # whatever answers the head of this request is too late
        self.transport.close()

    def _watch(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(self.stall_seconds, self._look, left)

    def _look(self, before: int) -> None:
        """Close the connection if its client took nothing since the last look."""
        if self.transport.get_write_buffer_size() < before:
            self._watch()
        else:
            self._stall = None
            self.transport.abort()

    def _stop_watching(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(self.head_seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def server_for(
    app: ASGIApp,
    *,
    head_seconds: float = 30.0,
    stall_seconds: float = 120.0,
    connections: int | None = None,
    ready: Callable[[], None] = lambda: None,
) -> uvicorn.Server:
    """The server of an application, to be `run` on a bound socket."""
    protocol = type("Connection", (PatientProtocol,), {"head_seconds": head_seconds, "stall_seconds": stall_seconds})
    config: Any = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_keep_alive=KEPT_SECONDS,
        timeout_graceful_shutdown=PARTING_SECONDS,
        limit_concurrency=connections,
    )
    return _Server(config, ready)
