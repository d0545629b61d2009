"""Figures: curves and dots in panels beside one another, and diagrams of boxes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

INKED, INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#777777"
"""Of words and axes: readable on light and dark."""
TICKS = 8
"""Up to this many whole numbers across are each named, if they lie apart."""
COLORS = ("#888888", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d")
"""Distinguishable by people who see few colours, on light and dark; the first is plain decoding's."""
Line = TypeVar("Line")
Place = TypeVar("Place")


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
    """The labels at 0, 1, 2 and so on across, instead of numbers."""


@dataclass(frozen=True)
class Box:
    """A word in a box of a diagram, in the middle of a place that is one unit wide and high."""

    x: float
    y: float
    word: str
    number: int = 0
    """Its colour."""
    framed: bool = True


@dataclass(frozen=True)
class Diagram:
    """A picture of boxes, wider than a panel, with arrows between places: (x, y, x, y, colour)."""

    title: str
    boxes: Sequence[Box]
    arrows: Sequence[tuple[float, float, float, float, int]] = ()


Picture: TypeAlias = Panel | Diagram


def curves(
    lines: Mapping[str, Line], places: Mapping[Any, Place], height: Callable[[Place, Line], float], first: int = 1
) -> list[Curve]:
    """A curve for each of these lines over all places, without the places where its height is not known. ``first`` is
    the colour of the first one."""
    found = list[Curve]()
    for number, (name, line) in enumerate(lines.items(), start=first):
        heights = ((float(x), height(place, line)) for x, place in places.items())
        found.append(Curve(name, [point for point in heights if not math.isnan(point[1])], number))
    return found


def draw(file: Path, panels: Sequence[Picture]) -> None:
    """Panels beside one another as SVG, readable on light and dark."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    style: dict[Any, Any] = dict.fromkeys(INKED, INK) | {"svg.hashsalt": file.name}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        wide = 2.2 if any(isinstance(panel, Diagram) for panel in panels) else 1.0
        figure = Figure(figsize=(4.6 * columns * wide, 3.4 * rows * wide**0.5), layout="constrained")
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(places, panels, strict=False):
            if isinstance(panel, Diagram):
                _draw_boxes(axes, panel)
            else:
                _draw(axes, panel)
        for empty in places[len(panels) :]:
            empty.set_axis_off()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})


def _draw_boxes(axes: Any, diagram: Diagram) -> None:
    for x, y, to_x, to_y, number in diagram.arrows:
        how = {"arrowstyle": "->", "color": COLORS[number % len(COLORS)], "shrinkA": 14, "shrinkB": 14}
        axes.annotate("", (to_x, to_y), (x, y), arrowprops=how)
    for box in diagram.boxes:
        color = COLORS[box.number % len(COLORS)]
        frame = {"boxstyle": "round,pad=0.35", "facecolor": "none", "edgecolor": color} if box.framed else None
        axes.text(box.x, box.y, box.word, ha="center", va="center", color=color, fontsize="small", bbox=frame)
    across, up = [box.x for box in diagram.boxes], [box.y for box in diagram.boxes]
    axes.set(title=diagram.title, xlim=(min(across) - 0.7, max(across) + 0.7), ylim=(min(up) - 0.6, max(up) + 0.6))
    axes.set_axis_off()


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
