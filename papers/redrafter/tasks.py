"""Table 1 and Figure 5: MT-Bench and AlpacaEval at temperatures 0 and 1, in all and by category.

    python -m papers.redrafter.tasks
    python -m papers.redrafter.tasks --model M --head FOLDER --width 50 --limit 100 --max-new-tokens 512 --svg tasks.svg

The paper's rivals are Medusa and EAGLE. No method here drafts with their heads; in their place stand a draft model,
UniSpec and `auto`. AlpacaEval is left out where it is not in the data folder and the hub does not give it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline_lab import Prompt, Sources, Summary, as_lines, open_suite
from papers import common
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.redrafter.common import LENGTH, METHOD, OWN, WIDTH, Lab, conditions, overall, parser, spec
from papers.unispec.common import faster, number, over, with_interval
from papers.unispec.tables import by, of_runs, remarks

TEMPERATURES = 0.0, 1.0
QUESTIONS = "spec_bench_question.jsonl", "spec_bench/question.jsonl"
MT_BENCH, ALPACA = "MT-Bench", "AlpacaEval"
DRAFT_MODEL = "pocket-draft"
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
        common.write(found[name], as_lines(prompts))
    if not found:
        raise ValueError(f"there is nothing to write: {'; '.join(lab.notes)}")
    return found


def methods(lab: Lab) -> dict[str, str]:
    """What drafts, by name."""
    given = lab.given
    own = {name: spec(given, given.width, given.length, method=name) for name in (METHOD, OWN)}
    head = "shipped" if given.head is None else given.head
    rivals = {"unispec": "unispec", "auto": "auto", "auto with the head": f"auto:head='{head}'"}
    draft = given.draft_model or (DRAFT_MODEL if lab.bundled else None)
    return own | ({"assistant": f"assistant:model='{draft}'"} if draft else {}) | rivals


def main_table(runs: Runs, names: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Table 1: of every method and temperature, speed-up and tokens a round over all texts of a data set."""
    sets, rows = list(dict.fromkeys(name for name, _ in runs)), list[Sequence[str]]()
    head = ["", *(cell for name in sets for cell in (f"{name}, x plain [95%]", "tokens/round"))]
    for heat in dict.fromkeys(heat for _, heat in runs):
        for called, entry in names.items():
            row = [f"T={heat:g}  {called}"]
            for name in sets:
                figures = run.figures(entry) if (run := runs.get((name, heat))) is not None else None
                per_round = number(figures.tokens_per_round) if figures is not None else ""
                row += ["" if run is None else with_interval(overall(run, entry)), per_round]
            rows.append(row)
    return head, rows


def claims(runs: Runs, names: Mapping[str, str]) -> Iterator[Claim]:
    for dataset in dict.fromkeys(name for name, _ in runs):
        if len(here := [runs[dataset, heat] for heat in TEMPERATURES if (dataset, heat) in runs]) == 2:
            cold, warm = here
            for name, paper in {METHOD: GAIN, OWN: ""}.items():
                one, two = overall(warm, names[name]), overall(cold, names[name])
                ratio = over(one, two)
                ours = f"{with_interval(one)} against {with_interval(two)}, a ratio of {with_interval(ratio)}"
                how = "is larger at temperature 1 than at 0" if paper else "at temperature 1, and at 0"
                claim = f"{dataset}: the speed-up of {name} {how}"
                yield Claim.of(claim, paper, ours, Way.ABOVE, ratio)
    for (dataset, heat), run in runs.items():
        yield everywhere(f"{dataset}, T={heat:g}", run, names[METHOD])
        best = max((one for one in names if one not in (METHOD, OWN)), key=lambda one: _speed(run, names[one]))
        claim = f"{dataset}, T={heat:g}: {OWN}, and {best}, the fastest of the others"
        yield faster(run, names[OWN], names[best], claim, "", Way.ABOVE)


