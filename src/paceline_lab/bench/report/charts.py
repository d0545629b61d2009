"""Charts by matplotlib, as SVG inside a page.

A chart is narrow enough that its text can be read on a phone. Colours are roles: the style sheet has each of them in
light and dark. Legends stand outside, in the page, where they can wrap; a mark shows its numbers when pointed at.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.cells import cell_len

from paceline.api.pictures.page import VISIBLE_SIGNS
from paceline_lab.bench.report.blocks import Chart
from paceline_lab.bench.report.words import short
from paceline_lab.bench.statistics import Estimate

WIDTH, SMALL = 400, 220
LETTERS = 50
"""Letters that fit beside one another in a wide chart."""
FARTHEST = 2.5
"""Times the largest value that an interval may reach and still be drawn whole."""
COLORS = 8
MARKERS = "os^DvP"
"""Of entries: with its colour a marker identifies an entry, and alone for readers who see no colours."""
PARTS = ("prefill", "draft", "score", "read", "judge", "rest", "untold", "first", "later", "energy")
ROLES = ("ink", "soft", "line", "paper", *(f"e{number}" for number in range(COLORS)), *(f"p-{part}" for part in PARTS))
CODES = {role: f"#0000{number:02x}" for number, role in enumerate(ROLES, start=1)}
"""The colour that stands for a role until the chart is drawn."""
INK, PAPER = CODES["ink"], CODES["paper"]
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 12,
    "text.color": INK,
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.labelcolor"), CODES["soft"]),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0),
    **dict.fromkeys(("xtick.major.pad", "ytick.major.pad"), 6),
    "grid.color": CODES["line"],
    "grid.linewidth": 1,
    "axes.axisbelow": True,
}
DASHED: dict[str, Any] = {"color": INK, "linewidth": 1.25, "linestyle": (0, (3, 2)), "zorder": 2}
OUTLINE: dict[str, Any] = {"linewidth": 0.75, "edgecolor": PAPER}
UNWANTED = {"transform", "clip-path"}
"""Attributes: nothing is turned, nothing reaches beyond the chart."""
CLEAR = VISIBLE_SIGNS | {10: " "}
TIP, NEXT = "tip:", "\u241e"
Points = Sequence[tuple[float, float]]
Margins = tuple[float, float, float, float]
"""Left, right, top, bottom."""


def look(number: int) -> str:
    """The colour's role of an entry: 0 is plain decoding, others take turns."""
    return f"e{number if number < COLORS else 1 + (number - 1) % (COLORS - 1)}"


def _marker(number: int) -> str:
    return MARKERS[number % len(MARKERS)]


@dataclass(frozen=True)
class Interval:
    """A row of `intervals`: an entry by its number and name, and its estimate."""

    number: int
    name: str
    found: Estimate
    label: str


def intervals(title: str, description: str, rows: Sequence[Interval], caption: str) -> Chart:
    """Values, none below 0, with their intervals, one below the other, and a line at 1, where nothing is gained."""
    found = [row.found for row in rows]
    bounds = [(one.low, one.high) if one.bounded else (one.value, one.value) for one in found]
    low, high = min([1.0, *(low for low, _ in bounds)]), max([1.0, *(high for _, high in bounds)])
    high, margin = min(high, FARTHEST * max([1.0, *(one.value for one in found)])), 0.04 * (high - low)
    steps = _steps(max(low - margin, 0.0), high + margin, 4)

    def draw(axes: Axes) -> None:
        axes.axvline(1.0, **DASHED)
        for row, (left, right), y in zip(rows, bounds, _rows(axes, rows, 38), strict=True):
            color, value = CODES[look(row.number)], row.found.value
            spread = [[value - left], [min(right, steps[-1]) - value]]
            axes.errorbar(
                value, y, xerr=spread, fmt="none", color=color, ecolor=color, elinewidth=2, capsize=4, capthick=2
            )
            axes.scatter(value, y, 70, color, marker=_marker(row.number), zorder=3, **OUTLINE)
            if right > steps[-1]:
                axes.scatter(steps[-1], y, 70, color, marker=">")
        _scale(axes, "x", steps)

    size = (WIDTH, 38 * len(rows) + 30)
    return Chart(_svg(title, _listed(description, rows), draw, size, (18, 20, 0, 22)), caption)


@dataclass(frozen=True)
class Bar:
    """A row of `bars`: its parts one after the other."""

    name: str
    parts: Sequence[tuple[str, float, str]]
    """One of `PARTS`, its length, and what it says when it is pointed at."""
    label: str


