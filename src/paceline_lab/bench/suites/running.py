"""Prompts from running text, one line a paragraph: to be continued, summarized, or replayed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.errors import InputError
from paceline_lab.bench.suites.prompts import CELL, Prompt, chosen, spread
from paceline_lab.bench.suites.sources import Sources

FOLDER = "text"
"""Below it, a folder for each language."""
UNSPACED = frozenset({"ja", "km", "lo", "my", "th", "zh"})
"""Languages that put no spaces between words; their text is measured in characters."""
BEGINNING = 40, 80
"""The length of a prompt, in words or characters."""
REST = 1.2
"""A paragraph must be this much longer than its beginning."""
PASSAGE = 150, 400
"""Words or characters of a passage to summarize, at least."""
REPLAYED = 600, 1600
"""Words or characters of a passage to replay, at least."""


class Paragraph(NamedTuple):
    """Text, the name of its file without the suffix, and its line there."""

    text: str
    file: str
    line: int


def languages_of(sources: Sources) -> list[str]:
    """The languages of the running text."""
    folder = sources.find(FOLDER)
    return sorted(place.name for place in folder.iterdir() if any(place.glob("*.txt"))) if folder else []


def continuation(
    sources: Sources, argument: str, languages: Sequence[str] | None, limit: int | None
) -> tuple[list[Prompt], list[str]]:
    """The beginnings of real paragraphs, and notes. The languages may stand behind the suite's name, with commas."""
    there = languages_of(sources)
    if not there:
        raise InputError(f"continuation needs running text and there is none: put DIR/{FOLDER}/LANG/*.txt under --data")
    if argument and languages is not None:
        raise InputError(
            f"continuation:{argument} names its languages already; leave --langs out, or write --suite continuation"
        )
    asked = [name.strip() for name in argument.split(",")] if argument else languages
    prompts, notes = list[Prompt](), list[str]()
    for language in chosen("continuation", "language", asked, there):
        found = [
            Prompt(
                key=f"{language}-continuation-{file}-{line}",
                task="continuation",
                language=language,
                turns=(text,),
                chat=False,
            )
            for text, file, line in _beginnings(sources, language, limit or CELL)
        ]
        prompts += found
        if len(found) < (limit or CELL):
            notes.append(f"{language} has {len(found)} prompts: no more of its paragraphs are long enough")
    return prompts, notes


def passages(sources: Sources, language: str, count: int) -> list[Paragraph]:
    """Passages of whole paragraphs from all over the files of a language, which take turns."""
    per_file = [
        [Paragraph("\n".join(part), file.stem, line) for line, part in _pieces(sources.text(file), language, PASSAGE)]
        for file in _files(sources, language)
    ]
    return _in_turns(per_file, count)


def replay(sources: Sources, path: Path) -> list[Prompt]:
    """A text file in passages of whole lines, one after the other: how each begins, and how it goes on. The end of the
    file is left out where it is too short for both."""
    text = sources.text(path)
    language = "zh" if text.count(" ") * 20 < len(text) else ""  # cut by characters where there are few spaces
    prompts = list[Prompt]()
    for line, part in _pieces(text, language, REPLAYED, every=True):
        whole = "\n".join(part)
        begun = _beginning(whole, language)
        if begun is None or not (rest := whole[len(begun) :]).strip():
            continue
        key = f"{path.stem}-{line}"
        prompts.append(Prompt(key=key, task="replay", language="und", turns=(begun,), chat=False, script=rest))
    if not prompts:
        words = BEGINNING[0]
        raise InputError(f"{path} holds too little text to replay: a passage begins with {words} words and goes on")
    return prompts


def _beginnings(sources: Sources, language: str, count: int) -> list[Paragraph]:
    least = REST * BEGINNING[_unspaced(language)]
    per_file = [
        [
            Paragraph(begun, file.stem, number)
            for number, line in enumerate(sources.text(file).split("\n"), start=1)
            if (begun := _beginning(line, language)) is not None and _size(line, language) >= least
        ]
        for file in _files(sources, language)
    ]
    return _in_turns(per_file, count)


def _files(sources: Sources, language: str) -> list[Path]:
    folder = sources.find(f"{FOLDER}/{language}")
    return sorted(folder.glob("*.txt")) if folder is not None else []


def _in_turns(per_file: list[list[Paragraph]], count: int) -> list[Paragraph]:
    """``count`` paragraphs, in equal shares of the files: what a small file cannot give, the others do. Each share
    comes from all over its file, and files take turns."""
    picked: dict[int, list[Paragraph]] = {}
    for rank, number in enumerate(sorted(range(len(per_file)), key=lambda at: len(per_file[at]))):
        share = -(-(count - sum(map(len, picked.values()))) // (len(per_file) - rank))
        picked[number] = spread(per_file[number], share)
    ranked = [(place / len(few), number, one) for number, few in picked.items() for place, one in enumerate(few)]
    return [one for _, _, one in sorted(ranked)]


def _pieces(text: str, language: str, least: tuple[int, int], every: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Consecutive lines that are long enough together, with the number of the first. The last lines may be too short:
    they are left out unless ``every`` line is wanted."""
    part, size, start = list[str](), 0, 1
    for number, line in enumerate(text.split("\n"), start=1):
        part.append(line)
        size += _size(line, language)
        if size >= least[_unspaced(language)]:
            yield start, part
            part, size, start = [], 0, number + 1
    if every and part:
        yield start, part


def _unspaced(language: str) -> bool:
    return language.partition("-")[0] in UNSPACED


def _size(text: str, language: str) -> int:
    return len(text) if _unspaced(language) else len(text.split())


def _beginning(text: str, language: str) -> str | None:
    """The first words of a text, verbatim; None if it has fewer."""
    words, characters = BEGINNING
    if _unspaced(language):
        return text[:characters] if len(text) >= characters else None
    ends = [word.end() for word in re.finditer(r"\S+", text)]
    return text[: ends[words - 1]] if len(ends) >= words else None
