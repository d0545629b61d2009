"""What the scripts of the UniSpec paper share: calibrations and races that are kept in a folder, and how they are read.

The same command goes on where it was interrupted. By default a script runs on `pocket+ballast:500M` in bfloat16 with
two prompts of each of the paper's tasks, or a few short texts in two languages: the direction at best. `--limit`,
`--repeat` and `--max-new-tokens` buy narrower intervals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

import paceline
from paceline_lab import Calibration, Estimate, Figures, Summary, calibrate_method, difference, race_methods
from papers import common
from papers.common import Claim, Curve, Way
from papers.unispec.calibration import MOST, RUNS, Kept, Runs, calibration_of, even, write_prompts

MODEL, DTYPE, METHOD = "pocket+ballast:500M", "bfloat16", "unispec:paper"
SUITE, LANGUAGES = "continuation", "en,pl"
BUNDLED, BUNDLED_TEMPERATURE = ("pocket", "pocket-draft", "pocket-foreign"), 0.8
"""Greedy, the bundled models fall into loops, which flatters methods that look things up."""
SAMPLES = 5
"""Prompts to calibrate on, as in the paper."""
ASKED = (
    *("model", "dtype", "device", "threads", "suite", "tasks", "langs", "limit", "data", "max_new_tokens"),
    *("temperature", "seed", "calibration_runs", "calibration_seconds"),
)
"""Options that a calibration depends on."""
Procedure = Literal["paper", "ours"]
Key = TypeVar("Key")
FAILURES = (ValueError, RuntimeError)


def listed(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


def parser(said: str | None) -> argparse.ArgumentParser:
    found = common.parser(said)
    add = found.add_argument
    add("--model", "-m", default=MODEL, metavar="MODEL", help=f"the model ({MODEL})")
    add("--trust-remote-code", action="store_true", help="run the Python code that the model brings along")
    add("--dtype", metavar="TYPE", help=f"float32, bfloat16 or float16 ({DTYPE})")
    add("--device", metavar="DEVICE", help="where to run it (default: $PACELINE_DEVICE, or auto)")
    add("--method", default=METHOD, metavar="SPEC", help=f"the method that is looked at ({METHOD})")
    add("--suite", default=SUITE, metavar="SUITE", help="as in 'paceline bench run' (%(default)s)")
    add("--tasks", type=listed, metavar="A,B", help="only these tasks of the suite")
    add("--langs", type=listed, metavar="A,B", help=f"only these languages ({LANGUAGES} of {SUITE})")
    add("--limit", type=int, default=2, metavar="N", help="prompts of each task and language (2)")
    add("--data", type=Path, metavar="DIR", help="the data folder (default: $PACELINE_DATA)")
    add("--max-new-tokens", type=int, default=64, metavar="N", help="tokens per text (64)")
    add("--temperature", type=float, metavar="T", help="0 is greedy (0.8 for bundled models, else 0)")
    add("--seed", type=int, default=0, metavar="S", help="same seed, same texts (0)")
    add("--repeat", type=int, default=1, metavar="N", help="write everything N times (1)")
    add("--threads", type=int, metavar="N", help="threads of torch")
    add(
        "--calibration-runs",
        type=int,
        default=RUNS,
        metavar="M",
        help=f"sizes that the paper's calibration runs ({RUNS})",
    )
    add("--calibration-seconds", type=float, default=20.0, metavar="S", help="how long our calibration may take (20)")
    add("--nodes", type=int, metavar="N", help="the draft size of the method and of unispec (calibrated)")
    add("--out", type=Path, metavar="DIR", help="where runs are kept (runs/papers/SCRIPT--MODEL)")
    return found


class Lab:
    """Makes calibrations and races, or finds those that were kept. What cannot be made is kept with its reason."""

    def __init__(self, options: argparse.Namespace) -> None:
        for name in ("limit", "max_new_tokens", "repeat", "calibration_runs", "calibration_seconds", "nodes"):
            if (given := getattr(options, name)) is not None and not given > 0:
                raise ValueError(f"--{name.replace('_', '-')} must be more than 0, not {given:g}")
        self.options = options
        self.method: str = options.method
        script = f"{Path(sys.argv[0]).stem}--{options.model}".replace("/", "-").replace(":", "-")
        self.out: Path = options.out or Path("runs", "papers", script)
        self.missing: dict[str, str] = {}
        self.notes: list[str] = []
        self.runs: dict[str, Summary] = {}
        self._loaded: tuple[str, paceline.LanguageModel] | None = None
        self._counts: dict[int, int] = {}
        """Prompts to calibrate on: how many were wanted -> how many there are."""
        self._kept = Kept.read(self.out, {name: getattr(options, name) for name in ASKED})
        self.calibrated = self._kept.found

    def model(self, dtype: str | None = None) -> paceline.LanguageModel:
        """The model in a type. One is held at a time, for they are large."""
        dtype = dtype or self.options.dtype or DTYPE
        if self._loaded is None or self._loaded[0] != dtype:
            self._loaded, options = None, self.options
            trust = options.trust_remote_code
            lm = paceline.load(options.model, dtype=dtype, device=options.device, trust_remote_code=trust)
            self._loaded = dtype, lm
        return self._loaded[1]

    @property
    def temperature(self) -> float:
        given: float | None = self.options.temperature
        bundled = self.options.model.partition("+")[0] in BUNDLED
        return given if given is not None else BUNDLED_TEMPERATURE if bundled else 0.0

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
        of others by ours, within so many ``seconds``, unless a procedure is named. The prompts are of the suite of the
        race, and others than the race's."""
        method = method or self.method
        by_runs = (procedure or procedure_of(method)) == "paper"
        with self._trying(label, threads):
            suite, count = self._prompts(prompts)
            if label not in self.calibrated:
                model = self.model(dtype)
                usual = {name: getattr(self.options, name) for name in ("seed", "max_new_tokens")}
                usual |= {"suite": suite, "temperature": self.temperature, "progress": common.progress}
                if by_runs:
                    place = self.out / f"calibration {label}".replace(" ", "-").replace(":", "-").replace("/", "-")
                    found = self._by_runs(model, method, sizes, place, usual)
                else:
                    seconds = seconds or self.options.calibration_seconds
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
        place: Path,
        usual: Mapping[str, Any],
    ) -> Calibration:
        """The paper's procedure: a race of the sizes."""
        entries = {g: at(method, g) for g in sizes or even(1, MOST, self.options.calibration_runs)}
        return calibration_of(race_methods(model, [*entries.values()], out=place, **usual), entries)

    def prompts_of(self, count: int) -> int:
        """How many prompts there are where so many were wanted to calibrate on."""
        return self._counts.get(count, count)

    def keep(self, label: str, found: Calibration) -> None:
        self._kept.add(label, found)

    def size(self, method: str | None = None) -> Calibration:
        """The best size of a method, by default of the one that is looked at."""
        method = method or self.method
        if (nodes := self.options.nodes) is not None:
            return Calibration(nodes=nodes, sizes=[nodes], tokens=[], seconds=[], took=0.0)
        found = self.calibrate(method, method)
        if found is None:
            raise ValueError(f"{method} could not be calibrated: {self.missing[method]}")
        return found

    def _prompts(self, count: int) -> tuple[str, int]:
        """A suite of so many prompts to calibrate on, and how many it has."""
        file = self.out / f"calibration-{count}.jsonl"
        if count not in self._counts:
            what = {name: getattr(self.options, name) for name in ("suite", "tasks", "limit", "data")}
            self._counts[count], notes = write_prompts(file, count, languages=self.languages, **what)
            self.notes += notes
        return f"prompts:{file}", self._counts[count]

    @property
    def languages(self) -> list[str] | None:
        asked: list[str] | None = self.options.langs
        return listed(LANGUAGES) if asked is None and self.options.suite == SUITE else asked

    def race(self, name: str, methods: Iterable[str], *, dtype: str | None = None, **options: Any) -> Summary | None:
        """A race of plain decoding and these methods; further options are those of 'paceline bench run'."""
        given = self.options
        usual = {name: getattr(given, name) for name in ("suite", "tasks", "langs", "limit", "seed", "repeat", "data")}
        usual |= {"max_new_tokens": given.max_new_tokens, "temperature": self.temperature}
        usual["langs"] = self.languages
        with self._trying(name, None):
            usual |= {"out": self.out / name.replace(" ", "-"), "progress": common.progress}
            found = race_methods(self.model(dtype), list(dict.fromkeys(methods)), **usual | options)
            self.runs[name] = found
        return self.runs.get(name)

    def races(self, stages: Mapping[str, Mapping[str, Any]]) -> dict[str, Summary]:
        """Several, by their names: those that could be made."""
        made = {name: self.race(name, **options) for name, options in stages.items()}
        found = {name: run for name, run in made.items() if run is not None}
        if not found:
            raise ValueError(f"nothing could be measured: {'; '.join(self.missing.values())}")
        return found

    def needed(self, made: Mapping[Key, Calibration | None]) -> dict[Key, Calibration]:
        """The calibrations that could be made; ValueError where none could."""
        found = {label: one for label, one in made.items() if one is not None}
        if not found:
            raise ValueError(f"nothing could be calibrated: {'; '.join(self.missing.values())}")
        return found

    @contextmanager
    def _trying(self, name: str, threads: int | None) -> Iterator[None]:
        """With so many threads of torch; a failure is kept by its name."""
        before = torch.get_num_threads()
        torch.set_num_threads(threads or self.options.threads or before)
        try:
            yield
        except FAILURES as error:
            self.missing[name] = str(error).splitlines()[0]
        finally:
            common.progress("")
            torch.set_num_threads(before)

    def show(self, report: common.Report) -> None:
        """Print a report, with what could not be made."""
        failed = [*self.notes, *(f"{name} could not be measured: {why}" for name, why in self.missing.items())]
        calibrated = {label: vars(one) for label, one in self.calibrated.items()}
        runs = {name: run.as_dict() for name, run in self.runs.items()}
        data = {"out": str(self.out), "calibrated": calibrated, "runs": runs}
        replace(report, notes=[*report.notes, *failed], data={**report.data, **data}).show(self.options)


