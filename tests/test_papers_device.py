"""One script for one device: parts in processes of their own, limits, a file that is gone on with, and tables."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from clock import comes_true
from families import build
from paceline.cli import main
from paceline.targets.hf import probe
from paceline.targets.hf.target import HFTarget
from paceline_lab.bench.loading import _timed_probe
from paceline_lab.check import Checker
from papers.device import __main__ as device
from papers.device import rounds
from papers.device.findings import KEY, Finding, findings_of
from papers.device.parts import KINDS, SMALL, Sizes, parts_of, read_tests, specs
from papers.device.running import DONE, FAILED, NOT_RUN, OVER, Kept, Part, Record, run_all
from papers.device.tables import notes, tables
from papers.driver import run

ROOT = Path(__file__).resolve().parent.parent
SAY = "import json; print('warned'); print(json.dumps({'what': 'one', 'n': 1}), flush=True); "
WAIT = "import time; time.sleep(60)"
ABOUT = dict.fromkeys(("card", "torch", "transformers", "python", "commit", "date"), "x")


def in_words(found: Sequence[Finding]) -> str:
    return " ".join(str(one[KEY]) for one in found)


def part(name: str, program: str, **how: Any) -> Part:
    return Part(name, ["-c", program], in_words, **how)


def ran(parts: Sequence[Part], file: Path, seconds: float = 60, **how: Any) -> tuple[dict[str, Kept], list[str]]:
    said = list[str]()
    run_all(parts, Record(file), seconds, say=said.append, **{"about": ABOUT, **how})
    return Record(file).parts, said


# --- how parts are run


def test_what_a_part_finds_is_kept_and_not_made_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    once = part("a", f"{SAY} open({str(mark)!r}, 'a').write('x')")
    others = [part("b", "raise SystemExit('too hot')"), part("c", "", obstacle="it needs a GPU")]
    first, said = ran([once, *others], tmp_path / "deep" / "kept.json")
    assert [(one.state, one.why) for one in first.values()] == [
        (DONE, ""),
        (FAILED, "exit code 1: too hot"),
        (NOT_RUN, "it needs a GPU"),
    ]
    assert first["a"].findings == [{KEY: "one", "n": 1}]
    assert first["a"].printed == ["warned"]
    assert first["a"].about == ABOUT
    assert [line.partition(":")[0] for line in said] == ["a", "b", "c"]
    second, said = ran([once, *others], tmp_path / "deep" / "kept.json")
    assert mark.read_text() == "x"
    assert said[0] == "a: kept, one"
    assert second["a"] == first["a"]
    ran([once], tmp_path / "deep" / "kept.json", again=True)
    assert mark.read_text() == "xx"
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["kept.json"]


def test_a_part_over_its_limit_keeps_what_it_found_and_goes_on_from_there(tmp_path: Path) -> None:
    slow = part("a", f"{SAY} {WAIT}", continues=True, seconds=1)
    found, said = ran([slow, part("b", SAY, seconds=19)], tmp_path / "kept.json", seconds=60)
    assert found["a"].state == OVER
    assert found["a"].why == "3 s"
    assert 2.5 < found["a"].seconds < 10
    assert [one[KEY] for one in found["a"].findings] == ["one"]
    assert "KeyboardInterrupt" in found["a"].printed[-1], "it is interrupted before it is killed"
    assert found["b"].state == DONE, "the others have their share"
    assert "over its limit: 3 s; one" in said[0]
    rest = part("a", "import sys; print('{\"what\": \"' + ' and '.join(sys.argv[1:]) + '\"}')", continues=True)
    (other := tmp_path / "other.json").write_bytes((tmp_path / "kept.json").read_bytes())
    found, _ = ran([rest], tmp_path / "kept.json", about=ABOUT | {"date": "the next day"})
    assert [one[KEY] for one in found["a"].findings] == ["one", "--known and one"]
    found, _ = ran([rest], other, about=ABOUT | {"card": "another"})
    assert [one[KEY] for one in found["a"].findings] == [""], "numbers of two cards stand in no table together"


def test_no_part_is_begun_without_time_and_none_is_lost(tmp_path: Path) -> None:
    over = Kept(OVER, "3 s", [{KEY: "half"}])
    Record(tmp_path / "kept.json").keep("a", over)
    found, said = ran([part("a", SAY), part("b", SAY)], tmp_path / "kept.json", seconds=0.5)
    assert found["a"] == over
    assert found["b"].said == "not run: the minutes were used up; the same command goes on"
    assert "over its limit" in said[0]


def test_a_part_may_say_that_it_cannot_run_and_nonsense_harms_no_other(tmp_path: Path) -> None:
    says = part("a", 'print(\'{"not_run": "there is no meter"}\')')
    found, said = ran([says, part("b", "print('{\"odd\": 1}')")], tmp_path / "kept.json")
    assert (found["a"].said, found["a"].findings) == ("not run: there is no meter", [])
    assert said[1].endswith("its findings cannot be read (KeyError: 'what')")


def test_another_file_is_told(tmp_path: Path) -> None:
    for text in ("[]", "{", '{"parts": {"a": {"x": 1}}}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError, match="is no file of this script"):
            Record(tmp_path / "other.json")


FAMILY = """
import subprocess, sys
one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
open(sys.argv[1], "w").write(f"{one.pid} ")
one.wait()
"""
"""A process with a child."""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().split()[2] == "Z")


def test_ctrl_c_leaves_what_was_finished_and_no_process(tmp_path: Path) -> None:
    kept, pid = tmp_path / "kept.json", tmp_path / "pid"

    def interrupt() -> None:
        while not (pid.exists() and pid.read_text().endswith(" ")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    parts = [part("a", SAY), Part("b", ["-c", FAMILY, str(pid)], in_words)]
    with pytest.raises(KeyboardInterrupt):
        run_all(parts, Record(kept), 99)
    assert list(Record(kept).parts) == ["a"]
    assert comes_true(lambda: not alive(int(pid.read_text())))


def test_a_part_that_begins_warm_is_limited_and_read_as_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "says.py").write_text(f"{SAY}\nimport os, sys\nassert os.getsid(0) == os.getpid(), sys.argv\n")
    (tmp_path / "waits.py").write_text(f"{SAY}\n{WAIT}\n")
    (tmp_path / "fails.py").write_text("raise SystemExit('too hot')\n")
    limits = {"says": 60, "waits": 5, "fails": 60}
    parts = [Part(name, ["-m", name], in_words, seconds=limit, warm=True) for name, limit in limits.items()]
    found, _ = ran(parts, tmp_path / "kept.json", seconds=180)
    assert [one.state for one in found.values()] == [DONE, OVER, FAILED]
    assert [one.findings for one in found.values()] == [[{KEY: "one", "n": 1}], [{KEY: "one", "n": 1}], []]
    assert found["says"].printed == ["warned"]
    assert "KeyboardInterrupt" in found["waits"].printed[-1]
    assert found["fails"].why == "exit code 1: too hot"


NO_GPU = """
import torch
def used(*given): raise SystemExit("a GPU was asked for")
torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = used
import papers.device.imports
"""


def test_what_is_imported_for_all_parts_asks_for_no_gpu() -> None:
    """A process that has used one cannot be forked."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    subprocess.run([sys.executable, "-c", NO_GPU], check=True, env=environment, timeout=120)


