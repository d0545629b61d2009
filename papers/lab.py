"""Races that are kept in a folder: the same command goes on where it was interrupted.

By default an item runs on a bundled model, with ballast where speed counts, and on very few prompts: the direction at
best. ``--limit``, ``--repeat`` and ``--max-new-tokens`` give narrower intervals.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import paceline
from paceline import Observed
from paceline_lab import Prompt, Summary, launched, open_suite, race_methods
from papers.driver import Given, progress, write
from papers.report import Report
from papers.speeds import remarks

BUNDLED, BUNDLED_TEMPERATURE = ("pocket", "pocket-draft", "pocket-foreign"), 0.8
"""Greedy, the bundled models fall into loops, which flatters methods that look things up."""
BALLAST_DTYPE = "bfloat16"
CHAT, CHAT_TASK, STAND_IN = "spec-bench", "mt_bench", "stories"
"""The default suite and task, and the suite used instead if it is not in the data folder."""
FAILURES = (ValueError, RuntimeError)


def bundled(model: str) -> bool:
    """Whether a model is one of the package, also where mlx-lm computes it."""
    return model.removeprefix("mlx:").partition("+")[0] in BUNDLED


def temperature_of(asked: float | None, *models: str) -> float:
    return asked if asked is not None else BUNDLED_TEMPERATURE if all(map(bundled, models)) else 0.0


HEAD = re.compile(r",?head=('[^']*'|[^,]*)")


def without_head(method: str) -> str:
    """A method without the folder of its head, which is how tables and papers name it."""
    return HEAD.sub("", method).rstrip(":")


def with_folder(method: str) -> str:
    """The same with the last part of the folder's name behind it."""
    head = HEAD.search(method)
    folder = "" if head is None else Path(head[1].strip("'")).name
    return f"{without_head(method)} ({folder})" if folder else method


def names_of(methods: Iterable[str]) -> dict[str, str]:
    """Methods and their names in tables, which say as much of a head's folder as tells the methods apart."""
    found = {method: without_head(method) for method in methods}
    for longer in (with_folder, str):
        counts = Counter(found.values())
        found = {method: longer(method) if counts[name] > 1 else name for method, name in found.items()}
    return found


def method_of(name: str) -> str:
    """The method in such a name."""
    return name.partition(" (")[0]


def folder_of(name: str) -> str:
    """A name as that of a folder."""
    return name.replace(" ", "-").replace("/", "-").replace(":", "-")


def chat_or_stories(tasks: Sequence[str] | None = (CHAT_TASK,), **how: Any) -> tuple[Sequence[Prompt], str]:
    """These tasks of Spec-Bench; stories where it is not here, with a note."""
    try:
        return open_suite(CHAT, tasks=tasks and [*tasks], **how).prompts, ""
    except ValueError as why:
        note = f"MT-Bench is not here, and beginnings of stories are used instead: {why}"
        return open_suite(STAND_IN, **how).prompts, note


