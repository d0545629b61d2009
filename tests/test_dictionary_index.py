"""The index finds what trying every ending finds, and is made again whenever the kept one is not what it should be."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import log
from pathlib import Path
from typing import Any

import pytest

from dictionary_tables import LONGEST, Entries, longest_first, made_up, write
from paceline.dictionary import index
from paceline.dictionary.entries import probability
from paceline.dictionary.index import Dictionary, Match
from paceline.files import arrays

pytest.importorskip("marisa_trie", reason="looking up needs marisa-trie: pip install 'paceline[dict]'")

ROOT = Path(__file__).resolve().parent.parent
NARROW = range(3, 9)
WIDE = [0, 1, 65_535, 65_536, 99_999, 2**31 - 1]
BEYOND = {2: [-1, 65_536, 2**16 + 3, 2**40], 4: [-1, 2**32, 2**32 + 65_536, 2**70]}
"""Ids that do not fit into so many bytes; their lower bytes are those of ids that do."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dictionaries"


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Entries]:
    entries = made_up(7, 40, NARROW)
    write(tmp_path / "a.dict", entries)
    return tmp_path / "a.dict", entries


def expected(entries: Entries, ending: Sequence[int]) -> list[Match]:
    return [
        Match(length, tokens, pytest.approx(log(probability(first))), pytest.approx(log(probability(rest))))
        for length, tokens, first, rest in longest_first(entries, ending)
    ]


def agrees(dictionary: Dictionary, entries: Entries, endings: Sequence[list[int]]) -> int:
    """How many of some endings are found, and all of them as they should be."""
    found = 0
    for ending in endings:
        wanted = expected(entries, ending)
        assert dictionary.matches(ending) == wanted, ending
        longest = dictionary.longest(dictionary.packed(ending))
        assert (longest is None) == (not wanted), ending
        if longest is not None:
            assert (longest[0], tuple(dictionary.proposed(longest[1]).tolist())) == wanted[0][:2], ending
            found += 1
    return found


def works(path: Path, entries: Entries) -> Dictionary:
    opened = Dictionary.open(path)
    assert agrees(opened, entries, [list(key) for key in entries]) == len(entries)
    return opened


