"""Methods against each other, and against parts of themselves: Tables 2, 6, 8, 10 and 17."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.compare import Between
from paceline.bench.run.record import Verdict
from paceline.bench.statistics import Estimate
from paceline.bench.studies.base import (
    HEAD,
    Calibrated,
    Calibrations,
    Drawing,
    Findings,
    Found,
    Setting,
    Sign,
    Stage,
    Study,
    Way,
    Wish,
    against,
    ratio,
    rounds_ratio,
    row,
    rows_of,
    rows_of_stages,
    speed_up,
    speed_ups,
    tokens_per_round,
    told,
)
from paceline.bench.summary import Summary

RIVALS = "lookahead", "spectra", "recycling"
UNCALIBRATED = 100
"""Nodes without calibration: ten for each of ten levels, what the paper's tree may hold."""
WITHOUT = {
    "without score estimation": "scores=false",
    "without tree expansion": "next=none,threshold=0",
}
"""Parts of UniSpec that can be switched off, and how."""
RUN = "run"


def with_options(method: str, options: str) -> str:
    """A method's spec with further options."""
    return f"{method}{',' if ':' in method else ':'}{options}"


def sized(method: str, calibrated: Calibrated | None) -> str:
    """A method at the size that its calibration found; at its own where there is none."""
    return method if calibrated is None else f"{method}@fixed:{calibrated.nodes}"


def looked_at(found: Found) -> str:
    """The entry of the method that a study looks at, at the size that was calibrated for it."""
    return sized(found.setting.method, found.calibrated.get(found.setting.method))


def own_size(setting: Setting) -> list[Wish]:
    """The method's best size on this machine."""
    return [Wish(label=setting.method, method=setting.method)]


def size_note(found: Found) -> list[str]:
    """What `sized` gave the method, if anything was calibrated."""
    own = found.calibrated.get(found.setting.method)
    return [] if own is None else [f"the calibrated size is {own.nodes}"]


# --- Table 2 ---


def _ablated(setting: Setting, calibrated: Calibrations) -> dict[str, str]:
    whole = calibrated.get(setting.method)
    fixed = {"without calibration": f"{setting.method}@fixed:{UNCALIBRATED}"}
    return fixed | {name: sized(with_options(setting.method, option), whole) for name, option in WITHOUT.items()}


