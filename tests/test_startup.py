"""What a command loads before it says anything: libraries that take seconds only where they are needed."""

import json
import subprocess
import sys

import pytest

from thinning import thinned

RUN = """
import io, json, sys
from paceline.cli import main

class Terminal(io.StringIO):
    loaded = []
    def isatty(self):
        return True
    def write(self, text):
        self.loaded.append("torch" in sys.modules)
        return super().write(text)

error, sys.stderr = sys.stderr, Terminal()
sys.stdout = io.StringIO()
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps([code, loaded, sys.stderr.getvalue(), Terminal.loaded[:1]]), file=error)
"""
TRACED = """
import json, sys
import paceline

lm, met = paceline.load("pocket"), set()
lm.generate("Once upon a time", max_new_tokens=16)
sys.setprofile(lambda frame, event, given: met.add(frame.f_globals.get("__name__", "")))
for _ in range(30):
    lm.generate("Once upon a time", max_new_tokens=16)
sys.setprofile(None)
print(json.dumps(sorted(name for name in met if name.startswith("paceline."))))
"""
MODULES = 78
HEAVY = {"torch", "transformers", "scipy", "sympy", "pandas", "matplotlib", "safetensors", "tokenizers"}


def loaded(*command: str) -> tuple[int, set[str], str, list[bool]]:
    """The exit code, the packages that a command loads, what it says at a terminal on standard error, and whether torch
    was loaded when it said the first word."""
    done = subprocess.run([sys.executable, "-c", RUN, *command], capture_output=True, text=True, encoding="utf8")
    code, names, said, first = json.loads(done.stderr.splitlines()[-1])
    return code, set(names), said, first


@pytest.mark.parametrize(
    "command",
    thinned(
        ["--help", "generate --help", "methods", "generate --no-such", "generate x --method nope", "check -n x"],
        every=2,
    ),
)
def test_help_lists_and_mistakes_load_nothing_heavy(command: str) -> None:
    _, names, _, _ = loaded(*command.split())
    assert not names & HEAVY


def test_a_bundled_model_writes_without_transformers_and_says_at_once_that_it_loads() -> None:
    code, names, said, first = loaded("generate", "Once", "-n", "2")
    assert code == 0
    assert not names & (HEAVY - {"torch", "safetensors", "tokenizers", "sympy", "scipy"}), "numba loads scipy"
    assert said.startswith("loading pocket ...\r")
    assert first == [False], "the first word is said before torch is loaded"


def test_a_text_passes_through_few_modules() -> None:
    """What a reader has to know of the default method, in texts with drafts and without."""
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, encoding="utf8", check=True)
    met = json.loads(done.stdout)
    assert {"paceline.engine.loop", "paceline.law.law", "paceline.verify"} <= set(met)
    assert len(met) <= MODULES, met