# --- the parts


def test_all_parts_are_there_in_their_order() -> None:
    parts = parts_of(Sizes(), "cuda")
    assert tuple(dict.fromkeys(one.kind for one in parts)) == KINDS
    assert not any(one.obstacle for one in parts)
    assert len({one.name for one in parts}) == len(parts)
    assert [one.name for one in parts if one.kind == "forwards"] == [
        *("forwards random:8b 1 text", "forwards random:1b 1 text"),
        *("forwards random:8b 16 texts", "forwards random:1b 16 texts"),
    ]
    on_cpu = {one.kind: one.obstacle for one in parts_of(SMALL, "cpu")}
    assert [kind for kind, obstacle in on_cpu.items() if obstacle] == ["tests"]


def test_the_most_important_parts_come_first() -> None:
    names = [one.name for one in parts_of(Sizes(), "cuda")]
    assert names[:4] == ["forwards random:8b 1 text", "rounds pocket+ballast:8B", "check", "tests"]


def test_rounds_are_measured_and_profiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--model pocket --dtype float32 -n 4 --texts 3 --methods plain lookup --temperatures 0.8 --profile plain"
    monkeypatch.setattr(sys, "argv", ["rounds", *asked.split()])
    rounds.main()
    found = findings_of(capsys.readouterr().out)
    assert [one[KEY] for one in found] == ["plain at 0.8", "lookup at 0.8", "profile of plain"]
    assert not any("failed" in one for one in found)
    assert all(one["milliseconds"]["round"] > 0 and one["tokens_per_round"] >= 1 for one in found[:2])
    assert found[2]["top_python"]


