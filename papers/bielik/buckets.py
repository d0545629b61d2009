"""Tables 6 and 8 to 10: speed-up of prompts by their acceptance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from paceline_lab import Summary
from papers.bielik.breakeven import TABLE11, Condition, conditions, opened
from papers.bielik.measured import ALPACA, SYNTHETIC, UNIT_NAMES, WIKIPEDIA, WRITTEN, is_called
from papers.driver import Given
from papers.report import Claim, Report, Table
from papers.speeds import machine_of

EDGES = (0.3, 0.4, 0.5, 0.6, 0.7)
NAMES = ("< 30%", "30-40%", "40-50%", "50-60%", "60-70%", "> 70%")
MIDDLES = (0.25, 0.35, 0.45, 0.55, 0.65, 0.75)
"""Acceptance that stands for a bucket."""
NONE = math.nan
PRINTED: Mapping[tuple[str, str, int], Sequence[float]] = {
    (WIKIPEDIA, "Bielik-1.5B", 2): (0.78, 0.88, 1.03, 1.12, NONE, NONE),
    (WIKIPEDIA, "Llama-3.2-1B", 2): (0.79, 0.92, 1.04, 1.23, 1.59, NONE),
    (WIKIPEDIA, "Qwen2.5-1.5B", 2): (0.73, 0.89, 1.03, 1.20, 1.43, NONE),
    (WIKIPEDIA, "Bielik-1.5B", 4): (0.48, 0.54, 0.61, 0.71, 0.93, NONE),
    (WIKIPEDIA, "Llama-3.2-1B", 4): (0.43, 0.50, 0.57, 0.67, 0.82, 1.10),
    (WIKIPEDIA, "Qwen2.5-1.5B", 4): (0.34, 0.48, 0.59, 0.66, 0.81, 1.08),
    (SYNTHETIC, "Bielik-1.5B", 2): (0.74, 0.85, NONE, 1.21, NONE, NONE),
    (SYNTHETIC, "Llama-3.2-1B", 2): (0.83, 0.94, 1.08, 1.32, NONE, NONE),
    (SYNTHETIC, "Qwen2.5-1.5B", 2): (0.80, 0.90, 1.01, 1.18, NONE, NONE),
    (SYNTHETIC, "Bielik-1.5B", 4): (0.43, 0.47, 0.51, NONE, 0.81, NONE),
    (SYNTHETIC, "Llama-3.2-1B", 4): (0.46, 0.51, 0.61, 0.69, 0.82, 1.06),
    (SYNTHETIC, "Qwen2.5-1.5B", 4): (0.46, 0.51, 0.54, 0.64, 0.72, 1.06),
    (ALPACA, "Bielik-1.5B", 2): (0.77, 0.88, 1.01, 1.29, NONE, NONE),
    (ALPACA, "Llama-3.2-1B", 2): (0.83, 0.93, 1.04, 1.34, NONE, NONE),
    (ALPACA, "Qwen2.5-1.5B", 2): (0.79, 0.91, 1.01, 1.11, 1.46, NONE),
    (ALPACA, "Bielik-1.5B", 4): (0.47, 0.51, 0.57, 0.73, 1.10, NONE),
    (ALPACA, "Llama-3.2-1B", 4): (0.44, 0.51, 0.58, 0.66, 0.92, NONE),
    (ALPACA, "Qwen2.5-1.5B", 4): (0.43, 0.45, 0.51, 0.59, 0.81, 1.01),
}
"""Tables 8 to 10; Table 6 is the first half of Table 8."""
FORMS: Mapping[str, Callable[[float, int], float]] = {
    "1 + alpha k": lambda alpha, k: 1 + alpha * k,
    "1 / (1 - alpha)": lambda alpha, k: 1 / (1 - alpha),
}
"""Tokens of a round."""


def bucket(alpha: float) -> int:
    """Its number. A bucket has its lower end."""
    return sum(alpha >= edge for edge in EDGES)


def bucketed(one: Condition) -> list[list[float]]:
    """Speed-ups of a condition by bucket."""
    found: list[list[float]] = [[] for _ in NAMES]
    for (alpha, _), gain in zip(one.points, one.gains, strict=True):
        found[bucket(alpha)].append(gain)
    return found


def shown(gains: Sequence[float]) -> str:
    return f"{np.mean(gains):.2f} ({len(gains)})" if gains else "-"


def printed(one: Condition) -> Sequence[float]:
    """The paper's column of this data set, drafter and k; none where it has none."""
    for (dataset, drafter, k), values in PRINTED.items():
        model = one.entry.partition("model='")[2].partition("'")[0]
        if k == one.k and dataset in one.dataset and is_called(model, drafter):
            return values
    return ()


