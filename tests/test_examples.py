"""The examples run, and the docs show what they print."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_the_docs_show_the_calls_of_a_round_as_they_are() -> None:
    """Tokens of a bundled model in float64: they do not depend on the processor."""
    command = [sys.executable, str(ROOT / "examples" / "one_round.py")]
    environment = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") > 8
    assert f"```text\n{done.stdout}```" in (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf8")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server that was started as the examples say."""
    if importlib.util.find_spec("starlette") is None:
        pytest.skip("the server is an extra: pip install 'paceline[serve]'")
    command = [sys.executable, "-m", "paceline", "serve", "--model", "pocket", "--no-probe", "--port", "0"]
    command += ["--draft-model", "pocket-draft"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        try:
            assert run.stdout is not None
            yield run.stdout.readline().split(" on ")[1].split(" ")[0]
        finally:
            run.terminate()


@pytest.mark.parametrize(
    ("example", "client", "said"),
    [
        ("serve_openai.py", "openai", "drafted tokens were accepted"),
        ("serve_langchain.py", "langchain_openai", "the stream says the same: True"),
    ],
)
def test_clients_of_the_server(server: str, example: str, client: str, said: str) -> None:
    if importlib.util.find_spec(client) is None:
        pytest.skip(f"{client} is not installed")
    command = [sys.executable, str(ROOT / "examples" / example)]
    environment = os.environ | {"OPENAI_BASE_URL": f"{server}/v1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert said in done.stdout
