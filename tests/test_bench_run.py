"""`paceline bench run`, as it is typed."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import InputError
from paceline_lab.bench.run.directory import ABOUT, RECORDS, read
from paceline_lab.bench.run.record import Record, TextVerdict
from paceline_lab.bench.summary import Summary
from paceline_lab.commands.bench import run as bench_run
from paceline_lab.commands.bench.run import _listed
from runs import made_run
from test_cli import say

TEXTS = ("The old house stood at", "Stary dom stał na", "Старий дім стояв", "In the morning the")


@pytest.fixture
def suite(tmp_path: Path) -> str:
    file = tmp_path / "texts.jsonl"
    rows = [{"key": f"t{n}", "prompt": text, "task": "tale", "chat": False} for n, text in enumerate(TEXTS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
    return f"prompts:{file}"


def bench(suite: str, out: Path, *more: str) -> list[str]:
    return ["bench", "run", "--suite", suite, "--out", str(out), "--max-new-tokens", "12", "--energy", "none", *more]


FLOAT32 = ("--dtype", "float32")
PEERS = "transformers,transformers-lookup,transformers-assisted"


def test_methods_and_other_libraries_write_a_suite(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    code, said, _ = say(
        bench(suite, out, *FLOAT32, "--temperature", "0", "--planner", "fixed:3", "--peer", PEERS, "--json"), capsys
    )
    assert code == 0
    found = json.loads(said.splitlines()[-1])
    names = ["plain", "lookup", "assistant", "auto", *PEERS.split(",")]
    assert found["entries"] == names
    assert all(name in said for name in names)
    run = read(out)
    assert run.about.finished
    assert len(run.records) == len(names) * len(TEXTS)
    assert {r.verdict for r in run.records} <= {TextVerdict.REFERENCE, TextVerdict.EQUAL, TextVerdict.NEAR_TIE}
    assert run.about.model["fingerprint"] == "af264834c029fb0a"
    assert run.about.recipe["follow"] is False
    assert run.about.entries[2]["draft_fingerprint"] == "204b0feb0cf6295c"
    assert {"torch", "transformers", "paceline"} <= set(run.about.sittings[0]["versions"])
    assert run.about.sittings[0]["threads"] == torch.get_num_threads()
    drafted = {name: [r.rounds for r in run.records if r.entry == name] for name in names[1:4]}
    for name, texts in drafted.items():
        accepted, proposed = (sum(sum(one[column]) for one in texts if one) for column in ("accepted", "drafted"))
        (row,) = (line for line in said.splitlines() if line.startswith(f"{name} ") and " equal" in line)
        assert f" {accepted / proposed:.1%} " in row
    for record in run.records:
        assert record.text == "".join(record.pieces)
        assert record.peak_bytes is None or record.peak_bytes > 50e6


@pytest.mark.slow
def test_in_half_precision_all_walk_one_text_unless_they_are_let_go(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, follow in (((), True), (("--free",), False)):
        out = tmp_path / f"run{follow}"
        code, _, err = say(
            bench(suite, out, "--dtype", "bfloat16", "--limit", "1", "--method", "plain,lookup", *flags), capsys
        )
        assert code == 0, err
        run = read(out)
        assert run.about.recipe["follow"] is follow
        assert run.about.recipe["temperature"] == 0.8
        if follow:
            texts = {tuple(record.tokens) for record in run.records}
            assert len(texts) == 1
            assert {r.verdict for r in run.records if r.entry != "plain"} == {TextVerdict.FOLLOWED}


KILLED = """
import os, signal, sys
from pathlib import Path
from paceline.cli import main

records, fsync = Path(sys.argv[1]), os.fsync

def synced(file):
    fsync(file)
    if records.exists() and records.read_bytes().count(b"\\n") >= 5:
        os.kill(os.getpid(), signal.SIGKILL)

