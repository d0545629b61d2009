"""Counts of the n-grams of a corpus.

A column ``line`` is cut into segments and each segment into two lists of equal length, its units ``u`` and its bare
words ``w``. The n-grams of n words are then, for every place i with n - 1 units after it::

    w[i] <tab> u[i+1] <tab> ... <tab> u[i+n-1]

A corpus that is too large for the memory is counted in chunks. Each chunk is written to disk in parts, by the hash of
its n-grams, and then each part is summed over all chunks by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import DamagedFile, InputError, need
from paceline.files import write_whole
from paceline.files.reading import parse, read_file
from paceline.files.shape import shaped
from paceline_make.dictionary.database import Database, quoted
from paceline_make.texts.corpus import Corpus, schema_of_lines
from paceline_make.texts.lines import Advance
from paceline_make.texts.words import TAB, in_re2, patterns

if TYPE_CHECKING:
    import pyarrow as pa

HIGHEST_ORDER = 8
TEXT_IN_MEMORY = 32
"""The memory over the text that is counted at once; its n-grams of three words take 15 times as much as the text."""
PARTS = 32
ROWS_TOGETHER = 1 << 15
"""Rows of a chunk that are written together; with more, each part would read rows of others."""
KEY = b"paceline.counts"
VERSION = 1


@dataclass(frozen=True)
class NgramCounts:
    """The most frequent n-grams of a corpus, and how many there were in all."""

    grams: pa.Table
    """Columns gram and count: those of fewer words first, then by falling count, then by the bytes of the gram."""
    words: int
    """All words of the corpus, each as often as it occurs."""
    distinct: dict[int, int]
    """Number of words -> how many different n-grams there were, whether they were kept or not."""

    def save(self, path: str | Path) -> None:
        """Write a file, all or nothing."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        said = {"version": VERSION, "words": self.words, "distinct": self.distinct}
        content = pa.BufferOutputStream()
        table = self.grams.replace_schema_metadata({KEY: json.dumps(said).encode()})
        pq.write_table(table, content, compression="zstd", write_page_checksum=True)
        write_whole(path, [content.getvalue()])

    @classmethod
    def load(cls, path: str | Path) -> NgramCounts:
        need("pyarrow", "reading counts", "dict")
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(pa.BufferReader(read_file(path)), page_checksum_verification=True)
            said = shaped(dict[str, Any], parse((table.schema.metadata or {}).get(KEY, b"{}")))
            if said.get("version") != VERSION or table.schema.names != ["gram", "count"]:
                raise ValueError("it holds no counts of this version of paceline")
            words, distinct = shaped(int, said.get("words")), shaped(dict[int, int], said.get("distinct"))
        except (pa.ArrowException, OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            raise DamagedFile(f"{path} can't be read as counts ({why})") from None
        return cls(table.replace_schema_metadata(None), words, distinct)


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
) -> NgramCounts:
    """The most frequent n-grams of up to `order` words, at most `limit` for each number of words. Counting takes at
    most `memory`; what does not fit is written to `folder`."""
    need("duckdb", "counting", "dict")
    need("pyarrow", "counting", "dict")
    check_limits(order, min_count, limit)
    batches = corpus.batches(advance)
    with Database(memory, threads, folder) as database:
        batch = _count_chunk(database, next(batches), batches, order)
        if batch is None:
            database.run(f"CREATE TEMP TABLE grams AS {with_words('SELECT gram, count FROM chunk')}")
        else:
            _sum_chunks(database, batch, batches, order)
        return most_frequent(database, order, min_count, limit)


def _count_chunk(
    database: Database, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch], order: int
) -> pa.RecordBatch | None:
    """Count as many batches as fit into memory, as the table `chunk`. Returns the next batch, if any."""

    def chunk() -> Iterator[pa.RecordBatch]:
        yield first
        size = first.nbytes
        while size < database.memory // TEXT_IN_MEMORY and (batch := next(batches, None)) is not None:
            yield batch
            size += batch.nbytes

    database.register("lines", database.stream(chunk(), schema_of_lines()))
    database.run(f"CREATE OR REPLACE TEMP TABLE chunk AS {counted('lines', order)}")
    return next(batches, None)


