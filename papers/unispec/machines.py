"""Tables 1, 4 and 5 and Figure 4: runs of several machines and models in one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paceline_lab import Summary, read_run
from papers.charts import Curve, Panel
from papers.driver import Given
from papers.report import Claim, Report, Table
from papers.speeds import Row, best, by, facts, machine_of, model_of, remarks
from papers.unispec.lab import published, sampled

RUN, DESCRIPTION = "run", "run.json"
Runs = Mapping[tuple[str, str], Sequence[Summary]]
"""By testbed and model: of one language, of several, or both."""
BYTES = 2**30
RECIPE = "suite", "limit", "max_new_tokens", "temperature", "rule"
"""The parts of a recipe on which speed-ups depend."""


def main(given: Given) -> Report:
    """Tables 1, 4 and 5 and Figure 4: runs of several machines and models in one table.

    It measures nothing. DIR is a folder of `paceline bench run`, or the ``--out`` of `table1`, which makes such runs of
    Spec-Bench and with ``--suite multi-spec-bench`` of other languages. A testbed is called by its graphics card or
    processor unless it is named, as in TESTBED=DIR, or TESTBED/MODEL=DIR.
    """
    return machines(joined(given.runs))


def joined(places: Sequence[str]) -> dict[tuple[str, str], list[Summary]]:
    """The runs of these folders, by testbed and model."""
    found = dict[tuple[str, str], list[Summary]]()
    for place in places:
        name, equals, folder = place.rpartition("=") if not Path(place).exists() else ("", "", place)
        path = Path(folder)
        run = Summary(read_run(path if (path / DESCRIPTION).exists() else path / RUN))
        testbed, _, model = name.partition("/")
        if equals and not testbed:
            raise ValueError(f"{place!r} names no testbed; write TESTBED=DIR or TESTBED/MODEL=DIR")
        others = found.setdefault((testbed or machine_of(run), model or model_of(run)), [])
        if any((len(one.languages) > 1) == (len(run.languages) > 1) for one in others):
            raise ValueError(f"{folder} is of the same machine and model as another folder; name them: TESTBED=DIR")
        others.append(run)
    return found


def testbed(name: str, run: Summary) -> tuple[str, ...]:
    """A row of Table 4."""
    machine, sitting = facts(run), run.run.about.sittings[-1] if run.run.about.sittings else {}
    sizes = (machine.get(of) for of in ("accelerator_bytes", "memory_bytes"))
    vram, ram = ("" if size is None else f"{size / BYTES:.0f} GB" for size in sizes)
    versions = sitting.get("versions") or {}
    processor = f"{machine.get('cores', '?')} x {machine.get('processor', '?')}"
    plain = (machine.get(of) or "" for of in ("cuda", "driver"))
    system = machine.get("distribution") or machine.get("system") or ""
    torch = f"torch {versions.get('torch', '?')}, paceline {versions.get('paceline', '?')}"
    return name, str(machine.get("accelerator") or ""), vram, processor, ram, *map(str, plain), str(system), torch


def testbeds(runs: Runs) -> Table:
    first = dict[str, Summary]()
    for (bed, _), found in runs.items():
        first.setdefault(bed, found[0])
    head = ("testbed", "GPU", "VRAM", "CPU", "RAM", "CUDA of torch", "driver", "OS", "software")
    return head, [testbed(bed, run) for bed, run in first.items()]


def rows(runs: Runs, *, several: bool) -> list[Row]:
    """The methods, in all runs of several languages or of one."""
    return [
        (f"{bed}  {model}  {entry}", run, entry)
        for (bed, model), found in runs.items()
        for run in found
        if (len(run.languages) > 1) is several
        for entry in run.entries[1:]
    ]


def unsized(entry: str) -> str:
    """The name of an entry without its size, which differs from machine to machine."""
    return entry.partition("@fixed:")[0]


def firsts(found: Sequence[Row], over: str) -> Claim | None:
    """In how many runs the paper's method was the fastest of the published ones."""
    speeds = dict[int, dict[str, float]]()
    for _, run, entry in found:
        mean = run.means(entry, over).speed_up_of_means
        if mean is not None and published(unsized(entry)) and "noise=" not in entry:
            speeds.setdefault(id(run), {})[unsized(entry)] = mean.value
    held = [of for of in speeds.values() if "unispec:paper" in of and len(of) > 1]
    if not held:
        return None
    won = sum(best(of) == "unispec:paper" for of in held)
    claim = f"UniSpec has the highest mean over {over}s of the published methods"
    return Claim(claim, "on every testbed", f"in {won} of {len(held)} runs", won == len(held))


def figure4(runs: Runs) -> Iterator[Panel]:
    """Mean speed-up over languages, a picture for each model."""
    several = {place: run for place, found in runs.items() for run in found if len(run.languages) > 1}
    beds = list(dict.fromkeys(bed for bed, _ in several))
    for model in dict.fromkeys(of for _, of in several):
        points = dict[str, list[tuple[float, float]]]()
        for (bed, of), run in several.items():
            for entry in run.entries[1:] if of == model else ():
                if (mean := run.means(entry, "language").speed_up_of_means) is not None:
                    points.setdefault(unsized(entry), []).append((float(beds.index(bed)), mean.value))
        lines = [Curve(name, found, number) for number, (name, found) in enumerate(points.items(), start=1)]
        yield Panel(f"{model}: mean of languages", "testbed", "x plain", lines, level=1.0, names=beds)


def recipes(runs: Runs) -> Iterator[str]:
    """How the texts were written, and where that differs from run to run."""
    every = [(" ".join(place), run.run.about.recipe) for place, found in runs.items() for run in found]
    shared = list[str]()
    for name in RECIPE:
        values = [(place, str(recipe.get(name))) for place, recipe in every]
        if len({value for _, value in values}) > 1:
            yield f"runs differ in {name}: {', '.join(f'{value} of {place}' for place, value in values)}"
        else:
            shared.append(f"{name} {values[0][1]}")
    yield f"all runs have {', '.join(shared)}"
    for found in runs.values():
        for run in found:
            model = str(run.run.about.model.get("model") or "")
            yield from sampled(float(run.run.about.recipe.get("temperature") or 0.0), model)


def machines(runs: Runs) -> Report:
    tables, claims = [testbeds(runs)], list[Claim | None]()
    if one := rows(runs, several=False):
        tables.append(by("task", one))
        claims.append(firsts(one, "task"))
    if many := rows(runs, several=True):
        tables.append(by("language", many))
        claims.append(firsts(many, "language"))
    warned = [*dict.fromkeys(recipes(runs)), *remarks(run for found in runs.values() for run in found)]
    title = "UniSpec, Tables 1, 4 and 5 and Figure 4: several machines and models"
    return Report(title, tables, [one for one in claims if one is not None], warned, list(figure4(runs)))
