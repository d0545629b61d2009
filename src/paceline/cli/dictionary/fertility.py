"""``paceline dict fertility``: how many tokens tokenizers make of a word, by language."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.common import Subparsers, add_json, add_trust, aligned, print_json, progress, utf8
from paceline.cli.streams import say

if TYPE_CHECKING:
    from paceline.bench.fertility import Fertility, Text
    from paceline.bench.suites.sources import Sources
    from paceline.vocabulary import Vocabulary

SAME = 0.005
"""Tokenizers that differ less in every language are said to need the same tokens."""


def add(actions: Subparsers) -> None:
    parser = actions.add_parser(
        "fertility",
        help="count the tokens that words take, by tokenizer and language",
        description=(
            "Counts how many tokens each tokenizer makes of a word, in each language: where words fall into many "
            "tokens, a dictionary has much to complete. Lines are encoded one by one, without special tokens; words "
            "are what stands between white space, and in languages without spaces characters are counted instead. "
            "The values of the DictSpec paper stand beside those of tokenizers that it has too."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--tokenizers",
        type=utf8,
        nargs="+",
        metavar="T",
        help="folders, bundled models or names of transformers; the first is what others are compared with "
        "(default: all in DIR/tokenizers)",
    )
    add_trust(parser)
    parser.add_argument(
        "--texts",
        type=named_text,
        nargs="+",
        metavar="LANG=FILE",
        help="texts in UTF-8, as in uk=news.txt; files of one language are taken together (default: all in "
        "DIR/parallel, and the end of DIR/text/LANG where there is no other text of a language)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="where texts and tokenizers lie (default: $PACELINE_DATA, ../shared/data)",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def named_text(given: str) -> tuple[str, Path]:
    """A language and a file of it."""
    language, equals, file = (part.strip() for part in given.partition("="))
    if not (language and equals and file):
        raise argparse.ArgumentTypeError(f"name a language and its file, as in uk=news.txt; got {given!r}")
    return language, Path(file)


def run(options: argparse.Namespace) -> int:
    from paceline.bench.fertility import beside, table
    from paceline.bench.suites.sources import Sources

    sources = Sources(options.data)
    texts = _texts(options.texts, sources)
    with progress("opening tokenizers") as advance:
        vocabularies = _vocabularies(options.tokenizers, sources)
        counted = table(vocabularies, texts, advance)
    base = next(iter(vocabularies)) if options.tokenizers else _base(vocabularies)
    ratios = beside(counted, base)
    findings = list(_findings(ratios, base))
    _show(counted, texts, findings)
    if options.json:
        more = {"base": base, "beside": ratios, "findings": findings, "sources": sources.read}
        print_json({**_as_json(counted, texts), **more})
    return 0


def _texts(named: Sequence[tuple[str, Path]] | None, sources: Sources) -> list[Text]:
    from paceline.bench.fertility import PARALLEL, read, texts_in

    if named is not None:
        languages = dict.fromkeys(language for language, _ in named)
        return [read(sources, one, [file for language, file in named if language == one]) for one in languages]
    texts = texts_in(sources)
    if not texts:
        raise ValueError(f"there are no texts {_here(sources, PARALLEL)}; name some with --texts LANG=FILE")
    return texts


def _vocabularies(named: Sequence[str] | None, sources: Sources) -> dict[str, Vocabulary]:
    """By the names that tables have for them. Those in the data folder go by their folder's name alone."""
    from paceline.bench.fertility import TOKENIZERS, tokenizers_in
    from paceline.targets.replay import open_vocabulary

    here = tokenizers_in(sources)
    if not (named or here):
        raise ValueError(f"there are no tokenizers {_here(sources, TOKENIZERS)}; name some with --tokenizers T")
    opened = {}
    for name in here if named is None else dict.fromkeys(named):
        place = name if name not in here or Path(name).is_dir() else str(here[name])
        label = Path(name).resolve().name if Path(name).is_dir() else name
        opened[label if label not in opened else name] = open_vocabulary(place)
    return opened


def _here(sources: Sources, folder: str) -> str:
    return f"in {sources.folder / folder}" if sources.folder is not None else "here: there is no data folder"


def _base(names: Mapping[str, Any]) -> str:
    """The tokenizer that others are compared with, where none was named: the paper's first of those here."""
    from paceline.bench.fertility import PAPER, paper_name

    known = {paper_name(name): name for name in reversed(list(names))}
    return next((known[name] for name in PAPER if name in known), next(iter(names)))


