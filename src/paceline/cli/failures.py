"""The messages of commands about errors: one sentence for what a user can correct, and for a plug-in that failed, which
it names; a defect of Paceline's own keeps its traceback."""

from __future__ import annotations

import sys

from paceline.errors import DefectError, PacelineError
from paceline.files.visible import one_line

OURS = "This is a defect of paceline, not a mistake of yours: please report it with the lines above."
"""The last line after the traceback of a defect."""


def sentence(error: BaseException) -> str | None:
    """The error in one sentence; None for a defect of our own."""
    said = " ".join(str(error).split())
    if _out_of_memory(error):
        why = f" ({said})" if said else ""
        said = f"there is not enough memory{why}; take a smaller model or dtype, a shorter text, or fewer new tokens"
    elif isinstance(error, DefectError) and error.own:
        return None
    elif isinstance(error, PacelineError):
        pass
    elif isinstance(error, OSError) and error.filename is not None:
        said = f"{error.filename}: {error.strerror}"
    elif not isinstance(error, (ValueError, OSError)):  # libraries raise these for what users gave them
        return None
    return one_line(said)


def _out_of_memory(error: BaseException) -> bool:
    """Torch has its own error for devices and none for the CPU; it is looked up only if torch is loaded."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    on_device = torch is not None and isinstance(error, torch.OutOfMemoryError)
    return on_device or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
