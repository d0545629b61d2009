"""Draft sizes: Tables 12, 13, 15 and 16, and Figure 2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.bench.statistics import Estimate
from paceline.bench.studies.base import (
    HEAD,
    Calibrations,
    Drawing,
    Drawn,
    Findings,
    Found,
    Setting,
    Sign,
    Stage,
    Study,
    Way,
    against,
    of_seconds,
    points,
    ratio,
    rounds_ratio,
    rows_of,
    seconds_per_round,
    tokens_per_round,
    told,
)
from paceline.bench.studies.methods import RUN, own_size, size_note, sized, with_options
from paceline.bench.summary import SECONDS, Summary

THRESHOLDS = "0", "0.01", "0.025", "0.05", "0.1", "0.2"
DEVIATIONS = -15, -10, -5, 0, 5, 10, 15
STEP, GRID = 25, 125


def at(method: str, nodes: int) -> str:
    return f"{method}@fixed:{nodes}"


def _at_sizes(setting: Setting, sizes: Sequence[int]) -> list[Stage]:
    """One run, the method in every size."""
    return [Stage(name=RUN, methods=tuple(at(setting.method, size) for size in sizes))]


def _best(setting: Setting, calibrated: Calibrations) -> int:
    return calibrated[setting.method].nodes


def _fastest(summary: Summary, entries: Sequence[str]) -> str:
    """The entry of most tokens a second."""
    speeds = {e: f.tokens_per_second or 0.0 for e in entries if (f := summary.figures(e)) is not None}
    return max(speeds, key=lambda entry: speeds[entry])


# --- Table 12 ---


def _pruned(setting: Setting, calibrated: Calibrations) -> dict[str, str]:
    own = calibrated.get(setting.method)
    return {r: sized(with_options(setting.method, f"threshold={r}"), own) for r in THRESHOLDS}


def _threshold(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    return [Stage(name=RUN, methods=tuple(_pruned(setting, calibrated).values()))]


def _read_threshold(found: Found) -> Findings:
    summary, pruned = found.runs[RUN], _pruned(found.setting, found.calibrated)
    none, most = pruned[THRESHOLDS[0]], pruned[THRESHOLDS[-1]]
    mild, best = pruned["0.05"], _fastest(summary, list(pruned.values()))
    signs = [
        Sign(
            claim="a mild threshold (0.05) is faster than none",
            paper="1.99x against 1.90x",
            ours=against(summary, mild, none),
            wants=Way.ABOVE,
            ratio=ratio(summary, mild, none),
        ),
        Sign(
            claim="the largest threshold (0.2) is slower than the mild one",
            paper="1.91x against 1.99x",
            ours=against(summary, most, mild),
            wants=Way.BELOW,
            ratio=ratio(summary, most, mild),
        ),
    ]
    names = {entry: f"r = {r}" for r, entry in pruned.items()}
    notes = [*size_note(found), f"fastest here: {names[best]}; in the paper r = 0.05"]
    return Findings(head=HEAD, rows=rows_of(summary, names), signs=signs, notes=notes)


# --- Table 13 ---


def _around(setting: Setting, calibrated: Calibrations) -> list[int]:
    best = _best(setting, calibrated)
    return sorted({best, *(best + moved for moved in DEVIATIONS if best + moved >= 1)})


def _deviation(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    return _at_sizes(setting, _around(setting, calibrated))


def _read_deviation(found: Found) -> Findings:
    summary, best = found.runs[RUN], _best(found.setting, found.calibrated)
    sizes = _around(found.setting, found.calibrated)
    whole = at(found.setting.method, best)
    signs = []
    for size, where, paper in ((sizes[0], "smallest", "1.95x at -15"), (sizes[-1], "largest", "1.95x at +15")):
        if size == best:
            continue
        other = at(found.setting.method, size)
        signs.append(
            Sign(
                claim=f"the {where} size of the window ({size - best:+d}) is slower than the calibrated one",
                paper=f"{paper} against 2.13x",
                ours=against(summary, other, whole),
                wants=Way.BELOW,
                ratio=ratio(summary, other, whole),
            )
        )
    notes = size_note(found)
    if len(sizes) < len(DEVIATIONS):
        notes.append(f"{len(DEVIATIONS) - len(sizes)} sizes of the window are below one node and left out")
    names = {at(found.setting.method, size): f"g = {size} ({size - best:+d})" for size in sizes}
    line = _line(summary, found.setting.method, sizes)
    drawing = Drawing(title="Speed-up by draft size", words=("nodes", "x plain"), lines=(line,))
    return Findings(head=HEAD, rows=rows_of(summary, names), signs=signs, notes=notes, drawings=[drawing])


def _line(summary: Summary, method: str, sizes: Sequence[int]) -> Drawn:
    figures = [(size, summary.figures(at(method, size))) for size in sizes]
    drawn = tuple((float(g), f.speed_up.value) for g, f in figures if f is not None and f.speed_up is not None)
    return Drawn(name=method, points=drawn)


# --- Table 15 ---


def _foretold_sizes(setting: Setting, calibrated: Calibrations) -> list[int]:
    best = _best(setting, calibrated)
    return sorted({max(1, best * 2 // 3), best, 2 * best})


def _throughput(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    return _at_sizes(setting, _foretold_sizes(setting, calibrated))


def _scoring(summary: Summary, entry: str) -> float:
    """Seconds of a round without its drafting, on average: the paper's s(g)."""
    records = [record.rounds for record in summary.records(entry) if record.rounds is not None]
    columns = [name for name in SECONDS if name != "seconds_draft"]
    rounds = sum(len(columns_of["emitted"]) for columns_of in records)
    return sum(sum(found[name]) for found in records for name in columns) / max(rounds, 1)


