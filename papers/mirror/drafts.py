"""Shared by the items of the Mirror-SD paper: options, the two ways to draft with one model, and numbers of rounds.

`mirror` drafts beside the target; `assistant` is the paper's vanilla speculative decoding, which drafts in turns. Both
get the same draft model and the same length, so they draft the same tokens, and only the time differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline_lab import Estimate, Summary, difference
from papers.driver import Given, Option, asked
from papers.lab import Lab, conditions
from papers.report import CHANCE, UNBOUNDED, Report
from papers.speeds import UNKNOWN, written
from papers.unispec.lab import with_options

MODEL, DRAFT = "pocket+ballast:300M", "pocket-draft+ballast:15M"
SIZES_OF_DRAFTS = "pocket-draft+ballast:6M", "pocket-draft+ballast:15M", "pocket-draft+ballast:30M"
"""About 2, 5 and 10% of the target."""
OWN, PUBLISHED = "mirror:overlap=always", "mirror:paper"
GAMMA = 7
"""Tokens of a draft in all of the paper's tables."""
MOMENT = ["unit", "turn", "repeat", "prompt"]
"""The fields in which two compared texts are equal."""
DRAFTING = "seconds_draft"
"""The column of rounds with the seconds of drafting that the round waited for."""


class Two(NamedTuple):
    """Entries that draft with one model: beside the target, and in turns with it."""

    mirror: str
    vanilla: str


WAY = Option("SPEC", "ours, or as published", default=OWN, choices=(OWN, PUBLISHED))


def options(*names: str, **own: Any) -> dict[str, Option]:
    """The options of all items that race, and those of one."""
    usual = {"model": MODEL, "draft": DRAFT, "gamma": GAMMA, "method": WAY}
    shared = "trust_remote_code", "dtype", "device", "draft_device", "suite", "tasks", "langs", "limit", "data"
    return asked(*shared, "max_new_tokens", "seed", "repeat", "out", *names, **usual | own)


def two(given: Given, draft: str, gamma: int) -> Two:
    """Both ways to draft ``gamma`` tokens with a model."""
    if "'" in draft:
        raise ValueError(f"no method can name {draft}, which has a quote in its name; rename the folder of the model")
    place = f",device='{given.draft_device}'" if given.draft_device else ""
    noise = ",noise=none" if given.method == PUBLISHED else ""
    mirror = with_options(given.method, f"model='{draft}',gamma={gamma}{place}")
    return Two(f"{mirror}@fixed:{gamma}", f"assistant:model='{draft}',length={gamma}{noise}@fixed:{gamma}")


# --- numbers of rounds


def rounds_of(run: Summary, entry: str, task: str | None = None) -> Any:
    """The rounds of an entry in a task, or in all: a table."""
    found = run.rounds[run.rounds.entry == entry]
    return found if task is None else found[found.task == task]


def milliseconds(run: Summary, entry: str, column: str = DRAFTING) -> float:
    """Of the mean round: in a batch every text waits for the drafts of all, and each of its rounds says so."""
    return 1000 * float(rounds_of(run, entry)[column].mean())


def accepted(run: Summary, entry: str, task: str | None = None) -> tuple[float, float]:
    """The paper's E[A], accepted drafted tokens a round: the mean over rounds, and the standard deviation."""
    found = rounds_of(run, entry, task).accepted
    return float(found.mean()), float(found.std(ddof=0))


def by_text(run: Summary, entry: str, column: str = DRAFTING) -> Any:
    """The mean round of every text of an entry, in seconds: a series by `MOMENT`."""
    found = run.texts.assign(mean=run.rounds.groupby("text")[column].mean())
    return found[found.entry == entry].dropna(subset="mean").set_index(MOMENT)["mean"]


def ratio_of(run: Summary, entry: str, other: str, column: str = DRAFTING) -> Estimate:
    """Seconds of an entry's mean rounds over those of another's, text by text."""
    found = (by_text(run, entry, column) / by_text(run, other, column)).dropna()
    found = found[(found > 0) & np.isfinite(found)]
    return estimate(found)


def estimate(ratios: Any) -> Estimate:
    """Of ratios of texts, by `MOMENT`; nan where there are none."""
    if not len(ratios):
        return UNKNOWN
    return difference(ratios.to_numpy(), ratios.index.get_level_values("unit").tolist()).ratio


def doubt_of(found: Estimate) -> str:
    """The certainty of a verdict that follows from this ratio."""
    return "" if found.excludes(1) else CHANCE if found.bounded else UNBOUNDED


def ms(run: Summary, entry: str, column: str = DRAFTING) -> str:
    return written(milliseconds(run, entry, column))


def shown(lab: Lab, report: Report, paper: str, temperatures: Sequence[float] = ()) -> Report:
    """A report with how texts are written and drafted; ``paper`` says how they are there."""
    heats, given = temperatures or [lab.temperature], lab.given
    said = conditions(heats, paper, given.model)
    if any(heats):
        noise = "probability and the shared noise; --method mirror:paper ranks by probability alone, as published"
        alone = "probability alone, as published, and mirror drafts for every outcome of the proxies"
        said.append(f"mirror and vanilla rank drafts by {alone if given.method == PUBLISHED else noise}")
    place = given.draft_device
    where = f"at {place}, as was asked" if place else "on the last core, which the target cannot use meanwhile"
    said.append(f"mirror drafts {where}; the paper's draft model runs on 8 NPUs, and its target on 8 GPUs")
    said.append("times of drafting are those that a round waits for; choosing outcomes counts as time of the target")
    return lab.whole(report, said)
