"""Tables 5 and 7: the acceptance rate from which drafting pays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline_lab import Summary, read_run
from papers.bielik.formula import (
    EXACT,
    FORMS,
    PRINTED,
    Line,
    beta_of,
    exact_form,
    fitted,
    means,
    printed_form,
    round_cost,
    speed_up,
)
from papers.bielik.measured import DRAFTED, OWN, UNIT_NAMES, WRITTEN
from papers.charts import Curve, Panel
from papers.driver import Given
from papers.report import Claim, Report, Table
from papers.speeds import machine_of, model_of

SIZES = 2, 4, 6, 8
"""Draft lengths of Table 7."""
RATIO, BETA = 0.071, 0.19
"""Section 6.2: r, and what beta was fitted to be."""
MACHINE, BANDWIDTH = "M2 Pro", 200.0
TABLE5 = {
    ("Wikipedia", "Bielik-1.5B"): (0.440, 0.901),
    ("Wikipedia", "Llama-3.2-1B"): (0.383, 0.812),
    ("Wikipedia", "Qwen2.5-1.5B"): (0.408, 0.777),
    ("pl_alpaca", "Bielik-1.5B"): (0.402, 0.899),
    ("pl_alpaca", "Llama-3.2-1B"): (0.381, 0.820),
    ("pl_alpaca", "Qwen2.5-1.5B"): (0.422, 0.813),
    ("Synthetic", "Bielik-1.5B"): (0.528, 1.394),
    ("Synthetic", "Llama-3.2-1B"): (0.380, 0.852),
    ("Synthetic", "Qwen2.5-1.5B"): (0.425, 0.923),
}
"""Break-even with k = 2 and 4."""
TABLE7 = {2: 0.40, 4: 0.77}
"""Its measured row, and the two data points of section 6.2."""
TABLE11 = {"Bielik-1.5B": (0.206, 0.28), "Llama-3.2-1B": (0.417, 0.35), "Qwen2.5-1.5B": (0.450, 0.40)}
"""Acceptance and speed-up with k = 6."""
R2 = 0.78, 0.95
LENGTH = re.compile(r"(?<=[:,])length=(\d+),?")
"""The tokens of a draft in a method's spec."""
Points = Mapping[int, float]
"""Draft length -> break-even."""


# --- runs


@dataclass(frozen=True)
class Condition:
    """The texts of one method in one task and language, and the line through them."""

    dataset: str
    entry: str
    k: int | None
    """Tokens of a draft; None where a planner chooses."""
    modelled: bool
    """Whether a draft model makes the drafts, as the formula supposes."""
    points: Sequence[tuple[float, float]]
    gains: Sequence[float]
    """Of every point, its speed over plain decoding's of the same prompt."""
    line: Line | None
    paired: Line | None
    """The same of speeds over plain decoding's of the same prompt. A machine that slows down moves it less."""
    missing: str = ""
    """Why there is no line."""

    @property
    def method(self) -> str:
        return LENGTH.sub("", self.entry.partition("@fixed:")[0])


def opened(folder: Path) -> Summary:
    run = Summary(read_run(folder))
    recipe = run.run.about.recipe
    if (recipe.get("batch") or 1) > 1 or recipe.get("qps") is not None:
        raise ValueError(f"{folder} has texts in batches, which share one speed; give a run of one text at a time")
    if len(run.entries) < 2:
        raise ValueError(f"{folder} has plain decoding alone; give a run with a method that drafts")
    return run


def conditions(runs: Sequence[Summary], unit: str = DRAFTED) -> Iterator[Condition]:
    """Every method that drafts, in every task and language."""
    for run in runs:
        for task, language in run.cells():
            name = f"{task} {language}" if len(runs) == 1 else f"{run.run.name}: {task} {language}"
            for facts in run.run.about.entries[1:]:
                yield condition(run, task, language, name, facts, unit)


