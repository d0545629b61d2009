"""``paceline datastore``: build and describe the corpora that the methods rest and suffix draft from."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import DEFAULT_MODEL, inputs_of
from paceline.cli.output import print_json, progress, say
from paceline.files import check_output
from paceline_make.commands.texts import add_texts, say_notes

if TYPE_CHECKING:
    from paceline.drafters.datastore import Datastore
    from paceline.drafters.tokenfile import Ids
    from paceline.vocabulary import Vocabulary

ENDING = ".rest"


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "datastore",
        help="build a corpus for rest and suffix",
        description="Builds and describes the files that the methods rest:corpus=FILE and suffix:corpus=FILE read.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", help="what to do")
    building: Parser = actions.add_parser(
        "build",
        run=build,
        help="write the datastore of some texts",
        description="Encodes texts with a model's tokenizer and writes them with an index, all of it or nothing.",
    )
    whose, text = building.add_mutually_exclusive_group(), f"the model to draft for (default: {DEFAULT_MODEL})"
    whose.add_argument("--model", "-m", default=DEFAULT_MODEL, metavar="MODEL", help=text)
    whose.add_argument("--tokenizer", metavar="NAME", help="its tokenizer alone: a folder or name of transformers")
    building.add_trust()
    add_texts(building, "--text", required=True)
    building.argument("--out", "FILE", f"where to write it, say corpus{ENDING}", Path, required=True)
    building.add_json()
    describing: Parser = actions.add_parser(
        "info",
        run=info,
        help="describe a datastore, and check that it is whole",
        description="Reads a whole datastore and prints its contents.",
    )
    describing.argument("file", "FILE", "a file that 'paceline datastore build' wrote")
    describing.add_json()


def build(options: argparse.Namespace) -> int:
    """Encode, sort and write texts."""
    from paceline.drafters.datastore import Datastore
    from paceline.drafters.indexing import build
    from paceline.targets.replay import open_vocabulary
    from paceline_make.texts.corpus import open_corpus

    check_output(options.out, inputs_of(options))
    corpus = open_corpus(options.text, field=options.field)
    texts = list(corpus.texts())
    vocabulary = open_vocabulary(options.tokenizer or options.model)
    with progress("encoding") as advance:
        build(options.out, _encoded(texts, vocabulary, advance), vocabulary.fingerprint, advance)
    say_notes(corpus.notes)
    _print(Datastore(str(options.out)), options.json)
    return 0


def info(options: argparse.Namespace) -> int:
    """Describe a datastore, and check that it is undamaged."""
    from paceline.drafters.datastore import Datastore

    store = Datastore(options.file)
    store.file.verified()
    _print(store, options.json)
    return 0


def _encoded(texts: list[str], vocabulary: Vocabulary, advance: Callable[[str, int, int], None]) -> Iterator[Ids]:
    """The ids of each text, encoded piece by piece."""
    import numpy as np

    from paceline.drafters.indexing import pieces_of

    done, total = 0, sum(map(len, texts))
    for text in texts:
        ids = []
        for piece in pieces_of(text):
            ids.append(vocabulary.encode(piece, add_special=False))
            done += len(piece)
            advance("encoding", done, total)
        yield np.concatenate(ids) if ids else np.empty(0, np.int64)


def _print(store: Datastore, as_json: bool) -> None:
    header = store.header
    facts: dict[str, Any] = {
        "file": store.path,
        "texts": header.texts,
        "tokens": len(store) - header.texts,
        "highest_token": header.highest,
        "tokenizer": header.tokenizer,
        "digest": store.file.digest,
        "bytes": Path(store.path).stat().st_size,
    }
    if as_json:
        print_json(facts)
        return
    say(f"{store.path}: {facts['tokens']} tokens of {facts['texts']} texts, {facts['bytes']} bytes")
    say(f"tokenizer {facts['tokenizer']}, highest token {facts['highest_token']}, digest {facts['digest'][:16]}")
