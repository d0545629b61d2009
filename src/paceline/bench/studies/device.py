"""What calibration finds where things differ: Figures 5 and 6."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.statistics import Estimate
from paceline.bench.studies.base import (
    Calibrated,
    Drawing,
    Drawn,
    Findings,
    Found,
    Setting,
    Sign,
    Study,
    Way,
    Wish,
    points,
)

THREADS = 1, 2
TYPES = "bfloat16", "float32"
COUNTS = 1, 2, 3, 5, 8
HEAD = ("", "g*", "tokens/round at g*", "seconds/round at g*", "expected tokens/s", "took", "")


def _values(found: Calibrated) -> tuple[float, float]:
    """Tokens and seconds of a round at the best size."""
    tokens = _between(found.sizes, found.tokens, found.nodes)
    return tokens, _between(found.sizes, found.seconds, found.nodes)


def _between(sizes: Sequence[int], values: Sequence[float], size: int) -> float:
    import numpy as np

    return float(np.interp(size, sizes, values))


def _row(label: str, found: Calibrated) -> tuple[str, ...]:
    tokens, seconds = _values(found)
    speed = f"{tokens / seconds:.1f}"
    return label, str(found.nodes), f"{tokens:.2f}", f"{1000 * seconds:.1f} ms", speed, f"{found.took:.0f} s", ""


# --- Figure 5 ---


def _devices(setting: Setting) -> list[Wish]:
    return [
        Wish(label=f"{dtype}, {n} {'thread' if n == 1 else 'threads'}", method=setting.method, threads=n, dtype=dtype)
        for dtype in TYPES
        for n in THREADS
    ]


def _read_optima(found: Found) -> Findings:
    sizes = {label: one.nodes for label, one in found.calibrated.items()}
    low, high = min(sizes.values()), max(sizes.values())
    sign = Sign(
        claim="the best size is not the same everywhere",
        paper="it differs from device to device",
        ours=f"it lies between {low} and {high} nodes",
        wants=Way.ABOVE,
        ratio=Estimate(high / max(low, 1)),
    )
    rows = [_row(label, one) for label, one in found.calibrated.items()]
    lines = tuple(
        Drawn(name=label, number=number, points=points(one.sizes, _speeds(one)))
        for number, (label, one) in enumerate(found.calibrated.items(), start=1)
    )
    drawing = Drawing(title="Expected tokens/s by draft size", words=("nodes", "tokens/s"), lines=lines)
    notes = ["two threads have one and the same machine; the paper's devices are four graphics cards"]
    return Findings(head=HEAD, rows=rows, signs=[sign], notes=notes, drawings=[drawing])


def _speeds(found: Calibrated) -> list[float]:
    return [tokens / seconds for tokens, seconds in zip(found.tokens, found.seconds, strict=True)]


# --- Figure 6 ---


def _counts(setting: Setting) -> list[Wish]:
    return [Wish(label=f"{n} {'prompt' if n == 1 else 'prompts'}", method=setting.method, prompts=n) for n in COUNTS]


def _read_samples(found: Found) -> Findings:
    every = list(found.calibrated.values())
    first, last = every[0], every[-1]
    lost = _lost(first, last)
    signs = [
        Sign(
            claim="how many prompts calibrate hardly matters: the size that one finds is as good as that of many",
            paper="it has little impact on the optimal length",
            ours=f"{first.nodes} against {last.nodes} nodes, {lost:.0%} of the throughput lost",
            wants=Way.EVEN,
            ratio=Estimate(1 - lost),
        ),
        Sign(
            claim="more prompts take longer",
            paper="it rises with their number",
            ours=f"{first.took:.0f} s against {last.took:.0f} s",
            wants=Way.ABOVE,
            ratio=Estimate(last.took / max(first.took, 1e-9)),
        ),
    ]
    rows = [_row(label, one) for label, one in found.calibrated.items()]
    places = [float(label.split()[0]) for label in found.calibrated]
    pictures = (
        ("Best size by calibration prompts", "g*", [float(one.nodes) for one in every]),
        ("Tokens per round at the best size", "tokens/round", [_values(one)[0] for one in every]),
        ("Seconds per round at the best size", "ms/round", [1000 * _values(one)[1] for one in every]),
        ("Time to calibrate", "seconds", [one.took for one in every]),
    )
    drawings = [
        Drawing(
            title=title,
            words=("prompts", up),
            lines=(Drawn(name=found.setting.method, points=points(places, values)),),
        )
        for title, up, values in pictures
    ]
    return Findings(head=HEAD, rows=rows, signs=signs, drawings=drawings)


def _lost(first: Calibrated, last: Calibrated) -> float:
    """The share of throughput that the first one's size misses, by what the last one knows."""
    at_first = _between(last.sizes, _speeds(last), first.nodes)
    at_last = _between(last.sizes, _speeds(last), last.nodes)
    return 1 - at_first / at_last


STUDIES: Sequence[Study] = (
    Study(
        name="optima",
        source="Figure 5",
        summary="the best draft size with one and two threads, in bfloat16 and float32",
        wishes=_devices,
        read=_read_optima,
    ),
    Study(
        name="samples",
        source="Figure 6",
        summary="what calibrating finds with one to eight prompts, and how long it takes",
        wishes=_counts,
        read=_read_samples,
    ),
)
