"""Text of foreign files and models on its way to a terminal: nothing in it is obeyed there."""

import ast
import io
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import families
from dictionary_tables import made_up, write
from paceline.cli import output, streams
from paceline.cli.output import print_json, show
from paceline.files.visible import UNPRINTABLE
from runs import made_run
from test_cli import say

HOSTILE = "x\x1b[2J\x1b]0;t\x07\x9b31m\x7f\b\r\u202ey\u2066"
OBEYED = frozenset(map(chr, UNPRINTABLE)) - {"\n", "\t"}
CLI = Path(streams.__file__).parent


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with a hostile word wherever they have a word."""
    folder = tmp_path_factory.mktemp("hostile")
    families.save("llama", folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = "{{ raise_exception(" + json.dumps(HOSTILE) + ") }}"
    tokenizer.save_pretrained(folder / "model")
    families.save("llama", folder / "typed")
    config = folder / "typed" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": HOSTILE}))
    said = {"tokenizer_name": HOSTILE, "licence": HOSTILE, "language": HOSTILE, "corpus": {HOSTILE: [HOSTILE]}}
    write(folder / "a.dict", made_up(1, 9, range(9)), **said)
    (folder / HOSTILE).mkdir()
    (folder / HOSTILE / HOSTILE).write_bytes(b"\xff")
    messages = {"messages": [{"role": HOSTILE, "content": "x"}]}
    for name, row in (("roles", messages), ("odd", {HOSTILE: 1}), ("twice", {"prompt": "x", "key": "k"})):
        (folder / f"{name}.jsonl").write_text(2 * (json.dumps(row) + "\n"))
    for seed, name in enumerate(("run", "later")):
        made_run(
            folder / name,
            methods=("plain", f"lookup{HOSTILE}"),
            peers=(f"peer{HOSTILE}",),
            tasks=(HOSTILE,),
            languages=("en",),
            prompts=2,
            seed=seed,
            recipe={"suite": HOSTILE, "qps": None, "rule": HOSTILE * seed},
            model={"model": HOSTILE, "device": HOSTILE * seed},
            missing={HOSTILE: HOSTILE},
        )
    return folder


COMMANDS = {
    "dictionary": ["dict", "info", "{}/a.dict"],
    "dictionary, JSON": ["dict", "info", "{}/a.dict", "--json"],
    "another tokenizer": ["dict", "lookup", "x", "--dict", "{}/a.dict"],
    "another model": ["generate", "x", "--model", "{}/model", "--method", "dictionary:file={}/a.dict"],
    "kind of a model": ["generate", "x", "--model", "{}/typed"],
    "template": ["chat", "--model", "{}/model"],
    "run": ["bench", "compare", "{}/run"],
    "run, JSON": ["bench", "compare", "{}/run", "--json"],
    "limits": ["bench", "compare", "{}/run", "--oracle"],
    "runs": ["bench", "compare", "{}/run", "{}/later"],
    "unknown base": ["bench", "compare", "{}/run", "--base", "y"],
    "report": ["bench", "report", "{}/run", "{}/later", "--out", "{}/report", "--json"],
    "export": ["export", "vllm", "--run", "{}/run"],
    "roles": ["bench", "suite", "prompts:{}/roles.jsonl"],
    "names of fields": ["bench", "suite", "prompts:{}/odd.jsonl"],
    "name of a prompt file": ["generate", "--prompt-file", f"{{}}/{HOSTILE}/{HOSTILE}"],
    "name of no prompt file": ["generate", "--prompt-file", f"{{}}/{HOSTILE}/none"],
    "name of a model": ["generate", "x", "--model", f"{{}}/{HOSTILE}"],
    "name of a method": ["generate", "x", "--method", HOSTILE],
    "name of a run": ["bench", "compare", f"{{}}/{HOSTILE}"],
    "name of a suite": ["bench", "suite", f"prompts:{{}}/{HOSTILE}/none"],
    "name of a dictionary": ["dict", "info", f"{{}}/{HOSTILE}/{HOSTILE}"],
    "name of a datastore": ["datastore", "info", f"{{}}/{HOSTILE}/{HOSTILE}"],
    "name of a page": ["generate", "x", "--html", f"{{}}/{HOSTILE}"],
    "an option": ["generate", "x", f"--{HOSTILE}"],
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
def test_nothing_of_a_foreign_file_is_obeyed(
    arguments: Sequence[str], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    code, out, error = say([word.replace("{}", str(place)) for word in arguments], capsys)
    assert code in (0, 2)
    assert OBEYED.isdisjoint(out + error)
    assert "x" in out + error  # it was shown, and what is harmless of it stands


@pytest.mark.parametrize("terminal", [True, False])
def test_a_models_text_is_whole_but_for_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    output.write(f"a\tb\n{HOSTILE}")
    assert out.getvalue().startswith("a\tb\n")
    assert OBEYED.isdisjoint(out.getvalue()) == terminal
    assert len(out.getvalue()) == 4 + len(HOSTILE)


def test_what_other_libraries_log_is_safe(caplog: pytest.LogCaptureFixture) -> None:
    with streams.quiet_libraries():
        logging.getLogger("transformers.x").error("unknown %s", HOSTILE)
    logging.getLogger("transformers.x").warning("%s", HOSTILE)
    during, after = caplog.messages
    assert OBEYED.isdisjoint(during)
    assert after == HOSTILE


def test_pictures_and_json_are_safe(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.text import Text

    show(Text.assemble((HOSTILE, "bold"), "y"), False)
    print_json({HOSTILE: HOSTILE})
    shown = capsys.readouterr().out
    assert OBEYED.isdisjoint(shown)
    assert json.loads(shown.splitlines()[-1]) == {HOSTILE: HOSTILE}


def straying(source: str) -> list[int]:
    """Lines that write to a stream by themselves."""
    known = ("print", "sys.stdout.write", "sys.stderr.write")
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if ast.unparse(call.func) in known]


def test_commands_print_in_one_place() -> None:
    """`print_json` escapes what it writes, a status is our own words, and a completion is a program."""
    writing = {file.name: found for file in CLI.rglob("*.py") if (found := straying(file.read_text(encoding="utf8")))}
    assert {name: len(lines) for name, lines in writing.items()} == {"output.py": 6, "completion.py": 1}
