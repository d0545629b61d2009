"""The same count on many machines, by Ray: blocks of the corpus are counted apart, then each part of all is summed.

The corpus is read here and sent out, so that no other machine needs its files. Each part comes back as the most
frequent n-grams of that part only, among which are those of the whole.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.dictionary.corpus import Advance, Corpus
from paceline.dictionary.corpus.corpus import schema_of_lines
from paceline.dictionary.corpus.needs import need
from paceline.dictionary.counting.counts import Counts
from paceline.dictionary.counting.engine import Engine, bytes_of
from paceline.dictionary.counting.local import TEXT_IN_MEMORY, check_wishes, selected
from paceline.dictionary.counting.statement import PARTS, counted, numbered, parted, summed

if TYPE_CHECKING:
    import pyarrow as pa

Wishes = tuple[int, int, int]
"""Order, least count and limit."""
Place = tuple[str, Path | None]
"""What each task has for itself: memory, and a folder for what does not fit."""
BLOCKS_PER_CPU = 2
"""As many blocks wait or are counted for each processor; more would only fill the store."""


def count_on_cluster(
    corpus: Corpus,
    *,
    order: int = 3,
    min_count: int = 1,
    limit: int = 2_000_000,
    memory: str = "2GB",
    folder: Path | None = None,
    address: str = "local",
    advance: Advance | None = None,
) -> Counts:
    """What `count` gives, to the last n-gram. `memory` and `folder` are those of one task. `local` starts a
    cluster on this machine, whatever the environment names; a process that is part of one already stays there."""
    need("ray", "counting on a cluster", "cluster")
    need("duckdb", "counting", "dict")
    import ray

    check_wishes(order, min_count, limit)
    place = (memory, folder)
    size = bytes_of("memory", memory) // TEXT_IN_MEMORY
    if not ray.is_initialized():
        _join(address)
    at_once = max(1, BLOCKS_PER_CPU * int(ray.cluster_resources().get("CPU", 1)))
    count_block = ray.remote(_counted_block).options(num_returns=PARTS)
    sum_part = ray.remote(_summed_part)
    counted_blocks: list[list[Any]] = []
    running: list[Any] = []
    try:
        for block in _blocks(corpus.batches(advance), size):
            if len(running) == at_once:
                _, running = ray.wait(running)
            counted_blocks.append(count_block.remote(block, order, place))
            running.append(counted_blocks[-1][0])
        wishes = (order, min_count, limit)
        parts = [
            sum_part.remote(part, wishes, place, *tables)
            for part, tables in enumerate(zip(*counted_blocks, strict=True))
        ]
        return _whole(ray.get(parts), wishes, place)
    except BaseException as error:
        for reference in running:
            ray.cancel(reference, force=True)
        raise _innermost(error) from None


def _innermost(error: BaseException) -> BaseException:
    """What a task raised: Ray wraps it, once more for each task that waited for it, around a traceback as text."""
    from ray.exceptions import RayTaskError

    while isinstance(error, RayTaskError):
        error = error.cause
    return error


def _blocks(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.nbytes for one in waiting) >= size:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _join(address: str) -> None:
    import ray

    # one failed block fails every part, and Ray would print a traceback for each that nobody asks for any more
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise ValueError(f"there is no Ray cluster at {address}: {str(error).splitlines()[0]}") from None


def _counted_block(lines: pa.Table, order: int, place: Place) -> list[pa.Table]:
    """The n-grams of a block, those of each part by themselves."""
    import pyarrow.compute as pc

    memory, folder = place
    with Engine(memory, 1, folder) as engine:
        batches = lines.cast(schema_of_lines()).to_batches()
        engine.register("lines", engine.stream(iter(batches), schema_of_lines()))
        engine.run(f"CREATE TEMP TABLE chunk AS {counted('lines', order)}")
        table = engine.table(parted("chunk"))
    return [table.filter(pc.equal(table["part"], part)) for part in range(PARTS)]


def _summed_part(part: int, wishes: Wishes, place: Place, *tables: pa.Table) -> Counts:
    import pyarrow as pa

    memory, folder = place
    with Engine(memory, 1, folder) as engine:
        engine.register("chunks", pa.concat_tables(tables))
        engine.run(f"CREATE TEMP TABLE grams AS {numbered(summed('chunks', part))}")
        return selected(engine, *wishes)


def _whole(parts: list[Counts], wishes: Wishes, place: Place) -> Counts:
    import pyarrow as pa

    memory, folder = place
    with Engine(memory, None, folder) as engine:
        engine.register("parts", pa.concat_tables([part.grams for part in parts]))
        engine.run(f"CREATE TEMP TABLE grams AS {numbered('SELECT * FROM parts')}")
        found = selected(engine, *wishes)
    distinct = {words: sum(part.distinct[words] for part in parts) for words in found.distinct}
    return Counts(found.grams, sum(part.words for part in parts), distinct)