def _speed(run: Summary, entry: str) -> float:
    value = overall(run, entry).value
    return value if value == value else 0.0


def everywhere(where: str, run: Summary, entry: str) -> Claim:
    """Whether the method is faster than plain decoding in every category."""
    found = [figures for task in run.tasks if (figures := run.figures(entry, task)) is not None]
    known = [one.speed_up_of_means.value for one in found if one.speed_up_of_means is not None]
    won = sum(value > 1 for value in known)
    ours = f"in {won} of {len(known)}, from {min(known):.2f}x to {max(known):.2f}x" if known else ""
    claim = f"{where}: {METHOD} is faster than plain decoding in every category"
    return Claim(claim, "in all (Figure 5)", ours, won == len(known) if known else None)


def panels(runs: Runs, names: Mapping[str, str]) -> Iterator[Panel]:
    """Figure 5: speed-up and tokens a round by category."""
    for (dataset, heat), run in runs.items():
        title = f"{dataset}, temperature {heat:g}"
        for what in ("x plain", "tokens/round"):
            lines = [Curve(one, [*_points(run, names[one], what)], n) for n, one in enumerate((METHOD, OWN), start=1)]
            yield Panel(title, "category", what, lines, level=1.0, names=run.tasks)


def _points(run: Summary, entry: str, what: str) -> Iterator[tuple[float, float]]:
    for place, task in enumerate(run.tasks):
        if (figures := run.figures(entry, task)) is not None:
            speed = figures.speed_up_of_means.value if figures.speed_up_of_means is not None else None
            value = speed if what == "x plain" else figures.tokens_per_round
            if value is not None:
                yield float(place), value


def report(runs: Runs, names: Mapping[str, str], notes: Sequence[str] = ()) -> Report:
    tables = [main_table(runs, names)]
    for dataset in dict.fromkeys(name for name, _ in runs):
        rows = of_runs({f"T={heat:g}": run for (name, heat), run in runs.items() if name == dataset})
        called = {entry: name for name, entry in names.items()}
        shown = [(f"{label.partition('  ')[0]}  {called[entry]}", run, entry) for label, run, entry in rows]
        head, cells = by("task", shown)
        tables.append(((f"{dataset}: {head[0]}", *head[1:]), cells))
    notes = [
        *notes,
        "the paper's rivals, Medusa and EAGLE, are absent: no method here drafts with their heads",
        "the paper explains its gain at temperature 1 by rejection sampling; its public rule accepts the longest of "
        "several beams, which are no samples, and so changes the law of the text. Both methods here are exact",
        *remarks(runs.values()),
    ]
    title = "ReDrafter, Table 1 and Figure 5: MT-Bench and AlpacaEval"
    return Report(title, tables, list(claims(runs, names)), notes, list(panels(runs, names)))


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(limit=1)
    options.add_argument("--width", type=int, default=WIDTH, metavar="W", help=f"beams ({WIDTH})")
    options.add_argument("--length", type=int, default=LENGTH, metavar="L", help=f"tokens of a beam ({LENGTH})")
    options.add_argument("--draft-model", "-md", metavar="MODEL", help=f"a small model ({DRAFT_MODEL} if bundled)")
    lab = Lab(given := options.parse_args())
    lab.need_head()
    files, names = datasets(lab), methods(lab)
    how = {"methods": names.values(), "tasks": None, "langs": None}
    stages = {
        (name, heat): {**how, "suite": f"prompts:{file}", "temperature": heat}
        for name, file in files.items()
        for heat in TEMPERATURES
    }
    made = lab.races({f"{name} T={heat:g}": stage for (name, heat), stage in stages.items()})
    runs = {key: made[label] for key in stages if (label := f"{key[0]} T={key[1]:g}") in made}
    paper = f"so are the paper's. Beams are {given.width} wide and {given.length} long; the paper states no size"
    lab.show(report(runs, names, conditions(lab, TEMPERATURES, paper)))


if __name__ == "__main__":
    script(main)