def _findings(ratios: Mapping[str, Mapping[str, float]], base: str) -> Iterator[str]:
    """A line per tokenizer: where it needs fewer tokens than the base, and where more."""
    for name, row in ratios.items():
        if all(abs(ratio - 1) < SAME for ratio in row.values()):
            yield f"{name} needs the tokens of {base} in every language"
            continue
        (first, least), *others = row.items()
        rest = "".join(f"; in {language} {ratio:.2f}x" for language, ratio in others)
        yield f"in {first}, {name} needs {least:.2f}x the tokens of {base}{rest}"


def _show(counted: Mapping[str, Mapping[str, Fertility]], texts: Sequence[Text], findings: Sequence[str]) -> None:
    spaced = [text.language for text in texts if text.spaced]
    unspaced = [text.language for text in texts if not text.spaced]
    blocks = [list(_table("tokens per word", spaced, counted, lambda told: told.per_word))] if spaced else []
    if unspaced:
        blocks.append(list(_table("tokens per character", unspaced, counted, lambda told: told.per_character)))
    blocks += [block for block in (list(_beside_paper(counted)), list(findings)) if block]
    blocks.append(list(_origins(texts, next(iter(counted.values())))))
    say("\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks))


def _table(
    title: str,
    languages: Sequence[str],
    counted: Mapping[str, Mapping[str, Fertility]],
    value: Callable[[Fertility], float],
) -> Iterator[str]:
    rows = [(title, *languages, "")]
    for name, row in counted.items():
        rows.append((name, *(f"{value(row[language]):.2f}" for language in languages), ""))
    return aligned(rows)


def _paper(counted: Mapping[str, Mapping[str, Fertility]]) -> Iterator[tuple[str, str, str, float, float]]:
    """Tokenizer, its name in the paper, language, our value and the paper's: those that both have."""
    from paceline.bench.fertility import PAPER, paper_name

    for name, row in counted.items():
        if (known := paper_name(name)) is not None:
            for language, value in PAPER[known].items():
                if language in row:
                    yield name, known, language, row[language].per_word, value


def _missing(counted: Mapping[str, Any]) -> list[str]:
    """The paper's tokenizers that are not among these."""
    from paceline.bench.fertility import PAPER, paper_name

    here = {paper_name(name) for name in counted}
    return [name for name in PAPER if name not in here]


def _beside_paper(counted: Mapping[str, Mapping[str, Fertility]]) -> Iterator[str]:
    rows = [
        (name, language, f"{ours:.2f}", f"{theirs:.2f}", f"{_deviation(ours, theirs):+.1f}%", f"  {known}")
        for name, known, language, ours, theirs in _paper(counted)
    ]
    if not rows:
        return
    yield "beside the DictSpec paper's Table 3, which counts other texts: FLORES+, and its own for crh-Cyrl"
    yield from aligned([("", "", "here", "paper", "off by", "  there called"), *rows])
    if missing := _missing(counted):
        yield f"in that table, and not among these tokenizers: {', '.join(missing)}"


def _deviation(ours: float, theirs: float) -> float:
    return 100 * (ours / theirs - 1)


def _origins(texts: Sequence[Text], row: Mapping[str, Fertility]) -> Iterator[str]:
    for text in texts:
        counts = row[text.language]
        size = f"{counts.words} words" if text.spaced else f"{counts.characters} characters"
        yield f"{text.language}: {text.origin}, {size} in {len(text.lines)} lines"


def _as_json(counted: Mapping[str, Mapping[str, Fertility]], texts: Sequence[Text]) -> dict[str, Any]:
    spaced = {text.language: text.spaced for text in texts}
    first = next(iter(counted.values()))
    paper: dict[str, dict[str, Any]] = {}
    for name, known, language, ours, theirs in _paper(counted):
        cell = {"paper": theirs, "deviation_percent": round(_deviation(ours, theirs), 2)}
        paper.setdefault(name, {"called": known, "languages": {}})["languages"][language] = cell
    return {
        "fertility": {
            name: {language: told.per_word for language, told in row.items() if spaced[language]}
            for name, row in counted.items()
        },
        "per_character": {
            name: {language: told.per_character for language, told in row.items() if not spaced[language]}
            for name, row in counted.items()
        },
        "paper": paper,
        "paper_only": _missing(counted),
        "texts": {
            text.language: {
                "from": text.origin,
                "lines": len(text.lines),
                "words": first[text.language].words if text.spaced else None,
                "characters": first[text.language].characters,
            }
            for text in texts
        },
    }
