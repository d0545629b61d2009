"""A dictionary's file comes back as it was written, and whatever else it is, it does no harm."""

import json
import lzma
import os
import random
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file

from dictionary_tables import (
    SAID,
    Entries,
    made_up,
    packed_before,
    sealed,
    table_of,
    taken_apart,
    walked,
    write,
    written_before,
)
from paceline.dictionary import file, old
from paceline.dictionary.entries import Entries as Table
from paceline.dictionary.header import MOST
from paceline.dictionary.index import Dictionary
from paceline.dictionary.keys import LONGEST
from paceline.files.arrays import DESCRIBED, KEY
from tokenizer_kinds import vocabulary_of

pytest.importorskip("marisa_trie", reason="looking up needs marisa-trie: pip install 'paceline[dict]'")

FEW = range(5, 12)
NUMBERS = ("entries", "completions")
WIDE = [0, 1, 65_535, 65_536, 99_999, 2**20, 2**31 - 1]


def refused(path: Path) -> str | None:
    """Why a file is no dictionary, in one sentence; None if it is one that can be used without any harm."""
    try:
        header, table = file.read(path)
    except ValueError as error:
        said = str(error)
        assert said.startswith(str(path)) or f"dictionary {path}" in said, said
        assert "\n" not in said
        assert len(said) < len(str(path)) + 220
        return said
    opened = Dictionary.open(path)
    assert len(opened) == len(table) == header.entries
    used = np.unique(np.concatenate([table.prefixes.ravel(), table.texts.ravel(), [header.highest]]))
    assert used[-1] == header.highest
    dice = random.Random(0)
    for ending in [row[row >= 0].tolist() for row in table.prefixes[:50]] + [
        dice.choices(used[used >= 0].tolist(), k=9) for _ in range(20)
    ]:
        for one in opened.matches(ending):
            assert 1 <= len(one.tokens) <= header.longest_completion
            assert 0 <= min(one.tokens) <= max(one.tokens) <= header.highest
            assert 1 <= one.length <= header.longest_prefix
            assert one.first < 0 > one.rest
    return None


def same(one: Table, other: Table) -> None:
    for name in ("prefixes", "completions", "first", "rest", "texts"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert np.array_equal(mine, theirs), name
        assert mine.dtype == theirs.dtype, name


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "small.dict"
    write(path, made_up(1, 12, FEW))
    return path


# --- there and back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {(7,): ((8,), 15, 0)},
        {(0,): ((0,) * 8, 0, 15), (0,) * 8: ((0,), 1, 2)},
        made_up(2, 300, FEW),
        made_up(3, 300, WIDE),
        made_up(4, 5000, range(3000)),
        walked(5, 2000, FEW),
        walked(6, 300, WIDE),
    ],
    ids=["none", "one", "token 0", "few ids", "wide ids", "many", "as from a corpus", "the same of wide ids"],
)
def test_a_dictionary_comes_back_as_it_was_written(entries: Entries, tmp_path: Path) -> None:
    table = table_of(entries)
    header = file.write(tmp_path / "a", table, **SAID)
    again, back = file.read(tmp_path / "a")
    assert again == header
    same(back, table)
    assert (header.entries, header.highest, header.language) == (len(entries), table.highest, "uk")
    file.write(tmp_path / "b", back, **{**SAID, "corpus": dict(reversed(SAID["corpus"].items()))})  # type: ignore[attr-defined]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes(), "the same bytes twice"


