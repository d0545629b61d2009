"""Openly licensed text to train what ships: public domain, CC0, CC BY and MIT, nothing that asks for share-alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import InputError

PASSAGE_CHARACTERS = 5000
"""Lines are gathered into passages of about this length; an end-of-text token stands between passages."""
HELD_OUT_SHARE = 0.02
"""The end of every file is never trained on; of novels these are other books."""


@dataclass(frozen=True)
class Source:
    """One file, where it came from, and how often it is read."""

    file: str
    language: str
    origin: str
    licence: str
    repeats: int = 1

    @property
    def technical(self) -> bool:
        return "ELTeC" not in self.file and "gec" not in self.file


SOURCES = (
    Source("en/ELTeC-eng.txt", "en", "COST-ELTeC/ELTeC-eng @ 3db3b6738a83", "texts public domain, markup CC BY 4.0"),
    Source("en/opensource-guide.txt", "en", "github/opensource.guide @ ebc9678e39b5", "CC BY 4.0", repeats=3),
    Source("pl/ELTeC-pol.txt", "pl", "COST-ELTeC/ELTeC-pol @ 95fe196e3572", "public domain"),
    Source("pl/opensource-guide.txt", "pl", "github/opensource.guide @ ebc9678e39b5", "CC BY 4.0", repeats=3),
    Source("pl/python-docs-pl.txt", "pl", "python/python-docs-pl @ c306d49f3e13", "CC0", repeats=3),
    Source("uk/ELTeC-ukr.txt", "uk", "COST-ELTeC/ELTeC-ukr @ a8c3d71301cd", "texts public domain, markup CC BY 4.0"),
    Source("uk/ua-gec-target.txt", "uk", "grammarly/ua-gec @ 4757f72f192c", "CC BY 4.0"),
    Source("uk/docs-uk.txt", "uk", "vuejs-translations/docs-uk @ 28b6af923ac4", "MIT", repeats=2),
)


@dataclass(frozen=True)
class CorpusText:
    """One source, read and divided."""

    source: Source
    training: list[str]
    held_out: list[str]


def read(folder: Path) -> list[CorpusText]:
    """Every source below ``folder``, as passages."""
    texts = []
    for source in SOURCES:
        passages = list(_passages(folder / source.file))
        kept = max(1, round(len(passages) * HELD_OUT_SHARE))
        texts.append(CorpusText(source, passages[:-kept], passages[-kept:]))
    return texts


def _passages(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise InputError(f"no text at {path}; give --text the folder that holds {', '.join(s.file for s in SOURCES)}")
    gathered, characters = list[str](), 0
    for line in path.read_text(encoding="utf8").splitlines():
        if line.strip():
            gathered.append(line)
            characters += len(line)
        if characters >= PASSAGE_CHARACTERS:
            yield "\n".join(gathered)
            gathered, characters = [], 0
    if gathered:
        yield "\n".join(gathered)


def sample_for_tokenizer(texts: Sequence[CorpusText], characters: int) -> list[str]:
    """Passages from all over the sources, about ``characters`` per language, so that no language rules the merges."""
    chosen: list[str] = []
    for language in sorted({text.source.language for text in texts}):
        pool = [p for text in texts if text.source.language == language for p in text.training]
        step = max(1, sum(map(len, pool)) // characters)
        chosen += pool[::step]
    return chosen
