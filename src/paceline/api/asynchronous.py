"""The async twin of a stream: each step of the text runs in a thread of its own, and the event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.api.piece import Piece
    from paceline.api.writing import Writing


async def read_pieces(write: Callable[[], Writing]) -> AsyncGenerator[Piece, None]:
    """The pieces of a text that ``write`` begins. However this ends, the text is ended, too, and its rows given back,
    before it returns."""
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, "paceline-astream")
    writing: Writing | None = None
    try:
        writing = await loop.run_in_executor(thread, write)
        pieces = writing.pieces()
        while (piece := await loop.run_in_executor(thread, next, pieces, None)) is not None:
            yield piece
    finally:
        if writing is not None:
            writing.cancel()  # of an ended text this changes nothing
            closed = loop.run_in_executor(thread, pieces.close)
            thread.shutdown(wait=False)
            await asyncio.shield(closed)
        thread.shutdown(wait=False)
