"""Pictures drawn from plain numbers, as SVG that scales.

A picture is narrow enough that its text can be read on a phone. It names no colours: marks carry the class of whom they
belong to (`e0`, `e1`, ...) or of what they show, and the style sheet knows the colours of light and dark. Names stand
outside, in the page, where they can wrap; a mark tells its numbers when it is pointed at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.api.pictures.page import said
from paceline.bench.report.axes import Line, Scale, fitted, round_steps, width_of, written

WIDTH = 400
SMALL = 12
FARTHEST = 2.5
"""Times the largest value that an interval may reach and still be drawn whole."""
COLORS = 8
SHAPES = 6


def look(number: int) -> str:
    """The class of an entry: 0 is plain decoding, others take colours in turn."""
    return f"e{number if number < COLORS else 1 + (number - 1) % (COLORS - 1)}"


def picture(title: str, told: str, width: float, height: float, parts: Iterable[str], kind: str = "") -> str:
    """A whole SVG, with its name and what it shows in words."""
    return (
        f'<svg class="chart {kind}" viewBox="0 0 {_n(width)} {_n(height)}" role="img">'
        f"<title>{said(title)}</title><desc>{said(told)}</desc>{''.join(parts)}</svg>\n"
    )


@dataclass(frozen=True)
class Interval:
    """A row of `intervals`: a value, and the bounds of its interval."""

    name: str
    value: float
    low: float
    high: float
    number: int
    label: str
    faint: bool = False


def intervals(title: str, told: str, rows: Sequence[Interval], mark: float) -> str:
    """Values, none below 0, with their intervals, one below the other, and a line where nothing is gained or lost."""
    values = [*(row.value for row in rows), mark]
    low, high = min([*values, *(row.low for row in rows)]), max([*values, *(row.high for row in rows)])
    high = min(high, FARTHEST * max(values))
    steps = round_steps(max(low - 0.04 * (high - low), 0.0), high + 0.04 * (high - low), 4)
    scale = Scale(steps[0], steps[-1], 14, WIDTH - 14)
    each, bottom = 38, 38 * len(rows) + 8
    even = _n(scale.at(mark))
    parts = [_grid_down(scale, steps, 4, bottom), f'<line class="mark" x1="{even}" x2="{even}" y1="2" y2="{bottom}"/>']
    for place, row in enumerate(rows):
        y = each * place + 30
        x, left, right = scale.at(row.value), scale.at(row.low), scale.at(row.high)
        parts.append(_named(row.name, row.label, y - 14))
        parts.append(
            f'<g class="{look(row.number)}"><line class="whisker" x1="{_n(left)}" x2="{_n(right)}" y1="{y}" y2="{y}"/>'
            f'<line class="whisker" x1="{_n(left)}" x2="{_n(left)}" y1="{y - 4}" y2="{y + 4}"/>'
            f"{_end(right, y, beyond=row.high > steps[-1])}"
            f"{shape(row.number, x, y, 4.5)}</g>"
        )
    return picture(title, told, WIDTH, bottom + 22, parts)


@dataclass(frozen=True)
class Bar:
    """A row of `bars`: stretches by the class of what they show."""

    name: str
    stretches: Sequence[tuple[str, float, str]]
    """Class, length, and what it says when it is pointed at."""
    label: str


def bars(title: str, told: str, rows: Sequence[Bar], unit: str) -> str:
    """Lengths one below the other, each made of stretches."""
    longest = max((sum(length for _, length, _ in row.stretches) for row in rows), default=0.0)
    steps = round_steps(0, longest or 1.0, 4)
    scale = Scale(0, steps[-1], 8, WIDTH - 14)
    each, bottom = 40, 40 * len(rows) + 6
    parts = [_grid_down(scale, steps, 4, bottom, unit)]
    for place, row in enumerate(rows):
        y, at = each * place + 22, 0.0
        parts.append(_named(row.name, row.label, y - 6))
        for kind, length, about in row.stretches:
            left, right = scale.at(at), scale.at(at + length)
            at += length
            if right - left >= 0.05:
                parts.append(
                    f'<rect class="part {kind}" x="{_n(left)}" y="{y}" width="{_n(right - left)}" height="14">'
                    f"<title>{said(about)}</title></rect>"
                )
    return picture(title, told, WIDTH, bottom + 22, parts)


HISTOGRAM = (220, 136)


def histogram(title: str, told: str, shares: Mapping[int, float], mean: float, top: float, last: int, who: int) -> str:
    """How often each count came up, from 1 to ``last``, where more are gathered; ``top`` is the highest share of all
    pictures that stand together, so that they can be compared. A line shows the mean."""
    width, height = HISTOGRAM
    gathered = {count: shares.get(count, 0.0) for count in range(1, last)}
    gathered[last] = sum(share for count, share in shares.items() if count >= last)
    more = any(count > last for count in shares)
    steps = round_steps(0, top or 1.0, 2)
    up = Scale(0, steps[-1], height - 22, 10)
    each = (width - 48) / last
    parts = [_grid_across(up, steps, 42, width - 4, percent=True)]
    stride = 1 if last <= 10 else 2
    for count, share in gathered.items():
        left = 44 + each * (count - 1)
        tall = up.at(0) - up.at(share)
        label = f"{count}+" if count == last and more else str(count)
        if tall >= 0.05:
            parts.append(
                f'<rect class="bar" x="{_n(left + 0.08 * each)}" y="{_n(up.at(share))}" width="{_n(0.84 * each)}" '
                f'height="{_n(tall)}"><title>{label} tokens: {share:.1%} of rounds</title></rect>'
            )
        if (last - count) % stride == 0:
            parts.append(_text(label, left + each / 2, height - 6, "middle"))
    across = Scale(0.5, last + 0.5, 44, 44 + each * last)
    x = _n(across.at(mean))
    parts.append(f'<line class="mean" x1="{x}" x2="{x}" y1="6" y2="{height - 22}"/>')
    return picture(title, told, width, height, [f'<g class="{look(who)}">', *parts, "</g>"], "small")


@dataclass(frozen=True)
class Series:
    """A line of `lines`: a share for each position, and how much lies behind each."""

    name: str
    number: int
    values: Sequence[float]
    weights: Sequence[float]


def lines(title: str, told: str, series: Sequence[Series], words: tuple[str, str]) -> str:
    """Shares by position, a line each; the larger a mark, the more lies behind it. ``words`` name the axes."""
    width, height = WIDTH, 260
    last = max((len(one.values) for one in series), default=1)
    up = Scale(0, 1, height - 42, 26)
    across = Scale(1, last, 56, width - 24) if last > 1 else Scale(0, 2, 56, width - 24)
    stride = max(1, -(-last // 12))
    parts = [_grid_across(up, [0, 0.25, 0.5, 0.75, 1], 46, width - 10, percent=True)]
    parts += [
        _text(str(place), across.at(place), height - 24, "middle")
        for place in range(1, last + 1)
        if (place - 1) % stride == 0
    ]
    for one in series:
        points = [(across.at(place), up.at(value)) for place, value in enumerate(one.values, start=1)]
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        marks = "".join(
            f"<g>{shape(one.number, x, y, 2.2 + 3.3 * weight**0.5)}<title>{said(one.name)}, position {place}: "
            f"{value:.1%} accepted; {weight:.1%} of drafts went so deep</title></g>"
            for place, ((x, y), value, weight) in enumerate(zip(points, one.values, one.weights, strict=True), start=1)
        )
        parts.append(f'<g class="{look(one.number)}"><polyline class="line" points="{path}"/>{marks}</g>')
    parts += _axes_named(words, width, height)
    return picture(title, told, width, height, parts)


@dataclass(frozen=True)
class Dot:
    """A point of `scatter`."""

    x: float
    y: float
    number: int
    about: str


def scatter(title: str, told: str, dots: Sequence[Dot], fit: Line | None, mark: float, words: tuple[str, str]) -> str:
    """Points, the line that fits them best, and a line across where nothing is gained or lost."""
    width, height = WIDTH, 320
    left = [dot.x for dot in dots] or [1.0]
    heights = [dot.y for dot in dots] + [mark]
    x_steps = round_steps(min(left), max(left), 5)
    y_steps = round_steps(min(heights), max(heights), 5)
    across = Scale(x_steps[0], x_steps[-1], 56, width - 20)
    up = Scale(y_steps[0], y_steps[-1], height - 42, 26)
    parts = [_grid_across(up, y_steps, 46, width - 10)]
    parts += [_text(written(step), across.at(step), height - 24, "middle") for step in x_steps]
    y = _n(up.at(mark))
    parts.append(f'<line class="mark" x1="46" x2="{width - 10}" y1="{y}" y2="{y}"/>')
    parts += [
        f'<g class="{look(dot.number)}">{shape(dot.number, across.at(dot.x), up.at(dot.y), 3.6)}'
        f"<title>{said(dot.about)}</title></g>"
        for dot in dots
    ]
    if fit is not None:
        (x1, y1), (x2, y2) = _clipped(fit, min(left), max(left), y_steps[0], y_steps[-1])
        parts.append(
            f'<line class="fit" x1="{_n(across.at(x1))}" y1="{_n(up.at(y1))}" '
            f'x2="{_n(across.at(x2))}" y2="{_n(up.at(y2))}"/>'
        )
    parts += _axes_named(words, width, height)
    return picture(title, told, width, height, parts, "dots")


def curve(
    title: str, told: str, dots: Sequence[Dot], line: Sequence[tuple[float, float]], mark: float, words: tuple[str, str]
) -> str:
    """Points that were measured, a curve that is meant to go through them, and a line upright at what was chosen."""
    width, height = WIDTH, 260
    last = max([dot.x for dot in dots] or [1.0])
    x_steps = [step for step in round_steps(0, last, 6) if step <= last]
    heights = [dot.y for dot in dots] + [y for _, y in line]
    y_steps = round_steps(min([0.0, *heights]), max([0.0, *heights]) or 1.0, 4)
    across = Scale(0, last, 56, width - 20)
    up = Scale(y_steps[0], y_steps[-1], height - 42, 26)
    parts = [_grid_across(up, y_steps, 46, width - 10)]
    parts += [_text(written(step), across.at(step), height - 24, "middle") for step in x_steps]
    x = _n(across.at(mark))
    parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="26" y2="{height - 42}"/>')
    path = " ".join(f"{_n(across.at(x))},{_n(up.at(y))}" for x, y in line)
    kind = look(dots[0].number) if dots else look(0)
    parts.append(f'<g class="{kind}"><polyline class="line" points="{path}"/></g>')
    parts += [
        f'<g class="{look(dot.number)}">{shape(dot.number, across.at(dot.x), up.at(dot.y), 3.2)}'
        f"<title>{said(dot.about)}</title></g>"
        for dot in dots
    ]
    parts += _axes_named(words, width, height)
    return picture(title, told, width, height, parts, "dots")


@dataclass(frozen=True)
class Curve:
    """A line of `curves`: points by their place across."""

    name: str
    number: int
    points: Sequence[tuple[float, float]]


def curves(title: str, told: str, series: Sequence[Curve], words: tuple[str, str], *, log: bool = False) -> str:
    """Numbers by numbers, a line each. With ``log`` equal factors across are equally far apart, and the places
    themselves stand below."""
    width, height = WIDTH, 280
    places = sorted({x for one in series for x, _ in one.points}) or [1.0]
    heights = [y for one in series for _, y in one.points] or [0.0]
    up_steps = round_steps(min(0.0, *heights), max(heights), 4)
    steps = places if log else round_steps(places[0], places[-1], 5)
    place = math.log2 if log else float
    across = Scale(place(steps[0]), place(steps[-1]), 56, width - 20)
    up = Scale(up_steps[0], up_steps[-1], height - 42, 26)
    parts = [_grid_across(up, up_steps, 46, width - 10)]
    parts += [_text(written(step), across.at(place(step)), height - 24, "middle") for step in steps]
    for one in series:
        found = [(x, y, across.at(place(x)), up.at(y)) for x, y in sorted(one.points)]
        path = " ".join(f"{_n(left)},{_n(top)}" for _, _, left, top in found)
        marks = "".join(
            f"<g>{shape(one.number, left, top, 3.4)}<title>{said(one.name)}: {words[1]} {y:.3g} at {words[0]} "
            f"{written(x)}</title></g>"
            for x, y, left, top in found
        )
        parts.append(f'<g class="{look(one.number)}"><polyline class="line" points="{path}"/>{marks}</g>')
    parts += _axes_named(words, width, height)
    return picture(title, told, width, height, parts)


def shape(number: int, x: float, y: float, size: float) -> str:
    """The mark of an entry: with its colour, shapes tell entries apart, and alone for whoever sees no colours."""
    s = size
    corners: list[tuple[float, float]]
    match number % SHAPES:
        case 0:
            return f'<circle class="dot" cx="{_n(x)}" cy="{_n(y)}" r="{_n(s)}"/>'
        case 1:
            corners = [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)]
        case 2:
            corners = [(0, -1.15), (1.1, 0.85), (-1.1, 0.85)]
        case 3:
            corners = [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)]
        case 4:
            corners = [(0, 1.15), (1.1, -0.85), (-1.1, -0.85)]
        case _:
            a, b = 0.4, 1.15
            corners = [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a)]
            corners += [(-b, -a), (-a, -a)]
    points = " ".join(f"{_n(x + s * dx)},{_n(y + s * dy)}" for dx, dy in corners)
    return f'<polygon class="dot" points="{points}"/>'


def key(number: int) -> str:
    """An entry's mark, to stand before its name."""
    return (
        f'<svg class="key {look(number)}" viewBox="0 0 12 12" aria-hidden="true" focusable="false">'
        f"{shape(number, 6, 6, 4.5)}</svg>"
    )


