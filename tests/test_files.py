"""Writing files: never over an input, not in folders of other programs, whole or not at all, one process at a time."""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import has_fcntl

from paceline.cli import parser
from paceline.cli.options import INPUTS
from paceline.drafters.memory import Memory
from paceline.errors import UnwritableFile
from paceline.files import (
    Terminated,
    check_output,
    exclusive,
    remove_left,
    terminable,
    workplace,
    write_whole,
)
from paceline.files.writing import HOST, UNUSED
from paceline.planning.stored import load, update
from test_cli import say
from test_profile import profile
from thinning import thinned

ROOT = Path(__file__).resolve().parent.parent
TEXT = "".join(f"One line of words {n}.\nAnd another line {n} of many words.\n" for n in range(40))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- an output is never an input ----------------------------------------------------------------------------

READ_AND_WRITTEN = [
    "generate --prompt-file {0} --html {1}",
    "generate Once --method rest:corpus={0} --html {1}",
    "generate Once --method suffix:remember=9,memory='{0}' --html {1}",
    "generate Once --method dictionary:file={0}+lookup --html {1}",
    "generate Once --draft-model {0} --html {1}",
    "calibrate --prompts {0} --html {1}",
    "datastore build --text other {0} --out {1}",
    "datastore build --tokenizer {0} --text other --out {1}",
    "dict build --text other {0} --out {1}",
    "dict emulate --text {0} --html {1}",
    "dict emulate --suite replay:{0} --html {1}",
    "dict emulate --text other --dict other {0} --html {1}",
    "bench suite prompts:{0} --out {1}",
    "demo --method plain rest:corpus={0} --html {1}",
]


@pytest.mark.parametrize("command", READ_AND_WRITTEN)
def test_an_output_is_never_an_input(command: str, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other").write_text(TEXT)
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"prompt": "Once", "text": TEXT}) + "\n")
    Path("linked").symlink_to(file)
    Path("same").hardlink_to(file)
    (tmp_path / "below").mkdir()
    before = contents(tmp_path)
    for out in ("a.jsonl", "linked", "same", "below/../a.jsonl", str(file)):
        code, _, error = say(command.format("a.jsonl", out).replace("'", "").split(), capsys)
        assert (code, error.count("\n")) == (2, 1), error
        assert "would be replaced" in error or "holds something else" in error
        assert contents(tmp_path) == before


def test_a_file_of_a_folder_that_is_read_is_an_input(tmp_path: Path) -> None:
    """Its pages are not: they may be written again."""
    for name, refused in (("config.json", True), ("model.SAFETENSORS", True), ("page.html", False)):
        (tmp_path / name).touch()
        if refused:
            with pytest.raises(ValueError, match="would be replaced"):
                check_output(tmp_path / name, [tmp_path])
        else:
            check_output(tmp_path / name, [tmp_path])
    check_output(tmp_path / "new.json", [tmp_path])


OUTPUTS = {"html", "out", "keep_counts"}
NEITHER = {"spill", "directory", "file", "files", "folder", "models", "target", "temperature"}
"""A place for what goes again; what commands without outputs read; no file."""


def test_every_option_that_names_a_file_is_an_input_or_an_output() -> None:
    def options(one: argparse.ArgumentParser) -> Iterator[argparse.Action]:
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction):
                for below in action.choices.values():
                    yield from options(below)
            elif action.type is Path or action.metavar in ("FILE", "DIR", "MODEL", "SPEC", "SUITE", "T", "LANG=FILE"):
                yield action

    assert {action.dest for action in options(parser())} - {*INPUTS, *OUTPUTS} <= NEITHER


# --- a folder is taken only where it is ours ----------------------------------------------------------------


