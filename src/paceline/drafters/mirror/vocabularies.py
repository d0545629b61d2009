"""A target's tokenizer for the process that drafts: the files of it, since that may be on another machine."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping
from pathlib import Path

from paceline.vocabulary import Vocabulary


def packed(vocabulary: Vocabulary) -> dict[str, str]:
    """The files of a tokenizer, by name."""
    with tempfile.TemporaryDirectory() as folder:
        vocabulary.tokenizer.save_pretrained(folder)
        files = [path for path in Path(folder).iterdir() if path.is_file()]
        return {path.name: base64.b64encode(path.read_bytes()).decode() for path in files}


def unpacked(files: Mapping[str, str]) -> Vocabulary:
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / Path(name).name).write_bytes(base64.b64decode(data, validate=True))
        return Vocabulary(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
