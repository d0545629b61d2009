"""Models by name: from a hub that answers, from what was downloaded before, and at once not at all."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

import families
import paceline
from paceline.cli import main
from paceline.drafters.networks.heads import method_for
from paceline.drafters.networks.redrafter.checkpoint import write_head
from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead
from paceline.errors import InputError
from paceline.targets import hub
from paceline.targets.hf.load import load_target
from paceline.targets.replay import open_vocabulary

COMMIT = "c" * 40


class Served(BaseHTTPRequestHandler):
    """A hub of one model."""

    folder = Path()
    status = 404
    code = "EntryNotFound"
    message = ""
    refused = ""
    """A part of the addresses that are answered as if nothing were there."""
    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer(whole=False)

    def do_GET(self) -> None:
        self._answer(whole=True)

    def _answer(self, *, whole: bool) -> None:
        self.asked.append(f"{self.command} {self.path}")
        refused = bool(self.refused) and self.refused in self.path
        if self.path.startswith("/api/models/some/model/") and not refused:
            self._listed()
            return
        file = self.folder / self.path.rpartition("/")[2]
        if refused or not self.path.startswith("/some/model/resolve/") or not file.is_file():
            self.send_response(self.status)
            self.send_header("X-Error-Code", self.code)
            if self.message:
                self.send_header("X-Error-Message", self.message)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            if self.status == 302:
                self.send_header("Location", "http://127.0.0.1:1/where-nobody-is")
            self.end_headers()
            return
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if whole:
            self.wfile.write(content)

    def _listed(self) -> None:
        """Which files the model has."""
        files = sorted(self.folder.iterdir())
        known = {"id": "some/model", "sha": COMMIT, "siblings": [{"rfilename": file.name} for file in files]}
        tree = [{"type": "file", "path": file.name, "size": file.stat().st_size, "oid": file.name} for file in files]
        content = json.dumps(tree if "/tree/" in self.path else known).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(folder: Path, status: int = 404, **more: str) -> Iterator[tuple[int, list[str]]]:
    """The port of a hub, and what it is asked. What it does not have, or refuses, it answers with ``status``."""
    asked = list[str]()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Here", (Served,), {"folder": folder, "status": status, "asked": asked, **more})
    )
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


Ask = Callable[[int], None]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Makes the hub that of a port here, with nothing downloaded from it yet. Nobody may wait for it."""

    def there(port: int) -> None:
        address = f"http://127.0.0.1:{port}"
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    waits = list[float]()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(time, "sleep", waits.append)
    close_session()
    yield there
    close_session()
    assert waits == []