# --- numbers that several scripts read ---


def procedure_of(method: str) -> Procedure:
    """How a method is calibrated: as published where the method is."""
    return "paper" if method.partition(",")[0].partition(":")[2] == "paper" else "ours"


def with_options(method: str, options: str) -> str:
    """A method's spec with further options."""
    return f"{method}{',' if ':' in method else ':'}{options}"


def at(method: str, nodes: int) -> str:
    return f"{method}@fixed:{nodes}"


def sized(method: str, calibrated: Calibration | None) -> str:
    """A method at its calibrated size; at its own where there is none."""
    return method if calibrated is None else at(method, calibrated.nodes)


def speed_up(run: Summary, entry: str, task: str | None = None) -> Estimate:
    """All tokens over all seconds, over plain decoding's: in a task, or the mean over tasks."""
    found = run.means(entry) if task is None else run.figures(entry, task)
    return (found.speed_up_of_means if found is not None else None) or Estimate(float("nan"))


def tokens_per_round(run: Summary, entry: str) -> float:
    """The mean over tasks."""
    return run.means(entry).tokens_per_round or 0.0


def ratio(run: Summary, entry: str, other: str, task: str | None = None) -> Estimate:
    """The speed of an entry over another's, pair by pair, in a task or in all."""
    pairs = run.pairs(entry, other, task)
    return difference(pairs.ratio, pairs.unit).ratio if len(pairs) else Estimate(float("nan"))


