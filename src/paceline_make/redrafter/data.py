"""Texts to train on: plain text, JSON lines with texts or chats, as one stream of the model's own tokens.

Of a chat only what the assistant says is labelled: a head drafts what the model writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.files.reading import parse, read_file
from paceline.tree import Bools
from paceline.vocabulary import Vocabulary

Ids = NDArray[np.int32]
KINDS = (".txt", ".jsonl")
WHAT = "give .txt files (passages between empty lines) or .jsonl files (a text or messages in each line)"


Piece = tuple[str, bool]
"""A part of a text, and whether a head learns to predict it."""


@dataclass(frozen=True)
class Passage:
    """One text, or the messages of one chat."""

    text: str = ""
    messages: Sequence[dict[str, Any]] = ()

    def pieces(self, vocabulary: Vocabulary) -> list[Piece]:
        """Of a chat, in the tokenizer's template, what the assistant says is learnt, and the rest is not."""
        if not self.messages:
            return [(self.text, True)]
        found, done, messages = list[Piece](), "", list(self.messages)
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or not number:
                continue
            before, after = (vocabulary.conversation(messages[: number + more]) for more in (0, 1))
            if before is None or after is None:
                raise InputError("the data are chats, and the model's tokenizer has no chat template; give texts")
            if before.startswith(done) and after.startswith(before):  # else the template changes earlier turns
                found += [(before[len(done) :], False), (after[len(before) :], True)]
                done = after
        return found


@dataclass(frozen=True, eq=False)
class Stream:
    """All passages behind one another, an end-of-text token before each."""

    ids: Ids
    labelled: Bools
    """Of each token, whether a head learns to predict it."""

    def __len__(self) -> int:
        return len(self.ids)


def read_passages(paths: Sequence[Path]) -> list[Passage]:
    """The passages of files, and of all files of folders in order of their names."""
    found = [passage for path in paths for file in _files(path) for passage in _passages(file)]
    if not found:
        raise InputError(f"there is no text in {', '.join(map(str, paths))}; {WHAT}")
    return found


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*") if file.suffix in KINDS)
    elif not path.exists():
        raise InputError(f"there is no {path}; {WHAT}")
    elif path.suffix not in KINDS:
        raise InputError(f"{path} is neither a .txt nor a .jsonl file; {WHAT}")
    else:
        yield path


def _passages(file: Path) -> Iterator[Passage]:
    try:
        text = read_file(file).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (offset {error.start}); save it as UTF-8") from None
    if file.suffix == ".txt":
        yield from (Passage(part.strip()) for part in text.split("\n\n") if part.strip())
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield _of_line(line, f"line {number} of {file}")


def _of_line(line: str, where: str) -> Passage:
    try:
        row = parse(line)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    text, messages = (row.get(name) if isinstance(row, Mapping) else None for name in ("text", "messages"))
    if isinstance(text, str):
        return Passage(text)
    if isinstance(messages, list) and messages and all(_is_message(one) for one in messages):
        return Passage(messages=messages)
    raise InputError(f'{where} has neither "text" nor "messages" with roles and contents; {WHAT}')


def _is_message(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("role"), str) and "content" in one


def stream_of(passages: Sequence[Passage], vocabulary: Vocabulary, end: int | None) -> Stream:
    """The tokens of the passages; those of a piece do not depend on the pieces beside it."""
    pieces = [passage.pieces(vocabulary) for passage in passages]
    encoded = iter(vocabulary.encode_all([text for each in pieces for text, _ in each]))
    ids, labelled = list[Ids](), list[Bools]()
    front = [] if end is None else [end]
    for each in pieces:
        ids.append(np.array(front, np.int32))
        labelled.append(np.zeros(len(front), np.bool_))
        for _, learnt in each:
            tokens = np.array(next(encoded), np.int32)
            ids.append(tokens)
            labelled.append(np.full(len(tokens), learnt))
    return Stream(np.concatenate(ids), np.concatenate(labelled))


def divided(passages: Sequence[Passage], share: float) -> tuple[list[Passage], list[Passage]]:
    """Passages to train on and held-out ones, from all over the data."""
    step = max(2, round(1 / share)) if share > 0 else 0
    held = [each for number, each in enumerate(passages) if step and number % step == step - 1]
    return [each for number, each in enumerate(passages) if not step or number % step != step - 1], held
