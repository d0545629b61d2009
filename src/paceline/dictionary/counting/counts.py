"""How often each n-gram was seen, as it is handed on and kept in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.dictionary.corpus.needs import need
from paceline.files import write_whole
from paceline.files.reading import parse, read_file
from paceline.files.shape import shaped

if TYPE_CHECKING:
    import pyarrow as pa

KEY = b"paceline.counts"
VERSION = 1


@dataclass(frozen=True)
class Counts:
    """The most frequent n-grams of a corpus, and what is known of those that were left out."""

    grams: pa.Table
    """Columns gram and count: those of fewer words first, then by falling count, then by the bytes of the gram."""
    words: int
    """All words of the corpus, each as often as it stands there."""
    distinct: dict[int, int]
    """For each number of words, how many different n-grams there are, whether they stayed or not."""

    def save(self, path: str | Path) -> None:
        """Written beside the path and then moved there, so that nobody ever sees half of it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        said = {"version": VERSION, "words": self.words, "distinct": self.distinct}
        content = pa.BufferOutputStream()
        table = self.grams.replace_schema_metadata({KEY: json.dumps(said).encode()})
        pq.write_table(table, content, compression="zstd", write_page_checksum=True)
        write_whole(path, [content.getvalue()])

    @classmethod
    def load(cls, path: str | Path) -> Counts:
        """The counts in a file; a ValueError says why it has none."""
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
            raise ValueError(f"{path} can't be read as counts ({why})") from None
        return cls(table.replace_schema_metadata(None), words, distinct)
