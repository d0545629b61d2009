"""What is installed from the wheel works, and what a package index shows of it leads nowhere that is not there."""

import email
import os
import re
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import paceline
from paceline.cli import main

ROOT = Path(__file__).resolve().parent.parent
BYTES = 25_000_000
PYTHONS = os.environ.get("PACELINE_PYTHONS", sys.executable).split(os.pathsep)
"""Interpreters to install it into, from 3.11 on."""
LINK = re.compile(r"!?\[[^\]]*\]\((?!https?:)[^)]*\)")
GENERATE = ("generate", "Once upon a time", "--max-new-tokens", "6", "--seed", "1", "--dtype", "float64")
CHECK = ("check", "--method", "lookup", "--sizes", "4", "--max-new-tokens", "8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        name = next(name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(packed.read(name))


def test_the_wheel_is_small_and_whole(wheel: Path) -> None:
    assert wheel.stat().st_size <= BYTES
    source = ROOT / "src"
    ours = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as packed:
        held = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert held == {name for name in ours if "__pycache__" not in name}


def test_its_description_leads_only_where_everybody_can_go(wheel: Path) -> None:
    described = metadata(wheel)
    text = str(described.get_payload(decode=True), "utf8")
    assert text.startswith("# Paceline")
    assert "# Changelog" in text
    assert LINK.findall(text) == []
    assert described["Version"] == paceline.__version__
    assert described["Requires-Python"] == ">=3.11"


def test_a_link_into_the_repository_would_be_seen() -> None:
    assert LINK.findall("![a](b.png) [c](docs/d.md) [e](https://example.org)") == ["![a](b.png)", "[c](docs/d.md)"]


UNPACKED = "import sys, paceline; from paceline.cli import main; print(paceline.__file__); sys.exit(main(sys.argv[1:]))"


def test_the_unpacked_wheel_writes_what_the_sources_write(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Path(paceline.__file__).is_relative_to(ROOT / "src")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", UNPACKED, *GENERATE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    where, text = done.stdout.split("\n", 1)
    assert Path(where).is_relative_to(tmp_path / "site")
    assert main(GENERATE) == 0
    assert text == capsys.readouterr().out != ""


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_it_installs_into_a_fresh_environment(wheel: Path, tmp_path: Path, python: str) -> None:
    """Where torch comes from is the machine's matter: this one is asked for the version that the tests run on."""
    subprocess.run([python, "-m", "venv", str(tmp_path / "fresh")], check=True)
    binaries = tmp_path / "fresh" / "bin"
    for wanted in ("torch==2.13.0", str(wheel)):
        subprocess.run([binaries / "python", "-m", "pip", "install", "-q", wanted], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    outputs = {}
    for arguments in (("--version",), ("methods",), GENERATE, CHECK):
        command = [binaries / "paceline", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        outputs[arguments[0]] = done.stdout
    assert outputs["--version"] == f"paceline {paceline.__version__}\n"
    assert "lookup" in outputs["methods"]
    own = subprocess.run([sys.executable, "-m", "paceline", *GENERATE], capture_output=True, text=True, check=True)
    assert outputs["generate"] == own.stdout
