"""Completion in the shell, asked as bash asks."""

import io
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import argcomplete
import pytest
from argcomplete.finders import CompletionFinder

from paceline.cli import main


def in_a_process(asked: dict[str, str], folder: Path) -> None:
    source = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, **asked, "PYTHONPATH": os.path.abspath(source) if source else ""}
    command = [sys.executable, "-m", "paceline"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def in_this_process(asked: dict[str, str], folder: Path) -> None:
    def ended(code: int) -> None:
        raise SystemExit(code)

    said = io.StringIO()
    answer = Path(asked["_ARGCOMPLETE_STDOUT_FILENAME"])
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), answer.open("w", encoding="utf8") as stream:
        how: Any = {"exit_method": ended, "output_stream": stream}
        patch.setattr(argcomplete, "autocomplete", partial(argcomplete.autocomplete, **how))
        patch.setattr(CompletionFinder, "_init_debug_stream", lambda self: None)  # would take file 9, another's here
        patch.chdir(folder)
        for name, value in asked.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            main([])
    assert (end.value.code, said.getvalue()) == (0, "")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("paceline gen", {"generate"}),
        ("paceline bench ru", {"run"}),
        ("paceline generate --max", {"--max-new-tokens"}),
        ("paceline generate x --method lo", {"lookup", "lookahead"}),
        ("paceline methods reh", set()),
        ("paceline methods rec", {"recycling"}),
        ("paceline check -m pocket-", {"pocket-draft", "pocket-foreign"}),
        ("paceline generate x -m fol", {"folder/"}),
        ("paceline generate --prompt-file sto", {"story.txt"}),
        ("paceline generate x --rule c", {"coupled"}),
        ("paceline generate x --color al", {"always"}),
        ("paceline generate x --seed ", set()),
        ("paceline completion z", {"zsh"}),
    ],
)
def test_bash_completes(line: str, found: set[str], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "story.txt").touch()
    answer = tmp_path / "answer"
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "_ARGCOMPLETE": "1"}
    asked |= {"_ARGCOMPLETE_IFS": "|", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    ask = in_a_process if line == "paceline gen" else in_this_process
    ask(asked, tmp_path)
    assert {word.strip() for word in answer.read_text(encoding="utf8").split("|") if word} == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_understands_what_it_is_given(shell: str) -> None:
    code = subprocess.run([sys.executable, "-m", "paceline", "completion", shell], capture_output=True, text=True)
    assert code.returncode == 0
    assert "paceline" in code.stdout
    if shutil.which(shell):
        flags = ["--no-execute"] if shell == "fish" else ["-n"]
        done = subprocess.run([shell, *flags], input=code.stdout, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    if shell == "bash" and shutil.which("bash"):
        done = subprocess.run(["bash"], input=f"{code.stdout}\ncomplete -p paceline", capture_output=True, text=True)
        assert done.stdout.rstrip().endswith("paceline")
