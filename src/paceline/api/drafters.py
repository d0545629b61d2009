"""The drafters of a model: made from settings, kept from text to text, disposed of when nothing uses them."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, finalize

from paceline.api.settings import Settings
from paceline.drafters import Drafter
from paceline.drafters.asking import fit
from paceline.planning.base import Planner
from paceline.targets.base import Target
from paceline.vocabulary import Vocabulary

KEPT = 8
"""How many drafters are kept; the oldest goes first."""


class Lease:
    """A drafter that is kept or in use. One that was made here is disposed of with its last reference."""

    def __init__(self, drafter: Drafter, *, made_here: bool) -> None:
        self.drafter = drafter
        if made_here:
            finalize(self, drafter.dispose)


class Drafters:
    """Drafters for one target, by what was asked for. Several threads may ask.

    It holds no target, so one may be kept beside a target that is held by nothing else.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Lease, Any]] = {}
        self._planners: WeakKeyDictionary[Drafter, dict[str | None, Planner]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def lease(self, settings: Settings, target: Target, vocabulary: Vocabulary | None) -> Lease:
        """The drafter that settings ask for, fitted. One named by a spec is kept with what it learns across texts."""
        if isinstance(settings.method, Drafter):
            fit(settings.drafter, target, vocabulary)
            return Lease(settings.drafter, made_here=False)
        named = settings.draft_model
        key = settings.spec, settings.draft_device, str(named) if isinstance(named, (str, Path)) else id(named)
        gone: list[Any] = []  # disposed of without the lock
        with self._lock:
            if key not in self._kept:
                lease = Lease(settings.drafter, made_here=True)
                fit(lease.drafter, target, vocabulary)
                while len(self._kept) >= KEPT:
                    gone.append(self._kept.pop(next(iter(self._kept))))
                self._kept[key] = lease, named  # the model is held so that no other object comes by its identity
            return self._kept[key][0]

    def planner(self, settings: Settings, drafter: Drafter, target: Target) -> Planner:
        """The planner that settings ask for. One named by a spec is shared by all texts of its drafter, called once for
        those that are written together, and keeps what it learns."""
        if isinstance(settings.planner, Planner):
            return settings.planner
        with self._lock:
            known = self._planners.setdefault(drafter, {})
            if settings.planner not in known:
                known[settings.planner] = settings.planner_for(drafter, target)
            return known[settings.planner]

    def clear(self) -> None:
        """Keep none. Those in use are disposed of after their texts."""
        with self._lock:
            gone, self._kept = self._kept, {}
            self._planners.clear()
        gone.clear()
