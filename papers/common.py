"""What the scripts of all papers share: claims held against the paper's, tables, figures, and dated notes."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from io import StringIO
from pathlib import Path
from typing import Any

from paceline_lab import Estimate, write_whole

INKED, INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#777777"
"""Of words and axes: readable on light and dark."""
TICKS = 8
"""Up to so many whole numbers across are each named, where they lie apart."""
LEVEL = 0.05
"""Ratios this near to 1 count as level, where a paper says that nothing changes."""
CHANCE, UNBOUNDED = " (chance alone could show this)", " (without an interval)"
COLORS = ("#888888", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d")
"""Told apart by people who see few colours, on light and dark; the first is plain decoding's."""


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
    """What was held against 1, where that decided."""

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
class Curve:
    """A line of a figure, or its dots."""

    name: str
    points: Sequence[tuple[float, float]]
    number: int = 1
    dots: bool = False
    marks: bool = True
    """Whether its points are marked."""


@dataclass(frozen=True)
class Panel:
    """One picture of a figure."""

    title: str
    across: str
    up: str
    curves: Sequence[Curve]
    log: bool = False
    level: float | None = None
    """A dashed line at this height."""
    names: Sequence[str] = ()
    """What stands at 0, 1, 2 and so on across, instead of numbers."""


@dataclass(frozen=True)
class Report:
    """What a script shows. Rows of tables are cells that are already text."""

    title: str
    tables: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]] = ()
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    panels: Sequence[Panel] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def markdown(self) -> str:
        said = [*(one.sentence for one in self.claims), *self.notes]
        sentences = "\n".join(f"- {one}" for one in said)
        return "\n\n".join([*(table(head, rows) for head, rows in self.tables), sentences]).strip()

    def show(self, options: argparse.Namespace) -> None:
        """Print it, and write what the options of `parser` ask for."""
        print(f"{self.title}\n\n{self.markdown}")
        if options.note is not None:
            module = ".".join(Path(sys.argv[0]).with_suffix("").parts[-3:]).removesuffix(".__main__")
            command = " ".join(["python -m", module, *sys.argv[1:]])
            with options.note.open("a", encoding="utf8") as file:
                file.write(f"\n## {datetime.now(UTC):%Y-%m-%d}: {self.title}\n\n`{command}`\n\n{self.markdown}\n")
        if options.svg is not None:
            if not self.panels:
                raise ValueError("this has no figure; leave --svg out")
            draw(options.svg, self.panels)
        if options.json:
            claims = [asdict(one) for one in self.claims]
            print(json.dumps({"title": self.title, "claims": claims, "notes": self.notes, **self.data}, default=vars))


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


def draw(file: Path, panels: Sequence[Panel]) -> None:
    """Panels beside one another as SVG, readable on light and dark."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    style: dict[Any, Any] = dict.fromkeys(INKED, INK) | {"svg.hashsalt": file.name}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        figure = Figure(figsize=(4.6 * columns, 3.4 * rows), layout="constrained")
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(places, panels, strict=False):
            _draw(axes, panel)
        for empty in places[len(panels) :]:
            empty.set_axis_off()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})


def _draw(axes: Any, panel: Panel) -> None:
    for one in panel.curves:
        x, y = zip(*one.points, strict=True) if one.points else ((), ())
        line = "none" if one.dots else "-"
        marker, color = "o" if one.dots or one.marks else "", COLORS[one.number % len(COLORS)]
        axes.plot(x, y, linestyle=line, marker=marker, markersize=4, color=color, label=one.name)
    if panel.level is not None:
        axes.axhline(panel.level, linestyle="--", linewidth=1, color=COLORS[0])
    axes.set(title=panel.title, xlabel=panel.across, ylabel=panel.up, xscale="log" if panel.log else "linear")
    places = sorted({x for one in panel.curves for x, _ in one.points})
    few = len(places) <= TICKS and all(x == int(x) for x in places)
    if panel.names:
        axes.set_xticks(range(len(panel.names)), panel.names)
        axes.margins(x=0.15)
    elif few and (panel.log or places[-1] - places[0] < TICKS):
        axes.set_xticks(places, [f"{x:g}" for x in places], minor=False)
        axes.minorticks_off()
    axes.grid(alpha=0.3)
    if len(panel.curves) > 1:
        axes.legend(frameon=False, fontsize="small")


def write(file: Path, text: str) -> None:
    """The whole file or none, in a folder that is made where there is none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)


def progress(doing: str, done: int = 0, total: int = 0) -> None:
    """What is being done, on the last line of a terminal; an empty text clears the line."""
    if sys.stderr.isatty():
        count = f" ({done} of {total})" if total else ""
        print(f"\r\033[K{doing}{count}", end="\r", file=sys.stderr, flush=True)


def parser(said: str | None) -> argparse.ArgumentParser:
    """The options of all scripts; ``said`` is the script's docstring."""
    found = argparse.ArgumentParser(description=said, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--json", action="store_true", help="one JSON object as the last line")
    found.add_argument("--note", type=Path, metavar="FILE", help="add the result, with its date, to a Markdown file")
    found.add_argument("--svg", type=Path, metavar="FILE", help="draw it, where there is something to draw")
    return found


def script(main: Callable[[], None]) -> None:
    """Run a script. A user's mistake ends it with one sentence."""
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