class Lab:
    """Makes races, or finds those that were kept. What cannot be made is kept with its reason."""

    own_settings = False
    """Whether texts are written with the settings that the model brings along."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.out: Path = given.out or Path("runs", "papers", folder_of(f"{given.paper}-{given.item}--{given.model}"))
        self.missing: dict[str, str] = {}
        self.notes: list[str] = []
        self.runs: dict[str, Summary] = {}
        self._loaded: tuple[str | None, paceline.LanguageModel] | None = None

    @property
    def dtype(self) -> str | None:
        """The type that was asked for, or the usual one."""
        asked: str | None = self.given.dtype
        return asked or (BALLAST_DTYPE if "+ballast" in self.given.model else None)

    def model(self, dtype: str | None = None) -> paceline.LanguageModel:
        """The model in a type. One is held at a time, for they are large."""
        dtype = dtype or self.dtype
        if self._loaded is None or self._loaded[0] != dtype:
            self._loaded, given = None, self.given
            how = {"device": given.device, "trust_remote_code": given.trust_remote_code}
            how["generation_config"] = self.own_settings
            if (ranks := launched()) > 1:  # all but the first compute their parts in here
                how["tensor_parallel"] = ranks
            self._loaded = dtype, paceline.load(given.model, dtype=dtype, **how)
        return self._loaded[1]

    @property
    def temperature(self) -> float:
        return temperature_of(self.given.temperature, self.given.model)

    def prompts(self) -> dict[str, Any]:
        """The suite that was asked for: MT-Bench where it is here, and stories where it is not."""
        given = self.given
        found = {"suite": given.suite, "tasks": given.tasks, "langs": given.langs}
        if given.suite is not None:
            return found
        _, note = chat_or_stories(data=given.data, limit=1)
        self.notes += [note] if note and note not in self.notes else []
        return found | ({"suite": STAND_IN} if note else {"suite": CHAT, "tasks": given.tasks or [CHAT_TASK]})

    def race(self, name: str, methods: Iterable[str], *, dtype: str | None = None, **how: Any) -> Summary | None:
        """A race of plain decoding and these methods; further options are those of 'paceline bench run'."""
        given = self.given
        usual = {name: getattr(given, name) for name in ("limit", "seed", "repeat", "data", "max_new_tokens")}
        with self.trying(name):
            usual |= {} if "suite" in how else self.prompts()
            usual |= {} if "temperature" in how else {"temperature": self.temperature}
            usual |= {"out": self.out / name.replace(" ", "-"), "progress": progress}
            self.runs[name] = race_methods(self.model(dtype), list(dict.fromkeys(methods)), **usual | how)
        return self.runs.get(name)

    def races(self, stages: Mapping[Any, Mapping[str, Any]], called: str = "{}") -> dict[Any, Summary]:
        """Several, by their keys, which are ``called`` so where runs are kept: those that could be made."""
        made = {key: self.race(called.format(key), **how) for key, how in stages.items()}
        return self.needed(made, "measured")

    def able(self, methods: Iterable[str], **how: Any) -> list[str]:
        """Those of these methods that can draft for the model; why the others cannot is noted. A head that is named
        must serve."""
        found = list[str]()
        for method in methods:
            try:
                self.model().generate("A", method=method.partition("@")[0], max_new_tokens=1, **how)
            except ValueError as why:
                if "head=" in method:
                    raise
                self.notes.append(f"{method} is left out: {why}")
            else:
                found.append(method)
        return found

    def needed(self, made: Mapping[Any, Any], how: str) -> dict[Any, Any]:
        """The results that could be made; ValueError if none could."""
        found = {key: one for key, one in made.items() if one is not None}
        if not found:
            raise ValueError(f"nothing could be {how}: {'; '.join(dict.fromkeys(self.missing.values()))}")
        return found

    def run(self, methods: Iterable[str], **how: Any) -> Summary:
        """The one race of an item."""
        found: Summary = self.races({"run": {"methods": [*methods], **how}})["run"]
        return found

    def watched(
        self, name: str, methods: Iterable[str], file: str, found: Any, note: Callable[[str, Observed], None]
    ) -> Any:
        """A race whose rounds are noted in ``found``, which is kept in a file, or what was kept there."""
        kept = self.out / file
        if not kept.exists() and (self.out / name).exists():
            raise ValueError(f"{self.out} was interrupted, and {kept.stem} are not all known; remove it, or give --out")
        self.races({name: {"methods": [*methods], "watch": note}})
        if not kept.exists():
            write(kept, json.dumps(found))
        return json.loads(kept.read_text(encoding="utf8"))

    @contextmanager
    def trying(self, name: str, threads: int | None = None) -> Iterator[None]:
        """With ``threads`` threads of torch; a failure is kept by its name."""
        before = torch.get_num_threads()
        torch.set_num_threads(threads or vars(self.given).get("threads") or before)
        try:
            yield
        except FAILURES as error:
            self.missing[name] = str(error).splitlines()[0]
        finally:
            progress("")
            torch.set_num_threads(before)

    def whole(self, report: Report, conditions: Sequence[str] = ()) -> Report:
        """A report with the conditions of its runs, with what could not be made, and with the runs."""
        failed = [f"{name} could not be measured: {why}" for name, why in self.missing.items()]
        notes = [*conditions, *report.notes, *remarks(self.runs.values()), *self.notes, *failed]
        notes.append(f"runs are kept in {self.out}")
        data = {"out": str(self.out), "runs": {name: run.as_dict() for name, run in self.runs.items()}}
        return replace(report, notes=list(dict.fromkeys(notes)), data={**report.data, **data})


def conditions(temperatures: Sequence[float], paper: str, model: str) -> list[str]:
    """How texts are written, where that is not as in the paper; ``paper`` says how they are there."""
    said = [f"texts are written at temperature {' and '.join(f'{t:g}' for t in temperatures)}; {paper}"]
    if bundled(model) and 0.0 in temperatures:
        said.append("the bundled models loop when they are greedy, which flatters every method")
    return said
