"""The kinds of sources that a corpus is read from: plain text, records in JSON lines, parquet or arrow, a hub."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from paceline.errors import DamagedFile, InputError, need
from paceline.files.reading import DESCRIPTION, parse, read_file
from paceline_make.texts.fields import ChatText, Fields, Passage
from paceline_make.texts.lines import (
    COMPRESSED,
    NOT_UTF8,
    WRONG,
    CorpusLog,
    blocks,
    decoded,
    lines_of,
    packing_of,
    short,
    size_of,
    text_of,
    unchanged,
)

LONG = 1 << 16
"""Characters of a passage."""
ROWS = 1024
"""Records in one batch."""
BOM = "\ufeff"
STATE = "state.json"
"""A folder that `Dataset.save_to_disk` wrote has this file."""
HUB = "hf:"
KNOWN_SPLITS = ("train", "validation", "valid", "dev", "test")
WITHOUT_TEXT = "{} records hold nothing in this field and were left out"


class TextSource(ABC):
    """One file, or one data set."""

    name: str
    bytes: int = 0
    """The file's size, to report progress; 0 where it is unknown."""

    @abstractmethod
    def documents(self, log: CorpusLog) -> Iterator[list[str]]:
        """Lines of limited length, of whole documents or of parts of one."""

    @abstractmethod
    def texts(self, log: CorpusLog) -> Iterator[str]:
        """Each document in one piece."""

    def passages(self, log: CorpusLog) -> Iterator[Passage]:
        """The texts between empty lines, without spaces around them. A longer one than `LONG` ends with a line, so that
        a file without empty lines is several passages, of which some can be held out."""
        for text in self.texts(log):
            for part in text.split("\n\n"):
                yield from filter(None, map(str.strip, _pieces(part) if len(part) > LONG else [part]))


