"""Reading a corpus: every kind of source gives the same lines, and what is no text is said in one sentence."""

import gzip
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline_make.texts import corpus as corpus_module
from paceline_make.texts import lines as lines_module
from paceline_make.texts import sources
from paceline_make.texts.corpus import Corpus, open_corpus, split_by_document
from paceline_make.texts.fields import ChatText
from paceline_make.texts.lines import LONGEST, pieces

pa = pytest.importorskip("pyarrow", reason="a corpus is read with pyarrow: pip install 'paceline[dict]'")
import pyarrow.parquet as pq  # noqa: E402 (after the skip)

LINES = ["Перший рядок, так.", "", "другий рядок", "третій — і ще 'один'"]
TEXT = "\n".join(LINES)


def read(corpus: Corpus) -> list[str]:
    return [line for batch in corpus.batches() for line in batch.column("line").to_pylist()]


def zstd(raw: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(raw)
    return sink.getvalue().to_pybytes()


def saved_dataset(folder: Path, texts: list[str]) -> None:
    """As `Dataset.save_to_disk` leaves it, in two files whose names do not sort as they are listed."""
    folder.mkdir()
    table = pa.table({"text": texts})
    names = ["data-b.arrow", "data-a.arrow"]
    for name, part in zip(names, (table.slice(0, 2), table.slice(2)), strict=True):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def jsonl(texts: list[str]) -> bytes:
    return "\n".join(json.dumps({"id": n, "text": text}) for n, text in enumerate(texts)).encode()


SOURCES: dict[str, Callable[[Path], None]] = {
    "a.txt": lambda path: path.write_bytes(TEXT.encode()) and None,
    "a.gz": lambda path: path.write_bytes(gzip.compress(TEXT.encode())) and None,
    "a.txt.zst": lambda path: path.write_bytes(zstd(TEXT[:20].encode()) + zstd(TEXT[20:].encode())) and None,
    "a.jsonl": lambda path: path.write_bytes(jsonl(LINES)) and None,
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(jsonl(LINES) + b"\n\n")) and None,
    "a.jsonl.zst": lambda path: path.write_bytes(zstd(jsonl(LINES))) and None,
    "a.parquet": lambda path: pq.write_table(pa.table({"text": LINES, "n": [1, 2, 3, 4]}), path, row_group_size=3),
    "dataset": lambda path: saved_dataset(path, LINES),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_kind_of_source_gives_its_lines(name: str, tmp_path: Path) -> None:
    SOURCES[name](tmp_path / name)
    corpus = open_corpus([tmp_path / name])
    assert read(corpus) == LINES
    assert corpus.documents == (1 if name in ("a.txt", "a.gz", "a.txt.zst") else len(LINES))
    assert corpus.bytes in (len(TEXT.encode()), len("".join(LINES).encode()))
    assert corpus.notes == []


def test_a_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    """Packing and batches leave it alone; a letter, an order and a border of documents change it."""

    def fingerprint(name: str, raw: bytes, *more: str) -> str:
        (tmp_path / name).write_bytes(raw)
        corpus = open_corpus([tmp_path / name, *(tmp_path / other for other in more)])
        read(corpus)
        assert len(corpus.fingerprint) == 16
        return corpus.fingerprint

    whole = fingerprint("a.txt", TEXT.encode())
    assert whole == fingerprint("a.gz", gzip.compress(TEXT.encode()))
    assert fingerprint("a.jsonl", jsonl(LINES)) == fingerprint("b.jsonl", jsonl(LINES).replace(b'"id"', b'"nr"'))
    others = [
        fingerprint("c.txt", TEXT.encode() + b"."),
        fingerprint("d.txt", TEXT[:9].encode()),
        fingerprint("e.jsonl", jsonl(["ab", "c"])),
        fingerprint("f.jsonl", jsonl(["a", "bc"])),
        fingerprint("g.jsonl", jsonl(["bc", "a"])),
        fingerprint("h.txt", b"a", "d.txt"),
    ]
    assert len({whole, *others}) == 1 + len(others)


def test_blocks_and_batches_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes((TEXT * 50 + "я" * (LONGEST + 5) + "\n🙂 " * 300).encode() + b"\xff\xd0 end\xe2\x82")
    seen = set()
    for block in (1 << 20, 997, 7):
        monkeypatch.setattr(lines_module, "BLOCK", block)
        monkeypatch.setattr(corpus_module, "BATCH", block)
        corpus = open_corpus([path])
        seen.add(("\n".join(read(corpus)), corpus.fingerprint, corpus.bytes, *corpus.notes))
    assert len(seen) == 1
    (_, _, size, note), *_ = seen
    assert size == path.stat().st_size
    assert note == f"{path}: 3 places were no UTF-8 and were replaced"


def test_a_folder_gives_its_files_in_order(tmp_path: Path) -> None:
    for name, text in {
        "b.txt": "b",
        "a/z.jsonl": '{"text": "z"}',
        "a/c.md": "c",
        "x.bin": "no",
        ".h.txt": "no",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    saved_dataset(tmp_path / "d", ["d1", "d2", "d3"])
    assert read(open_corpus([tmp_path])) == ["c", "z", "b", "d1", "d2", "d3"]


def test_giant_lines_are_cut_at_spaces() -> None:
    line = "слово " * 40_000
    cut = pieces(line)
    assert "".join(cut) == line
    assert max(map(len, cut)) <= LONGEST
    assert all(piece.endswith(" ") for piece in cut)
    hard = pieces("x" * (2 * LONGEST + 1))
    assert list(map(len, hard)) == [LONGEST, LONGEST, 1]
    assert read(Corpus.of_lines([line]))[0] == cut[0]


def test_progress_comes_to_the_end(tmp_path: Path) -> None:
    for name in ("a.txt", "a.jsonl.gz", "a.parquet", "dataset"):
        SOURCES[name](tmp_path / name)
    told: list[tuple[str, int, int]] = []
    list(open_corpus([tmp_path]).batches(lambda *news: told.append(news)))
    whole = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json")
    assert [read for _, read, _ in told] == sorted(read for _, read, _ in told)
    assert told[-1][1:] == (whole, whole)


# --- whole texts and passages -------------------------------------------------------------------------------

CHAT = [{"role": "user", "content": "Чого?"}, {"role": "assistant", "content": "Того."}]
LONG = "x" * (LONGEST + 1)


@pytest.mark.parametrize("name", SOURCES)
def test_every_kind_of_source_gives_its_texts_and_passages(name: str, tmp_path: Path) -> None:
    """A plain text is divided at empty lines, and records are passages as they are."""
    SOURCES[name](tmp_path / name)
    corpus, plain = open_corpus([tmp_path / name]), name in ("a.txt", "a.gz", "a.txt.zst")
    assert list(corpus.texts()) == ([TEXT] if plain else LINES)
    fingerprint = corpus.fingerprint
    assert list(corpus.passages()) == ([LINES[0], "\n".join(LINES[2:])] if plain else LINES)
    assert read(corpus)
    assert corpus.fingerprint == fingerprint


def test_a_text_without_empty_lines_is_several_passages(tmp_path: Path) -> None:
    """Of whole lines, and nothing is lost; else nothing of a single file could be held out."""
    lines = [f"line {number} {'x' * 90}" for number in range(3000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    found = list(open_corpus([tmp_path / "a.txt"]).passages())
    assert all(isinstance(passage, str) for passage in found)
    assert [line for passage in found for line in str(passage).split("\n")] == lines
    assert len(found) == 5
    assert all(sources.LONG <= len(str(passage)) < sources.LONG + 100 for passage in found[:-1])
    (tmp_path / "b.txt").write_text(LONG * 2)
    assert list(open_corpus([tmp_path / "b.txt"]).passages()) == [LONG * 2]


def test_a_long_line_is_cut_among_lines_and_whole_in_its_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LONG)
    corpus = open_corpus([tmp_path / "a.txt"])
    assert (list(corpus.texts()), read(corpus)) == ([LONG], [LONG[:-1], "x"])


def chats(path: Path) -> None:
    rows = [{"text": None, "messages": CHAT}, {"messages": CHAT}, {"text": "я"}, {"text": None}]
    path.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(
    ("name", "write", "found"),
    [
        ("a.jsonl", chats, [ChatText(CHAT), ChatText(CHAT), "я"]),
        ("a.parquet", lambda path: pq.write_table(pa.table({"messages": [CHAT, None]}), path), [ChatText(CHAT)]),
        ("a.jsonl", lambda path: path.write_text('{"messages": [{"role": "user"}]}'), "no list of roles and contents"),
        ("a.jsonl", lambda path: path.write_text('{"messages": []}'), "line 1: .* no list of roles and contents"),
        ("a.jsonl", lambda path: path.write_text('{"body": ""}'), "line 1 has no field text or messages; it has body"),
    ],
)
def test_a_record_without_a_text_may_be_a_chat(
    name: str, write: Callable[[Path], object], found: list[str | ChatText] | str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    corpus = open_corpus([tmp_path / name], chats=True)
    if isinstance(found, str):
        with pytest.raises(ValueError, match=found):
            list(corpus.passages())
        return
    assert list(corpus.passages()) == found
    assert corpus.documents == len(found)
    assert corpus.notes == [f"{tmp_path / name}: 1 records hold nothing in this field and were left out"]
    with pytest.raises(ValueError, match=r"has no (field|column) text; it has"):
        read(open_corpus([tmp_path / name]))


def test_plain_texts_and_json_lines_need_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SOURCES:
        SOURCES[name](tmp_path / name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in SOURCES:
        if name in ("a.txt", "a.jsonl"):
            assert list(open_corpus([tmp_path / name]).passages())
            continue
        with pytest.raises(ValueError, match=rf"reading .*{name} needs pyarrow: pip install 'paceline\[dict\]'"):
            open_corpus([tmp_path / name])


# --- what is refused ----------------------------------------------------------------------------------------

REFUSED = {
    "nul.txt": (b"a\0b", "holds NUL bytes"),
    "junk.txt": (bytes(range(128, 256)) * 9, "is no UTF-8 text"),
    "empty.txt": (b"", "without a single word"),
    "blank.txt": (b" \n.,\n", "without a single word"),
    "cut.gz": (gzip.compress(TEXT.encode() * 99)[:-20], "can't be decompressed"),
    "no.gz": (b"plain text", "can't be decompressed"),
    "cut.zst": (zstd(bytes(range(256)) * 99 + TEXT.encode())[:-20], "can't be decompressed"),
    "bad.jsonl": (b'{"text": "a"}\n\n{"text": \n', "bad.jsonl, line 3 is no JSON"),
    "digits.jsonl": (b'{"text": ' + b"9" * 9999 + b"}", "line 1 is no JSON"),
    "list.jsonl": (b"[1]", "line 1 is no record but list"),
    "field.jsonl": (b'{"text": "a"}\n{"body": "a"}', "line 2 has no field text; it has body"),
    "number.jsonl": (b'{"text": 5}', "line 1: the field text is no text but int"),
    "cut.parquet": (b"PAR1 and no more", "is no whole parquet file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_text_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    raw, said = REFUSED[name]
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(ValueError, match=said) as told:
        read(open_corpus([tmp_path / name]))
    assert str(tmp_path / name) in str(told.value)
    assert "\n" not in str(told.value)


def test_what_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no corpus is given"):
        open_corpus([])
    with pytest.raises(ValueError, match="can't be read"):
        open_corpus([tmp_path / "none.txt"])
    with pytest.raises(ValueError, match="holds no text"):
        open_corpus([tmp_path])
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        open_corpus(["/dev/null"])
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="has no column text; it has body, n"):
        read(open_corpus([tmp_path / "a.parquet"]))
    with pytest.raises(ValueError, match="column n is no text but int64"):
        read(open_corpus([tmp_path / "a.parquet"], field="n"))
    assert read(open_corpus([tmp_path / "a.parquet"], field="body")) == ["a"]


def test_splits_of_a_saved_dataset_are_named(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text("{}")
    saved_dataset(tmp_path / "train", ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"holds several splits.*name one of .*train"):
        open_corpus([tmp_path])
    assert read(open_corpus([tmp_path / "train"])) == ["a", "b", "c"]


@pytest.mark.parametrize("state", ["", "{}", "[]", '{"_data_files": [5]}'])
def test_a_folder_that_only_looks_like_a_dataset_is_refused(state: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(ValueError, match=r"state.json lists no files of a data set"):
        open_corpus([tmp_path])


def test_a_mark_of_byte_order_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl(["a"]))
    assert read(open_corpus([tmp_path])) == ["a"]


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize(
    "change", [grow, lambda path: path.write_bytes(b"cut"), Path.unlink], ids=["grow", "cut", "gone"]
)
def test_a_file_that_changes_while_it_is_read_is_refused(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "BATCH", 10_000)
    path = tmp_path / "a.txt"
    path.write_bytes(b"line of words\n" * 200_000)
    batches = open_corpus([path]).batches()
    next(batches)
    change(path)
    with pytest.raises(ValueError, match="changed while it was read"):
        list(batches)


def test_fields_without_text_and_half_characters_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": null}\n{"text": "a \\ud83d b"}\n{"text": "\xff"}\n')
    corpus = open_corpus([path])
    assert read(corpus) == ["a \ufffd b", "\ufffd"]
    assert corpus.documents == 2
    assert sorted(corpus.notes) == [
        f"{path}: 1 records hold nothing in this field and were left out",
        f"{path}: 2 places were no UTF-8 and were replaced",
    ]


# --- data sets of a hub -------------------------------------------------------------------------------------


def with_loader(monkeypatch: pytest.MonkeyPatch, load: Callable[..., object]) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace(name="datasets")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "datasets", module)


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ("hf:a/b", ("a/b", None, "train")),
        ("hf:a/b:test", ("a/b", None, "test")),
        ("hf:a/b:uk", ("a/b", "uk", "train")),
        ("hf:a/b:uk:dev", ("a/b", "uk", "dev")),
        ("hf:", None),
        ("hf:a::b", None),
    ],
)
def test_a_data_set_is_streamed(
    spec: str, asked: tuple[str, str | None, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def load(name: str, config: str | None, *, split: str, streaming: bool) -> Iterator[dict[str, str]]:
        calls.append((name, config, split))
        assert streaming
        return iter([{"text": f"text {n}\nmore"} for n in range(3000)])

    with_loader(monkeypatch, load)
    if asked is None:
        with pytest.raises(ValueError, match="names no data set"):
            open_corpus([spec])
        return
    corpus = open_corpus([spec])
    assert read(corpus)[-2:] == ["text 2999", "more"]
    assert (calls, corpus.documents) == ([asked], 3000)


def and_then(records: list[dict[str, str]], error: Exception) -> Iterator[dict[str, str]]:
    yield from records
    raise error


def test_a_data_set_that_fails_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no\nroute.")

    with_loader(monkeypatch, fail)
    with pytest.raises(ValueError, match=r"hf:a can't be read \(no route\); check"):
        read(open_corpus(["hf:a"]))
    for broken in (RuntimeError("closed"), ConnectionError("closed"), pa.ArrowInvalid("closed")):
        with_loader(monkeypatch, lambda *_, broken=broken, **__: and_then([{"text": "a"}] * 2000, broken))
        with pytest.raises(ValueError, match=r"\Ahf:a can't be read \(closed\); check its name and the network\Z"):
            read(open_corpus(["hf:a"]))
    with_loader(monkeypatch, lambda *_, **__: iter([{"body": "a"}]))
    with pytest.raises(ValueError, match="hf:a, record 1 has no field text; it has body"):
        read(open_corpus(["hf:a"]))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"needs datasets: pip install 'paceline\[datasets\]'"):
        open_corpus(["hf:a"])


# --- a part kept for tests ----------------------------------------------------------------------------------


def words(texts: list[str]) -> int:
    return sum(len(text.split()) for text in texts)


def test_a_test_comes_from_all_over_the_records_and_the_end_of_files(tmp_path: Path) -> None:
    records = [f"record {n} has\nsome words {n}" for n in range(100)]
    lines = [f"line {n}" for n in range(300)]
    (tmp_path / "a.jsonl").write_bytes(jsonl(records))
    (tmp_path / "b.txt").write_text("\n".join(lines))
    corpus = open_corpus([tmp_path])
    train, tests = split_by_document(corpus, 120)
    *taken, tail = tests
    assert words(taken) >= 60
    assert words([tail]) == 60
    assert tail == "\n".join(lines[-30:])
    assert taken == records[:100:10]
    expected = [line for text in records if text not in taken for line in text.split("\n")]
    assert train == [*expected, *lines[:-30]]
    assert corpus.documents == 101
    assert len(corpus.fingerprint) == 16


def test_train_and_test_share_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("both\nonly here\n\n both \r\nend of it\nboth\n")
    train, tests = split_by_document(open_corpus([path]), 1)
    assert tests == ["both\n"]
    assert train == ["only here", "end of it"]


@pytest.mark.parametrize("size", [1, 7, 50, 120])
def test_a_test_has_at_least_its_words(size: int, tmp_path: Path) -> None:
    texts = ["w " * (n * n % 17) + f"end{n}" for n in range(40)]
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts))
    train, tests = split_by_document(open_corpus([tmp_path / "a.jsonl"]), size)
    assert size <= words(tests) <= size + 17
    assert words(train) + words(tests) == words(texts)


def test_a_test_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one two three\n")
    for size, said in ((3, "has 3 words"), (1, "leaves no line"), (0, "at least 1 word")):
        with pytest.raises(ValueError, match=said):
            split_by_document(open_corpus([path]), size)
