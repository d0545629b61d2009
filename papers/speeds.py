"""Numbers of runs, and claims on them: speeds over plain decoding's, tokens per round, and tables by task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from paceline_lab import Estimate, Figures, Summary, difference
from papers.charts import Curve, curves
from papers.report import Claim, Table, Way

UNKNOWN = Estimate(math.nan)
SERIOUS = "bug", "different", "not re-scored"
Over = Literal["task", "language"]
Row = tuple[str, Summary, str]
"""A name, a run, and an entry of it."""
Key = TypeVar("Key")


# --- numbers of an entry


def speed_up(run: Summary, entry: str, task: str | None = None) -> Estimate:
    """All tokens over all seconds, over plain decoding's: in a task, or the mean over tasks."""
    found = run.means(entry) if task is None else run.figures(entry, task)
    return (found.speed_up_of_means if found is not None else None) or UNKNOWN


def overall(run: Summary, entry: str) -> Estimate:
    """The same of all texts together."""
    figures = run.figures(entry)
    return (figures.speed_up_of_means if figures is not None else None) or UNKNOWN


def tokens_per_round(run: Summary, entry: str) -> float:
    """The mean over tasks."""
    return run.means(entry).tokens_per_round or 0.0


def in_all(run: Summary, entry: str) -> float:
    """Tokens a second, of a batch those of all its texts together."""
    return _known(run.figures(entry), "tokens_per_second")


def per_round(run: Summary, entry: str, task: str | None = None) -> float:
    """Tokens a round, of all texts of a task or of the run."""
    return _known(run.figures(entry, task), "tokens_per_round")


def _known(figures: Figures | None, name: str) -> float:
    found: float | None = getattr(figures, name, None)
    return math.nan if found is None else found


def per_request(run: Summary, entry: str) -> float:
    """Tokens a second of one text: all tokens behind the first over the time from the first token to the last."""
    texts = run.texts[run.texts.entry == entry]
    seconds = float((texts.seconds - texts.seconds_first).sum())
    tokens = int((texts.tokens - 1).sum())
    return tokens / seconds if seconds > 0 and tokens > 0 else math.nan


def best(found: Mapping[Key, float]) -> Key:
    """The key of the largest number that is known."""
    return max(found, key=lambda key: -math.inf if math.isnan(found[key]) else found[key])


# --- numbers of two entries


def ratio(run: Summary, entry: str, other: str, task: str | None = None) -> Estimate:
    """The speed of an entry over another's, pair by pair, in a task or in all."""
    pairs = run.pairs(entry, other, task)
    return difference(pairs.ratio, pairs.unit).ratio if len(pairs) else UNKNOWN


def rounds_ratio(run: Summary, entry: str, other: str) -> Estimate:
    """Tokens per round of an entry's texts over those of another's, pair by pair."""
    pairs = run.pairs(entry, other)
    found = (pairs.emitted / pairs.rounds) / (pairs.emitted_base / pairs.rounds_base)
    known = found.notna()
    return difference(found[known], pairs.unit[known]).ratio if known.any() else UNKNOWN


def over(one: Estimate, other: Estimate) -> Estimate:
    """The ratio of two estimates of different runs, bounded by the ends of both where both have ends."""
    if not (one.bounded and other.bounded):
        return Estimate(one.value / other.value)
    return Estimate(one.value / other.value, one.low / other.high, one.high / other.low)


# --- numbers as text


def written(value: float | None, form: str = ".2f") -> str:
    return "" if value is None or math.isnan(value) else format(value, form)


def with_interval(found: Estimate) -> str:
    """A speed-up with its interval."""
    return written(found.value) + (f" [{found.low:.2f}, {found.high:.2f}]" if found.bounded else "")


def pairwise(found: Estimate) -> str:
    """The ratio of pairs, which decides a claim, beside the means."""
    return f", {with_interval(found)} text by text"


def between(one: Estimate, other: Estimate) -> str:
    """Two estimates, with the ratio that decides a claim."""
    return f"{with_interval(one)} against {with_interval(other)}, a ratio of {with_interval(over(one, other))}"


def against(run: Summary, entry: str, other: str) -> str:
    return f"{speed_up(run, entry).value:.2f}x against {speed_up(run, other).value:.2f}x"


# --- claims


def undecided(entry: str, other: str) -> str:
    """Why nothing that a paper says of drafts follows from these two entries, if nothing does."""
    if entry == other:
        return "both are the same size"
    return "no drafts pay here (0 nodes)" if any(one.endswith("@fixed:0") for one in (entry, other)) else ""


