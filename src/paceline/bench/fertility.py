"""Fertility: how many tokens a tokenizer makes of a word.

Every line of a text is encoded by itself and without special tokens, as the sentences of a parallel text are: a
tokenizer that marks the beginning of a word marks that of the line's first word too. A word is what stands between
white space; in languages that put none between words the tokens of a character are told instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.bench.suites.running import FOLDER as RUNNING
from paceline.bench.suites.running import UNSPACED, languages_of
from paceline.bench.suites.sources import Sources
from paceline.vocabulary import Vocabulary

PARALLEL = "parallel"
"""The folder of texts that say the same in many languages, line by line."""
TOKENIZERS = "tokenizers"
TAIL = 100_000
"""Words of running text, from its end, that stand in for a parallel text."""
AT_ONCE = 1000
"""Lines that are encoded together."""
PAPER: Mapping[str, Mapping[str, float]] = {
    "Gemma 3": {"en": 1.28, "uk": 2.38, "crh-Cyrl": 3.30, "crh-Latn": 2.98},
    "Mistral": {"en": 1.42, "uk": 3.18, "crh-Cyrl": 4.20, "crh-Latn": 3.92},
    "Mistral NeMo": {"en": 1.26, "uk": 2.62, "crh-Cyrl": 3.51, "crh-Latn": 3.07},
    "Qwen 3.5": {"en": 1.30, "uk": 2.59, "crh-Cyrl": 3.51, "crh-Latn": 3.01},
    "Llama 3.3": {"en": 1.23, "uk": 2.38, "crh-Cyrl": 3.89, "crh-Latn": 2.94},
}
"""Table 3 of the DictSpec paper: on FLORES+, and for crh-Cyrl on the validation split of its own corpus."""
NAMED = {
    "Gemma 3": r"gemma-?3(?!\d)",
    "Mistral": r"mistral-(7b|v[0-3])",
    "Mistral NeMo": r"mistral-nemo",
    "Qwen 3.5": r"qwen-?3\.5",
    "Llama 3.3": r"llama-?3(?![\db])",
}
"""The paper's tokenizers, by what the names of folders and models that hold them have in them."""

Advance = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Fertility:
    """What a text counts. White space within a line counts as characters, that around it as nothing."""

    tokens: int
    words: int
    characters: int

    @property
    def per_word(self) -> float:
        return self.tokens / self.words

    @property
    def per_character(self) -> float:
        return self.tokens / self.characters


@dataclass(frozen=True)
class Text:
    """The lines of a language, and where they are from."""

    language: str
    lines: Sequence[str]
    origin: str

    @property
    def spaced(self) -> bool:
        """Whether white space tells its words apart."""
        return self.language.partition("-")[0] not in UNSPACED


def fertility(vocabulary: Vocabulary, lines: Sequence[str]) -> Fertility:
    """Tokens, words and characters of the lines, each line encoded by itself."""
    told = _told(lines)
    words, characters = sum(len(line.split()) for line in told), sum(map(len, told))
    if not words:
        raise ValueError("fertility is told per word, and these lines have none; give a text that has words")
    parts = (told[start : start + AT_ONCE] for start in range(0, len(told), AT_ONCE))
    tokens = sum(len(ids) for part in parts for ids in vocabulary.encode_all(part))
    return Fertility(tokens, words, characters)


def table(
    vocabularies: Mapping[str, Vocabulary], texts: Sequence[Text], advance: Advance = lambda *_: None
) -> dict[str, dict[str, Fertility]]:
    """Of every tokenizer, the fertility in every language."""
    found: dict[str, dict[str, Fertility]] = {name: {} for name in vocabularies}
    total = len(vocabularies) * len(texts)
    for number, (name, text) in enumerate((name, text) for name in vocabularies for text in texts):
        advance(f"{name}, {text.language}", number, total)
        found[name][text.language] = counts = fertility(vocabularies[name], text.lines)
        if not counts.tokens:
            raise ValueError(f"{name} makes no token of the {text.language} text, for it drops what it does not know")
    return found


def beside(counted: Mapping[str, Mapping[str, Fertility]], base: str) -> dict[str, dict[str, float]]:
    """The tokens of every other tokenizer for each of the base's, by language, from the language where it needs the
    fewest."""
    ratios = {
        name: {language: told.tokens / counted[base][language].tokens for language, told in row.items()}
        for name, row in counted.items()
        if name != base
    }
    return {name: dict(sorted(row.items(), key=lambda cell: cell[1])) for name, row in ratios.items()}


def paper_name(name: str) -> str | None:
    """Which tokenizer of the paper a folder or model is named after."""
    return next((known for known, pattern in NAMED.items() if re.search(pattern, name.lower())), None)


def tokenizers_in(sources: Sources) -> dict[str, Path]:
    """The tokenizers of the data folder, by name."""
    folder = sources.find(TOKENIZERS)
    return {place.name: place for place in sorted(folder.iterdir()) if place.is_dir()} if folder is not None else {}


def texts_in(sources: Sources) -> list[Text]:
    """The parallel texts of the data folder, and of languages that have running text alone, the end of that."""
    folder = sources.find(PARALLEL)
    files = sorted(folder.glob("*.txt")) if folder is not None and folder.is_dir() else []
    by_language = {_language(file): [other for other in files if _language(other) == _language(file)] for file in files}
    texts = [read(sources, language, its) for language, its in by_language.items()]
    texts += [_tail(sources, language) for language in languages_of(sources) if language not in by_language]
    return sorted(texts, key=lambda text: text.language)


def read(sources: Sources, language: str, files: Sequence[Path]) -> Text:
    """The lines of a language's files, one file after the other."""
    lines = [line for file in files for line in _lines(sources, file)]
    return Text(language, lines, ", ".join(_name(sources, file) for file in files))


def _tail(sources: Sources, language: str) -> Text:
    """The last lines of running text that have enough words together. A dictionary is built from what comes before."""
    folder = sources.find(f"{RUNNING}/{language}")
    assert folder is not None, "a language of running text has a folder"
    whole = read(sources, language, sorted(folder.glob("*.txt")))
    words, start = 0, len(whole.lines)
    while start and words < TAIL:
        start -= 1
        words += len(whole.lines[start].split()) if whole.spaced else len(whole.lines[start])
    return Text(language, whole.lines[start:], f"the end of {whole.origin}")


def _lines(sources: Sources, file: Path) -> list[str]:
    text = sources.text(file)
    if not text:
        raise ValueError(f"{file} is empty; give a text that has words")
    lines = _told(text.split("\n"))
    if not lines:
        raise ValueError(f"{file} has nothing but white space; give a text that has words")
    return lines


def _told(lines: Sequence[str]) -> list[str]:
    """Without the white space around them, and without lines that have nothing else."""
    return [bare for line in lines if (bare := line.strip())]


def _name(sources: Sources, file: Path) -> str:
    folder = sources.folder
    return file.relative_to(folder).as_posix() if folder is not None and file.is_relative_to(folder) else str(file)


def _language(file: Path) -> str:
    """``crh-Latn`` of ``oldi-crh_Latn.txt``."""
    return file.stem.removeprefix("oldi-").replace("_", "-")
