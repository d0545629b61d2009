"""Where a model is computed: the device that was named, or the fastest one that works, without asking a GPU in vain."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paceline
from paceline.errors import InputError
from paceline.targets import device
from paceline.targets.device import CPU_DEVICE, RESERVE, WantedDevice, asked, fastest
from paceline.targets.forked import _before
from paceline_lab.bench.times import forwards
from test_int8_stored import stored

GPU = torch.device("cuda")
BALLAST = "pocket+ballast:20M"


@pytest.fixture(autouse=True)
def unasked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No device is named, and no GPU has been tried."""
    monkeypatch.delenv(device.VARIABLE, raising=False)
    device.computes.cache_clear()
    yield
    device.computes.cache_clear()


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may ask for a GPU."""

    def touched(*_: object, **__: object) -> None:
        raise AssertionError("a GPU was asked for")

    for name in ("is_available", "device_count", "mem_get_info", "init"):
        monkeypatch.setattr(torch.cuda, name, touched)
    monkeypatch.setattr(torch.backends.mps, "is_available", touched)


def seen(monkeypatch: pytest.MonkeyPatch, *kinds: str, fault: str = "") -> None:
    """As if there were GPUs of these kinds."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in kinds)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in kinds)
    monkeypatch.setattr(device, "_fault", lambda kind: fault)


def full(monkeypatch: pytest.MonkeyPatch, free: int | None = 1000) -> None:
    """As if there were a GPU with so little memory."""
    seen(monkeypatch, "cuda")
    monkeypatch.setattr(device, "free_memory", lambda where: free)


# --- what was asked for ---


def test_an_argument_wins_over_the_variable_and_both_over_our_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(None) == WantedDevice(None, False)
    monkeypatch.setenv(device.VARIABLE, "cpu")
    assert asked(None) == WantedDevice(CPU_DEVICE, False)
    assert asked("auto") == WantedDevice(None)
    assert asked("cpu") == asked(CPU_DEVICE) == WantedDevice(CPU_DEVICE)
    for nothing in ("", "auto"):
        monkeypatch.setenv(device.VARIABLE, nothing)
        assert asked(None) == WantedDevice(None, False)


@pytest.mark.parametrize("wrong", ["tpu", "Cuda:99", " cpu"])
def test_a_wrong_variable_is_named(wrong: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device.VARIABLE, wrong)
    expected = f"device {wrong!r}, which PACELINE_DEVICE names, is not available here; choose cpu, auto, or cuda where"
    for name in (model, "pocket-draft"):
        with pytest.raises(InputError) as error:
            paceline.load(name)
        assert str(error.value).startswith(expected)
        assert paceline.load(name, device="cpu").target.device == "cpu"
    monkeypatch.setenv(device.VARIABLE, "meta")
    with pytest.raises(InputError, match="'meta', which PACELINE_DEVICE names, holds no values"):
        paceline.load("pocket-draft")


def test_commands_read_the_variable() -> None:
    command = [
        sys.executable,
        "-m",
        "paceline",
        "generate",
        "Once",
        "--model",
        "pocket-draft",
        "-n",
        "2",
        "--seed",
        "1",
    ]
    for named, code, said in (("cpu", 0, " on cpu; "), ("tpu", 2, "which PACELINE_DEVICE names, is not available")):
        done = subprocess.run(command, env={**os.environ, device.VARIABLE: named}, capture_output=True, text=True)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_a_loaded_model_stays_where_it_is(monkeypatch: pytest.MonkeyPatch, untouched: None) -> None:
    from families import build

    monkeypatch.setenv(device.VARIABLE, "tpu")
    assert paceline.load(build("llama")).target.device == "cpu"


# --- the fastest ---