def test_a_folder_of_another_program_is_left_as_it_is(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("asked.jsonl").write_text(json.dumps({"prompt": "Once"}) + "\n")
    Path("mine").mkdir()
    Path("mine/prompts.jsonl").write_text('{"prompt": "another\'s"}\n')
    before = contents(tmp_path)
    code, _, error = say(
        ["bench", "run", "--suite", "prompts:asked.jsonl", "--model", "pocket", "--out", "mine"], capsys
    )
    assert (code, error.count("\n")) == (2, 1), error
    assert "mine is " in error
    assert contents(tmp_path) == before


# --- what is stopped leaves nothing for long ----------------------------------------------------------------

HELD = """
import sys, time
from pathlib import Path
from paceline.files import partial, workplace
with (partial(sys.argv[2]) if sys.argv[1] == "file" else workplace(Path(sys.argv[2]).parent)) as place:
    (place if sys.argv[1] == "file" else place / "part").write_text("half")
    print("held", flush=True)
    time.sleep(60)
"""


def started(*command: str, cwd: Path | None = None, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **environment},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(not has_fcntl, reason="needs locks of the system")
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_next_one_removes_what_a_killed_process_left(kind: str, tmp_path: Path) -> None:
    """Not what a living process writes, nor files of other programs or of other hosts."""
    others = [tmp_path / f".paceline-{host}-{12 * '0'}.partial" for host in ("00000000", "11111111")]
    foreign = [tmp_path / name for name in ("a.partial", ".a.1.partial", f".paceline-{HOST}-0.partial", "x.lock")]
    for path in (*others, *foreign):
        path.mkdir()
    command = "-c", HELD, kind, str(tmp_path / "b")
    with started(*command) as living, started(*command) as dead:
        for process in (living, dead):
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
        begun = set(tmp_path.iterdir())
        os.utime(others[1], (0, others[1].stat().st_mtime - UNUSED - 9))
        dead.kill()
        dead.wait()
        write_whole(tmp_path / "a", "whole")
        assert len(begun - set(tmp_path.iterdir())) == 2, "that of the dead one and that of long ago"
        assert {others[0], *foreign} <= set(tmp_path.iterdir())
        living.kill()
    with workplace(tmp_path):
        pass
    assert set(tmp_path.iterdir()) == {tmp_path / "a", others[0], *foreign}


STOPPED = """
import importlib, sys, time
from paceline.cli import main
def held(*_, **__):
    print("held", flush=True)
    time.sleep(60)
module, *way, name = sys.argv[1].split("/")
place = importlib.import_module(module)
for one in way:
    place = getattr(place, one)
setattr(place, name, held)
raise SystemExit(main(sys.argv[2:]))
"""
MOMENTS = [
    # where it is held, which command is ended, and how
    ("pathlib/Path/chmod", "datastore build --text other --out kept/a.rest", signal.SIGTERM),
    ("paceline_make.dictionary.counting/most_frequent", "dict build --text other --out kept/a", signal.SIGTERM),
    ("paceline.targets.pocket.kept/save_file", "generate Once --model pocket+ballast:12M", signal.SIGKILL),
]


@pytest.mark.skipif(not has_fcntl, reason="needs signals and locks of the system")
@pytest.mark.parametrize(("moment", "command", "number"), MOMENTS, ids=[m[1][:13] for m in MOMENTS])
def test_a_command_that_is_ended_leaves_nothing(
    moment: str, command: str, number: signal.Signals, tmp_path: Path
) -> None:
    (kept := tmp_path / "kept").mkdir()
    (tmp_path / "other").write_text(TEXT)
    there = {"PACELINE_CACHE": str(kept), "TMPDIR": str(kept)}
    with started("-c", STOPPED, moment, *command.split(), cwd=tmp_path, **there) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n", process.communicate()
        process.send_signal(number)
        _, complaints = process.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert (process.returncode, complaints.strip()) == (143, "paceline: terminated")
    else:  # the next process tidies up
        for folder in (kept, *(one for one in kept.rglob("*") if one.is_dir())):
            remove_left(folder)
    assert contents(kept) == {}


def test_a_second_signal_at_once_does_not_disturb_the_cleaning() -> None:
    """Some send it to a process and to its group. Later ones end what will not end."""
    cleaned = False

    def ended() -> None:
        nonlocal cleaned
        with terminable():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                cleaned = True

    with pytest.raises(Terminated):
        ended()
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# --- two at once lose nothing -------------------------------------------------------------------------------


def test_two_memories_with_one_file_keep_both_texts(tmp_path: Path) -> None:
    """The second writes while the first is in the middle of it."""
    file = tmp_path / "texts.memo"
    held, go = threading.Event(), threading.Event()
    first, second = Memory(100, str(file)), Memory(100, str(file))
    for memory, text in ((first, [3, 4, 5]), (second, [6, 7, 8])):
        memory.fit(20, None)
        memory.learn(text)

    def writing(path: Any, pieces: Any) -> None:
        held.set()
        assert go.wait(60)
        write_whole(path, pieces)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr("paceline.files.arrays.write_whole", writing)
        one = pool.submit(first.save)
        assert held.wait(60)
        other = pool.submit(second.save)
        go.set()
        assert [one.result(), other.result()] == [None, None]
    third = Memory(100, str(file))
    third.fit(20, None)
    assert [third.following([n], 5, 5) for n in (3, 6)] == [[([4, 5], 1)], [([7, 8], 1)]]
    assert third.following([3], 5, 5) == second.following([3], 5, 5), "what others wrote is known from then on"
    assert list(tmp_path.iterdir()) == [file]


def test_a_memory_never_replaces_what_is_none(tmp_path: Path) -> None:
    file = tmp_path / "letter"
    memory = Memory(100, str(file))
    memory.fit(20, None)
    memory.learn([1, 2, 3])
    file.write_text("Dear")
    with pytest.raises(ValueError, match="is no memory"):
        memory.save()
    assert file.read_text() == "Dear"


def test_updates_of_one_profile_at_once_keep_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    made, names = profile(), {f"method{number}" for number in range(12)}

    def add(name: str) -> None:
        update(made.setup, lambda known: (known or made).with_methods((replace(made.methods[0], method=name),)))

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(add, names))
    found = load(made.setup)
    assert found is not None
    assert names <= {one.method for one in found.methods}