def rounds_ratio(run: Summary, entry: str, other: str) -> Estimate:
    """Tokens per round of an entry's texts over those of another's, pair by pair."""
    pairs = run.pairs(entry, other)
    found = (pairs.emitted / pairs.rounds) / (pairs.emitted_base / pairs.rounds_base)
    known = found.notna()
    return difference(found[known], pairs.unit[known]).ratio if known.any() else Estimate(float("nan"))


def over(one: Estimate, other: Estimate) -> Estimate:
    """The ratio of two estimates of different runs, bounded by the ends of both where both have ends."""
    if not (one.bounded and other.bounded):
        return Estimate(one.value / other.value)
    return Estimate(one.value / other.value, one.low / other.high, one.high / other.low)


def number(found: float | None) -> str:
    return "" if found is None else f"{found:.2f}"


def with_interval(found: Estimate) -> str:
    """A speed-up with its interval."""
    if found.value != found.value:
        return ""
    return f"{found.value:.2f}" + (f" [{found.low:.2f}, {found.high:.2f}]" if found.bounded else "")


def pairwise(found: Estimate) -> str:
    """The ratio of pairs, which decides a claim, beside the means."""
    return f", {with_interval(found)} text by text"


def between(one: Estimate, other: Estimate) -> str:
    """Two estimates, with the ratio that decides a claim."""
    return f"{with_interval(one)} against {with_interval(other)}, a ratio of {with_interval(over(one, other))}"


