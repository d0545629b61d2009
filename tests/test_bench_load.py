"""`paceline bench load`: clients of a server, ours or another."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from paceline.cli import main
from paceline.errors import Unavailable
from paceline_lab.bench.load import Asked, ask, load, percentile


class Scripted(BaseHTTPRequestHandler):
    """Answers with some words, and notes what it was asked and how many asked at the same time."""

    asked: ClassVar[list[dict[str, Any]]] = []
    together, most, lock = 0, 0, threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.lock:
            type(self).together += 1
            type(self).most = max(self.most, self.together)
            self.asked.append(body)
        try:
            self.answer(body)
        finally:
            with self.lock:
                type(self).together -= 1

    def answer(self, body: dict[str, Any]) -> None:
        failing = body.get("fail")
        self.send_response(400 if failing else 200)
        self.end_headers()
        if failing:
            self.wfile.write(b'{"error": {"message": "no"}}')
            return
        words = [{"choices": [{"text": f"w{number} "}]} for number in range(body["max_tokens"])]
        for chunk in (*words, {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}):
            self.wfile.write(b": ping\n\ndata: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Scripted.asked, Scripted.most = [], 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_client_asks_and_every_answer_counts(url: str) -> None:
    contestants = [Asked("a", url, {"temperature": 0}), Asked("b", url, {"speculative": False})]
    loads = load(contestants, ["x", "y"], clients=[1, 4], tokens=5, requests=3, rounds=2)
    assert [(one.asked.name, one.clients, len(one.answers)) for one in loads] == [
        *(("a", 1, 6), ("b", 1, 6)),
        *(("a", 4, 24), ("b", 4, 24)),
    ]
    assert {answer.tokens for one in loads for answer in one.answers} == {5}
    assert {answer.text for one in loads for answer in one.answers} == {"w0 w1 w2 w3 w4 "}
    assert len(Scripted.asked) == 2 + 60
    assert sum(body.get("speculative") is False for body in Scripted.asked) == 31
    assert 1 < Scripted.most <= 4
    seeds = [body["seed"] for body in Scripted.asked if "temperature" in body][1:]
    assert sorted(seeds) == sorted([*range(6), *range(24)])


def test_percentiles() -> None:
    assert [percentile([3.0, 1.0, 2.0], part) for part in (1, 50, 99)] == [1.0, 2.0, 3.0]
    assert percentile(list(range(1, 101)), 99) == 99


def test_what_fails_is_said_in_a_sentence(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unavailable, match=r'a answered 400: ."error": ."message": "no"'):
        ask(Asked("a", url, {"fail": True}), "x", 1, 0)
    with pytest.raises(Unavailable, match="does not answer"):
        ask(Asked("a", "http://127.0.0.1:9", {}), "x", 1, 0)
    for wrong, said in (
        (["http//x"], "a server is NAME=ADDRESS"),
        (["a=ftp://x"], "a server is named by an address"),
        (["a=http://x", "a=http://y"], "two servers have one name"),
        (["a=http://x", "--body", "b", "{}"], "--body names 'b'"),
        (["a=http://x", "--body", "a", "1"], "--body: it is a JSON object"),
        (["a=http://x", "--clients", "0"], "--clients must be at least 1"),
    ):
        assert main(["bench", "load", *wrong]) == 2
        assert said in capsys.readouterr().err


def test_the_table_compares_with_the_first(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", "load", f"a={url}", f"b={url}", "--clients", "2", "--rounds", "1", "-n", "4", "--json"]
    assert main(asked) == 0
    *_, last = (out := capsys.readouterr().out).splitlines()
    found = json.loads(last)["loads"]
    assert [(one["name"], one["clients"], one["requests"], one["tokens"]) for one in found] == [
        ("a", 2, 4, 16),
        ("b", 2, 4, 16),
    ]
    assert out.splitlines()[1].split()[:4:3] == ["a", "1.00"]
