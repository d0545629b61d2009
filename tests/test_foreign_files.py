"""Untrusted and damaged files: refused in one sentence that names file and field, before they take time or memory."""

import argparse
import io
import json
import math
import os
import pwd
import random
import re
import resource
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Required, TypedDict

import pytest

import families
from paceline.cli import parser
from paceline.cli.options import MOST
from paceline.drafters.networks.heads import KINDS
from paceline.files import reading
from paceline.files.reading import read_file, read_pipe
from paceline.files.shape import Count, shaped
from paceline.planning.specs import LARGEST_DRAFT
from paceline.targets.replay import open_vocabulary
from paceline_lab.bench.run.directory import RECORDS
from paceline_lab.commands.export import ENGINES
from runs import made_run
from test_cli import say
from thinning import thinned

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2.5, 10**7, 2**63, 10**400, 1e308, 5e-324, math.nan, math.inf, -math.inf),
    *("", "x", "1", "\ud800", [], [None], [[[1]]], {}, {"a": 1}),
)
RAW = (b"", b"\x00\xff\xfe", b"{}", b"null", b"[" * 100_000 + b"]" * 100_000, b"9" * 10_000, b"\xef\xbb\xbf{}")


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values stand within a value; of long lists the first few."""
    yield here
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for name, one in inner:
        yield from places(one, (*here, name))


def mangled(text: bytes, dice: random.Random) -> bytes:
    """JSON, or one line of JSON lines, with a value that is missing or another; or other bytes altogether."""
    if dice.random() < 0.15:
        cut = dice.randrange(len(text))
        return dice.choice([*RAW, text[:cut], text[:cut] + b"\xff" + text[cut:], text + text])
    whole = len(text.splitlines()) > 1 and text.startswith(b"{\n")
    lines = [text] if whole else text.splitlines()
    number = dice.randrange(len(lines))
    data = {"": json.loads(lines[number])}
    *way, last = ("", *dice.choice(list(places(data[""]))))
    inside: Any = data
    for name in way:
        inside = inside[name]
    if way and dice.random() < 0.2:
        del inside[last]
    else:
        inside[last] = dice.choice(VALUES)
    sys.set_int_max_str_digits(0)
    lines[number] = json.dumps(data[""]).encode()
    sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)
    return b"\n".join(lines) + b"\n"


# --- runs


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", thinned(["run.json", "records.jsonl", "prompts.jsonl"]))
def test_a_damaged_run_is_refused_by_its_name_or_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(made_run(tmp_path / "run", tasks=("qa",), languages=("en",), prompts=1, tokens=24, repeats=1).path)
    file = tmp_path / "run" / name
    whole, dice, refused = file.read_bytes(), random.Random(name), 0
    for _ in range(20):
        file.write_bytes(mangled(whole, dice))
        for command in (["compare", run, "--oracle"], ["report", run, "--texts", "1", "--out", str(tmp_path / "out")]):
            code, _, error = say(["bench", *command], capsys)
            assert code in (0, 2)
            assert code == 0 or (run in error and error.count("\n") == 1), error
            refused += code == 2
    assert refused > 12
    file.unlink()
    file.mkdir()
    code, _, error = say(["bench", "compare", run], capsys)
    assert (code, error.count("\n")) == (2, 1)
    assert f"{file} cannot be read: Is a directory; make the run again under another --out" in error


@pytest.mark.slow
def test_what_a_run_advises_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "t.jsonl"
    rows = ({"prompt": f"{n} went down to the river", "text": " and saw a boat" * 4} for n in range(2))
    text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["bench", "run", "--suite", f"replay:{text}", "--method", "plain", "lookup", "--energy", "none"]
    command += ["--out", str(tmp_path / "run")]
    assert say(command, capsys)[0] == 0
    file = tmp_path / "run" / RECORDS
    lines = file.read_text().splitlines(keepends=True)
    for number, damage in ((1, {"entry": "x"}), (3, {"tokens": [-1]})):
        damaged = json.dumps(json.loads(lines[number]) | damage) + "\n"
        file.write_text("".join([*lines[:number], damaged, *lines[number + 1 :]]))
        code, _, error = say(command, capsys)
        assert (code, "cut the file off before" in error) == (2, True), error
        cut = int(error.partition(" line ")[2].split()[0].strip(",;")) - 1
        file.write_text("".join(lines[:cut]))
        assert say(command, capsys)[0] == 0
        assert len(file.read_text().splitlines()) == len(lines)


# --- shapes


class Pair(NamedTuple):
    one: int
    two: float


class Open(TypedDict, total=False):
    name: Required[str]
    size: Count | None


@dataclass(frozen=True)
class Shape:
    number: Count
    pairs: tuple[Pair, ...] = ()
    open: Annotated[dict[str, Any], Open] | None = None
    table: dict[int, list[float]] | None = None


def test_what_fits_becomes_what_is_declared() -> None:
    row = {"number": 3, "pairs": [[1, 2]], "open": {"name": "x", "more": [{"deep": None}]}, "table": {"5": [1, 2.5]}}
    assert shaped(Shape, row) == Shape(3, (Pair(1, 2),), row["open"], {5: [1, 2.5]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([], "it is [] and no object"),
        ({}, "it lacks 'number'"),
        ({"number": 1, "other": 1}, "nothing is called 'other'"),
        ({"number": -1}, "'number' is -1"),
        ({"number": 10**400}, "'number' is a number of 1329 bits"),
        ({"number": 1, "pairs": [[1, 2], [1]]}, "'pairs[1]' is [1]"),
        ({"number": 1, "pairs": [[1, math.nan]]}, "'pairs[0][1]' is nan"),
        ({"number": 1, "open": {}}, "it lacks 'open.name'"),
        ({"number": 1, "open": {"name": "x", "size": "1"}}, "'open.size' is '1'"),
        ({"number": 1, "open": {"name": "x", "y": math.inf}}, "'open.y' is inf"),
        ({"number": 1, "open": {"name": "\ud800"}}, "'open.name' has half of a surrogate pair"),
        ({"number": 1, "table": {"a": []}}, "'table' has the name 'a', which is no number"),
        ({"number": 1, "table": {"1": [0, math.nan, 1]}}, "'table.1[1]' is nan"),
        ({"number": 1, "table": {"1": [0, 1e300]}}, "'table.1[1]' is 1e+300"),
    ],
)
def test_what_does_not_fit_is_named(row: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        shaped(Shape, row)


# --- files without end


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


READERS = {
    "prompt": ["generate", "--prompt-file", "{}"],
    "suite": ["bench", "suite", "prompts:{}"],
    "text": ["datastore", "build", "--text", "{}", "--out", "x.rest"],
    "corpus": ["dict", "build", "--text", "{}", "--out", "x.dict"],
    "dictionary": ["dict", "info", "{}"],
    "dictionary of a method": ["generate", "x", "--method", "dictionary:file={}"],
    "datastore": ["datastore", "info", "{}"],
    "datastore of a method": ["generate", "x", "--method", "rest:corpus={}"],
    "memory": ["generate", "x", "--method", "suffix:remember=100,memory={}"],
}


@pytest.mark.parametrize("file", ["/dev/zero", "fifo"])
@pytest.mark.parametrize("arguments", READERS.values(), ids=READERS.keys())
def test_no_reader_waits_for_an_end_that_never_comes(
    arguments: list[str],
    file: str,
    fifo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reading, "WAIT", 0.1)
    name = file if file == "/dev/zero" else str(fifo)
    code, _, error = say([word.replace("{}", name) for word in arguments], capsys)
    assert code == 2
    assert name in error
    assert "Traceback" not in error


def test_a_pipe_with_a_writer_is_a_prompt_and_is_bounded(fifo: Path) -> None:
    for size in (5, 1_000_000):
        writer = threading.Thread(target=fifo.write_bytes, args=(b"x" * size,))
        writer.start()
        assert read_pipe(fifo, 1_000_000) == b"x" * size
        writer.join()
    large = fifo.with_name("large")
    with large.open("wb") as file:
        file.truncate(1 << 33)
    for read in (read_file, read_pipe):
        with pytest.raises(OSError, match="at most 1000 bytes of such a file are read"):
            read(large, 1000)


def test_a_prompt_from_standard_input_by_either_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.cli import options

    for how in (("-", None), (None, Path("-"))):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once")))
        assert options.read_prompt(*how) == "Once"
    monkeypatch.setattr(options, "PROMPT_BYTES", 3)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once")))
    with pytest.raises(ValueError, match="cannot read standard input: it goes on"):
        options.read_prompt("-", None)


# --- prompts and counts without measure


def test_a_prompt_far_too_long_takes_no_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Peak memory, which a process only ever raises: so the prompt is large."""
    (tmp_path / "long").write_text("\u0416" * 8_000_000)
    families.save("llama", tmp_path / "model")
    common = ["generate", "--max-new-tokens", "1", "--model", str(tmp_path / "model")]
    assert say([*common, "x"], capsys)[0] == 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, _, error = say([*common, "--prompt-file", str(tmp_path / "long")], capsys)
    assert code == 2
    assert "bytes, tokens have at most" in error
    assert "the model's context holds" in error
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB; it was 4 GB