@pytest.fixture
def nowhere() -> Iterator[int]:
    """A port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("status", [200, 302, 404, 503])
def test_a_hub_that_says_anything_at_all_answers(tmp_path: Path, ask: Ask, status: int) -> None:
    with serving(tmp_path, status) as (port, asked):
        ask(port)
        assert hub.answers()
        assert asked == ["HEAD /"], "one question, and nothing is fetched"


def test_a_hub_that_is_not_there_does_not_answer(ask: Ask, nowhere: int) -> None:
    ask(nowhere)
    assert not hub.answers()


def test_a_hub_that_keeps_silent_is_waited_for_as_long_as_the_user_says(
    ask: Ask, nowhere: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ask(silent.getsockname()[1])
        begun = time.monotonic()
        assert not hub.answers()
        assert 0.1 <= time.monotonic() - begun < constants.DEFAULT_ETAG_TIMEOUT


def test_a_user_who_is_offline_asks_nobody(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with serving(tmp_path) as (port, asked):
        ask(port)
        assert not hub.answers()
        assert asked == []


def test_a_name_is_told_at_once_where_no_hub_answers(
    tmp_path: Path, ask: Ask, nowhere: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(nowhere)
    with pytest.raises(ValueError, match="no tokenizer at 'no/such'"):
        open_vocabulary("no/such")
    with pytest.raises(ValueError, match=r"no model at 'no/such': .* downloaded before, and no hub answers"):
        load_target("no/such")
    text = tmp_path / "uk.txt"
    text.write_text("слово за словом\n", encoding="utf8")
    for command in (
        ["datastore", "build", "--text", str(text), "--out", str(tmp_path / "x"), "--tokenizer", "no/such"],
        ["generate", "Hello", "--model", "no/such"],
    ):
        assert main(command) == 2
        assert "'no/such'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address",
    ["https://huggingface.co/some/model", "hf.co/some/model", "http://www.HuggingFace.co/some/model/tree/main/"],
)
def test_the_address_of_a_model_is_its_name(
    address: str, ask: Ask, nowhere: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(nowhere)
    for given in (address, f"{constants.ENDPOINT}/some/model"):
        with pytest.raises(ValueError, match="no model at 'some/model'"):
            load_target(given)
    (tmp_path / address).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="it has none"):
        load_target(address)


def test_a_head_of_the_hub_is_fetched_once_and_is_there_when_the_hub_no_longer_is(
    tmp_path: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    head = RecurrentHead(HeadShape(width=256, vocab_size=8192, exit=8))
    write_head(tmp_path / "head", head)
    (tmp_path / "head" / "README.md").write_text("what it is")
    with serving(tmp_path / "head") as (port, asked):
        ask(port)
        assert method_for("some/model") == "redrafter"
        assert not any("README" in one for one in asked), "only what a head consists of is fetched"
        assert method_for(f"http://127.0.0.1:{port}/some/model") == "redrafter"
        with pytest.raises(InputError, match="no folder has this name, and no model of the hub"):
            method_for("some/other")
        for name in ("some/model", f"http://127.0.0.1:{port}/some/model"):
            assert main(["train", "info", name]) == 0
            assert "for the method  redrafter" in capsys.readouterr().out
    close_session()
    lm = paceline.load("pocket", dtype="float32")
    how: dict[str, Any] = {"max_new_tokens": 6, "temperature": 0.8, "seed": 1}
    found = lm.generate("Once", method="auto:head=some/model", **how)
    assert found.tokens == lm.generate("Once", method="plain", **how).tokens


RESTRICTED = "Access to model some/model is restricted"


@pytest.mark.parametrize(
    ("status", "how", "said"),
    [
        (403, {"refused": "/resolve/", "code": "GatedRepo", "message": RESTRICTED}, RESTRICTED),
        (401, {"refused": "/api/", "code": "GatedRepo", "message": RESTRICTED}, RESTRICTED),
        (401, {"refused": "/api/", "code": "GatedRepo"}, "401 Client Error"),
        (403, {"refused": "/api/", "code": ""}, "403 Forbidden: None"),
        (500, {"refused": "/api/", "code": ""}, "Server error '500 Internal Server Error' for url '.*'"),
    ],
)
def test_a_head_that_the_hub_does_not_give_is_not_said_to_be_missing(
    tmp_path: Path, ask: Ask, status: int, how: dict[str, str], said: str
) -> None:
    write_head(tmp_path / "head", RecurrentHead(HeadShape(width=256, vocab_size=8192, exit=8)))
    with serving(tmp_path / "head", status, **how) as (port, _):
        ask(port)
        with pytest.raises(InputError, match=f"^'some/model' cannot be downloaded: {said}; mend this") as error:
            method_for("some/model")
    assert "\n" not in str(error.value)


def test_a_model_that_a_hub_hides_from_strangers_is_as_if_it_did_not_exist(tmp_path: Path, ask: Ask) -> None:
    with serving(tmp_path, 401, code="RepoNotFound") as (port, _):
        ask(port)
        with pytest.raises(InputError, match="no folder has this name, and no model of the hub"):
            method_for("some/other")


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, ask: Ask) -> None:
    write_head(tmp_path / "head", RecurrentHead(HeadShape(width=256, vocab_size=8192, exit=8)))
    (tmp_path / "cache").write_text("a file where the folder is to be")
    with serving(tmp_path / "head") as (port, _):
        ask(port)
        with pytest.raises(InputError, match=r"'some/model' cannot be downloaded: (Not a directory|File exists); mend"):
            method_for("some/model")


TWICE = """
import sys, time
from paceline.targets.hf.load import load_target, load_tokenizer
waits = []
time.sleep = waits.append
for _ in range(2):
    print(load_target("some/model").fingerprint(), load_tokenizer("some/model") is not None, waits, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_model_is_downloaded_and_is_there_when_the_hub_no_longer_is(tmp_path: Path) -> None:
    """In a process of its own: the libraries read the hub's address once."""
    families.save("llama", tmp_path / "model")
    known = f"{load_target(tmp_path / 'model').fingerprint()} True []\n"
    others = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    with ExitStack() as after:
        with serving(tmp_path / "model") as (port, asked):
            there = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(tmp_path / "hub")}
            process = after.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", TWICE],
                    env=others | there | {"NO_PROXY": "127.0.0.1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert process.stdout is not None
            assert process.stdout.readline() == known
            assert "GET /some/model/resolve/main/model.safetensors" in asked
        rest, _ = process.communicate("\n\n", timeout=60)
    assert rest == known
    assert process.returncode == 0
