"""The kinds of things a corpus is read from, each giving its texts a handful at a time."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.dictionary.corpus.files import blocks, inner_suffix, size_of, unchanged
from paceline.dictionary.corpus.lines import NOT_UTF8, WRONG, decoded, lines_of, short, text_of
from paceline.dictionary.corpus.meter import Meter
from paceline.files.reading import DESCRIPTION, parse, read_file

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 1024
BOM = "\ufeff"
WITHOUT_TEXT = "{} records hold nothing in this field and were left out"


class Source(ABC):
    """One file, or one data set."""

    name: str
    bytes: int = 0
    """Of the file, for whoever shows how far the reading has come; 0 where nobody knows."""

    @abstractmethod
    def documents(self, meter: Meter) -> Iterator[list[str]]:
        """Lines of whole documents, or of parts of one, none of them too long."""

    @abstractmethod
    def texts(self, meter: Meter) -> Iterator[str]:
        """Each document in one piece."""


class PlainFile(Source):
    """A text is one document, and each of its lines is one."""

    def __init__(self, path: Path) -> None:
        self.name, self.bytes, self._path = str(path), size_of(path), path

    def documents(self, meter: Meter) -> Iterator[list[str]]:
        yield from lines_of(decoded(self.name, self._hashed(meter), meter))
        meter.document()

    def texts(self, meter: Meter) -> Iterator[str]:
        yield "\n".join(line for lines in self.documents(meter) for line in lines)

    def _hashed(self, meter: Meter) -> Iterator[bytes]:
        for block in blocks(self._path, meter):
            meter.content(block)
            yield block


class Records(Source):
    """Many documents, each with its text in a field."""

    def __init__(self, name: str, field: str, size: int = 0) -> None:
        self.name, self.field, self.bytes = name, field, size

    def documents(self, meter: Meter) -> Iterator[list[str]]:
        for texts in self._noted(meter):
            yield [line for text in texts for line in short(text.split("\n"))]

    def texts(self, meter: Meter) -> Iterator[str]:
        for texts in self._noted(meter):
            yield from texts

    def _noted(self, meter: Meter) -> Iterator[list[str]]:
        for found in self.records(meter):
            texts = [self._sound(text, meter) for text in found if text is not None]
            if len(texts) < len(found):
                meter.odd(self.name, WITHOUT_TEXT, len(found) - len(texts))
            for text in texts:
                meter.content(text.encode())
                meter.document()
            yield texts

    def _sound(self, text: str, meter: Meter) -> str:
        """JSON can spell half of a character, which no text in UTF-8 holds."""
        try:
            text.encode()
        except UnicodeEncodeError:
            mended = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            meter.odd(self.name, NOT_UTF8, mended.count(WRONG) - text.count(WRONG))
            return mended
        return text

    def field_of(self, record: dict[str, Any], where: str) -> str | None:
        if self.field not in record:
            raise ValueError(f"{where} has no field {self.field}; it has {_listed(record)}, name one of them")
        text = record[self.field]
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{where}: the field {self.field} is no text but {type(text).__name__}; name another")
        return text

    @abstractmethod
    def records(self, meter: Meter) -> Iterator[Sequence[str | None]]:
        """The texts of some records; None stands for an empty field."""


class JsonLines(Records):
    def __init__(self, path: Path, field: str) -> None:
        super().__init__(str(path), field, size_of(path))
        self._path = path

    def records(self, meter: Meter) -> Iterator[Sequence[str | None]]:
        number = 0
        for raw_lines in _raw_lines(blocks(self._path, meter)):
            found = []
            for number, raw in enumerate(raw_lines, start=number + 1):  # noqa: B020 (the count goes on)
                if raw.strip():
                    found.append(self._text(number, text_of(self.name, raw, meter)))
            yield found

    def _text(self, number: int, line: str) -> str | None:
        where = f"{self.name}, line {number}"
        try:
            record = json.loads(line.removeprefix(BOM))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is no JSON ({error}); mend or remove that line") from None
        if not isinstance(record, dict):
            raise ValueError(f"{where} is no record but {type(record).__name__}; write one object with {self.field}")
        return self.field_of(record, where)


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
    def __init__(self, path: Path, field: str) -> None:
        super().__init__(str(path), field, size_of(path))
        self._path = path

    def records(self, meter: Meter) -> Iterator[Sequence[str | None]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with unchanged(self._path) as file:
            try:
                table = pq.ParquetFile(file)
                refuse_column(self.name, table.schema_arrow, self.field)
                groups = table.metadata.num_row_groups
                for group in range(groups):
                    for batch in table.iter_batches(ROWS, row_groups=[group], columns=[self.field]):
                        yield batch.column(0).to_pylist()
                    meter.at(self.name, self.bytes * (group + 1) // groups)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise ValueError(f"{self.name} is no whole parquet file ({_short(error)}); get it again") from None


class SavedDataset(Records):
    """A folder that `Dataset.save_to_disk` wrote: its arrow files need no package of their own."""

    def __init__(self, folder: Path, field: str) -> None:
        try:
            listed = parse(read_file(folder / STATE, DESCRIPTION))["_data_files"]
            self._paths = [folder / entry["filename"] for entry in listed]
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(f"{folder / STATE} lists no files of a data set; save it again, or name files") from None
        super().__init__(str(folder), field, sum(map(size_of, self._paths)))

    def records(self, meter: Meter) -> Iterator[Sequence[str | None]]:
        import pyarrow as pa

        before = 0
        for path in self._paths:
            with unchanged(path) as file:
                try:
                    stream = pa.ipc.open_stream(file)
                    refuse_column(self.name, stream.schema, self.field)
                    for batch in stream:
                        for rows in range(0, len(batch), ROWS):
                            yield batch.column(self.field).slice(rows, ROWS).to_pylist()
                        meter.at(self.name, before + file.tell())
                except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                    raise ValueError(f"{path} is no whole arrow file ({_short(error)}); save it again") from None
            before += size_of(path)
            meter.at(self.name, before)


STATE = "state.json"
SPLITS = "dataset_dict.json"


class Hub(Records):
    """A data set that the `datasets` package streams."""

    def __init__(self, spec: str, field: str) -> None:
        super().__init__(spec, field)
        self._dataset, self._config, self._split = parsed(spec)

    def records(self, meter: Meter) -> Iterator[Sequence[str | None]]:
        found: list[str | None] = []
        for number, record in enumerate(self._streamed(), start=1):
            found.append(self.field_of(record, f"{self.name}, record {number}"))
            if len(found) == ROWS:
                yield found
                found = []
                meter.at(self.name, 0)
        yield found

    def _streamed(self) -> Iterator[dict[str, Any]]:
        """The records as they come, of which any may be the one that does not."""
        import datasets

        try:
            yield from datasets.load_dataset(self._dataset, self._config, split=self._split, streaming=True)
        except Exception as error:  # whatever the network, the hub or its own code says
            raise ValueError(f"{self.name} can't be read ({_short(error)}); check its name and the network") from None


HUB = "hf:"
KNOWN_SPLITS = ("train", "validation", "valid", "dev", "test")


def parsed(spec: str) -> tuple[str, str | None, str]:
    """Name, configuration and split of `hf:NAME[:CONFIG][:SPLIT]`: a lone word after the name is a split if known."""
    name, *rest = spec.removeprefix(HUB).split(":")
    if not name or len(rest) > 2 or not all(rest):
        raise ValueError(f"{spec} names no data set; write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
    if len(rest) == 2:
        return name, rest[0], rest[1]
    if not rest:
        return name, None, KNOWN_SPLITS[0]
    return (name, None, rest[0]) if rest[0] in KNOWN_SPLITS else (name, rest[0], KNOWN_SPLITS[0])


class Given(Source):
    """Lines that are in memory already."""

    name = "the given lines"

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    def documents(self, meter: Meter) -> Iterator[list[str]]:
        for start in range(0, len(self._lines), ROWS):
            lines = self._lines[start : start + ROWS]
            meter.content("".join(f"{line}\n" for line in lines).encode())
            yield [piece for line in lines for piece in short(line.split("\n"))]
        meter.document()

    def texts(self, meter: Meter) -> Iterator[str]:
        yield "\n".join(line for lines in self.documents(meter) for line in lines)


def refuse_column(name: str, schema: pa.Schema, field: str) -> None:
    import pyarrow as pa

    if field not in schema.names:
        raise ValueError(f"{name} has no column {field}; it has {_listed(schema.names)}, name one of them")
    kind = schema.field(field).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise ValueError(f"{name}: the column {field} is no text but {kind}; name another")


def source_of_file(path: Path, field: str) -> Source:
    match inner_suffix(path):
        case ".jsonl" | ".ndjson":
            return JsonLines(path, field)
        case ".parquet":
            return Parquet(path, field)
    return PlainFile(path)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(". ") or type(error).__name__
