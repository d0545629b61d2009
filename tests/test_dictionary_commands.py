"""`dict build`, `dict info` and `dict lookup`, as they are typed and as they are interrupted."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dictionary_tables import made_up, write
from paceline.dictionary import file
from paceline.dictionary.index import Dictionary
from paceline.files import arrays
from paceline.targets.replay import open_vocabulary
from paceline_make.dictionary import build as build_module
from paceline_make.dictionary import counting
from paceline_make.texts import corpus as corpus_module
from test_cli import say as command
from tokenizer_kinds import tokenizer_of

for needed in ("duckdb", "pyarrow", "marisa_trie"):
    pytest.importorskip(needed, reason=f"dictionaries need {needed}: pip install 'paceline[dict]'")

ROOT = Path(__file__).resolve().parent.parent
SENTENCE = "Наша відповідальність за довкілля зростає."
LINES = [
    SENTENCE,
    "Кожна відповідальність має межі, а відповідальність громад — особливо.",
    "Довкілля змінюється: зростає море, зростають міста, зростає тривога.",
    "The responsibility of a government is the responsibility of its citizens.",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    dice = random.Random(0)
    path = tmp_path / "text" / "a.txt"
    path.parent.mkdir()
    path.write_text("\n".join(dice.choices(LINES, k=60)), encoding="utf8")
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "a.dict"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit code, standard output and standard error of a command."""

    return lambda *arguments: command(["dict", *map(str, arguments)], capsys)


@pytest.fixture
def told(say: Any) -> Callable[..., dict[str, Any]]:
    def run(*arguments: object) -> dict[str, Any]:
        code, out, err = say(*arguments, "--json")
        assert (code, err) == (0, "")
        return dict(json.loads(out.splitlines()[-1]))

    return run


def refusal(said: tuple[int, str, str]) -> str:
    """The one sentence of a refusal."""
    code, out, err = said
    assert (code, out, err.count("\n")) == (2, "", 1), said
    assert err.startswith("paceline dict ")
    return err


# --- what they do -------------------------------------------------------------------------------------------


def test_what_is_built_is_described_and_looked_up(text: Path, out: Path, told: Any, say: Any) -> None:
    built = told("build", "--text", text, "--out", out, "--min-prob", 0.5, "--language", "uk", "--licence", "моя")
    assert [path.name for path in out.parent.iterdir()] == ["a.dict"]
    header, table = file.read(out)
    assert built["notes"] == [f"the corpus gives {header.entries} entries, fewer than the 200000 asked for"]
    described = told("info", out)
    assert {name: described[name] for name in built if name != "notes"} == {
        name: value for name, value in built.items() if name != "notes"
    }
    assert (described["bytes"], described["entries"]) == (out.stat().st_size, len(table))
    assert (described["language"], described["licence"], described["tokenizer_name"]) == ("uk", "моя", "pocket")
    assert described["tokenizer"] == open_vocabulary("pocket").fingerprint
    assert sum(described["entries_by_prefix_length"].values()) == len(table)
    assert described["mean_completion"] == pytest.approx(
        sum((row >= 0).sum() for row in table.texts[table.completions]) / len(table), abs=0.001
    )
    words = sum(len(line.split()) for line in text.read_text(encoding="utf8").split("\n")) - text.read_text(
        encoding="utf8"
    ).count("—")
    assert described["corpus"]["words"] == words
    assert described["corpus"]["bytes"] == text.stat().st_size
    code, shown, _ = say("info", out)
    assert code == 0
    assert "entries by prefix length" in shown
    assert f"words {words}" in shown


