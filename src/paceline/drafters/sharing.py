"""Draft models, dictionaries and datastores are opened once in a process, however many drafters and texts use them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from threading import RLock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

Thing = TypeVar("Thing")


class Making:
    """Held by the thread that makes a thing, which may take minutes."""

    def __init__(self) -> None:
        self.lock = RLock()


class Shared(Generic[Thing]):
    """A cache of things by their keys, which keeps none alive by itself."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._known: WeakValueDictionary[Hashable, Thing] = WeakValueDictionary()
        self._making: WeakValueDictionary[Hashable, Making] = WeakValueDictionary()

    def get(self, key: Hashable, make: Callable[[], Thing]) -> Thing:
        """The thing of this key, made if there is none. Other threads that ask for it wait meanwhile. ``make`` asks for
        no other thing: two threads could wait for one another."""
        with self._lock:
            making = self._making.setdefault(key, Making())
        with making.lock:
            with self._lock:
                known = self._known.get(key)
            if known is None:
                known = make()
                with self._lock:
                    self._known[key] = known
            return known

    def drop(self, key: Hashable, thing: Thing) -> None:
        """Make the thing of this key again when it is next requested, unless it was replaced already. Its holders keep
        it."""
        with self._lock:
            if self._known.get(key) is thing:
                del self._known[key]


def stamp(place: str | Path) -> Hashable:
    """A value that changes when a file, or a file of a folder, is written again; the name alone if it is no path."""
    path = Path(place)
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        stats = [(file.name, file.stat()) for file in files]
    except OSError:  # opening it reports the error
        return str(place)
    return str(place), tuple((name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats)