def bars(
    title: str, description: str, rows: Sequence[Bar], unit: str, caption: str, legend: Mapping[str, str] | None = None
) -> Chart:
    """Lengths one below the other, each made of parts."""
    longest = max((sum(length for _, length, _ in row.parts) for row in rows), default=0.0)

    def draw(axes: Axes) -> None:
        for row, y in zip(rows, _rows(axes, rows, 40), strict=True):
            left = 0.0
            for part, length, tip in row.parts:
                axes.barh(y, length, 14, left, color=CODES[f"p-{part}"], gid=_tips(tip), **OUTLINE)
                left += length
        _scale(axes, "x", _steps(0, longest or 1.0, 4), unit)

    size = (WIDTH, 40 * len(rows) + 30)
    return Chart(_svg(title, _listed(description, rows), draw, size, (8, 26, 0, 22)), caption, parts=legend)


def histogram(
    title: str, description: str, shares: Sequence[float], mean: float, top: float, number: int, more: bool
) -> str:
    """How often each count came up, from 1 on; the last bar stands for ``more``, too. ``top`` is the highest share of
    all charts that stand together, so that they can be compared. A line shows the mean."""
    counts = range(1, len(shares) + 1)
    names = [*map(str, counts[:-1]), f"{len(shares)}{'+' if more else ''}"]

    def draw(axes: Axes) -> None:
        for count, share, name in zip(counts, shares, names, strict=True):
            tip = f"{name} tokens: {share:.1%} of rounds"
            axes.bar(count, share, 0.84, color=CODES[look(number)], gid=_tips(tip))
        axes.axvline(mean, **DASHED)
        _scale(axes, "y", _steps(0, top or 1.0, 2), percent=True)
        shown = slice(None, None, 1 if len(shares) <= 10 else 2)
        axes.set_xticks(counts[::-1][shown], names[::-1][shown])
        axes.set_xlim(0.5, len(shares) + 0.5)

    return _svg(title, description, draw, (SMALL, 136), (42, 6, 10, 22), "small")


@dataclass(frozen=True)
class Series:
    """Marks of one entry in a `plot`: its number and name, points, and what each says when it is pointed at."""

    number: int
    name: str
    points: Points
    tips: Sequence[str]
    sizes: Sequence[float] | float = 52.0
    """Areas of the marks."""
    joined: bool = False
    """Whether a line goes from mark to mark."""


@dataclass(frozen=True)
class Scales:
    """How a `plot` is scaled, and which lines it has besides its marks."""

    words: tuple[str, str]
    """Names of the axes: across, up."""
    level: float | None = None
    """The height of a dashed line."""
    upright: float | None = None
    """The place of another."""
    line: Points = ()
    """A line through points."""
    zero: bool = False
    """Whether both axes start at 0."""
    places: Sequence[float] | None = None
    """Marks of the axis below, where they are not chosen by range."""
    percent: bool = False
    """Whether the axis at the left goes from 0 to 100%."""


def plot(title: str, description: str, series: Sequence[Series], scales: Scales, height: int) -> Chart:
    """Points of several entries."""
    points = np.array([point for one in series for point in one.points] + list(scales.line) or [(0.0, 0.0), (1.0, 1.0)])
    zero = [0.0] if scales.zero else []
    x, y = [*points[:, 0], *zero], [*points[:, 1], *zero, *([scales.level] if scales.level is not None else [])]
    right = scales.places or _steps(min(x), max(x), 5)
    up = [0, 0.25, 0.5, 0.75, 1] if scales.percent else _steps(min(y), max(y), 5)

    def draw(axes: Axes) -> None:
        for one in series:
            color, (across, heights) = CODES[look(one.number)], zip(*one.points, strict=True)
            if one.joined:
                axes.plot(across, heights, color=color, linewidth=2)
            marker, tips = _marker(one.number), _tips(*one.tips)
            axes.scatter(across, heights, one.sizes, color, marker=marker, zorder=3, gid=tips, **OUTLINE)
        line = np.array([point for point in scales.line if up[0] <= point[1] <= up[-1]]).reshape(-1, 2)
        axes.plot(line[:, 0], line[:, 1], color=INK, linewidth=1.75, zorder=4)
        if scales.level is not None:
            axes.axhline(scales.level, **DASHED)
        if scales.upright is not None:
            axes.axvline(scales.upright, **DASHED)
        _scale(axes, "y", up, percent=scales.percent)
        _scale(axes, "x", right)
        margin = 0.03 * (right[-1] - right[0])
        axes.set_xlim(right[0] - margin, right[-1] + margin)
        axes.grid(visible=False, axis="x")
        axes.annotate(scales.words[0], (WIDTH - 8, 5), xycoords="figure points", ha="right", color=CODES["soft"])
        axes.annotate(scales.words[1], (4, height - 15), xycoords="figure points", color=CODES["soft"])

    svg = _svg(title, description, draw, (WIDTH, height), (48, 20, 26, 42))
    return Chart(svg, entries=[(one.number, one.name) for one in series])


