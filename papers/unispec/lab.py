"""Shared by the items of the UniSpec paper: calibrations and races kept in a folder, and the methods to compare with.

Every table has the paper's method as it was published (`unispec:paper`). Beside it stand the same method with the
shared noise, where texts are sampled, so that what the noise adds is seen; our `unispec`; and `auto`. Tables 14 and 15
and Figures 2, 5 and 6 compare draft sizes: they have no `auto`, and of `unispec` only Table 15 and Figure 6 have a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import paceline
from paceline_lab import Calibration, calibrate_method, race_methods
from papers.driver import Given, Option, asked, progress
from papers.lab import BALLAST_DTYPE, Lab, bundled, folder_of
from papers.report import Report
from papers.unispec.calibration import MOST, RUNS, Kept, Runs, calibration_of, even, write_prompts

MODEL, METHOD, OWN, AUTO = "pocket+ballast:500M", "unispec:paper", "unispec", "auto"
SUITE, LANGUAGES = "continuation", ["en", "pl"]
SAMPLES = 5
"""Prompts to calibrate on, as in the paper."""
ASKED = (
    *("model", "dtype", "device", "threads", "suite", "tasks", "langs", "limit", "data", "max_new_tokens"),
    *("temperature", "seed", "calibration_runs", "calibration_seconds"),
)
"""Options that a calibration depends on."""
Procedure = Literal["paper", "ours"]


def options(**own: Any) -> dict[str, Option]:
    """The options of all items that measure, and those of one."""
    usual = {"model": MODEL, "method": METHOD, "suite": SUITE, "calibration_runs": RUNS}
    names = "trust_remote_code", "dtype", "device", "tasks", "langs", "limit", "data", "max_new_tokens", "temperature"
    return asked(*names, "seed", "repeat", "threads", "calibration_seconds", "nodes", "out", **usual | own)


def with_options(method: str, more: str) -> str:
    """A method's spec with further options."""
    return f"{method}{',' if ':' in method else ':'}{more}"


def at(method: str, nodes: int) -> str:
    return f"{method}@fixed:{nodes}"


def sized(method: str, calibrated: Calibration | None) -> str:
    """A method at its calibrated size; at its own where there is none."""
    return method if calibrated is None else at(method, calibrated.nodes)


def procedure_of(method: str) -> Procedure:
    """How a method is calibrated: as published where the method is."""
    return "paper" if method.partition(",")[0].partition(":")[2] == "paper" else "ours"


def published(method: str) -> bool:
    """Whether a method is asked for as its authors have it."""
    return procedure_of(method) == "paper"


def shared(method: str) -> str:
    """The same drafts, ranked by the noise that the target will choose by."""
    return with_options(method, "noise=shared")