def kept(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


# --- what is found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ids", "width"), [(NARROW, 2), (WIDE, 4), ([65_534, 65_535, 0], 2), ([65_536, 1], 4)])
@pytest.mark.parametrize("seed", range(3))
def test_the_longest_ending_is_found(ids: Sequence[int], width: int, seed: int, tmp_path: Path) -> None:
    entries, dice = made_up(seed, 120, ids), random.Random(seed)
    write(tmp_path / "a.dict", entries)
    dictionary = Dictionary.open(tmp_path / "a.dict")
    assert len(dictionary) == 120
    strangers = [*ids, *BEYOND[width], 2, 60_000]
    endings = [dice.choices(ids, k=dice.randrange(15)) for _ in range(400)]
    endings += [[*dice.choices(strangers, k=dice.randrange(4)), *dice.choice(list(entries))] for _ in range(400)]
    endings += [dice.choices(strangers, k=dice.randrange(12)) for _ in range(200)]
    assert agrees(dictionary, entries, endings) > 500


def test_an_id_that_does_not_fit_hides_what_is_before_it_and_nothing_else(tmp_path: Path) -> None:
    entries: Entries = {(5,): ((6,), 3, 3), (5, 5): ((7,), 3, 3), (0, 5): ((8,), 3, 3), (4, 0, 5): ((9,), 1, 1)}
    write(tmp_path / "a.dict", entries)
    dictionary = Dictionary.open(tmp_path / "a.dict")
    for beyond in BEYOND[2]:
        assert [one.tokens for one in dictionary.matches([5, beyond, 5])] == [(6,)]
        assert [one.tokens for one in dictionary.matches([beyond, 5, 5])] == [(7,), (6,)]
        assert dictionary.matches([5, 5, beyond]) == []
        assert dictionary.longest(dictionary.packed([beyond])) is None


def test_short_endings_and_none_at_all(tmp_path: Path) -> None:
    entries: Entries = {(1,) * size: ((size,), 0, 0) for size in range(1, LONGEST + 1)}
    write(tmp_path / "a.dict", entries)
    dictionary = Dictionary.open(tmp_path / "a.dict")
    assert (dictionary.longest(dictionary.packed([])), dictionary.matches([])) == (None, [])
    for size in range(1, 12):
        assert [one.length for one in dictionary.matches([1] * size)] == list(range(min(size, LONGEST), 0, -1))


def test_an_empty_dictionary_finds_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.dict", {})
    for _ in range(2):
        dictionary = Dictionary.open(tmp_path / "a.dict")
        assert (len(dictionary), dictionary.matches([1, 2]), dictionary.matches([])) == (0, [], [])


# --- what is kept -------------------------------------------------------------------------------------------


def test_what_is_kept_is_mapped_and_not_copied(
    written: tuple[Path, Entries], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, entries = written
    first = works(path, entries)
    inode = kept(cache).stat().st_ino
    monkeypatch.setattr(index, "_indexed", None)  # whoever makes it again fails
    second = works(path, entries)
    assert kept(cache).stat().st_ino == inode
    if Path("/proc/self/maps").exists():
        mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        assert [int(line[4]) for line in mapped if line[-1] == str(kept(cache))].count(inode) == 2
    del first
    assert agrees(second, entries, [list(key) for key in entries])


@pytest.mark.parametrize("width", [2, 4])
def test_a_kept_index_outlives_its_file(width: int, tmp_path: Path, cache: Path) -> None:
    """Whoever has it open goes on, though the cache is emptied and a new dictionary stands in the old one's place."""
    ids = {2: NARROW, 4: WIDE}[width]
    entries, others = made_up(1, 50, ids), made_up(2, 60, ids)
    write(tmp_path / "a.dict", entries)
    opened = works(tmp_path / "a.dict", entries)
    kept(cache).unlink()
    write(tmp_path / "a.dict", others)
    works(tmp_path / "a.dict", others)
    assert agrees(opened, entries, [list(key) for key in entries]) == 50


def garbled(place: int) -> Any:
    def garble(whole: bytes) -> bytes:
        at = place % len(whole)
        return whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]

    return garble


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: b"",
        lambda whole: whole[:63],
        lambda whole: whole[:64],
        lambda whole: whole[:-1],
        lambda whole: whole + b"\0",
        lambda whole: bytes(len(whole)),
        lambda whole: whole[:8] + b"\xff" * (len(whole) - 8),
        *(garbled(place) for place in (0, 8, 40, 80, 120, 160, 200, 300, 400, 500, 700, -1)),
    ],
)
def test_a_kept_index_that_is_not_whole_is_made_again(spoil: Any, written: tuple[Path, Entries], cache: Path) -> None:
    path, entries = written
    works(path, entries)
    place = kept(cache)
    whole = place.read_bytes()
    place.write_bytes(spoil(whole))
    works(path, entries)
    assert kept(cache).read_bytes() == whole


