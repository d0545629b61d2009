"""Figure 4: drafts with and without streams, in turns and overlapped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline_lab import Summary
from papers.charts import Panel
from papers.driver import Given
from papers.lab import CHAT, Lab
from papers.mirror.drafts import ms, shown, two
from papers.report import Claim, Report, Table, Way
from papers.speeds import by_task, faster, per_round, speed_up, tokens_per_round, with_interval, written
from papers.unispec.lab import with_options

TASKS = "translation", "summarization", "mt_bench"
TEMPERATURES = 0.0, 1.0
VANILLA, STREAMS, MIRROR, BOTH = "vanilla", "vanilla with streams", "mirror", "mirror with streams"
ORDER = ((STREAMS, VANILLA), (MIRROR, STREAMS), (BOTH, MIRROR))
"""What the paper finds: each is faster than the one beside it."""
PAPER = "for OPT-66B and Mistral-24B, on every task"
Runs = Mapping[float, Summary]
"""By temperature."""


def entries(given: Given) -> dict[str, str]:
    """The four variants with one draft model and one length."""
    both = two(given, given.draft, given.gamma)
    head = f",head='{given.head}'" if given.head else ""
    method, _, planner = both.mirror.rpartition("@")
    return {
        VANILLA: both.vanilla,
        STREAMS: both.vanilla.replace("assistant:", "streaming:", 1).replace("@", f"{head}@", 1),
        MIRROR: both.mirror,
        BOTH: f"{with_options(method, f'draft=streaming{head}')}@{planner}",
    }


def table(runs: Runs, names: Mapping[str, str]) -> Table:
    """A row of every temperature and task, and the means over tasks."""
    rows = list[list[str]]()
    for heat, run in runs.items():
        for task in [*run.tasks, *([None] if len(run.tasks) > 1 else [])]:
            cells = []
            for entry in names.values():
                tokens = tokens_per_round(run, entry) if task is None else per_round(run, entry, task)
                cells.append(f"{with_interval(speed_up(run, entry, task))}, {written(tokens)}")
            rows.append([f"T={heat:g}  {task or 'mean of tasks'}", *cells])
        waits = [f"{ms(run, entry)} of {ms(run, entry, 'seconds')}" for entry in names.values()]
        rows.append([f"T={heat:g}  ms a round waits for drafts, of", *waits])
    return ("x plain [95%], tokens/round", *names), rows


def claims(runs: Runs, names: Mapping[str, str]) -> Iterator[Claim]:
    for heat, run in runs.items():
        for better, worse in ORDER:
            claim = f"T={heat:g}: {better} is faster than {worse}"
            yield faster(run, names[better], names[worse], claim, PAPER, Way.ABOVE)


def report(runs: Runs, names: Mapping[str, str]) -> Report:
    panels = [
        Panel(
            f"Speed-up, T={heat:g}",
            "task",
            "x plain",
            by_task(run, names, lambda *of: speed_up(*of).value),
            level=1.0,
            names=[*run.tasks],
        )
        for heat, run in runs.items()
    ]
    notes = ["vanilla drafts with all cores in turns with the target; mirror's target has a core less"]
    return Report(
        "Mirror-SD, Figure 4: streams and overlap", [table(runs, names)], list(claims(runs, names)), notes, panels
    )


def variants(given: Given) -> Report:
    """Figure 4: drafts in turns and overlapped, each with and without speculative streaming, at temperatures 0 and 1.

    All variants have one draft model and one length, so they draft the same tokens. The adapter of the streams is the
    one that comes with paceline for `pocket-draft`, with or without ballast, or yours: ``--head FOLDER``. If Spec-Bench
    is not in the data folder, beginnings of stories are used instead.
    """
    lab = Lab(given)
    names, how, heats = entries(given), lab.prompts(), sorted(set(given.temperature))
    if how["suite"] == CHAT and given.suite is None and given.tasks is None:
        how["tasks"] = [*TASKS]
    runs = lab.races({heat: {**how, "methods": names.values(), "temperature": heat} for heat in heats}, "T={:g}")
    return shown(lab, report(runs, names), "those of the paper at 0 and 1", heats)