class SizesLab(Lab):
    """Makes calibrations, too, or finds those that were kept."""

    own_settings = True

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.method: str = given.method
        self._counts: dict[int, int] = {}
        """Prompts to calibrate on: how many were wanted -> how many there are."""
        self._kept = Kept.read(self.out, {name: getattr(given, name) for name in ASKED})
        self.calibrated = self._kept.found

    @property
    def dtype(self) -> str | None:
        return self.given.dtype or BALLAST_DTYPE

    def prompts(self) -> dict[str, Any]:
        given = self.given
        langs = LANGUAGES if given.langs is None and given.suite == SUITE else given.langs
        return {"suite": given.suite, "tasks": given.tasks, "langs": langs}

    def calibrate(
        self,
        label: str,
        method: str | None = None,
        *,
        procedure: Procedure | None = None,
        dtype: str | None = None,
        threads: int | None = None,
        prompts: int = SAMPLES,
        sizes: Sequence[int] | None = None,
        seconds: float | None = None,
    ) -> Calibration | None:
        """The best size of a method on this machine: of one as published by the paper's procedure, runs of ``sizes``;
        of others by ours, within ``seconds``, unless a procedure is named. The prompts are of the suite of the race,
        and others than the race's."""
        method = method or self.method
        by_runs = (procedure or procedure_of(method)) == "paper"
        with self.trying(label, threads):
            suite, count = self._calibration_prompts(prompts)
            if label not in self.calibrated:
                model, given = self.model(dtype), self.given
                usual = {"seed": given.seed, "max_new_tokens": given.max_new_tokens, "suite": suite}
                usual |= {"temperature": self.temperature, "progress": progress}
                if by_runs:
                    found = self._by_runs(model, method, sizes, f"calibration {label}", usual)
                else:
                    seconds = seconds or given.calibration_seconds
                    found = calibrate_method(model, method, seconds=seconds, prompts=count, **usual)
                self.keep(label, found)
            elif by_runs and sizes is not None and self.calibrated[label].sizes != sorted(sizes):
                raise ValueError(f"{self.out} has runs of other sizes; give another --out")
        return None if label in self.missing else self.calibrated.get(label)

    def _by_runs(
        self,
        model: paceline.LanguageModel,
        method: str,
        sizes: Sequence[int] | None,
        name: str,
        usual: Mapping[str, Any],
    ) -> Calibration:
        """The paper's procedure: a race of the sizes."""
        entries = {g: at(method, g) for g in sizes or even(1, MOST, self.given.calibration_runs)}
        return calibration_of(
            race_methods(model, [*entries.values()], out=self.out / folder_of(name), **usual), entries
        )

    def _calibration_prompts(self, count: int) -> tuple[str, int]:
        """A suite of ``count`` prompts to calibrate on, and how many it has."""
        file = self.out / f"calibration-{count}.jsonl"
        if count not in self._counts:
            given, what = self.given, self.prompts()
            what = {"suite": what["suite"], "tasks": what["tasks"], "languages": what["langs"]}
            self._counts[count], notes = write_prompts(file, count, limit=given.limit, data=given.data, **what)
            self.notes += notes
        return f"prompts:{file}", self._counts[count]

    def prompts_of(self, count: int) -> int:
        """How many prompts there are if ``count`` were requested to calibrate on."""
        return self._counts.get(count, count)

    def keep(self, label: str, found: Calibration) -> None:
        self._kept.add(label, found)

    def size(self, method: str | None = None) -> Calibration:
        """The best size of a method, by default of the one that is looked at."""
        method = method or self.method
        if (nodes := self.given.nodes) is not None:
            return Calibration(nodes=nodes, sizes=[nodes], tokens=[], seconds=[], took=0.0)
        found = self.calibrate(method, method)
        if found is None:
            raise ValueError(f"{method} could not be calibrated: {self.missing[method]}")
        return found

    def sized(self) -> str:
        """The method that is looked at, at its size."""
        return sized(self.method, self.size())

    def beside(self, temperature: float | None = None) -> list[str]:
        """The methods to compare the item's method with, at the calibrated sizes."""
        warm = (self.temperature if temperature is None else temperature) > 0
        found = [sized(shared(self.method), self.size())] if warm and published(self.method) else []
        own = [sized(OWN, self.size(OWN))] if self.method != OWN else []
        return [*found, *own, AUTO]

    def whole(self, report: Report, conditions: Sequence[str] | None = None) -> Report:
        """By default with the size of the method that is looked at, and how texts are written."""
        if conditions is None:
            conditions = [*size_notes(self.size()), *sampled(self.temperature, self.given.model)]
        found = super().whole(report, conditions)
        return replace(found, data={**found.data, "calibrated": {name: vars(c) for name, c in self.calibrated.items()}})

    def unsized(self, report: Report) -> Report:
        """The same without a size."""
        return self.whole(report, sampled(self.temperature, self.given.model))


def size_notes(found: Calibration | None, method: str = "") -> list[str]:
    of = f"{method}: " if method else ""
    if found is None:
        return []
    if not found.tokens:
        return [f"{of}the size is {found.nodes}, as it was given"]
    sizes = ", ".join(map(str, found.sizes))
    how = f"the paper's procedure, with runs of {sizes} nodes" if isinstance(found, Runs) else "our procedure"
    return [f"{of}the calibrated size is {found.nodes}, by {how}"]


def sampled(temperature: float, model: str) -> list[str]:
    """How texts are written, where that is not as in the paper."""
    if not temperature:
        return []
    why = ", since the bundled models loop when they are greedy" if bundled(model) else ""
    return [
        f"texts are sampled at temperature {temperature:g}, the paper's are greedy{why}",
        "methods named :paper draft as published; with noise=shared, and in unispec and auto, the noise ranks drafts",
    ]