@pytest.mark.parametrize(
    ("entries", "limits", "ends", "strays", "tail_tokens"),
    [
        ({(6,): (7, 8, 9), (6, 7): (8, 9), (6, 7, 8): (9,)}, (8, 8), 1, 0, 0),
        ({(6,): (7, 8, 9), (6, 7, 8): (9,)}, (8, 8), 2, 0, 2),
        ({(6,): (7, 8, 9), (6, 7): (8, 8)}, (8, 8), 2, 1, 3),
        ({(6,): (7, 8), (6, 7): (8, 8)}, (8, 8), 2, 1, 2),
        ({(6,): (7, 8), (6, 7): (8, 8)}, (8, 2), 1, 0, 1),
        ({(6, 7): (8, 9), (7, 8): (9,)}, (2, 8), 1, 0, 0),
        ({(6, 7): (8, 9), (7, 8): (9,)}, (3, 8), 2, 0, 1),
        ({(5,) * 8: (5,) * 8}, (8, 8), 0, 0, 0),
        ({(5,) * 8: (5,) * 7}, (8, 8), 1, 1, 6),
        ({(5,): (6,) * 3, (6,): (5,) * 3}, (1, 3), 2, 2, 4),
        ({(5,): (6, 5, 6), (6,): (5, 6, 5)}, (1, 3), 0, 0, 0),
    ],
)
def test_what_follows_another_entry_is_told_once(
    entries: dict[tuple[int, ...], tuple[int, ...]],
    limits: tuple[int, int],
    ends: int,
    strays: int,
    tail_tokens: int,
    tmp_path: Path,
) -> None:
    table = table_of({key: (text, 3, 4) for key, text in entries.items()})
    limited = {"longest_prefix": limits[0], "longest_completion": limits[1]}
    file.write(tmp_path / "a", table, **{**SAID, **limited})
    same(file.read(tmp_path / "a")[1], table)
    sections = taken_apart(tmp_path / "a")[1]
    assert [len(sections[name]) for name in ("ends", "strays", "tails")] == [ends, strays, tail_tokens]


