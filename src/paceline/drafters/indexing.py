"""Builds a datastore: the tokens of texts, and all their places sorted by the tokens there.

Prefix doubling: places are sorted by their next token, then by their next two, four and so on, each time by the ranks
of the time before. Four doublings compare as many tokens as are ever looked up. The same texts and tokenizer give the
same bytes: equal places stay in the order of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from paceline.dictionary.keys import starts
from paceline.drafters.datastore import DATASTORE, KEY
from paceline.drafters.tokenfile import Ids, TokenHeader
from paceline.errors import InputError

Progress = Callable[[str, int, int], None]

PIECE = 1 << 16
"""Characters that are encoded at a time, and on to the end of the line."""


def pieces_of(text: str) -> list[str]:
    """A text in pieces of whole lines, so that encoding it shows progress and takes little memory."""
    pieces, start = [], 0
    while start < len(text):
        end = text.find("\n", start + PIECE) + 1 or len(text)
        pieces.append(text[start:end])
        start = end
    return pieces


def build(path: Path, texts: Iterable[Ids], fingerprint: str, progress: Progress = lambda *_: None) -> None:
    """Write the datastore of some texts, all of it or nothing."""
    border = np.zeros(1, np.int64)
    stored = [part for ids in texts if len(ids) for part in (ids + 1, border)]
    if not stored:
        raise InputError("the texts hold no tokens; a datastore needs some")
    joined = np.concatenate(stored)
    if len(joined) >= 2**31:
        raise InputError(f"a datastore holds fewer than 2**31 tokens, not {len(joined)}; give it less text")
    header = TokenHeader.of(joined, fingerprint)
    places = sorted_places(joined, progress).astype(np.uint32)
    tokens = np.concatenate([joined, np.zeros(KEY, np.int64)]).astype(f"u{header.width}")
    DATASTORE.write(path, header, {"tokens": tokens, "places": places})


def sorted_places(tokens: Ids, progress: Progress = lambda *_: None) -> Ids:
    """All places in the order of their next `KEY` tokens, equal ones in that of the text."""
    ranks = tokens.copy()  # behind the end stand zeros
    reach, steps = 1, KEY.bit_length() - 1
    order = np.arange(len(tokens))
    for step in range(steps):
        progress("sorting", step, steps)
        keys = ranks * (int(ranks.max()) + 1)
        keys[:-reach] += ranks[reach:]
        order = np.argsort(keys, kind="stable")
        fresh = starts(keys[order])
        ranks[order] = np.repeat(np.arange(1, len(fresh) + 1), np.diff(fresh, append=len(order)))
        reach *= 2
        if len(fresh) == len(order):
            break
    progress("sorting", steps, steps)
    return order