def test_exclusive_waits(tmp_path: Path) -> None:
    """Several that wait get it one after the other, also those that wait for a lock that is removed."""
    inside, most = 0, 0

    def go(number: int) -> None:
        nonlocal inside, most
        with exclusive(tmp_path / "a"):
            inside += 1
            most = max(most, inside)
            with (tmp_path / "seen").open("a") as file:
                file.write(f"{number}\n")
            inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(go, range(200)))
    assert most == 1
    assert len((tmp_path / "seen").read_text().splitlines()) == 200
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]


WITHOUT_LOCKS = """
import os, sys
sys.modules["fcntl"] = None
import shutil
shutil._use_fd_functions = False  # it would use the second of these
del os.O_NOFOLLOW, os.O_NONBLOCK
from pathlib import Path
from paceline.drafters.memory import Memory
from paceline.files import claimed, workplace, write_whole
from paceline.files.ending import terminable
from paceline.targets import forked
with terminable(), claimed(Path("runs/first")), workplace(Path("runs/first")):
    write_whole("runs/first/a", "whole")
memory = Memory(100, "memo")
memory.fit(20, None)
memory.learn([1, 2])
memory.save()
"""


def test_where_the_system_has_no_such_locks_all_else_works(tmp_path: Path) -> None:
    with started("-c", WITHOUT_LOCKS, cwd=tmp_path) as process:
        assert process.communicate()[1] == ""
    assert set(contents(tmp_path)) == {"memo", "runs/first/a"}


# --- a fork -------------------------------------------------------------------------------------------------

