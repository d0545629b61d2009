"""``paceline dict build``: a dictionary out of text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import DEFAULT_MODEL, check_counts, inputs_of, utf8
from paceline.cli.output import print_json, progress
from paceline.errors import InputError, need
from paceline.files import check_output
from paceline_make.commands.dictionary.info import facts_of, print_facts
from paceline_make.commands.dictionary.rules import PROPOSED, add_rule
from paceline_make.commands.texts import add_texts, say_notes

if TYPE_CHECKING:
    from paceline_make.dictionary.build import Advance
    from paceline_make.dictionary.counting import NgramCounts
    from paceline_make.texts.corpus import Corpus

NGRAMS = 1_000_000
SIZE = 200_000


def add(actions: Subparsers) -> None:
    parser: Parser = actions.add_parser(
        "build",
        run=run,
        help="write the dictionary of a language for a tokenizer",
        description=(
            "Counts the words and word sequences of a corpus, encodes them as in running text, and writes "
            "the completions that are probable enough: a file for the methods dictionary, hybrid and auto. The same "
            "text gives the same bytes."
        ),
    )
    text = (
        f"the tokenizer to build for: a folder or name of transformers, or a bundled model (default: {DEFAULT_MODEL})"
    )
    parser.argument("--tokenizer --model -m", "T", text, default=DEFAULT_MODEL)
    parser.add_trust()
    add_texts(parser, "--text", required=True)
    parser.argument("--out", "FILE", "where to write it, say uk.dict", Path, required=True)
    text = "keep the counted n-grams, too, for 'dict lookup --trace'"
    parser.argument("--keep-counts", "FILE", text, Path)
    parser.argument("--language", "LANG", "the language that the file states, as in uk", utf8, default="")
    parser.argument("--licence", "NOTE", "a note on the licence of the text", utf8, default="")
    _add_recipe(parser)
    _add_counting(parser)
    parser.add_json()


def _add_recipe(parser: Parser) -> None:
    parser.argument("--order", "N", "words of an n-gram, 1 to 3 (default: 3)", int, default=3)
    add_rule(parser, f"{PROPOSED} (default: token)", "token")
    parser.argument("--size", "N", f"entries to keep, the most frequent (default: {SIZE})", int, default=SIZE)
    text = "how likely each proposed token must be after those before it, or the whole ending (default: 0.8)"
    parser.argument("--min-prob", "P", text, float, default=0.8)
    parser.argument("--max-prefix", "N", "tokens matched at most (default: 8)", int, default=8)
    parser.argument("--max-completion", "N", "tokens proposed at most (default: 8)", int, default=8)


def _add_counting(parser: Parser) -> None:
    parser.argument("--min-count", "N", "leave rarer n-grams out (default: 1)", int, default=1)
    text = f"consider the N most frequent n-grams of each number of words (default: {NGRAMS})"
    parser.argument("--ngrams", "N", text, int, default=NGRAMS)
    text = "memory for counting, with --cluster for each of its tasks; the rest goes to disk (default: 2GB)"
    parser.argument("--memory", "SIZE", text, default="2GB")
    parser.argument("--threads", "N", "threads of the counting (default: all cores)", int)
    parser.argument("--spill", "DIR", "where counting may use the disk (default: temporary)", Path)
    text = "count on a Ray cluster: its address, or 'local' to start one on this machine; not with --threads"
    parser.argument("--cluster", "ADDRESS", text)


def run(options: argparse.Namespace) -> int:
    """Count, spell, keep the most frequent, write."""
    need("pyarrow", "building a dictionary", "dict")
    from paceline.dictionary.header import EntryRule
    from paceline.targets.replay import open_vocabulary
    from paceline_make.dictionary.build import DictionarySettings, build
    from paceline_make.texts.corpus import open_corpus

    settings = DictionarySettings(
        order=options.order,
        rule=EntryRule(options.entries),
        entries=options.size,
        min_probability=options.min_prob,
        longest_prefix=options.max_prefix,
        longest_completion=options.max_completion,
    )
    for path in (options.out, options.keep_counts):
        check_output(path, inputs_of(options))
    if options.keep_counts is not None and options.keep_counts.resolve() == options.out.resolve():
        raise InputError(f"--keep-counts and --out both name {options.out}; give the counts another file")
    _check_counting(options)
    name = options.tokenizer
    vocabulary = open_vocabulary(name)
    corpus = open_corpus(options.text, field=options.field)
    with progress("counting") as advance:
        counts = _counted(corpus, options, advance)
        if options.keep_counts is not None:
            counts.save(options.keep_counts)
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
        print_json({**facts_of(options.out, header), "notes": notes})
        return 0
    print_facts(facts_of(options.out, header))
    say_notes(notes)
    return 0


def _check_counting(options: argparse.Namespace) -> None:
    check_counts(options, "min_count", "ngrams")
    if options.cluster is not None and options.threads is not None:
        raise InputError(
            f"--threads {options.threads} is for counting without --cluster, whose tasks have one thread each; "
            "leave one of the two out"
        )


def _counted(corpus: Corpus, options: argparse.Namespace, advance: Advance) -> NgramCounts:
    limits = {
        "order": options.order,
        "min_count": options.min_count,
        "limit": options.ngrams,
        "memory": options.memory,
        "folder": options.spill,
        "advance": advance,
    }
    if options.cluster is not None:
        from paceline_make.dictionary.cluster import count_on_cluster

        return count_on_cluster(corpus, **limits, address=options.cluster)
    from paceline_make.dictionary.counting import count

    return count(corpus, **limits, threads=options.threads)
