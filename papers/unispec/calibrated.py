"""The results of calibrations: Table 14 and Figures 2, 5 and 6."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paceline_lab import Calibration, Estimate, Summary, difference
from papers.charts import Curve, Panel, curves
from papers.driver import Given
from papers.report import LEVEL, UNBOUNDED, Claim, Report, Way
from papers.speeds import rounds_ratio, speed_up, tokens_per_round, with_interval, written
from papers.unispec.calibration import (
    DEGREE,
    KNOTS,
    POWER,
    ROUNDS,
    SEED,
    TOLERANCE,
    Fit,
    Floats,
    Runs,
    calibration_of,
    cubic,
    evolved_size,
    named,
    speed,
    spline,
)
from papers.unispec.lab import OWN, SizesLab, at

Of = Callable[[Calibration], Sequence[float]]

# --- Table 14


def table14(given: Given) -> Report:
    """Table 14: how calibration fits and searches, with the result of each part here."""
    lab = SizesLab(given)
    found = lab.needed({lab.method: lab.calibrate(lab.method, procedure="paper")}, "calibrated")[lab.method]
    if not isinstance(found, Runs):
        raise ValueError(f"{lab.out} has a calibration of {lab.method} by another procedure; give another --out")
    return lab.unsized(setup(found, lab.method))


def explained(fit: Fit, places: Floats, values: Sequence[float]) -> str:
    """R squared."""
    y = np.array(values)
    rest, whole = float(((y - fit(places)) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    return f"R² {1 - rest / whole:.3f} over {len(y)} runs" if whole > 0 else f"level over {len(y)} runs"


def setup(found: Runs, method: str) -> Report:
    places, least, most = np.array(found.sizes, np.float64), found.sizes[0], found.sizes[-1]
    tokens, seconds = cubic(found.sizes, found.tokens), spline(found.sizes, found.seconds)
    curve, evolved = speed(tokens, seconds), evolved_size(tokens, seconds, least, most)
    rates = curve(np.array([evolved, float(found.nodes)])).tolist()
    rows = [
        ("f_accept(g)", f"polynomial of degree {POWER}, least squares", explained(tokens, places, found.tokens)),
        ("f_time(g)", f"B-spline of degree {DEGREE}, {KNOTS} uniform knots", explained(seconds, places, found.seconds)),
        ("f_speed(g)", "f_accept(g) / f_time(g)", f"{rates[1]:.1f} tokens/s at g*"),
        ("optimization", "differential evolution, -f_speed(g) minimized", f"g = {evolved:.2f}"),
        ("solver", f"seed={SEED}, maxiter={ROUNDS}, atol=tol={TOLERANCE:g}", f"bounds {least} and {most}"),
        ("output", "g* of most throughput, of all whole numbers", f"g* = {found.nodes}"),
    ]
    near = "differential evolution and a look at every whole number find the same size"
    ours = f"{evolved:.2f} and {found.nodes}"
    claims = [Claim(near, "g* is found by differential evolution", ours, abs(evolved - found.nodes) <= 1)]
    panels = [
        Panel(title, "nodes", up, fitted(places, fit, np.array(y)))
        for title, up, fit, y in (
            ("Tokens per round", "tokens/round", tokens, found.tokens),
            ("Forward time", "s", seconds, found.seconds),
            ("Throughput", "tokens/s", curve, speeds(found)),
        )
    ]
    head = ("", "configuration", f"here, {method}")
    return Report("UniSpec, Table 14: how calibration fits and searches", [(head, rows)], claims, panels=panels)


def fitted(places: Floats, fit: Fit, values: Floats) -> list[Curve]:
    every = np.linspace(places[0], places[-1], 200)
    smooth = list(zip(every.tolist(), fit(every).tolist(), strict=True))
    dots = list(zip(places.tolist(), values.tolist(), strict=True))
    return [Curve("fit", smooth, marks=False), Curve("runs", dots, 2, dots=True)]


# --- Figure 2

FIGURE2 = 1, 2, 4, 8, 16, 32, 64
RISE = "larger drafts bring more tokens a round", "they rise over the whole range"
SLOWER = "larger drafts take more forward seconds", "they rise, on each device in its own way"
SATURATES = "the larger half of the sizes adds fewer tokens than the smaller half", "the curve saturates quickly"


def figure2(given: Given) -> Report:
    """Figure 2: tokens and forward seconds of a round by draft size, of one device or several.

    Without ``--runs`` it measures here. ``--runs A100=DIR A40=DIR`` draws what was kept in folders of this item, or of
    others that calibrate the method as the paper does. A forward is a round without its drafting.
    """
    method, raced = given.method, f"{given.method} in a race"  # which calibrates nothing that races on these prompts
    if given.runs:
        kept = named(given.runs, raced, method)
        return by_size({name: by_runs(name, one) for name, (_, one) in kept.items()}, method)
    lab = SizesLab(given)
    entries = {size: at(method, size) for size in sorted(set(given.sizes))}
    run = lab.run(entries.values())
    found = calibration_of(run, entries)
    lab.keep(raced, found)
    return lab.unsized(by_size({"this device": found}, method, run))


def by_runs(name: str, found: Calibration) -> Runs:
    if not isinstance(found, Runs):
        raise ValueError(f"{name} was not calibrated by runs, so its forward seconds are not known")
    return found


def seconds_ratio(run: Summary, entry: str, other: str) -> Estimate:
    """The mean forward of an entry's texts over that of another's, pair by pair."""
    means, pairs = run.rounds.groupby("text").scoring.mean(), run.pairs(entry, other)
    return difference(pairs.text.map(means) / pairs.text_base.map(means), pairs.unit).ratio


def rises(name: str, found: Calibration, run: Summary | None, method: str) -> list[Claim]:
    """Claims on the curves of one device; with intervals where its ``run`` is there."""
    first, last, half = found.sizes[0], found.sizes[-1], len(found.sizes) // 2
    tokens, seconds = found.tokens, [1000 * took for took in found.seconds]
    if run is None:
        more, slower = Estimate(tokens[-1] / tokens[0]), Estimate(seconds[-1] / seconds[0])
    else:
        more, slower = (of(run, at(method, last), at(method, first)) for of in (rounds_ratio, seconds_ratio))
    gain = (tokens[-1] - tokens[half]) / max(tokens[half] - 1, 1e-9)
    return [
        Claim.of(f"{words}, {name}", paper, ours, way, ratio)
        for (words, paper), ours, way, ratio in (
            (RISE, f"from {tokens[0]:.2f} to {tokens[-1]:.2f}", Way.ABOVE, more),
            (SLOWER, f"from {seconds[0]:.1f} to {seconds[-1]:.1f} ms", Way.ABOVE, slower),
            (SATURATES, f"{gain:.2f} times as many", Way.BELOW, Estimate(gain)),
        )
    ]


def apart(devices: Mapping[str, Calibration]) -> list[Claim]:
    """Claims on several devices: how far they lie apart, at the sizes that all have."""
    common = sorted(set.intersection(*(set(one.sizes) for one in devices.values())))
    if len(devices) < 2 or not common:
        return []

    def spread(of: Of) -> float:
        places = ([of(one)[one.sizes.index(size)] for one in devices.values()] for size in common)
        ratios = [max(found) / min(found) for found in places]
        return sum(ratios) / len(ratios)

    tokens, seconds = spread(lambda one: one.tokens), spread(lambda one: one.seconds)
    claim, paper = "forward seconds differ more between devices than tokens do", "tokens are relatively stable"
    ours = f"the largest over the smallest is {seconds:.2f} of seconds and {tokens:.2f} of tokens"
    return [Claim.of(claim, f"{paper}, seconds vary substantially", ours, Way.ABOVE, Estimate(seconds / tokens))]


def by_size(devices: Mapping[str, Runs], method: str, run: Summary | None = None) -> Report:
    """``run`` is that of the one device where it was measured just now."""
    rows = [] if run is None else [(run.base, written(tokens_per_round(run, run.base)), "", "", "1.00")]
    for name, found in devices.items():
        for size, tokens, took, all_in_all in zip(found.sizes, found.tokens, found.seconds, found.whole, strict=True):
            speed = "" if run is None else with_interval(speed_up(run, at(method, size)))
            cells = f"{tokens:.2f}", f"{1000 * took:.1f} ms", f"{1000 * all_in_all:.1f} ms", speed
            rows.append((f"{name}, g = {size}" if len(devices) > 1 else f"g = {size}", *cells))
    claims = [claim for name, found in devices.items() for claim in rises(name, found, run, method)]
    panels = [
        Panel("Tokens per round by draft size", "nodes", "tokens/round", lines(devices, lambda one: one.tokens)),
        Panel("Forward time by draft size", "nodes", "ms", lines(devices, lambda one: [1000 * s for s in one.seconds])),
    ]
    head = ("", "tokens/round", "forward", "whole round", "x plain [95%]")
    title = f"UniSpec, Figure 2: tokens and forward time by draft size, {method}"
    return Report(title, [(head, rows)], [*claims, *apart(devices)], panels=panels)


def lines(calibrated: Mapping[str, Calibration], of: Of) -> list[Curve]:
    """A curve by draft size of each calibration."""
    return [
        Curve(name, list(zip(map(float, one.sizes), of(one), strict=True)), number)
        for number, (name, one) in enumerate(calibrated.items(), start=1)
    ]


# --- Figures 5 and 6

THREADS, TYPES = (1, 2), ("bfloat16", "float32")
COUNTS = 1, 2, 3, 5, 8
CALIBRATED = ("", "g*", "tokens/round at g*", "seconds at g*", "expected tokens/s", "took")
SECONDS = "seconds are of forwards where the method is calibrated as published, else of whole rounds"


def values(found: Calibration, size: int) -> tuple[float, float]:
    """Tokens and seconds of a round at a size."""
    return float(np.interp(size, found.sizes, found.tokens)), float(np.interp(size, found.sizes, found.seconds))


def speeds(found: Calibration) -> list[float]:
    return [tokens / seconds for tokens, seconds in zip(found.tokens, found.seconds, strict=True)]


def calibrated_row(label: str, found: Calibration) -> tuple[str, ...]:
    tokens, seconds = values(found, found.nodes)
    speed = f"{tokens / seconds:.1f}"
    return label, str(found.nodes), f"{tokens:.2f}", f"{1000 * seconds:.1f} ms", speed, f"{found.took:.0f} s"


def lost(first: Calibration, last: Calibration) -> float:
    """The share of throughput that the first one's size misses, by what the last one knows."""
    at_first, at_last = (float(np.interp(one.nodes, last.sizes, speeds(last))) for one in (first, last))
    return 1 - at_first / at_last


