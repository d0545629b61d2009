"""Counting on many machines, by Ray: blocks of the corpus are counted separately, then each part is summed over all.

This machine reads the corpus and sends it out, so no other machine needs the files. Each part returns only its most
frequent n-grams; the most frequent n-grams of the corpus are among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import need
from paceline_make.cluster import innermost, join
from paceline_make.dictionary.counting import (
    PARTS,
    TEXT_IN_MEMORY,
    NgramCounts,
    check_limits,
    counted,
    most_frequent,
    parted,
    summed,
    with_words,
)
from paceline_make.dictionary.database import Database, bytes_of
from paceline_make.texts.corpus import Corpus, schema_of_lines
from paceline_make.texts.lines import Advance

if TYPE_CHECKING:
    import pyarrow as pa

Limits = tuple[int, int, int]
"""Order, least count and limit."""
Resources = tuple[str, Path | None]
"""The memory of each task, and a folder for what does not fit."""
BLOCKS_PER_CPU = 2
"""Blocks in progress or waiting, per processor; more would only fill Ray's store."""


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
) -> NgramCounts:
    """The result of `count`, to the last n-gram. `memory` and `folder` are those of one task. `address` is
    that of `join`."""
    need("ray", "counting on a cluster", "cluster")
    need("duckdb", "counting", "dict")
    import ray

    check_limits(order, min_count, limit)
    limits, resources = (order, min_count, limit), (memory, folder)
    size = bytes_of("memory", memory) // TEXT_IN_MEMORY
    join(address)
    at_once = max(1, BLOCKS_PER_CPU * int(ray.cluster_resources().get("CPU", 1)))
    count_block = ray.remote(_counted_block).options(num_returns=PARTS)
    sum_part = ray.remote(_summed_part)
    blocks: list[list[Any]] = []
    running: list[Any] = []
    try:
        for block in _blocks(corpus.batches(advance), size):
            if len(running) == at_once:
                _, running = ray.wait(running)
            blocks.append(count_block.remote(block, order, resources))
            running.append(blocks[-1][0])
        parts = [
            sum_part.remote(part, limits, resources, *tables) for part, tables in enumerate(zip(*blocks, strict=True))
        ]
        return _whole(ray.get(parts), limits, resources)
    except BaseException as error:
        for reference in running:
            ray.cancel(reference, force=True)
        raise innermost(error) from None


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


def _counted_block(lines: pa.Table, order: int, resources: Resources) -> list[pa.Table]:
    """The n-grams of a block, a table for each part."""
    import pyarrow.compute as pc

    memory, folder = resources
    with Database(memory, 1, folder) as database:
        batches = lines.cast(schema_of_lines()).to_batches()
        database.register("lines", database.stream(iter(batches), schema_of_lines()))
        database.run(f"CREATE TEMP TABLE chunk AS {counted('lines', order)}")
        table = database.table(parted("chunk"))
    return [table.filter(pc.equal(table["part"], part)) for part in range(PARTS)]


def _summed_part(part: int, limits: Limits, resources: Resources, *tables: pa.Table) -> NgramCounts:
    return _selected(tables, summed("tables", part), limits, resources, 1)


def _whole(parts: list[NgramCounts], limits: Limits, resources: Resources) -> NgramCounts:
    found = _selected([part.grams for part in parts], "SELECT * FROM tables", limits, resources, None)
    distinct = {words: sum(part.distinct[words] for part in parts) for words in found.distinct}
    return NgramCounts(found.grams, sum(part.words for part in parts), distinct)


def _selected(
    tables: Sequence[pa.Table], grams: str, limits: Limits, resources: Resources, threads: int | None
) -> NgramCounts:
    import pyarrow as pa

    memory, folder = resources
    with Database(memory, threads, folder) as database:
        database.register("tables", pa.concat_tables(tables))
        database.run(f"CREATE TEMP TABLE grams AS {with_words(grams)}")
        return most_frequent(database, *limits)
