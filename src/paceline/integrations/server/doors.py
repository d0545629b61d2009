"""The checks of every request before its endpoint: the host, the origin and the key.

A page of a foreign site can make a browser send requests to this machine, so requests are refused whose Host is not the
server's own (DNS rebinding) or whose Origin is another site that was not allowed. A key is compared in constant time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.integrations.server.errors import INTERNAL, ApiError, api_error
from paceline.integrations.server.job import ID_HEADER, REQUEST_ID
from paceline.integrations.server.sse import EVENTS, error_frames

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
ANY = frozenset({"0.0.0.0", "::", ""})
"""Hosts that mean all addresses of this machine."""
OPEN = "/health", "/", "/page/"
"""Paths that need no key, and beginnings of such paths: the page asks for the key itself."""
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/?#@\\\[\]]+))(?::\d*)?", re.IGNORECASE)
"""A Host header: a name or an address, and a port."""
ALLOWED_HEADERS = "authorization, content-type, x-request-id"
STAINLESS = re.compile(r"(x-stainless|openai)-[a-z-]{1,40}")
"""Headers in which OpenAI's clients describe themselves."""


@dataclass(frozen=True, kw_only=True)
class Doors:
    """The hosts, keys and origins that requests may have."""

    host: str = "127.0.0.1"
    hosts: Collection[str] = ()
    """Names of this server besides its address."""
    keys: Collection[bytes] = ()
    """Digests of the keys; none where no key is needed."""
    origins: Collection[str] = ()
    """Sites whose pages may send requests; ``*`` for all."""

    @staticmethod
    def is_open(path: str) -> bool:
        """Whether a path needs no key."""
        return path in OPEN or path.startswith(OPEN[-1])

    def knows_host(self, given: str) -> bool:
        """Whether a request's Host is this server."""
        name = host_name(given)
        if name in {*LOOPBACK, self.host.lower(), *(host.lower() for host in self.hosts)}:
            return True
        return self.host in ANY and _is_address(name)

    def knows_key(self, given: str) -> bool:
        """Whether an Authorization header holds a key. Every key is compared, each in constant time."""
        scheme, _, key = given.partition(" ")
        digest = digest_of(key.strip()) if scheme.lower() == "bearer" else b""
        return sum(hmac.compare_digest(digest, known) for known in self.keys) > 0

    def allows(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may send requests."""
        return "*" in self.origins or origin in self.origins or _site(origin) == host.lower()


def digest_of(key: str) -> bytes:
    """A key as it is kept and compared."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def host_name(given: str) -> str:
    """A Host header without its port; empty if it has another form."""
    found = HOST.fullmatch(given)
    return "" if found is None else (found[1] or found[2]).lower()


def _site(origin: str) -> str | None:
    """The host and port of an origin."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """The middleware that checks every request, names it, and adds the headers of its answer. ``note`` is called with
    the id and the path of a request that was refused, and with the status and the sentence of its answer."""

    def __init__(self, app: ASGIApp, doors: Doors, note: Callable[[str, str, int, str], None]) -> None:
        self._app, self._doors, self._note = app, doors, note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(ID_HEADER, "")
        scope.setdefault("state", {})["request_id"] = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        origin = headers.get("origin")
        more = [*self._headers(origin, headers.get("host", "")), (ID_HEADER, scope["state"]["request_id"])]

        started: Headers | None = None

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in more:
                    found[name] = value
                started = found
                if (refusal := scope["state"].get("refusal")) is not None:
                    self._note(scope["state"]["request_id"], scope["path"], message["status"], refusal)
            await send(message)

        try:
            await self._answer(scope, receive, sending)
        except asyncio.CancelledError:  # at the end of the server
            if started is None:
                await _stopping().response()(scope, receive, sending)
            elif started.get("content-type", "").startswith(EVENTS):
                ending = scope["state"].get("ending", error_frames)
                await send({"type": "http.response.body", "body": ending(_stopping())})
            else:
                raise
        except Exception as error:
            said = api_error(error)
            if started is not None:
                raise
            await said.response()(scope, receive, sending)

    async def _answer(self, scope: Scope, receive: Receive, sending: Send) -> None:
        """Have a request answered, unless it is refused."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if (refused := self._refusal(scope, headers, origin)) is not None:
            await refused.response()(scope, receive, sending)
        elif scope["method"] == "OPTIONS" and origin is not None:
            await _preflight(headers, sending)
        else:
            await self._app(scope, receive, sending)

    def _refusal(self, scope: Scope, headers: Headers, origin: str | None) -> ApiError | None:
        doors, host = self._doors, headers.get("host", "")
        if not doors.knows_host(host):
            said = f"this server is not {host[:80]!r}, and its operator has not allowed that name"
            return ApiError(said, status=421, code="unknown_host")
        if origin is not None and not doors.allows(origin, host):
            said = f"pages of {origin[:80]!r} may not send requests here; its operator has not allowed that site"
            return ApiError(said, status=403, code="unknown_origin")
        if scope["method"] == "OPTIONS" or not doors.keys or doors.is_open(scope["path"]):
            return None
        if doors.knows_key(headers.get("authorization", "")):
            return None
        said = "this server needs a key; send the header 'Authorization: Bearer KEY'"
        challenge = {"www-authenticate": "Bearer"}
        return ApiError(said, status=401, kind="authentication_error", code="invalid_api_key", headers=challenge)

    def _headers(self, origin: str | None, host: str) -> list[tuple[str, str]]:
        """Headers of every answer."""
        found = [("x-content-type-options", "nosniff")]
        if origin is not None and self._doors.origins and self._doors.allows(origin, host):
            found += [("access-control-allow-origin", origin), ("vary", "Origin")]
            found += [("access-control-expose-headers", f"{ID_HEADER}, x-paceline-ignored")]
        return found


def _stopping() -> ApiError:
    return ApiError("the server is being stopped", status=503, kind=INTERNAL, code="stopping")


async def _preflight(asked: Headers, send: Send) -> None:
    """Answer a browser that asks what a page of another site may send. OpenAI's client there has headers of its own."""
    wanted = [name.strip().lower() for name in asked.get("access-control-request-headers", "").split(",")]
    stainless = [name for name in wanted if STAINLESS.fullmatch(name)]
    headers: Sequence[tuple[bytes, bytes]] = [
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", ", ".join([ALLOWED_HEADERS, *stainless]).encode()),
        (b"access-control-max-age", b"600"),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": list(headers)})
    await send({"type": "http.response.body", "body": b""})