def figure5(given: Given) -> Report:
    """Figure 5: the calibrated size by testbed and model.

    Without ``--runs`` it calibrates here, with one and two threads, in bfloat16 and float32: settings of one machine.
    ``--runs S1/Llama=DIR S1/Qwen=DIR S2/Llama=DIR`` reads what items kept in their folders (``--out``) on several
    machines or with several models: TESTBED=DIR, or TESTBED/MODEL=DIR where a testbed has several models.
    """
    if given.runs:
        kept = named(given.runs, given.method).items()
        return testbeds({placed(name, model): one for name, (model, one) in kept}, given.method)
    lab = SizesLab(given)
    settings = {f"{dtype}, {n} thread{'s'[: n > 1]}": (dtype, n) for dtype in TYPES for n in THREADS}
    made = {name: lab.calibrate(name, dtype=dtype, threads=n) for name, (dtype, n) in settings.items()}
    found = lab.needed(made, "calibrated")
    return lab.unsized(testbeds({(name, given.model): one for name, one in found.items()}, lab.method))


def placed(name: str, model: str) -> tuple[str, str]:
    """Testbed and model; the model that is kept with the calibration where none is named."""
    testbed, _, own = name.partition("/")
    return testbed, own or model


def differs(calibrated: Sequence[Calibration]) -> Claim:
    """The sizes of any two calibrations may lie apart by chance; it matters where one's size is slow on the other."""
    low, high = min(one.nodes for one in calibrated), max(one.nodes for one in calibrated)
    most = max(lost(other, one) for one in calibrated for other in calibrated)
    ours = f"it lies between {low} and {high} nodes, and a size of elsewhere loses up to {most:.0%} of the throughput"
    paper = "it differs from device to device"
    return Claim("the best size is not the same everywhere", paper, ours, most > LEVEL, UNBOUNDED)


