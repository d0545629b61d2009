"""A run on disk: ``run.json`` describes the run and the machine, ``prompts.jsonl`` has the prompts, ``records.jsonl`` a
line per text.

Lines are added a unit at a time: the texts of one prompt by all entries in one write. A unit can still lack texts if
the run was interrupted or the disk was full. A continued run drops such a unit and generates it again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import InputError
from paceline.files import check_folder, naming, write_whole
from paceline.files.reading import DESCRIPTION, LARGEST_TEXT_BYTES, damaged, parse, read_file
from paceline.files.shape import shaped
from paceline_lab.bench.run.record import FORMAT, About, Record
from paceline_lab.bench.suites import Prompt, as_lines

AGAIN = "make the run again under another --out"
ABOUT, RECORDS, PROMPTS = "run.json", "records.jsonl", "prompts.jsonl"


@dataclass
class Run:
    """A run, finished or in progress."""

    path: Path
    about: About
    records: list[Record]
    prompts: dict[str, Prompt] = field(default_factory=dict)
    """By their keys."""
    sitting: list[dict[str, Any]] = field(default_factory=list)
    """What `go_on` adds to those of a run that was begun before."""

    @property
    def name(self) -> str:
        """Its name in reports: that of its folder."""
        return self.path.resolve().name

    @property
    def entries(self) -> list[str]:
        """Names in the order of the run; the first is plain decoding."""
        return [entry["name"] for entry in self.about.entries]


def read(path: Path) -> Run:
    """A run, finished or not. A line that was cut off at the end is left out; the file is not touched."""
    run = Run(path, _about(path), [], _prompts(path))
    run.records, _ = _records(run)
    return run


def check_place(path: Path, prompts: Sequence[Prompt] = ()) -> None:
    """Refuse a place where no run can be stored, before models are loaded for it. A run that was stopped before it
    began has left only its prompts, which identify it."""
    if check_folder(path, ABOUT, "run", besides={PROMPTS}):
        _about(path)
    elif (file := path / PROMPTS).exists() and read_file(file) != as_lines(prompts).encode():
        raise InputError(f"{path} is there and is no run, and its {PROMPTS} are others; give another --out")


def begin(path: Path, about: About, prompts: Sequence[Prompt] = ()) -> Run:
    """Make the directory of a run, or open that of this very run; ``about`` then adds a sitting. Any other folder is
    refused and left unchanged."""
    check_place(path, prompts)
    by_key = {prompt.key: prompt for prompt in prompts}
    if not (path / ABOUT).exists():
        path.mkdir(parents=True, exist_ok=True)
        run = Run(path, about, [], by_key)
        if not (path / PROMPTS).exists():
            write_whole(path / PROMPTS, as_lines(prompts), sync=True)
        write_about(run)
        return run
    run = Run(path, _about(path), [], by_key, about.sittings)
    if (difference := _difference(run.about, about)) is not None:
        raise InputError(f"{path} holds another run ({difference}); give another --out, or the options of that one")
    if list(_prompts(path).values()) != list(prompts):
        raise InputError(f"{path} holds another run (the prompts of the suite have changed since); give another --out")
    run.records, size = _records(run)
    if (path / RECORDS).exists():
        os.truncate(path / RECORDS, size)
    return run


def keep_whole(run: Run, lines: Callable[[int], int]) -> None:
    """Drop units that lack texts; ``lines`` says how many a unit has."""
    there = Counter((record.unit, record.repeat) for record in run.records)
    whole = [record for record in run.records if there[record.unit, record.repeat] == lines(record.unit)]
    if len(whole) < len(run.records):
        run.records = whole
        write_whole(run.path / RECORDS, _lines(whole), sync=True)


def go_on(run: Run) -> None:
    """Begin a sitting, because texts are missing. A finished run is not touched."""
    run.about.sittings += run.sitting
    run.sitting = []
    run.about.finished = False
    write_about(run)


def add(run: Run, records: Sequence[Record]) -> None:
    """Keep the texts of one unit."""
    with naming(run.path / RECORDS), (run.path / RECORDS).open("a", encoding="utf8") as file:
        file.write(_lines(records))
        file.flush()
        os.fsync(file.fileno())
    run.records += records


def write_about(run: Run) -> None:
    """Write ``run.json`` whole or not at all."""
    write_whole(run.path / ABOUT, json.dumps(vars(run.about), indent=1, ensure_ascii=False) + "\n", sync=True)


def _lines(records: Iterable[Record]) -> str:
    return "".join(json.dumps(vars(record), ensure_ascii=False) + "\n" for record in records)


def _about(path: Path) -> About:
    file = path / ABOUT
    try:
        text = _contents(file, DESCRIPTION)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path} holds no run: there is no {ABOUT}") from None
    with damaged(str(file), AGAIN):
        found = parse(text)
    version = found.get("format") if isinstance(found, dict) else None
    if version != FORMAT:
        raise InputError(f"{file} has format {version!r}, and this version of Paceline reads format {FORMAT}; {AGAIN}")
    with damaged(str(file), AGAIN):
        about = shaped(About, found)
        about.check()
    return about


def _prompts(path: Path) -> dict[str, Prompt]:
    """The prompts of a run, by their keys."""
    file = path / PROMPTS
    found = dict[str, Prompt]()
    for number, line in enumerate(_contents(file).splitlines(), start=1):
        with damaged(f"{file}, line {number},", AGAIN):
            prompt = shaped(Prompt, parse(line))
            if prompt.key in found:
                raise InputError(f"the key {prompt.key!r} is there once more")
        found[prompt.key] = prompt
    return found


def _records(run: Run) -> tuple[list[Record], int]:
    """The records of a run, and how many bytes of the file they take. A last line without its end was cut off."""
    file = run.path / RECORDS
    try:
        lines = _contents(file).splitlines(keepends=True)
    except FileNotFoundError:
        return [], 0
    records, size = list[Record](), 0
    there: dict[tuple[object, ...], int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        try:
            record = Record.of(parse(line))
            if record.entry not in run.entries:
                raise InputError(f"the run has no entry {record.entry!r}")
            if record.prompt in run.prompts and record.turn >= (turns := len(run.prompts[record.prompt].turns)):
                raise InputError(f"'turn' is {record.turn}, and its prompt has {turns}")
            before = there.setdefault((record.entry, record.prompt, *record.pair), number)
            if before != number:
                raise InputError(f"it is the text of line {before} once more")
        except ValueError as error:
            raise InputError(
                f"{file}, line {number}, is no record of this run: {error}; cut the file off before that line, and the "
                "same 'bench run' writes the rest again"
            ) from None
        records.append(record)
        size += len(line)
    return records, size


def _contents(file: Path, most: int = LARGEST_TEXT_BYTES) -> bytes:
    """A file of the run, as it stands. A FileNotFoundError where it is not there."""
    try:
        return read_file(file, most)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}; {AGAIN}") from None


def _difference(old: About, new: About) -> str | None:
    """In a few words, the first thing that must be equal for a run to be the same one and is not. Of the energy meter
    these are its kind and its power, since joules of two kinds cannot be added up."""
    for part in ("recipe", "model", "entries", "energy"):
        was, now = (_flat(json.loads(json.dumps(getattr(about, part)))) for about in (old, new))
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name) and (part, name) != ("energy", "why"):
                return f"{part}: {name} was {json.dumps(was.get(name))} and is {json.dumps(now.get(name))}"
    return None


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Plain values within values, by their places."""
    if not isinstance(value, (dict, list)):
        return {name: value}
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[str, Any] = {}
    for key, one in inner:
        found |= _flat(one, f"{name}.{key}" if name else str(key))
    return found
