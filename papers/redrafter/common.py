"""What the scripts of the ReDrafter paper share: options, the model and its head, races kept in a folder, speeds.

The same command goes on where it was interrupted. By default a script runs `pocket` with the head that comes with
paceline, with ballast where speed counts, on very few prompts: the direction at best. `--limit`, `--repeat` and
`--max-new-tokens` give narrower intervals. Beams are drafted by `redrafter:paper`, as published, or by `redrafter`,
which ranks by the shared noise and sends everything that the search chose.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import paceline
from paceline_lab import Estimate, Summary, open_suite, race_methods
from papers import common
from papers.unispec.common import BUNDLED, BUNDLED_TEMPERATURE, FAILURES, listed, with_options

MODEL, COUNTING = "pocket+ballast:500M", "pocket"
"""Where speed counts, and where it does not: both write the same texts."""
BALLAST_DTYPE = "bfloat16"
METHOD, OWN = "redrafter:paper", "redrafter"
WIDTH, LENGTH = 4, 4
CHAT, TASK, STAND_IN = "spec-bench", "mt_bench", "stories"
WEIGHTS, HEADS = "model.safetensors", "heads.json"
"""A head's weights, and the file of the runs' folder that says with which heads they were made."""
COUNTS = "limit", "max_new_tokens", "repeat", "width", "length", "batch", "threads"


def parser(said: str | None, model: str = MODEL) -> argparse.ArgumentParser:
    found = common.parser(said)
    add = found.add_argument
    add("--model", "-m", default=model, metavar="MODEL", help=f"the model ({model})")
    add("--head", type=Path, metavar="FOLDER", help="a head trained for it (the one that comes with paceline)")
    add("--trust-remote-code", action="store_true", help="run the Python code that the model brings along")
    add("--dtype", metavar="TYPE", help=f"float32, bfloat16 or float16 ({BALLAST_DTYPE} with ballast, or its own)")
    add("--device", metavar="DEVICE", help="where to run it (default: $PACELINE_DEVICE, or auto)")
    add("--limit", type=int, default=2, metavar="N", help="prompts of each task and language (%(default)s)")
    add("--data", type=Path, metavar="DIR", help="the data folder (default: $PACELINE_DATA)")
    add("--max-new-tokens", type=int, default=64, metavar="N", help="tokens per text (64)")
    add("--seed", type=int, default=0, metavar="S", help="same seed, same texts (0)")
    add("--repeat", type=int, default=1, metavar="N", help="write everything N times (1)")
    add("--threads", type=int, metavar="N", help="threads of torch")
    add("--out", type=Path, metavar="DIR", help="where runs are kept (runs/papers/SCRIPT--MODEL)")
    return found


def with_suite(found: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Options of scripts that write any suite at one temperature."""
    add = found.add_argument
    add("--suite", metavar="SUITE", help=f"as in 'paceline bench run' (MT-Bench of {CHAT}, or else {STAND_IN})")
    add("--tasks", type=listed, metavar="A,B", help="only these tasks of the suite")
    add("--langs", type=listed, metavar="A,B", help="only these languages")
    add("--temperature", type=float, metavar="T", help="0 is greedy (0.8 for bundled models, else 0)")
    return found