def condition(
    run: Summary, task: str, language: str, name: str, facts: Mapping[str, object], unit: str = DRAFTED
) -> Condition:
    """A prompt with its turns and repeats is one observation."""
    entry, planner = str(facts["name"]), str(facts.get("planner") or "")
    cell = run.texts[(run.texts.task == task) & (run.texts.language == language)]
    columns = ["drafted", "accepted", "emitted", "drafting_rounds", "decoded", "seconds_decode"]
    sums, plain = (cell[cell.entry == one].groupby("prompt")[columns].sum() for one in (entry, run.base))
    both = sums[sums.drafted > 0].join(plain.add_suffix("_base"), how="inner")
    both = both[(both.seconds_decode > 0) & (both.seconds_decode_base > 0) & (both.decoded > 0)]
    size = LENGTH.search(entry)
    k = int(size[1]) if size else int(planner.removeprefix("fixed:")) if planner.startswith("fixed:") else 0
    whole = {DRAFTED: both.drafted, OWN: k * both.drafting_rounds if k else both.drafted, WRITTEN: both.emitted}
    alpha, speed = both.accepted / whole[unit], both.decoded / both.seconds_decode
    base = both.decoded_base / both.seconds_decode_base
    line, paired, missing = None, None, ""
    try:
        line, paired = fitted(alpha, speed, base), fitted(alpha, speed / base, [1.0])
    except ValueError as why:
        missing = str(why) if facts.get("ours", True) else "another library does not report its drafts"
    modelled = facts.get("draft_model") is not None
    points = list(zip(alpha.tolist(), speed.tolist(), strict=True))
    return Condition(name, entry, k or None, modelled, points, (speed / base).tolist(), line, paired, missing)


def table5(found: Sequence[Condition]) -> Table:
    """Rows of data set and method, and a column for each draft length."""
    sizes = sorted({one.k or 0 for one in found}, key=lambda k: (k == 0, k))
    rows = dict.fromkeys((one.dataset, one.method) for one in found)
    cells = {(one.dataset, one.method, one.k or 0): one.line.said if one.line else "no line" for one in found}
    head = ("break-even [± 95%]", *(f"k = {k}" if k else "planned k" for k in sizes))
    return head, [(f"{dataset}  {m}", *(cells.get((dataset, m, k), "") for k in sizes)) for dataset, m in rows]


def lines(found: Sequence[Condition], r: float | None, beta: float | None) -> Table:
    """The lines themselves, and equation 5 at the mean acceptance."""
    head = (
        "TPS = a + b alpha",
        "texts",
        "acceptance",
        "tokens/s",
        "plain",
        "x plain",
        "by equation 5",
        "a",
        "b",
        "R²",
        "by pairs",
    )
    rows = list[Sequence[str]]()
    for one in found:
        if (line := one.line) is not None and one.paired is not None:
            formula = ""
            if one.modelled and one.k is not None and r is not None and beta is not None:
                formula = f"{speed_up(line.acceptance, one.k, r, beta):.2f}"
            speeds = (f"{line.speed:.1f}", f"{line.base:.1f}", f"{line.speed / line.base:.2f}", formula)
            fit = (f"{line.floor:.2f}", f"{line.slope:.2f}", "" if math.isnan(line.r2) else f"{line.r2:.2f}")
            rows.append(
                (
                    f"{one.dataset}  {one.entry}",
                    str(line.texts),
                    f"{line.acceptance:.1%}",
                    *speeds,
                    *fit,
                    one.paired.said,
                )
            )
    return head, rows


def table7(machine: str, bandwidth: float | None, measured: Points, formulas: Mapping[str, Points]) -> Table:
    sizes = sorted({*SIZES, *measured})
    rows = list[Sequence[str]]()
    for name, values in {"measured": measured, **formulas}.items():
        shown = [f"{100 * values[k]:.0f}%" if k in values else "" for k in sizes]
        rows.append((f"{machine} ({name})", "" if bandwidth is None else f"{bandwidth:g}", *shown))
    return ("break-even", "GB/s", *(f"k = {k}" for k in sizes)), rows


# --- reports


def by_formula(r: float, betas: Mapping[str, float], sizes: Iterable[int]) -> dict[str, dict[int, float]]:
    """Form of the break-even -> its value of each draft length."""
    sizes = list(sizes)
    return {f"{name}, beta = {beta:.2g}": {k: FORMS[name](k, r, beta) for k in sizes} for name, beta in betas.items()}


def panel(measured: Points, formulas: Mapping[str, Points]) -> Panel:
    curves = [Curve("measured", [*measured.items()], 0, dots=True)]
    curves += [Curve(name, [*values.items()], number) for number, (name, values) in enumerate(formulas.items(), 1)]
    return Panel("Break-even", "tokens of a draft", "acceptance rate", curves, level=1.0)


def pictures(found: Sequence[Condition]) -> Iterator[Panel]:
    """Texts and lines, a picture for each data set."""
    for dataset in dict.fromkeys(one.dataset for one in found):
        drawn = [(one, one.line) for one in found if one.dataset == dataset and one.line is not None]
        curves = list[Curve]()
        for number, (one, line) in enumerate(drawn, 1):
            ends = [min(x for x, _ in one.points), max(x for x, _ in one.points)]
            curves.append(Curve(one.entry, one.points, number, dots=True))
            curves.append(Curve("", [(x, line.floor + line.slope * x) for x in ends], number, marks=False))
        if drawn:
            yield Panel(dataset, "acceptance rate", "tokens/s", curves, level=drawn[0][1].base)


