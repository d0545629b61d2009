"""The tree of errors: `except PacelineError` catches every error that Paceline raises on purpose.

    PacelineError
    ├── InputError (ValueError)         a value, an option or a file that cannot be used: a user's mistake
    │   ├── DamagedFile                 a file that is not as its program wrote it
    │   ├── UnwritableFile (OSError)    an output that cannot be written
    │   ├── UnsupportedModel            a model that cannot be sped up without changing its text
    │   ├── MissingPackage              an optional package that is not installed
    │   └── ServingClosed               a serving that is closed and takes no more texts
    ├── DefectError (RuntimeError)      a part that did not do what it must
    │   ├── DrafterError                a drafter, or the planner of its drafts, that raised or gave no valid draft
    │   ├── CallbackError               a logits processor, a criterion, an observer or a progress callback that raised
    │   └── OutOfMemory (MemoryError)   no memory is left for the KV rows of a text
    ├── RankLost                        a process that computes a part of the model has ended, or does not answer
    └── Unavailable                     an optional part of a comparison that this machine does not have

The text of each is one sentence that names the wrong value and how to correct it. The command line prints it without a
traceback. It ends with exit code 2 for a user's mistake and with 1 for a defect; a defect of Paceline's own parts keeps
its traceback. Any other exception is a defect of Paceline or of a library below it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

PACKAGES = frozenset({"paceline", "paceline_lab", "paceline_make"})
SHOWN = 60
"""Characters of a wrong value in a message."""
P = ParamSpec("P")
T = TypeVar("T")


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


class ServingClosed(InputError):
    """A serving that is closed and takes no more texts."""


class DefectError(PacelineError, RuntimeError):
    """A part that did not do what it must. The part's own exception is the `__cause__`."""

    own = False
    """Whether the part is one of Paceline's, and not of a plug-in or of the calling program."""


class DrafterError(DefectError):
    """A drafter that raised or gave no valid draft, or a planner that raised."""

    part = ""
    """The part that failed, as the message begins; not yet named where a draft's own check raised."""
    reported = False
    """Whether the warning was given."""


class CallbackError(DefectError):
    """A logits processor, a stopping criterion, an observer or a progress callback that raised."""


class OutOfMemory(DefectError, MemoryError):
    """No memory is left for the KV rows of a text. The allocation's own exception is the `__cause__`."""


class RankLost(PacelineError):
    """A process that computes a part of the model has ended, or does not answer. The library's error is the
    `__cause__`. Not a RuntimeError: those are answered by computing the forward again, in another way."""


class DrafterWarning(UserWarning):
    """A drafter failed, and the text went on without drafts; the text is the same."""


class Unavailable(PacelineError):
    """A library to compare with, an energy meter or a data set that this machine does not have; a benchmark goes on
    without it."""


NO_MEMORY = "out of memory", "not enough memory", "can't allocate memory"
"""What libraries say whose exception is not a `MemoryError`."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception reports that an allocation failed."""
    said = str(error).lower() if isinstance(error, RuntimeError) else ""
    return isinstance(error, MemoryError) or any(words in said for words in NO_MEMORY)


def out_of_memory(error: BaseException) -> OutOfMemory:
    """The `OutOfMemory` of a text whose rows could not be opened or grown."""
    if isinstance(error, OutOfMemory):
        return error
    raised = OutOfMemory(
        "there is not enough memory for the KV rows of this text; write fewer texts at once, or shorter ones"
    )
    raised.__cause__ = error
    return raised


def is_own(part: object) -> bool:
    """Whether an object's class is one of Paceline's."""
    return part.__class__.__module__.partition(".")[0] in PACKAGES


def called(kind: str, part: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """The return value of a caller's function; its exception becomes a `CallbackError` that names the function."""
    try:
        return part(*given, **named)
    except CallbackError:
        raise  # of a callback inside this one, which is named already
    except Exception as error:
        raised = CallbackError(f"the {kind} {name_of(part)} failed: {reason(error)}")
        raised.own = is_own(part)
        raise raised from error


def name_of(part: object) -> str:
    """The name of a function, or of an object's class."""
    return getattr(part, "__qualname__", "") or type(part).__qualname__


def reason(error: BaseException) -> str:
    """An exception in a clause: its class and its message."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def first_line(error: BaseException) -> str:
    """A library's exception in a few words: an operating system's reason, the first line of the message, or at least
    the class."""
    why = getattr(error, "strerror", None) or str(error)
    return next(iter(why.strip().splitlines()), type(error).__name__)


def shown(value: object) -> str:
    """A wrong value in a message: its repr, cut at `SHOWN` characters."""
    said = repr(value)
    return said if len(said) <= SHOWN else f"{said[:SHOWN]}…"


def need(package: str, purpose: str, extra: str) -> None:
    """Refuse work that needs a package which is not installed, before the work begins."""
    if find_spec(package) is None:
        raise MissingPackage(f"{purpose} needs {package}: pip install 'paceline[{extra}]'")
