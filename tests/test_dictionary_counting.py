"""Counts are those of a plain counter over the definition, however little memory there is and whoever counts."""

import _thread
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from clock import comes_true
from dictionary_tables import ngrams
from paceline.errors import InputError
from paceline_make.dictionary import counting
from paceline_make.dictionary.counting import NgramCounts, count
from paceline_make.dictionary.database import Database, bytes_of
from paceline_make.texts import corpus as corpus_module
from paceline_make.texts.corpus import Corpus, open_corpus
from paceline_make.texts.words import TAB

pa = pytest.importorskip("pyarrow", reason="counts are tables of pyarrow: pip install 'paceline[dict]'")
duckdb = pytest.importorskip("duckdb", reason="duckdb counts: pip install 'paceline[dict]'")

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "text"


def pairs(counts: NgramCounts) -> list[tuple[str, int]]:
    return list(zip(counts.grams["gram"].to_pylist(), counts.grams["count"].to_pylist(), strict=True))


def plainly(lines: list[str], order: int) -> list[tuple[str, int]]:
    """The same by a counter and a sort, for texts that are small."""
    seen = Counter(gram for line in lines for gram in ngrams(line, order))
    return sorted(seen.items(), key=lambda pair: (pair[0].count(TAB), -pair[1], pair[0].encode()))


def limited(ranked: list[tuple[str, int]], min_count: int, limit: int) -> list[tuple[str, int]]:
    kept: Counter[int] = Counter()
    found = []
    for gram, times in ranked:
        kept[gram.count(TAB)] += times >= min_count
        if times >= min_count and kept[gram.count(TAB)] <= limit:
            found.append((gram, times))
    return found


def hostile(seed: int, number: int) -> list[str]:
    dice = random.Random(seed)
    letters = "abяъ' ’,.-\t我のก็ '\"\\%_{}$\0\u2028\U00020000🙂é\u0301\n"
    return ["".join(dice.choices(letters, k=dice.randrange(60))) for _ in range(number)]


