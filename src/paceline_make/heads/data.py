"""Texts to train on, as one stream of the model's own tokens.

Of a chat only what the assistant says is labelled: a head drafts what the model writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.api.model import LanguageModel
from paceline.errors import InputError
from paceline.targets.hf.target import HFTarget
from paceline.tree import Bools
from paceline.vocabulary import Vocabulary
from paceline_make.texts.fields import ChatText, Passage

Ids = NDArray[np.int32]
Piece = tuple[str, bool]
"""A part of a text, and whether a head learns to predict it."""


@dataclass(frozen=True, eq=False)
class TokenStream:
    """All passages behind one another, an end-of-text token before each."""

    ids: Ids
    labelled: Bools
    """Of each token, whether a head learns to predict it."""

    def __len__(self) -> int:
        return len(self.ids)


def pieces_of(passage: Passage, vocabulary: Vocabulary) -> list[Piece]:
    """Of a chat, in the tokenizer's template, what the assistant says is learnt, and the rest is not."""
    if not isinstance(passage, ChatText):
        return [(passage, True)]
    found, done, messages = list[Piece](), "", list(passage.messages)
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


def stream_of(passages: Sequence[Passage], vocabulary: Vocabulary, end: int | None) -> TokenStream:
    """The tokens of the passages; those of a piece do not depend on the pieces beside it."""
    pieces = [pieces_of(passage, vocabulary) for passage in passages]
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
    return TokenStream(np.concatenate(ids), np.concatenate(labelled))


def divided(passages: Sequence[Passage], share: float) -> tuple[list[Passage], list[Passage]]:
    """Passages to train on and held-out ones, from all over the data."""
    step = max(2, round(1 / share)) if share > 0 else 0
    held = [each for number, each in enumerate(passages) if step and number % step == step - 1]
    return [each for number, each in enumerate(passages) if not step or number % step != step - 1], held


def teacher_target(lm: LanguageModel, what: str) -> HFTarget:
    """The target of a model that something learns from, such as a ``what``: computed by torch, with its tokenizer."""
    if not isinstance(lm.target, HFTarget):
        raise InputError(
            f"{lm.target.name} is not computed by torch, so no {what} is trained for it; train for the original"
        )
    if lm.vocabulary is None:
        raise InputError(
            f"{lm.target.name} came without a tokenizer, and training reads texts; put it beside the model"
        )
    return lm.target