os.fsync = synced
main(sys.argv[2:])
"""


def test_a_killed_run_goes_on_with_the_same_command(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    repeats = 2
    command = bench(suite, out, *FLOAT32, "--method", "plain,lookup", "--repeat", str(repeats))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(out / RECORDS), *command], stdout=subprocess.DEVNULL)
    assert killed.returncode == -signal.SIGKILL
    before = read(out)
    assert not before.about.finished
    code, said, _ = say(command, capsys)
    assert code == 0
    after = read(out)
    assert after.about.finished
    assert len(after.records) == 2 * len(TEXTS) * repeats
    assert len({(r.entry, r.pair) for r in after.records}) == len(after.records)
    whole = len(before.records) // 2 * 2
    assert [r.seconds for r in after.records[:whole]] == [r.seconds for r in before.records[:whole]]
    assert len(after.about.sittings) == 2
    assert "texts are kept in" in said


def test_a_finished_run_is_told_again_and_not_written_again(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = bench(suite, tmp_path / "run", *FLOAT32, "--method", "plain,lookup", "--limit", "1")
    first = say(command, capsys)
    before = (tmp_path / "run" / RECORDS).read_bytes()
    code, said, _ = say(command, capsys)
    assert code == first[0] == 0
    assert "was finished before" in said
    assert (tmp_path / "run" / RECORDS).read_bytes() == before


def test_a_text_that_must_not_differ_and_does_ends_with_1(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline_lab.bench.run.ours import Ours

    honest = Ours.write

    def lying(self: Ours, *arguments: Any) -> Any:
        written = honest(self, *arguments)
        if self.name == "lookup":
            written.tokens[3] = (written.tokens[3] + 1) % 8192
        return written

    monkeypatch.setattr(Ours, "write", lying)
    out = tmp_path / "run"
    code, said, _ = say(bench(suite, out, *FLOAT32, "--method", "plain,lookup", "--limit", "1"), capsys)
    assert code == 1
    assert "bug" in said
    assert {r.parts_at for r in read(out).records if r.entry == "lookup"} == {3}


def test_a_text_is_replayed_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"key": "long", "prompt": "la la la", "text": " la" * 200},
        {"key": "short", "prompt": "do do do", "text": " do" * 9},
    ]
    (tmp_path / "song.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "run"
    code, said, err = say(
        [
            "bench",
            "run",
            "--suite",
            f"replay:{tmp_path / 'song.jsonl'}",
            "--method",
            "plain,lookup",
            "--out",
            str(out),
        ],
        capsys,
    )
    assert code == 0, err
    assert [line.split() for line in said.splitlines() if line.startswith("plain")] == [
        ["plain", "1.00", "0.00", "2", "reference"]
    ], "tokens per round are told, and no times"
    run = read(out)
    for row, (plain, lookup) in zip(rows, pairwise_of(run.records), strict=True):
        assert plain.text == row["text"] == lookup.text
        assert plain.forwards == len(plain.tokens)
        assert lookup.forwards is not None
        assert lookup.forwards < len(plain.tokens)
        assert plain.speed is lookup.speed is None
    cut = ["--max-new-tokens", "12", "--out", str(tmp_path / "cut")]
    assert (
        say(["bench", "run", "--suite", f"replay:{tmp_path / 'song.jsonl'}", "--method", "plain", *cut], capsys)[0] == 0
    )
    long, short = read(tmp_path / "cut").records
    assert (len(long.tokens), short.text) == (12, rows[1]["text"])


def test_a_replay_that_would_count_another_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A target that says several texts goes on with the first that begins as the prompt does."""

    def replayed(*texts: str, flags: Sequence[str] = ()) -> tuple[int, str]:
        prompt = "Once upon a time"
        rows = [{"key": f"t{n}", "prompt": prompt, "text": text} for n, text in enumerate(texts)]
        (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = ["bench", "run", "--suite", f"replay:{tmp_path / 'texts.jsonl'}", "--method", "plain", *flags]
        code, _, err = say([*command, "--energy", "none", "--out", str(tmp_path / f"run{len(texts)}")], capsys)
        return code, err

    code, err = replayed(" there was a cat", " there was a king")
    assert code == 2
    assert "'t0' and 't1' begin alike" in err
    assert replayed(" there was a cat", " there was a cat", " there was a cat")[0] == 0
    code, err = replayed(" there was a cat", flags=["--qps", "3"])
    assert (code, "leave out --qps" in err) == (2, True)


def test_another_library_that_fails_without_a_word_is_named(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline_lab.bench.peers.transformers import Transformers

    def fail(*_: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(Transformers, "write", fail)
    flags = ("--method", "plain", "--peer", "transformers", "--limit", "1")
    assert say(bench(suite, tmp_path / "run", *FLOAT32, *flags), capsys)[0] == 0
    assert read(tmp_path / "run").about.missing == {"transformers": "it fails on this model: NotImplementedError"}


def test_the_table_of_several_tasks_has_their_mean(tmp_path: Path) -> None:
    for tasks, there in ((("mt_bench", "qa"), True), (("qa",), False)):
        summary = Summary(made_run(tmp_path / f"run{there}", tasks=tasks))
        table = "\n".join(bench_run._lines(summary, []))
        assert (bench_run.MEAN in table) is there
        mean = summary.means("lookup").speed_up
        assert mean is not None
        lookup = next(line for line in table.splitlines() if line.startswith("lookup"))
        assert lookup.count("[") == 2 + there
        assert (f" {mean.value:.2f} [" in lookup) is True


def pairwise_of(records: list[Record]) -> list[tuple[Record, Record]]:
    """The two texts of each prompt, plain decoding's first."""
    by_unit = sorted(records, key=lambda record: (record.unit, record.entry != "plain"))
    return list(zip(by_unit[::2], by_unit[1::2], strict=True))


MISTAKES: list[tuple[list[str], str]] = [
    (["--suite", "prompts:nowhere.jsonl"], "nowhere.jsonl"),
    (["--suite", "spec-bunch"], "spec-bunch"),
    (["--method", "plain,nope"], "unknown method 'nope'"),
    (["--peer", "transformer"], "unknown peer 'transformer'"),
    (["--limit", "0"], "--limit must be at least 1, not 0"),
    (["--batch", "0"], "--batch must be at least 1, not 0"),
    (["--qps", "-1"], "--qps must be more than 0 and finite, not -1"),
    (["--watts", "inf"], "--watts must be more than 0 and finite, not inf"),
    (["--threads", "100000"], "--threads must be at most"),
    (["--method", "assistant:model="], "cannot read 'model=' in method 'assistant'"),
    (["--rule", "kind"], "unknown rule 'kind'"),
    (["--rule", "rejection", "--temperature", "1", "--follow"], "cannot be followed"),
    (["--energy", "solar"], "solar"),
    (["--temperature", "-1"], "temperature is -1.0"),
    (["--tasks", "singing"], "singing"),
    (["--langs", "xx"], "xx"),
    (["--max-new-tokens", "4096"], "--max-new-tokens 4096 leaves no room for a prompt"),
]


@pytest.mark.parametrize(
    ("flags", "said"), MISTAKES, ids=lambda given: " ".join(given) if isinstance(given, list) else ""
)
def test_a_mistake_is_told_in_a_sentence_and_nothing_is_written(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    out = tmp_path / "run"
    given = [] if "--energy" in flags else ["--energy", "none"]
    code, _, err = say(["bench", "run", "--suite", suite, *given, "--out", str(out), *flags], capsys)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_what_can_be_told_without_a_model_waits_for_none(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> None:
        raise AssertionError("a model was loaded for a run that cannot be")

    monkeypatch.setattr(bench_run, "load_model", load)
    (tmp_path / "letter").write_text("Dear")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("Dear")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / ABOUT).write_text('{"format": 7}')
    for name, flags, why in (
        ("letter", (), "is there and is no run"),
        ("full", (), "is there and is no run"),
        ("old", (), "format 7"),
        ("new", ("--method", "plain,nope"), "unknown method 'nope'"),
        ("new", ("--peer", "nobody"), "unknown peer 'nobody'"),
    ):
        code, _, err = say(bench(suite, tmp_path / name, *flags), capsys)
        assert (code, err.count("\n")) == (2, 1)
        assert why in err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_terminal_is_told_whose_turn_it_is(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []

    @contextmanager
    def progress(_: str) -> Iterator[Any]:
        yield lambda *step: told.append(step)

    monkeypatch.setattr(bench_run, "progress", progress)
    flags = ("--method", "plain,lookup", "--limit", "2")
    for more, prompts in (((), 2), (("--qps", "1000"), 1)):
        told.clear()
        out = tmp_path / f"run{prompts}"
        assert say(bench(suite, out, *FLOAT32, *flags, *more), capsys)[0] == 0
        turns = [step for step in told if step[0].startswith("tale/und, ")]
        assert [(number, count) for _, number, count in turns] == [(n, 2 * prompts) for n in range(2 * prompts)]
        assert Counter(doing for doing, _, _ in turns) == {f"tale/und, {who}": prompts for who in ("plain", "lookup")}


def test_who_cannot_take_part_is_named(suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    flags = ("--method", "plain", "--peer", "transformers", "--batch", "2", "--limit", "1")
    code, said, error = say(bench(suite, out, *FLOAT32, *flags), capsys)
    assert code == 0
    assert "one text at a time" in read(out).about.missing["transformers"]
    assert error.count("transformers is missing, and the run goes on without it") == 1
    assert "transformers" in said


@pytest.mark.parametrize(
    ("peer", "python", "why"),
    [
        ("mlx-lm", None, "mlx-lm is not installed; 'pip install mlx-lm'"),
        ("llama-cpp:type=Q8_0", None, "is not installed; 'pip install llama-cpp-python gguf'"),
        ("openvino-lookup", None, "openvino-genai is not installed; 'pip install openvino-genai'"),
        ("vllm", None, "vLLM has a separate environment; name its Python"),
        ("vllm-ngram", "no/python", "vLLM's Python no/python does not start: No such file or directory"),
        (f"vllm:python={sys.executable}", None, "vLLM is not installed in the environment of "),
    ],
)
def test_a_peer_that_is_not_installed_is_said_before_a_model_is_loaded(
    peer: str, python: str | None, why: str, suite: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("mlx_lm", "llama_cpp", "openvino_genai"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delenv("PACELINE_VLLM", raising=False)
    if python is not None:
        monkeypatch.setenv("PACELINE_VLLM", python)
    said_before = list[str]()

    def load(*_: Any) -> Any:
        said_before.append(capsys.readouterr().err)
        raise InputError("this test loads nothing")

    monkeypatch.setattr(bench_run, "load_model", load)
    flags = ("--method", "plain", "--peer", peer, "--limit", "1")
    assert say(bench(suite, tmp_path / "run", *flags), capsys)[0] == 2
    (line,) = said_before[0].splitlines()
    assert line.startswith(f"{peer} is missing, and the run goes on without it: ")
    assert why in line


def test_a_peer_that_fails_on_this_model_is_said_before_the_run(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline_lab.bench.peers.transformers import Transformers
    from paceline_lab.bench.run.protocol import Referee

    def fail(*_: Any) -> None:
        raise NotImplementedError

    said = list[str]()
    monkeypatch.setattr(Transformers, "write", fail)
    monkeypatch.setattr(Referee, "sit", lambda _: said.append(capsys.readouterr().err))
    flags = ("--method", "plain", "--peer", "transformers", "--limit", "1")
    say(bench(suite, tmp_path / "run", *FLOAT32, *flags), capsys)
    assert "transformers is missing, and the run goes on without it: it fails on this model" in said[0]


def test_a_list_with_commas_or_several_arguments() -> None:
    assert _listed(["plain,lookup,assistant"]) == ["plain", "lookup", "assistant"]
    assert _listed(["plain, assistant:beams=3,noise=none,lookup"]) == [
        "plain",
        "assistant:beams=3,noise=none",
        "lookup",
    ]
    assert _listed(["plain", "lookup:min_ngram=3,lookup"]) == ["plain", "lookup:min_ngram=3,lookup"]
    assert _listed([]) == []
    assert _listed(["lookup,lookup"]) == ["lookup"]
