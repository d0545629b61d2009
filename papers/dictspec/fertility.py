"""Table 3: tokens per word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline_lab import Sources, open_vocabulary
from papers.dictspec.data import NO_TEXTS, RUNNING, Fertility, fertility, parallel, stripped, tokenizers
from papers.dictspec.numbers import FERTILITY, paper_name
from papers.driver import Given, by_name
from papers.report import Report, Table

UNSPACED = frozenset({"ja", "km", "lo", "my", "th", "zh"})
TAIL = 100_000
SAME = 0.005
"""Tokenizers that differ less in every language need the same tokens."""
Counted = Mapping[str, Mapping[str, Fertility]]


@dataclass(frozen=True)
class Text:
    """The lines of a language, and where they are from."""

    language: str
    lines: Sequence[str]
    origin: str

    @property
    def spaced(self) -> bool:
        return self.language.partition("-")[0] not in UNSPACED


def read(sources: Sources, language: str, files: Sequence[Path]) -> Text:
    """The lines of a language's files, one file after the other."""
    lines = list[str]()
    for file in files:
        found = stripped(sources.text(file).split("\n"))
        if not found:
            raise ValueError(f"{file} has nothing but white space; give a text that has words")
        lines += found
    return Text(language, lines, ", ".join(file.name for file in files))


def texts_in(sources: Sources) -> list[Text]:
    """The parallel texts of the data folder, and the end of running text in other languages."""
    files, running = parallel(sources), sources.find(RUNNING)
    found = [read(sources, language, its) for language, its in files.items()]
    others = [place for place in running.iterdir() if any(place.glob("*.txt"))] if running is not None else []
    found += [tail(read(sources, p.name, sorted(p.glob("*.txt")))) for p in others if p.name not in files]
    if not found:
        raise ValueError(NO_TEXTS)
    return sorted(found, key=lambda text: text.language)


def tail(text: Text) -> Text:
    """The last lines that have enough words together. A dictionary is built from the lines before."""
    size, start = 0, len(text.lines)
    while start and size < TAIL:
        start -= 1
        size += len(text.lines[start].split()) if text.spaced else len(text.lines[start])
    return Text(text.language, text.lines[start:], f"the end of {text.origin}")


def usual_base(names: Sequence[str]) -> str:
    """The first of the paper's tokenizers that is here."""
    known = {paper_name(name): name for name in reversed(names)}
    return next((known[name] for name in FERTILITY if name in known), names[0])


def beside(counted: Counted, base: str) -> Iterator[str]:
    """The tokens of every other tokenizer for each of the base's, from the language where it needs the fewest."""
    for name in [name for name in counted if name != base]:
        ratios = {lang: one.tokens / counted[base][lang].tokens for lang, one in counted[name].items()}
        if all(abs(ratio - 1) < SAME for ratio in ratios.values()):
            yield f"{name} needs the tokens of {base} in every language"
        else:
            each = ", ".join(f"{ratio:.2f} in {lang}" for lang, ratio in sorted(ratios.items(), key=lambda one: one[1]))
            yield f"tokens of {name} for each of {base}: {each}"


def beside_paper(counted: Counted) -> list[tuple[str, ...]]:
    rows = list[tuple[str, ...]]()
    for name, row in counted.items():
        for language, theirs in FERTILITY.get(paper_name(name) or "", {}).items():
            if language in row:
                ours = row[language].per_word
                rows.append(
                    (f"{name} {language}", f"{ours:.2f}", f"{theirs:.2f}", f"{100 * (ours / theirs - 1):+.1f}%")
                )
    return rows


def report(counted: Counted, texts: Sequence[Text], base: str) -> Report:
    """All tables: by word, by character where there are no spaces, and beside the paper."""
    tables = list[Table]()
    for per, spaced in (("per_word", True), ("per_character", False)):
        if languages := [text.language for text in texts if text.spaced is spaced]:
            rows = [(name, *(f"{getattr(row[lang], per):.2f}" for lang in languages)) for name, row in counted.items()]
            tables.append(((f"tokens {per.replace('_', ' ')}", *languages), rows))
    notes = list(beside(counted, base))
    if rows := beside_paper(counted):
        tables.append((("", "here", "paper", "off by"), rows))
        missing = [name for name in FERTILITY if name not in map(paper_name, counted)]
        notes.append(
            f"in the paper and not here: {', '.join(missing) or 'none'}. The paper counts other texts: FLORES+"
        )
    for text in texts:
        one = counted[base][text.language]
        size = f"{one.words} words" if text.spaced else f"{one.characters} characters"
        notes.append(f"{text.language}: {text.origin}, {size} in {len(text.lines)} lines")
    data = {"fertility": counted, "base": base}
    return Report("DictSpec, Table 3: fertility", tables, notes=notes, data=data)


def table3(given: Given) -> Report:
    """Table 3: tokens per word, by tokenizer and language.

    Without options: all tokenizers of the data folder on its parallel texts, and on the last 100,000 words of running
    text in languages without a parallel text. In languages that put no spaces between words, tokens per character.
    """
    sources = Sources(given.data)
    named = by_name(given.texts)
    texts = [read(sources, language, files) for language, files in named.items()] or texts_in(sources)
    counted = dict[str, dict[str, Fertility]]()
    for name, place in tokenizers(given.tokenizers or None, sources).items():
        vocabulary = open_vocabulary(place)
        counted[name] = {text.language: fertility(vocabulary, text.lines) for text in texts}
        if silent := [language for language, one in counted[name].items() if not one.tokens]:
            raise ValueError(f"{name} makes no token of the {silent[0]} text, for it drops what it does not know")
    base = given.base or (next(iter(counted)) if given.tokenizers else usual_base(list(counted)))
    if base not in counted:
        raise ValueError(f"--base {base} is not among the tokenizers; choose {', '.join(counted)}")
    return report(counted, texts, base)