def of_runs(runs: Sequence[Summary], r: float | None, bandwidth: float | None, unit: str = DRAFTED) -> Report:
    found = list(conditions(runs, unit))
    points = [(one.k, one.line.break_even.value) for one in found if one.modelled and one.k and one.line]
    measured = means((k, alpha) for k, alpha in points)
    betas = {} if r is None or not measured else {name: beta_of(measured, r, form) for name, form in FORMS.items()}
    formulas = {} if r is None else by_formula(r, betas, sorted({*SIZES, *measured}))
    machine = ", ".join(dict.fromkeys(map(machine_of, runs)))
    tables = [table5(found), lines(found, r, betas.get(EXACT)), table7(machine, bandwidth, measured, formulas)]
    notes = [
        f"acceptance is {unit}",
        *remarks(found),
        *of_formula(points, measured, r),
        *dict.fromkeys(map(recipe, runs)),
    ]
    data = {"conditions": found, "ratio": r, "means": measured, "beta": betas, "break_even": formulas}
    panels = [*pictures(found), *([panel(measured, formulas)] if measured else [])]
    title = "Bielik, Tables 5 and 7: break-even acceptance"
    return Report(title, tables, list(claims_on_runs(found, measured)), notes, panels, data)


def claims_on_runs(found: Sequence[Condition], measured: Points) -> Iterator[Claim]:
    if len(measured) > 1:
        rising = list(measured.values()) == sorted(measured.values())
        ours = ", ".join(f"{alpha:.1%} with k = {k}" for k, alpha in measured.items())
        yield Claim("break-even rises with the draft length", "41.9% with k = 2, 85.0% with k = 4", ours, rising)
    known = [one.line.r2 for one in found if one.line is not None and not math.isnan(one.line.r2)]
    if known:
        ours = f"{min(known):.2f} to {max(known):.2f}"
        claim = "a line describes speed by acceptance, R²"
        yield Claim(claim, " to ".join(map(str, R2)), ours, min(known) >= R2[0])


def remarks(found: Sequence[Condition]) -> Iterator[str]:
    """Lines that are not there, or are doubtful."""
    for one in found:
        name = f"{one.dataset}, {one.entry}"
        if one.line is None:
            yield f"{name}: {one.missing}"
        elif math.isnan(one.line.break_even.value):
            yield f"{name}: speed does not rise with acceptance, so no acceptance suffices"
        elif one.line.texts == 2:
            yield f"{name}: two texts give a line without an interval"
        elif not one.line.certain:
            yield f"{name}: chance alone could give this slope, so its interval says little"


def of_formula(points: Sequence[tuple[int, float]], measured: Points, r: float | None) -> Iterator[str]:
    """The points that the formula was fitted to, or why it was not."""
    counted = sum(alpha <= 1 for _, alpha in points)
    if not points:
        yield "no line is of a draft model and a fixed draft length, which the formula is for"
    elif counted < len(points):
        yield f"{len(points) - counted} of {len(points)} lines have no break-even up to 100% and count in no mean"
    if r is None:
        yield "the formula needs --ratio R, the draft model's bytes over the target's; a run does not have them"
    elif measured:
        yield "beta is fitted to the measured row, by least squares over k"


def recipe(run: Summary) -> str:
    about = run.run.about
    asked = (f"{name} {about.recipe.get(name)}" for name in ("suite", "max_new_tokens", "temperature"))
    return f"{run.run.name}: {model_of(run)}, {', '.join(asked)}"


# --- the paper's own numbers


def percents(values: Iterable[float]) -> str:
    return ", ".join(f"{100 * value:.0f}%" for value in values)


def same(ours: Iterable[float], printed: Iterable[float]) -> bool:
    """Whether numbers are those of the paper, rounded to hundredths."""
    return [f"{one:.2f}" for one in ours] == [f"{one:.2f}" for one in printed]


