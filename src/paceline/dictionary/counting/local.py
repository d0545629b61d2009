"""Counting on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.dictionary.corpus import Advance, Corpus
from paceline.dictionary.corpus.corpus import schema_of_lines
from paceline.dictionary.corpus.needs import need
from paceline.dictionary.counting.counts import Counts
from paceline.dictionary.counting.engine import Engine
from paceline.dictionary.counting.statement import HIGHEST_ORDER, counted, frequent, totals

if TYPE_CHECKING:
    import pyarrow as pa


def count(
    corpus: Corpus,
    *,
    order: int = 3,
    min_count: int = 1,
    limit: int = 2_000_000,
    memory: str = "2GB",
    threads: int | None = None,
    folder: Path | None = None,
    disk: str | None = None,
    advance: Advance | None = None,
) -> Counts:
    """The most frequent n-grams of up to `order` words, at most `limit` for each number of words.

    `memory` is for the counting; `folder` takes what does not fit, at most `disk` of it.
    """
    need("duckdb", "counting", "dict")
    need("pyarrow", "counting", "dict")
    check_wishes(order, min_count, limit)
    with Engine(memory, threads, folder, disk) as engine:
        engine.register("lines", engine.stream(corpus.batches(advance), schema_of_lines()))
        engine.run(f"CREATE TEMP TABLE grams AS {counted('lines', order)}")
        return selected(engine, order, min_count, limit)


def check_wishes(order: int, min_count: int, limit: int) -> None:
    if not 1 <= order <= HIGHEST_ORDER:
        raise ValueError(f"an n-gram has 1 to {HIGHEST_ORDER} words, not {order}")
    for name, wish in (("min_count", min_count), ("limit", limit)):
        if wish < 1:
            raise ValueError(f"{name} must be at least 1, not {wish}")


def selected(engine: Engine, order: int, min_count: int, limit: int) -> Counts:
    """What the engine's table of grams comes to."""
    found = {words: (distinct, times) for words, distinct, times in engine.rows(totals("grams"))}
    tables = [engine.table(frequent("grams", words, min_count, limit)) for words in range(1, order + 1)]
    distinct = {words: found.get(words, (0, 0))[0] for words in range(1, order + 1)}
    return Counts(joined(tables), found[1][1], distinct)


def joined(tables: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema([("gram", pa.string()), ("count", pa.int64())])
    return pa.concat_tables([table.cast(schema) for table in tables])
