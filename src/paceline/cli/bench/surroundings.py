"""What is the same around all measurements: threads, and quiet from the libraries that are measured."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, getLogger


def add_threads(parser: argparse.ArgumentParser) -> None:
    """The number that `threads` takes."""
    parser.add_argument("--threads", type=int, metavar="N", help="threads of torch (default: as torch chooses)")


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Torch with so many threads meanwhile; None for as many as it chose."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def hushed() -> Iterator[None]:
    """Without what transformers tells of its own calls to itself, and the hub's library of every try."""
    from transformers.utils import logging

    hub = getLogger("huggingface_hub")
    before, level = logging.get_verbosity(), hub.level
    logging.set_verbosity_error()
    hub.setLevel(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
        hub.setLevel(level)
