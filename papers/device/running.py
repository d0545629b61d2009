"""Parts in separate processes, each with a time limit, and the file that keeps their results.

A part is a command of this Python; where it may, it begins with the libraries imported (`warm`). A part that ended by
its limit keeps what it had found. If it `continues`, the next run tells it what is known, and it finds the rest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO

import torch

from paceline_lab import sitting
from papers.device import findings, warm
from papers.device.findings import KEY, Finding, findings_of, short
from papers.driver import write

DONE, FAILED, OVER, NOT_RUN = "done", "failed", "over its limit", "not run"
UNREADABLE = KeyError, IndexError, TypeError, ValueError
GRACE = 8.0
"""Seconds between an interrupt and the end of a process."""
SHORTEST = 1.0
"""Seconds below which a part is not begun."""
PRINTED, COLUMNS = 60, "250"
"""Lines of a part's output that are kept, and how wide they may be."""


@dataclass(frozen=True)
class Part:
    """A command, what it takes, and how its output is read."""

    name: str
    """Its kind, then what it is run on."""
    command: Sequence[str]
    """Arguments of this Python."""
    words: Callable[[Sequence[Finding]], str]
    """Its result, in a few words."""
    seconds: float = 30.0
    """What it may take on a large GPU; more where time is left."""
    read: Callable[[str], list[Finding]] = findings_of
    """Standard output -> findings."""
    obstacle: str = ""
    """Why it cannot run here."""
    continues: bool = False
    """Whether it takes ``--known`` with the names of findings that it need not make again."""
    codes: tuple[int, ...] = (0,)
    """Exit codes that are no failure."""
    warm: bool = False
    """Whether it begins with the libraries imported, where the system can do that."""

    @property
    def kind(self) -> str:
        return self.name.partition(" ")[0]

    def said(self, found: Sequence[Finding]) -> str:
        """Its result, in a few words; a part whose words fail ends no other part."""
        try:
            return self.words(found) if found else ""
        except UNREADABLE as error:
            return f"its findings cannot be read ({short(error)})"


@dataclass
class Kept:
    """The state of a part."""

    state: str
    why: str = ""
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    limit: float = 0.0
    command: str = ""
    printed: list[str] = field(default_factory=list)
    """The end of its output that is no finding."""
    about: dict[str, str] = field(default_factory=dict)
    """Card, versions, commit and date."""

    @property
    def said(self) -> str:
        """Its state, in a sentence if there is a reason."""
        return f"{self.state}: {self.why}" if self.why else self.state


class Record:
    """The file with all parts; it is written whole after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            held = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
            self.parts = {name: Kept(**one) for name, one in held.get("parts", {}).items()}
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"{path} is no file of this script; give another --out") from None

    def keep(self, name: str, kept: Kept) -> None:
        """Store a part."""
        self.parts[name] = kept
        held = {name: asdict(one) for name, one in self.parts.items()}
        write(self.path, json.dumps({"parts": held}, indent=1) + "\n")


def here(device: str) -> dict[str, str]:
    """The machine and the code that a number was measured on."""
    if torch.device(device).type == "cuda":
        torch.cuda.init()  # a card tells its name to a process that uses it
    found = sitting()
    machine, versions, git = found["machine"], found["versions"], found["git"] or {}
    commit = f"{git.get('commit')}{' with changes' if git.get('changed') else ''}" if git else "no checkout"
    names = {name: versions[name] for name in ("torch", "transformers", "python")}
    card = str(machine["accelerator"] or f"{machine['processor']}, threads: {found['threads']}")
    return {"card": card, **names, "commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two numbers may be in one table: all but the date is the same."""
    return {**one, "date": ""} == {**other, "date": ""}


