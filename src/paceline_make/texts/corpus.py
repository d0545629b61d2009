"""A corpus: files, folders and data sets as one stream of lines, of texts or of passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from paceline.errors import InputError, need
from paceline_make.texts.fields import TEXT, Fields, Passage
from paceline_make.texts.lines import Advance, CorpusLog
from paceline_make.texts.sources import (
    HUB,
    STATE,
    GivenLines,
    Hub,
    Records,
    SavedDataset,
    TextSource,
    parsed,
    source_of_file,
)

if TYPE_CHECKING:
    import pyarrow as pa

Part = TypeVar("Part")

BATCH = 1 << 20
"""Characters of a batch of lines, about."""
SPLITS = "dataset_dict.json"
"""The file of a folder with several splits of a saved data set."""
IN_FOLDERS = (".txt", ".text", ".md", ".gz", ".zst", ".jsonl", ".ndjson", ".parquet")
"""The files of a folder that are read."""


class Corpus:
    """Texts, which can be read any number of times.

    `fingerprint`, `bytes`, `documents` and `notes` describe the last complete reading.
    """

    def __init__(self, sources: Sequence[TextSource]) -> None:
        self.sources = sources
        self.fingerprint = ""
        self.bytes = 0
        self.documents = 0
        self.notes: list[str] = []

    @classmethod
    def of_lines(cls, lines: Sequence[str]) -> Corpus:
        """One document of lines that are in memory."""
        return cls([GivenLines(lines)])

    def batches(self, advance: Advance | None = None) -> Iterator[pa.RecordBatch]:
        """All lines as one column, `line`, in batches of about a megabyte."""
        need("pyarrow", "reading a corpus", "dict")
        waiting: list[str] = []
        size = 0
        for line in chain.from_iterable(self.lines(advance)):
            waiting.append(line)
            size += len(line) + 1
            if size >= BATCH:
                yield _batch(waiting)
                waiting, size = [], 0
        if waiting:
            yield _batch(waiting)

    def lines(self, advance: Advance | None = None) -> Iterator[list[str]]:
        """All lines, some at a time."""
        return self._read(lambda source, log: source.documents(log), advance)

    def texts(self, advance: Advance | None = None) -> Iterator[str]:
        """All documents, each in one piece."""
        return self._read(lambda source, log: source.texts(log), advance)

    def passages(self, advance: Advance | None = None) -> Iterator[Passage]:
        """The records, and of plain texts what stands between empty lines."""
        return self._read(lambda source, log: source.passages(log), advance)

    def _read(
        self, parts: Callable[[TextSource, CorpusLog], Iterator[Part]], advance: Advance | None
    ) -> Iterator[Part]:
        log = CorpusLog(sum(source.bytes for source in self.sources), advance)
        for source in self.sources:
            yield from parts(source, log)
            log.next_file()
        self.conclude(log)

    def conclude(self, log: CorpusLog) -> None:
        """Keep the results of a complete reading."""
        if not log.has_word:
            names = [source.name for source in self.sources]
            empty = f"{names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more sources are"
            raise InputError(f"{empty} without a single word; give a corpus that has some text")
        self.fingerprint, self.notes = log.fingerprint, log.notes
        self.bytes, self.documents = log.bytes, log.documents


def schema_of_lines() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("line", pa.string())])


def _batch(lines: list[str]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch([pa.array(lines, pa.string())], schema=schema_of_lines())


def open_corpus(sources: Sequence[str | Path], *, field: str = TEXT, chats: bool = False) -> Corpus:
    """Files, folders and data sets as one corpus. Nothing is read yet.

    With `chats`, records without the field may have a chat instead, which is one of the corpus's passages.
    """
    if not sources:
        raise InputError("no corpus is given; name a file, a folder or hf:NAME")
    fields = Fields(field, chats)
    return Corpus([found for source in sources for found in _sources(source, fields)])


def _sources(named: str | Path, fields: Fields) -> list[TextSource]:
    if isinstance(named, str) and named.startswith(HUB):
        parsed(named)
        need("datasets", f"reading {named}", "datasets")
        return [Hub(named, fields)]
    path = Path(named)
    if not path.is_dir():
        return [source_of_file(path, fields)]
    found = _sources_below(path, fields)
    if not found:
        raise InputError(f"{path} holds no text; the files of a folder end in one of {', '.join(IN_FOLDERS)}")
    return found


def _sources_below(folder: Path, fields: Fields) -> list[TextSource]:
    if (folder / STATE).exists():
        return [SavedDataset(folder, fields)]
    if (folder / SPLITS).exists():
        splits = ", ".join(sorted(str(found.parent) for found in folder.glob(f"*/{STATE}")))
        raise InputError(f"{folder} holds several splits of a data set; name one of {splits}")
    found: list[TextSource] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():  # one that is a link may lead back up
            found += [] if path.is_symlink() else _sources_below(path, fields)
        elif path.suffix.lower() in IN_FOLDERS:
            found.append(source_of_file(path, fields))
    return found


# ---- a part kept for tests --------------------------------------------------------------------------------


def split_by_document(corpus: Corpus, test_words: int) -> tuple[list[str], list[str]]:
    """Lines to build from and documents to test on, which hold at least ``test_words`` words between spaces.

    Each source gives its share: of records every n-th, of a plain file its end. Lines that are also in a test document
    are left out of the others, wherever they are.
    """
    if test_words < 1:
        raise InputError(f"a test needs at least 1 word, not {test_words}")
    log = CorpusLog(0, None)
    read = [(source, list(source.texts(log))) for source in corpus.sources]
    corpus.conclude(log)
    sizes = [sum(len(text.split()) for text in texts) for _, texts in read]
    if test_words >= sum(sizes):
        raise InputError(
            f"the corpus has {sum(sizes)} words, and {test_words} of them for a test leave none to build from"
        )
    train: list[str] = []
    tests: list[str] = []
    for (source, texts), size in zip(read, sizes, strict=True):
        share = _spread if isinstance(source, Records) else _tail
        kept, apart = share(texts, -(-test_words * size // sum(sizes)))
        train += [line for text in kept for line in text.splitlines()]
        tests += apart
    held = {line.strip() for text in tests for line in text.splitlines()}
    rest = [line for line in train if line.strip() and line.strip() not in held]
    if not rest:
        raise InputError(
            "a test of that many words leaves no line to build from; give more text or test on fewer words"
        )
    return rest, tests


def _spread(texts: list[str], words: int) -> tuple[list[str], list[str]]:
    """A document is taken whenever less was taken than is due by its end, so documents come from the whole source."""
    sizes = [len(text.split()) for text in texts]
    kept, apart, taken = [], [], 0
    for text, size, seen in zip(texts, sizes, accumulate(sizes), strict=True):
        if taken * sum(sizes) < words * seen:
            apart.append(text)
            taken += size
        else:
            kept.append(text)
    return kept, apart


def _tail(texts: list[str], words: int) -> tuple[list[str], list[str]]:
    """The last lines of a text."""
    lines = "\n".join(texts).split("\n")
    first, taken = len(lines), 0
    while taken < words:
        first -= 1
        taken += len(lines[first].split())
    return ["\n".join(lines[:first])], ["\n".join(lines[first:])] if words else []
