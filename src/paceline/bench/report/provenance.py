"""The section that lets somebody else do it again: what was run, on what, by what, from what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.bench.report.blocks import Block, Code, Columns, Row, Section, Table, Text
from paceline.bench.report.words import NOTHING
from paceline.bench.summary import Summary


def provenance(summary: Summary) -> Section:
    about = summary.run.about
    small = [_named("Recipe", about.recipe), _named("Model", about.model)]
    if sources := about.workload.get("sources"):
        small.append(_named("Sources, by the first digits of their SHA-256", sources))
    if about.energy:
        small.append(_named("Energy", about.energy))
    if about.warm_up:
        small.append(_named("Warm-up", {name: _warmed(found) for name, found in about.warm_up.items()}))
    small += [_named(_sitting_title(n, len(about.sittings)), s) for n, s in enumerate(about.sittings, start=1)]
    blocks: list[Block] = [Columns([_contestant(entry) for entry in about.entries])]
    if about.missing:
        blocks.append(_named("Asked for and missing", about.missing))
    blocks.append(_cells(about.workload.get("cells") or {}))
    blocks += [Text(f"{str(note).rstrip('.')}.") for note in about.workload.get("notes") or ()]
    blocks.append(Columns(small))
    if command := next((s["command"] for s in about.sittings if s.get("command")), None):
        blocks += [Text("To do it again:"), Code(str(command))]
    return Section("provenance", "How it was made", blocks)


def _sitting_title(number: int, count: int) -> str:
    return "Sitting" if count == 1 else f"Sitting {number} of {count}"


def _named(caption: str, data: Mapping[str, Any]) -> Table:
    rows = [Row(name.replace("_", " "), [value]) for name, value in _flat(data)]
    return Table(caption, ["", ""], rows, words=True)


def _flat(data: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Names and values; what lies within is named with what it lies in."""
    found = list[tuple[str, str]]()
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{before}{name}: ")
        else:
            found.append((f"{before}{name}", value_told(value)))
    return found


def value_told(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _contestant(entry: Mapping[str, Any]) -> Table:
    whose = "a method" if entry.get("ours", True) else "another library"
    facts = {name: value for name, value in entry.items() if name not in ("name", "ours") and value is not None}
    return _named(f"{entry['name']}, {whose}", facts)


def _warmed(found: Any) -> Any:
    """What a warm-up showed: whether greedy texts are plain decoding's."""
    if not isinstance(found, Mapping) or "same" not in found:
        return found
    if found["same"]:
        return "plain decoding's greedy text"
    if "verdict" not in found:
        return "another text than plain decoding's, not looked into yet"
    return f"parts from it at token {found['parts_at'] + 1}: {found['verdict']}"


def _cells(cells: Mapping[str, Mapping[str, int]]) -> Table:
    languages = list(dict.fromkeys(language for counts in cells.values() for language in counts))
    rows = [
        Row(task, [str(counts[language]) if language in counts else NOTHING for language in languages])
        for task, counts in cells.items()
    ]
    return Table("Prompts of each cell of the suite", ["task", *languages], rows)