def test_methods_get_the_draft_model_that_they_need() -> None:
    found = specs(["auto", "assistant", "mirror:device='cuda'"], "pocket-draft")
    assert found == ["auto", "assistant:model='pocket-draft'", "mirror:device='cuda',model='pocket-draft'"]


PYTEST = """
..F.s                                                                    [100%]
=========================== short test summary info ============================
FAILED tests/test_fixed_cuda.py::test_a_replay[gemma2-dtype0] - AssertionError: 3 passed - not
ERROR tests/test_fixed_cuda.py::test_other
1 failed, 52 passed, 2 skipped, 1 error in 61.05s
"""


def test_failed_tests_are_read_from_the_output() -> None:
    (found,) = read_tests(PYTEST)
    failures = {"test_a_replay[gemma2-dtype0]": "AssertionError: 3 passed - not", "test_other": ""}
    assert found == {KEY: "tests", "failed": 1, "passed": 52, "skipped": 2, "error": 1, "failures": failures}
    assert read_tests("no tests") == []
    said = next(one for one in parts_of(SMALL, "cuda") if one.kind == "tests").said([found])
    assert said == "52 passed, 1 failed, 1 error, 2 skipped (test_a_replay[gemma2-dtype0], test_other)"


# --- tables


def forward(path: str, rows: int, milliseconds: float) -> dict[str, Any]:
    return {"path": path, "rows": rows, "milliseconds": {"forward": milliseconds}, "least": 5.0, "apart": 0.01}


TIMED = {
    "method": "plain",
    "temperature": 0.8,
    "milliseconds": {"draft": 0.1, "score": 9.0, "read": 0.5, "judge": 0.4, "round": 10.0},
    "rows": 1.0,
    "tokens_per_round": 1.0,
    "tokens_per_second": 100.0,
    "joules_per_token": 2.5,
    "first_text_seconds": 3.0,
    "extra_seconds": 1.5,
    "text_seconds": 1.0,
    "fresh": True,
}
TOP = {"top_device": [["gemv", 70.0, 4.0]], "top_host": [["launch", 1.0, 0.2]], "top_python": []}
FOUND: dict[str, list[Finding]] = {
    "tests": read_tests(PYTEST),
    "check": [{"equal": 156, "cases": 156, "flips_per_1000": 0.0, "bugs": 0, "faults": []}],
    "forwards": [
        {
            "refused": "hooks",
            "lines": [
                *(forward("own", 1, 28.0), forward("fixed", 1, 10.0), forward("transformers", 1, 8.0)),
                *(forward("own", 4, 28.0), forward("fixed", 4, 11.0)),
            ],
        }
    ],
    "rounds": [
        {KEY: "plain at 0.8", **TIMED},
        {KEY: "auto at 0.8", "method": "auto", "temperature": 0.8, "failed": "RuntimeError: no memory"},
        {KEY: "profile of plain", "method": "plain", "kernels": 90.0, "device": 6.0, "host": 1.0, "wall": 10.0, **TOP},
    ],
    "transformers": [
        {KEY: "eager", "milliseconds": 25.0, "tokens_per_second": 40.0, "first_seconds": 3.0},
        {KEY: "compiled", "failed": "RuntimeError: no compiler"},
    ],
    "energy": [{KEY: "idle", "watts": 70.4}, {KEY: "plain at 0.8", **TIMED}],
    "loading": [{KEY: "import torch", "seconds": 3.0}],
}