def _ablation(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    whole = sized(setting.method, calibrated.get(setting.method))
    return [Stage(name=RUN, methods=(whole, *_ablated(setting, calibrated).values(), "recycling"))]


def _read_ablation(found: Found) -> Findings:
    summary, whole, parts = found.runs[RUN], looked_at(found), _ablated(found.setting, found.calibrated)
    names = {whole: "whole", **{entry: name for name, entry in parts.items()}}
    papers = {"without calibration": 1.61, "without score estimation": 1.48, "without tree expansion": 1.66}
    signs = [
        Sign(
            claim=f"{name}, it is slower",
            paper=f"{papers[name]:.2f}x against 1.96x",
            ours=against(summary, entry, whole),
            wants=Way.BELOW,
            ratio=ratio(summary, entry, whole),
        )
        for name, entry in parts.items()
    ]
    signs += [
        _tokens("without calibration, rounds bring more", "2.76 against 2.58", summary, parts, whole, 0, Way.ABOVE),
        _tokens("without tree expansion, rounds bring less", "2.20 against 2.58", summary, parts, whole, 2, Way.BELOW),
    ]
    return Findings(head=HEAD, rows=rows_of(summary, names), signs=signs, notes=size_note(found))


def _tokens(
    claim: str, paper: str, summary: Summary, parts: dict[str, str], whole: str, place: int, wants: Way
) -> Sign:
    part = list(parts.values())[place]
    ours = f"{tokens_per_round(summary, part):.2f} against {tokens_per_round(summary, whole):.2f} tokens"
    return Sign(claim=claim, paper=paper, ours=ours, wants=wants, ratio=rounds_ratio(summary, part, whole))


# --- Table 6 ---

TEMPERATURES = "0", "1.0"


def _at_temperatures(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    own = sized(setting.method, calibrated.get(setting.method))
    methods = tuple(dict.fromkeys((*RIVALS, own, "auto")))
    return [Stage(name=f"T={t}", methods=methods, options={"temperature": t}) for t in TEMPERATURES]


def _read_temperature(found: Found) -> Findings:
    method, entry, signs = found.setting.method, looked_at(found), list[Sign]()
    cold, warm = (found.runs.get(f"T={t}") for t in TEMPERATURES)
    if cold is not None and warm is not None:
        between = Between(cold.run, warm.run)
        moved = next(one for one in between.findings if one.entry == entry and one.task is None)
        signs.append(
            Sign(
                claim=f"{method} gains less at temperature 1 than at 0",
                paper="1.85x against 2.13x",
                ours=f"{told(speed_up(warm, entry))} against {told(speed_up(cold, entry))}",
                wants=Way.BELOW,
                ratio=moved.ratio,
            )
        )
    for summary, name, paper in ((cold, "0", "2.13x against 1.97x"), (warm, "1", "1.85x against 1.78x")):
        if summary is None:
            continue
        best = _best_rival(summary)
        signs.append(
            Sign(
                claim=f"at temperature {name} {method} is faster than the best of the others",
                paper=f"{paper} of recycling",
                ours=f"{against(summary, entry, best)} of {best}",
                wants=Way.ABOVE,
                ratio=ratio(summary, entry, best),
            )
        )
    notes = [*size_note(found), "a model that loops when it is greedy flatters whatever looks things up"]
    return Findings(head=HEAD, rows=rows_of_stages(found.runs), signs=signs, notes=notes)


def _best_rival(summary: Summary) -> str:
    return max(RIVALS, key=lambda entry: (speed_up(summary, entry) or Estimate(0.0)).value)


# --- Table 8 ---

BATCHES = 1, 2, 3, 4, 5
IN_BATCHES = (2.10, 2.07, 2.03, 1.90, 1.73)


def _in_batches(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    methods = (sized(setting.method, calibrated.get(setting.method)), "auto")
    limit = str(max(setting.prompts, BATCHES[-1]))
    return [Stage(name=f"batch {n}", methods=methods, options={"batch": str(n), "limit": limit}) for n in BATCHES]


def _read_batch(found: Found) -> Findings:
    runs = list(found.runs.values())
    method = runs[0].entries[1]
    first, last = speed_up(runs[0], method), speed_up(runs[-1], method)
    assert first is not None, "a stage without texts was not read"
    assert last is not None, "a stage without texts was not read"
    sign = Sign(
        claim="the speed-up falls from single texts to the largest batch",
        paper=f"from {IN_BATCHES[0]:.2f}x to {IN_BATCHES[-1]:.2f}x",
        ours=f"from {told(first)} to {told(last)}",
        wants=Way.BELOW,
        ratio=_over(last, first),
    )
    lines = speed_ups(runs[0].entries, [(float(name.split()[1]), run, None) for name, run in found.runs.items()])
    drawing = Drawing(title="Speed-up by batch", words=("texts at a time", "x plain"), lines=lines)
    rows, notes = rows_of_stages(found.runs), size_note(found)
    return Findings(head=HEAD, rows=rows, signs=[sign], notes=notes, drawings=[drawing])


def _over(one: Estimate, other: Estimate) -> Estimate:
    """The ratio of two estimates of different runs, bounded by the ends of both where both have ends."""
    if not (one.bounded and other.bounded):
        return Estimate(one.value / other.value)
    return Estimate(one.value / other.value, one.low / other.high, one.high / other.low)


# --- Table 10 ---

TYPES = "float32", "bfloat16", "float16"


def _in_types(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    methods = sized(setting.method, calibrated.get(setting.method)), "auto"
    return [Stage(name=t, methods=methods, options={"dtype": t, "free": None}) for t in TYPES]


def _read_precision(found: Found) -> Findings:
    rows, signs, gains = list[tuple[str, ...]](), list[Sign](), dict[str, Estimate]()
    for name, summary in found.runs.items():
        for entry in summary.entries[1:]:
            records = summary.records(entry)
            same = sum(record.verdict is Verdict.EQUAL for record in records)
            agree = sum(_agreeing(record.parts_at, len(record.tokens)) for record in records)
            tokens = sum(len(record.tokens) for record in records)
            share = f"{same} of {len(records)}", f"{agree / max(tokens, 1):.1%}"
            rows.append((*row(summary, entry, f"{name}  {entry}")[:4], *share, ""))
        gain = speed_up(summary, looked_at(found))
        if gain is not None:
            gains[name] = gain
        if name == "float32":
            equal = [record.verdict is Verdict.EQUAL for e in summary.entries[1:] for record in summary.records(e)]
            signs.append(
                Sign(
                    claim="in float32 texts are plain decoding's own",
                    paper="the scores of its texts are the same",
                    ours=f"{sum(equal)} of {len(equal)} texts are the same",
                    wants=Way.EVEN,
                    ratio=Estimate(1.0 if all(equal) else 0.0),
                )
            )
    if len(gains) > 1:
        first, *others = gains
        for other in others:
            signs.append(
                Sign(
                    claim=f"the speed-up of {other} is about that of {first}",
                    paper="2.12x in float16 and 2.09x in float32",
                    ours=f"{told(gains[other])} and {told(gains[first])}",
                    wants=Way.EVEN,
                    ratio=_over(gains[other], gains[first]),
                )
            )
    head = (*HEAD[:4], "same texts", "tokens before they part", "")
    return Findings(head=head, rows=rows, signs=signs)


def _agreeing(parts_at: int | None, tokens: int) -> int:
    return tokens if parts_at is None else min(parts_at, tokens)


# --- Table 17 ---


def _rivals_sizes(setting: Setting) -> list[Wish]:
    return [Wish(label=method, method=method) for method in RIVALS]


def _rivals(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    both = [name for method in RIVALS for name in (method, sized(method, calibrated.get(method)))]
    return [Stage(name=RUN, methods=tuple(dict.fromkeys(both)))]


PAPERS_RIVALS = {
    "lookahead": ("1.40x against 1.15x", "1.85 against 2.00"),
    "spectra": ("1.47x against 1.25x", "1.77 against 1.96"),
    "recycling": ("1.78x against 1.51x", "2.33 against 2.57"),
}


def _read_rivals(found: Found) -> Findings:
    summary, signs = found.runs[RUN], list[Sign]()
    for method in RIVALS:
        best = sized(method, found.calibrated.get(method))
        if best == method or summary.figures(best) is None or summary.figures(method) is None:
            continue
        speeds, tokens = PAPERS_RIVALS[method]
        signs.append(
            Sign(
                claim=f"{method} is faster at its calibrated size than at its own",
                paper=speeds,
                ours=f"{against(summary, best, method)} with {found.calibrated[method].nodes} nodes",
                wants=Way.ABOVE,
                ratio=ratio(summary, best, method),
            )
        )
        one, two = tokens_per_round(summary, best), tokens_per_round(summary, method)
        signs.append(
            Sign(
                claim=f"and its rounds bring less, {method}",
                paper=tokens,
                ours=f"{one:.2f} against {two:.2f} tokens",
                wants=Way.BELOW,
                ratio=rounds_ratio(summary, best, method),
            )
        )
    return Findings(head=HEAD, rows=rows_of(summary, {}), signs=signs)


STUDIES: Sequence[Study] = (
    Study(
        name="ablation",
        source="Table 2",
        summary="the method without calibration, without scores, without its tree expansion",
        wishes=own_size,
        stages=_ablation,
        read=_read_ablation,
    ),
    Study(
        name="temperature",
        source="Table 6",
        summary="methods at temperatures 0 and 1",
        wishes=own_size,
        stages=_at_temperatures,
        read=_read_temperature,
    ),
    Study(
        name="batch",
        source="Table 8",
        summary="one to five texts at a time",
        wishes=own_size,
        stages=_in_batches,
        read=_read_batch,
    ),
    Study(
        name="precision",
        source="Table 10",
        summary="texts and speed in float32, bfloat16 and float16, written freely",
        wishes=own_size,
        stages=_in_types,
        read=_read_precision,
    ),
    Study(
        name="rivals",
        source="Table 17",
        summary="other methods at their own and at their calibrated sizes",
        wishes=_rivals_sizes,
        stages=_rivals,
        read=_read_rivals,
    ),
)