def _sum_chunks(
    database: Database, batch: pa.RecordBatch | None, batches: Iterator[pa.RecordBatch], order: int
) -> None:
    """Write the chunk that was counted and all later ones to disk; sum each part over all of them."""
    database.write(parted("chunk"), "chunk-0.parquet", ROWS_TOGETHER)
    number = 1
    while batch is not None:
        batch = _count_chunk(database, batch, batches, order)
        database.write(parted("chunk"), f"chunk-{number}.parquet", ROWS_TOGETHER)
        number += 1
    database.run("DROP TABLE chunk")
    for part in range(PARTS):
        database.write(with_words(summed(database.files("chunk-*.parquet"), part)), f"part-{part}.parquet")
    database.run(f"CREATE TEMP VIEW grams AS SELECT * FROM {database.files('part-*.parquet')}")


def check_limits(order: int, min_count: int, limit: int) -> None:
    if not 1 <= order <= HIGHEST_ORDER:
        raise InputError(f"an n-gram has 1 to {HIGHEST_ORDER} words, not {order}")
    for name, value in (("min_count", min_count), ("limit", limit)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")


def most_frequent(database: Database, order: int, min_count: int, limit: int) -> NgramCounts:
    """The counts of the database's `grams`: of each number of words, the most frequent in the order of `Counts`."""
    import pyarrow as pa

    totals = database.rows("SELECT words, count(*), sum(count)::BIGINT FROM grams GROUP BY words")
    distinct, times = ({row[0]: row[column] for row in totals} for column in (1, 2))
    schema = pa.schema([("gram", pa.string()), ("count", pa.int64())])
    tables = []
    for words in range(1, order + 1):
        known = f"FROM grams WHERE words = {words}"
        least = max(
            min_count, _least(database.rows(f"SELECT count, count(*) {known} GROUP BY count ORDER BY 1 DESC"), limit)
        )
        kept = f"SELECT gram, count {known} AND count >= {least} ORDER BY count DESC, gram LIMIT {limit}"
        tables.append(database.table(kept).cast(schema))
    return NgramCounts(
        pa.concat_tables(tables), times.get(1, 0), {words: distinct.get(words, 0) for words in range(1, order + 1)}
    )


def _least(counts: list[tuple[int, int]], limit: int) -> int:
    """The count of the last n-gram within the limit: rarer ones need not be sorted."""
    seen = 0
    for count, grams in counts:
        seen += grams
        if seen >= limit:
            return count
    return 1


# ---- statements -------------------------------------------------------------------------------------------


def counted(lines: str, order: int) -> str:
    """Every n-gram of a relation of lines, and its count."""
    segment, unit, word = map(quoted, patterns(in_re2))
    lists = ["w", *(_ngrams(words) for words in range(2, order + 1))]
    return f"""
        SELECT gram, count(*) AS count FROM (
            SELECT unnest(list_concat({", ".join(lists)})) AS gram FROM (
                SELECT regexp_extract_all(s, {unit}) AS u, regexp_extract_all(s, {word}) AS w FROM (
                    SELECT unnest(regexp_extract_all(line, {segment})) AS s FROM {lines})))
        GROUP BY gram"""


def _ngrams(words: int) -> str:
    units = f" || {quoted(TAB)} || ".join(["w[i]", *(f"u[i + {later}]" for later in range(1, words))])
    return f"list_transform(range(1, len(w) - {words - 2}), lambda i: {units})"


def parted(grams: str) -> str:
    """N-grams with the number of their part. Rows of a part lie together, so reading one passes over the others."""
    return f"SELECT gram, count, hash(gram) % {PARTS} AS part FROM {grams} ORDER BY part"


def summed(tables: str, part: int) -> str:
    """One part of several tables as if all had been counted at once."""
    return f"SELECT gram, sum(count)::BIGINT AS count FROM {tables} WHERE part = {part} GROUP BY gram"


def with_words(grams: str) -> str:
    """The n-grams that a query gives, with their number of words: one more than tabs."""
    tabs = f"length(gram) - length(replace(gram, {quoted(TAB)}, ''))"
    return f"SELECT gram, count, ({tabs} + 1)::UTINYINT AS words FROM ({grams})"