@pytest.mark.parametrize(
    ("kinds", "expected"), [(("cuda", "mps"), "cuda"), (("mps",), "mps"), ((), "cpu"), (("cuda",), "cuda")]
)
def test_auto_is_a_gpu_where_one_works(kinds: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(monkeypatch, *kinds)
    assert fastest() == fastest(torch.float32) == torch.device(expected)
    assert fastest(torch.float64) == torch.device("cpu" if expected == "mps" else expected)


def test_a_gpu_that_fails_gets_one_note_and_is_left_out(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(monkeypatch, "cuda", fault="no kernel image\nis available")
    with pytest.warns(UserWarning, match=r"^the GPU \(cuda\) is not used: no kernel image is available$") as heard:
        found = [paceline.load(name, device="auto").target.device for name in (model, "pocket-draft")]
    assert (found, len(heard)) == (["cpu", "cpu"], 1)
    device.computes.cache_clear()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(device, "_fault", lambda kind: "broken" if kind == "cuda" else "")
    with pytest.warns(UserWarning, match="the GPU .cuda. is not used: broken"):
        assert fastest().type == "mps"


def test_a_driver_that_torch_warns_of_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seen(monkeypatch)

    def old() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver is too old", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", old)
    with pytest.warns(UserWarning, match=r"is not used: CUDA initialization: The NVIDIA driver is too old$"):
        assert fastest() == CPU_DEVICE


def test_a_product_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device._fault("cpu") == ""
    assert "nowhere" in device._fault("nowhere")
    monkeypatch.setattr(torch.Tensor, "__matmul__", torch.Tensor.add, raising=False)
    assert device._fault("cpu") == "it multiplies ones to 2 instead of 4"

    def silent(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(torch, "ones", silent)
    assert device._fault("cpu") == "NotImplementedError"


# --- what fits ---


def test_a_model_without_room_goes_to_the_cpu_with_one_note(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch)
    for name in (model, "pocket-draft", BALLAST):
        with pytest.warns(UserWarning, match=r" needs \d+\.\d GB and the GPU has 0\.0 GB free, so it is") as heard:
            lm = paceline.load(name)
        assert lm.target.device == "cpu"
        assert [str(one.message).startswith(f"{name} needs") for one in heard] == [True]
    with pytest.warns(UserWarning, match="random:tiny needs"):
        assert forwards.random_target("tiny", "float32", None).device == "cpu"


@pytest.mark.parametrize("free", [None, RESERVE + 1049, RESERVE + 1050])
def test_what_fits_is_the_weights_and_room_to_work(free: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch, free)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = WantedDevice(None).for_floats("a model", 1000, None)
    assert (found, len(heard)) == ((CPU_DEVICE, 1) if free == RESERVE + 1049 else (GPU, 0))


def test_a_named_device_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch)
    for by_argument in (True, False):
        assert WantedDevice(GPU, by_argument).for_floats("a model", 10**12, None) == GPU


# --- what keeps to the CPU ---


def test_integers_ask_for_no_gpu(model: str, tmp_path: Any, untouched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(tmp_path / "stored")
    for named in (None, "auto"):
        for name in (model, "pocket-draft"):
            assert paceline.load(name, quantize="int8", device=named).target.device == "cpu"
        assert paceline.load(folder, device=named).target.exact
    monkeypatch.setenv(device.VARIABLE, "cuda")
    monkeypatch.setattr(device, "_named", lambda given, said: torch.device(given))
    assert paceline.load("pocket-draft", quantize="int8").target.device == "cpu"
    assert paceline.load(folder).target.exact
    with pytest.raises(InputError, match="quantize=int8 is for CPUs"):
        paceline.load("pocket-draft", quantize="int8", device="cuda")


def test_the_cpu_asks_for_no_gpu(model: str, untouched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paceline.load(model, device="cpu").target.device == "cpu"
    monkeypatch.setenv(device.VARIABLE, "cpu")
    lm = paceline.load(model)
    assert lm.generate("Hello", draft_model=model, method="assistant", max_new_tokens=2).tokens


def test_a_fork_of_a_process_that_uses_a_gpu_cannot_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.targets import forked

    monkeypatch.setattr(forked, "_would_be_lost", False)
    monkeypatch.setattr(forked, "_pools", False)
    monkeypatch.setattr(forked, "_users", set[int]())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    lost = []
    for users in (set[int](), {1}):
        forked._users.update(users)
        _before()
        lost.append(forked._would_be_lost)
    assert lost == [False, True]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    _before()
    assert not forked._would_be_lost


def test_free_memory_counts_what_torch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.targets.place import free_memory

    sizes = SimpleNamespace(mem_get_info=(100, 900), memory_reserved=50, memory_allocated=20)
    for name, value in vars(sizes).items():
        monkeypatch.setattr(torch.cuda, name, lambda where, value=value: value)
    assert free_memory(GPU) == 130
    assert free_memory(torch.device("mps")) is None
