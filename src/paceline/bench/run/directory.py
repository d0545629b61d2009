"""A run on disk: ``run.json`` says what was run and on what, ``prompts.jsonl`` what was to be written, and
``records.jsonl`` holds a line per text.

Lines are added a unit at a time, the texts of one prompt by all entries in one write, so an interrupted run has whole
units but perhaps for the last, which is dropped when it goes on.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.run.about import FORMAT, About
from paceline.bench.run.record import Record
from paceline.bench.suites.files import as_lines
from paceline.bench.suites.prompts import Prompt
from paceline.files import check_folder, named, write_whole
from paceline.files.reading import DESCRIPTION, MOST, damaged, parse, read_file
from paceline.files.shape import shaped

READ = (1, FORMAT)
"""Formats that can be read. The first one lacks the columns of rounds that planners brought."""
AGAIN = "make the run again under another --out"
ABOUT, RECORDS, PROMPTS = "run.json", "records.jsonl", "prompts.jsonl"
UNBEGUN = (f"{PROMPTS}.part", f"{ABOUT}.part")
"""What earlier versions left of a run that was killed before it began."""


@dataclass
class Run:
    """A run that was read, or is being written."""

    path: Path
    about: About
    records: list[Record]
    prompts: dict[str, Prompt] = field(default_factory=dict)
    """By their keys."""
    sitting: list[dict[str, Any]] = field(default_factory=list)
    """What `go_on` adds to those of a run that was begun before."""

    @property
    def name(self) -> str:
        """What reports call it: its folder's name."""
        return self.path.resolve().name

    @property
    def entries(self) -> list[str]:
        """Names in the order of the run; the first is plain decoding."""
        return [entry["name"] for entry in self.about.entries]


def read(path: Path) -> Run:
    """A run, finished or not. A line that was cut off at the end is left out; the file is not touched."""
    about = _about(path)
    run = Run(path, about, [], _prompts(path))
    run.records, _ = _records(path, run.entries, run.prompts)
    return run


def check_place(path: Path, prompts: Sequence[Prompt] = ()) -> None:
    """Tell where no run can be kept, before models are loaded for it. A run that was stopped before it began has left
    its prompts alone, and those are known by what they are."""
    if check_folder(path, ABOUT, "run", besides={PROMPTS, *UNBEGUN}):
        _about(path)
    elif (file := path / PROMPTS).exists() and read_file(file) != as_lines(prompts).encode():
        raise ValueError(f"{path} is there and is no run, and its {PROMPTS} are others; give another --out")


def begin(path: Path, about: About, prompts: Sequence[Prompt] = ()) -> Run:
    """Make the directory of a run, or open it where it is this very run; ``about`` then brings a further sitting.

    Whatever else stands there is left as it is, and told.
    """
    check_place(path, prompts)
    if not (path / ABOUT).exists():
        path.mkdir(parents=True, exist_ok=True)
        run = Run(path, about, [], {prompt.key: prompt for prompt in prompts})
        if not (path / PROMPTS).exists():
            write_whole(path / PROMPTS, as_lines(prompts), sync=True)
        write_about(run)
        return run
    old = _about(path)
    for part, was, now in _identity(old, about):
        if (told := _difference(was, now)) is not None:
            raise ValueError(
                f"{path} holds another run ({part}: {told}); give another --out, or the options of that one"
            )
    if list(_prompts(path).values()) != list(prompts):
        raise ValueError(f"{path} holds another run (the prompts of the suite have changed since); give another --out")
    records, size = _records(path, [entry["name"] for entry in old.entries], {p.key: p for p in prompts})
    if (path / RECORDS).exists():
        os.truncate(path / RECORDS, size)
    return Run(path, old, records, {prompt.key: prompt for prompt in prompts}, about.sittings)


def drop_torn(run: Run, lines: Callable[[int], int]) -> None:
    """Drop a last unit that lacks texts; ``lines`` says how many a unit has. One write brings a whole unit, but a full
    disk may cut it anywhere, also where a line ends. Any other that lacks some was damaged by somebody else."""
    if not run.records:
        return
    last = run.records[-1]
    there = Counter((record.unit, record.repeat) for record in run.records)
    tail = there[last.unit, last.repeat]
    torn = tail < lines(last.unit)
    for (unit, repeat), count in there.items():
        if count != lines(unit) and not (torn and (unit, repeat) == (last.unit, last.repeat)):
            line = next(n for n, r in enumerate(run.records, start=1) if (r.unit, r.repeat) == (unit, repeat))
            has = "lacks texts" if count < lines(unit) else "has too many texts"
            raise ValueError(
                f"{run.path / RECORDS} {has} of the prompt that begins on line {line}; cut the file off before "
                "that line, and the same 'bench run' writes the rest again"
            )
    if torn:
        del run.records[-tail:]
        with (run.path / RECORDS).open("rb") as file:
            size = sum(len(file.readline()) for _ in run.records)
        os.truncate(run.path / RECORDS, size)


