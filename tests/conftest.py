"""What all tests have in common: none sees what was measured on this machine before, and none leaves anything here."""

import gc
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from clock import MadeClock

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has them ignore Ctrl-C, and all processes that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["PACELINE_DEVICE"] = "cpu"
"""Also where there is a GPU, and for the processes that tests start. What tests a GPU names it."""


if not torch.cuda.is_available():
    # Kernels are interpreted, which triton has to know before it is imported for the first time.
    os.environ["TRITON_INTERPRET"] = "1"


gc.disable()  # while tests are collected: full collections of what they import took a third of that time


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def little_to_collect() -> Iterator[None]:
    """Collections in the tests of a module pass over what was there before: one of all takes half a second, and many
    tests want some. Races would have them look at all again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        gc.collect()
        gc.freeze()
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MadeClock:
    """Time in this test: nothing takes any but looking at the clock and sleeping, however slow or busy the machine."""
    made = MadeClock()
    for name, stand_in in (("perf_counter", made), ("monotonic", made), ("sleep", made.sleep)):
        monkeypatch.setattr(time, name, stand_in)
    return made


@pytest.fixture
def not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards in floats are left to torch's operations, and weights are packed for them."""
    for place in ("target", "load"):
        monkeypatch.setattr(f"paceline.targets.hf.{place}.compiling_pays", lambda model: False)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def same_seeds() -> Iterator[None]:
    """What samples without a seed gets the same one in every test, so that no test depends on chance."""
    import paceline.api.model
    import paceline.api.settings

    with pytest.MonkeyPatch.context() as patch:
        for module in (paceline.api.settings, paceline.api.model):
            patch.setattr(module, "new_seed", lambda: 0)
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny Llama with random weights, for commands."""
    import families

    folder = tmp_path_factory.mktemp("models") / "llama"
    families.save("llama", folder)
    return str(folder)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A server of ``pocket`` that waits a second for a request, and takes a megabyte."""
    import http_server

    limits = http_server.Limits(read_seconds=1.0, body_bytes=1 << 20)
    with http_server.running(limits=limits) as found:
        yield found


@pytest.fixture(scope="module")
def right(server: Any) -> str:
    """The text that the server writes when all is well."""
    return str(server.text())


@pytest.fixture
def unharmed(server: Any, right: str) -> Iterator[None]:
    """After the test, the server's next text is right, and nothing is left of the others."""
    yield
    assert server.text() == right
    server.at_rest()
