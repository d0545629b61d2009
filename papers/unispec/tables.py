"""Tables as the paper has them: speed-up and tokens per round in every task or language, and their means over all.

Every table has the paper's method as it was published (`unispec:paper`). Beside it stand the same method with the
shared noise, where texts are sampled, so that what the noise adds is seen; our `unispec`; and `auto`. Tables 14 and 15
and Figures 2, 5 and 6 compare draft sizes: they have no `auto`, and of `unispec` only Table 15 and Figure 6 have a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from paceline_lab import Figures, Summary
from papers.unispec.common import BUNDLED, Lab, number, procedure_of, sized, with_interval, with_options

RIVALS = "lookup:paper", "lookahead:paper", "spectra:paper", "recycling:paper"
"""The other methods of the paper's tables, as their authors have them: prompt lookup, Lookahead, SPECTRA, TokenRec."""
OWN, AUTO = "unispec", "auto"
SERIOUS = "bug", "different", "not re-scored"
Over = Literal["task", "language"]
Row = tuple[str, Summary, str]
"""A name, a run, and an entry of it."""
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def by(over: Over, rows: Iterable[Row]) -> Table:
    """Speed-up and tokens per round of every task or language, and the means over them. A language's are means over
    its tasks."""
    rows = list(rows)
    found = (place for _, run, _ in rows for place in (run.tasks if over == "task" else run.languages))
    places = list(dict.fromkeys(found))
    columns = places if len(places) > 1 else []
    mean = f"mean of {over}s" if columns else places[0]
    head = ("x plain, tokens/round", *columns, f"{mean} [95%]", "tokens/round")
    return head, [
        (name, *(cell(run, one, over, place) for place in columns), *means(run, one, over)) for name, run, one in rows
    ]


def cell(run: Summary, entry: str, over: Over, place: str) -> str:
    found = run.means(entry, language=place) if over == "language" else run.figures(entry, place)
    if found is None or found.speed_up_of_means is None:
        return ""
    return f"{found.speed_up_of_means.value:.2f} {number(found.tokens_per_round)}".strip()


def means(run: Summary, entry: str, over: Over) -> tuple[str, str]:
    found = run.means(entry, over)
    speed = "" if found.speed_up_of_means is None else with_interval(found.speed_up_of_means)
    return speed, number(found.tokens_per_round)


def of_run(run: Summary, names: Mapping[str, str] | None = None) -> list[Row]:
    """All that drafts in a run; some entries have names of the script's own."""
    return [((names or {}).get(entry, entry), run, entry) for entry in run.entries[1:]]


def of_runs(runs: Mapping[str, Summary]) -> list[Row]:
    """All that drafts, in every run."""
    return [(f"{name}  {entry}", run, entry) for name, run in runs.items() for entry in run.entries[1:]]


# --- which methods


def published(method: str) -> bool:
    """Whether a method is asked for as its authors have it."""
    return procedure_of(method) == "paper"


def shared(method: str) -> str:
    """The same drafts, ranked by the noise that the target will choose by."""
    return with_options(method, "noise=shared")


def beside(lab: Lab, temperature: float | None = None) -> list[str]:
    """What stands beside the method that is looked at, at the calibrated sizes."""
    warm = (lab.temperature if temperature is None else temperature) > 0
    found = [sized(shared(lab.method), lab.size())] if warm and published(lab.method) else []
    own = [sized(OWN, lab.size(OWN))] if lab.method != OWN else []
    return [*found, *own, AUTO]


# --- what must be said below a table


def conditions(lab: Lab) -> list[str]:
    """How texts are written, where that is not as in the paper."""
    return sampled(lab.temperature, lab.options.model)


def sampled(temperature: float, model: str) -> list[str]:
    """The same, of texts that are there."""
    if not temperature:
        return []
    bundled = model.partition("+")[0] in BUNDLED
    why = ", since the bundled models loop when they are greedy" if bundled else ""
    return [
        f"texts are sampled at temperature {temperature:g}, the paper's are greedy{why}",
        "methods named :paper draft as published; with noise=shared, and in unispec and auto, the noise ranks drafts",
    ]


def remarks(runs: Iterable[Summary]) -> Iterator[str]:
    """What of the suite could not be built or has a stand-in, and texts that are not plain decoding's and should be."""
    runs = list(runs)
    yield from dict.fromkeys(str(note) for run in runs for note in run.run.about.workload.get("notes") or ())
    for run in runs:
        for entry in run.entries[1:]:
            figures: Figures | None = run.figures(entry)
            for verdict in SERIOUS:
                if figures is not None and (count := figures.verdicts.get(verdict)):
                    yield f"{entry} wrote {count} of {figures.texts} texts otherwise than plain decoding: {verdict}"
