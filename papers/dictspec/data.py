"""Tokenizers and texts: those that are named, or those of the data folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline_lab import Sources, tokenizers_in

if TYPE_CHECKING:
    from paceline_lab import Vocabulary

PARALLEL = "parallel"
"""Folder of the data folder: texts that say the same in many languages, line by line."""
AT_ONCE = 1000
"""Lines that are encoded together."""


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizers", nargs="+", metavar="T", help="folders, models, or names in DIR/tokenizers of the data folder"
    )
    parser.add_argument("--texts", type=named_text, nargs="+", metavar="LANG=FILE", help="texts, as in uk=news.txt")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the data folder (default: $PACELINE_DATA)")


def named_text(given: str) -> tuple[str, Path]:
    """A language and a file of it."""
    language, equals, file = (part.strip() for part in given.partition("="))
    if not (language and equals and file):
        raise argparse.ArgumentTypeError(f"name a language and its file, as in uk=news.txt; got {given!r}")
    return language, Path(file)


def by_language(named: Sequence[tuple[str, Path]]) -> dict[str, list[Path]]:
    return {one: [file for language, file in named if language == one] for one, _ in named}


def parallel(sources: Sources) -> dict[str, list[Path]]:
    """The parallel texts of the data folder, by language: ``crh-Latn`` of ``oldi-crh_Latn.txt``."""
    folder = sources.find(PARALLEL)
    files = sorted(folder.glob("*.txt")) if folder is not None else []
    return by_language([(file.stem.removeprefix("oldi-").replace("_", "-"), file) for file in files])


def tokenizers(named: Sequence[str] | None, sources: Sources, usual: Sequence[str] | None = None) -> dict[str, str]:
    """Name -> where it is opened from. A folder goes by its own name alone. Where none is named: the usual ones of the
    data folder, or all."""
    here = {name: str(place) for name, place in tokenizers_in(sources).items()}
    chosen = [name for name in here if usual is None or name in usual] if named is None else list(dict.fromkeys(named))
    if not chosen:
        raise ValueError("there are no tokenizers in the data folder; name some with --tokenizers T")
    places = dict[str, str]()
    for name in chosen:
        folder = Path(name).resolve() if Path(name).is_dir() else None
        label = folder.name if folder is not None else name
        places[name if label in places else label] = str(folder or here.get(name, name))
    return places


@dataclass(frozen=True)
class Fertility:
    """What lines count. White space within a line counts as characters, that around it as nothing."""

    tokens: int
    words: int
    characters: int

    @property
    def per_word(self) -> float:
        return self.tokens / self.words

    @property
    def per_character(self) -> float:
        return self.tokens / self.characters


def fertility(vocabulary: Vocabulary, lines: Sequence[str]) -> Fertility:
    """Tokens, words and characters of some lines. Every line is encoded by itself, without special tokens, as the
    sentences of a parallel text are. A word is what stands between white space."""
    bare = stripped(lines)
    words = sum(len(line.split()) for line in bare)
    if not words:
        raise ValueError("fertility is tokens per word, and these lines have no word; give a text that has words")
    parts = (bare[start : start + AT_ONCE] for start in range(0, len(bare), AT_ONCE))
    tokens = sum(len(ids) for part in parts for ids in vocabulary.encode_all(part))
    return Fertility(tokens, words, sum(map(len, bare)))


def stripped(lines: Sequence[str]) -> list[str]:
    """Lines without the white space around them; lines of nothing else are left out."""
    return [bare for line in lines if (bare := line.strip())]