def run_all(
    parts: Sequence[Part],
    record: Record,
    seconds: float,
    *,
    again: bool = False,
    about: Mapping[str, str] | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Run the parts that have no result, in order. Each has its seconds, and more if there is time to spare; if there
    is too little, the last parts wait for another run."""
    ends = time.monotonic() + seconds
    asked = [part for part in parts if again or part.name not in record.parts or record.parts[part.name].state != DONE]
    for part in parts:
        if part not in asked:
            say(f"{part.name}: kept, {part.said(record.parts[part.name].findings)}")
    waiting = [part for part in asked if not part.obstacle]
    if any(part.warm for part in waiting):
        warm.prepare()
    for part in asked:
        before = record.parts.get(part.name)
        left = ends - time.monotonic()
        spare = max(1.0, left / sum(one.seconds for one in waiting)) if part in waiting else 0.0
        limit = min(left, part.seconds * spare)
        goes_on = before is not None and part.continues and not again and alike(before.about, about or {})
        known = before.findings if before is not None and goes_on else []
        if part.obstacle:
            kept = Kept(NOT_RUN, part.obstacle)
        elif limit >= SHORTEST:
            kept = run(part, limit, known)
        elif before is not None and before.findings:
            kept = before
        else:
            kept = Kept(NOT_RUN, "the minutes were used up; the same command goes on")
        waiting = [one for one in waiting if one is not part]
        if kept is not before:
            kept.about = dict(about or {})
            record.keep(part.name, kept)
        state = "" if kept.state == DONE else kept.said
        say(f"{part.name}: {kept.seconds:.1f} s, {'; '.join(filter(None, [state, part.said(kept.findings)]))}")


def run(part: Part, limit: float, known: Sequence[Finding] = ()) -> Kept:
    """One part in its process, which ends with its limit."""
    names = [str(one[KEY]) for one in known if KEY in one]
    command = [*part.command, *(["--known", *names] if names else [])]
    started = time.monotonic()
    with _file() as said, _file() as warned:
        code = _ended(command, limit, said, warned, warmly=part.warm and warm.possible())
        output, errors = _whole(said), _whole(warned)
    found = part.read(output)
    not_run = next((str(one[findings.NOT_RUN]) for one in found if findings.NOT_RUN in one), "")
    fresh = [one for one in found if findings.NOT_RUN not in one]
    kept = Kept(DONE, "", [*known, *fresh], time.monotonic() - started, limit, " ".join(["python", *part.command]))
    lines = [line for line in f"{output}\n{errors}".splitlines() if line.strip() and not findings_of(line)]
    kept.printed = lines[-PRINTED:]
    if code is None:
        kept.state, kept.why = OVER, f"{limit:.0f} s"
    elif not_run:
        kept.state, kept.why = NOT_RUN, not_run
    elif code not in part.codes:
        kept.state, kept.why = FAILED, f"exit code {code}: {lines[-1] if lines else 'it said nothing'}"
    return kept


def _ended(command: Sequence[str], limit: float, said: IO[str], warned: IO[str], *, warmly: bool) -> int | None:
    """The exit code; None of a process that ran longer."""
    changes = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": COLUMNS}
    if warmly:
        child: Child = warm.start(command, changes, said.name, warned.name)
    else:
        child = subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | changes,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=warned,
            text=True,
            start_new_session=True,
        )
    with _group(child):
        return _code(child, limit)


Child = subprocess.Popen[str] | BaseProcess


def _code(child: Child, seconds: float | None = None) -> int | None:
    """The exit code, awaited for so long; None of a process that goes on."""
    if isinstance(child, BaseProcess):
        child.join(seconds)
        return child.exitcode
    with suppress(subprocess.TimeoutExpired):
        return child.wait(seconds)
    return None


@contextmanager
def _group(child: Child) -> Iterator[None]:
    """A process in a separate group, which is gone afterwards: it is interrupted, so that it reports what it has, and
    killed if it goes on."""
    try:
        yield
    finally:
        try:
            if _code(child, 0) is None:
                _signal(child, signal.SIGINT)
                _code(child, GRACE)
        finally:
            _signal(child, signal.SIGKILL)
            child.kill()  # one that has no group yet
            _code(child)


def _signal(child: Child, number: signal.Signals) -> None:
    assert child.pid is not None, "it was started"
    with suppress(ProcessLookupError, PermissionError):  # the group has ended
        os.killpg(child.pid, number)


def _file() -> IO[str]:
    """Output goes into a file, since nothing reads a pipe meanwhile; a killed process may leave half a character."""
    return tempfile.NamedTemporaryFile("w+", encoding="utf8", errors="replace")


def _whole(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
