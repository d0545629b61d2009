"""What a run says of itself: ``run.json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Required, TypedDict

from paceline.bench.run.record import Verdict
from paceline.errors import InputError
from paceline.files.shape import Amount, Bounds, Count

FORMAT = 2


class Recipe(TypedDict, total=False):
    """What is read of a run's options; each may be lacking in a run of an older version."""

    suite: str
    methods: list[str]
    peers: list[str]
    temperature: Amount | None
    seed: Annotated[int, Bounds(0, 2**64)]
    repeat: Count
    warm: bool
    batch: Count | None
    qps: Amount | None
    follow: bool | None


class Model(TypedDict, total=False):
    """What is read of the model that was measured."""

    model: str
    name: str
    dtype: str
    fingerprint: str
    device: str
    threads: Count
    ballast: str | None


class Entry(TypedDict, total=False):
    """What is read of a contestant."""

    name: Required[str]
    ours: bool
    method: str | None
    planner: str | None
    draft_model: str | None


class Written(TypedDict, total=False):
    """What is read of the workload."""

    suite: str
    cells: dict[str, dict[str, Count]] | None
    notes: list[str] | None
    sources: dict[str, str] | None
    units: Count
    shortened: list[str]


class WarmUp(TypedDict, total=False):
    """What a warm-up found: whether a greedy text is plain decoding's, and where it parts from it."""

    tokens: Count
    same: bool
    verdict: Verdict
    parts_at: Count


class Energy(TypedDict, total=False):
    """What is read of the meter."""

    source: str | None
    measured: bool
    watts: Amount | None


class Machine(TypedDict, total=False):
    """What is read of the machine."""

    cores: Count | None


class Git(TypedDict, total=False):
    """What is read of the sources."""

    commit: str | None
    changed: bool


class Sitting(TypedDict, total=False):
    """What is read of the time that a run was begun or went on."""

    started: str | None
    when: str | None
    command: str | None
    versions: dict[str, Any] | None
    machine: Annotated[dict[str, Any], Machine] | None
    load: Amount | None
    git: Annotated[dict[str, Any], Git] | None


@dataclass(kw_only=True)
class About:
    """What was run. ``recipe``, ``model``, ``entries`` and the meter of ``energy`` are the run's identity: it goes on
    only where they are equal."""

    recipe: Annotated[dict[str, Any], Recipe]
    """Every option that decides what is written and by whom: suite, methods, peers, limit, temperature, and so on."""
    model: Annotated[dict[str, Any], Model]
    """Name, dtype, fingerprint, device, and its shape where it carries ballast."""
    entries: list[Annotated[dict[str, Any], Entry]]
    """Of each contestant: ``name``, ``ours``, and its facts. The first is plain decoding."""
    workload: Annotated[dict[str, Any], Written]
    """``suite``, ``cells``, ``notes``, ``sources``, and ``units``: how many there are to write."""
    missing: dict[str, str] = field(default_factory=dict)
    """Contestants that were asked for and cannot take part -> why."""
    warm_up: dict[str, Annotated[dict[str, Any], WarmUp]] = field(default_factory=dict)
    """Entry -> what its warm-up found: whether it writes plain decoding's greedy text."""
    energy: Annotated[dict[str, Any], Energy] = field(default_factory=dict)
    """``source`` (nvml, rapl, powermetrics, stated, none), ``measured``, ``watts``."""
    sittings: list[Annotated[dict[str, Any], Sitting]] = field(default_factory=list)
    """Each time that it was begun or went on: when, versions, machine, threads, load, git state."""
    finished: bool = False
    format: int = FORMAT

    def check(self) -> None:
        """ValueError where parts that have the right shape do not go together."""
        names = [entry["name"] for entry in self.entries]
        if not names:
            raise InputError("'entries' is empty")
        if len(set(names)) < len(names):
            raise InputError(f"'entries' has {next(name for name in names if names.count(name) > 1)!r} twice")
        for name, found in self.warm_up.items():
            if "verdict" in found and "parts_at" not in found:
                raise InputError(f"it lacks 'warm_up.{name}.parts_at'")