def test_lookup_completes_words_and_says_how_likely(text: Path, out: Path, told: Any, say: Any) -> None:
    told("build", "--text", text, "--out", out, "--min-prob", 0.5)
    vocabulary = open_vocabulary("pocket")
    ids = vocabulary.encode(SENTENCE, add_special=False).tolist()
    completed = 0
    for cut in range(1, len(ids)):
        begun = vocabulary.text(ids[:cut])
        if vocabulary.encode(begun, add_special=False).tolist() != ids[:cut]:
            continue
        looked = told("lookup", begun, "--dict", out, out)
        assert "".join(looked["tokens"]) == begun
        lengths = [match["length"] for match in looked["matches"]]
        assert lengths == sorted(lengths[: len(lengths) // 2], reverse=True) * 2, "of each file, the longest first"
        for match in looked["matches"]:
            assert begun.endswith(match["matched"])
            assert "".join(match["tokens"]) == match["completion"]
            assert 0.4 < match["first"] < 1
            assert 0.4 < match["rest"] < 1
        if looked["matches"] and cut > 3:
            completed += (begun + looked["matches"][0]["completion"]) in SENTENCE
    assert completed > 3
    code, shown, _ = say("lookup", "Наша відповід", "--dict", out)
    assert code == 0
    assert shown.startswith("tokens: [Н")
    assert "a.dict: [" in shown
    assert say("lookup", "", "--dict", out)[1].endswith("nothing is proposed: no entry ends like this\n")


@pytest.mark.parametrize("rule", ["token", "paper"])
def test_an_entry_is_traced_from_the_counts_that_it_is_made_of(
    rule: str, text: Path, out: Path, told: Any, say: Any
) -> None:
    counts = out.with_suffix(".parquet")
    wishes = ["--entries", rule, "--min-prob", 0.6]
    assert told("build", "--text", text, "--out", out, "--keep-counts", counts, *wishes)["rule"] == rule
    begun = "Наша відповід"
    (match, *_) = told("lookup", begun, "--dict", out)["matches"]
    by_dict, by_hand = (told("lookup", begun, "--trace", counts, *how) for how in (["--dict", out], wishes))
    assert by_dict["prefixes"][-1]["completion"] == by_hand["prefixes"][-1]["completion"]
    last = by_dict["prefixes"][-1]
    assert last["verdict"] == "kept"
    assert last["completion"]["text"].replace("|", "") == match["completion"]
    assert last["prefix"]["text"].replace("|", "") == match["matched"]
    picked = [one for choice in last["choices"] for one in choice["candidates"] if one["selected"]]
    assert [token for one in picked for token in one["ids"]] == last["completion"]["ids"]
    code, shown, _ = say("lookup", begun, "--trace", counts, "--dict", out)
    assert code == 0
    assert f"6. entry, ids     {last['prefix']['ids']} -> {last['completion']['ids']}" in shown
    assert all(f"\n{number}. " in shown for number in range(1, 7))
    assert shown.endswith(f"{out} has the same: [{last['prefix']['text']}] -> [{last['completion']['text']}]\n")
    assert (by_dict["dictionary"]["same"], by_dict["dictionary"]["prefix"]["ids"]) == (True, last["prefix"]["ids"])
    assert "dictionary" not in by_hand
    assert "no n-gram begins" in say("lookup", "", "--trace", counts, *wishes)[1]
    assert "leave one of the two out" in refusal(say("lookup", begun, "--trace", counts, "--dict", out, *wishes))
    assert "--entries is for --trace COUNTS" in refusal(say("lookup", begun, *wishes))
    assert "can't be read as counts" in refusal(say("lookup", begun, "--trace", text))
    mixed = ["build", "--text", text, "--out", out, "--keep-counts", out]
    assert "give the counts another file" in refusal(say(*mixed))


def test_a_trace_tells_of_counts_and_tokenizers_that_are_not_the_dictionary_s(
    text: Path, out: Path, told: Any, say: Any, tmp_path: Path
) -> None:
    other, counts = tmp_path / "other.txt", out.with_suffix(".parquet")
    other.write_text("Наша відповідь коротка.\n" * 30, encoding="utf8")
    told("build", "--text", other, "--out", out.with_name("b.dict"), "--keep-counts", counts)
    told("build", "--text", text, "--out", out)
    begun = "Наша відповід"
    (match, *_) = told("lookup", begun, "--dict", out)["matches"]
    entry = told("lookup", begun, "--trace", counts, "--dict", out)["dictionary"]
    assert not entry["same"]
    assert entry["completion"]["text"].replace("|", "") == match["completion"]
    _, shown, _ = say("lookup", begun, "--trace", counts, "--dict", out)
    assert f"{out} differs from this trace: it has [" in shown
    assert f"{counts} does not hold the counts that it was built from" in shown
    entry = told("lookup", "zzz", "--trace", counts, "--dict", out)["dictionary"]
    assert (entry["same"], entry["prefix"]["ids"]) == (True, []), "neither has an entry"
    foreign = ["--tokenizer", "pocket-foreign", "--dict", out]
    assert "name it with --tokenizer" in refusal(say("lookup", begun, "--trace", counts, *foreign))


def test_lookup_takes_what_comes_with_the_package(told: Any) -> None:
    looked = told("lookup", "Це була велика відповідаль")
    assert {match["dictionary"] for match in looked["matches"]} <= {f"pocket-{one}.dict" for one in ("en", "pl", "uk")}
    assert looked["matches"]


def test_wishes_are_kept(text: Path, out: Path, told: Any) -> None:
    built = told(
        "build", "--text", text, "--out", out, "--min-prob", 0.3, "--size", 20, "--order", 2, "--max-prefix", 2,
        "--max-completion", 3, "--ngrams", 50, "--min-count", 2,
    )  # fmt: skip
    header, table = file.read(out)
    assert (built["entries"], built["notes"]) == (20, [])
    assert (header.order, header.min_probability, header.longest_prefix, header.longest_completion) == (2, 0.3, 2, 3)
    assert set(built["corpus"]["different_ngrams"]) == {"1", "2"}
    assert (table.prefixes >= 0).sum(axis=1).max() == 2
    assert (table.texts >= 0).sum(axis=1).max() <= 3


def test_the_same_text_gives_the_same_bytes(
    text: Path, out: Path, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told("build", "--text", text, "--out", out, "--min-prob", 0.4, "--size", 150)
    whole = out.read_bytes()
    (tmp_path / "spill").mkdir()
    monkeypatch.setattr(counting, "TEXT_IN_MEMORY", 10**9)
    monkeypatch.setattr(corpus_module, "BATCH", 1500)
    for wish in (["--threads", 1], ["--threads", 2, "--memory", "200MB"], ["--spill", tmp_path / "spill"]):
        told("build", "--text", text, "--out", out, "--min-prob", 0.4, "--size", 150, *wish)
        assert out.read_bytes() == whole, wish
    assert list((tmp_path / "spill").iterdir()) == []


# --- mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (["--order", "0"], "of n-grams of 1 to 3 words, not 0"),
        (["--order", "4"], "of n-grams of 1 to 3 words, not 4"),
        (["--order", "two"], "--order takes a whole number, not 'two'"),
        (["--size", "0"], "has 1 to 16777216 entries, not 0"),
        (["--size", "16777217"], "has 1 to 16777216 entries, not 16777217"),
        (["--entries", "word"], "--entries is one of token, paper, not 'word'"),
        (["--entries", "200000"], "token or paper; --size 200000 says how many"),
        (["--min-prob", "0"], "a probability is above 0 and at most 1, not 0.0"),
        (["--min-prob", "1.01"], "not 1.01"),
        (["--min-prob", "nan"], "not nan"),
        (["--max-prefix", "0"], "1 to 8 tokens, not 0"),
        (["--max-prefix", "9"], "1 to 8 tokens, not 9"),
        (["--max-completion", "0"], "1 to 8 tokens, not 0"),
        (["--max-completion", "9"], "1 to 8 tokens, not 9"),
        (["--min-count", "0"], "--min-count must be at least 1, not 0"),
        (["--ngrams", "0"], "--ngrams must be at least 1, not 0"),
        (["--threads", "1", "--cluster", "local"], "--threads 1 is for counting without --cluster"),
        (["--memory", "much"], "memory is a size such as 2GB or 500MB, not 'much'"),
        (["--threads", "0"], "at least 1 thread"),
        (["--spill", "no/such/folder"], "name a folder"),
        (["--tokenizer", "no/such/model"], "no/such/model"),
        (["--licence", "x" * 70_000], "are the most; shorten it"),
        (["--text", "no.txt"], "no.txt can't be read"),
        (["--out", "no/such/a.dict"], "there is no folder no/such"),
        (["--out", "."], "it is a folder"),
    ],
)
def test_a_wish_that_cannot_be_met_is_told_before_anything_is_written(
    wish: list[str], said: str, text: Path, out: Path, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text.parent)
    assert said in refusal(say("build", "--text", text, "--out", out, *wish))
    assert list(out.parent.iterdir()) == []
    assert list(text.parent.iterdir()) == [text]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"", "without a single word"),
        ("a.txt", b"word", "no n-gram of this corpus has a continuation"),
        ("a.txt.gz", b"nothing of the kind", "can't be decompressed"),
        ("a.jsonl", b"[" * 100_000, "line 1 is no JSON"),
    ],
)
def test_what_is_no_text_is_told_and_an_old_dictionary_stays(
    name: str, content: bytes, said: str, tmp_path: Path, out: Path, say: Any
) -> None:
    (tmp_path / name).write_bytes(content)
    out.write_bytes(b"old")
    assert said in refusal(say("build", "--text", tmp_path / name, "--out", out))
    assert list(out.parent.iterdir()) == [out]
    assert out.read_bytes() == b"old"


