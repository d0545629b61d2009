"""Counting on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.dictionary.corpus import Advance, Corpus
from paceline.dictionary.corpus.corpus import schema_of_lines
from paceline.dictionary.corpus.needs import need
from paceline.dictionary.counting.counts import Counts
from paceline.dictionary.counting.engine import Engine
from paceline.dictionary.counting.statement import (
    HIGHEST_ORDER,
    PARTS,
    counted,
    counts_of,
    frequent,
    numbered,
    parted,
    summed,
    totals,
)

if TYPE_CHECKING:
    import pyarrow as pa

TEXT_IN_MEMORY = 32
"""Of the memory, the part that is text counted at once; its n-grams of three words take some 15 times as much."""
ROWS_TOGETHER = 1 << 15


def count(
    corpus: Corpus,
    *,
    order: int = 3,
    min_count: int = 1,
    limit: int = 2_000_000,
    memory: str = "2GB",
    threads: int | None = None,
    folder: Path | None = None,
    advance: Advance | None = None,
) -> Counts:
    """The most frequent n-grams of up to `order` words, at most `limit` for each number of words.

    `memory` is for the counting; `folder` takes what does not fit.
    """
    need("duckdb", "counting", "dict")
    need("pyarrow", "counting", "dict")
    check_wishes(order, min_count, limit)
    batches = corpus.batches(advance)
    with Engine(memory, threads, folder) as engine:
        first = next(batches)
        rest = _counted_chunk(engine, first, batches, order)
        if rest is None:
            engine.run(f"CREATE TEMP TABLE grams AS {numbered('chunk')}")
        else:
            _count_in_parts(engine, rest, batches, order)
        return selected(engine, order, min_count, limit)


def _counted_chunk(
    engine: Engine, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch], order: int
) -> pa.RecordBatch | None:
    """Count as many batches as go into memory, as the table `chunk`. What comes back is the next batch, if any."""

    def chunk() -> Iterator[pa.RecordBatch]:
        yield first
        size = first.nbytes
        while size < engine.memory // TEXT_IN_MEMORY and (batch := next(batches, None)) is not None:
            yield batch
            size += batch.nbytes

    engine.register("lines", engine.stream(chunk(), schema_of_lines()))
    engine.run(f"CREATE OR REPLACE TEMP TABLE chunk AS {counted('lines', order)}")
    return next(batches, None)


def _count_in_parts(
    engine: Engine, batch: pa.RecordBatch | None, batches: Iterator[pa.RecordBatch], order: int
) -> None:
    """Chunk after chunk is put on disk, cut into parts; then each part is summed over all chunks, by itself."""
    engine.write(parted("chunk"), "chunk-0.parquet", ROWS_TOGETHER)
    number = 1
    while batch is not None:
        batch = _counted_chunk(engine, batch, batches, order)
        engine.write(parted("chunk"), f"chunk-{number}.parquet", ROWS_TOGETHER)
        number += 1
    engine.run("DROP TABLE chunk")
    for part in range(PARTS):
        engine.write(numbered(summed(engine.files("chunk-*.parquet"), part)), f"part-{part}.parquet")
    engine.run(f"CREATE TEMP VIEW grams AS SELECT * FROM {engine.files('part-*.parquet')}")


def check_wishes(order: int, min_count: int, limit: int) -> None:
    if not 1 <= order <= HIGHEST_ORDER:
        raise ValueError(f"an n-gram has 1 to {HIGHEST_ORDER} words, not {order}")
    for name, wish in (("min_count", min_count), ("limit", limit)):
        if wish < 1:
            raise ValueError(f"{name} must be at least 1, not {wish}")


def selected(engine: Engine, order: int, min_count: int, limit: int) -> Counts:
    """What the engine's `grams` come to."""
    found = {words: (distinct, times) for words, distinct, times in engine.rows(totals("grams"))}
    tables = []
    for words in range(1, order + 1):
        least = max(min_count, _least(engine.rows(counts_of("grams", words)), limit))
        tables.append(engine.table(frequent("grams", words, least, limit)))
    distinct = {words: found.get(words, (0, 0))[0] for words in range(1, order + 1)}
    return Counts(joined(tables), found.get(1, (0, 0))[1], distinct)


def _least(counts: list[tuple[int, int]], limit: int) -> int:
    """The count of the last n-gram within the limit: rarer ones need not be sorted."""
    seen = 0
    for count, grams in counts:
        seen += grams
        if seen >= limit:
            return count
    return 1


def joined(tables: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema([("gram", pa.string()), ("count", pa.int64())])
    return pa.concat_tables([table.cast(schema) for table in tables])
