"""The drafters of a model: made from settings, kept from text to text, disposed of when nothing uses them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, finalize

from paceline.api.settings import Settings
from paceline.drafters import Drafter
from paceline.drafters.asking import fit
from paceline.drafters.given import beside, joining
from paceline.drafters.sharing import Shared
from paceline.planning.base import Planner
from paceline.targets.base import Target
from paceline.vocabulary import Vocabulary

KEPT = 8
"""How many drafters are kept; the one goes first that was not used for the longest time."""
PLANNERS = 16
"""Planners that are kept of one drafter, beside the default one; the oldest goes first."""


class Lease:
    """A drafter that is kept or in use. One that was made here is disposed of with its last reference."""

    def __init__(self, drafter: Drafter, *, made_here: bool, named: Any = None) -> None:
        self.drafter = drafter
        self.named = named
        """The draft model that it was asked for with, held so that no other object comes by its identity."""
        if made_here:
            finalize(self, drafter.dispose)


class Planners:
    """Those of one drafter, by their specs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[str | None, Planner] = {}

    def keep(self, spec: str | None, planner: Planner) -> None:
        named = [known for known in self.known if known is not None]
        if spec is not None and len(named) >= PLANNERS:
            del self.known[named[0]]
        self.known[spec] = planner


class Drafters:
    """Drafters for one target, by what was asked for. Several threads may ask. A drafter that takes long to make, such
    as one that loads a model, is waited for by texts that ask for the same one, and by no other.

    It holds no target, so one may be kept beside a target that is held by nothing else.
    """

    def __init__(self) -> None:
        self._made: Shared[Lease] = Shared()
        self._kept: dict[Hashable, Lease] = {}
        self._planners: WeakKeyDictionary[Drafter, Planners] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def lease(
        self, settings: Settings, target: Target, vocabulary: Vocabulary | None, given: Collection[str] = ()
    ) -> Lease:
        """The drafter that settings ask for, fitted, with the sources of what the text is ``given``. One named by a
        spec is kept with what it learns across texts."""
        if isinstance(settings.method, Drafter):
            lease = Lease(beside(settings.drafter, given), made_here=False)
            fit(lease.drafter, target, vocabulary)
            return lease
        named = settings.draft_model
        model = str(named) if isinstance(named, (str, Path)) else id(named)
        given = joining(settings.spec, given)
        key = settings.spec, settings.draft_device, model, given

        def make() -> Lease:
            lease = Lease(beside(settings.drafter, given), made_here=True, named=named)
            fit(lease.drafter, target, vocabulary)
            return lease

        lease = self._made.get(key, make)
        gone: list[Lease] = []  # disposed of without the lock
        with self._lock:
            if (before := self._kept.pop(key, None)) is not None:
                gone.append(before)
            while len(self._kept) >= KEPT:
                gone.append(self._kept.pop(next(iter(self._kept))))
            self._kept[key] = lease
        return lease

    def planner(self, settings: Settings, drafter: Drafter, target: Target) -> Planner:
        """The planner that settings ask for. One named by a spec is shared by all texts of its drafter, called once for
        those that are written together, and keeps what it learns."""
        if isinstance(settings.planner, Planner):
            return settings.planner
        with self._lock:
            own = self._planners.setdefault(drafter, Planners())
        with own.lock:
            if settings.planner not in own.known:
                own.keep(settings.planner, settings.planner_for(drafter, target))
            return own.known[settings.planner]

    def clear(self) -> None:
        """Keep none. Those in use are disposed of after their texts."""
        with self._lock:
            gone, self._kept, self._made = self._kept, {}, Shared()
            self._planners.clear()
        gone.clear()
