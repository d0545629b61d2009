"""The examples run, and the docs show what they print."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_docs_show_the_calls_of_a_round_as_they_are() -> None:
    """Tokens of a bundled model in float64: they do not depend on the processor."""
    command = [sys.executable, str(ROOT / "examples" / "one_round.py")]
    environment = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") > 8
    assert f"```text\n{done.stdout}```" in (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf8")