def testbeds(calibrated: Mapping[tuple[str, str], Calibration], method: str) -> Report:
    """By testbed and model."""
    beds, models = (list(dict.fromkeys(names)) for names in zip(*calibrated, strict=True))
    labelled = {f"{b}, {m}" if len(models) > 1 else b: one for (b, m), one in calibrated.items()}
    places = dict(enumerate(beds))
    sizes = {key: float(one.nodes) for key, one in calibrated.items()}
    chosen = curves({m: m for m in models}, places, lambda bed, model: sizes.get((bed, model), math.nan))
    panels = [
        Panel("Calibrated size", "testbed", "g*", chosen, names=beds),
        Panel("Expected tokens/s by draft size", "nodes", "tokens/s", lines(labelled, speeds)),
    ]
    claims = [differs(list(calibrated.values()))] if len(calibrated) > 1 else []
    tables = [(CALIBRATED, [calibrated_row(label, one) for label, one in labelled.items()])]
    return Report(f"UniSpec, Figure 5: calibrated sizes of {method}", tables, claims, [SECONDS], panels)


def figure6(given: Given) -> Report:
    """Figure 6: calibration with one to eight prompts, and how long it takes.

    Every prompt is written whole, at every size: no calibration has a time to keep to, so its time is a finding. The
    paper's method is calibrated by the paper's procedure, `unispec` by Paceline's.
    """
    lab = SizesLab(given)
    made = {
        (method, n): lab.calibrate(f"{method} {counted(n)}", method, prompts=n, seconds=math.inf)
        for method in dict.fromkeys((lab.method, OWN))
        for n in COUNTS
    }
    found = dict[str, dict[int, Calibration]]()
    for (method, n), one in lab.needed(made, "calibrated").items():
        found.setdefault(method, {})[lab.prompts_of(n)] = one
    return lab.unsized(samples(found))


