"""The tokenizer of a dictionary, where the command does not name one.

A dictionary's file holds the name of a tokenizer. The name comes from the file's author: opened as it stands, it could
lead to any folder here or to a download. So it only chooses among the bundled models and the data folder, and only a
tokenizer with the fingerprint in the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.options import DEFAULT_MODEL
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline.dictionary.header import DictionaryHeader
    from paceline.dictionary.index import Dictionary
    from paceline.vocabulary import Vocabulary
    from paceline_lab.bench.suites.sources import Sources

LONG = 80
"""Letters of a file's own words in an error."""


def tokenizer_of(path: str | Path, sources: Sources) -> str:
    """The model or folder that a dictionary's tokenizer is opened from."""
    from paceline.dictionary.file import open_dictionary
    from paceline.targets.pocket.names import POCKET_NAMES
    from paceline.targets.replay import open_vocabulary
    from paceline_lab.bench.suites.sources import tokenizers_in

    header = open_dictionary(path).header
    name = header.tokenizer_name or DEFAULT_MODEL
    place = name if name in POCKET_NAMES else tokenizers_in(sources).get(name)
    if place is None or open_vocabulary(str(place)).fingerprint != header.tokenizer:
        raise of_another(path, header)
    return str(place)


def opened(path: str | Path, vocabulary: Vocabulary) -> Dictionary:
    """A dictionary that was built for this tokenizer. InputError for any other."""
    from paceline.dictionary.index import Dictionary

    dictionary = Dictionary.open(path)
    if dictionary.header.tokenizer != vocabulary.fingerprint:
        raise of_another(path, dictionary.header)
    dictionary.check(vocabulary.size, vocabulary)
    return dictionary


def of_another(path: str | Path, header: DictionaryHeader) -> InputError:
    """The error for a dictionary that was built for another tokenizer."""
    name = header.tokenizer_name[:LONG] or "without a name"
    return InputError(
        f"{path} was built for the tokenizer {name} (fingerprint {header.tokenizer[:LONG]}): name it with --tokenizer"
    )
