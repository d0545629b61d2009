"""What the scripts of the Mirror-SD paper share: options, the two ways to draft with one model, and numbers of rounds.

`mirror` drafts beside the target; `assistant` is the paper's vanilla speculative decoding, which drafts in turns. Both
get the same draft model and the same length, so they draft the same tokens, and only the time differs. The same command
goes on where it was interrupted. By default a script runs `pocket+ballast:300M` on very few prompts: the direction at
best. `--limit`, `--repeat` and `--max-new-tokens` give narrower intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline_lab import Estimate, Summary, difference
from papers import common
from papers.common import CHANCE, UNBOUNDED
from papers.redrafter import common as redrafter
from papers.unispec.common import listed, with_options

MODEL, DRAFT = "pocket+ballast:300M", "pocket-draft+ballast:15M"
OWN, PUBLISHED = "mirror", "mirror:paper"
GAMMA = 7
"""Tokens of a draft in all of the paper's tables."""
MOMENT = ["unit", "turn", "repeat", "prompt"]
"""What two texts have in common that are compared."""
DRAFTING = "seconds_draft"
"""The column of rounds with the seconds of drafting that the round waited for."""


class Two(NamedTuple):
    """Entries that draft with one model: beside the target, and in turns with it."""

    mirror: str
    vanilla: str


def parser(said: str | None) -> argparse.ArgumentParser:
    found = common.parser(said)
    add = found.add_argument
    add("--model", "-m", default=MODEL, metavar="MODEL", help=f"the target ({MODEL})")
    add("--trust-remote-code", action="store_true", help="run the Python code that the model brings along")
    add("--dtype", metavar="TYPE", help="float32, bfloat16 or float16 (bfloat16 with ballast, or the model's own)")
    add("--device", metavar="DEVICE", help="where to run the target (default: $PACELINE_DEVICE, or auto)")
    add("--draft-device", metavar="PLACE", help="where mirror drafts: 2-3 or cuda:1 (the last core)")
    add("--method", dest="way", default=OWN, choices=(OWN, PUBLISHED), help="ours, or as published (mirror)")
    add("--suite", metavar="SUITE", help=f"as in 'paceline bench run' ({redrafter.CHAT}, or else {redrafter.STAND_IN})")
    add("--tasks", type=listed, metavar="A,B", help="only these tasks of the suite")
    add("--langs", type=listed, metavar="A,B", help="only these languages")
    add("--limit", type=int, default=2, metavar="N", help="prompts of each task and language (2)")
    add("--data", type=Path, metavar="DIR", help="the data folder (default: $PACELINE_DATA)")
    add("--max-new-tokens", type=int, default=64, metavar="N", help="tokens per text (64)")
    add("--seed", type=int, default=0, metavar="S", help="same seed, same texts (0)")
    add("--repeat", type=int, default=1, metavar="N", help="write everything N times (1)")
    add("--out", type=Path, metavar="DIR", help="where runs are kept (runs/papers/mirror-SCRIPT--MODEL)")
    return found


def with_draft(found: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Options of scripts with one draft model and one length."""
    add = found.add_argument
    add("--draft", default=DRAFT, metavar="NAME", help=f"the draft model ({DRAFT})")
    add("--gamma", type=int, default=GAMMA, metavar="N", help=f"tokens of a draft ({GAMMA})")
    return found


def with_temperature(found: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The option of scripts that write at one temperature."""
    found.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (0.8 for bundled models, else 0)")
    return found


class Lab(redrafter.Lab):
    """The same laboratory, with folders of its own: another paper has a script of the same name."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        gammas = given.gamma if isinstance(given.gamma, list | tuple) else [given.gamma]
        if min(gammas) < 1:
            raise ValueError(f"--gamma must be at least 1, not {min(gammas)}")
        if given.out is None:
            self.out = self.out.with_name(f"mirror-{self.out.name}")


def two(given: argparse.Namespace, draft: str, gamma: int) -> Two:
    """Both ways to draft so many tokens with a model."""
    if "'" in draft:
        raise ValueError(f"no method can name {draft}, which has a quote in its name; rename the folder of the model")
    place = f",device='{given.draft_device}'" if given.draft_device else ""
    noise = ",noise=none" if given.way == PUBLISHED else ""
    mirror = with_options(given.way, f"model='{draft}',gamma={gamma}{place}")
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
        return Estimate(float("nan"))
    return difference(ratios.to_numpy(), ratios.index.get_level_values("unit").tolist()).ratio


def doubt_of(found: Estimate) -> str:
    """What a verdict that follows from this ratio must say of its certainty."""
    return "" if found.excludes(1) else CHANCE if found.bounded else UNBOUNDED


def ms(value: float) -> str:
    return redrafter.written(value, ".2f")


# --- what must be said below a table


def conditions(lab: Lab, temperatures: Sequence[float], paper: str) -> list[str]:
    """How texts are written and drafted, where that is not as in the paper; ``paper`` says how they are there."""
    said = [f"texts are written at temperature {' and '.join(f'{t:g}' for t in temperatures)}; {paper}"]
    if lab.bundled and 0.0 in temperatures:
        said.append("the bundled models loop when they are greedy, which flatters every method")
    if any(temperatures):
        noise = "probability and the shared noise; --method mirror:paper ranks by probability alone, as published"
        alone = "probability alone, as published, and mirror drafts for every outcome of the proxies"
        said.append(f"mirror and vanilla rank drafts by {alone if lab.given.way == PUBLISHED else noise}")
    place = lab.given.draft_device
    where = f"at {place}, as was asked" if place else "on the last core, which the target cannot use meanwhile"
    said.append(f"mirror drafts {where}; the paper's draft model runs on 8 NPUs, and its target on 8 GPUs")
    said.append("times of drafting are those that a round waits for; choosing outcomes counts as time of the target")
    return said
