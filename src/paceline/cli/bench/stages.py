"""Making what a study needs: calibrations, and runs one after the other on a model that is loaded once."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.api.model import LanguageModel
from paceline.bench.machine import hushed, threads
from paceline.bench.run.contestant import Missing
from paceline.bench.studies.base import Calibrated, Found, Setting, Stage, Study, Wish
from paceline.bench.studies.nodes import Nodes, onlookers
from paceline.bench.suites.running import languages_of, passages
from paceline.bench.suites.sources import Sources
from paceline.bench.summary import Summary
from paceline.cli import bench
from paceline.cli.bench.run import check, refereed
from paceline.cli.common import load_model
from paceline.cli.measuring import temperature_of
from paceline.files import check_folder, claimed, write_whole
from paceline.files.reading import DESCRIPTION, damaged, parse, read_file
from paceline.files.shape import shaped

CALIBRATED, NODES, PROMPTS, STUDY = "calibrated.json", "nodes.json", "prompts.jsonl", "study.json"
DTYPE = "bfloat16"
PASSAGES = 4000

Advance = Callable[[str, int, int], None]


class Maker:
    """Makes the parts of one study. What could not be made is kept with its reason."""

    def __init__(self, study: Study, options: argparse.Namespace, advance: Advance) -> None:
        self.study, self.options, self.advance = study, options, advance
        self.missing: dict[str, str] = {}
        self._loaded: tuple[str, LanguageModel] | None = None

    def model(self, dtype: str | None = None) -> LanguageModel:
        """The model in a type. One is held at a time, for they are large."""
        dtype = dtype or self.options.dtype or DTYPE
        if self._loaded is None or self._loaded[0] != dtype:
            self._loaded = None
            self.advance(f"loading {self.options.model} in {dtype}", 0, 0)
            options = argparse.Namespace(model=self.options.model, dtype=dtype, device=self.options.device)
            self._loaded = dtype, load_model(options)
        return self._loaded[1]

    def setting(self) -> Setting:
        lm, options = self.model(), self.options
        return Setting(
            method=options.method,
            sizes=options.sizes,
            prompts=options.limit,
            tokens=options.max_new_tokens,
            dtype=options.dtype or DTYPE,
            vocabulary=lm.vocabulary,
            context_length=lm.target.context_length,
            texts=self._texts,
        )

    def _texts(self) -> str:
        """Running text, of one language after the other."""
        sources = Sources(self.options.data)
        known = languages_of(sources)
        asked = [name for name in self.options.langs or known if name in known]
        return "\n".join(one.text for language in asked for one in passages(sources, language, PASSAGES))

    def calibrations(self, wishes: list[Wish]) -> dict[str, Calibrated]:
        """What was calibrated; it is kept beside the runs, so that the study goes on with the same sizes."""
        file = self.options.out / CALIBRATED
        found = _kept(file)
        for wish in wishes:
            if wish.label in found:
                continue
            try:
                with threads(wish.threads or self.options.threads), hushed():
                    found[wish.label] = self._calibrated(wish)
            except (ValueError, RuntimeError) as error:
                self.missing[wish.label] = str(error).splitlines()[0]
                continue
            self._begin()
            write_whole(file, json.dumps({label: vars(one) for label, one in found.items()}, indent=1) + "\n")
        return {wish.label: found[wish.label] for wish in wishes if wish.label in found}

    def _begin(self) -> None:
        """Mark the folder as that of a study, before the first file is put there."""
        mark = self.options.out / STUDY
        if not mark.exists():
            write_whole(mark, json.dumps({"study": self.study.name}) + "\n")

    def _calibrated(self, wish: Wish) -> Calibrated:
        from paceline.bench.calibrate import Calibrator, Method, Plan
        from paceline.bench.calibrate.prompts import SAMPLES, prompts_of
        from paceline.drafters import make_drafter
        from paceline.law import Sampling

        lm = self.model(wish.dtype)
        assert lm.vocabulary is not None, "a bundled model or one that suites can be asked of"
        drafter = make_drafter(wish.method)
        drafter.fit(lm.target, lm.vocabulary)
        started = time.monotonic()
        method = Method.of(drafter)
        calibrator = Calibrator(
            target=lm.target,
            methods=[method],
            prompts=prompts_of(None, lm.vocabulary, wish.prompts or SAMPLES),
            plan=Plan(
                sampling=Sampling(temperature=self._temperature(), seed=self.options.seed),
                lengths=(256,),
                sequences=(1,),
                seconds=self.options.calibration_seconds * (wish.prompts or SAMPLES) / SAMPLES,
            ),
            progress=self.advance,
        )
        profile = calibrator.run()
        took = time.monotonic() - started
        found = profile.method(method.spec, method.draft)
        assert found is not None, "it was just measured"
        choice = found.choices[0]
        seconds = found.seconds(profile.curves(found.top), choice.sequences, choice.length).tolist()
        return Calibrated(
            nodes=choice.nodes,
            sizes=[point.nodes for point in found.points],
            tokens=[point.tokens for point in found.points],
            seconds=seconds,
            took=took,
        )

    def _temperature(self) -> float:
        return temperature_of(self.options)

    def run(self, stage: Stage, number: int, count: int) -> tuple[Summary, dict[str, Any]]:
        """One run, or what was kept of it; and what was noted of its nodes."""
        place: Path = self.options.out / stage.name.replace(" ", "-")
        parser = argparse.ArgumentParser(allow_abbrev=False)
        bench.run.add_options(parser)
        options = parser.parse_args(self._arguments(stage, place))
        check(options)
        options.draft_model = None
        noted: dict[str, Nodes] = {}
        kept = place.with_name(f"{place.name}.{NODES}")
        if stage.nodes and not kept.exists() and place.exists():
            raise ValueError(
                f"{place} was interrupted and its nodes are not all known; remove it, or give another --out"
            )

        def advance(doing: str, done: int, total: int) -> None:
            self.advance(f"{stage.name} ({number} of {count}): {doing}", done, total)

        self._begin()
        lm = self.model(options.dtype)
        planned = {"planned": onlookers(noted)} if stage.nodes else {}
        with threads(self.options.threads), hushed(), refereed(options, advance, lambda _: lm, **planned) as judge:
            noted.clear()
            judge.sit()
        if stage.nodes and not kept.exists():
            write_whole(kept, json.dumps({name: nodes.as_dict() for name, nodes in noted.items() if nodes.score}))
        return Summary(judge.run), _nodes(kept, place) if stage.nodes else {}

    def _arguments(self, stage: Stage, place: Path) -> list[str]:
        """The stage as arguments of ``bench run``."""
        options = self.options
        flags: dict[str, str | None] = {
            "model": options.model,
            "dtype": options.dtype or DTYPE,
            "suite": options.suite,
            "limit": str(options.limit),
            "max-new-tokens": str(options.max_new_tokens),
            "seed": str(options.seed),
            "repeat": str(options.repeat),
            "energy": "none",
            "out": str(place),
        }
        optional = {"device": options.device, "data": options.data, "temperature": options.temperature}
        flags |= {name: str(value) for name, value in optional.items() if value is not None}
        if stage.prompts:
            file = place.with_name(f"{place.name}.{PROMPTS}")
            self._begin()
            rows = (
                {"prompt": text, "key": f"{task}-{n}", "task": task} for n, (task, text) in enumerate(stage.prompts)
            )
            write_whole(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
            flags["suite"] = f"prompts:{file}"
        else:
            lists = {"langs": options.langs, "tasks": options.tasks}
            flags |= {name: ",".join(given) for name, given in lists.items() if given}
        flags |= stage.options
        said = [word for name, value in flags.items() for word in (f"--{name}", *([] if value is None else [value]))]
        return [*said, "--methods", "plain", *stage.methods]


def made(study: Study, options: argparse.Namespace, advance: Advance) -> Found:
    """Everything that a study reads, made or found where it was kept."""
    with claimed(options.out):
        if not _kept(options.out / CALIBRATED):  # the mark of a study by an earlier version
            check_folder(options.out, STUDY, "study")
        return _made(Maker(study, options, advance))


def _made(maker: Maker) -> Found:
    study = maker.study
    setting = maker.setting()
    calibrated = maker.calibrations(list(study.wishes(setting)))
    runs: dict[str, Summary] = {}
    nodes: dict[str, dict[str, Any]] = {}
    unknown = [wish.label for wish in study.wishes(setting) if wish.label not in calibrated]
    stages = [] if setting.method in unknown else list(study.stages(setting, calibrated))
    for number, stage in enumerate(stages, start=1):
        try:
            runs[stage.name], nodes[stage.name] = maker.run(stage, number, len(stages))
        except (ValueError, RuntimeError, Missing) as error:
            if len(stages) == 1:
                raise
            maker.missing[stage.name] = str(error).splitlines()[0]
    return Found(setting=setting, calibrated=calibrated, runs=runs, nodes=nodes, missing=maker.missing)


def _kept(file: Path) -> dict[str, Calibrated]:
    """What was calibrated before; what cannot be read is measured again."""
    with suppress(OSError, ValueError):
        found = shaped(dict[str, Calibrated], parse(read_file(file, DESCRIPTION)))
        return {label: one for label, one in found.items() if len(one.sizes) == len(one.tokens) == len(one.seconds) > 0}
    return {}


def _nodes(file: Path, run: Path) -> dict[str, Any]:
    """What was noted of a run's nodes."""
    with damaged(str(file), f"remove it and {run}, and the same study makes both again"):
        found = shaped(dict[str, Nodes], parse(read_file(file)))
    return {name: nodes.as_dict() for name, nodes in found.items()}
