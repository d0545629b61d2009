"""Shared by the items of the ReDrafter paper: options, the model and its head, and how texts are written.

Beams are drafted by `redrafter:paper`, as published, or by `redrafter`, which ranks by the shared noise and sends
everything that the search chose.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline_lab import Summary
from papers import lab
from papers.charts import Panel, curves
from papers.driver import Given, Option, asked, write
from papers.report import Report
from papers.speeds import in_all, per_request
from papers.unispec.lab import with_options

MODEL, COUNTING = "pocket+ballast:500M", "pocket"
"""Where speed counts, and where it does not: both write the same texts."""
METHOD, OWN = "redrafter:paper", "redrafter"
WIDTH, LENGTH = 4, 4
WEIGHTS, HEADS = "model.safetensors", "heads.json"
"""A head's weights, and the file of the runs' folder that says with which heads they were made."""


SUITE = "suite", "tasks", "langs", "temperature"
"""Options of items that write any suite at one temperature."""


def options(*names: str, **own: Any) -> dict[str, Option]:
    """The options of all items, and those of one."""
    usual = {"model": MODEL, "length": LENGTH}
    shared = "head", "trust_remote_code", "dtype", "device", "limit", "data", "max_new_tokens", "seed", "repeat"
    return asked(*shared, "threads", "out", *names, **usual | own)


CHOSEN = Option("SPEC", "how beams are drafted", default=METHOD, choices=(METHOD, OWN))


def spec(given: Given, width: int, length: int, *, method: str | None = None, head: Any = None) -> str:
    """The method with beams of this width and length, and the head that was asked for."""
    head = head or given.head
    if "'" in str(head):
        raise ValueError(f"no method can name {head}, which has a quote in its name; rename the folder of the head")
    named = "" if head is None else f",head='{head}'"
    return with_options(method or vars(given).get("method", METHOD), f"width={width},length={length}{named}")


def digest(folder: Path) -> str:
    """Of a head's weights: a folder may hold another head later."""
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()[:16]


def need_head(made: lab.Lab, *heads: Path) -> None:
    """ValueError where the model has no head, one of these is not for it, or the kept runs are of other heads."""
    asked = heads or (made.given.head,)
    for head in asked:
        try:
            made.model().generate("A", method=spec(made.given, 1, 1, method=METHOD, head=head), max_new_tokens=1)
        except ValueError as error:
            raise ValueError(str(error).replace("give head=FOLDER", "give --head FOLDER")) from error
    kept, digests = made.out / HEADS, {str(head): digest(head) for head in asked if head is not None}
    if kept.exists() and json.loads(kept.read_text("utf8")) != digests:
        raise ValueError(f"{made.out} has runs with other heads; give another --out")
    write(kept, json.dumps(digests))


def with_head(given: Given) -> lab.Lab:
    """A laboratory whose model has a head."""
    made = lab.Lab(given)
    need_head(made)
    return made


def shown(made: lab.Lab, report: Report, paper: str, temperatures: Sequence[float] = ()) -> Report:
    """A report with how its texts are written; ``paper`` says how those of the paper are."""
    heats = temperatures or [made.temperature]
    said = lab.conditions(heats, paper, made.given.model)
    if any(heats):
        said.append(f"{METHOD} ranks drafts by probability alone, {OWN} by probability and the noise that chooses")
    return made.whole(report, said)


def rates(runs: Mapping[int, Summary], entries: Mapping[str, str], first: int = 0) -> list[Panel]:
    """Speeds by batch size, of a request and of all together; an entry may be absent from a run."""
    kinds = {"Tokens/s of a request": per_request, "Tokens/s in all": in_all}
    return [
        Panel(title, "texts at a time", "tokens/s", curves(entries, runs, of, first), log=True)
        for title, of in kinds.items()
    ]
