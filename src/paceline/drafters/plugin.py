"""Methods of third parties: by an entry point of an installed package, or by a Python file that a spec names.

A package adds a method by an entry point of the group ``paceline.drafters``: its name is the method's name, its value a
`Drafter` class (or any callable that returns a drafter) whose keyword arguments are the method's options. A file needs
no packaging: ``./file.py:Class`` is the method, relative to the working directory, and without a class the only drafter
of the file. Both are imported when they are used, so a broken one breaks nothing else.
"""

from __future__ import annotations

import re
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.drafters.base import Drafter
from paceline.errors import DrafterError, InputError, PacelineError, reason

Factory = Callable[..., Drafter]

GROUP = "paceline.drafters"
IN_FILE = re.compile(r"([\"']?)(?P<path>[^:=\"']+\.py)\1(?::(?P<kind>[A-Za-z_]\w*))?(?::(?P<options>.*))?")
"""A method in a file, perhaps its class and its options."""


class PlugIn(ABC):
    """A method of others. It is called with the method's options, as a drafter's class is."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The method's name in a spec."""

    @abstractmethod
    def load(self) -> Factory:
        """The drafter's class, or the function that makes it; an `InputError` where it cannot be had."""

    def __call__(self, **options: Any) -> Drafter:
        factory = self.load()
        try:
            made = factory(**options)
        except PacelineError:
            raise
        except ValueError as error:
            raise InputError(f"method {self.name!r} refuses its options: {error}") from error
        except Exception as error:
            raise DrafterError(f"method {self.name!r} failed when it was made: {reason(error)}") from error
        if not isinstance(made, Drafter):
            what = f"method {self.name!r} gives a {type(made).__name__}"
            raise InputError(f"{what}, not a drafter; derive its class from paceline.Drafter")
        return made


@dataclass(frozen=True)
class Installed(PlugIn):
    """A method of an installed package."""

    entry: EntryPoint

    @property
    def name(self) -> str:
        return self.entry.name

    def load(self) -> Factory:
        try:
            factory: Factory = self.entry.load()
        except (Exception, SystemExit) as error:
            brought = f"method {self.name!r} ({self.entry.value})"
            raise InputError(f"the package that brings {brought} cannot be imported: {reason(error)}") from error
        if not callable(factory):
            what = f"method {self.name!r} is a {type(factory).__name__}"
            raise InputError(f"{what}, not a drafter; its entry point names a class")
        return factory


@dataclass(frozen=True)
class InFile(PlugIn):
    """A method in a Python file."""

    path: str
    kind: str | None
    """The drafter's class; None for the only one of the file."""

    @property
    def name(self) -> str:
        return self.path if self.kind is None else f"{self.path}:{self.kind}"

    def load(self) -> Factory:
        file = Path(self.path)
        try:
            about = file.stat()
            module = _module(self.path, file.resolve(), (about.st_mtime_ns, about.st_size))
        except FileNotFoundError:
            where = f"a path in a method begins at the working directory, {Path.cwd()}"
            raise InputError(f"there is no file {self.path}; {where}") from None
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from None
        return _only(self.path, module) if self.kind is None else _named(self.path, module, self.kind)


@cache
def _module(shown: str, path: Path, stamp: tuple[int, int]) -> ModuleType:
    """The module that a file makes; made again when the file was written again."""
    module = ModuleType(f"drafter_file_{path.stem}_{sha256(str((path, stamp)).encode()).hexdigest()[:8]}")
    module.__file__ = str(path)
    try:
        code = compile(path.read_bytes(), str(path), "exec")
        sys.modules[module.__name__] = module  # dataclasses look their module up
        exec(code, module.__dict__)
    except SyntaxError as error:
        raise InputError(f"{shown} is not valid Python: {error.msg} (line {error.lineno})") from error
    except OSError as error:
        if error.filename == str(path):
            raise
        raise _broken(shown, path, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(shown, path, error) from error
    return module


def _broken(shown: str, path: Path, error: BaseException) -> InputError:
    """The sentence about a file that raises when it is imported, with the last of its own lines."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(path) else line
        trace = trace.tb_next
    return InputError(f"{shown} cannot be imported: {reason(error)} (line {line})")


def _drafters(module: ModuleType) -> list[type[Drafter]]:
    """The drafters that a module itself defines, those for others to derive from apart."""
    kinds = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Drafter)]
    return [kind for kind in kinds if kind.__module__ == module.__name__ and not kind.__name__.startswith("_")]


def _only(shown: str, module: ModuleType) -> Factory:
    kinds = _drafters(module)
    if len(kinds) > 1:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise InputError(f"{shown} has several drafters, {names}; name one: {shown}:{kinds[0].__name__}")
    if not kinds:
        raise InputError(f"{shown} has no drafter; derive a class from paceline.Drafter")
    return kinds[0]


def _named(shown: str, module: ModuleType, name: str) -> Factory:
    found = getattr(module, name, None)
    if found is None:
        names = ", ".join(kind.__name__ for kind in _drafters(module)) or "none"
        raise InputError(f"{shown} has no class {name!r}; its drafters: {names}")
    if not isinstance(found, type) or not issubclass(found, Drafter):
        raise InputError(f"{name!r} of {shown} is not a drafter; derive the class from paceline.Drafter")
    return found


def installed(taken: Collection[str]) -> dict[str, Factory]:
    """The methods of installed packages by name, but for those whose names are ``taken``."""
    found: dict[str, Factory] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in taken or entry.name in found:
            package = f"of the package {entry.dist.name} " if entry.dist is not None else ""
            whose = "a built-in method" if entry.name in taken else "another plug-in"
            warnings.warn(f"method {entry.name!r} {package}is not used: {whose} has this name", stacklevel=2)
        else:
            found[entry.name] = Installed(entry)
    return found
