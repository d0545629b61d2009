"""Tokenizers and texts: those that are named, or those of the data folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline_lab import Sources, tokenizers_in
from papers.driver import by_name

if TYPE_CHECKING:
    from paceline_lab import Vocabulary

PARALLEL, RUNNING = "parallel", "text"
"""Folders of the data folder: texts that say the same in many languages, line by line, and running text by language."""
NO_TEXTS = "there are no texts in the data folder; name some with --texts LANG=FILE"
AT_ONCE = 1000
"""Lines that are encoded together."""


def parallel(sources: Sources) -> dict[str, list[Path]]:
    """The parallel texts of the data folder, by language: ``crh-Latn`` of ``oldi-crh_Latn.txt``."""
    folder = sources.find(PARALLEL)
    files = sorted(folder.glob("*.txt")) if folder is not None else []
    return by_name([(file.stem.removeprefix("oldi-").replace("_", "-"), file) for file in files])


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
    """The counts of lines. White space within a line counts as characters, that around it as nothing."""

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