FORKED = """
import os, sys, threading
import signal, torch
signal.alarm(300)
torch.set_num_threads(int(sys.argv[1]))
import paceline
HOW = {"max_new_tokens": 2, "method": "plain", "seed": 1}
def child():
    if os.fork():
        return os.wait()
    signal.alarm(60)
    try:
        print(paceline.load("pocket-draft").generate("Once", **HOW).tokens, flush=True)
    except ValueError as error:
        print(error, flush=True)
    os._exit(0)
child()
lm = paceline.load("pocket-draft")
print(lm.generate("Once", **HOW).tokens, flush=True)
child()
begun, go = threading.Event(), threading.Event()
def criterion(_):
    begun.set()
    return go.wait()
other = threading.Thread(target=lm.generate, args=("Once",), kwargs={"criteria": (criterion,)})
other.start()
begun.wait()
child()
go.set()
other.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")
@pytest.mark.parametrize("threads", thinned([2, 1]))
def test_a_fork_writes_or_says_why_it_cannot(threads: int) -> None:
    """Before any use it writes what its parent does; after it only where there are no threads to lose."""
    with started("-c", FORKED, str(threads), OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive") as process:
        before, parent, after, beside = process.communicate()[0].splitlines()
    assert before == parent
    assert (after == parent) == (threads == 1)
    for said in [beside] if threads == 1 else [after, beside]:
        assert said.startswith("this process was forked from one that had already used a model")


# --- a full disk --------------------------------------------------------------------------------------------

FULL = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np, pyarrow as pa, torch
from paceline_make.dictionary import counting
from paceline_make.texts import corpus
from paceline_make.texts.corpus import Corpus
from paceline_make.dictionary.counting import NgramCounts, count
from paceline.drafters import indexing
from paceline.drafters.memory import Memory
from paceline.files import write_whole
from paceline_lab.bench.run import directory
from paceline_lab.bench.run.directory import About, Run
from paceline.targets.load import open_model
import test_profile
counting.TEXT_IN_MEMORY, corpus.BATCH = 10**9, 10**5
memory = Memory(9999, "memory")
memory.fit(99999, None)
memory.learn(list(range(3000)))
words = Corpus.of_lines([f"word{n} and{n} more" for n in range(30000)])
run = Run(Path("run"), About(recipe={}, model={}, entries=[], workload={"suite": "x" * 3000}), [])
run.path.mkdir()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for write in (
    lambda: write_whole("page", "x" * 9999),
    lambda: test_profile.save(test_profile.profile()),
    lambda: open_model("pocket+ballast:12M"),
    lambda: indexing.build(Path("store"), [np.arange(9999)], ""),
    lambda: NgramCounts(pa.table({"gram": [str(n) for n in range(9999)], "count": range(9999)}), 1, {}).save("counts"),
    lambda: directory.write_about(run),
    memory.save,
    lambda: count(words, folder=Path("spill"), memory="300MB", threads=1),
):
    try:
        write()
        print("nothing")
    except (ValueError, OSError) as error:
        print(error)
"""
NAMED = ("cannot write page:", "profiles/", "cannot keep ballast in", "cannot write store:", "cannot write counts:")
NAMED += ("cannot write run/run.json:", "cannot write memory:", "spill has no room left")


def test_a_full_disk_names_what_was_being_written(tmp_path: Path) -> None:
    """As if it were full: no file may be longer than 1,000 bytes."""
    pytest.importorskip("resource")
    (tmp_path / "spill").mkdir()
    with started("-c", FULL, str(ROOT / "tests"), cwd=tmp_path, PACELINE_CACHE=str(tmp_path / "cache")) as process:
        said, complaints = process.communicate(timeout=60)
    assert len(said.splitlines()) == len(NAMED), complaints
    for line, name in zip(said.splitlines(), NAMED, strict=True):
        assert name in line, line
    assert contents(tmp_path) == {}


def test_an_error_of_another_file_keeps_its_name(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield (tmp_path / "absent").read_bytes()

    with pytest.raises(FileNotFoundError, match="absent"):
        write_whole(tmp_path / "a", pieces())
    with pytest.raises(UnwritableFile, match=r"cannot write .*none/a: No such file or directory"):
        write_whole(tmp_path / "none" / "a", "x")