@pytest.mark.parametrize(
    "line",
    [
        "word" * 600_000,
        " ".join(random.Random(0).choices(["відповідальність", "за", "довкілля", "кожна"], k=100_000)),
        "我们是" * 100_000,
        "-" * 1_000_000 + " some words, some words",
    ],
    ids=["one word", "words", "characters", "no words"],
)
def test_one_giant_line_is_a_text_like_others(line: str, tmp_path: Path, out: Path, told: Any) -> None:
    (tmp_path / "a.txt").write_text(line, encoding="utf8")
    started = time.process_time()
    told("build", "--text", tmp_path / "a.txt", "--out", out, "--min-prob", 0.01)
    assert len(Dictionary.open(out)) > 0
    assert time.process_time() - started < 60, "a few seconds; work that grows with the square takes hours"


def test_a_dictionary_for_another_tokenizer_is_refused(
    text: Path, out: Path, tmp_path: Path, say: Any, told: Any
) -> None:
    tokenizer_of("byte-level").save_pretrained(tmp_path / "other")
    built = told("build", "--text", text, "--out", out, "--tokenizer", tmp_path / "other", "--min-prob", 0.5)
    assert built["tokenizer_name"] == "other"
    assert told("lookup", "Наша відпов", "--dict", out, "--model", tmp_path / "other")["matches"]
    for wish in ([], ["--tokenizer", "pocket"]):
        said = refusal(say("lookup", "Наша", "--dict", out, *wish))
        assert f"{out} was built for the tokenizer other (fingerprint {built['tokenizer']})" in said
        assert said.endswith("name it with --tokenizer\n")
    said = refusal(say("lookup", "Наша", "--model", tmp_path / "other"))
    assert "no dictionary for the tokenizer" in said
    assert "comes with paceline" in said


