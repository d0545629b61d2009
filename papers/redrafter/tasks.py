"""Table 1, Figures 1 and 5: MT-Bench and AlpacaEval, by category."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline_lab import Prompt, Sources, Summary, as_lines, open_suite
from papers.charts import Curve, Panel
from papers.driver import Given, write
from papers.lab import Lab, bundled, method_of, names_of
from papers.redrafter.heads import METHOD, OWN, shown, spec, with_head
from papers.report import Claim, Report, Table, Way
from papers.speeds import best, by, by_task, compared, faster, overall, per_round, speed_up, with_interval, written

TEMPERATURES = 0.0, 1.0
QUESTIONS = "spec_bench_question.jsonl", "spec_bench/question.jsonl"
MT_BENCH, ALPACA = "MT-Bench", "AlpacaEval"
DRAFT_MODEL = "pocket-draft"
RIVALS = "medusa:paper", "eagle:paper"
"""The paper's, with heads that come with the package or that the method names."""
FASTEST = "faster, but for EAGLE with 33B parameters at temperature 0"
GAIN = "by about 30% for ReDrafter"
Runs = Mapping[tuple[str, float], Summary]
"""By data set and temperature."""


def mt_bench(data: Path | None) -> list[Prompt]:
    """The first turns and those after, with MT-Bench's categories as tasks."""
    sources = Sources(data)
    rows = sources.rows(sources.need("Spec-Bench's question.jsonl", *QUESTIONS))
    kinds = {row.texts("turns"): row.text("category") for row in rows}
    return [
        replace(one, task=kinds[one.turns]) for one in open_suite("spec-bench", data=data, tasks=["mt_bench"]).prompts
    ]


def alpaca_eval(data: Path | None) -> list[Prompt]:
    """The instructions, with the data sets that they come from as tasks."""
    sources = Sources(data)
    rows = sources.json(sources.need("AlpacaEval", "alpaca_eval.json"))
    kinds = {row["instruction"]: str(row.get("dataset", "alpaca_eval")) for row in rows if isinstance(row, dict)}
    return [replace(one, task=kinds[one.turns[0]]) for one in open_suite("alpaca-eval", data=data).prompts]


def datasets(lab: Lab) -> dict[str, Path]:
    """Files of the prompts by data set; what is not here is noted."""
    found = dict[str, Path]()
    for name, read in {MT_BENCH: mt_bench, ALPACA: alpaca_eval}.items():
        try:
            prompts = read(lab.given.data)
        except ValueError as why:
            lab.notes.append(f"{name} is left out: {why}")
            continue
        found[name] = lab.out / f"{name}.jsonl"
        write(found[name], as_lines(prompts))
    if not found:
        raise ValueError(f"there is nothing to write: {'; '.join(lab.notes)}")
    return found


def methods(lab: Lab) -> dict[str, str]:
    """The methods, by name."""
    given = lab.given
    own = {name: spec(given, given.width, given.length, method=name) for name in (METHOD, OWN)}
    head = "shipped" if given.head is None else given.head
    rivals = {name: one for one, name in names_of(lab.able(given.rivals)).items()}
    rivals |= {"unispec": "unispec", "auto": "auto", "auto with the head": f"auto:head='{head}'"}
    draft = given.draft_model or (DRAFT_MODEL if bundled(lab.given.model) else None)
    return own | ({"assistant": f"assistant:model='{draft}'"} if draft else {}) | rivals


def main_table(runs: Runs, names: Mapping[str, str]) -> Table:
    """Table 1: of every method and temperature, speed-up and tokens a round over all texts of a data set."""
    sets, rows = list(dict.fromkeys(name for name, _ in runs)), list[Sequence[str]]()
    head = ["", *(cell for name in sets for cell in (f"{name}, x plain [95%]", "tokens/round"))]
    for heat in dict.fromkeys(heat for _, heat in runs):
        for called, entry in names.items():
            row = [f"T={heat:g}  {called}"]
            for name in sets:
                run = runs.get((name, heat))
                row += [""] * 2 if run is None else [with_interval(overall(run, entry)), written(per_round(run, entry))]
            rows.append(row)
    return head, rows


