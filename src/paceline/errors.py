"""What can go wrong, as a tree: `except PacelineError` catches all that Paceline reports on purpose.

    PacelineError
    ├── InputError (ValueError)         a value, an option or a file that cannot be used
    │   ├── DamagedFile                 a file that is not as its program wrote it
    │   ├── UnwritableFile (OSError)    an output that cannot be written
    │   ├── UnsupportedModel            a model that cannot be sped up without changing its text
    │   └── MissingPackage              an optional package that is not installed
    └── Unavailable                     an optional part of a comparison that this machine does not have

The text of each is one sentence that names the wrong value and what to do about it. The command line prints it without
a traceback and ends with exit code 2. Any other exception is a defect of Paceline or of a library below it.
"""

from __future__ import annotations

from importlib.util import find_spec


class PacelineError(Exception):
    """All that Paceline reports on purpose."""


class InputError(PacelineError, ValueError):
    """A value, an option or a file that cannot be used; a user can correct it."""


class DamagedFile(InputError):
    """A file that is not as its program wrote it."""


class UnwritableFile(OSError, InputError):
    """An output that cannot be written. Made as an OSError is: of a number, a reason and the file."""

    def __str__(self) -> str:
        return f"cannot write {self.filename}: {self.strerror}"


class UnsupportedModel(InputError):
    """A model that cannot be sped up without changing its text."""


class MissingPackage(InputError):
    """An optional package that is not installed."""


class Unavailable(PacelineError):
    """A library to compare with, an energy meter or a data set that this machine does not have; a benchmark goes on
    without it."""


def need(package: str, purpose: str, extra: str) -> None:
    """Refuse work that needs a package which is not installed, before the work begins."""
    if find_spec(package) is None:
        raise MissingPackage(f"{purpose} needs {package}: pip install 'paceline[{extra}]'")