@pytest.mark.parametrize("action", ["lookup", "emulate"])
def test_a_tokenizer_is_taken_from_the_data_folder_where_it_is_the_same(
    action: str, text: Path, out: Path, tmp_path: Path, say: Any, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_hand = tmp_path / "data" / "tokenizers" / "other"
    tokenizer_of("byte-level").save_pretrained(at_hand)
    told("build", "--text", text, "--out", out, "--tokenizer", at_hand, "--min-prob", 0.5)
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "data"))
    asked = ["lookup", "Наша відпов"] if action == "lookup" else ["emulate", "--text", text]
    assert told(*asked, "--dict", out)
    open_vocabulary("pocket").tokenizer.save_pretrained(at_hand)
    assert "built for the tokenizer other" in refusal(say(*asked, "--dict", out))


@pytest.mark.parametrize("action", ["lookup", "emulate"])
@pytest.mark.parametrize("name", ["here", "../here", "pocket", "pokcet", "nobody/nothing", "\x1b[2Jhere"])
def test_a_dictionary_does_not_choose_what_is_opened(
    action: str, name: str, text: Path, tmp_path: Path, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a folder of the current directory, nor a download, nor a bundled model that it was not built for."""
    from paceline.targets.hf import load

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load, "load_tokenizer", lambda place: pytest.fail(f"{place} was opened"))
    (tmp_path / "here").mkdir()
    (tmp_path / "tokenizers").mkdir()
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path))
    path = tmp_path / "a.dict"
    write(path, made_up(1, 9, range(9)), tokenizer_name=name)
    asked = ["lookup", "Наша"] if action == "lookup" else ["emulate", "--text", text]
    said = refusal(say(*asked, "--dict", path))
    assert f"a.dict was built for the tokenizer {name.replace(chr(27), chr(0x241B))} (fingerprint " in said


@pytest.mark.parametrize("action", ["info", "lookup"])
def test_what_is_no_dictionary_is_told(action: str, text: Path, tmp_path: Path, say: Any) -> None:
    def ask(path: Path) -> str:
        return refusal(say(action, path) if action == "info" else say(action, "a", "--dict", path))

    assert f"cannot read the dictionary {tmp_path / 'none'}: No such file" in ask(tmp_path / "none")
    assert f"cannot read the dictionary {tmp_path}: Is a directory" in ask(tmp_path)
    assert f"{text} is no dictionary of paceline" in ask(text)
    write(tmp_path / "a.dict", made_up(1, 9, range(9)))
    os.truncate(tmp_path / "a.dict", (tmp_path / "a.dict").stat().st_size - 1)
    assert "is damaged" in ask(tmp_path / "a.dict")


# --- interruptions ------------------------------------------------------------------------------------------


def interrupt(*_: Any, **__: Any) -> Iterator[bytes]:
    """As if somebody had pressed Ctrl-C just now."""
    yield b"begun"
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(6000):  # one long sleep goes on if the signal comes just before it
        time.sleep(0.01)
    raise AssertionError("nobody was interrupted")


MOMENTS = [
    (counting, "_count_chunk"),
    (counting, "most_frequent"),
    (build_module, "spelled"),
    (build_module, "statistics"),
    (build_module, "chosen"),
    (file, "pack"),
    (arrays, "write_whole"),
]


@pytest.mark.parametrize(("module", "name"), MOMENTS, ids=[name for _, name in MOMENTS])
def test_ctrl_c_leaves_nothing_behind(
    module: Any, name: str, text: Path, out: Path, tmp_path: Path, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.files import write_whole

    (tmp_path / "spill").mkdir()
    out.write_bytes(b"old")
    stopped: Callable[..., Any] = lambda *_, **__: list(interrupt())  # noqa: E731
    if name == "write_whole":
        stopped = lambda path, _: write_whole(path, interrupt())  # noqa: E731
    monkeypatch.setattr(module, name, stopped)
    code, shown, err = say("build", "--text", text, "--out", out, "--min-prob", 0.5, "--spill", tmp_path / "spill")
    assert (code, shown, err) == (130, "", "\npaceline: interrupted\n")
    assert [path.name for path in out.parent.iterdir()] == ["a.dict"]
    assert out.read_bytes() == b"old"
    assert list((tmp_path / "spill").iterdir()) == []


SERVANT = """
import json, os, signal, sys, warnings
warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
import duckdb, marisa_trie, pyarrow.compute, pyarrow.dataset, pyarrow.parquet
from paceline.cli import main
from paceline_make.dictionary import build, counting, database
from paceline_make.texts import corpus, words
from paceline.targets.replay import open_vocabulary
open_vocabulary("pocket").fingerprint, words.word_pattern(), words.patterns(words.in_re2)
for line in sys.stdin:
    arguments = json.loads(line)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(os.getpid(), flush=True)
        try:
            code = main(["dict", *arguments])
        finally:
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Servant:
    """Runs commands each in a process of its own, without loading all the libraries for each anew."""

    def __init__(self, process: "subprocess.Popen[str]", complaints: Path) -> None:
        self.process, self.complaints = process, complaints

    def start(self, *arguments: object) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([*map(str, arguments)]) + "\n")
        self.process.stdin.flush()
        return int(self._line())

    def finish(self) -> tuple[int, str]:
        """Exit code and what was complained of."""
        while not (line := self._line()).lstrip("-").isdigit():
            pass
        said = self.complaints.read_text()
        os.truncate(self.complaints, 0)
        return int(line), said

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.complaints.read_text()
        return line.strip()