def counted(prompts: int) -> str:
    return f"{prompts} prompt{'s'[: prompts > 1]}"


def of_samples(method: str, calibrated: Mapping[int, Calibration]) -> list[Claim]:
    fewest, most = min(calibrated), max(calibrated)
    first, last = calibrated[fewest], calibrated[most]
    missed, longer = lost(first, last), Estimate(last.took / max(first.took, 1e-9))
    size = f"the size of {counted(fewest)} is as good as that of {most}, {method}"
    ours = f"{first.nodes} against {last.nodes} nodes, {missed:.0%} of the throughput lost"
    took = f"{first.took:.0f} s against {last.took:.0f} s"
    return [
        Claim.of(size, "their number has little impact on the optimal length", ours, Way.LEVEL, Estimate(1 - missed)),
        Claim.of(
            f"{most} prompts take longer than {fewest}, {method}",
            "the time rises with their number",
            took,
            Way.ABOVE,
            longer,
        ),
    ]


def samples(methods: Mapping[str, Mapping[int, Calibration]]) -> Report:
    """By the method and the number of prompts."""
    claims = [claim for method, every in methods.items() if len(every) > 1 for claim in of_samples(method, every)]
    pictures: tuple[tuple[str, str, Callable[[Calibration], float]], ...] = (
        ("Best size", "g*", lambda one: float(one.nodes)),
        ("Tokens per round at the best size", "tokens/round", lambda one: values(one, one.nodes)[0]),
        ("Seconds at the best size", "ms", lambda one: 1000 * values(one, one.nodes)[1]),
        ("Time to calibrate", "seconds", lambda one: one.took),
    )
    panels = []
    for title, up, of in pictures:
        points = {name: [(float(n), of(one)) for n, one in every.items()] for name, every in methods.items()}
        panels.append(Panel(title, "prompts", up, [Curve(m, points[m], n) for n, m in enumerate(methods, start=1)]))
    rows = [
        calibrated_row(f"{method}, {counted(n)}", one) for method, every in methods.items() for n, one in every.items()
    ]
    return Report("UniSpec, Figure 6: calibration by samples", [(CALIBRATED, rows)], claims, [SECONDS], panels)
