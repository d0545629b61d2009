"""How far two runs are runs of the same thing: settings, model, machine, and the texts themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.bench.run.directory import Run
from paceline.bench.run.record import Record
from paceline.bench.texts import first_difference

WHO = ("methods", "peers", "limit", "tasks", "langs", "repeat")
"""What of a recipe says which texts there are, not what is in them."""
SAME_TEXT = ("temperature", "seed", "ignore_eos", "rule")
"""Where these, the model's weights and type are equal, an entry must write the same text."""


def differences(old: Run, new: Run) -> Iterator[str]:
    """A sentence for each thing that is not the same in both."""
    for name, was, now in _unequal(old.about.model, new.about.model):
        yield f"the model's {name} was {was} and is {now}"
    for name, was, now in _unequal(old.about.recipe, new.about.recipe):
        if name not in WHO:
            yield f"{name} was {was} and is {now}"
    for name, was, now in _unequal(_settings(old), _settings(new)):
        yield f"{name} was {was} and is {now}"
    for name, was, now in _unequal(_place(old), _place(new)):
        yield f"{name} was {was} and is {now}"
    for entry in [name for name in new.entries if name not in old.entries]:
        yield f"{entry} is only in {new.name}"
    for entry in [name for name in old.entries if name not in new.entries]:
        yield f"{entry} is only in {old.name}"


def texts(old: Run, new: Run, common: Mapping[str, Sequence[tuple[Record, Record]]]) -> Iterator[str]:
    """Which entries wrote other texts than before, where they must be the same; ``common`` are those that each wrote in
    both. A text that was shorter in one run is held against as much of the other."""
    if not same_text(old, new):
        return
    for entry, pairs in common.items():
        partings = [(one, parting) for one, two in pairs if (parting := _parting(one.tokens, two.tokens)) is not None]
        if partings:
            first, token = partings[0]
            yield (
                f"{len(partings)} of {len(pairs)} texts of {entry} are not the ones it wrote before, though seed, "
                f"weights and settings are: the first is {first.prompt}, from token {token + 1} on"
            )


def same_text(old: Run, new: Run) -> bool:
    """Whether an entry must have written the same texts in both."""
    settings = [[run.about.recipe.get(name) for name in SAME_TEXT] for run in (old, new)]
    models = [[run.about.model.get(name) for name in ("fingerprint", "dtype")] for run in (old, new)]
    return settings[0] == settings[1] and models[0] == models[1]


def _parting(one: list[int], two: list[int]) -> int | None:
    """The first token that differs, as far as both go."""
    length = min(len(one), len(two))
    return first_difference(one[:length], two[:length])


def _settings(run: Run) -> dict[str, Any]:
    """Of each entry, everything but its name, one by one."""
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


def _unequal(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What both know and say otherwise."""
    for name in old:
        if name in new and old[name] != new[name]:
            yield name, _said(old[name]), _said(new[name])


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not given" if value is None else str(value)
