"""What must be known before the numbers of a run are believed: sentences, the gravest first.

"Unstable" always stands with its reason: times of the same text that differ, a machine that got slower, rounds that
stalled, an interval that is wide.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.bench.run.record import Record, Verdict
from paceline.bench.statistics import difference
from paceline.bench.summary import Summary

STABLE = 1.3
"""Ratio of slowest to fastest time for the same text up to which a measurement counts as stable."""
DRIFT = 1.1
"""Ratio of plain decoding's speeds at the two ends of a run, likewise."""
WIDE = 0.1
"""Half an interval, as a share of its speed-up, likewise."""
UNKNOWN = 1.0
"""Likewise, from where an interval says nothing."""
STALLED = 0.01
"""Share of rounds that stalled, likewise."""
WARM_UP = {
    Verdict.NEAR_TIE: "a near tie of the arithmetic",
    Verdict.BUG: "rounding does not explain it, so this is a bug",
    Verdict.DIFFERENT: "rounding does not explain it, so it writes another text",
    Verdict.NOT_RESCORED: "the place could not be scored again, so nobody can tell a near tie from a bug",
}
GRAVE = {
    Verdict.BUG: "and rounding does not explain it: this is a bug",
    Verdict.DIFFERENT: "and it is another library's, so nobody can tell a near tie from a mistake",
    Verdict.NOT_RESCORED: "and the place could not be scored again, so nobody can tell a near tie from a bug",
}


def doubts(summary: Summary) -> list[str]:
    """All that there are."""
    if not summary.run.records:
        return ["not a single text is finished"]
    findings = (_texts, _whole, _sittings, _stability, _stalls, _loops, _work, _energy)
    return [told for finding in findings for told in finding(summary)]


def _texts(summary: Summary) -> Iterator[str]:
    """Texts that are not plain decoding's."""
    for verdict, meaning in GRAVE.items():
        for entry in summary.entries:
            found = [record for record in summary.records(entry) if record.verdict is verdict]
            if found:
                first, count = found[0], _counted(len(summary.records(entry)), "text")
                where = "" if first.parts_at is None else f", from token {first.parts_at + 1} on"
                yield (
                    f"{entry} wrote another text than {summary.entries[0]} in {len(found)} of {count} (first "
                    f"{first.prompt}{where}), {meaning}"
                )
    for entry in summary.entries:
        ties = sum(record.verdict is Verdict.NEAR_TIE for record in summary.records(entry))
        if ties:
            yield (
                f"{_counted(ties, 'text')} of {entry} part from {summary.entries[0]}'s at a near tie of the "
                "arithmetic, so not the same work was done"
            )


def _whole(summary: Summary) -> Iterator[str]:
    """What is not there."""
    about = summary.run.about
    if not about.finished:
        done = len({(record.unit, record.repeat) for record in summary.run.records})
        yield f"not finished: {done} of {about.workload.get('units', '?')} units are written"
    for name, why in about.missing.items():
        yield f"{name} is missing: {why}"
    shortened = about.workload.get("shortened", [])
    if shortened:
        yield f"{_counted(len(shortened), 'prompt')} lost the beginning, for the model's context is too short"


def _sittings(summary: Summary) -> Iterator[str]:
    """A run that went on somewhere else, or later with other software, or on a machine with other work."""
    sittings = summary.run.about.sittings
    for name, values in _facts(sittings).items():
        if len(values) > 1:
            yield f"{len(sittings)} sittings differ in {name}: {' and '.join(values)}"
    for sitting in sittings if _timed(summary) else ():
        load, cores = sitting.get("load"), (sitting.get("machine") or {}).get("cores")
        if load and cores and load > cores / 2:
            yield f"the machine was at work when a sitting began: load {load:g} on {_counted(cores, 'core')}"


