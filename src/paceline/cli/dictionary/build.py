"""``paceline dict build``: a dictionary out of text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.common import MODEL, Subparsers, add_json, add_trust, inputs_of, print_json, progress, utf8
from paceline.cli.dictionary.info import show, tell
from paceline.cli.streams import say
from paceline.errors import InputError, need
from paceline.files import check_output

if TYPE_CHECKING:
    from paceline.dictionary.build import Advance
    from paceline.dictionary.corpus import Corpus
    from paceline.dictionary.counting import Counts

NGRAMS = 1_000_000


def add(actions: Subparsers) -> None:
    parser = actions.add_parser(
        "build",
        help="write the dictionary of a language for a tokenizer",
        description=(
            "Counts the words of a corpus and which words stand together, looks how the tokenizer spells them in "
            "running text, and writes which tokens go on in one way: a file for the methods dictionary, hybrid and "
            "auto, all of it or nothing. The same text gives the same bytes."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--tokenizer",
        "--model",
        "-m",
        default=MODEL,
        metavar="T",
        help=f"the tokenizer to build for: a folder or name of transformers, or a bundled model (default: {MODEL})",
    )
    add_trust(parser)
    parser.add_argument(
        "--text",
        type=utf8,
        nargs="+",
        required=True,
        metavar="FILE",
        help="plain text, .gz, .zst, .jsonl, .parquet, a folder of such files, a saved dataset, or hf:NAME[:SPLIT]",
    )
    parser.add_argument("--field", default="text", metavar="NAME", help="where records have their text (default: text)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write it, say uk.dict")
    parser.add_argument("--language", default="", type=utf8, metavar="LANG", help="what it says of itself, as in uk")
    parser.add_argument("--licence", default="", type=utf8, metavar="NOTE", help="a note on the licence of the text")
    _add_recipe(parser)
    _add_counting(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def _add_counting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--min-count", type=int, default=1, metavar="N", help="leave rarer n-grams out (default: 1)")
    parser.add_argument(
        "--ngrams",
        type=int,
        default=NGRAMS,
        metavar="N",
        help=f"so many n-grams of each number of words are looked at, the most frequent (default: {NGRAMS})",
    )
    parser.add_argument(
        "--memory",
        default="2GB",
        metavar="SIZE",
        help="what counting may take, with --cluster each of its tasks; the rest goes to disk (default: 2GB)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the counting (default: all cores)")
    parser.add_argument(
        "--spill", type=Path, metavar="DIR", help="where counting may use the disk (default: temporary)"
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="count on a Ray cluster: its address, or 'local' to start one on this machine; not with --threads",
    )


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--order", type=int, default=3, metavar="N", help="words of an n-gram, 1 to 3 (default: 3)")
    parser.add_argument(
        "--entries",
        type=int,
        default=200_000,
        metavar="N",
        help="how many to keep, the most frequent (default: 200000)",
    )
    parser.add_argument(
        "--min-prob",
        type=float,
        default=0.8,
        metavar="P",
        help="how likely each proposed token must be after those before it (default: 0.8)",
    )
    parser.add_argument("--max-prefix", type=int, default=8, metavar="N", help="tokens matched at most (default: 8)")
    parser.add_argument(
        "--max-completion", type=int, default=8, metavar="N", help="tokens proposed at most (default: 8)"
    )


def run(options: argparse.Namespace) -> int:
    """Count, spell, keep the most frequent, write."""
    need("pyarrow", "building a dictionary", "dict")
    from paceline.dictionary.build import DictionarySettings, build
    from paceline.dictionary.corpus import open_corpus
    from paceline.targets.replay import open_vocabulary

    settings = DictionarySettings(
        order=options.order,
        entries=options.entries,
        min_probability=options.min_prob,
        longest_prefix=options.max_prefix,
        longest_completion=options.max_completion,
    )
    check_output(options.out, inputs_of(options))
    _check_counting(options)
    name = options.tokenizer
    vocabulary = open_vocabulary(name)
    corpus = open_corpus(options.text, field=options.field)
    with progress("counting") as advance:
        counts = _counted(corpus, options, advance)
        header = build(
            options.out,
            counts,
            vocabulary,
            settings,
            corpus={
                "fingerprint": corpus.fingerprint,
                "bytes": corpus.bytes,
                "documents": corpus.documents,
                "words": counts.words,
                "different_ngrams": {str(words): number for words, number in counts.distinct.items()},
            },
            language=options.language,
            licence=options.licence,
            tokenizer_name=Path(name).name.encode(errors="replace").decode(),
            advance=advance,
        )
    notes = list(corpus.notes)
    if header.entries < settings.entries:
        notes.append(f"the corpus gives {header.entries} entries, fewer than the {settings.entries} asked for")
    if options.json:
        print_json({**tell(options.out, header), "notes": notes})
        return 0
    show(tell(options.out, header))
    for note in notes:
        say(f"note: {note}")
    return 0


def _check_counting(options: argparse.Namespace) -> None:
    for flag, value in (("--min-count", options.min_count), ("--ngrams", options.ngrams)):
        if value < 1:
            raise InputError(f"{flag} must be at least 1, not {value}")
    if options.cluster is not None and options.threads is not None:
        raise InputError(
            f"--threads {options.threads} is for counting without --cluster, whose tasks have one thread each; "
            "leave one of the two out"
        )


def _counted(corpus: Corpus, options: argparse.Namespace, advance: Advance) -> Counts:
    limits = {
        "order": options.order,
        "min_count": options.min_count,
        "limit": options.ngrams,
        "memory": options.memory,
        "folder": options.spill,
        "advance": advance,
    }
    if options.cluster is not None:
        from paceline.dictionary.cluster import count_on_cluster

        return count_on_cluster(corpus, **limits, address=options.cluster)
    from paceline.dictionary.counting import count

    return count(corpus, **limits, threads=options.threads)
