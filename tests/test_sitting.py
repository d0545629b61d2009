"""What a sitting says of its machine, with and without a graphics card."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paceline_lab.bench import machine
from paceline_lab.bench.report.provenance import _flat


def test_a_machine_without_a_card_says_so() -> None:
    found = machine.sitting()["machine"]
    assert found["memory_bytes"] is None or found["memory_bytes"] > 2**28
    if not torch.cuda.is_initialized():
        assert found["accelerator"] is None
        assert not {"driver", "cuda", "accelerator_bytes"} & set(found)


def test_a_card_is_told_with_memory_driver_and_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\nGCC version: 12.2.0\n")
    for name, found in (
        ("is_initialized", True),
        ("get_device_name", "A card"),
        ("current_device", 0),
        ("get_device_properties", SimpleNamespace(total_memory=24 * 10**9)),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_, found=found: found)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(machine, "DRIVER", driver)
    found = machine.sitting()["machine"]
    assert found["accelerator"] == "A card"
    assert (found["driver"], found["cuda"]) == ("535.104.05", "12.8")
    assert ("accelerator", "24.0 GB") in _flat({"accelerator_bytes": found["accelerator_bytes"]})
    driver.unlink()
    assert machine.sitting()["machine"]["driver"] is None


def test_a_system_that_says_little_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(platform, "freedesktop_os_release", unknown)
    monkeypatch.setattr(machine.os, "sysconf", unknown)
    found = machine.sitting()["machine"]
    assert (found["distribution"], found["memory_bytes"]) == (None, None)