def with_method(found: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The option of scripts that look at one of the two methods."""
    found.add_argument("--method", default=METHOD, choices=(METHOD, OWN), help=f"how beams are drafted ({METHOD})")
    return found


def spec(given: argparse.Namespace, width: int, length: int, *, method: str | None = None, head: Any = None) -> str:
    """The method with beams of this width and length, and the head that was asked for."""
    head = head or given.head
    if "'" in str(head):
        raise ValueError(f"no method can name {head}, which has a quote in its name; rename the folder of the head")
    named = "" if head is None else f",head='{head}'"
    return with_options(method or vars(given).get("method", METHOD), f"width={width},length={length}{named}")


def digest(folder: Path) -> str:
    """Of a head's weights: a folder may hold another head later."""
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()[:16]


class Lab:
    """Makes races, or finds those that were kept. What cannot be made is kept with its reason."""

    def __init__(self, given: argparse.Namespace) -> None:
        for name in COUNTS:
            values = getattr(given, name, None)
            for value in values if isinstance(values, list | tuple) else [values]:
                if value is not None and value < 1:
                    raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
        if getattr(given, "threads", None):
            torch.set_num_threads(given.threads)
        self.given = given
        script = f"{Path(sys.argv[0]).stem}--{given.model}".replace("/", "-").replace(":", "-")
        self.out: Path = given.out or Path("runs", "papers", script)
        self.missing: dict[str, str] = {}
        self.notes: list[str] = []
        self.runs: dict[str, Summary] = {}
        self._lm: paceline.LanguageModel | None = None

    @property
    def model(self) -> paceline.LanguageModel:
        if self._lm is None:
            given = self.given
            dtype = given.dtype or (BALLAST_DTYPE if "+ballast" in given.model else None)
            how = {"dtype": dtype, "device": given.device, "trust_remote_code": given.trust_remote_code}
            how["generation_config"] = False
            self._lm = paceline.load(given.model, **how)
        return self._lm

    def need_head(self, *heads: Path) -> None:
        """ValueError where the model has no head, one of these is not for it, or the kept runs are of other heads."""
        asked = heads or (self.given.head,)
        for head in asked:
            try:
                self.model.generate("A", method=spec(self.given, 1, 1, head=head), max_new_tokens=1)
            except ValueError as error:
                raise ValueError(str(error).replace("give head=FOLDER", "give --head FOLDER")) from error
        kept, digests = self.out / HEADS, {str(head): digest(head) for head in asked if head is not None}
        if kept.exists() and json.loads(kept.read_text("utf8")) != digests:
            raise ValueError(f"{self.out} has runs with other heads; give another --out")
        common.write(kept, json.dumps(digests))

    @property
    def bundled(self) -> bool:
        return self.given.model.partition("+")[0] in BUNDLED

    @property
    def temperature(self) -> float:
        given: float | None = self.given.temperature
        return given if given is not None else BUNDLED_TEMPERATURE if self.bundled else 0.0

    def prompts(self) -> dict[str, Any]:
        """The suite that was asked for: MT-Bench where it is here, and stories where it is not."""
        given = self.given
        if given.suite is not None:
            return {"suite": given.suite, "tasks": given.tasks, "langs": given.langs}
        try:
            open_suite(CHAT, data=given.data, tasks=[TASK], limit=1)
        except ValueError as why:
            note = f"MT-Bench is not here, and beginnings of stories stand in for it: {why}"
            self.notes += [] if note in self.notes else [note]
            return {"suite": STAND_IN, "tasks": given.tasks, "langs": given.langs}
        return {"suite": CHAT, "tasks": given.tasks or [TASK], "langs": given.langs}

    def race(self, name: str, methods: Iterable[str], **how: Any) -> Summary | None:
        """A race of plain decoding and these methods; further options are those of 'paceline bench run'."""
        given = self.given
        usual = {name: getattr(given, name) for name in ("limit", "seed", "repeat", "data", "max_new_tokens")}
        usual |= {} if "suite" in how else self.prompts()
        usual |= {} if "temperature" in how else {"temperature": self.temperature}
        usual |= {"out": self.out / name.replace(" ", "-"), "progress": common.progress}
        try:
            self.runs[name] = race_methods(self.model, list(dict.fromkeys(methods)), **usual | how)
        except FAILURES as error:
            self.missing[name] = str(error).splitlines()[0]
        finally:
            common.progress("")
        return self.runs.get(name)

    def races(self, stages: Mapping[str, Mapping[str, Any]]) -> dict[str, Summary]:
        """Several, by their names: those that could be made."""
        made = {name: self.race(name, **how) for name, how in stages.items()}
        found = {name: run for name, run in made.items() if run is not None}
        if not found:
            raise ValueError(f"nothing could be measured: {'; '.join(dict.fromkeys(self.missing.values()))}")
        return found

    def show(self, report: common.Report) -> None:
        """Print a report, with what could not be made."""
        failed = [f"{name} could not be measured: {why}" for name, why in self.missing.items()]
        runs = {name: run.as_dict() for name, run in self.runs.items()}
        data = {"out": str(self.out), "runs": runs, **report.data}
        notes = [*self.notes, *report.notes, *failed, f"runs are kept in {self.out}"]
        replace(report, notes=list(dict.fromkeys(notes)), data=data).show(self.given)


# --- numbers that several scripts read ---


def per_request(run: Summary, entry: str) -> float:
    """Tokens a second of one text: all tokens behind the first over the time from the first token to the last."""
    texts = run.texts[run.texts.entry == entry]
    seconds = float((texts.seconds - texts.seconds_first).sum())
    tokens = int((texts.tokens - 1).sum())
    return tokens / seconds if seconds > 0 and tokens > 0 else float("nan")


def in_all(run: Summary, entry: str) -> float:
    """Tokens a second of all texts of a batch together."""
    figures = run.figures(entry)
    found = figures.tokens_per_second if figures is not None else None
    return float("nan") if found is None else found


def overall(run: Summary, entry: str) -> Estimate:
    """All tokens over all seconds, over plain decoding's, of all texts."""
    figures = run.figures(entry)
    return (figures.speed_up_of_means if figures is not None else None) or Estimate(float("nan"))


def written(value: float, form: str = ".1f") -> str:
    return "" if value != value else format(value, form)


def conditions(lab: Lab, temperatures: Sequence[float], paper: str) -> list[str]:
    """How texts are written, where that is not as in the paper; ``paper`` says how they are there."""
    own = " and ".join(f"{t:g}" for t in temperatures)
    said = [f"texts are written at temperature {own}; {paper}"]
    if lab.bundled and 0.0 in temperatures:
        said.append("the bundled models loop when they are greedy, which flatters every method")
    if any(temperatures):
        said.append(f"{METHOD} ranks drafts by probability alone, {OWN} by probability and the noise that chooses")
    return said
