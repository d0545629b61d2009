"""Tables of what the parts found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from papers.device.findings import KEY, Finding
from papers.device.parts import fastest, timed
from papers.device.running import DONE, UNREADABLE, Kept, Part
from papers.report import Table

ROUNDS = ("rounds", "mirror", "energy")


def tables(parts: Sequence[Part], kept: Mapping[str, Kept]) -> list[Table]:
    """One of all parts, then those of each part that found something."""
    known = [(part, kept[part.name]) for part in parts if part.name in kept]
    head = ("part", "seconds", "found")
    rows = [(part.name, f"{one.seconds:.0f}", _in_words(part, one)) for part, one in known]
    return [(head, rows), *(table for part, one in known for table in _tables(part, one.findings))]


def notes(parts: Sequence[Part], kept: Mapping[str, Kept]) -> list[str]:
    """On which card and with which versions, of all parts, or of each where they differ."""
    where: dict[str, list[str]] = {}
    for part in parts:
        if part.name in kept and (about := kept[part.name].about):
            versions = ", ".join(f"{name} {about[name]}" for name in ("torch", "transformers", "python", "commit"))
            where.setdefault(f"{about['card']}, {versions}, {about['date']}", []).append(part.name)
    if len(where) == 1:
        return list(where)
    return [f"{place}: {', '.join(names)}" for place, names in where.items()]


def _in_words(part: Part, kept: Kept) -> str:
    found = part.said(kept.findings)
    return found if kept.state == DONE else "; ".join(filter(None, [kept.said, found]))


def _tables(part: Part, found: Sequence[Finding]) -> list[Table]:
    """Of a part; none if it said something else than it should."""
    try:
        return list(_of_part(part, found)) if found else []
    except UNREADABLE:
        return []


def _of_part(part: Part, found: Sequence[Finding]) -> Iterator[Table]:
    if part.kind == "tests" and found[-1]["failures"]:
        yield ("failed test", "why"), list(found[-1]["failures"].items())
    elif part.kind == "forwards":
        yield _forwards(part.name, found)
    elif part.kind in ROUNDS:
        yield _rounds(part.name, found)
        yield from _profiles(part.name, found)
    elif part.kind == "transformers":
        yield _theirs(part.name, found)
    elif part.kind == "loading":
        yield (part.name, "seconds"), [(str(one[KEY]), f"{one['seconds']:.2f}") for one in found]


def _forwards(name: str, found: Sequence[Finding]) -> Table:
    took = {(one["path"], one["rows"]): one["milliseconds"] for one in timed(found)}
    paths = list(dict.fromkeys(path for path, _ in took))
    best = fastest(found)
    rows = [
        (
            str(one["rows"]),
            *(f"{took[path, one['rows']]:.2f}" if (path, one["rows"]) in took else "" for path in paths),
            f"{one['least']:.2f}",
            f"{one['least'] / one['milliseconds']:.0%}",
            f"{one['milliseconds'] / best[0]['milliseconds']:.2f}",
        )
        for one in best
    ]
    return (f"{name}: rows", *(f"{path}, ms" for path in paths), "least, ms", "share of it", "x one row"), rows


def _rounds(name: str, found: Sequence[Finding]) -> Table:
    """Milliseconds of a round by what they were spent on. A first text begins with nothing loaded and nothing recorded;
    beside its seconds stands what its rounds took beyond those of later texts."""
    head = (f"{name}: method", "T", "draft, ms", "forward", "reading", "judging", "round", "rows", "tokens/round")
    more = ("tokens/s", "first text, s", "extra in rounds", "later texts, s", "J/token")
    return (*head, *more), [_round(one) for one in found if "temperature" in one]


def _round(one: Finding) -> Sequence[str]:
    start = str(one["method"]), f"{one['temperature']:g}"
    if "failed" in one:
        return *start, *[""] * 11, str(one["failed"])
    spent = (f"{one['milliseconds'][phase]:.2f}" for phase in ("draft", "score", "read", "judge", "round"))
    ratios = f"{one['rows']:.1f}", f"{one['tokens_per_round']:.2f}", f"{one['tokens_per_second']:.1f}"
    first = (f"{one['first_text_seconds']:.2f}", f"{one['extra_seconds']:.2f}") if one["fresh"] else ("", "")
    joules = "" if one["joules_per_token"] is None else f"{one['joules_per_token']:.3f}"
    return *start, *spent, *ratios, *first, f"{one['text_seconds']:.2f}", joules


def _profiles(name: str, found: Sequence[Finding]) -> Iterator[Table]:
    profiles = [one for one in found if "top_device" in one]
    if profiles:
        head = (f"{name}: profile of", "kernels a round", "device, ms", "host operations, ms", "round, ms")
        numbers = ("kernels", "device", "host", "wall")
        yield head, [(str(one["method"]), *(f"{one[number]:.2f}" for number in numbers)) for one in profiles]
    for one in profiles:
        for what in ("device", "host", "python"):
            if top := one[f"top_{what}"]:
                rows = [(str(at), f"{calls:.1f}", f"{took:.3f}") for at, calls, took in top]
                yield (f"{one['method']}: most time, {what}", "calls a round", "ms a round"), rows


def _theirs(name: str, found: Sequence[Finding]) -> Table:
    rows = [
        (str(one[KEY]), "", "", str(one["failed"]))
        if "failed" in one
        else (
            str(one[KEY]),
            f"{one['milliseconds']:.2f}",
            f"{one['tokens_per_second']:.1f}",
            f"{one['first_seconds']:.2f} s",
        )
        for one in found
    ]
    return (name, "ms a forward", "tokens/s", "first text"), rows