def go_on(run: Run) -> None:
    """There is something to write, so this is a sitting; who only looks at a finished run leaves no trace."""
    run.about.sittings += run.sitting
    run.sitting = []
    run.about.format = FORMAT
    run.about.finished = False
    write_about(run)


def add(run: Run, records: Sequence[Record]) -> None:
    """Keep the texts of one unit."""
    lines = "".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)
    with named(run.path / RECORDS), (run.path / RECORDS).open("a", encoding="utf8") as file:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    run.records += records


def write_about(run: Run) -> None:
    """Write ``run.json`` whole or not at all."""
    write_whole(run.path / ABOUT, json.dumps(asdict(run.about), indent=1, ensure_ascii=False) + "\n", sync=True)


def _identity(old: About, new: About) -> Iterator[tuple[str, Any, Any]]:
    """What must be equal for a run to be the same one: a name, as it was and as it is. Of the energy meter its kind
    and its power, since joules of two kinds cannot be added up."""
    yield "recipe", old.recipe, new.recipe
    yield "model", old.model, new.model
    yield "entries", [entry["name"] for entry in old.entries], [entry["name"] for entry in new.entries]
    yield "entries", old.entries, new.entries
    for part in ("source", "measured", "watts"):
        yield f"energy {part}", old.energy.get(part), new.energy.get(part)


def _about(path: Path) -> About:
    file = path / ABOUT
    try:
        text = _contents(file, DESCRIPTION)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path} holds no run: there is no {ABOUT}") from None
    with damaged(str(file), AGAIN):
        found = parse(text)
    version = found.get("format") if isinstance(found, dict) else None
    if version not in READ:
        raise ValueError(f"{file} has format {version!r}, and this version of Paceline reads formats up to {FORMAT}")
    with damaged(str(file), AGAIN):
        about = shaped(About, found)
        about.check()
    return about


def _prompts(path: Path) -> dict[str, Prompt]:
    """What was to be written."""
    file = path / PROMPTS
    found = dict[str, Prompt]()
    for number, line in enumerate(_contents(file).splitlines(), start=1):
        with damaged(f"{file}, line {number},", AGAIN):
            prompt = shaped(Prompt, parse(line))
            if prompt.key in found:
                raise ValueError(f"the key {prompt.key!r} is there once more")
        found[prompt.key] = prompt
    return found


def _records(path: Path, names: Sequence[str], prompts: Mapping[str, Prompt]) -> tuple[list[Record], int]:
    """The records, and how many bytes of the file they take. A last line without its end was cut off."""
    file = path / RECORDS
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
            if record.entry not in names:
                raise ValueError(f"the run has no entry {record.entry!r}")
            if record.prompt in prompts and record.turn >= len(prompts[record.prompt].turns):
                raise ValueError(f"'turn' is {record.turn}, and its prompt has {len(prompts[record.prompt].turns)}")
            before = there.setdefault((record.entry, record.prompt, *record.pair), number)
            if before != number:
                raise ValueError(f"it is the text of line {before} once more")
        except ValueError as error:
            raise ValueError(
                f"{file}, line {number}, is no record of this run: {error}; cut the file off before that line, and the "
                "same 'bench run' writes the rest again"
            ) from None
        records.append(record)
        size += len(line)
    return records, size


def _contents(file: Path, most: int = MOST) -> bytes:
    """A file of the run, as it stands. A FileNotFoundError where it is not there."""
    try:
        return read_file(file, most)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; {AGAIN}") from None


def _difference(old: Any, new: Any) -> str | None:
    """In a few words, the first place where two plain structures differ; None where they do not."""
    new = json.loads(json.dumps(new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _first(
            f"{key} {told}" if (told := _difference(old.get(key), new.get(key))) is not None else None
            for key in sorted(set(old) | set(new))
        )
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return _first(_difference(a, b) for a, b in zip(old, new, strict=True))
    return None if old == new else f"was {json.dumps(old)} and is {json.dumps(new)}"


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)
