"""DuckDB, which counts within a memory limit and writes the rest to disk.

Lines come as a stream that is read once. Statements run in a worker thread, so that Ctrl-C reaches the main thread at
once. The worker lives as long as the database. The database waits for its end before it closes the connection, because
DuckDB refuses to close a connection that still runs a statement, and Ctrl-C may come at any line of the main thread.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import gettempdir
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.errors import InputError
from paceline.files import workplace

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]I?B|B)", re.IGNORECASE)
UNITS = {"B": 1} | {
    prefix + unit: base**power for power, prefix in enumerate("KMGT", 1) for unit, base in (("B", 1000), ("IB", 1024))
}
FULL = ("max_temp_directory_size", "No space left", "quota exceeded", "File too large")
"""Parts of DuckDB's messages where the disk, or a user's share of it, is full."""
AGAIN = 0.05
"""Seconds between two checks while waiting: for Ctrl-C, and to interrupt again, because DuckDB ignores an interruption
between two statements."""


class Stopped(Exception):
    """Raised into the stream of lines when the count is cancelled."""


class Database(AbstractContextManager["Database"]):
    """A connection with its limits, and a temporary folder on disk."""

    def __init__(self, memory: str, threads: int | None, folder: Path | None) -> None:
        import duckdb

        self.memory = bytes_of("memory", memory)
        if threads is not None and threads < 1:
            raise InputError(f"counting needs at least 1 thread, not {threads}")
        self._leaving = ExitStack()
        folder = folder or Path(gettempdir())
        try:
            self._place = self._leaving.enter_context(workplace(folder))
        except OSError as error:
            raise InputError(f"{folder} can't hold what counting spills ({error.strerror}); name a folder") from None
        config: dict[str, Any] = {
            "memory_limit": f"{self.memory}B",
            "temp_directory": str(self._place / "database"),
            "preserve_insertion_order": False,
            "threads": threads or cores(),
        }
        self._connection = duckdb.connect(config=config)
        self._stopped = False
        self._failure: BaseException | None = None
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._worker = threading.Thread(target=_work_off, args=[self._tasks], daemon=True)
        self._worker.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self._tasks.put(None)
        self._worker.join(AGAIN)
        while self._worker.is_alive():
            self._connection.interrupt()
            self._worker.join(AGAIN)
        self._connection.close()
        self._leaving.close()

    def register(self, name: str, rows: pa.Table | pa.RecordBatchReader) -> None:
        self._in_worker(lambda: self._connection.register(name, rows))  # it reports Ctrl-C as its own error type

    def stream(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatchReader:
        """A reader of the batches. Their own errors are kept, because DuckDB would report them as its own."""
        import pyarrow as pa

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                for batch in batches:
                    if self._stopped:
                        raise Stopped
                    yield batch
            except BaseException as error:
                self._failure = error
                raise

        return pa.RecordBatchReader.from_batches(schema, watched())

    def run(self, statement: str) -> None:
        self._in_worker(lambda: self._connection.execute(statement))

    def write(self, statement: str, name: str, rows_together: int = 1 << 17) -> None:
        """Write the answer into a file of the database's folder."""
        said = f"FORMAT parquet, COMPRESSION snappy, ROW_GROUP_SIZE {rows_together}"
        self.run(f"COPY ({statement}) TO {quoted(str(self._place / name))} ({said})")

    def files(self, pattern: str) -> str:
        """The files of such names as a relation."""
        return f"read_parquet({quoted(str(self._place / pattern))})"

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self._in_worker(lambda: self._connection.execute(statement).fetchall())

    def table(self, statement: str) -> pa.Table:
        return self._in_worker(lambda: self._connection.sql(statement).to_arrow_table())

    def _in_worker(self, work: Callable[[], T]) -> T:
        """The result of some work in the worker's thread, while this thread stays open to signals."""
        answer: SimpleQueue[tuple[T] | BaseException] = SimpleQueue()

        def task() -> None:
            try:
                answer.put((work(),))
            except BaseException as error:
                answer.put(error)

        self._tasks.put(task)
        given: tuple[T] | BaseException | None = None
        while given is None:
            with suppress(Empty):  # a signal just before a wait does not end it, so no wait is long
                given = answer.get(timeout=AGAIN)
        if isinstance(given, BaseException):
            raise self._explained(given) from None
        return given[0]

    def _explained(self, error: BaseException) -> BaseException:
        import duckdb

        if self._failure is not None:
            return self._failure
        said = str(error)
        if any(reason in said for reason in FULL):
            return InputError(
                f"{self._place.parent} has no room left for what counting spills; name another folder or give more "
                "memory"
            )
        if isinstance(error, duckdb.OutOfMemoryException):
            return InputError(
                f"counting does not get by with a memory of {self.memory / 1e9:g} GB; give more or use fewer threads"
            )
        return error


def _work_off(tasks: SimpleQueue[Callable[[], None] | None]) -> None:
    """Do one task after another until None comes."""
    while (task := tasks.get()) is not None:
        task()
        del task  # and with it the memory of its result


def quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def cores() -> int:
    """Processors that this process may use; macOS and Windows only know how many the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def bytes_of(option: str, size: str) -> int:
    """The number that 2GB or 500 MiB stands for."""
    found = SIZE.fullmatch(size)
    if found is None or (number := int(float(found[1]) * UNITS[found[2].upper()])) < 1:
        raise InputError(f"{option} is a size such as 2GB or 500MB, not {size!r}")
    return number
