"""A whole sweep: it goes on where it was stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.bench.dictionaries.sweep.cells import Swept
from paceline.bench.dictionaries.sweep.crew import measure_all
from paceline.bench.dictionaries.sweep.folder import Folder
from paceline.bench.dictionaries.sweep.settings import Settings
from paceline.bench.dictionaries.sweep.work import count_language
from paceline.files import claimed

Advance = Callable[[str, int, int], None]


def sweep(path: Path, settings: Settings, workers: int = 1, advance: Advance = lambda *_: None) -> Swept:
    """Every cell, from the folder as far as it is there already."""
    with claimed(path):
        folder = Folder(path, settings)
        folder.begin()
        try:
            _fill(folder, workers, advance)
        finally:
            folder.leave()
        return folder.read()


def _fill(folder: Folder, workers: int, advance: Advance) -> None:
    """Make every cell that is missing."""
    settings = folder.settings
    pairs = [pair for pair in settings.pairs if folder.missing(pair)]
    for language in dict.fromkeys(language for _, language in pairs):
        if not folder.has_counts(language):
            _count(folder, language, advance)
    whole = len(settings.pairs) * len(settings.orders) * settings.cells_per_order
    sizes = {language: folder.known(language).train_words for _, language in pairs}
    pairs.sort(key=lambda pair: -sizes[pair[1]])  # the longest first, so that none is left alone at the end
    measure_all(folder, pairs, workers, lambda doing: advance(doing, folder.done, whole))


def _count(folder: Folder, language: str, advance: Advance) -> None:
    doing = f"counting words of {language}"
    advance(doing, 0, 0)
    count_language(folder, language, lambda _, read, whole: advance(doing, read, whole))
