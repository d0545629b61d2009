"""Which tokenizer a dictionary is opened with, where nobody says.

A dictionary's file tells a name, and whoever made the file chose it: opened as it stands, it could lead to any folder
here or to a download. So it only picks among the tokenizers that are at hand anyway, and only where what it picks is
the very tokenizer that the dictionary was built for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.common import MODEL

if TYPE_CHECKING:
    from paceline.bench.suites.sources import Sources
    from paceline.dictionary.file import Header

LONG = 80
"""Letters of what a file says that a sentence has room for."""


def tokenizer_of(path: str | Path, sources: Sources) -> str:
    """Where the tokenizer of a dictionary is opened from: a bundled model's, or one of the data folder."""
    from paceline.bench.suites.sources import tokenizers_in
    from paceline.dictionary.file import read_header
    from paceline.targets.pocket.names import NAMES
    from paceline.targets.replay import open_vocabulary

    header = read_header(path)[0]
    name = header.tokenizer_name or MODEL
    place = name if name in NAMES else tokenizers_in(sources).get(name)
    if place is None or open_vocabulary(str(place)).fingerprint != header.tokenizer:
        raise of_another(path, header)
    return str(place)


def of_another(path: str | Path, header: Header) -> ValueError:
    """The sentence for a dictionary whose tokenizer is not the one at hand."""
    name = header.tokenizer_name[:LONG] or "without a name"
    return ValueError(
        f"{path} was built for the tokenizer {name} (fingerprint {header.tokenizer[:LONG]}): name it with --tokenizer"
    )
