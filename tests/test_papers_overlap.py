"""Overlap of vocabularies: tokens are compared as bytes, whatever their tokenizers write for a space, and the paper's
tokenizers have the overlap that they have."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from paceline.vocabulary import Vocabulary
from paper_items import shown
from papers.bielik.overlap import Overlap, Tokens, claims, overlap
from tokenizer_kinds import BYTES, FUSE, REAL, SPACE, sequence, wrapped

TEXT = {"pl": ["ba ba", " a"]}


def marked() -> Any:
    """Spaces are U+2581. Ids 0 to 5, and two special tokens behind them."""
    vocab = {"<unk>": 0, "▁a": 1, "b": 2, "a": 3, "ś": 4, "▁": 5, "<0x62>": 6}
    tokenizer = Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = sequence(SPACE, BYTES, FUSE)
    return wrapped(tokenizer)


def in_bytes() -> Any:
    """Spaces are U+0120, and a letter of two bytes has two letters."""
    vocab = {"a": 0, "Ġ": 1, "b": 2, "Ġa": 3, "ba": 4, "ÅĽ": 5, "▁": 6}
    tokenizer = Tokenizer(models.BPE(vocab, [("Ġ", "a"), ("b", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return wrapped(tokenizer)


@pytest.fixture(scope="module")
def both() -> tuple[Tokens, Tokens]:
    return Tokens.of(Vocabulary(marked()), TEXT), Tokens.of(Vocabulary(in_bytes()), TEXT)


def test_tokens_are_their_bytes_and_special_ones_are_none(both: tuple[Tokens, Tokens]) -> None:
    one, other = both
    assert one.spelled[1:7] == [b" a", b"b", b"a", "ś".encode(), b" ", b"b"]
    assert other.spelled[:6] == [b"a", b" ", b"b", b" a", b"ba", "ś".encode()]
    assert one.spelled[7:] == other.spelled[7:] == [b"", b""]
    assert one.polish == other.polish == {"ś".encode()}


def test_an_overlap_is_of_tokens_ids_and_text(both: tuple[Tokens, Tokens]) -> None:
    """The first writes "ba ba" as b, a, " " and so on: all of it is in the second. The second has "ba", and the first
    does not: of ba, " ", ba and " a" half is in the first."""
    one, other = both
    there, back = overlap(one, other), overlap(other, one)
    assert one.used["pl"] == {b"b": 2, b"a": 2, b" ": 1, b" a": 1}
    assert there.texts == {"pl": 1.0}
    assert other.used["pl"] == {b"ba": 2, b" ": 1, b" a": 1}
    assert back.texts == {"pl": 0.5}
    assert (back.tokens, back.shared) == (7, 5)
    assert there.equal_ids == back.equal_ids == there.equal_low_ids == 1  # "b" is 2 in both
    assert there.polish_share == back.polish_share == 1


def test_a_tokenizer_overlaps_itself(both: tuple[Tokens, Tokens]) -> None:
    for one in both:
        found = overlap(one, one)
        assert found.share == found.texts["pl"] == 1
        assert found.equal_ids == found.tokens


def made_overlap(shared: int, ids: int, polish: tuple[int, int] = (0, 0)) -> Overlap:
    return Overlap(
        tokens=1000,
        shared=shared,
        polish=polish[0],
        polish_shared=polish[1],
        equal_ids=ids,
        equal_low_ids=ids,
        texts={},
    )


QWEN, RELATED = "qwen2-2.5-3", "bielik-v3-APT4"


@pytest.mark.parametrize(
    ("pairs", "agree"),
    [
        ({QWEN: made_overlap(900, 8, (100, 90)), RELATED: made_overlap(140, 0)}, [True, False, False, False]),
        ({QWEN: made_overlap(200, 500, (300, 290)), RELATED: made_overlap(900, 0)}, [False, True, False, True]),
        ({RELATED: made_overlap(900, 0)}, [False]),
        ({}, []),
    ],
)
def test_the_papers_words_are_held_against_numbers(pairs: Mapping[str, Overlap], agree: list[bool]) -> None:
    back = made_overlap(100, 8, (400, 90))
    found = {("bielik-v2", name): one for name, one in pairs.items()} | {(name, "bielik-v2"): back for name in pairs}
    assert [one.agrees for one in claims(found)] == agree


# --- the script


def run(given: list[str]) -> dict[str, Any]:
    found = shown("bielik", "overlap", *given)
    return found | {"pairs": {(one["target"], one["drafter"]): one for one in found["pairs"]}}


def test_folders_and_bundled_models_are_compared(tmp_path: Path) -> None:
    in_bytes().save_pretrained(tmp_path / "bytes")
    (tmp_path / "pl.txt").write_text("ba ba " * 50, encoding="utf8")
    given = ["--tokenizers", str(tmp_path / "bytes"), "pocket", "--texts", f"pl={tmp_path / 'pl.txt'}"]
    found = run([*given, "--characters", "12"])
    assert found["pairs"].keys() == {("bytes", "pocket"), ("pocket", "bytes")}
    assert found["notes"][1] == "pl: 12 characters of 1 files"
    assert 0 < found["pairs"]["bytes", "pocket"]["texts"]["pl"] <= 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--tokenizers", "pocket"], "an overlap is of two tokenizers"),
        (["--characters", "0"], "--characters must be at least 1"),
        (["--texts", "pl=empty.txt"], "nothing but white space"),
    ],
)
def test_bad_options_are_told(given: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "text.txt").write_text("ba")
    usual = [] if "--texts" in given else ["--texts", "pl=text.txt"]
    with pytest.raises(ValueError, match=said):
        shown("bielik", "overlap", *usual, *given)


@pytest.mark.skipif(not REAL.exists(), reason="real tokenizers are not here: ../shared/data/tokenizers is absent")
def test_the_papers_target_and_drafter() -> None:
    """The intersection is most of the target's vocabulary and nearly all of its Polish text, and few ids are equal."""
    text = REAL.parent / "parallel" / "pl.txt"
    given = ["--data", str(REAL.parent), "--tokenizers", "bielik-v2", "qwen2-2.5-3", "--texts", f"pl={text}"]
    found = run(given)["pairs"]["bielik-v2", "qwen2-2.5-3"]
    assert found["shared"] / found["tokens"] == pytest.approx(0.918, abs=0.002)
    assert found["texts"]["pl"] == pytest.approx(0.988, abs=0.002)
    assert found["equal_ids"] == 8