@pytest.fixture(params=["at once", "in parts"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of counting: in one piece, and in chunks that are put on disk."""
    if request.param == "in parts":
        monkeypatch.setattr(counting, "TEXT_IN_MEMORY", 10**9)
        monkeypatch.setattr(corpus_module, "BATCH", 15_000)
        monkeypatch.setattr(counting, "PARTS", 4)
    return str(request.param)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_counts_of_hostile_strings_are_those_of_a_counter(order: int, chunks: str) -> None:
    lines = hostile(order, 1500)
    found = count(Corpus.of_lines(lines), order=order, threads=2)
    assert pairs(found) == plainly([part for line in lines for part in line.split("\n")], order)


def test_counts_of_real_text_are_those_of_a_counter(chunks: str) -> None:
    if not DATA.is_dir():
        pytest.skip("needs ../shared/data beside the checkout")
    lines = []
    for name in ("uk/docs-uk.txt", "pl/opensource-guide.txt", "zh/d2l-zh.txt", "crh-Latn/QIRIMTATARTILI-crh.txt"):
        lines += (DATA / name).read_text(encoding="utf8")[:25_000].split("\n")
    found = count(Corpus.of_lines(lines), threads=2)
    expected = plainly(lines, 3)
    assert pairs(found) == expected
    assert found.words == sum(times for gram, times in expected if TAB not in gram)
    assert found.distinct == {n + 1: sum(gram.count(TAB) == n for gram, _ in expected) for n in range(3)}


def test_the_limit_keeps_the_most_frequent_and_ties_go_by_bytes(chunks: str) -> None:
    lines = hostile(11, 1500)
    split = [part for line in lines for part in line.split("\n")]
    everything = plainly(split, 3)
    for min_count, limit in ((1, 100), (3, 7), (10**6, 5)):
        found = count(Corpus.of_lines(lines), min_count=min_count, limit=limit)
        assert pairs(found) == limited(everything, min_count, limit)
        assert sum(found.distinct.values()) == len(everything), "what is left out is still counted"
        assert found.words == sum(times for gram, times in everything if TAB not in gram)


def test_threads_and_folders_change_nothing(chunks: str, tmp_path: Path) -> None:
    corpus = Corpus.of_lines(hostile(5, 1000))
    first, *others = [count(corpus, threads=threads, folder=tmp_path) for threads in (1, 2)]
    assert all(other.grams.equals(first.grams) for other in others)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_system_that_says_less_of_its_processors_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for known in (None, 2):
        monkeypatch.setattr(os, "cpu_count", lambda known=known: known)
        assert count(Corpus.of_lines(["a b a"])).words == 3


def test_counts_come_back_from_their_file(tmp_path: Path) -> None:
    found = count(Corpus.of_lines(["a b c", "b c"]))
    found.save(tmp_path / "counts")
    again = NgramCounts.load(tmp_path / "counts")
    assert again == found
    assert (again.words, again.distinct) == (5, {1: 3, 2: 2, 3: 1})
    assert pairs(again)[:2] == [("b", 2), ("c", 2)]
    assert [path.name for path in tmp_path.iterdir()] == ["counts"]
    with pytest.raises(ValueError, match="cannot write"):
        found.save(tmp_path / "none" / "counts")


def test_what_are_no_counts_is_refused(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    (tmp_path / "text").write_text("text")
    with pytest.raises(ValueError, match=r"text can't be read as counts \(.*\)"):
        NgramCounts.load(tmp_path / "text")
    with pytest.raises(ValueError, match="none can't be read as counts"):
        NgramCounts.load(tmp_path / "none")
    pq.write_table(pa.table({"gram": ["a"]}), tmp_path / "table")
    with pytest.raises(ValueError, match="holds no counts"):
        NgramCounts.load(tmp_path / "table")
    found = count(Corpus.of_lines(["a b c"]))
    found.save(tmp_path / "whole")
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-9])
    with pytest.raises(ValueError, match="can't be read as counts"):
        NgramCounts.load(tmp_path / "cut")


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"order": 0}, "1 to 8 words, not 0"),
        ({"order": 9}, "1 to 8 words, not 9"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"min_count": 0}, "min_count must be at least 1"),
        ({"threads": 0}, "at least 1 thread"),
        ({"memory": "much"}, "memory is a size such as 2GB or 500MB, not 'much'"),
        ({"memory": "0GB"}, "memory is a size"),
        ({"folder": Path("no/such/folder")}, "name a folder"),
    ],
)
def test_a_wish_that_cant_be_met_is_told(wish: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        count(Corpus.of_lines(["a"]), **wish)  # type: ignore[arg-type]


def test_sizes_are_read_as_people_write_them() -> None:
    assert [bytes_of("memory", size) for size in ("2GB", "1.5 mb", "3KiB", "7B")] == [2 * 10**9, 1_500_000, 3072, 7]


# --- failures on the way ------------------------------------------------------------------------------------


def test_what_the_corpus_says_is_what_is_heard(chunks: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [json.dumps({"text": f"some words {n}"}) for n in range(3000)]
    path.write_text("\n".join([*rows, '{"text": 5}']))
    with pytest.raises(ValueError, match="line 3001: the field text is no text but int"):
        count(open_corpus([path]), folder=tmp_path)
    with pytest.raises(ValueError, match="without a single word"):
        count(Corpus.of_lines(["-"]), folder=tmp_path)
    assert [found.name for found in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("reason", ["No space left on device", "above the max_temp_directory_size"])
def test_a_full_disk_is_told_in_a_sentence(reason: str, tmp_path: Path) -> None:
    said = f"{tmp_path} has no room left for what counting spills; name another folder or give more memory"
    with Database("100MB", 1, tmp_path) as database, pytest.raises(ValueError, match=re.escape(said)):
        database.run(f"SELECT error('{reason}')")
    assert list(tmp_path.iterdir()) == []


def test_the_engine_spills_and_says_when_it_cant(tmp_path: Path) -> None:
    hashes = "SELECT i, md5(i::VARCHAR) AS h FROM range(1000000) AS r(i)"
    with Database("20MB", 1, tmp_path) as database:
        database.run(f"CREATE TEMP TABLE t AS {hashes}")
        assert database.rows("SELECT count(*) FROM t") == [(1_000_000,)]
        with pytest.raises(ValueError, match=r"does not get by with a memory of 0.02 GB"):
            database.rows(f"SELECT list(h) FROM ({hashes})")
    assert list(tmp_path.iterdir()) == []


INTERRUPTED = """
import sys, threading
from pathlib import Path
from paceline_make.dictionary import counting
from paceline_make.texts import corpus
from paceline_make.texts.corpus import Corpus
counting.TEXT_IN_MEMORY = int(sys.argv[2])
corpus.BATCH = 10**5

class Endless(Corpus):
    def lines(self, advance=None):
        number = 0
        while True:
            number += 1
            if number == 20:
                print("counting", flush=True)
            yield [f"word{number * 1000 + i} and more of {i}" for i in range(1000)]

try:
    counting.count(Endless([]), folder=Path(sys.argv[1]), memory="300MB", threads=2)
except KeyboardInterrupt:
    print("interrupted", threading.active_count(), flush=True)
"""


@pytest.mark.parametrize("text_in_memory", ["1", "3000"])
def test_ctrl_c_ends_a_count_at_once_and_leaves_nothing(text_in_memory: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), text_in_memory]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "counting\n"
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)  # without an interrupt it counts for ever
        assert said.splitlines() == ["interrupted 1"]
        assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def lines_run(work: Callable[[], object], interrupt_at: int = 0) -> int:
    """How many lines of Python this thread runs for the work; Ctrl-C comes at the line of that number. Callbacks of the
    garbage collector come at any time, and what they raise is only printed."""
    lines = 0

    def trace(frame: FrameType, event: str, value: object) -> Any:
        nonlocal lines
        if "weakref" in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == interrupt_at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def test_ctrl_c_at_any_line_of_a_statement_closes_the_engine(tmp_path: Path) -> None:
    with Database("100MB", 1, tmp_path) as database:
        lines = lines_run(lambda: database.run("SELECT 1"))
    threads = threading.active_count()
    for line in range(1, lines + 1):
        with suppress(KeyboardInterrupt), Database("100MB", 1, tmp_path) as database:
            lines_run(lambda: database.run("SELECT sum(hash(i)) FROM range(20_000_000) AS r(i)"), line)
        assert list(tmp_path.iterdir()) == []
        assert threading.active_count() == threads


def test_ctrl_c_just_before_a_wait_is_noticed(tmp_path: Path) -> None:
    """It ends no wait then and leaves only a note, as `interrupt_main` does."""
    ended = list[bool]()

    def batches() -> Iterator[Any]:
        _thread.interrupt_main()
        ended.append(comes_true(lambda: database._stopped))
        yield pa.record_batch([["a"]], ["line"])

    with suppress(KeyboardInterrupt), Database("100MB", 1, tmp_path) as database:
        database.register("lines", database.stream(batches(), pa.schema([("line", pa.string())])))
        database.run("CREATE TEMP TABLE found AS SELECT * FROM lines")
    assert ended == [True]


def test_a_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.errors.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"counting needs duckdb: pip install 'paceline\[dict\]'"):
        count(Corpus.of_lines(["a"]))


# --- on a cluster -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'paceline[cluster]'")
@pytest.mark.filterwarnings("ignore")  # of ray's own
def test_a_cluster_counts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from paceline_make.dictionary import cluster

    monkeypatch.setattr(corpus_module, "BATCH", 20_000)
    monkeypatch.setattr(cluster, "TEXT_IN_MEMORY", 10**4)
    corpus = Corpus.of_lines(hostile(9, 6000))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        for min_count, limit in ((1, 10**6), (2, 50)):
            there = cluster.count_on_cluster(corpus, min_count=min_count, limit=limit, memory="400MB")
            here = count(corpus, min_count=min_count, limit=limit)
            assert there == here
            assert there.words > 10_000
        with pytest.raises(ValueError, match="without a single word"):
            cluster.count_on_cluster(Corpus.of_lines([""]))
        with pytest.raises(ValueError, match=r"\Acounting does not get by with a memory of 0.001 GB[^\n]*\Z") as told:
            cluster.count_on_cluster(corpus, memory="1MB")
        assert type(told.value) is InputError, "and nothing of ray's"
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'paceline[cluster]'")
def test_a_cluster_on_this_machine_is_not_one_that_the_environment_names(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b a")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RAY_ADDRESS": "127.0.0.1:1"}
    build = ["dict", "build", "--text", "a.txt", "--out", "a.dict", "--cluster", "local", "--memory", "1MB"]
    command = [sys.executable, "-m", "paceline", *build]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    said = "counting does not get by with a memory of 0.001 GB; give more or use fewer threads"
    assert done.stderr.splitlines() == [f"paceline dict build: error: {said}"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