def test_every_part_has_its_table() -> None:
    parts = {one.kind: one for one in reversed(parts_of(Sizes(), "cuda"))}
    kept = {one.name: Kept(DONE, findings=FOUND.get(kind, []), about=ABOUT) for kind, one in parts.items()}
    (_, rows), *others = tables(list(parts.values()), kept)
    words = {name.partition(" ")[0]: said for name, _, said in rows}
    assert words["check"] == "156 of 156 equal, 0 flips per 1,000 tokens, 0 bugs"
    speed = "1 row 10.00 ms (fixed), 50% of the memory's speed, 4 rows 1.10 of it, paths 1e-02 apart"
    assert words["forwards"] == f"{speed}; NOT recorded: hooks"
    spent = "tokens/s at 0.8: plain 100; J/token: plain 2.50"
    assert words["rounds"] == f"{spent}; auto at 0.8 failed: RuntimeError: no memory"
    assert words["energy"] == f"{spent}; idle 70 W"
    assert words["mirror"] == ""
    by_head = {head[0]: rows for head, rows in others}
    assert all(len(head) == len(row) for head, rows in others for row in rows)
    forwards = next(rows for head, rows in by_head.items() if head.startswith("forwards"))
    assert forwards == [
        ("1", "28.00", "10.00", "8.00", "5.00", "50%", "1.00"),
        ("4", "28.00", "11.00", "", "5.00", "45%", "1.10"),
    ]
    assert by_head["plain: most time, device"] == [("gemv", "70.0", "4.000")]
    assert {head.partition(" ")[0] for head in by_head} >= {"failed", "rounds", "transformers", "energy", "loading"}
    assert len(notes(list(parts.values()), kept)) == 1


# --- the script


def script(given: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setattr(sys, "argv", ["papers/device/__main__.py", "--small", "--device", "cpu", *given])
    run("device", device.__doc__, device.ITEM)
    return capsys.readouterr().out.splitlines()


def test_the_script_goes_on_with_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, note = tmp_path / "device.json", tmp_path / "note.md"
    given = ["--parts", "tests", "loading", "--out", str(file), "--note", str(note)]
    lines = script(given, monkeypatch, capsys)
    assert lines[0] == "tests: 0.0 s, not run: it needs a GPU, and cpu is none"
    assert lines[1].startswith("loading pocket: ")
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")] == [
        *("part", "tests", "loading pocket"),
        *("loading pocket", "import torch", "import paceline", "weights", "text 1, 8 tokens", "text 2, 8 tokens"),
    ]
    held = json.loads(file.read_text())["parts"]
    assert held["loading pocket"]["state"] == DONE
    again = script(given, monkeypatch, capsys)
    assert again[0].startswith("loading pocket: kept, import torch ")
    assert json.loads(file.read_text())["parts"]["loading pocket"] == held["loading pocket"]
    assert "`python -m papers.device --small --device cpu --parts tests loading" in note.read_text()


def test_the_probe_is_a_step_where_there_is_one() -> None:
    target = HFTarget(build("llama"))
    with _timed_probe() as seconds:
        assert probe.prepare(target) is target
    assert len(seconds) == 1
    probe.prepare(target)
    assert len(seconds) == 1, "afterwards the probe is as it was"


@pytest.mark.slow
def test_the_smallest_form_of_everything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script(["--out", str(tmp_path / "device.json"), "--minutes", "10"], monkeypatch, capsys)
    states = {name: one.said for name, one in Record(tmp_path / "device.json").parts.items()}
    assert states.pop("tests").startswith(NOT_RUN)
    assert states.pop("energy pocket").partition(":")[0] in (DONE, NOT_RUN), "a processor may have a meter"
    assert set(states.values()) == {DONE}
    assert {name.partition(" ")[0] for name in states} == {*KINDS} - {"tests", "energy"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--minutes", "0"], "--minutes must be more than 0, not 0"),
        (["--device", "cuda"], "torch finds no GPU here; --device cpu runs the smallest form"),
    ],
)
def test_bad_options_are_told(
    given: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=said):
        script(["--out", str(tmp_path / "device.json"), *given], monkeypatch, capsys)


def test_a_check_that_is_interrupted_reports_the_cases_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compare, done = Checker.compare, list[Any]()

    def stopped(self: Checker, *given: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(found := compare(self, *given))
        return found

    monkeypatch.setattr(Checker, "compare", stopped)
    asked = "check --model pocket --dtype float32 --sizes 4 -n 4 --rule coupled --method lookup --batch 1 --json"
    assert main(asked.split()) == 130
    found = capsys.readouterr()
    said = json.loads(found.out.splitlines()[-1])
    assert said["cases"] == said["equal"] > 2
    assert "it was interrupted: only the cases above were checked" in said["notes"]
    assert "interrupted" in found.err
