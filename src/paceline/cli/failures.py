"""What a failure says: one sentence for what a user can mend, nothing for a bug of ours, which keeps its traceback."""

from __future__ import annotations

import sys

from paceline.files.visible import one_line

OURS = "This is a defect of paceline, not a mistake of yours: please report it with the lines above."
"""The last line after the traceback of a failure that has no sentence."""


def sentence(error: BaseException) -> str | None:
    """The failure in one sentence; None where it is none of the user's."""
    if _out_of_memory(error):
        said = f" ({_one_line(error)})" if str(error) else ""
        return f"there is not enough memory{said}; take a smaller model or dtype, a shorter text, or fewer new tokens"
    if isinstance(error, OSError) and error.filename is not None:
        return one_line(f"{error.filename}: {error.strerror}")
    return _one_line(error) if isinstance(error, (ValueError, OSError)) else None


def _out_of_memory(error: BaseException) -> bool:
    """Torch has an error of its own for devices and none for the CPU; it is asked only where it is loaded."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    on_device = torch is not None and isinstance(error, torch.OutOfMemoryError)
    return on_device or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def _one_line(error: BaseException) -> str:
    return one_line(" ".join(str(error).split()))
