"""Whether two runs are runs of the same thing: settings, model, machine, and the texts themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from paceline.bench.run.directory import Run

WHICH_TEXTS = ("methods", "peers", "limit", "tasks", "langs", "repeat")
"""Parts of a recipe that say which texts there are, not what is in them."""
SAME_TEXT = ("temperature", "seed", "ignore_eos", "rule")
"""Where these, the model's weights and type are equal, an entry must write the same text."""


def differences(old: Run, new: Run) -> Iterator[str]:
    """A sentence for each thing that differs."""
    yield from _unequal(*({f"the model's {k}": v for k, v in run.about.model.items()} for run in (old, new)))
    yield from _unequal(*({k: v for k, v in run.about.recipe.items() if k not in WHICH_TEXTS} for run in (old, new)))
    yield from _unequal(_settings(old), _settings(new))
    yield from _unequal(_place(old), _place(new))
    for one, other in ((new, old), (old, new)):
        yield from (f"{entry} is only in {one.name}" for entry in one.entries if entry not in other.entries)


def other_texts(old: Run, new: Run, common: pd.DataFrame) -> Iterator[str]:
    """Which entries wrote other texts than before, where they must be the same. ``common`` has the numbers of the texts
    that each wrote in both, ``text`` and ``text_base``. Of a text that was shorter in one run, only so much counts."""
    if not same_text(old, new):
        return
    for entry, pairs in common.groupby("entry", sort=False):
        partings = []
        for number, before in zip(pairs.text, pairs.text_base, strict=True):
            record = new.records[number]
            tokens = zip(record.tokens, old.records[before].tokens, strict=False)
            place = next((place for place, (one, other) in enumerate(tokens, start=1) if one != other), None)
            partings += [(record.prompt, place)] if place is not None else []
        if partings:
            prompt, place = partings[0]
            yield (
                f"{len(partings)} of {len(pairs)} texts of {entry} are not the ones it wrote before, though seed, "
                f"weights and settings are: the first is {prompt}, from token {place} on"
            )


def same_text(old: Run, new: Run) -> bool:
    """Whether an entry must have written the same texts in both."""
    settings = [[run.about.recipe.get(name) for name in SAME_TEXT] for run in (old, new)]
    models = [[run.about.model.get(name) for name in ("fingerprint", "dtype")] for run in (old, new)]
    return settings[0] == settings[1] and models[0] == models[1]


def _settings(run: Run) -> dict[str, Any]:
    """All facts of all entries."""
    return {
        f"{entry['name']}: {name}": value
        for entry in run.about.entries
        for name, value in entry.items()
        if name not in ("name", "ours")
    }


def _place(run: Run) -> dict[str, Any]:
    """Versions, machine, threads and the state of the sources when the run was begun."""
    first = run.about.sittings[0] if run.about.sittings else {}
    git = first.get("git") or {}
    return {
        **{f"the version of {name}": value for name, value in first.get("versions", {}).items()},
        **{f"the machine's {name}": value for name, value in first.get("machine", {}).items()},
        "the number of threads": first.get("threads"),
        "the commit": None if not git else (git.get("commit") or "") + (" with changes" if git.get("changed") else ""),
    }


def _unequal(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What both know and say differently."""
    for name in old:
        if name in new and old[name] != new[name]:
            yield f"{name} was {_said(old[name])} and is {_said(new[name])}"


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not given" if value is None else str(value)