def _read_throughput(found: Found) -> Findings:
    summary, method = found.runs[RUN], found.setting.method
    best, rows, shares, real = _best(found.setting, found.calibrated), list[tuple[str, ...]](), list[float](), {}
    for size in _foretold_sizes(found.setting, found.calibrated):
        figures = summary.figures(at(method, size))
        seconds = _scoring(summary, at(method, size))
        if figures is None or not figures.tokens_per_second or not seconds:
            continue
        tokens = tokens_per_round(summary, at(method, size))
        expected, real[size] = tokens / seconds, figures.tokens_per_second
        shares.append(real[size] / expected)
        name = f"g = {size}" + (" (calibrated)" if size == best else "")
        rows.append((name, f"{tokens:.2f}", f"{1000 * seconds:.1f} ms", f"{expected:.1f}", f"{real[size]:.1f}", ""))
    mean = float(np.mean(shares)) if shares else float("nan")
    signs = [
        Sign(
            claim="tokens a round over its seconds foretell somewhat more than is written",
            paper="90.53 of 104.65 and 87.68 of 99.66 tokens/s",
            ours=f"{mean:.0%} of it",
            wants=Way.BELOW,
            ratio=Estimate(mean),
        )
    ]
    if best in real and (smaller := [size for size in real if size < best]):
        entry, other = at(method, best), at(method, smaller[0])
        signs.append(
            Sign(
                claim="the calibrated size writes faster than two thirds of it",
                paper="90.53 against 87.68 tokens/s",
                ours=f"{real[best]:.1f} against {real[smaller[0]]:.1f} tokens/s",
                wants=Way.ABOVE,
                ratio=ratio(summary, entry, other),
            )
        )
    return Findings(
        head=("", "tokens/round", "seconds/round", "expected tokens/s", "real tokens/s", ""), rows=rows, signs=signs
    )


# --- Table 16 ---


def _grid_sizes(setting: Setting, calibrated: Calibrations) -> list[int]:
    return sorted({*range(STEP, GRID + 1, STEP), _best(setting, calibrated)})