def test_what_may_fit_is_encoded_and_what_cannot_is_not() -> None:
    vocabulary, words = open_vocabulary("pocket"), "the old man went down to the river. "
    for text, limit in ((words * 10, 1), (words * 20_000, 200_000)):
        vocabulary.refuse_beyond(text, limit)
    with pytest.raises(ValueError, match=r"first 65536 characters of the prompt are about \d+ tokens, .* holds 4096"):
        vocabulary.refuse_beyond(words * 20_000, 4096)
    with pytest.raises(ValueError, match=r"has 36000000 bytes, tokens have at most \d+ bytes, .* holds 4096"):
        vocabulary.refuse_beyond(words * 1_000_000, 4096)


def numbers(of: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.Action]]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from numbers(inner, f"{name} {word}".strip())
        elif action.type is int:
            yield name, action


NEEDS = {"datastore build": ["--text", "x", "--out", "x"], "dict build": ["--text", "x", "--out", "x"]}
NEEDS |= {"dict emulate": ["--text", "x"], "dict lookup": ["x"], "bench report": ["x", "--out", "x"]}
NEEDS |= {f"train {kind}": ["--data", "x", "--out", "x"] for kind in KINDS} | {
    "train segments": ["--data", "x", "--out", "x"],
    "train info": ["x"],
}
NEEDS |= {"serve": ["--model", "x"], "bench load": ["a=http://x"]}
NEEDS |= {f"export {engine}": ["lookup"] for engine in ENGINES} | {"export mlx": ["--out", "x"]}
NEEDS |= {"generate": ["x"], "bench quality": ["x"]}


