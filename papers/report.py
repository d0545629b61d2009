"""The report of an item of a paper: its tables, and the paper's claims compared with our results."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from io import StringIO
from pathlib import Path
from typing import Any

from paceline_lab import Estimate
from papers.charts import Picture, draw

LEVEL = 0.05
"""Ratios this near to 1 count as level, where a paper says that nothing changes."""
CHANCE, UNBOUNDED = " (chance alone could show this)", " (without an interval)"
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Names of columns, and rows of cells that are already text."""


class Way(StrEnum):
    """How a ratio stands to 1."""

    ABOVE = "above"
    BELOW = "below"
    LEVEL = "level"


@dataclass(frozen=True)
class Claim:
    """Something that a paper found, and what was found here."""

    claim: str
    paper: str
    """The paper's numbers."""
    ours: str
    agrees: bool | None
    """Whether ours say the same; None where nothing was measured, where it tells neither, or the paper says nothing."""
    doubt: str = ""
    ratio: Estimate | None = None
    """The ratio that was compared with 1, if that decided."""

    @classmethod
    def of(cls, claim: str, paper: str, ours: str, way: Way, ratio: Estimate) -> Claim:
        """A claim that a ratio is above 1, below, or near it."""
        if math.isnan(ratio.value):
            return cls(claim, paper, "", None)
        if way is Way.LEVEL:
            agrees = abs(ratio.value - 1) <= LEVEL
            ends = abs(ratio.low - 1), abs(ratio.high - 1)
            apart = ratio.excludes(1) and min(ends) > LEVEL
            certain = max(ends) <= LEVEL if agrees else apart
        else:
            agrees = ratio.value > 1 if way is Way.ABOVE else ratio.value < 1
            certain = ratio.excludes(1)
        return cls(claim, paper, ours, agrees, "" if certain else CHANCE if ratio.bounded else UNBOUNDED, ratio)

    @property
    def sentence(self) -> str:
        if not self.paper:
            return f"{self.claim}: {self.ours}"
        if self.agrees is None:
            here = f"{self.ours}, which decides nothing" if self.ours else "it was not measured"
            return f"{self.claim}: in the paper {self.paper}; here {here}"
        verdict = "as in the paper" if self.agrees else "not as in the paper"
        return f"{self.claim}: in the paper {self.paper}; here {self.ours}, {verdict}{self.doubt}"


@dataclass(frozen=True)
class Report:
    """The report of an item."""

    title: str
    tables: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    panels: Sequence[Picture] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def markdown(self) -> str:
        said = [*(one.sentence for one in self.claims), *self.notes]
        sentences = "\n".join(f"- {one}" for one in said)
        return "\n\n".join([*(table(head, rows) for head, rows in self.tables), sentences]).strip()

    @property
    def as_json(self) -> str:
        claims = [asdict(one) for one in self.claims]
        return json.dumps({"title": self.title, "claims": claims, "notes": self.notes, **self.data}, default=vars)

    def show(self, options: argparse.Namespace) -> None:
        """Print it, and write what the options of every item ask for."""
        print(f"{self.title}\n\n{self.markdown}")
        if options.note is not None:
            command = " ".join(["python -m", ".".join(Path(sys.argv[0]).parent.parts[-2:]), *sys.argv[1:]])
            with options.note.open("a", encoding="utf8") as file:
                file.write(f"\n## {datetime.now(UTC):%Y-%m-%d}: {self.title}\n\n`{command}`\n\n{self.markdown}\n")
        if options.svg is not None:
            if not self.panels:
                raise ValueError("this has no figure; leave --svg out")
            draw(options.svg, self.panels)
        if options.json:
            print(self.as_json)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, aligned for a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn, written = Table(box=box.MARKDOWN), StringIO()
    for number, name in enumerate(head):
        drawn.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        drawn.add_row(*row)
    Console(file=written, width=1000, markup=False, highlight=False).print(drawn)
    return "\n".join(line for line in written.getvalue().splitlines() if line.strip())
