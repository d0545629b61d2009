"""A dictionary's file comes back as it was written, and whatever else it is, it does no harm."""

import json
import lzma
import os
import random
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dictionary_tables import SAID, Entries, made_up, sealed, sealed_packed, table_of, taken_apart, walked, write
from paceline.dictionary import file
from paceline.dictionary.entries import Entries as Table
from paceline.dictionary.index import Dictionary
from paceline.dictionary.keys import LONGEST
from paceline.dictionary.packing import MOST, pack
from tokenizer_kinds import vocabulary_of

pytest.importorskip("marisa_trie", reason="looking up needs marisa-trie: pip install 'paceline[dict]'")

FEW = range(5, 12)
NUMBERS = ("entries", "completions", "alphabet", "ends", "strays", "key_tokens", "tail_tokens")
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
    header = file.write(tmp_path / "a", table, **{**SAID, **limited})
    same(file.read(tmp_path / "a")[1], table)
    assert (header.ends, header.strays, header.tail_tokens) == (ends, strays, tail_tokens)


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
        header = file.write(tmp_path / "wide", table, **SAID)
        assert header.width == width
        assert header.sections["keys"] == many * width
        same(file.read(tmp_path / "wide")[1], table)


def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    for said in ({"licence": "x" * file.DESCRIBED}, {"licence": "\ud800"}, {"min_probability": float("nan")}):
        with pytest.raises(ValueError, match=r"shorten its licence note|surrogates not allowed|not JSON compliant"):
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


def test_every_byte_that_was_flipped_is_noticed(written: Path) -> None:
    whole = written.read_bytes()
    assert refused(written) is None
    with written.open("r+b", buffering=0) as opened:
        for place, byte in enumerate(whole):
            os.pwrite(opened.fileno(), bytes([byte ^ 1 << place % 8]), place)
            assert refused(written), place
            os.pwrite(opened.fileno(), bytes([byte]), place)
    assert refused(written) is None


def test_other_things_are_no_dictionaries(tmp_path: Path, written: Path) -> None:
    for name, content in (("empty", b""), ("text", b"a text\n" * 99), ("zeros", bytes(999)), ("magic", file.MAGIC)):
        (tmp_path / name).write_bytes(content)
        assert refused(tmp_path / name)
    for path in (tmp_path, tmp_path / "none", Path("/dev/null"), Path("/dev/zero")):
        assert refused(path), path
    whole = bytearray(written.read_bytes())
    whole[8] = 1
    written.write_bytes(whole)
    assert "version 1, and this paceline reads 2 and 3" in (refused(written) or "")


# --- lies ---------------------------------------------------------------------------------------------------


def test_what_is_sealed_anew_is_read(written: Path) -> None:
    """Otherwise the lies below would be refused for their seal."""
    whole = written.read_bytes()
    assert sealed(*taken_apart(written)) == whole


HUGE = 10**4000
DEEP = json.loads("[" * 40 + "]" * 40)


@pytest.mark.parametrize(
    "lie",
    [
        *({name: value} for name in NUMBERS
          for value in (True, -1, 1.5, "25", None, [], HUGE, float("nan"))),
        *({name: value} for name in ("longest_prefix", "longest_completion", "order")
          for value in (True, 0, -1, 9, "8", None, 8.0, HUGE)),
        *({"highest": value} for value in (True, -1, 2**31, 10, "11", None, 11.0, HUGE)),
        *({"min_probability": value}
          for value in (True, -0.1, 1.1, "0.5", None, [0.5], float("nan"), float("inf"), HUGE)),
        *({name: value} for name in ("tokenizer", "language", "licence", "tokenizer_name")
          for value in (None, 5, [], {}, "\ud800")),
        *({"corpus": value} for value in (None, [], 5, json.loads('{"a":' * 40 + "1" + "}" * 40), {"a": DEEP})),
        *({"corpus": {"a": value}} for value in (float("nan"), float("-inf"), "\udfff")),
        {"unheard_of": 1},
    ],
    ids=lambda lie: str(lie)[:40],
)  # fmt: skip
def test_a_description_that_cannot_be_is_refused(lie: dict[str, Any], written: Path) -> None:
    described, sections = taken_apart(written)
    written.write_bytes(sealed({**described, **lie}, sections))
    assert refused(written)


@pytest.mark.parametrize(
    "description",
    [
        b"", b"{}", b"[]", b"null", b"5", b"\xff\xfe", b'{"corpus":' * 6000, b"[" * 60_000, b"9" * 60_000,
        b'{"entries": 1e999}', b'"' + b"\\ud800" * 99 + b'"',
    ],
    ids=lambda description: description[:20].decode(errors="replace"),
)  # fmt: skip
def test_a_description_that_is_none_is_refused(description: bytes, written: Path) -> None:
    written.write_bytes(sealed(description, taken_apart(written)[1]))
    assert "its description cannot be read" in (refused(written) or "")