def test_more_tokens_than_two_bytes_can_number_take_four(tmp_path: Path) -> None:
    """Their order in the file is that of their places, and 65,536 places still fit."""
    for many, width in ((2**16, 2), (2**16 + 1, 4)):
        texts = np.full((-(-many // LONGEST), LONGEST), -1, np.int32)
        ids = np.arange(many, dtype=np.int32) * 3
        texts.ravel()[:many] = ids
        prefixes = np.full((many, LONGEST), -1, np.int32)
        prefixes[:, -1] = ids
        levels = np.zeros(many, np.uint8)
        table = Table(prefixes, (np.arange(many) // 8).astype(np.int32), levels, levels, texts)
        file.write(tmp_path / "wide", table, **SAID)
        assert taken_apart(tmp_path / "wide")[1]["keys"].nbytes == many * width
        same(file.read(tmp_path / "wide")[1], table)


def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    for said in ({"licence": "x" * DESCRIBED}, {"licence": "\ud800"}, {"min_probability": float("nan")}):
        with pytest.raises(ValueError, match=r"are the most; shorten it|surrogates not allowed|not JSON compliant"):
            write(tmp_path / "a", made_up(1, 5, FEW), **said)
    with pytest.raises(ValueError, match=r"cannot write .*none/a: No such file or directory"):
        write(tmp_path / "none" / "a", made_up(1, 5, FEW))
    assert list(tmp_path.iterdir()) == []


def test_a_dictionary_says_whose_ids_it_holds(written: Path) -> None:
    vocabulary = vocabulary_of("byte-level")
    header = file.read(written)[0]
    header.check(written, 12, None)
    with pytest.raises(ValueError, match="holds token 11, and the model's vocabulary has 11 tokens"):
        header.check(written, 11, None)
    with pytest.raises(ValueError, match=r"another tokenizer \(made-up\)"):
        header.check(written, vocabulary.size, vocabulary)
    write(written, made_up(1, 25, FEW), tokenizer=vocabulary.fingerprint)
    file.read(written)[0].check(written, vocabulary.size, vocabulary)


# --- accidents ----------------------------------------------------------------------------------------------


def test_every_file_that_was_cut_short_or_went_on_is_refused(written: Path) -> None:
    whole = written.read_bytes()
    for size in reversed(range(len(whole))):
        os.truncate(written, size)
        assert refused(written), size
    written.write_bytes(whole + b"\0")
    assert "should have" in (refused(written) or "")


def flipped_somewhere(path: Path) -> None:
    """Every byte of a file is flipped in turn, and that is noticed."""
    whole = path.read_bytes()
    assert refused(path) is None
    with path.open("r+b", buffering=0) as opened:
        for place, byte in enumerate(whole):
            os.pwrite(opened.fileno(), bytes([byte ^ 1 << place % 8]), place)
            assert refused(path), place
            os.pwrite(opened.fileno(), bytes([byte]), place)
    assert refused(path) is None


def test_every_byte_that_was_flipped_is_noticed(written: Path) -> None:
    flipped_somewhere(written)


def test_other_things_are_no_dictionaries(tmp_path: Path, written: Path) -> None:
    for name, content in (("empty", b""), ("text", b"a text\n" * 99), ("zeros", bytes(999)), ("magic", old.MAGIC)):
        (tmp_path / name).write_bytes(content)
        assert refused(tmp_path / name)
    for path in (tmp_path, tmp_path / "none", Path("/dev/null"), Path("/dev/zero")):
        assert refused(path), path
    parts = taken_apart(written)
    written.write_bytes(sealed(*parts, kind="datastore"))
    assert "is no dictionary of paceline" in (refused(written) or "")
    written.write_bytes(sealed(*parts, version=5))
    assert "of version 5, and this paceline reads version 4" in (refused(written) or "")


def test_any_program_can_read_the_arrays(written: Path) -> None:
    """The library knows the file as we wrote it."""
    described, sections = taken_apart(written)
    arrays = load_file(written)
    assert arrays.keys() == sections.keys()
    assert all(np.array_equal(arrays[name], sections[name]) for name in arrays)
    with safe_open(written, "np") as opened:
        assert json.loads(opened.metadata()[KEY])["description"] == described


# --- lies ---------------------------------------------------------------------------------------------------


def test_what_is_sealed_again_is_read(written: Path) -> None:
    """Otherwise the lies below would be refused for their checksum."""
    whole = written.read_bytes()
    assert sealed(*taken_apart(written)) == whole


HUGE = 10**4000
DEEP = json.loads("[" * 40 + "]" * 40)


@pytest.mark.parametrize(
    "lie",
    [
        *({name: value} for name in NUMBERS
          for value in (-1, 1.5, "25", None, [], MOST, HUGE, float("nan"))),
        *({name: value} for name in ("longest_prefix", "longest_completion", "order")
          for value in (0, -1, 9, "8", None, 8.0, HUGE)),
        *({"highest": value} for value in (-1, 2**31, 10, "11", None, 11.0, HUGE)),
        *({"min_probability": value}
          for value in (-0.1, 1.1, "0.5", None, [0.5], float("nan"), float("inf"), HUGE)),
        *({name: value} for name in ("tokenizer", "language", "licence", "tokenizer_name")
          for value in (None, 5, [], {}, "\ud800")),
        *({"corpus": value} for value in (None, [], 5, json.loads('{"a":' * 40 + "1" + "}" * 40), {"a": DEEP})),
        *({"corpus": {"a": value}} for value in (float("nan"), float("-inf"), "\udfff")),
        {"unheard_of": 1}, {"rule": "mine"},
    ],
    ids=lambda lie: str(lie)[:40],
)  # fmt: skip
def test_a_description_that_cannot_be_is_refused(lie: dict[str, Any], written: Path) -> None:
    described, sections = taken_apart(written)
    written.write_bytes(sealed({**described, **lie}, sections))
    assert refused(written)


@pytest.mark.parametrize("described", [{}, [], None, 5, "text", [1, 2]], ids=str)
def test_a_description_that_is_none_is_refused(described: Any, written: Path) -> None:
    written.write_bytes(sealed(described, taken_apart(written)[1]))
    assert "is damaged: " in (refused(written) or "")


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def test_a_header_that_is_none_is_refused(written: Path) -> None:
    for header in (b"", b"{}", b"[]", b"null", b"5", b"\xff\xfe", b'{"a":' * 6000, b"[" * 60_000, b"9" * 60_000,
                   b'{"__metadata__": 5}', b'{"__metadata__": {}}', b'{"__metadata__": {"paceline": 5}}',
                   b'{"__metadata__": {"paceline": "[]"}}', b'{"__metadata__": {"paceline": "\\ud800"}}'):  # fmt: skip
        written.write_bytes(with_header(header))
        assert "is no dictionary of paceline" in (refused(written) or ""), header[:40]


@pytest.mark.parametrize("key", ["dtype", "shape", "data_offsets"])
@pytest.mark.parametrize("value", [None, [], {}, -1, "U9", "F32", [5], [-1, 3], [0, 2**70], [1.0, 2.0], [[0], [1]]])
def test_places_of_arrays_may_not_lie(key: str, value: Any, written: Path) -> None:
    whole = written.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:start])
    for name in sorted(set(header) - {"__metadata__"}):
        for lie in ({**header, name: {**header[name], key: value}}, {**header, name: value}):
            written.write_bytes(with_header(json.dumps(lie).encode(), whole[start:]))
            assert "is damaged: " in (refused(written) or ""), lie


def test_all_arrays_and_no_others(written: Path) -> None:
    described, sections = taken_apart(written)
    for name in sections:
        written.write_bytes(sealed(described, {other: part for other, part in sections.items() if other != name}))
        assert "is damaged: " in (refused(written) or "")
        written.write_bytes(sealed(described, {**sections, name: sections[name].astype(np.float32)}))
        assert "is damaged: " in (refused(written) or "")
    written.write_bytes(sealed(described, {**sections, "more": sections["keys"]}))
    assert "is damaged: " in (refused(written) or "")


@pytest.mark.parametrize(
    ("name", "places", "values"),
    [
        ("alphabet", [-1], [2**32 - 1]), ("alphabet", [0, 1], [2, 1]), ("alphabet", [0, 1], [5, 5]),
        ("shared", [0], [1]), ("shared", [-1], [8]), ("shared", [-1], [255]),
        ("lengths", [0], [0]), ("lengths", [0], [9]), ("lengths", [-1], [255]),
        ("keys", [-1], [2**16 - 1]), ("firsts", [-1], [2**16 - 1]), ("ends", [-1], [255]), ("tails", [-1], [2**16 - 1]),
    ],
)  # fmt: skip
def test_a_section_that_cannot_be_is_refused(name: str, places: list[int], values: list[int], written: Path) -> None:
    described, sections = taken_apart(written)
    sections[name][places] = values
    written.write_bytes(sealed(described, sections))
    assert "is damaged: " in (refused(written) or "")


def test_what_two_keys_share_is_told_in_one_way(tmp_path: Path) -> None:
    path = tmp_path / "two"
    write(path, {(6, 7): ((7,), 0, 0), (6, 8): ((7,), 0, 0)})
    described, sections = taken_apart(path)
    assert [sections[name].tolist() for name in ("shared", "lengths", "keys")] == [[0, 1], [2, 2], [0, 1, 2]]
    sections |= {"shared": np.zeros(2, np.uint8), "keys": np.array([0, 1, 0, 2], np.uint16)}
    path.write_bytes(sealed(described, sections))
    assert "its entries are out of order" in (refused(path) or "")


@pytest.mark.parametrize(
    ("numbers", "parts", "said"),
    [
        ({}, {"lengths": [0, 1], "keys": [1]}, "impossible shapes"),
        ({}, {"shared": [0, 1], "keys": [0]}, "impossible shapes"),
        ({}, {"shared": [1, 0], "lengths": [2, 1]}, "impossible shapes"),
        ({}, {"keys": [0, 0, 0]}, "its keys have another number of tokens than it says"),
        ({}, {"firsts": [2, 1]}, "its firsts hold a token that it has not"),
        ({}, {"ends": [1, 0], "tails": [2]}, "its tails hold a token that it has not"),
        ({}, {"ends": [8, 0], "tails": [0] * 8}, "a completion has an impossible length"),
        ({}, {"tails": [0]}, "its completions have another number of tokens than it says"),
        ({}, {"ends": [0]}, "another number of ends than it says"),
        *(({}, {name: [0] * 17}, f"its {name} are more than its entries can have")
          for name in ("keys", "strays", "ends", "tails")),
        ({}, {"strays": [0]}, "strays from one that it does not lead to"),
        ({}, {"strays": [2]}, "its strays are out of order"),
        ({}, {"strays": [2**32 - 1]}, "its strays are out of order"),
        ({}, {"strays": [0, 0]}, "its strays are out of order"),
        ({"completions": 2}, {}, "another number of completions than it says"),
        ({"completions": 0}, {}, "another number of completions than it says"),
        *(({"entries": count}, {}, "another number of entries than it says") for count in (0, 1, 3)),
        *(({}, {name: [0]}, "another number of entries than it says")
          for name in ("shared", "lengths", "levels", "firsts")),
    ],
)  # fmt: skip
def test_sections_may_not_lie(numbers: dict[str, int], parts: dict[str, list[int]], said: str, tmp_path: Path) -> None:
    """All numbers agree but one."""
    path = tmp_path / "two"
    write(path, {(6,): ((7,), 0, 0), (7,): ((7,), 0, 0)})
    described, sections = taken_apart(path)
    listed = ("keys", "lengths", "firsts", "strays", "ends", "tails")
    assert [sections[name].tolist() for name in listed] == [[0, 1], [1, 1], [1, 1], [], [0, 0], []]
    sections |= {name: np.array(values, sections[name].dtype) for name, values in parts.items()}
    path.write_bytes(sealed({**described, **numbers}, sections))
    assert said in (refused(path) or "")


def test_the_longest_that_is_promised_is_kept(written: Path) -> None:
    described, sections = taken_apart(written)
    for name in ("longest_prefix", "longest_completion"):
        written.write_bytes(sealed({**described, name: 5}, sections))
        assert refused(written), "drafters take room for so many"


def mutated(dice: random.Random, described: dict[str, Any], sections: dict[str, NDArray[Any]]) -> bytes:
    """A whole file with a few things changed in it."""
    described, parts = dict(described), {name: part.copy() for name, part in sections.items()}
    for _ in range(dice.randint(1, 4)):
        name = dice.choice([name for name in parts if len(parts[name])])
        part, kind = parts[name], dice.randrange(8)
        if kind < 4:
            part[dice.randrange(len(part))] = dice.choice([0, 1, 2, 7, 8, 9, 0x10, 0x11, 0x22, 0x7F, 0xFF])
        elif kind == 4:
            one, other = dice.randrange(len(part)), dice.randrange(len(part))
            part[[one, other]] = part[[other, one]]
        elif kind == 5:
            number = dice.choice(NUMBERS)
            described[number] = max(0, described[number] + dice.choice([-1, 1, -described[number]]))
            parts[name] = dice.choice([part[:-1], np.append(part, part[-1:])])
        elif kind == 6:
            described["highest"] = dice.choice([0, 11, 12, 2**31 - 1])
        else:
            described[dice.choice(["longest_prefix", "longest_completion"])] = dice.randint(1, 8)
    return sealed(described, parts)


def fuzzed(path: Path, seed: int, number: int) -> tuple[int, int]:
    """How many of so many lying files were refused, and how many were dictionaries all the same."""
    dice, counts = random.Random(seed), [0, 0]
    for entries in (made_up(seed, 6, FEW), walked(seed + 1, 20, FEW), made_up(seed + 2, 12, WIDE)):
        write(path, entries)
        described, sections = taken_apart(path)
        for _ in range(number // 3):
            path.write_bytes(mutated(dice, described, sections))
            counts[refused(path) is None] += 1
    return counts[0], counts[1]


def test_lies_are_refused_or_do_no_harm(tmp_path: Path) -> None:
    refusals, uses = fuzzed(tmp_path / "lies", 0, 900)
    assert refusals > 300
    assert uses > 30, "some lies nobody can tell, and those are tried"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_lies_are_refused_or_do_no_harm(seed: int, tmp_path: Path) -> None:
    refusals, uses = fuzzed(tmp_path / "lies", 100 * seed, 9000)
    assert refusals + uses == 9000
    assert refusals > 3000
    assert uses > 300


# --- earlier versions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", old.VERSIONS)
@pytest.mark.parametrize(
    "entries",
    [
        {},
        {(7,): ((8,), 15, 0)},
        made_up(2, 300, FEW),
        made_up(3, 300, WIDE),
        walked(5, 2000, FEW),
        walked(6, 300, WIDE),
    ],
    ids=["none", "one", "few ids", "wide ids", "as from a corpus", "the same of wide ids"],
)
def test_a_file_of_an_earlier_version_is_read(version: int, entries: Entries, tmp_path: Path) -> None:
    table = table_of(entries)
    header = file.write(tmp_path / "new", table, **SAID)
    described, sections = taken_apart(tmp_path / "new")
    if version == 2:
        del described["rule"]
    (tmp_path / "old").write_bytes(written_before(described, sections, version))
    before, back = file.read(tmp_path / "old")
    same(back, table)
    assert {name: getattr(before, name) for name in vars(header)} == vars(header)
    assert refused(tmp_path / "old") is None


@pytest.fixture
def before(written: Path) -> Path:
    written.write_bytes(written_before(*taken_apart(written)))
    return written


def test_an_earlier_file_that_is_damaged_is_refused(before: Path) -> None:
    flipped_somewhere(before)
    whole = before.read_bytes()
    for wrong in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        before.write_bytes(wrong)
        assert refused(before), len(wrong)
    before.write_bytes(whole[:8] + b"\1" + whole[9:])
    assert "of version 1, which this paceline cannot read" in (refused(before) or "")


def peak(work: Callable[[], Any]) -> int:
    """Bytes that were held at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["keys", "strays", "ends", "tails"])
def test_a_section_that_is_too_long_takes_no_memory(name: str, written: Path) -> None:
    described, sections = taken_apart(written)
    long, said = np.zeros(2**21, sections[name].dtype), list[str | None]()
    written.write_bytes(sealed(described, {**sections, name: long}))
    assert peak(lambda: said.append(refused(written))) < 2**20
    assert f"its {name} are more than its entries can have" in (said[0] or "")


def test_a_file_beyond_the_limit_is_refused_unread(written: Path) -> None:
    os.truncate(written, file.LARGEST + 1)
    assert f"at most {file.LARGEST} bytes" in (refused(written) or "")


def test_an_earlier_file_may_be_packed_tightly(before: Path) -> None:
    """Beyond eight times its packed size it may hold up to 4 MiB."""
    few = dict.fromkeys(("alphabet", "key_tokens", "ends", "strays", "tail_tokens"), 0)
    header = replace(old.read_old(before, memoryview(before.read_bytes()))[0], entries=2**19, **few)
    packed = lzma.compress(bytes(2**21), format=lzma.FORMAT_RAW, filters=old.FILTERS)
    assert len(old.unpacked(before, header, memoryview(packed))["levels"]) == 2**19


def text_before(path: Path, **numbers: int) -> bytes:
    """The description of an earlier file with other numbers."""
    whole = path.read_bytes()
    described = json.loads(whole[64 : 64 + int.from_bytes(whole[12:16], "little")])
    return json.dumps({**described, **numbers}, sort_keys=True, ensure_ascii=False).encode()


def test_an_earlier_file_that_promises_more_than_it_has_takes_no_memory(before: Path) -> None:
    listed, said = ("entries", "completions", "alphabet", "ends", "strays", "key_tokens", "tail_tokens"), []
    before.write_bytes(packed_before(text_before(before, **dict.fromkeys(listed, MOST)), b""))
    assert peak(lambda: said.append(refused(before))) < 2**20
    assert "more than so few bytes can" in said[0]


def test_no_more_is_unpacked_than_an_earlier_file_promised(before: Path) -> None:
    text, said = text_before(before), []
    before.write_bytes(packed_before(text, bytes(2**27)))
    assert peak(lambda: said.append(refused(before))) < 2**24, "the packing's window, and not what was packed"
    assert "other sizes than it says" in said[0]


def test_packed_sections_that_are_none_are_refused(before: Path) -> None:
    text, dice = text_before(before), random.Random(3)
    packed = before.read_bytes()[64 + len(text) :]
    assert packed_before(text, b"", packed=packed) == before.read_bytes()
    for other in (b"", b"\0", packed[:-1], packed + b"\0", packed + packed, bytes(len(packed)), b"\xff" * len(packed)):
        before.write_bytes(packed_before(text, b"", packed=other))
        assert "its sections " in (refused(before) or ""), other
    for _ in range(300):
        damaged = bytearray(packed)
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        before.write_bytes(packed_before(text, b"", packed=bytes(damaged)))
        refused(before)


def test_a_python_without_lzma_says_so(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lzma", None)
    with pytest.raises(ValueError, match="this Python was built without lzma") as caught:
        file.read(before)
    assert "damaged" not in str(caught.value)
