"""The section for repeating the run: recipe, machine, versions and sources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from paceline_lab.bench.report.blocks import Block, Group, Row, Table, Text
from paceline_lab.bench.report.words import NOTHING
from paceline_lab.bench.summary import Summary

BYTES = "_bytes"


def provenance(summary: Summary) -> Iterator[Block]:
    about, sittings = summary.run.about, summary.run.about.sittings
    small = {
        "Recipe": about.recipe,
        "Model": about.model,
        "Sources, by the first digits of their SHA-256": about.workload.get("sources"),
        "Energy": about.energy,
        "Warm-up": {name: _warmed(found) for name, found in about.warm_up.items()},
    }
    for n, sitting in enumerate(sittings, start=1):
        small["Session" if len(sittings) == 1 else f"Session {n} of {len(sittings)}"] = sitting
    yield Group([_contestant(entry) for entry in about.entries], "columns")
    if about.missing:
        yield _named("Asked for and missing", about.missing)
    yield _cells(about.workload.get("cells") or {})
    yield from (Text(f"{str(note).rstrip('.')}.") for note in about.workload.get("notes") or ())
    yield Group([_named(caption, data) for caption, data in small.items() if data], "columns")
    if command := next((s["command"] for s in sittings if s.get("command")), None):
        yield from (Text("To do it again:"), Text(str(command), "code"))


def _named(caption: str, data: Mapping[str, Any]) -> Table:
    rows = [Row(name.replace("_", " "), [value]) for name, value in _flat(data)]
    return Table(caption, ["", ""], rows, "words")


def _flat(data: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Names and values; a nested name begins with that of its parent."""
    found = list[tuple[str, str]]()
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{before}{name}: ")
        else:
            text = f"{value / 1e9:.1f} GB" if name.endswith(BYTES) and isinstance(value, int) else _value(value)
            found.append((f"{before}{name.removesuffix(BYTES)}", text))
    return found


def _value(value: Any) -> str:
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
    """The result of a warm-up: whether greedy texts are plain decoding's."""
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