def _facts(sittings: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """What sittings should have in common -> the values that occur."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for sitting in sittings:
        for group in ("versions", "machine", "git"):
            for name, value in (sitting.get(group) or {}).items():
                found[f"the state of the sources ({name})" if group == "git" else name][str(value)] = None
        found["threads"][str(sitting.get("threads"))] = None
    return {name: list(values) for name, values in found.items()}


def _timed(summary: Summary) -> bool:
    """Whether there are times to doubt: a text that is replayed has none."""
    return any(record.speed for record in summary.run.records)


def _stability(summary: Summary) -> Iterator[str]:
    if not _timed(summary):
        return
    times = _times_of_texts(summary)
    again = [max(found) / min(found) for found in times.values() if len(found) > 1]
    if not again:
        yield "every text was written once, so how steady the machine is is not known"
    elif max(again) > STABLE:
        apart = sum(ratio > STABLE for ratio in again)
        yield (
            f"unstable: times of the same text differ by up to {max(again):.1f}x between repeats, of {apart} of "
            f"{len(again)} by more than {STABLE:g}x"
        )
    if (drift := _drift(summary)) is not None:
        change = f"{max(drift, 1 / drift):.2f}x {'slower' if drift < 1 else 'faster'}"
        yield f"unstable: {summary.entries[0]} was {change} at the end than at the beginning"
    yield from _intervals(summary)


def _times_of_texts(summary: Summary) -> dict[tuple[str, str, int], list[float]]:
    """Seconds per token, by entry, prompt and turn."""
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for record in summary.run.records:
        if record.speed:
            found[record.entry, record.prompt, record.turn].append(1 / record.speed)
    return found


def _drift(summary: Summary) -> float | None:
    """Plain decoding's speed in the last third of a run over that in the first, where the two differ by more than
    chance and than is tolerable. Thirds are taken task by task, since tasks differ in speed."""
    cells: dict[tuple[str, str, int], list[Record]] = defaultdict(list)
    for record in summary.records(summary.entries[0]):
        if record.speed:
            cells[record.task, record.language, record.turn].append(record)
    ratios = list[float]()
    for texts in cells.values():
        third = len(texts) // 3
        early, late = texts[:third], texts[-third:] if third else []
        ratios += [(last.speed or 1) / (first.speed or 1) for first, last in zip(early, late, strict=True)]
    if len(ratios) < 2:
        return None
    found = difference(ratios).ratio
    return found.value if found.excludes(1) and not 1 / DRIFT < found.value < DRIFT else None


def _intervals(summary: Summary) -> Iterator[str]:
    for entry in summary.entries:
        figures = summary.figures(entry)
        if figures is None or figures.speed_up is None:
            continue
        found = figures.speed_up
        if not found.bounded:
            yield f"{entry} wrote a single unit, so there is no interval around its speed-up"
        elif (width := (found.high - found.low) / 2 / found.value) > UNKNOWN:
            yield f"unstable: nothing is known of the speed-up of {entry}; more prompts would tell"
        elif width > WIDE:
            yield (
                f"unstable: the speed-up of {entry} is known to about {width:.0%} only; more prompts would narrow it"
            )
    sizes = Counter((record.task, record.language) for record in summary.records(summary.entries[0]) if not record.turn)
    repeats = 1 + max(record.repeat for record in summary.run.records)
    lone = sum(size == repeats for size in sizes.values())
    if 0 < lone < len(sizes) or (lone and len(sizes) > 1):
        yield f"{lone} of {len(sizes)} cells have a single prompt, and no interval"


def _stalls(summary: Summary) -> Iterator[str]:
    for entry in summary.entries:
        figures = summary.figures(entry)
        if figures is None or not figures.rounds or not figures.stalls:
            continue
        grave = figures.stalls > STALLED * figures.rounds
        yield (
            f"{'unstable: ' if grave else ''}{figures.stalls} of {_counted(figures.rounds, 'round')} of {entry} took "
            "more than five times the median round"
        )


def _loops(summary: Summary) -> Iterator[str]:
    figures = summary.figures(summary.entries[0])
    if figures is not None and figures.degenerate:
        yield (
            f"{figures.degenerate} of {figures.texts} texts of {summary.entries[0]} loop (more than a fifth of their "
            "8-grams are repeated), which flatters methods that look things up"
        )


def _work(summary: Summary) -> Iterator[str]:
    """What methods brought along or did not have to do."""
    recipe = summary.run.about.recipe
    if recipe.get("warm"):
        yield "methods kept what they learnt from prompt to prompt; later prompts had the help of earlier ones"
    if recipe.get("qps"):
        yield (
            f"prompts arrived, {recipe['qps']:g} a second: tokens per second and speed-ups hold the time in which "
            "nothing was written; what counts is how long each waited for its tokens"
        )
    if recipe.get("follow"):
        free = "" if all(entry.get("ours", True) for entry in summary.run.about.entries) else "; peers wrote freely"
        told = f"methods walked plain decoding's recorded text, so that all did the same work{free}"
        rates = [
            f"{entry} {figures.flips_per_1000:.1f}"
            for entry in summary.entries
            if (figures := summary.figures(entry)) is not None and figures.flips_per_1000
        ]
        yield told + (f"; per 1,000 tokens another would have been chosen: {', '.join(rates)}" if rates else "")
    for entry, found in summary.run.about.warm_up.items():
        if (verdict := found.get("verdict")) is not None:
            place = f"parted from {summary.entries[0]} at token {found['parts_at'] + 1} of the greedy warm-up"
            yield f"{entry} {place}: {WARM_UP.get(verdict, verdict)}"


def _energy(summary: Summary) -> Iterator[str]:
    energy = summary.run.about.energy
    if energy.get("source") not in (None, "none") and not energy.get("measured"):
        watts = energy.get("watts")
        power = "" if watts is None or not math.isfinite(watts) else f" of {watts:g} W"
        yield f"energy is an estimate from a stated power{power}, not measured"


def _counted(count: int, name: str) -> str:
    return f"{count} {name if count == 1 else name + 's'}"
