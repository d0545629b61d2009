"""The command line: what a mistake says, what JSON holds, and that the reference tells the truth."""

import json
import math
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import families
import paceline
from paceline.cli import main
from paceline.cli.output import print_json
from paceline.cli.reference import reference
from paceline_lab.check.tiny import configuration

ROOT = Path(__file__).parent.parent


def say(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    capsys.readouterr()  # what the test printed before
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


MISTAKES = {
    "generate Hello --model {}": {
        "--method nope": "unknown method 'nope'",
        "--method lookup:": "cannot read method 'lookup:'",
        "--method lookup:max_ngram": "write key=value",
        "--method lookup:max_ngram=three": "takes a whole number, not 'three'",
        "--method lookup:size=3": "has no option 'size'",
        "--planner sometimes": "cannot read planner 'sometimes'",
        "--num-draft-tokens -3": "-3",
        "--num-draft-tokens 3 --planner fixed:4": "give one of the two",
        "--rule lenient": "unknown rule 'lenient'",
        "--temperature -1": "temperature is -1.0",
        "--temperature nan": "temperature is nan",
        "--temperature warm": "--temperature takes a number, not 'warm'",
        "--top-p 0": "top_p is 0.0",
        "--top-p 1.5": "top_p is 1.5",
        "--min-p 1": "min_p is 1.0",
        "--top-k -2": "top_k is -2",
        "--repetition-penalty 0": "repetition_penalty is 0.0",
        "--seed -1": "seed is -1",
        "--stop ''": "stop string",
        "--max-new-tokens 0": "max_new_tokens must be at least 1, not 0",
        "--samples 0": "cannot draw 0 samples",
        "--logprobs -1": "0 or more, not -1",
        "--dtype int8": "write quantize='int8'",
        "--device toaster": "toaster",
        "--prompt-file missing.txt": "give a prompt or --prompt-file",
        "--draft-max 8": "write --num-draft-tokens",
        "--speculative-model x": "write --draft-model",
        "--speculative-config={}": "use the separate flags --method",
        "--temp 1": "write --temperature",
        "-n 0": "max_new_tokens",
        "--method lookup --draft-model x": "method 'lookup' uses none",
        "--method assistant": "needs a draft model",
        "-md ./no/such/draft": "no model at './no/such/draft'",
        "--show colours": "--show is one of tokens, not 'colours'",
        "--color pink": "--color is one of auto, always, never, not 'pink'",
        "--html no/such/page.html": "cannot write no/such/page.html: there is no folder no/such",
        "--html .": "cannot write .: it is a folder",
        "-p x": "there is no -p: the prompt has no flag",
        "--prompt x": "there is no --prompt: the prompt has no flag",
        "--logprobs 2": "--logprobs are printed with --json only; add --json",
        "--stop \udcff": "argument --stop: this is not UTF-8 text (byte 0xff at offset 0)",
        "--no-such-flag": "--no-such-flag",
    },
    "demo": {
        "--method nope": "unknown method 'nope'",
        "--method assistant --model x": "needs a draft model",
        "--prompt ''": "a --prompt is empty",
        "--max-new-tokens 0": "max_new_tokens must be at least 1",
        "--temperature -1": "temperature is -1.0",
        "--ballast much": "much",
        "--ballast 9M --no-ballast": "not allowed with",
        "--ballast 9M --model x": "ballast",
        "--html .": "cannot write .",
    },
    "advise --model pocket": {
        "--overlap --draft-model none": "there is no draft model to judge for pocket; name one with --draft-model",
        "--draft-model no/such/draft": "no model at 'no/such/draft'",
        "--model no/such/folder --draft-model x": "no model at 'no/such/folder'",
        "--seconds 1": "advice takes at least 5 seconds of measuring, not 1",
        "--seconds inf": "--seconds must be at most",
        "-n 4": "a text to measure has at least 24 tokens, not 4",
        "-n 100000": "leaves no room for a prompt",
        "--threads 0": "--threads must be at least 1, not 0",
        "--prompts nowhere": "unknown suite 'nowhere'",
        "--langs xx": "stories has no language 'xx'",
        "--temperature -1": "temperature is -1.0",
    },
    "calibrate --model pocket": {
        "--max-nodes 0": "at least 1 node, not 0",
        "--method lookupp": "unknown method 'lookupp'",
        "--samples 0": "--samples must be at least 1",
        "--prompts nowhere": "unknown suite 'nowhere'",
        "--html /nowhere/page.html": "there is no folder /nowhere",
        "--seconds 0": "the seconds to measure for",
        "--length 16 100000": "--length 100000 is too long for pocket, whose context ends at ",
    },
    "bench time overhead": {
        "--method suffix": "--method is one of plain, lookup, assistant, not 'suffix'",
        "--model pockt": "did you mean 'pocket'?",
        "--model pocket+ballast:much": "cannot read a size in 'pocket+ballast:much'",
        "--model no/such/folder": "no model at 'no/such/folder'",
        "--model x --method assistant": "assistant needs a draft model for x: give --draft-model NAME",
        "--model pocket --draft-model pocket-foreign": "has a different tokenizer from pocket",
        "--model pocket --max-new-tokens 100000": "give fewer --max-new-tokens",
        "--passes 0": "--passes must be at least 1, not 0",
        "--num-draft-tokens 0": "--num-draft-tokens must be at least 1, not 0",
        "--threads -1": "--threads must be at least 1, not -1",
        "--prompt ''": "a --prompt is empty",
    },
    "bench": {
        "draft-cost --rounds 9": "write 'paceline bench time drafting', or 'forwards' for --forwards",
        "forwards": "there is no command 'forwards': write 'paceline bench time forwards'",
        "overhead --passes 1": "there is no command 'overhead': write 'paceline bench time overhead'",
    },
    "bench time drafting": {
        "--rounds 0": "--rounds must be at least 1, not 0",
        "--dtype float32": "name one with --model",
    },
    "bench time logits": {"--rows 0": "--rows must be at least 1, not 0"},
    "bench time forwards": {
        "--model random:7b": "unknown shape '7b'; choose 8b, 1b, tiny",
        "--model pocket --rows 0": "--rows must be at least 1, not 0",
    },
    "export": {
        "sglang lookup": "there is no command 'sglang'; choose vllm, llama.cpp, transformers, gguf, mlx",
        "gguf": "this needs --out",
        "gguf --out model.bin": "--out model.bin does not end with .gguf",
        "gguf --out no/such/folder/x.gguf": "there is no folder no/such/folder",
        "gguf --out x.gguf --type q9": "'q9' is no type of weights that is written here; choose f32, f16",
        "gguf --out x.gguf --model no/such/folder": "no model at 'no/such/folder': there is no such folder",
        "vllm": "give a METHOD or --run DIR, one of the two",
        "vllm lookup --run x": "give a METHOD or --run DIR, one of the two",
        "vllm --run no/such/run": "no/such/run holds no run",
        "vllm lookup --dict x": "--dict is for the methods dictionary, hybrid, auto, not 'lookup'",
        "llama.cpp lookup --model x": "what llama.cpp is given names no model; leave it out",
        "vllm --run x -md y": "leave out --draft-model, --dict and --num-draft-tokens",
        "vllm lookupp": "unknown method 'lookupp'",
        "vllm assistant": "method 'assistant' needs a draft model",
        "vllm lookup -md x": "a draft model is given, and method 'lookup' uses none",
        "vllm lookup --num-draft-tokens 0": "a draft has at least 1 token, not 0",
    },
}


@pytest.mark.parametrize(
    ("command", "wrong"), [(command, wrong) for command in MISTAKES for wrong in MISTAKES[command]]
)
def test_a_mistake_is_one_sentence(command: str, wrong: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = say(shlex.split(f"{command.format(model)} {wrong}"), capsys)
    assert (code, out, error.count("\n")) == (2, "", 1), error
    words = [word for word in command.split() if not word.startswith("-")]
    assert error.startswith(("paceline: error: ", f"paceline {words[0]}"))
    assert ": error: " in error
    assert MISTAKES[command][wrong] in error


def test_a_mistake_is_told_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown method" in say(["generate", "x", "--model", "nowhere", "--method", "nope"], capsys)[2]
    assert "top_p" in say(["generate", "x", "--model", "nowhere", "--top-p", "3"], capsys)[2]


def test_a_missing_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["generate", "x"], ["check"]):
        code, _, error = say([*command, "--model", "./no/such/folder"], capsys)
        assert code == 2
        assert "no model at './no/such/folder'" in error
        assert error.count("\n") == 1
    (tmp_path / "config.json").write_text("{}")
    code, _, error = say(["generate", "x", "--model", str(tmp_path)], capsys)
    assert code == 2
    assert "config.json" in error


def test_a_model_of_unknown_layers_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configuration("deepseek_v4", "small")
    assert config is not None
    config.save_pretrained(tmp_path)
    code, _, error = say(["generate", "x", "--model", str(tmp_path)], capsys)
    assert code == 2
    assert "which are not supported yet" in error
    assert error.count("\n") == 1


def test_a_prompt_that_is_not_utf8(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes("zażółć".encode("iso-8859-2"))
    code, _, error = say(["generate", "--prompt-file", str(file), "--model", model], capsys)
    assert code == 2
    assert "not UTF-8 text (byte 0xbf at offset 2)" in error
    code, _, error = say(["generate", "--prompt-file", str(tmp_path / "none.txt"), "--model", model], capsys)
    assert code == 2
    assert "none.txt" in error


def test_a_prompt_longer_than_the_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "short"
    families.save("llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16}))
    code, _, error = say(["generate", "x" * 40, "--model", str(folder)], capsys)
    assert code == 2
    assert "context holds 16" in error
    code, out, _ = say(["generate", "Hello", "--model", str(folder), "--ignore-eos", "--json"], capsys)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["finish"] == "context"


def test_shown_tokens_are_the_text_with_its_sources(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", "the rider, the rider", "--model", model, "--max-new-tokens", "40", "--temperature", "0.5"]
    common += ["--method", "lookup"]  # whose rounds are the same every time, whatever the clock says
    found = json.loads(say([*common, "--json", "--rounds"], capsys)[1].splitlines()[-1])
    shown = say([*common, "--show", "tokens"], capsys)[1]
    assert shown.startswith("the rider, the rider")
    told = {kind: int(count) for kind, count in re.findall(r"[×+·](corrected|bonus|plain) (\d+)", shown)}
    own = [r for r in found["rounds"] if r["emitted"] > r["accepted"]]
    assert "the model itself: " in shown
    assert told.get("plain", 0) == sum(not r["drafted"] for r in own)
    assert told.get("corrected", 0) == sum(bool(r["drafted"] and r["refused"]) for r in own)
    assert sum(told.values()) == sum(source == "" for source in found["sources"])
    finished = say([*common, "--show", "tokens", "--json"], capsys)[1]
    assert finished.splitlines()[0] == shown.splitlines()[0]
    assert json.loads(finished.splitlines()[-1])["tokens"] == found["tokens"]


def test_colors_are_for_terminals_and_for_who_asks(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["generate", "Hello", "--model", model, "--show", "tokens", "--max-new-tokens", "8"]
    monkeypatch.setenv("TERM", "xterm-256color")
    for variable in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    for flags, terminal, no_color, colored in (
        ((), False, "", False),
        ((), True, "", True),
        ((), True, "1", False),
        (("--color", "never"), True, "", False),
        (("--color", "always"), False, "1", True),
    ):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        assert ("\x1b[" in say([*common, *flags], capsys)[1]) == colored, (flags, terminal, no_color)


def test_a_page_is_written_whole_or_not_at_all(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.html"
    command = ["generate", "<b>Hello", "--model", model, "--samples", "2", "--temperature", "1", "--html", str(file)]
    assert say(command, capsys)[0] == 0
    written = file.read_text(encoding="utf8")
    assert written.count('<div class="text"') == 2
    assert "&lt;b&gt;Hello" in written
    assert "<b>Hello" not in written

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    code, _, error = say(command, capsys)
    assert code == 2
    assert error == f"paceline generate: error: cannot write {file}: No space left on device\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
    assert file.read_text(encoding="utf8") == written


def test_a_draft_model_brings_its_method(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", "Hello", "--model", model, "--temperature", "1", "--json", "--rounds", "--ignore-eos"]
    plain = json.loads(say([*common, "--method", "plain"], capsys)[1].splitlines()[-1])
    found = json.loads(say([*common, "-md", model], capsys)[1].splitlines()[-1])
    assert found["tokens"] == plain["tokens"]
    named = {part for source in found["sources"] for part in source.split("+")}
    assert {"", "assistant"} <= named <= {"", "assistant", "suffix", "foresight"}
    alone = json.loads(say([*common, "-md", model, "--method", "assistant"], capsys)[1].splitlines()[-1])
    assert alone["tokens"] == plain["tokens"]
    assert set(alone["sources"]) == {"", "assistant"}


def test_json_holds_the_run(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "Hello", "--model", model, "--ignore-eos", "--max-new-tokens", "40", "--logprobs", "2"]
    code, out, _ = say([*arguments, "--json", "--rounds", "--num-draft-tokens", "6"], capsys)
    found = json.loads(out.splitlines()[-1])
    assert code == 0
    short = json.loads(say([*arguments, "--json", "--num-draft-tokens", "6"], capsys)[1].splitlines()[-1])
    assert found.keys() - short.keys() == {"rounds", "sources"}, "what grows by the round is for those who ask"
    assert (short["tokens"], short["seed"]) == (found["tokens"], found["seed"])
    assert len(found["tokens"]) == len(found["sources"]) == len(found["logprobs"]) == found["totals"]["tokens"] == 40
    assert all(len(entry["top"]) == 2 for entry in found["logprobs"])
    assert sum(r["emitted"] for r in found["rounds"]) == 40
    assert sum(r["accepted"] for r in found["rounds"]) == sum(source != "" for source in found["sources"])
    assert max(r["drafted"] for r in found["rounds"]) <= 6
    assert found["fingerprint"]


def test_json_has_no_infinities(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"logprobs": [{"top": [(3, -math.inf), (4, -0.5)]}]})
    assert json.loads(capsys.readouterr().out) == {"logprobs": [{"top": [[3, None], [4, -0.5]]}]}


def test_json_says_what_wrote_it(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--seed", "5", "--temperature", "0.7", "--stop", "###", "--num-draft-tokens", "3", "--dtype", "float64"]
    out = say(["generate", "Hello", "--model", model, *flags, "--json", "--rounds"], capsys)[1]
    found = json.loads(out.splitlines()[-1])
    assert (found["model"], found["dtype"], found["device"]) == (model, "float64", "cpu")
    assert found["threads"] >= 1
    assert (found["seed"], found["temperature"], found["stop"]) == (5, 0.7, ["###"])
    assert (found["method"], found["rule"], found["planner"]) == ("auto", "coupled", "fixed:3")
    assert [len(r["sources"]) for r in found["rounds"]] == [r["emitted"] for r in found["rounds"]]
    assert [source for r in found["rounds"] for source in r["sources"]] == found["sources"]
    assert all("" not in r["sources"][:-1] for r in found["rounds"])
    flags += ["--json", "--rounds"]
    lookup = json.loads(say(["generate", "Hello", "--model", model, *flags, "--method", "lookup"], capsys)[1])
    assert lookup["tokens"] == found["tokens"]
    assert all(r["sources"][:-1] == ["lookup"] * (r["emitted"] - 1) for r in lookup["rounds"])
    several = json.loads(say(["generate", "Hello", "--model", model, *flags, "--samples", "2"], capsys)[1])
    assert several["fingerprint"] == found["fingerprint"]
    first, second = (sample["tokens"] for sample in several["samples"])
    assert first == found["tokens"] != second


def test_methods_are_listed_by_what_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(say(["methods", "--json"], capsys)[1].splitlines()[-1])["methods"]
    groups = {row["name"]: row["group"] for row in rows}
    assert groups["auto"] == "default"
    assert groups["plain"] == groups["lookup"] == "text"
    assert groups["unispec"] == "rows"
    assert groups["dictionary"] == groups["rest"] == "file"
    assert groups["assistant"] == groups["mirror"] == groups["streaming"] == "draft model"
    assert {row["name"] for row in rows if "model" in row["required"]} == {"assistant", "mirror"}
    text = " ".join(say(["methods"], capsys)[1].split())
    assert all(f" {row['name']} {row['summary']}" in text for row in rows)


def test_a_method_is_told_in_full_and_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    rows = {row["name"]: row for row in json.loads(say(["methods", "--json"], capsys)[1].splitlines()[-1])["methods"]}
    assert max(map(len, say(["methods"], capsys)[1].splitlines())) <= 80
    for name, row in rows.items():
        code, text, _ = say(["methods", name], capsys)
        assert code == 0
        assert max(map(len, text.splitlines())) <= 80
        whole = " ".join(text.split())
        assert all(" ".join(str(row[what]).split()) in whole for what in ("summary", "needs", "source", "unfit"))
        assert all(f"{option}=" in whole for option in row["options"])
    assert "counts draft_forwards, forwards of draft models; draft_tokens, " in " ".join(
        say(["methods", "assistant"], capsys)[1].split()
    )
    assert rows["lookup"]["presets"]["paper"] == {"room": 10}
    assert ":paper room=10" in " ".join(say(["methods", "lookup"], capsys)[1].split())
    assert "did you mean lookup?" in say(["methods", "lokup"], capsys)[2]


def test_each_part_of_a_spec_has_its_card(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cards = {name: say(["methods", name], capsys)[1] for name in ("lookup", "suffix")}
    assert say(["methods", "lookup:paper"], capsys)[1] == cards["lookup"]
    assert say(["methods", "lookup+suffix"], capsys)[1] == "\n".join(cards.values())
    assert say(["methods", "suffix,suffix:noise=none"], capsys)[1] == cards["suffix"]
    file = tmp_path / "echo.py"
    file.write_text("from paceline import Drafter\nclass Echo(Drafter):\n    summary = 'say it again'\n")
    assert say(["methods", f"{file}:Echo"], capsys)[1].startswith(f"{file}:Echo: say it again")
    assert say(["methods", f"{file}:Other"], capsys)[0] == 2


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse lays help out differently from Python 3.13 on")
def test_the_reference_is_what_help_says() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf8")
    assert written == reference(), "write it again: python -m paceline.cli.reference > docs/cli.md"


ONCE = ["generate", "Once upon a time", "--model", "pocket-draft", "-n", "24", "--method", "lookup"]
ONCE += ["--temperature", "0"]


def test_the_last_line_counts_tokens_rounds_and_what_each_brought(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands on standard error, so a pipe gets the text alone; the forward over the prompt is no round."""
    page = tmp_path / "a.html"
    code, out, error = say([*ONCE, "--json", "--rounds", "--html", str(page)], capsys)
    found = json.loads(out.splitlines()[-1])
    rounds = [one for one in found["rounds"] if not one["prefill"]]
    each = sum(one["emitted"] for one in rounds) / len(rounds)
    speed = found["totals"]["tokens_per_second"]
    assert code == 0
    speeds = f"({each:.1f} each), {speed:.1f} tokens/s on cpu"
    assert error == f"24 tokens, 23 of them in {len(rounds)} rounds {speeds}; page: {page}\n"
    assert say([*ONCE, "-n", "1"], capsys)[2] == "1 token, 0 rounds on cpu\n"
    assert say([*ONCE, "--quiet"], capsys) == (0, found["text"] + "\n", "")
    assert say([*ONCE, "--stop", "a"], capsys)[2].endswith("; stopped at a --stop string\n")


def test_verbose_tells_who_wrote_and_the_planners_choices(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = say([*ONCE, "--verbose", "--planner", "adaptive", "--json"], capsys)
    found = json.loads(out.splitlines()[-1])
    said = error.splitlines()
    assert code == 0
    assert said[0].startswith(f"pocket-draft, float32, weights {found['fingerprint']}, on cpu, ")
    assert said[1].startswith("method lookup, planner adaptive, rule coupled; ")
    assert said[2].startswith("seconds: the prompt ")
    assert said[3:-1] == found["explain"] != []
    assert "explain" not in json.loads(say([*ONCE, "--json"], capsys)[1])
    assert "not allowed with" in say([*ONCE, "--verbose", "--quiet"], capsys)[2]


# --- what was not asked for ---------------------------------------------------------------------------------


@pytest.fixture
def instructed(tmp_path: Path) -> str:
    """The folder of a tiny model with settings of generation and a chat template."""
    families.save("llama", tmp_path)
    settings = tmp_path / "generation_config.json"
    own = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 0, "suppress_tokens": [3, 4]}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | own))
    thinking = "{% if enable_thinking is defined and not enable_thinking %}<no thoughts>{% endif %}"
    template = "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}{% endfor %}" + thinking
    (tmp_path / "chat_template.jinja").write_text(template)
    return str(tmp_path)


def test_settings_of_the_model_and_a_new_seed_are_named(instructed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With them the text can be written again."""
    common = ["generate", "Hello", "--model", instructed, "--chat", "--ignore-eos"]
    short = [*common, "-n", "5"]
    own = "the model's temperature 0.6, top p 0.9, banned 2 entries"
    assert say(short, capsys)[2].endswith(f" tokens/s on cpu; {own}; seed 0\n")
    assert say([*short, "--seed", "3"], capsys)[2].endswith(f" tokens/s on cpu; {own}\n")
    assert say([*short, "--temperature", "0"], capsys)[2].endswith(" tokens/s on cpu; the model's banned 2 entries\n")
    given = [*short, "--temperature", "0.6", "--top-p", "0.9"]
    assert say(given, capsys)[2].endswith(" tokens/s on cpu; the model's banned 2 entries; seed 0\n")
    assert say(given, capsys)[1] == say(short, capsys)[1]
    found = json.loads(say([*short, "--json"], capsys)[1])
    assert (found["seed"], found["temperature"], found["top_k"]) == (0, 0.6, 0)
    assert found["from_model"] == {"temperature": 0.6, "top_p": 0.9, "banned": [[3], [4]]}
    assert json.loads(say([*short, "--json", "--temperature", "0"], capsys)[1])["from_model"] == {"banned": [[3], [4]]}


@pytest.mark.slow
def test_a_text_that_is_cut_without_a_limit_asked_for_says_so(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = shutil.copytree(model, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 300}))
    common = ["generate", "Hello", "--model", str(short), "--ignore-eos"]
    assert say(common, capsys)[2].endswith("; cut at 128 tokens, -n N allows more\n")
    assert "cut at" not in say([*common, "-n", "128"], capsys)[2]
    for flags in (["-n", "-1"], ["--chat"]):
        assert say([*common, *flags], capsys)[2].endswith("; the model's context is full\n"), flags
    assert "max_new_tokens must be at least 1, not -2" in say([*common, "-n", "-2"], capsys)[2]


def test_a_model_for_chats_gets_a_note(instructed: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", "--model", instructed, "-n", "2", "Hello"]
    code, out, error = say([*common, "--json"], capsys)
    told = f"paceline: note: {instructed} has a chat template, and this prompt is continued as it stands; "
    assert (code, out.count("\n"), error.count(told)) == (0, 1, 1)
    assert json.loads(out)["prompt_tokens"] > 0
    for silent in ([*common, "--chat"], [*common, "--quiet"], [*common[:-1], "<|endoftext|>user: Hello"]):
        assert "chat template" not in say(silent, capsys)[2], silent


def test_variables_reach_the_chat_template(instructed: str, capsys: pytest.CaptureFixture[str]) -> None:
    lm = paceline.load(instructed)
    off = {"enable_thinking": False}
    flag = ["--chat-template-kwargs", json.dumps(off)]
    common = ["generate", "Hello", "--model", instructed, "-n", "4", "--seed", "1"]
    plain, told = (json.loads(say([*common, "--chat", "--json", *flags], capsys)[1]) for flags in ([], flag))
    assert told["prompt_tokens"] - plain["prompt_tokens"] == len(lm.vocabulary.encode("<no thoughts>", False))
    how: dict[str, Any] = {"chat_template_kwargs": off, "max_new_tokens": 4, "seed": 1}
    assert lm.chat("Hello", **how).tokens == lm.conversation(**how).say("Hello").tokens == told["tokens"]
    assert "--chat-template-kwargs needs --chat" in say([*common, *flag], capsys)[2]
    for wrong in ("{", "5", "[1]", '{"a": NaN', "[" * 100_000):
        code, _, error = say([*common, "--chat", "--chat-template-kwargs", wrong], capsys)
        assert (code, error.count("\n"), len(error) < 300) == (2, 1, True)
        assert 'is a JSON object such as {"enable_thinking": false}' in error
    with pytest.raises(ValueError, match="cannot set add_generation_prompt, which follows from the messages"):
        lm.chat("Hello", chat_template_kwargs={"add_generation_prompt": False})
    with pytest.raises(ValueError, match="for a chat template, and this model has none; leave them out"):
        paceline.load("pocket-draft").chat("Hello", chat_template_kwargs=off)