def faster(run: Summary, entry: str, other: str, claim: str, paper: str, way: Way, more: str = "") -> Claim:
    """A claim on the speeds of two entries."""
    return _held((run, entry, other), ratio, claim, paper, f"{against(run, entry, other)}{more}", way=way)


def brings(run: Summary, entry: str, other: str, claim: str, paper: str, way: Way) -> Claim:
    """A claim on the tokens per round of two entries."""
    ours = f"{tokens_per_round(run, entry):.2f} against {tokens_per_round(run, other):.2f} tokens"
    return _held((run, entry, other), rounds_ratio, claim, paper, ours, way=way)


def _held(pair: tuple[Summary, str, str], of: Callable[..., Estimate], *said: str, way: Way) -> Claim:
    claim, paper, ours = said
    if why := undecided(*pair[1:]):
        return Claim(claim, paper, f"{ours}: {why}", None)
    found = of(*pair)
    return Claim.of(claim, paper, f"{ours}{pairwise(found)}", way, found)


def compared(claim: str, paper: str, one: Estimate, other: Estimate, way: Way) -> Claim:
    """A claim on two numbers of different runs."""
    return Claim.of(claim, paper, between(one, other), way, over(one, other))


# --- tables


HEAD = ("", "x plain [95%]", "tokens/round", "tokens/s", "text")


def row(run: Summary, entry: str, name: str | None = None) -> tuple[str, ...]:
    """The figures of an entry, under `HEAD`."""
    figures = run.figures(entry)
    if figures is None:
        return (name or entry,)
    cells = written(figures.tokens_per_round), written(figures.tokens_per_second, ".1f"), verdicts(figures)
    return name or entry, with_interval(speed_up(run, entry)), *cells


def verdicts(figures: Figures) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in figures.verdicts.items())


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
        (name, *(_cell(run, one, over, place) for place in columns), *_means(run, one, over)) for name, run, one in rows
    ]


def _cell(run: Summary, entry: str, over: Over, place: str) -> str:
    found = run.means(entry, language=place) if over == "language" else run.figures(entry, place)
    if found is None or found.speed_up_of_means is None:
        return ""
    return f"{found.speed_up_of_means.value:.2f} {written(found.tokens_per_round)}".strip()


def _means(run: Summary, entry: str, over: Over) -> tuple[str, str]:
    found = run.means(entry, over)
    return with_interval(found.speed_up_of_means or UNKNOWN), written(found.tokens_per_round)


def of_run(run: Summary, names: Mapping[str, str] | None = None) -> list[Row]:
    """All that drafts in a run; some entries have names of the item's own."""
    return [((names or {}).get(entry, entry), run, entry) for entry in run.entries[1:]]


def of_runs(runs: Mapping[Any, Summary], called: str = "{}") -> list[Row]:
    """All that drafts, in every run."""
    return [(f"{called.format(key)}  {entry}", run, entry) for key, run in runs.items() for entry in run.entries[1:]]


def by_task(run: Summary, entries: Mapping[str, str], of: Callable[[Summary, str, str], float]) -> list[Curve]:
    """A curve for each of these entries over the tasks of a run."""
    return curves(entries, dict(enumerate(run.tasks)), lambda task, entry: of(run, entry, task))


# --- what must be said below a table


def remarks(runs: Iterable[Summary]) -> Iterator[str]:
    """Missing and substituted parts of the suite, and texts that should be plain decoding's and are not."""
    runs = list(runs)
    yield from dict.fromkeys(str(note) for run in runs for note in run.run.about.workload.get("notes") or ())
    for run in runs:
        for entry in run.entries[1:]:
            figures: Figures | None = run.figures(entry)
            for verdict in SERIOUS:
                if figures is not None and (count := figures.verdicts.get(verdict)):
                    yield f"{entry} wrote {count} of {figures.texts} texts otherwise than plain decoding: {verdict}"


def facts(run: Summary) -> dict[str, Any]:
    """The machine of the last sitting."""
    sittings = run.run.about.sittings
    return dict(sittings[-1].get("machine") or {}) if sittings else {}


def machine_of(run: Summary) -> str:
    machine, model = facts(run), run.run.about.model
    if str(model.get("device", "cpu")).startswith("cuda") and machine.get("accelerator"):
        return str(machine["accelerator"])
    threads = model.get("threads", "?")
    return f"{machine.get('processor', 'CPU')}, {threads} thread{'s'[: threads != 1]}"


def model_of(run: Summary) -> str:
    model = run.run.about.model
    return f"{model.get('model') or model.get('name')} {model.get('dtype', '')}".strip()
