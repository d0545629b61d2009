"""Consent to run the Python code of a model or tokenizer (``auto_map`` in its configuration).

Such code can do anything on this machine, so it does not run by default. `paceline.load` takes consent for one model.
A command's ``--trust-remote-code`` holds for every model and tokenizer that the command opens, also for those named in
a method or opened by a peer, so it is kept here as long as the command runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import InputError

_all = False


def trusts_all() -> bool:
    """Whether all models may run their own code now."""
    return _all


@contextmanager
def trusting(everything: bool) -> Iterator[None]:
    """Give or refuse consent for all models inside, in all threads of this process."""
    global _all
    before, _all = _all, everything
    try:
        yield
    finally:
        _all = before


def is_unanswered(error: Exception) -> bool:
    """Whether transformers stopped because code would have to run without consent."""
    return isinstance(error, ValueError) and "trust_remote_code=True" in str(error)


def refusal(name: str) -> InputError:
    return InputError(
        f"{name} brings its own Python code, which is not run unless you say so: --trust-remote-code, "
        "or paceline.load(..., trust_remote_code=True)"
    )