def test_an_index_of_another_library_is_made_again(
    written: tuple[Path, Entries], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, entries = written
    with monkeypatch.context() as patch:
        patch.setattr(index, "_version", lambda: "0.0.1")
        works(path, entries)
        old = kept(cache).read_bytes()
    works(path, entries)
    assert kept(cache).read_bytes() != old


def test_every_dictionary_has_an_index_of_its_own(written: tuple[Path, Entries], tmp_path: Path, cache: Path) -> None:
    path, entries = written
    other = dict.fromkeys(entries, ((4,), 9, 9))
    write(tmp_path / "b.dict", other)
    write(tmp_path / "c.dict", entries)
    for name, held in (("a", entries), ("b", other), ("c", entries), ("b", other)):
        works(tmp_path / f"{name}.dict", held)
    assert len(list(cache.iterdir())) == 2, "one for each content"
    assert path.exists()


def test_files_of_one_checksum_do_not_share_an_index(
    written: tuple[Path, Entries], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checksum can be forged."""
    monkeypatch.setattr(arrays, "checksum", lambda *_: 0)
    path, entries = written
    write(path, entries)
    others = {key: (tokens, 15 - first, rest) for key, (tokens, first, rest) in entries.items()}
    write(tmp_path / "forged.dict", others)
    assert len({index.file.FORMAT.open(one).digest for one in (path, tmp_path / "forged.dict")}) == 1
    works(tmp_path / "forged.dict", others)
    works(path, entries)


def test_a_file_that_changes_while_it_is_opened_does_not_spoil_the_cache(
    written: tuple[Path, Entries], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is kept under the digest of what it was made of, not of what stands there by then."""
    path, entries = written
    others = dict.fromkeys(entries, ((4,), 9, 9))
    write(tmp_path / "new", others)
    opening = index.file.open_dictionary

    def and_then_replaced(path: str | Path) -> Any:
        found = opening(path)
        (tmp_path / "new").replace(path)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(index.file, "open_dictionary", and_then_replaced)
        works(path, entries)
    alone = kept(cache)
    works(path, others)
    assert len(list(cache.iterdir())) == 2, "what stands there by now has an index of its own"
    assert alone in cache.iterdir()


# --- what is no longer used ---------------------------------------------------------------------------------

A_DAY = 24 * 60 * 60
LONG = 91 * A_DAY


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def days(path: Path) -> float:
    """How long ago an index was used."""
    return (time.time() - path.lstat().st_mtime) / A_DAY


def opened_anew(path: Path, seed: int) -> Path:
    """A dictionary that nobody has opened yet, opened; where its index is kept."""
    cache = index._place("0" * 32)
    assert cache is not None
    before = set(cache.parent.iterdir()) if cache.parent.exists() else set()
    entries = made_up(seed, 30, NARROW)
    write(path, entries)
    works(path, entries)
    (place,) = set(cache.parent.iterdir()) - before
    return place


def test_an_index_that_was_not_opened_for_90_days_goes_when_another_is_written(tmp_path: Path, cache: Path) -> None:
    """And no other file of the folder."""
    places = [opened_anew(tmp_path / "a.dict", seed) for seed in range(4)]
    names = ("notes.txt", "my.index", f"{places[0].name}.bak", f"x{places[0].name}", places[0].name.upper())
    others = [*(cache / name for name in names), cache / f"{'e' * 32}.index", cache / f"{'f' * 32}.index"]
    for other in others[:-2]:
        other.write_bytes(b"somebody's")
    others[-2].mkdir()
    others[-1].symlink_to(others[0])
    for place, unused in zip([*places, *others], (91, 400, 89, -400, *[91] * len(others)), strict=True):
        age(place, unused * A_DAY)
    works(tmp_path / "a.dict", made_up(3, 30, NARROW))
    assert set(cache.iterdir()) == {*places, *others}, "nothing was written, so nothing goes"
    fresh = opened_anew(tmp_path / "a.dict", 9)
    assert set(cache.iterdir()) == {places[2], places[3], fresh, *others}


def test_who_opens_an_index_keeps_it_and_says_so_once_a_day(written: tuple[Path, Entries], tmp_path: Path) -> None:
    path, entries = written
    works(path, entries)
    place = kept(tmp_path / "cache" / "dictionaries")
    for unused, left in ((89 * A_DAY, 0.0), (LONG, 0.0), (-LONG, 0.0), (A_DAY / 2, 0.5)):
        age(place, unused)
        works(path, entries)
        assert days(place) == pytest.approx(left, abs=0.01)
    age(place, 89 * A_DAY)
    works(path, entries)
    opened_anew(tmp_path / "b.dict", 1)
    assert place.exists()


def test_what_cannot_be_marked_or_removed_harms_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, old = (opened_anew(tmp_path / f"{seed}.dict", seed) for seed in (1, 2))
    for place in (stuck, old):
        age(place, LONG)
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path == stuck:
            raise PermissionError(13, "in use")
        unlink(path, missing_ok)

    def no_time(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        fresh = opened_anew(tmp_path / "a.dict", 3)
    assert set(cache.iterdir()) == {stuck, fresh}
    with monkeypatch.context() as patch:
        patch.setattr(index.os, "utime", no_time)
        works(tmp_path / "1.dict", made_up(1, 30, NARROW))
    assert days(stuck) == pytest.approx(91, abs=0.01)


# --- where nothing can be kept ------------------------------------------------------------------------------


def test_without_a_place_to_keep_it_it_is_made_for_this_process(
    written: tuple[Path, Entries], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, entries = written
    works(path, entries)
    place = kept(cache)
    place.unlink()
    place.mkdir()
    works(path, entries)
    assert list(cache.iterdir()) == [place], "a folder in its place stays, and nothing is beside it"
    (tmp_path / "occupied").write_text("a file")
    for elsewhere in (tmp_path / "occupied", tmp_path / "occupied" / "below", Path("/proc/none"), Path("/dev/null")):
        monkeypatch.setenv("PACELINE_CACHE", str(elsewhere))
        works(path, entries)
    assert (tmp_path / "occupied").read_text() == "a file"


def test_a_full_disk_keeps_nothing_and_hinders_nobody(
    written: tuple[Path, Entries], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, entries = written

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays, "write_whole", full)
    works(path, entries)
    assert list(cache.iterdir()) == []


def test_an_index_that_cannot_be_read_is_made_again(written: tuple[Path, Entries], cache: Path) -> None:
    """A link that leads to itself: root cannot read it either."""
    path, entries = written
    works(path, entries)
    place = kept(cache)
    place.unlink()
    place.symlink_to(place.name)
    works(path, entries)
    assert kept(cache) == place
    assert not place.is_symlink(), "the new index stands in its place"


def test_ctrl_c_while_it_is_written_leaves_nothing(
    written: tuple[Path, Entries], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, entries = written

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Dictionary.open(path)
    assert list(cache.iterdir()) == []
    works(path, entries)


# --- several at once ----------------------------------------------------------------------------------------

OPENING = """
import sys, time
from paceline.dictionary.index import Dictionary
import marisa_trie, numpy
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    opened = Dictionary.open(sys.argv[1])
    assert opened.matches([3]) == opened.matches([60000, 3])
print(*(opened.matches([int(n)]) for n in sys.argv[2:]), flush=True)
sys.stdin.readline()
"""


def test_processes_that_open_at_once_share_one_index(tmp_path: Path, cache: Path) -> None:
    entries = made_up(3, 3000, range(3, 40))
    write(tmp_path / "a.dict", entries)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", OPENING, str(tmp_path / "a.dict"), *map(str, range(3, 40))]
    processes = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        here = Dictionary.open(tmp_path / "a.dict")
        said = {process.stdout.readline() for process in processes if process.stdout}
        assert said == {" ".join(str(here.matches([n])) for n in range(3, 40)) + "\n"}
        maps = [Path(f"/proc/{process.pid}/maps") for process in processes]
        if maps[0].exists():
            assert all(str(kept(cache)) in path.read_text() for path in maps)
    finally:
        for process in processes:
            process.communicate("\n", timeout=60)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert agrees(here, entries, [list(key) for key in entries]) == 3000


def test_threads_that_open_at_once_do_not_disturb_each_other(tmp_path: Path, cache: Path) -> None:
    """Each writes a file of its own: the file of another may be mapped already, and cutting it off ends the process."""
    entries = made_up(4, 400, NARROW)
    write(tmp_path / "a.dict", entries)
    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            for opened in pool.map(lambda _: Dictionary.open(tmp_path / "a.dict"), range(8)):
                assert agrees(opened, entries, [list(key) for key in entries]) == 400
        for path in cache.iterdir():
            path.unlink()
