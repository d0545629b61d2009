"""What is the same around all measurements: threads, and quiet from the libraries that are measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
    """Without what transformers tells of its own calls to itself."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