@pytest.fixture(scope="module")
def servant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servant]:
    if not hasattr(os, "fork"):
        pytest.skip("needs a system with fork")
    complaints = tmp_path_factory.mktemp("servant") / "stderr"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": "4711", "OMP_NUM_THREADS": "1"}
    with (
        complaints.open("a") as errors,
        subprocess.Popen(
            [sys.executable, "-c", SERVANT],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as process,
    ):  # fmt: skip
        yield Servant(process, complaints)
        process.kill()


def test_another_process_writes_the_same_bytes(servant: Servant, text: Path, out: Path, told: Any) -> None:
    """Its strings have other hashes."""
    told("build", "--text", text, "--out", out, "--min-prob", 0.4, "--size", 150)
    whole = out.read_bytes()
    out.unlink()
    servant.start("build", "--text", text, "--out", out, "--min-prob", 0.4, "--size", 150)
    assert servant.finish() == (0, "")
    assert out.read_bytes() == whole


def test_ctrl_c_at_any_moment(servant: Servant, text: Path, out: Path, tmp_path: Path) -> None:
    """A file is there as a whole, or not at all."""
    dice = random.Random(0)
    words = ["".join(dice.choices("абвгдежзик", k=4)) for _ in range(1000)]
    text.write_text("\n".join(" ".join(dice.choices(words, k=9)) for _ in range(1500)), encoding="utf8")
    wishes = ["build", "--text", text, "--out", out, "--min-prob", 0.2, "--threads", 1]
    servant.start(*wishes)
    started = time.monotonic()  # the servant itself may have had to start before
    assert servant.finish() == (0, "")
    took = time.monotonic() - started
    whole = out.read_bytes()
    codes = []
    for part in (0.05, 0.2, 0.4, 0.6, 0.8):  # the first comes early enough also where the machine was busy before
        out.unlink(missing_ok=True)
        child = servant.start(*wishes)
        time.sleep(took * part)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGINT)
        code, said = servant.finish()
        assert (code, said.strip()) in {(130, "paceline: interrupted"), (0, "")}, said
        assert [(path.name, path.read_bytes()) for path in out.parent.iterdir()] == [("a.dict", whole)] * (code == 0)
        codes.append(code)
    assert 130 in codes