def of_runs(runs: Sequence[Summary], unit: str) -> Report:
    found = [one for one in conditions(runs, unit) if one.points]
    if not found:
        raise ValueError("no text has drafts, so none has an acceptance")
    tables = list[Table]()
    for dataset in dict.fromkeys(one.dataset for one in found):
        rows = list[Sequence[str]]()
        for one in (one for one in found if one.dataset == dataset):
            rows.append((one.method, str(one.k or "planned"), *map(shown, bucketed(one))))
            if paper := printed(one):
                rows.append(("  paper", str(one.k), *("-" if math.isnan(x) else f"{x:.2f}" for x in paper)))
        tables.append(((dataset, "k", *NAMES), rows))
    notes = [
        f"mean speed-up over plain decoding's text of the same prompt, and how many prompts; acceptance is {unit}",
        "the paper's data sets are not here; a run of `speed` names its stand-ins",
        *dict.fromkeys(map(machine_of, runs)),
    ]
    data = {"unit": unit, "buckets": [{"dataset": o.dataset, "entry": o.entry, "gains": bucketed(o)} for o in found]}
    return Report("Bielik, Tables 6 and 8 to 10: speed-up by acceptance", tables, list(claims(found)), notes, data=data)


def claims(found: Sequence[Condition]) -> Iterator[Claim]:
    for one in found:
        means = [(name, float(np.mean(gains))) for name, gains in zip(NAMES, bucketed(one), strict=True) if gains]
        if len(means) > 1 and one.k:
            first = next((name for name, gain in means if gain >= 1), "none")
            paper = {2: "40-50%", 4: "> 70%"}.get(one.k, "")
            claim = f"{one.dataset}, {one.method}, k = {one.k}: the first bucket that is faster than plain decoding"
            yield Claim(claim, paper, first, first == paper if paper else None)


# --- the paper's own numbers


def cost(alphas: Sequence[float], gains: Sequence[float], k: int, form: str) -> tuple[float, float]:
    """The cost of a round in plain tokens if it brings tokens by a form, and the distance of buckets from it: the root
    mean square of the logarithms."""
    logs = np.log([FORMS[form](alpha, k) / gain for alpha, gain in zip(alphas, gains, strict=True)])
    return float(np.exp(logs.mean())), float(logs.std())


def points(k: int) -> tuple[list[float], list[float]]:
    """Acceptance and speed-up of all the paper's buckets with a k; of k = 6 the three means of Table 11."""
    if k == 6:
        return [a for a, _ in TABLE11.values()], [x for _, x in TABLE11.values()]
    both = [(a, x) for (*_, n), row in PRINTED.items() if n == k for a, x in zip(MIDDLES, row, strict=True)]
    known = [(a, x) for a, x in both if not math.isnan(x)]
    return [a for a, _ in known], [x for _, x in known]


def of_paper() -> Report:
    fits = {(form, k): cost(*points(k), k, form) for form in FORMS for k in (2, 4, 6)}
    rows = [(form, *(f"{fits[form, k][0]:.2f} (off by {fits[form, k][1]:.1%})" for k in (2, 4, 6))) for form in FORMS]
    line, share = FORMS
    steps = {form: [f"{fits[form, k + 2][0] - fits[form, k][0]:.2f}" for k in (2, 4)] for form in FORMS}
    above = [key for key, row in PRINTED.items() if key[2] == 2 and not math.isnan(row[-1])]
    bound = "no text with k = 2 is above 70%"
    better = all(fits[share, k][1] < fits[line, k][1] for k in (2, 4, 6))
    ours = "; ".join(f"k = {k}: {fits[line, k][1]:.3f} against {fits[share, k][1]:.3f}" for k in (2, 4, 6))
    said = [
        Claim(f"buckets follow {line} tokens a round", "equation 5", f"{share} is nearer ({ours})", not better),
        Claim(bound, "", f"{len(above)} of 9 columns have one; as {WRITTEN} the most is 66.7%", None),
    ]
    notes = [
        "a bucket stands at its middle, the lowest at 25% and the highest at 75%; k = 6 has the means of Table 11",
        f"two more drafted tokens cost {' and '.join(steps[line])} plain tokens by {line}, as the k² of equation 5 has "
        f"it, and {' and '.join(steps[share])} by {share}: then the cost is a line in k",
        f"this suggests that the paper counted acceptance as {WRITTEN}, and not as its section 4.4 defines it",
    ]
    head = ("plain tokens that a round costs, if it brings", "k = 2", "k = 4", "k = 6")
    data = {"costs": [{"form": form, "k": k, "cost": c, "off": off} for (form, k), (c, off) in fits.items()]}
    title = "Bielik, Tables 6 and 8 to 10: speed-up by acceptance, from the paper's own numbers"
    return Report(title, [(head, rows)], said, notes, data=data)


def buckets(given: Given) -> Report:
    """Tables 6 and 8 to 10: speed-up of prompts by their acceptance, in buckets of 10 points.

    RUN is a folder of `speed` or `paceline bench run`, one text at a time. A prompt is one observation: its acceptance,
    and its speed over plain decoding's of the same prompt. Without a run: what the paper's buckets say of the unit of
    its acceptance. Where a round brings 1 + alpha k tokens (equation 5), speed rises with alpha in a line; where alpha
    is the share of the emitted tokens, a round brings 1 / (1 - alpha), and no text is above k / (k + 1).
    """
    if given.unit and not given.runs:
        raise ValueError("--unit belongs to a run; give its folder")
    runs = [opened(folder) for folder in given.runs]
    return of_runs(runs, UNIT_NAMES[given.unit or "drafted"]) if runs else of_paper()
