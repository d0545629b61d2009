"""Many sources as one stream of lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.dictionary.corpus.meter import Advance, Meter
from paceline.dictionary.corpus.needs import need
from paceline.dictionary.corpus.sources import (
    HUB,
    SPLITS,
    STATE,
    Given,
    Hub,
    SavedDataset,
    Source,
    parsed,
    source_of_file,
)

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 1 << 20
"""Characters that are handed on at once, about."""
IN_FOLDERS = (".txt", ".text", ".md", ".gz", ".zst", ".jsonl", ".ndjson", ".parquet")
"""What is read where only a folder was named."""


class Corpus:
    """Lines of text, read from beginning to end as often as anyone wants.

    What is known of the content is known when it was read: `fingerprint`, `bytes`, `documents` and `notes` tell of the
    last reading that came to the end.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.fingerprint = ""
        self.bytes = 0
        self.documents = 0
        self.notes: list[str] = []

    @classmethod
    def of_lines(cls, lines: Sequence[str]) -> Corpus:
        """One document of lines that are in memory."""
        return cls([Given(lines)])

    def batches(self, advance: Advance | None = None) -> Iterator[pa.RecordBatch]:
        """All lines as one column, `line`, about a megabyte at a time."""
        need("pyarrow", "reading a corpus", "dict")
        import pyarrow as pa

        schema = schema_of_lines()
        for lines in self._gathered(self.lines(advance)):
            yield pa.record_batch([pa.array(lines, pa.string())], schema=schema)

    def lines(self, advance: Advance | None = None) -> Iterator[list[str]]:
        """All lines, some at a time."""
        meter = Meter(sum(source.bytes for source in self.sources), advance)
        for source in self.sources:
            for lines in source.documents(meter):
                meter.text(lines)
                yield lines
            meter.next_file()
        self.conclude(meter)

    def conclude(self, meter: Meter) -> None:
        """Keep what a whole reading found out."""
        if not meter.has_word:
            raise ValueError(f"{self._named()} without a single word; give a corpus that has some text")
        self.fingerprint, self.notes = meter.fingerprint, meter.notes
        self.bytes, self.documents = meter.bytes, meter.documents

    def _named(self) -> str:
        names = [source.name for source in self.sources]
        return f"{names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more sources are"

    @staticmethod
    def _gathered(found: Iterable[list[str]]) -> Iterator[list[str]]:
        """As many lines at once as make a batch, and not many more."""
        waiting: list[str] = []
        size = 0
        for line in chain.from_iterable(found):
            waiting.append(line)
            size += len(line) + 1
            if size >= BATCH:
                yield waiting
                waiting, size = [], 0
        if waiting:
            yield waiting


def schema_of_lines() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("line", pa.string())])


def open_corpus(sources: Sequence[str | Path], *, field: str = "text") -> Corpus:
    """Files, folders and data sets as one corpus; nothing is read before its batches are."""
    need("pyarrow", "reading a corpus", "dict")
    if not sources:
        raise ValueError("no corpus is given; name a file, a folder or hf:NAME")
    return Corpus([found for source in sources for found in _sources(source, field)])


def _sources(named: str | Path, field: str) -> list[Source]:
    if isinstance(named, str) and named.startswith(HUB):
        parsed(named)
        need("datasets", f"reading {named}", "datasets")
        return [Hub(named, field)]
    path = Path(named)
    if not path.is_dir():
        return [source_of_file(path, field)]
    found = _sources_below(path, field)
    if not found:
        raise ValueError(f"{path} holds no text; the files of a folder end in one of {', '.join(IN_FOLDERS)}")
    return found


def _sources_below(folder: Path, field: str) -> list[Source]:
    if (folder / STATE).exists():
        return [SavedDataset(folder, field)]
    if (folder / SPLITS).exists():
        splits = ", ".join(sorted(str(found.parent) for found in folder.glob(f"*/{STATE}")))
        raise ValueError(f"{folder} holds several splits of a data set; name one of {splits}")
    found: list[Source] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():  # one that is a link may lead back up
            found += [] if path.is_symlink() else _sources_below(path, field)
        elif path.suffix.lower() in IN_FOLDERS:
            found.append(source_of_file(path, field))
    return found