def of_paper() -> Report:
    """The consequences of Tables 5, 7 and 11."""
    found = means((k, alpha) for row in TABLE5.values() for k, alpha in zip((2, 4), row, strict=True))
    betas = {name: beta_of(found, RATIO, form) for name, form in FORMS.items()}
    formulas = by_formula(RATIO, dict.fromkeys(FORMS, BETA), SIZES)
    rows = [(f"{dataset}  {m}", *(f"{100 * a:.1f}%" for a in row)) for (dataset, m), row in TABLE5.items()]
    rows.append(("mean, without the one above 100%", *(f"{100 * found[k]:.1f}%" for k in (2, 4))))
    tables = [(("break-even, as printed", "k = 2", "k = 4"), rows), table7(MACHINE, BANDWIDTH, found, formulas)]
    alone = [beta_of({k: alpha}, RATIO, printed_form) for k, alpha in found.items()]
    eleven = (f"{speed_up(a, 6, RATIO, BETA):.2f} of {name} ({x:.2f})" for name, (a, x) in TABLE11.items())
    notes = [
        f"the means give beta = {alone[0]:.2f} with k = 2 alone and {alone[1]:.2f} with k = 4 alone, by {PRINTED}",
        f"speed-up with k = 6 by equation 5, and in Table 11: {', '.join(eleven)}",
        "the intervals of Table 5 cannot be computed again: the paper prints no text's acceptance and speed",
    ]
    data = {"ratio": RATIO, "means": found, "beta": betas, "break_even": formulas}
    title = "Bielik, Tables 5 and 7: break-even acceptance, from the paper's own numbers"
    return Report(title, tables, claims_on_paper(found, betas), notes, [panel(found, formulas)], data)


def claims_on_paper(found: Points, betas: Mapping[str, float]) -> list[Claim]:
    """Which of the paper's numbers follow from one another."""
    own = beta_of(TABLE7, RATIO, printed_form)
    printed, exact = ([form(k, RATIO, BETA) for k in SIZES[:3]] for form in (printed_form, exact_form))
    lower = percents(printed_form(k, RATIO, 0.185) for k in (2, 4))
    squared, whole = BETA * 4**2, round_cost(4, RATIO, BETA)
    return [
        Claim(
            "beta fitted to the means of Table 5",
            "0.19",
            ", ".join(f"{beta:.2f} by {name}" for name, beta in betas.items()),
            same([betas[PRINTED]], [BETA]),
        ),
        Claim("beta fitted to the measured row of Table 7", "0.19", f"{own:.2f}", same([own], [BETA])),
        Claim(
            "the measured row of Table 7 has the means of Table 5",
            percents(TABLE7.values()),
            f"{percents(found.values())}; 40.8% and 77.7% are Qwen2.5-1.5B's on Wikipedia",
            same(found.values(), TABLE7.values()),
        ),
        Claim(
            f"the formula's row of Table 7 is {PRINTED}",
            "44%, 81%",
            f"{percents(printed[:2])}; beta = 0.185 gives {lower}",
            same(printed[:2], [0.44, 0.81]),
        ),
        Claim("break-even with k = 6", "121%", f"{percents(printed[2:])} by {PRINTED}", same(printed[2:], [1.21])),
        Claim(
            f"equation 5 is 1 at {PRINTED}",
            "equation 6",
            f"it is 1 at ((k + 1) r + beta k²) / k, {percents(exact)} with k = 2, 4, 6, for {percents(printed)}",
            same(exact, printed),
        ),
        Claim(
            "the overhead with k = 4 is 3.80 plain tokens",
            "3.80",
            f"beta k² is {squared:.3f}, and the whole round {whole:.3f}",
            any(same([one], [3.80]) for one in (squared, whole)),
        ),
    ]


def breakeven(given: Given) -> Report:
    """Tables 5 and 7: the acceptance rate from which drafting pays, fitted to texts and by the paper's formula.

    Without a run: what follows from the numbers that the paper prints. RUN is a folder of `paceline bench run`, one
    text at a time, or of `speed`, with methods whose drafts have a fixed size: `length=K` of the method, or else its
    planner as in `assistant@fixed:2`. Several folders are several data sets. Every prompt is an observation: an
    acceptance rate, and tokens per second. ``--unit`` says what acceptance is a share of.
    """
    for name in ("ratio", "bandwidth", "unit"):
        if getattr(given, name) is not None and not given.runs:
            raise ValueError(f"--{name} belongs to a run; give its folder")
    runs, unit = [opened(folder) for folder in given.runs], UNIT_NAMES[given.unit or "drafted"]
    if unit == WRITTEN and given.ratio is not None:
        raise ValueError("the formula is of drafted tokens; leave out --ratio, or give --unit drafted or k")
    return of_runs(runs, given.ratio, given.bandwidth, unit) if runs else of_paper()