def test_no_count_asks_for_work_without_end(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(numbers(parser()))
    assert len(found) > 40
    for command, action in found:
        assert action.dest in MOST, f"{action.dest} of {command} has no bound"
        flag = next(flag for flag in action.option_strings if flag.startswith("--"))
        code, _, error = say([*command.split(), *NEEDS.get(command, []), flag, str(10**30)], capsys)
        assert (code, error.count("\n")) == (2, 1), error
        assert f"must be at most {MOST[action.dest]}, not {10**30}" in error, error
    assert MOST["num_draft_tokens"] == LARGEST_DRAFT
    code, _, error = say(["generate", "x", "--planner", f"fixed:{LARGEST_DRAFT + 1}"], capsys)
    assert (code, f"at most {LARGEST_DRAFT} tokens" in error) == (2, True)


# --- users without a home


def test_a_user_without_a_home_writes_without_a_cache(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(_: int) -> Any:
        raise KeyError("no such user")

    for name in ("HOME", "XDG_CACHE_HOME", "PACELINE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    code, out, error = say(["generate", "Once", "--max-new-tokens", "2", "--method", "auto"], capsys)
    assert (code, error.count("\n")) == (0, 1), "the last line and no warning"
    assert out.strip()
    code, _, error = say(["calibrate", "--method", "lookup", "--seconds", "1"], capsys)
    assert code == 2
    assert "this user has no home folder to keep profiles in; name a folder with $PACELINE_CACHE" in error
    monkeypatch.setenv("PACELINE_CACHE", "~nobody-of-that-name/x")
    code, _, error = say(["generate", "Once", "--max-new-tokens", "2"], capsys)
    assert (code, error.count("\n")) == (2, 1)
    assert "$PACELINE_CACHE is ~nobody-of-that-name/x, and there is no such user here" in error