def _grid(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    return _at_sizes(setting, _grid_sizes(setting, calibrated))


def _read_grid(found: Found) -> Findings:
    summary, method = found.runs[RUN], found.setting.method
    best = _best(found.setting, found.calibrated)
    grid = _fastest(summary, [at(method, g) for g in range(STEP, GRID + 1, STEP)])
    whole = at(method, best)
    sign = Sign(
        claim="the calibrated size is no slower than the best of a grid in steps of 25",
        paper="90.53 (111 nodes) against 89.49 tokens/s (100 and 125 nodes)",
        ours=f"{against(summary, whole, grid)}, {best} nodes against {grid.rpartition(':')[2]}",
        wants=Way.EVEN if whole == grid else Way.ABOVE,
        ratio=Estimate(1.0) if whole == grid else ratio(summary, whole, grid),
    )
    names = {at(method, g): f"g = {g}" + (" (calibrated)" if g == best else "") for g in (*range(GRID + 1),)}
    took = f"calibrating took {found.calibrated[method].took:.0f} s"
    return Findings(head=HEAD, rows=rows_of(summary, names), signs=[sign], notes=[took])


# --- Figure 2 ---


def _curves(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    return _at_sizes(setting, setting.sizes)


def _read_curves(found: Found) -> Findings:
    summary, method = found.runs[RUN], found.setting.method
    sizes = [0, *found.setting.sizes]
    entries = [summary.base, *(at(method, g) for g in found.setting.sizes)]
    tokens = [tokens_per_round(summary, entry) for entry in entries]
    seconds = [1000 * seconds_per_round(summary, entry) for entry in entries]
    figures = [summary.figures(entry) for entry in entries]
    rows = [
        (f"g = {size}", f"{count:.2f}", f"{took:.1f} ms", told(one.speed_up if one else None), "")
        for size, count, took, one in zip(sizes, tokens, seconds, figures, strict=True)
    ]
    half = len(sizes) // 2
    gain = (tokens[-1] - tokens[half]) / max(tokens[half] - tokens[0], 1e-9)
    signs = [
        Sign(
            claim="larger drafts bring more tokens a round",
            paper="they rise over the whole range",
            ours=f"from {tokens[1]:.2f} to {tokens[-1]:.2f}",
            wants=Way.ABOVE,
            ratio=rounds_ratio(summary, entries[-1], entries[1]),
        ),
        Sign(
            claim="larger drafts take more seconds a round",
            paper="they rise, on each device in its own way",
            ours=f"from {seconds[1]:.1f} to {seconds[-1]:.1f} ms",
            wants=Way.ABOVE,
            ratio=rounds_ratio(summary, entries[-1], entries[1], of_seconds),
        ),
        Sign(
            claim="what they bring levels off: the larger half of the sizes brings less than the smaller half",
            paper="it saturates quickly",
            ours=f"{gain:.2f} times as much",
            wants=Way.BELOW,
            ratio=Estimate(gain),
        ),
    ]
    drawings = [
        Drawing(title=title, words=("nodes", up), lines=(Drawn(name=method, points=points(sizes, values)),))
        for title, up, values in (
            ("Tokens per round by draft size", "tokens/round", tokens),
            ("Seconds per round by draft size", "ms/round", seconds),
        )
    ]
    head = ("", "tokens/round", "median round", "x plain [95%]", "")
    return Findings(head=head, rows=rows, signs=signs, drawings=drawings)


STUDIES: Sequence[Study] = (
    Study(
        name="threshold",
        source="Table 12",
        summary="thresholds of the draft tree from 0 to 0.2",
        wishes=own_size,
        stages=_threshold,
        read=_read_threshold,
    ),
    Study(
        name="deviation",
        source="Table 13",
        summary="sizes up to 15 nodes beside the calibrated one",
        wishes=own_size,
        stages=_deviation,
        read=_read_deviation,
    ),
    Study(
        name="throughput",
        source="Table 15",
        summary="tokens a second as foretold by tokens and seconds of a round, and as written",
        wishes=own_size,
        stages=_throughput,
        read=_read_throughput,
    ),
    Study(
        name="grid",
        source="Table 16",
        summary="sizes in steps of 25 against the calibrated one",
        wishes=own_size,
        stages=_grid,
        read=_read_grid,
    ),
    Study(
        name="curves",
        source="Figure 2",
        summary="tokens and seconds of a round by draft size",
        stages=_curves,
        read=_read_curves,
    ),
)
