"""Profiles on disk: measurements of a model on a machine, made once and read by the planners.

A file is named by the digest of its `Setup`, so a model has one for each type, device and number of threads. It is
written whole or not at all. One that cannot be read, or that other versions of the libraries measured, counts as absent
with a warning; measuring again replaces it.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline.errors import DamagedFile, InputError
from paceline.files import CACHE, cache_folder, exclusive, write_whole
from paceline.files.reading import DESCRIPTION, parse, read_file
from paceline.files.shape import shaped
from paceline.planning.acceptance import Acceptance
from paceline.planning.curve import CurveReading, Curves, with_reading
from paceline.planning.timing import Timing
from paceline.targets.setup import Setup, versions

FORMAT = 1


class Unreadable(DamagedFile):
    """A file that is no profile for this setup; the message is a sentence that says why."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The measurements of a model on a machine."""

    setup: Setup
    timings: tuple[Timing, ...]
    """Rounds without drafting and without reading best tokens."""
    readings: tuple[CurveReading, ...] = ()
    methods: tuple[Acceptance, ...] = ()
    versions: Mapping[str, str]
    when: str

    @classmethod
    def now(cls, setup: Setup, timings: tuple[Timing, ...], readings: tuple[CurveReading, ...] = ()) -> Profile:
        """Measured just now, by the libraries that are installed."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(setup=setup, timings=timings, readings=readings, versions=versions(), when=when)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, of which `load` makes the same again."""
        return {"format": FORMAT, **asdict(self)}

    def timings_with(self, top: int) -> tuple[Timing, ...]:
        """Rounds after which the ``top`` best tokens of every row are read."""
        return with_reading(self.timings, self.readings, top)

    def curves(self, top: int = 0) -> Curves:
        """Seconds by rows of such rounds."""
        return Curves(self.timings_with(top))

    @property
    def telling(self) -> bool:
        """Whether planners may begin with its timings: not where the rounds of every method were too few, for then the
        calibration as a whole was too short."""
        return not self.methods or any(method.enough for method in self.methods)

    def check(self) -> None:
        """Every method has its size for all that was timed."""
        timed = self.curves().keys
        for method in self.methods:
            sizes = [point.nodes for point in method.points]
            if sizes[:1] != [0] or sizes != sorted(set(sizes)):
                raise InputError(f"the points of {method.method} are not of sizes from 0 upwards")
            if any(choice.nodes > sizes[-1] for choice in method.choices):
                raise InputError(f"a size of {method.method} is larger than all that were tried")
            if sorted((choice.sequences, choice.length) for choice in method.choices) != timed:
                raise InputError(f"{method.method} lacks sizes for some of what was timed")

    def method(self, spec: str, draft: str = "") -> Acceptance | None:
        """The measurements of a method with this draft model."""
        known = (one for one in self.methods if (one.method, one.draft) == (spec, draft))
        return next(known, None)

    def with_methods(self, methods: tuple[Acceptance, ...]) -> Profile:
        """The profile with these methods added, or in place of what it had of them."""
        new = {(one.method, one.draft) for one in methods}
        return replace(self, methods=(*(m for m in self.methods if (m.method, m.draft) not in new), *methods))


def path_of(setup: Setup) -> Path:
    """The path of a setup's profile, whether there is one or not. InputError where no cache directory is known."""
    if (place := cache_folder()) is None:
        raise InputError(f"this user has no home folder to keep profiles in; name a folder with ${CACHE}")
    name = re.sub(r"[^\w.+-]+", "-", setup.model.rsplit("/", 1)[-1]).strip("-.")[:40]
    return place / "profiles" / f"{name}-{setup.digest}.json"


def find(setup: Setup) -> Profile | None:
    """The profile of this setup, if any. A file that cannot be used gives a warning and stays where it is."""
    try:
        return load(setup)
    except Unreadable as why:
        warnings.warn(str(why), stacklevel=2)
        return None


def load(setup: Setup) -> Profile | None:
    """The profile of this setup, if any; `Unreadable` where there is a file that cannot be used."""
    path = _kept(setup)
    if path is None:
        return None
    again = "'paceline calibrate' measures again"
    try:
        data = parse(read_file(path, DESCRIPTION))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Unreadable(f"the profile {path} cannot be read ({why}) and is ignored; {again}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise Unreadable(f"{path} is no profile of this version and is ignored; {again}")
    try:
        profile = shaped(Profile, {name: value for name, value in data.items() if name != "format"})
        profile.check()
    except ValueError as error:
        raise Unreadable(f"the profile {path} is damaged ({error}) and is ignored; {again}") from None
    if profile.setup.digest != setup.digest:
        raise Unreadable(f"{path} is the profile of {profile.setup.summary} and is ignored; {again}")
    if dict(profile.versions) != versions():
        old, new = (", ".join(f"{name} {v}" for name, v in v.items()) for v in (profile.versions, versions()))
        raise Unreadable(f"the profile {path} was measured with {old}, not {new}, and is ignored; {again}")
    return profile


def update(setup: Setup, change: Callable[[Profile | None], Profile]) -> tuple[Profile, Path]:
    """Write what ``change`` makes of the stored profile. Other processes that update it wait meanwhile, so that nothing
    they measured is lost; a profile that cannot be used counts as none."""
    path = path_of(setup)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(path.with_name(setup.digest)):  # the same weights may be kept under another name
            try:
                known = load(setup)
            except Unreadable:
                known = None
            profile = change(known)
            write_whole(path, json.dumps(profile.as_dict()))
            for other in path.parent.glob(f"*-{setup.digest}.json"):
                if other != path:
                    other.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot keep the profile {path}: {error.strerror}; name a folder with ${CACHE}") from None
    return profile, path


def _kept(setup: Setup) -> Path | None:
    """The file of a setup, whatever its model was called when it was measured."""
    if cache_folder() is None:
        return None
    path = path_of(setup)
    if path.exists():
        return path
    return next(iter(sorted(path.parent.glob(f"*-{setup.digest}.json"))), None)
