"""Standard streams as they may come: closed, or in an encoding that has not every character."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from paceline.errors import InputError
from paceline.files.visible import visible
from paceline.targets import hub

LIBRARIES = "torch|transformers|huggingface_hub|tokenizers|safetensors|accelerate|peft|compressed_tensors|torchao"
ASKED = "TRANSFORMERS_VERBOSITY"
"""An environment variable by which a user asks for the messages of transformers."""


def prepare() -> None:
    """Replace closed streams: input is empty, and what is written to standard error is dropped. A closed output is
    refused. Characters that an output's encoding lacks are written as escapes."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf8")  # noqa: SIM115  (it stands for a stream of the process)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf8")  # noqa: SIM115
    if sys.stdout is None:
        raise InputError("standard output is closed, so nothing can be printed; give it a terminal, a pipe or a file")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep what other libraries print for programmers off the terminal: progress bars, warnings, deprecations. Their
    errors pass. They may log names that they read in a model's files."""
    before, level = logging.getLogRecordFactory(), logging.root.manager.disable
    logging.setLogRecordFactory(_Visible)
    if ASKED not in os.environ:
        logging.disable(logging.WARNING)
    with warnings.catch_warnings(), hub.without_bars():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", module=rf"({LIBRARIES})(\.|$)")
        warnings.filterwarnings("ignore", message=r"(?s).*Triggered internally at")  # of torch's C++
        try:
            yield
        finally:
            logging.disable(level)
            logging.setLogRecordFactory(before)


@contextmanager
def muted(wanted: bool) -> Iterator[None]:
    """Drop all that is printed inside, if it is wanted: another process prints the same."""
    if not wanted:
        yield
        return
    with open(os.devnull, "w", encoding="utf8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


class _Visible(logging.LogRecord):
    def getMessage(self) -> str:  # noqa: N802  (the name that logging knows)
        return visible(super().getMessage())


def silence() -> None:
    """Drop what is still buffered for standard output: its reader has closed it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def speaks_unicode() -> bool:
    """Whether standard output can carry every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "").replace("_", "") == "utf8"