def test_a_description_is_written_in_one_way(written: Path) -> None:
    """Two files of the same entries differ in nothing, and no parser has a say in what a description means."""
    described, sections = taken_apart(written)
    plain = json.dumps(described, sort_keys=True, ensure_ascii=False)
    ways = (
        f" {plain}",
        plain.replace(": ", ":"),
        plain.replace('"order"', '"order": 2, "order"'),
        json.dumps(described, sort_keys=True),
        json.dumps(dict(reversed(described.items())), ensure_ascii=False),
        json.dumps({**described, "min_probability": 0.5}, sort_keys=True, ensure_ascii=False).replace("0.5", "5e-1"),
    )
    for text in ways:
        for encoding in ("utf8", "utf-16"):
            written.write_bytes(sealed(text.encode(encoding), sections))
            assert refused(written), text


def peak(work: Callable[[], Any]) -> int:
    """Bytes that were held at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_is_promised_is_not_made_room_for(written: Path) -> None:
    described, sections = taken_apart(written)
    said = []
    written.write_bytes(sealed({**described, **dict.fromkeys(NUMBERS, MOST)}, sections))
    assert peak(lambda: said.append(refused(written))) < 2**20
    assert "more than so few bytes can" in said[0]


def test_no_more_is_unpacked_than_was_promised(written: Path) -> None:
    described, _ = taken_apart(written)
    text, said = json.dumps(described, sort_keys=True, ensure_ascii=False).encode(), []
    written.write_bytes(sealed_packed(text, file.compressed(bytes(2**27))))
    assert peak(lambda: said.append(refused(written))) < 2**24, "the packing's window, and not what was packed"
    assert "other sizes than it says" in said[0]


def test_a_small_file_takes_no_large_memory(written: Path) -> None:
    """Many entries of pairs, each proposing the same, pack to next to nothing."""
    many = 600
    ids = np.arange(many, dtype=np.int32)
    prefixes = np.full((many**2, LONGEST), -1, np.int32)
    prefixes[:, -2], prefixes[:, -1] = np.tile(ids, many), np.repeat(ids, many)
    texts = np.full((1, LONGEST), -1, np.int32)
    texts[0, 0] = 0
    levels = np.zeros(many**2, np.uint8)
    table = Table(prefixes, np.zeros(many**2, np.int32), levels, levels, texts)
    limits = {"longest_prefix": LONGEST, "longest_completion": 1}
    with pytest.raises(ValueError, match="more regular than those of any language"):
        file.write(written.with_name("regular"), table, **{**SAID, **limits})
    sizes, sections = pack(table, **limits)
    described = {**taken_apart(written)[0], **asdict(sizes)}
    written.write_bytes(sealed(described, sections))
    assert written.stat().st_size < 300_000
    said = []
    assert peak(lambda: said.append(refused(written))) < 2**20
    assert "more than so few bytes can" in said[0]


def test_what_two_keys_share_is_told_in_one_way(tmp_path: Path) -> None:
    path = tmp_path / "two"
    write(path, {(6, 7): ((7,), 0, 0), (6, 8): ((7,), 0, 0)})
    described, sections = taken_apart(path)
    assert sections["shapes"] == b"\2\x12"
    assert sections["keys"] == b"\0\0\1\0\2\0"
    other = {**sections, "shapes": b"\2\2", "keys": b"\0\0\1\0\0\0\2\0"}
    path.write_bytes(sealed({**described, "key_tokens": 4}, other))
    assert "its entries are out of order" in (refused(path) or "")


def test_packed_sections_that_are_none_are_refused(written: Path) -> None:
    described, sections = taken_apart(written)
    text = json.dumps(described, sort_keys=True, ensure_ascii=False).encode()
    packed, whole = file.compressed(b"".join(sections.values())), b"".join(sections.values())
    assert sealed_packed(text, packed) == written.read_bytes()
    for other in (
        *(b"", b"\0", packed[:-1], packed + b"\0", packed + packed, bytes(len(packed)), b"\xff" * len(packed)),
        *(file.compressed(whole[:-1]), file.compressed(whole + b"\0"), file.compressed(b""), lzma.compress(whole)),
    ):
        written.write_bytes(sealed_packed(text, other))
        assert "its sections " in (refused(written) or ""), other
    dice = random.Random(3)
    for _ in range(300):
        damaged = bytearray(packed)
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        written.write_bytes(sealed_packed(text, bytes(damaged)))
        refused(written)


def test_a_python_without_lzma_says_so(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lzma", None)
    with pytest.raises(ValueError, match="this Python was built without lzma") as caught:
        file.read(written)
    assert "damaged" not in str(caught.value)


def changed(name: str, change: Callable[[bytearray], None]) -> Any:
    return pytest.param(name, change, id=f"{name} {change.__name__}")


def lowest(part: bytearray) -> None:
    part[0] = 0


def highest(part: bytearray) -> None:
    part[-1] = 0xFF


def swapped(part: bytearray) -> None:
    part[:4], part[4:8] = part[4:8], part[:4]


def repeated(part: bytearray) -> None:
    part[4:8] = part[:4]


def sharing(part: bytearray) -> None:
    part[0] = 0x12


def long(part: bytearray) -> None:
    part[0] = 0x09


@pytest.mark.parametrize(
    ("name", "change"),
    [
        changed("alphabet", highest), changed("alphabet", swapped), changed("alphabet", repeated),
        changed("shapes", lowest), changed("shapes", highest), changed("shapes", sharing), changed("shapes", long),
        changed("keys", highest), changed("firsts", highest), changed("lengths", highest), changed("tails", highest),
    ],
)  # fmt: skip
def test_a_section_that_cannot_be_is_refused(name: str, change: Callable[[bytearray], None], written: Path) -> None:
    described, sections = taken_apart(written)
    part = bytearray(sections[name])
    assert part, "there is something to change"
    change(part)
    assert part != sections[name]
    written.write_bytes(sealed(described, {**sections, name: bytes(part)}))
    assert "is damaged: " in (refused(written) or "")


@pytest.mark.parametrize(
    ("numbers", "parts", "said"),
    [
        ({"key_tokens": 1}, {"shapes": b"\0\1", "keys": b"\1\0"}, "impossible shapes"),
        ({"key_tokens": 1}, {"shapes": b"\1\x11", "keys": b"\0\0"}, "impossible shapes"),
        ({}, {"shapes": b"\x12\1", "keys": b"\0\0\1\0"}, "impossible shapes"),
        ({"key_tokens": 3}, {"keys": bytes(6)}, "its keys have another number of tokens than it says"),
        ({}, {"firsts": b"\2\0\1\0"}, "its firsts hold a token that it has not"),
        ({"tail_tokens": 1}, {"lengths": b"\1\0", "tails": b"\2\0"}, "its tails hold a token that it has not"),
        ({"tail_tokens": 8}, {"lengths": b"\x08\0", "tails": bytes(16)}, "a completion has an impossible length"),
        ({"tail_tokens": 1}, {"tails": bytes(2)}, "its completions have another number of tokens than it says"),
        ({"ends": 1}, {"lengths": b"\0"}, "another number of ends than it says"),
        ({"ends": 3}, {"lengths": bytes(3)}, "another number of ends than it says"),
        ({"strays": 1}, {"strays": bytes(4)}, "strays from one that it does not lead to"),
        ({"strays": 1}, {"strays": b"\2\0\0\0"}, "its strays are out of order"),
        ({"strays": 1}, {"strays": b"\xff\xff\xff\xff"}, "its strays are out of order"),
        ({"strays": 2}, {"strays": bytes(8)}, "its strays are out of order"),
        ({"completions": 2}, {}, "another number of completions than it says"),
        ({"completions": 0}, {}, "another number of completions than it says"),
    ],
)
def test_sections_of_the_right_size_may_not_lie(
    numbers: dict[str, int], parts: dict[str, bytes], said: str, tmp_path: Path
) -> None:
    """All numbers agree but one."""
    path = tmp_path / "two"
    write(path, {(6,): ((7,), 0, 0), (7,): ((7,), 0, 0)})
    described, sections = taken_apart(path)
    told = ("keys", "shapes", "firsts", "strays", "lengths", "tails")
    assert [sections[name] for name in told] == [b"\0\0\1\0", b"\1\1", b"\1\0\1\0", b"", b"\0\0", b""]
    path.write_bytes(sealed({**described, **numbers}, {**sections, **parts}))
    assert said in (refused(path) or "")


def test_the_longest_that_is_promised_is_kept(written: Path) -> None:
    described, sections = taken_apart(written)
    for name in ("longest_prefix", "longest_completion"):
        written.write_bytes(sealed({**described, name: 5}, sections))
        assert refused(written), "drafters take room for so many"


def mutated(dice: random.Random, described: dict[str, Any], sections: dict[str, bytes]) -> bytes:
    """A whole file with a few things changed in it."""
    described, parts = dict(described), {name: bytearray(part) for name, part in sections.items()}
    for _ in range(dice.randint(1, 4)):
        part = parts[dice.choice([name for name in parts if parts[name]])]
        kind = dice.randrange(8)
        if kind < 4:
            part[dice.randrange(len(part))] = dice.choice([0, 1, 2, 7, 8, 9, 0x10, 0x11, 0x22, 0x7F, 0xFF])
        elif kind == 4:
            one, other = dice.randrange(len(part)), dice.randrange(len(part))
            part[one], part[other] = part[other], part[one]
        elif kind == 5:
            name = dice.choice(NUMBERS)
            described[name] = max(0, described[name] + dice.choice([-1, 1, -described[name]]))
        elif kind == 6:
            described["highest"] = dice.choice([0, 11, 12, 2**31 - 1])
        else:
            name = dice.choice(["longest_prefix", "longest_completion"])
            described[name] = dice.randint(1, 8)
    if dice.random() < 0.7:  # so that the sizes agree, and what is within is looked at
        bare = b"".join(parts.values())
        header = file.DictionaryHeader(**described)
        bare = bare.ljust(sum(header.sections.values()), b"\1")[: sum(header.sections.values())]
        return sealed(described, {"all": bare})
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
