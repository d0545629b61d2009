"""The same count on many machines, by Ray: blocks of the corpus are counted apart, then each part of all is summed.

The corpus is read here and sent out, so that no other machine needs its files. Each part comes back as the most
frequent n-grams of that part only, among which are those of the whole.
"""

from __future__ import annotations

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
    address: str | None = None,
    advance: Advance | None = None,
) -> Counts:
    """What `count` gives, to the last n-gram. `memory` and `folder` are those of one task. Without an address, or a
    cluster that this process is part of already, one is started on this machine."""
    need("ray", "counting on a cluster", "cluster")
    need("duckdb", "counting", "dict")
    import ray

    check_wishes(order, min_count, limit)
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
            counted_blocks.append(count_block.remote(block, order, memory, folder))
            running.append(counted_blocks[-1][0])
        wishes = (order, min_count, limit, memory, folder)
        parts = [
            sum_part.remote(part, wishes, *tables) for part, tables in enumerate(zip(*counted_blocks, strict=True))
        ]
        return _whole(ray.get(parts), *wishes)
    except BaseException:
        for reference in running:
            ray.cancel(reference, force=True)
        raise


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


def _join(address: str | None) -> None:
    import ray

    try:
        ray.init(address=address, log_to_driver=False)
    except ConnectionError as error:
        raise ValueError(f"there is no Ray cluster at {address}: {str(error).splitlines()[0]}") from None


def _counted_block(lines: pa.Table, order: int, memory: str, folder: Path | None) -> list[pa.Table]:
    """The n-grams of a block, those of each part by themselves."""
    import pyarrow.compute as pc

    with Engine(memory, 1, folder) as engine:
        batches = lines.cast(schema_of_lines()).to_batches()
        engine.register("lines", engine.stream(iter(batches), schema_of_lines()))
        engine.run(f"CREATE TEMP TABLE chunk AS {counted('lines', order)}")
        table = engine.table(parted("chunk"))
    return [table.filter(pc.equal(table["part"], part)) for part in range(PARTS)]


def _summed_part(part: int, wishes: tuple[int, int, int, str, Path | None], *tables: pa.Table) -> Counts:
    import pyarrow as pa

    order, min_count, limit, memory, folder = wishes
    with Engine(memory, 1, folder) as engine:
        engine.register("chunks", pa.concat_tables(tables))
        engine.run(f"CREATE TEMP TABLE grams AS {numbered(summed('chunks', part))}")
        return selected(engine, order, min_count, limit)


def _whole(parts: list[Counts], order: int, min_count: int, limit: int, memory: str, folder: Path | None) -> Counts:
    import pyarrow as pa

    with Engine(memory, None, folder) as engine:
        engine.register("parts", pa.concat_tables([part.grams for part in parts]))
        engine.run(f"CREATE TEMP TABLE grams AS {numbered('SELECT * FROM parts')}")
        found = selected(engine, order, min_count, limit)
    distinct = {words: sum(part.distinct[words] for part in parts) for words in found.distinct}
    return Counts(found.grams, sum(part.words for part in parts), distinct)
