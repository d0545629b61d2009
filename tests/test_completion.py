"""Completion in the shell, asked as bash asks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


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
    source = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, **asked, "PYTHONPATH": os.path.abspath(source) if source else ""}
    command = [sys.executable, "-m", "paceline"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
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
