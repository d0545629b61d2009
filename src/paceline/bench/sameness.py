"""Whether two runs are runs of the same thing: settings, model, machine, and the texts themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from paceline.bench.run.directory import Run

WHICH_TEXTS = ("methods", "peers", "limit", "tasks", "langs", "repeat")
"""Parts of a recipe that say which texts there are, not what is in them."""
SAME_TEXT = ("the model's fingerprint", "the model's dtype", "temperature", "seed", "ignore_eos", "rule")
"""Where these facts are equal, an entry must write the same text."""


def facts(run: Run) -> dict[str, Any]:
    """What a run was made of, by names in words: model, recipe, entries, and where it was begun."""
    about, first = run.about, next(iter(run.about.sittings), {})
    git = first.get("git") or {}
    entries = {
        f"{entry['name']}: {name}": value
        for entry in about.entries
        for name, value in entry.items()
        if name not in ("name", "ours")
    }
    return {
        **{f"the model's {name}": value for name, value in about.model.items()},
        **{name: value for name, value in about.recipe.items() if name not in WHICH_TEXTS},
        **entries,
        **{f"the version of {name}": value for name, value in first.get("versions", {}).items()},
        **{f"the machine's {name}": value for name, value in first.get("machine", {}).items()},
        "the number of threads": first.get("threads"),
        "the commit": None if not git else (git.get("commit") or "") + (" with changes" if git.get("changed") else ""),
    }


def differences(old: Run, new: Run) -> Iterator[str]:
    """A sentence for each fact that both runs have and that differs, and for each entry that only one has."""
    was, now = facts(old), facts(new)
    for name in was:
        if name in now and was[name] != now[name]:
            yield f"{name} was {_said(was[name])} and is {_said(now[name])}"
    for one, other in ((new, old), (old, new)):
        yield from (f"{entry} is only in {one.name}" for entry in one.entries if entry not in other.entries)


def other_texts(old: Run, new: Run, common: pd.DataFrame) -> Iterator[str]:
    """Which entries wrote other texts than before, where they must be the same. ``common`` has the numbers of the texts
    that each wrote in both, ``text`` and ``text_base``. Of a text that was shorter in one run, only so much counts."""
    was, now = facts(old), facts(new)
    if any(was.get(name) != now.get(name) for name in SAME_TEXT):
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


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not given" if value is None else str(value)