def _listed(description: str, rows: Sequence[Interval | Bar]) -> str:
    return f"{description}: {'; '.join(f'{row.name} {row.label}' for row in rows)}."


def _steps(low: float, high: float, about: int) -> list[float]:
    """About ``about`` round numbers, of which the first is not above ``low`` and the last not below ``high``."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    found = MaxNLocator(about, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(step) for step in found]


def _scale(axes: Axes, which: str, steps: Sequence[float], unit: str = "", *, percent: bool = False) -> None:
    """Round numbers beside an axis, with lines in the chart."""
    words = [f"{100 * step:g}%" if percent else f"{step:.6g}" for step in steps]
    words[-1] += unit
    (axes.set_xticks if which == "x" else axes.set_yticks)(steps, words)
    (axes.set_xlim if which == "x" else axes.set_ylim)(steps[0], steps[-1])
    axes.grid(visible=True, axis="x" if which == "x" else "y")


def _rows(axes: Axes, rows: Sequence[Interval | Bar], each: int) -> list[int]:
    """Names and labels above rows, and the places of what is drawn in them."""
    height = each * len(rows)
    axes.set_ylim(height + 8, 0)
    axes.set_yticks([])
    for place, row in enumerate(rows):
        y, room = height + 14 - each * place, LETTERS - cell_len(row.label)
        axes.annotate(short(row.name.translate(CLEAR), room), (8, y), xycoords="figure points", weight="bold")
        axes.annotate(row.label, (WIDTH - 8, y), xycoords="figure points", ha="right")
    return [each * place + 30 for place in range(len(rows))]


def _tips(*words: str) -> str:
    """The name of a group of marks, for `_svg` to put a sentence at each."""
    return TIP + NEXT.join(words).translate(CLEAR)


def _svg(
    title: str, description: str, draw: Callable[[Axes], None], size: tuple[int, int], margins: Margins, kind: str = ""
) -> str:
    """A whole SVG, with its name and what it shows in words."""
    (width, height), (left, right, top, bottom) = size, margins
    written = StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": title.translate(CLEAR)}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a browser has more fonts
        figure = Figure((width / 72, height / 72), frameon=False)
        inside = (width - left - right) / width, (height - top - bottom) / height
        axes = figure.add_axes((left / width, bottom / height, *inside), frameon=False)
        draw(axes)
        figure.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(written.getvalue())
    found = ElementTree.Element("svg", {"class": f"chart {kind}", "viewBox": f"0 0 {width} {height}", "role": "img"})
    for name, words in (("title", title), ("desc", description)):
        ElementTree.SubElement(found, name).text = words.translate(CLEAR)
    found.extend(root.findall("{*}g"))
    _clean(found)
    text = ElementTree.tostring(found, encoding="unicode")
    return re.sub("#0000([0-9a-f]{2})", lambda code: f"var(--{ROLES[int(code[1], 16) - 1]})", text) + "\n"


def _clean(root: ElementTree.Element) -> None:
    """Leave of matplotlib's SVG what a page needs: fonts come from the style sheet, tenths are fine enough, and marks
    have their tips."""
    for element in root.iter():
        attributes = {name.rpartition("}")[2]: " ".join(value.split()) for name, value in element.attrib.items()}
        for name in attributes.keys() & {"d", "x", "y"}:
            attributes[name] = re.sub(r"(\.\d)\d+", r"\1", attributes[name])
        attributes["style"] = re.sub(r"font-(size|family): [^;]*(; )?", "", attributes.get("style", ""))
        element.tag, element.tail = element.tag.rpartition("}")[2], None
        element.text = element.text if element.tag in ("title", "desc", "text") else None
        element.attrib = {name: value for name, value in attributes.items() if value and name not in UNWANTED}
    for group in root.iter("g"):
        if (name := group.attrib.pop("id", "")).startswith(TIP):
            marks = [*group.iter("use")] or [*group.iter("path")]
            for mark, tip in zip(marks, name.removeprefix(TIP).split(NEXT), strict=True):
                ElementTree.SubElement(mark, "title").text = tip
