"""``paceline dict sweep``: dictionaries of all sizes and probabilities, emulated."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.common import Subparsers, add_json, add_trust, aligned, inputs_of, print_json, progress, utf8
from paceline.cli.dictionary.fertility import named_text
from paceline.cli.streams import say
from paceline.files import check_apart

if TYPE_CHECKING:
    from paceline.bench.dictionaries.findings import Findings
    from paceline.bench.dictionaries.sweep import Cell, Settings, Swept
    from paceline.bench.suites.sources import Sources

NGRAMS = 2_000_000
TOKENIZERS = ("mistral-v3", "mistral-nemo-tekken", "llama3", "qwen2-2.5-3", "gpt2")
LANGUAGES = ("uk", "crh-Cyrl", "crh-Latn")
"""What is taken from the data folder where nothing is named: the paper's languages, and five tokenizers as it has."""


def add(actions: Subparsers) -> None:
    parser = actions.add_parser(
        "sweep",
        help="emulate dictionaries of many sizes, orders and probabilities",
        description=(
            "Repeats the emulation of the DictSpec paper: for every tokenizer and language, dictionaries of every "
            "order, size and least probability are built from one part of the text, and the steps that the rest of it "
            "takes with them are counted exactly. Writes results.jsonl, report.md and report.html. The same command "
            "goes on with a sweep that was stopped."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results are kept")
    parser.add_argument(
        "--tokenizers",
        type=utf8,
        nargs="+",
        metavar="T",
        help="folders, bundled models or names of transformers, or names in DIR/tokenizers of the data folder "
        f"(default: {' '.join(TOKENIZERS)} from there)",
    )
    add_trust(parser)
    parser.add_argument(
        "--texts",
        type=named_text,
        nargs="+",
        metavar="LANG=FILE",
        help="texts, as in uk=news.txt; files and folders of one language are one corpus, which is held in memory "
        f"several times (default: DIR/text/LANG of the data folder for {', '.join(LANGUAGES)})",
    )
    _add_dimensions(parser)
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help=f"processes, each of which holds a language: about 5 GB for 2.3 million words and {NGRAMS} n-grams of "
        "each length (default: one a core)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="where texts and tokenizers lie (default: $PACELINE_DATA, ../shared/data)",
    )
    parser.add_argument("--show", choices=("cells",), help="cells: a line for each dictionary, too")
    add_json(parser)
    parser.set_defaults(run=run)


def _add_dimensions(parser: argparse.ArgumentParser) -> None:
    from paceline.bench.dictionaries import paper

    def listed(values: Sequence[float]) -> str:
        return " ".join(f"{value:g}" if value < 1000 else str(value) for value in values)

    parser.add_argument(
        "--orders",
        type=int,
        nargs="+",
        default=paper.ORDERS,
        metavar="N",
        help=f"n-grams of up to N words (default: {listed(paper.ORDERS)})",
    )
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=paper.SIZES,
        metavar="N",
        help=f"entries (default: {listed(paper.SIZES)})",
    )
    parser.add_argument(
        "--min-probs",
        type=float,
        nargs="+",
        default=paper.MIN_PROBABILITIES,
        metavar="P",
        help=f"least probability of every token that is proposed (default: {listed(paper.MIN_PROBABILITIES)})",
    )
    parser.add_argument(
        "--test-words",
        type=int,
        default=100_000,
        metavar="N",
        help="words of each language that are kept apart and written, whole documents (default: 100000)",
    )
    parser.add_argument(
        "--ngrams",
        type=int,
        default=NGRAMS,
        metavar="N",
        help="so many n-grams of each number of words are looked at, the most frequent; fewer take less memory "
        f"(default: {NGRAMS})",
    )
    parser.add_argument(
        "--budget", type=int, default=8, metavar="N", help="tokens that a draft may have (default: 8, at most 8)"
    )


def run(options: argparse.Namespace) -> int:
    from paceline.bench.dictionaries.findings import findings_of
    from paceline.bench.dictionaries.report import report
    from paceline.bench.dictionaries.sweep import sweep
    from paceline.dictionary.engine import cores

    workers = cores() if options.workers is None else options.workers
    if workers < 1:
        raise ValueError(f"--workers must be at least 1, not {workers}")
    check_apart(options.out, inputs_of(options))
    with progress("opening tokenizers") as advance:
        settings = _settings(options)
        swept = sweep(options.out, settings, workers, advance)
    findings = findings_of(swept)
    report(options.out, settings, swept, findings)
    say("\n".join(_told(swept, findings, cells=options.show is not None)))
    say(f"\nresults, report.md and report.html in {options.out}")
    if options.json:
        print_json({"out": str(options.out)} | swept.as_dict() | {"findings": findings.as_dict()})
    return 0


