"""Paths, methods and versions of HTTP; keys, hosts, and pages of other sites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from http_server import COMPLETION, MODEST, HttpServer, answer_of, encoded, frames_of, read_all, running
from paceline.integrations.server.doors import Doors, digest_of

pytestmark = pytest.mark.usefixtures("unharmed")


# --- paths, methods and versions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/page/../../../../etc/passwd",
        "/page/%2e%2e%2fapp.py",
        "/page/..%5c..%5capp.py",
        "/page/%00",
        "/page/",
        "/v1/models/../../etc/passwd",
        "/v1/models/" + "x" * 5000,
        "/v1/models/%ff%fe",
        "/v1/responses/%0d%0aset-cookie:%20a=b",
        "//evil.example/x",
        "http://evil.example/health",
        "/props?model=%00",
    ],
)
def test_paths_that_lead_nowhere(server: HttpServer, path: str) -> None:
    answered = server.ask("GET", path)
    assert answered.status == 404
    assert "set-cookie" not in answered.headers
    assert answered.error


def test_methods(server: HttpServer) -> None:
    assert server.ask("HEAD", "/health")[0::2] == (200, b"")
    for method, path in (
        ("GET", COMPLETION),
        ("POST", "/health"),
        ("OPTIONS", "/health"),
        ("TRACE", "/health"),
        ("X", "/health"),
    ):
        answered = server.ask(method, path)
        assert answered.status == 405
        assert method in answered.error["message"]
    assert server.ask("OPTIONS", "*").status == 404
    assert server.ask("CONNECT", "evil.example:80").status in (404, 405)


def test_an_old_version_of_http(server: HttpServer) -> None:
    raw = encoded({"prompt": "Once upon a time", "max_tokens": 4, "seed": 1, "stream": True})
    sent = server.head("POST", COMPLETION, {"content-length": str(len(raw))}, version="1.0") + raw
    answered = server.exchange(sent)
    assert answered.status == 200
    assert "transfer-encoding" not in answered.headers
    assert frames_of(answered.body)[-1] == "[DONE]"
    sent = server.head("GET", "/health", {"host": None}, version="1.0")  # type: ignore[dict-item]
    assert server.exchange(sent).status == 421


def test_requests_behind_each_other(server: HttpServer) -> None:
    """All are sent at once, and answered in their order."""
    raw = encoded({"prompt": "a", "max_tokens": 3, "seed": 1})
    one = server.head("POST", COMPLETION, {"content-length": str(len(raw)), "connection": "keep-alive"}) + raw
    with closing(server.connect()) as connection:
        connection.sendall(one + one + server.head("GET", "/health"))
        found = read_all(connection)
    assert found.count(b"HTTP/1.1 200") == 3
    assert found.endswith(b'{"status":"ok"}')
    assert len(set(re.findall(rb'"text":"[^"]*"', found))) == 1


def test_a_client_that_waits_for_leave_to_send(server: HttpServer) -> None:
    raw = encoded({"prompt": "a", **MODEST})
    head = server.head("POST", COMPLETION, {"content-length": str(len(raw)), "expect": "100-continue"})
    with closing(server.connect()) as connection:
        connection.sendall(head)
        assert connection.recv(12) == b"HTTP/1.1 100"
        connection.sendall(raw)
        assert b"HTTP/1.1 200" in read_all(connection)
    head = server.head("POST", COMPLETION, {"content-length": str(9 << 20), "expect": "100-continue"})
    with closing(server.connect()) as connection:
        connection.sendall(head)
        assert answer_of(connection).status == 413


# --- keys, hosts and origins -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[HttpServer]:
    """A server with keys that pages of one site may ask."""
    keys = tuple(map(digest_of, ("secret", "k\u00e9y")))
    with running(doors=Doors(keys=keys, hosts=("api.example",), origins=("https://a.example",))) as found:
        yield found


KEYS = [
    "secret",
    "Bearer",
    "Bearer ",
    "Bearer Secret",
    "Bearer secret2",
    "Basic c2VjcmV0",
    "Bearer \xff\xfe",
    "bearer\tsecret",
]


@pytest.mark.parametrize("given", [None, "", *KEYS, "Bearer " + "x" * 50_000, "Bearer secret, Bearer secret"])
def test_keys_that_are_wrong(guarded: HttpServer, given: str | None) -> None:
    for method, path in (("GET", "/v1/models"), ("POST", COMPLETION), ("GET", "/nowhere"), ("GET", "/metrics")):
        answered = guarded.ask(method, path, None, {"authorization": given})
        assert answered.status == 401
        assert answered.headers["www-authenticate"] == "Bearer"
        assert "secret" not in answered.error["message"]


def test_keys_that_are_right(guarded: HttpServer) -> None:
    for given in ("Bearer secret", "bearer secret", "BEARER   secret  "):
        assert guarded.ask("GET", "/v1/models", None, {"authorization": given}).status == 200
    assert guarded.ask("GET", "/health").status == 200


HOSTS_OF_OTHERS = [
    "evil.example",
    "localhost.evil",
    "127.0.0.1.evil.example",
    "127.0.0.1:80@evil",
    "evil@127.0.0.1",
    "",
]
HOSTS_OF_OTHERS += [
    "[::2]",
    "[::1",
    "[::1]evil",
    "localhost:80:80",
    "localhost/evil",
    "localhost#evil",
    "0.0.0.0",
    "\xff",
]
HOSTS_OF_OTHERS += ["local host", "127.0.0.1, evil.example", "2130706433", "x" * 60_000]


@pytest.mark.parametrize("host", HOSTS_OF_OTHERS, ids=range(len(HOSTS_OF_OTHERS)))
def test_hosts_of_others(server: HttpServer, host: str) -> None:
    answered = server.ask("GET", "/health", None, {"host": host})
    assert answered.status == 421
    assert answered.error["code"] == "unknown_host"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:80", "localhost:"]
)
def test_hosts_of_our_own(server: HttpServer, host: str) -> None:
    assert server.ask("GET", "/health", None, {"host": host}).status == 200


ORIGINS_OF_OTHERS = [
    "https://evil.example",
    "null",
    "http://[",
    "",
    "http://a.example",
    "https://a.example.evil",
    "\xff",
]


@pytest.mark.parametrize("origin", ORIGINS_OF_OTHERS)
def test_pages_of_other_sites(guarded: HttpServer, origin: str) -> None:
    for method in ("POST", "OPTIONS"):
        answered = guarded.ask(method, COMPLETION, None, {"origin": origin, "authorization": "Bearer secret"})
        assert answered.status == 403
        assert "access-control-allow-origin" not in answered.headers


def test_pages_of_sites_that_may_ask(guarded: HttpServer) -> None:
    origin = {"origin": "https://a.example"}
    asked = guarded.ask("OPTIONS", COMPLETION, None, {**origin, "access-control-request-method": "POST"})
    assert asked.status == 204
    assert asked.headers["access-control-allow-origin"] == "https://a.example"
    assert "authorization" in asked.headers["access-control-allow-headers"]
    denied = guarded.ask("GET", "/v1/models", None, origin)
    assert denied.status == 401
    assert denied.headers["access-control-allow-origin"] == "https://a.example"
    own = {"origin": f"http://{guarded.address[0]}:{guarded.address[1]}"}
    assert guarded.ask("GET", "/health", None, own).status == 200


def test_pages_of_any_site() -> None:
    with running(doors=Doors(origins=("*",))) as server:
        answered = server.ask("GET", "/health", None, {"origin": "https://b.example"})
        assert answered.headers["access-control-allow-origin"] == "https://b.example"
        assert answered.headers["vary"] == "Origin"


def test_no_page_of_another_site_may_ask_by_default(server: HttpServer) -> None:
    asked = server.ask("OPTIONS", COMPLETION, None, {"origin": "https://b.example"})
    assert asked.status == 403
    assert "access-control-allow-origin" not in asked.headers
