"""A sweep on disk. Every file appears whole: it is written beside its place and moved there.

settings.json                    what is swept; other settings are refused
counts/LANG.parquet, LANG.json   n-grams of a language, and the text that was kept apart
cells/TOKENIZER--LANG--n1.json   the cells of one table
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.bench.dictionaries.sweep.cells import About, Cell, Swept, ngrams
from paceline.bench.dictionaries.sweep.settings import Settings, slug
from paceline.dictionary.counting import Counts
from paceline.files import check_folder, remove_left, write_whole
from paceline.files.reading import damaged, parse, read_file
from paceline.files.shape import Count, shaped

SETTINGS = "settings.json"
REMOVE = "remove it, and the same sweep makes it again"


@dataclass(frozen=True)
class Known:
    """What must be known of a language's text besides its counts."""

    train_words: Count
    documents: list[str]
    """Kept apart from what was counted."""

    @property
    def test_words(self) -> int:
        return sum(len(text.split()) for text in self.documents)


class Folder:
    """Where a sweep is kept. ``settings`` are those of now."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings

    def begin(self) -> None:
        """Make the folder, or see that it holds this very sweep."""
        file = self.path / SETTINGS
        wanted = json.loads(json.dumps(self.settings.identity()))
        if not check_folder(self.path, SETTINGS, "sweep"):
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(wanted, indent=1, ensure_ascii=False) + "\n")
        with damaged(str(file), "give another --out"):
            known = shaped(dict[str, Any], parse(_bytes(file)))
        if (told := _difference(known, wanted)) is not None:
            raise ValueError(f"{self.path} holds another sweep ({told}); give another --out, or the settings of it")
        self.tidy()

    def tidy(self) -> None:
        """Remove what killed processes began to write."""
        for place in (self.path, self.path / "counts", self.path / "cells"):
            remove_left(place)

    def leave(self) -> None:
        """Settings by which nothing was kept are no sweep: a text that could not be counted leaves none. A folder that
        is gone by now says nothing over the error that ended the sweep."""
        with suppress(OSError):
            if [file.name for file in self.path.iterdir()] == [SETTINGS]:
                (self.path / SETTINGS).unlink()

    def has_counts(self, language: str) -> bool:
        return self._known(language).exists() and self._counts(language).exists()

    def keep_counts(self, language: str, counts: Counts, known: Known) -> None:
        self._make("counts")
        counts.save(self._counts(language))
        write_whole(self._known(language), json.dumps(asdict(known), ensure_ascii=False))

    def counts(self, language: str) -> Counts:
        file = self._counts(language)
        try:
            return Counts.load(file)
        except ValueError as error:
            raise ValueError(f"{error}; {REMOVE}") from None

    def known(self, language: str) -> Known:
        file = self._known(language)
        with damaged(str(file), REMOVE):
            known = shaped(Known, parse(_bytes(file)))
            if known.test_words < self.settings.test_words:
                raise ValueError(
                    f"'documents' have {known.test_words} words, and {self.settings.test_words} are asked for"
                )
        return known

    def missing(self, pair: tuple[str, str]) -> list[int]:
        """Orders of which there are no cells yet."""
        return [order for order in self.settings.orders if not self._cells(pair, order).exists()]

    @property
    def done(self) -> int:
        """Cells that are there."""
        settings = self.settings
        tables = sum(len(settings.orders) - len(self.missing(pair)) for pair in settings.pairs)
        return tables * settings.cells_per_order

    def keep_cells(self, about: About, order: int, cells: Sequence[Cell]) -> None:
        self._make("cells")
        told = {"about": asdict(about), "cells": [cell.as_dict(about) for cell in cells]}
        write_whole(self._cells(about.pair, order), json.dumps(told, ensure_ascii=False))

    def read(self) -> Swept:
        """All cells."""
        abouts, cells = list[About](), list[Cell]()
        for pair in self.settings.pairs:
            for order in self.settings.orders:
                about, more = self._read(pair, order)
                abouts += [about] if order == self.settings.orders[0] else []
                cells += more
        return Swept(abouts, cells)

    def _read(self, pair: tuple[str, str], order: int) -> tuple[About, list[Cell]]:
        """The cells of one table, which are those that the settings ask for."""
        file, settings = self._cells(pair, order), self.settings
        with damaged(str(file), REMOVE):
            told = shaped(dict[str, Any], parse(_bytes(file)))
            about = shaped(About, told.get("about"))
            cells = [Cell.of(row) for row in shaped(list[dict[str, Any]], told.get("cells"))]
            if about.pair != pair:
                raise ValueError(f"'about' is of {' in '.join(about.pair)}")
            here = [(*cell.pair, cell.order, cell.min_probability, cell.size) for cell in cells]
            if here != [(*pair, order, least, size) for least in settings.min_probabilities for size in settings.sizes]:
                raise ValueError("'cells' are not those of the settings")
        return about, cells

    def _make(self, name: str) -> None:
        if (self.path / name).exists() and not (self.path / name).is_dir():
            raise ValueError(f"{self.path / name} is no folder; {REMOVE}")
        (self.path / name).mkdir(exist_ok=True)

    def write(self, name: str, text: str) -> Path:
        """One of the files that tell the results."""
        if (self.path / name).is_dir():
            raise ValueError(f"{self.path / name} is a folder; {REMOVE}")
        write_whole(self.path / name, text)
        return self.path / name

    def _counts(self, language: str) -> Path:
        return self.path / "counts" / f"{slug(language)}.parquet"

    def _known(self, language: str) -> Path:
        return self.path / "counts" / f"{slug(language)}.json"

    def _cells(self, pair: tuple[str, str], order: int) -> Path:
        return self.path / "cells" / f"{slug(pair[0])}--{slug(pair[1])}--{ngrams(order)}.json"


def _bytes(file: Path) -> bytes:
    try:
        return read_file(file)
    except OSError as error:
        raise ValueError(error.strerror) from None


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The first setting that is another."""
    for name in new:
        if old.get(name) != new[name]:
            return f"{name}: was {json.dumps(old.get(name))} and is {json.dumps(new[name])}"
    return None