def _clipped(fit: Line, x1: float, x2: float, low: float, high: float) -> tuple[tuple[float, float], ...]:
    """The part of a line between two places that lies between two heights."""
    if fit.slope:
        ends = sorted(((low - fit.height) / fit.slope, (high - fit.height) / fit.slope))
        x1, x2 = max(x1, ends[0]), min(x2, ends[1])
    return (x1, fit.at(x1)), (x2, fit.at(x2))


def _named(name: str, label: str, y: float) -> str:
    """What stands above a row: whose it is, and its number at the right."""
    room = WIDTH - 24 - width_of(label, SMALL)
    return _text(fitted(name, room, SMALL), 8, y, "start", "name") + _text(label, WIDTH - 8, y, "end", "value")


def _end(x: float, y: float, *, beyond: bool) -> str:
    """Where an interval ends; an arrow where it goes on."""
    if beyond:
        return f'<polygon class="dot" points="{_n(x + 6)},{_n(y)} {_n(x - 2)},{_n(y - 5)} {_n(x - 2)},{_n(y + 5)}"/>'
    return f'<line class="whisker" x1="{_n(x)}" x2="{_n(x)}" y1="{_n(y - 4)}" y2="{_n(y + 4)}"/>'


def _grid_down(scale: Scale, steps: Sequence[float], top: float, bottom: float, unit: str = "") -> str:
    parts = []
    for step in steps:
        x = scale.at(step)
        parts.append(f'<line class="grid" x1="{_n(x)}" x2="{_n(x)}" y1="{_n(top)}" y2="{_n(bottom)}"/>')
        word = f"{written(step)}{unit if step == steps[-1] else ''}"
        half = width_of(word, SMALL) / 2
        parts.append(_text(word, min(max(x, half), WIDTH - half), bottom + 16, "middle"))
    return "".join(parts)


def _grid_across(up: Scale, steps: Sequence[float], left: float, right: float, *, percent: bool = False) -> str:
    return "".join(
        f'<line class="grid" x1="{_n(left)}" x2="{_n(right)}" y1="{_n(up.at(step))}" y2="{_n(up.at(step))}"/>'
        + _text(f"{written(100 * step)}%" if percent else written(step), left - 5, up.at(step) + 4, "end")
        for step in steps
    )


def _axes_named(words: tuple[str, str], width: float, height: float) -> list[str]:
    """The word of the upright axis stands above it, where it needs not be turned."""
    across, up = words
    return [_text(up, 4, 11, "start", "axis"), _text(across, width - 8, height - 5, "end", "axis")]


def _text(text: str, x: float, y: float, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{said(text)}</text>'


def _n(value: float) -> str:
    """A coordinate: a tenth is finer than any screen needs."""
    return f"{value:.1f}".removesuffix(".0")