def _settings(options: argparse.Namespace) -> Settings:
    from dataclasses import replace

    from paceline.bench.dictionaries.sweep import Settings
    from paceline.bench.suites.sources import Sources
    from paceline.targets.replay import open_vocabulary

    sources = Sources(options.data)
    settings = Settings(
        tokenizers=_tokenizers(options.tokenizers, sources),
        texts=_texts(options.texts, sources),
        orders=tuple(sorted(set(options.orders))),
        sizes=tuple(sorted(set(options.sizes))),
        min_probabilities=tuple(sorted(set(options.min_probs))),
        test_words=options.test_words,
        budget=options.budget,
        ngrams=options.ngrams,
    )
    prints = {name: open_vocabulary(place).fingerprint for name, place in settings.tokenizers.items()}
    return replace(settings, fingerprints=prints)


def _tokenizers(named: Sequence[str] | None, sources: Sources) -> dict[str, str]:
    """Name -> where it is opened from. Those in the data folder go by their folder's name alone."""
    from paceline.bench.fertility import tokenizers_in

    here = tokenizers_in(sources)
    chosen = [name for name in TOKENIZERS if name in here] if named is None else named
    if not chosen:
        raise ValueError("there are no tokenizers in the data folder; name some with --tokenizers T")
    places = dict[str, str]()
    for name in dict.fromkeys(chosen):
        own = Path(name).is_dir()
        label = Path(name).resolve().name if own else name
        places[name if label in places else label] = str(Path(name).resolve() if own else here.get(name, name))
    return places


def _texts(named: Sequence[tuple[str, Path]] | None, sources: Sources) -> dict[str, list[str]]:
    if named is not None:
        languages = dict.fromkeys(language for language, _ in named)
        return {one: [str(file) for language, file in named if language == one] for one in languages}
    found = dict[str, list[str]]()
    for language in LANGUAGES:
        folder = sources.find(f"text/{language}")
        files = sorted(folder.glob("*.txt")) if folder is not None else []
        if files:
            found[language] = [str(file) for file in files]
    if not found:
        raise ValueError("there are no texts in the data folder; name some with --texts LANG=FILE")
    return found


def _told(swept: Swept, findings: Findings, *, cells: bool) -> Iterator[str]:
    if cells:
        head = ("", "order", "entries", "p", *HEAD[1:], "")
        yield from aligned([head, *(_line(cell, swept) for cell in swept.cells)])
        yield ""
    yield "the best dictionary of each tokenizer and language"
    yield from aligned([(*HEAD, "  dictionary"), *(_best(cell, swept) for cell in findings.best.values())])
    yield ""
    yield from (f"- {sentence}" for sentence in findings.sentences)


HEAD = ("", "speed-up", "coverage", "accepted/draft", "acceptance", "steps/word", "without")


def _figures(cell: Cell, swept: Swept) -> tuple[str, ...]:
    tally, about = cell.tally, swept.about(cell.pair)
    ratios = (tally.speed_up, tally.coverage, tally.accepted_per_draft, tally.acceptance)
    steps = tally.steps / about.test_words, about.steps_per_word
    return *(f"{value:.3f}" for value in ratios), *(f"{value:.3f}" for value in steps)


def _line(cell: Cell, swept: Swept) -> tuple[str, ...]:
    more = "" if cell.filled else f"  of {cell.size}"
    return (
        " ".join(cell.pair),
        str(cell.order),
        str(cell.entries),
        f"{cell.min_probability:g}",
        *_figures(cell, swept),
        more,
    )


def _best(cell: Cell, swept: Swept) -> tuple[str, ...]:
    from paceline.bench.dictionaries.sweep.cells import ngrams

    which = f"  {ngrams(cell.order)}, {cell.entries} entries, p {cell.min_probability:g}"
    return " ".join(cell.pair), *_figures(cell, swept), which