def claims(runs: Runs, names: Mapping[str, str]) -> Iterator[Claim]:
    for dataset in dict.fromkeys(name for name, _ in runs):
        if len(here := [runs[dataset, heat] for heat in TEMPERATURES if (dataset, heat) in runs]) == 2:
            cold, warm = here
            for name, paper in {METHOD: GAIN, OWN: ""}.items():
                how = "is larger at temperature 1 than at 0" if paper else "at temperature 1, and at 0"
                claim = f"{dataset}: the speed-up of {name} {how}"
                yield compared(claim, paper, overall(warm, names[name]), overall(cold, names[name]), Way.ABOVE)
    for (dataset, heat), run in runs.items():
        yield everywhere(f"{dataset}, T={heat:g}", run, names[METHOD])
        for rival in (one for one in names if method_of(one).endswith(":paper") and one != METHOD):
            claim = f"{dataset}, T={heat:g}: {METHOD} is faster than {rival}"
            yield faster(run, names[METHOD], names[rival], claim, FASTEST, Way.ABOVE)
        other = best({one: overall(run, entry).value for one, entry in names.items() if one not in (METHOD, OWN)})
        claim = f"{dataset}, T={heat:g}: {OWN}, and {other}, the fastest of the others"
        yield faster(run, names[OWN], names[other], claim, "", Way.ABOVE)


def everywhere(where: str, run: Summary, entry: str) -> Claim:
    """Whether the method is faster than plain decoding in every category."""
    known = [value for task in run.tasks if not math.isnan(value := speed_up(run, entry, task).value)]
    won = sum(value > 1 for value in known)
    ours = f"in {won} of {len(known)}, from {min(known):.2f}x to {max(known):.2f}x" if known else ""
    claim = f"{where}: {METHOD} is faster than plain decoding in every category"
    return Claim(claim, "in all (Figure 5)", ours, won == len(known) if known else None)


def panels(runs: Runs, names: Mapping[str, str]) -> Iterator[Panel]:
    """Figure 1: the speed-ups of all methods; and Figure 5: speed-up and tokens a round by category."""
    for (dataset, heat), run in runs.items():
        heights = [(float(place), overall(run, entry).value) for place, entry in enumerate(names.values())]
        bars = [Curve("all texts", heights, dots=True)]
        yield Panel(f"{dataset}, temperature {heat:g}", "method", "x plain", bars, level=1.0, names=[*names])
    lines = {name: names[name] for name in (METHOD, OWN)}
    for (dataset, heat), run in runs.items():
        title = f"{dataset}, temperature {heat:g}"
        speed, tokens = by_task(run, lines, lambda *of: speed_up(*of).value), by_task(run, lines, per_round)
        yield Panel(title, "category", "x plain", speed, level=1.0, names=run.tasks)
        yield Panel(title, "category", "tokens/round", tokens, level=1.0, names=run.tasks)


def report(runs: Runs, names: Mapping[str, str]) -> Report:
    tables = [main_table(runs, names)]
    for dataset in dict.fromkeys(name for name, _ in runs):
        here = {heat: run for (name, heat), run in runs.items() if name == dataset}
        rows = [(f"T={heat:g}  {name}", run, entry) for heat, run in here.items() for name, entry in names.items()]
        head, cells = by("task", rows)
        tables.append(((f"{dataset}: {head[0]}", *head[1:]), cells))
    notes = [
        "the paper's rivals, Medusa and EAGLE, are here where the model has such heads (--rivals eagle:paper,head=DIR)",
        "the paper explains its gain at temperature 1 by rejection sampling; its public rule accepts the longest of "
        "several beams, which are no samples, and so changes the law of the text. Both methods here are exact",
    ]
    title = "ReDrafter, Table 1, Figures 1 and 5: MT-Bench and AlpacaEval"
    return Report(title, tables, list(claims(runs, names)), notes, list(panels(runs, names)))


def tasks(given: Given) -> Report:
    """Table 1, Figures 1 and 5: MT-Bench and AlpacaEval at temperatures 0 and 1, in all and by category.

    The paper's rivals are Medusa and EAGLE. Their heads are those that come with paceline for the model, if any, or
    yours: ``--rivals medusa:paper,head=FOLDER eagle:paper,head=FOLDER``. Beside them stand a draft model, UniSpec and
    `auto`. Of Figure 1's three implementations there is one. AlpacaEval is left out where it is not
    in the data folder and the hub does not give it.
    """
    lab = with_head(given)
    files, names = datasets(lab), methods(lab)
    how = {"methods": names.values(), "tasks": None, "langs": None}
    stages = {
        (name, heat): {**how, "suite": f"prompts:{file}", "temperature": heat}
        for name, file in files.items()
        for heat in TEMPERATURES
    }
    runs = lab.races(stages, "{0[0]} T={0[1]:g}")
    paper = f"so are the paper's. Beams are {given.width} wide and {given.length} long; the paper states no size"
    return shown(lab, report(runs, names), paper, TEMPERATURES)