def against(run: Summary, entry: str, other: str) -> str:
    return f"{speed_up(run, entry).value:.2f}x against {speed_up(run, other).value:.2f}x"


def undecided(entry: str, other: str) -> str:
    """Why nothing that a paper says of drafts follows from these two entries, if nothing does."""
    if entry == other:
        return "both are the same size"
    return "no drafts pay here (0 nodes)" if any(one.endswith("@fixed:0") for one in (entry, other)) else ""


def faster(run: Summary, entry: str, other: str, claim: str, paper: str, way: Way, more: str = "") -> Claim:
    """A claim on the speeds of two entries."""
    if why := undecided(entry, other):
        return Claim(claim, paper, f"{against(run, entry, other)}{more}: {why}", None)
    found = ratio(run, entry, other)
    return Claim.of(claim, paper, f"{against(run, entry, other)}{more}{pairwise(found)}", way, found)


def brings(run: Summary, entry: str, other: str, claim: str, paper: str, way: Way) -> Claim:
    """A claim on the tokens per round of two entries."""
    ours = f"{tokens_per_round(run, entry):.2f} against {tokens_per_round(run, other):.2f} tokens"
    if why := undecided(entry, other):
        return Claim(claim, paper, f"{ours}: {why}", None)
    found = rounds_ratio(run, entry, other)
    return Claim.of(claim, paper, f"{ours}{pairwise(found)}", way, found)


def fastest(run: Summary, entries: Iterable[str]) -> str:
    """The entry of most tokens a second."""
    speeds = {entry: f.tokens_per_second or 0.0 for entry in entries if (f := run.figures(entry)) is not None}
    return max(speeds, key=lambda entry: speeds[entry])


HEAD = ("", "x plain [95%]", "tokens/round", "tokens/s", "text")


def row(run: Summary, entry: str, name: str | None = None, task: str | None = None) -> tuple[str, ...]:
    """The figures of an entry, under `HEAD`."""
    figures = run.figures(entry, task)
    if figures is None:
        return (name or entry,)
    rate = "" if figures.tokens_per_second is None else f"{figures.tokens_per_second:.1f}"
    per_round = number(figures.tokens_per_round)
    return name or entry, with_interval(speed_up(run, entry, task)), per_round, rate, verdicts(figures)


def verdicts(figures: Figures) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in figures.verdicts.items())


def rows(run: Summary, names: Mapping[str, str] | None = None) -> list[tuple[str, ...]]:
    """The figures of all entries, some of which have names of the script's own."""
    return [row(run, entry, (names or {}).get(entry)) for entry in run.entries]


def size_notes(found: Calibration | None) -> list[str]:
    if found is None:
        return []
    if not found.tokens:
        return [f"the size is {found.nodes}, as it was given"]
    sizes = ", ".join(map(str, found.sizes))
    of = f"the paper's procedure, with runs of {sizes} nodes" if isinstance(found, Runs) else "our procedure"
    return [f"the calibrated size is {found.nodes}, by {of}"]


def curves(entries: Sequence[str], places: Sequence[tuple[float, Callable[[str], Estimate]]]) -> list[Curve]:
    """A line for each entry: its speed-up in every place."""
    found = {entry: [(x, of(entry).value) for x, of in places] for entry in entries}
    return [Curve(entry, [p for p in points if p[1] == p[1]], n) for n, (entry, points) in enumerate(found.items())]