def _pieces(text: str) -> Iterator[str]:
    """Pieces of whole lines, each ended by the one that makes it long enough."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + LONG)
        end = len(text) if end < 0 else end + 1
        yield text[begin:end]
        begin = end


class PlainFile(TextSource):
    """A text is one document."""

    def __init__(self, path: Path) -> None:
        self.name, self.bytes, self._path = str(path), size_of(path), path

    def documents(self, log: CorpusLog) -> Iterator[list[str]]:
        yield from lines_of(decoded(self.name, self._logged(log), log))
        log.document()

    def texts(self, log: CorpusLog) -> Iterator[str]:
        yield "".join(decoded(self.name, self._logged(log), log))
        log.document()

    def _logged(self, log: CorpusLog) -> Iterator[bytes]:
        for block in blocks(self._path, log):
            log.content(block)
            yield block


class GivenLines(TextSource):
    """Lines in memory are one document."""

    name = "the given lines"

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    def documents(self, log: CorpusLog) -> Iterator[list[str]]:
        for start in range(0, len(self._lines), ROWS):
            lines = self._lines[start : start + ROWS]
            log.content("".join(f"{line}\n" for line in lines).encode())
            log.text(lines)
            yield [piece for line in lines for piece in short(line.split("\n"))]
        log.document()

    def texts(self, log: CorpusLog) -> Iterator[str]:
        yield "\n".join(line for lines in self.documents(log) for line in lines)


class Records(TextSource):
    """Many documents, each the text in one field of a record; where `fields` admits chats, some are chats."""

    def __init__(self, name: str, fields: Fields, size: int = 0) -> None:
        self.name, self.fields, self.bytes = name, fields, size

    @abstractmethod
    def records(self, log: CorpusLog) -> Iterator[Sequence[Passage | None]]:
        """The texts of some records; None for an empty field."""

    def documents(self, log: CorpusLog) -> Iterator[list[str]]:
        for texts in self._logged(log):
            yield [line for text in texts if isinstance(text, str) for line in short(text.split("\n"))]

    def texts(self, log: CorpusLog) -> Iterator[str]:
        for texts in self._logged(log):
            yield from (text for text in texts if isinstance(text, str))

    def passages(self, log: CorpusLog) -> Iterator[Passage]:
        for texts in self._logged(log):
            yield from texts

    def _logged(self, log: CorpusLog) -> Iterator[list[Passage]]:
        for found in self.records(log):
            passages = [self._mended(one, log) for one in found if one is not None]
            if len(passages) < len(found):
                log.odd(self.name, WITHOUT_TEXT, len(found) - len(passages))
            for one in passages:
                log.content((one if isinstance(one, str) else json.dumps(one.messages)).encode())
                log.text([one] if isinstance(one, str) else (str(said["content"]) for said in one.messages))
                log.document()
            yield passages

    def _mended(self, passage: Passage, log: CorpusLog) -> Passage:
        if isinstance(passage, str):
            return self._sound(passage, log)
        return ChatText(
            [
                {name: self._sound(value, log) if isinstance(value, str) else value for name, value in said.items()}
                for said in passage.messages
            ]
        )

    def _sound(self, text: str, log: CorpusLog) -> str:
        """JSON can spell half of a character, which no text in UTF-8 holds."""
        try:
            text.encode()
        except UnicodeEncodeError:
            mended = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            log.odd(self.name, NOT_UTF8, mended.count(WRONG) - text.count(WRONG))
            return mended
        return text


class JsonLines(Records):
    def __init__(self, path: Path, fields: Fields) -> None:
        super().__init__(str(path), fields, size_of(path))
        self._path = path

    def records(self, log: CorpusLog) -> Iterator[Sequence[Passage | None]]:
        number = 0
        for raw_lines in _raw_lines(blocks(self._path, log)):
            found = list[Passage | None]()
            for number, raw in enumerate(raw_lines, start=number + 1):  # noqa: B020 (the count goes on)
                if raw.strip():
                    found.append(self._passage(number, text_of(self.name, raw, log)))
            yield found

    def _passage(self, number: int, line: str) -> Passage | None:
        where = f"{self.name}, line {number}"
        try:
            record = json.loads(line.removeprefix(BOM))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is no JSON ({error}); mend or remove that line") from None
        if not isinstance(record, dict):
            raise InputError(
                f"{where} is no record but {type(record).__name__}; write an object with {self.fields.text}"
            )
        return self.fields.passage_of(record, where)


def _raw_lines(found: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest: list[bytes] = []
    for block in found:
        first, *more = block.split(b"\n")
        rest.append(first)
        if more:
            *between, last = more
            yield [b"".join(rest), *between]
            rest = [last]
    yield [b"".join(rest)]


class Parquet(Records):
    def __init__(self, path: Path, fields: Fields) -> None:
        need("pyarrow", f"reading {path}", "dict")
        super().__init__(str(path), fields, size_of(path))
        self._path = path

    def records(self, log: CorpusLog) -> Iterator[Sequence[Passage | None]]:
        import pyarrow.parquet as pq

        with _whole(self._path, "parquet", "get it again") as file:
            table = pq.ParquetFile(file)
            field = self.fields.column_of(table.schema_arrow, self.name)
            groups = table.metadata.num_row_groups
            for group in range(groups):
                for batch in table.iter_batches(ROWS, row_groups=[group], columns=[field]):
                    yield self.fields.column(batch.column(0).to_pylist(), field, self.name)
                log.at(self.name, self.bytes * (group + 1) // groups)


class SavedDataset(Records):
    """A folder that `Dataset.save_to_disk` wrote; its arrow files are read without the package `datasets`."""

    def __init__(self, folder: Path, fields: Fields) -> None:
        need("pyarrow", f"reading {folder}", "dict")
        try:
            listed = parse(read_file(folder / STATE, DESCRIPTION))["_data_files"]
            self._paths = [folder / entry["filename"] for entry in listed]
        except (OSError, ValueError, KeyError, TypeError):
            raise DamagedFile(f"{folder / STATE} lists no files of a data set; save it again, or name files") from None
        super().__init__(str(folder), fields, sum(map(size_of, self._paths)))

    def records(self, log: CorpusLog) -> Iterator[Sequence[Passage | None]]:
        import pyarrow as pa

        before = 0
        for path in self._paths:
            with _whole(path, "arrow", "save it again") as file:
                stream = pa.ipc.open_stream(file)
                field = self.fields.column_of(stream.schema, self.name)
                for batch in stream:
                    for rows in range(0, len(batch), ROWS):
                        values = batch.column(field).slice(rows, ROWS).to_pylist()
                        yield self.fields.column(values, field, self.name)
                    log.at(self.name, before + file.tell())
            before += size_of(path)
            log.at(self.name, before)


class Hub(Records):
    """A data set that the package `datasets` streams."""

    def __init__(self, spec: str, fields: Fields) -> None:
        super().__init__(spec, fields)
        self._dataset, self._config, self._split = parsed(spec)

    def records(self, log: CorpusLog) -> Iterator[Sequence[Passage | None]]:
        found: list[Passage | None] = []
        for number, record in enumerate(self._streamed(), start=1):
            found.append(self.fields.passage_of(record, f"{self.name}, record {number}"))
            if len(found) == ROWS:
                yield found
                found = []
                log.at(self.name, 0)
        yield found

    def _streamed(self) -> Iterator[dict[str, Any]]:
        """The records, any of which may fail."""
        import datasets

        try:
            yield from datasets.load_dataset(self._dataset, self._config, split=self._split, streaming=True)
        except Exception as error:  # of the network, the hub or the package
            raise InputError(f"{self.name} can't be read ({_short(error)}); check its name and the network") from None


def parsed(spec: str) -> tuple[str, str | None, str]:
    """Name, configuration and split of `hf:NAME[:CONFIG][:SPLIT]`: a lone word after the name is a split if known."""
    name, *rest = spec.removeprefix(HUB).split(":")
    if not name or len(rest) > 2 or not all(rest):
        raise InputError(f"{spec} names no data set; write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
    if len(rest) == 2:
        return name, rest[0], rest[1]
    if not rest:
        return name, None, KNOWN_SPLITS[0]
    return (name, None, rest[0]) if rest[0] in KNOWN_SPLITS else (name, rest[0], KNOWN_SPLITS[0])


def source_of_file(path: Path, fields: Fields) -> TextSource:
    if packing_of(path):
        need("pyarrow", f"reading {path}", "dict")
    name = path.name.lower()
    for packing in COMPRESSED:
        name = name.removesuffix(packing)
    match Path(name).suffix:
        case ".jsonl" | ".ndjson":
            return JsonLines(path, fields)
        case ".parquet":
            return Parquet(path, fields)
    return PlainFile(path)


@contextmanager
def _whole(path: Path, kind: str, mend: str) -> Iterator[BinaryIO]:
    """An open file whose damage is reported."""
    import pyarrow as pa

    with unchanged(path) as file:
        try:
            yield file
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DamagedFile(f"{path} is no whole {kind} file ({_short(error)}); {mend}") from None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(". ") or type(error).__name__
