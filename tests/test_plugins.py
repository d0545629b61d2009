"""Methods from Python files: named in a spec, composed like others, and refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

import paceline
from engine import PROMPT, tabled
from paceline.api.model import LanguageModel
from paceline.cli import main
from paceline.cli.methods import describe
from paceline.drafters import make_drafter
from paceline.drafters.asking import fit
from paceline.errors import DrafterError, InputError

FILE = '''
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import paceline
from paceline import Budget, Context, Drafter, DraftTree


@dataclass
class Kept:
    context: Context


class _Base(Drafter):
    """Not for users."""


class Echo(_Base):
    name = "echo"
    summary = "propose the last token again"
    presets = {"twice": {"times": 2}}

    def __init__(self, *, times: int = 3) -> None:
        self.times = times

    def open(self, context: Context) -> Kept:
        return Kept(context)

    def propose_one(self, state: Kept, budget: Budget) -> DraftTree:
        return DraftTree.chain([state.context.root] * min(self.times, budget.nodes), source=self.name)
'''
NEEDY = "\nclass Needy(Echo):\n    def __init__(self, *, layer: int, model: str) -> None:\n        self.layer = layer\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "echo.py").write_text(FILE)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_a_file_is_a_method_like_any_other() -> None:
    for spec, times in {
        "./echo.py": 3,
        "echo.py:Echo": 3,
        "./echo.py:Echo:times=5": 5,
        "./echo.py:times=5": 5,
        "./echo.py:Echo:twice": 2,
        "'./echo.py':Echo": 3,
    }.items():
        drafter: Any = make_drafter(spec)
        assert (drafter.name, drafter.times, drafter.spec) == ("echo", times, spec)
    composed: Any = make_drafter(" ./echo.py:Echo:times=4 + lookup:max_ngram=2 , ./echo.py:Echo,lookup")
    assert composed.spec == "./echo.py:Echo:times=4+lookup:max_ngram=2,./echo.py:Echo,lookup"
    assert [len(part.parts) for part in composed.parts] == [2, 0, 0]
    lm = LanguageModel(tabled())
    expected = lm.generate(PROMPT, method="plain", max_new_tokens=12).tokens
    for method in ("./echo.py:Echo", "lookup,./echo.py:Echo:times=2"):
        assert lm.generate(PROMPT, method=method, max_new_tokens=12, strict=True).tokens == expected
    assert make_drafter("./echo.py").spec == "./echo.py"


def test_a_file_is_read_again_when_it_was_written_again(here: Path) -> None:
    first = type(make_drafter("./echo.py"))
    assert type(make_drafter("./echo.py")) is first
    (here / "echo.py").write_text(FILE.replace("times: int = 3", "times: int = 7"))
    second: Any = make_drafter("./echo.py")
    assert second.times == 7
    assert not list(here.glob("__pycache__"))


WRONG = {
    "./no.py:Echo": ("", "there is no file ./no.py; a path in a method begins at the working directory"),
    "./d.py": (None, "cannot read ./d.py: Is a directory"),
    "./a.py:Nope": (FILE, "./a.py has no class 'Nope'; its drafters: Echo"),
    "./a.py:Kept": (FILE, "'Kept' of ./a.py is not a drafter; derive the class from paceline.Drafter"),
    "./a.py:np": (FILE, "'np' of ./a.py is not a drafter"),
    "./a.py": (FILE + NEEDY, "./a.py has several drafters, Echo, Needy; name one: ./a.py:Echo"),
    "./a.py:Needy": (FILE + NEEDY, "method './a.py:Needy' needs option 'layer': write ./a.py:Needy:layer=value"),
    "./a.py:Echo:wide=2": (FILE, "method './a.py:Echo' has no option 'wide'; it takes times"),
    "./a.py:Echo:times=two": (FILE, "option 'times' of method './a.py:Echo' takes a whole number, not 'two'"),
    "./a.py:Echo:thrice": (FILE, "cannot read 'thrice' in method './a.py:Echo': write key=value or ./a.py:Echo:twice"),
    "./b.py": ("x = 1\n", "./b.py has no drafter; derive a class from paceline.Drafter"),
    "./c.py:Echo": ("x = 1\ndef (", "./c.py is not valid Python: invalid syntax (line 2)"),
    "./e.py:Echo": ("x = 1\ny = {}[x]", "./e.py cannot be imported: KeyError: 1 (line 2)"),
    "./g.py:Echo": ("raise SystemExit", "./g.py cannot be imported: SystemExit (line 1)"),
    "./f.py:Echo": ("import nothing_here", "./f.py cannot be imported: ModuleNotFoundError: No module named"),
}


@pytest.mark.parametrize("spec", WRONG)
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = WRONG[spec]
    monkeypatch.chdir(tmp_path)
    if text is None:
        Path(spec).mkdir()
    elif text:
        Path(spec.partition(":")[0] if spec[1] != "/" else "./" + spec[2:].partition(":")[0]).write_text(text)
    with pytest.raises(InputError) as caught:
        make_drafter(spec)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


class Stubborn(paceline.Drafter):
    """Fails when it is prepared."""

    name = "stubborn"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def fit(self, *_: Any) -> None:
        raise self.error


def test_a_value_error_in_fit_is_a_refusal_and_another_one_a_failure() -> None:
    with pytest.raises(InputError, match="drafter 'stubborn' cannot draft for table: no layers"):
        fit(Stubborn(ValueError("no layers")), tabled(), None)
    with pytest.raises(DrafterError, match="drafter 'stubborn' failed in fit: KeyError: 3"):
        LanguageModel(tabled()).generate(PROMPT, method=Stubborn(KeyError(3)))


@pytest.mark.filterwarnings("default")
def test_the_command_line_takes_a_file_and_says_what_failed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate = ["generate", "--model", "pocket-draft", "--max-new-tokens", "6", "Once upon a time", "--method"]
    texts = []
    for method in ("plain", "./echo.py:Echo"):
        assert main([*generate, method]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    (here / "bad.py").write_text(FILE.replace("state.context.root", "state.contest.root"))
    assert main([*generate, "./bad.py:Echo"]) == 0
    shown = capsys.readouterr()
    assert shown.out == texts[0]
    assert shown.err.count("note: drafter './bad.py:Echo' failed in propose: AttributeError") == 1
    (here / "worse.py").write_text(FILE.replace("self.times = times", "self.times = time"))
    assert main([*generate, "./worse.py:Echo"]) == 1
    assert "error: method './worse.py:Echo' failed when it was made: NameError" in capsys.readouterr().err


def test_required_options_are_listed() -> None:
    rows = {row["name"]: row for row in json.loads(json.dumps(describe(), default=str))}
    assert rows["rest"]["required"] == ["corpus"]
    assert rows["assistant"]["required"] == ["model"]
    assert rows["lookup"]["required"] == []
