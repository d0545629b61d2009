"""A corpus on disk: what is found in it, what a damaged file says, and the commands that make one."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from drafting import context_of, drafted, flipped, paths_of
from engine import tabled
from paceline.cli import main
from paceline.drafters import Budget, make_drafter
from paceline.drafters.datastore import DATASTORE, KEY, Datastore
from paceline.drafters.indexing import build, pieces_of, sorted_places
from paceline.drafters.rest import Rest
from paceline.drafters.suffix import Suffix
from paceline.drafters.tokenfile import WIDEST
from paceline.targets.pocket.bundle import read_tokenizer
from paceline.vocabulary import Vocabulary

FINGERPRINT = "0123456789abcdef"


def store_of(path: Path, *texts: Sequence[int]) -> Datastore:
    build(path, [np.array(text, np.int64) for text in texts], FINGERPRINT)
    return Datastore(str(path))


# --- the order and what is found by it --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_places_are_sorted_by_what_stands_there(seed: int) -> None:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, random.integers(1, 5), random.integers(1, 120))
    padded = [*tokens.tolist(), *[-1] * KEY]
    expected = sorted(range(len(tokens)), key=lambda place: (padded[place : place + KEY], place))
    assert sorted_places(tokens + 1).tolist() == expected


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("offset", [0, 2**16, WIDEST - 4], ids=["2 bytes", "4 bytes", "highest ids"])
def test_the_longest_ending_and_all_that_followed_it(tmp_path: Path, seed: int, offset: int) -> None:
    random = np.random.default_rng(seed)
    texts = [(random.integers(0, 4, random.integers(1, 80)) + offset).tolist() for _ in range(3)]
    store = store_of(tmp_path / "x.rest", *texts)
    store.file.verified()
    assert store.header.width == (2 if offset == 0 else 4)
    assert (store.header.texts, len(store)) == (3, sum(map(len, texts)) + 3)
    for _ in range(40):
        ending = (random.integers(0, 5, random.integers(1, 25)) + offset).tolist()
        longest, shortest = sorted(random.integers(1, KEY + 1, 2).tolist(), reverse=True)
        told = store.following(ending, 10**6, 5, longest, shortest)
        size, expected = followed(texts, ending, 5, longest, shortest)
        assert Counter((tuple(tokens), found) for tokens, found in told) == Counter((tuple(t), size) for t in expected)


def followed(
    texts: list[list[int]], ending: list[int], count: int, longest: int, shortest: int
) -> tuple[int, list[list[int]]]:
    """The definition."""
    for size in range(min(longest, len(ending)), shortest - 1, -1):
        found = [
            text[i + size : i + size + count]
            for text in texts
            for i in range(len(text))
            if starts(text, i, ending[-size:])
        ]
        if found:
            return size, [tokens for tokens in found if tokens]
    return 0, []


def starts(text: list[int], place: int, wanted: list[int]) -> bool:
    return text[place : place + len(wanted)] == wanted


def test_of_many_places_each_continuation_is_represented_by_its_share(tmp_path: Path) -> None:
    store = store_of(tmp_path / "x.rest", [1, 2, 3] * 300 + [1, 2, 4] * 100)
    told = Counter(tokens[0] for tokens, _ in store.following([1, 2], 40, 1))
    assert told == {3: 30, 4: 10}


def test_the_same_texts_are_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        store_of(tmp_path / name, [1, 2, 1, 2, 1], [], [3])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_nothing_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hold no tokens"):
        store_of(tmp_path / "x.rest", [], [])
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_is_cut_short_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store_of(tmp_path / "x.rest", [1, 2])
    assert list(tmp_path.iterdir()) == []


# --- files that are not what they should be ---------------------------------------------------------------------------


def test_a_damaged_file_is_one_sentence_or_at_worst_a_useless_draft(tmp_path: Path) -> None:
    path = tmp_path / "x.rest"
    text = [0, 3, 1, 4, 2, 0, 3, 5, 0, 3, 1]
    store_of(path, text)
    whole = path.read_bytes()
    refusal = r"x\.rest is (no datastore|damaged)"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=refusal):
            Datastore(str(path))
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match=r"is damaged: its arrays have \d+ bytes and should have"):
        Datastore(str(path))
    for place in range(len(whole)):
        path.write_bytes(flipped(whole, place))
        with pytest.raises(ValueError, match=refusal):
            Datastore(str(path)).file.verified()
        with suppress(ValueError):
            drafter = Rest(corpus=str(path), shortest=1)
            for end in range(1, len(text)):
                drafter.propose_one(context_of(text[:end]), Budget(8, 8)).check(6)


def test_arrays_at_odd_places_are_refused(tmp_path: Path) -> None:
    """Numpy cannot read them as memory. Ours are aligned, whatever the length of the description."""
    path = tmp_path / "x.rest"
    store_of(path, [1, 2, 3])
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for more in range(1, 8):
        header = (length + more).to_bytes(8, "little") + whole[8 : 8 + length] + b" " * more
        path.write_bytes(header + whole[8 + length :])
        if more % 4:
            with pytest.raises(ValueError, match="is damaged: its arrays are not as it says"):
                Datastore(str(path))
    header = store_of(path, [1, 2, 3]).header
    for size in range(9):
        odd = {"tokens": np.zeros(4 + KEY, np.uint16), "places": np.zeros(4, np.uint32)}
        DATASTORE.write(path, replace(header, tokenizer="x" * size), odd)
        assert path.read_bytes() == save(odd, safe_open(path, "np").metadata()), "as the library writes it"
        assert len(Datastore(str(path))) == 4


def test_a_datastore_of_an_earlier_version_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.rest"
    path.write_bytes(b"PACEREST" + bytes(500))
    with pytest.raises(
        ValueError, match=r"earlier version of paceline; build it again: paceline datastore build --text"
    ):
        Datastore(str(path))


def test_places_of_other_tokens_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.rest"
    header = store_of(path, [1, 2, 3]).header
    for tokens, places in ((4 + KEY, 3), (4 + KEY, 5), (KEY - 1, 0), (0, 4)):
        arrays = {"tokens": np.zeros(tokens, np.uint16), "places": np.zeros(places, np.uint32)}
        DATASTORE.write(path, header, arrays)
        with pytest.raises(ValueError, match=r"is damaged: it has \d places of \d+ tokens"):
            Datastore(str(path))


def test_another_tokenizer_or_a_smaller_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.rest"
    store_of(path, [1, 2, 3, 9])
    for drafter in (Rest(corpus=str(path)), Suffix(corpus=str(path))):
        with pytest.raises(ValueError, match="holds token 9, and the model's vocabulary has 6 tokens"):
            drafter.fit(tabled())
        with pytest.raises(ValueError, match="tokens of another tokenizer"):
            drafter.fit(tabled(), Vocabulary(read_tokenizer("pocket")))


# --- drafts -----------------------------------------------------------------------------------------------------------


def test_what_the_corpus_holds_is_drafted_likeliest_first(tmp_path: Path) -> None:
    path = tmp_path / "x.rest"
    store_of(path, [1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 7], [2, 3, 4, 5])
    tree = drafted(Rest(corpus=str(path)), [9, 1, 2])
    assert paths_of(tree)[0] == (3,)
    assert sorted(paths_of(tree)) == [(3,), (3, 4), (3, 4, 5), (3, 4, 6), (7,)]
    assert set(tree.sources) == {"rest"}
    assert len(drafted(Rest(corpus=str(path)), [9, 2, 1])) == 0
    assert drafted(Rest(corpus=str(path), length=1), [1, 2]).depth == 1


def test_suffix_prefers_the_corpus_only_where_it_matches_more(tmp_path: Path) -> None:
    path = tmp_path / "x.rest"
    store_of(path, [*range(10, 22), 30], [5, 6, 40])
    drafter = Suffix(corpus=str(path))
    own = drafted(drafter, [5, 6, 7, 5, 6], Budget(9, 1))
    assert own.tokens.tolist() == [7, 40], "of equal matches that of the text itself comes first"
    both = drafted(drafter, [20, 21, 8, *range(10, 22)], Budget(9, 1))
    assert both.tokens.tolist() == [30, 8]


# --- the commands -----------------------------------------------------------------------------------------------------


def say(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_datastore_is_built_described_and_drafted_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", str(tmp_path / "x.rest")
    text.write_text("The cat sat on the mat.\nZażółć gęślą jaźń.\n" * 3, encoding="utf8")
    code, said, _ = say(["datastore", "build", "--text", str(text), str(text), "--out", out, "--json"], capsys)
    told = json.loads(said.splitlines()[-1])
    assert (code, told["texts"], told["bytes"]) == (0, 2, Path(out).stat().st_size)
    vocabulary = Vocabulary(read_tokenizer("pocket"))
    assert told["tokenizer"] == vocabulary.fingerprint
    assert told["tokens"] == 2 * len(vocabulary.encode(text.read_text(encoding="utf8"), add_special=False))
    code, said, _ = say(["datastore", "info", out, "--json"], capsys)
    assert (code, json.loads(said)) == (0, told)
    code, said, _ = say(["datastore", "info", out], capsys)
    assert code == 0
    assert f"{told['tokens']} tokens of 2 texts" in said
    drafter = make_drafter(f"rest:corpus={out}")
    prompt = vocabulary.encode("The cat sat on the", add_special=False)
    tree = drafter.propose_one(context_of(prompt.tolist()), Budget(4, 4))
    assert vocabulary.text(tree.trunk().tokens.tolist()).startswith(" mat.")


def test_each_record_is_a_text_of_a_datastore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "The cat sat"}\n{"body": "on the mat"}\n{"body": null}\n')
    (tmp_path / "b.md").write_text("# Cats")
    build = ["datastore", "build", "--text", str(tmp_path), "--field", "body", "--out", str(tmp_path / "x.rest")]
    code, said, _ = say(build, capsys)
    assert (code, "of 3 texts" in said) == (0, True)
    assert "a.jsonl: 1 records hold nothing in this field and were left out" in said


def test_mistakes_are_one_sentence_and_leave_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, out = tmp_path / "good.txt", tmp_path / "bad.txt", tmp_path / "x.rest"
    good.write_text("words", encoding="utf8")
    bad.write_bytes(b"\xff\xfe")
    there = {path.name for path in tmp_path.iterdir()}
    for arguments, reason in (
        (["build", "--text", str(bad), "--out", str(out)], "is no UTF-8 text"),
        (["build", "--text", str(tmp_path / "none"), "--out", str(out)], "can't be read (No such file"),
        (["build", "--text", str(good), "--out", str(tmp_path / "no" / "x")], "there is no folder"),
        (["build", "--text", str(good), "--out", str(tmp_path)], "it is a folder"),
        (["build", "--tokenizer", str(tmp_path), "--text", str(good), "--out", str(out)], "no tokenizer at"),
        (["info", str(good)], "is no datastore"),
        (["info", str(out)], "cannot read the datastore"),
    ):
        code, said, error = say(["datastore", *arguments], capsys)
        assert (code, said) == (2, "")
        assert reason in error
        assert error.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == there


def test_a_text_in_pieces_is_the_text() -> None:
    text = ("x" * 999 + "\n") * 200 + "end"
    assert "".join(pieces_of(text)) == text
    assert len(pieces_of(text)) > 2
    assert pieces_of("") == []
