"""Beams of several texts packed into trees: beginnings that beams share become one node.

A beam is a row of token ids, and `NO_TOKEN` from where it ends. All beams of all texts are packed in a few operations
on arrays, without a loop over beams: as in the ReDrafter paper, a place of a beam belongs to the first beam that has
the same tokens up to there, and only places that belong to their own beam become nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NO_TOKEN = -1
"""What fills a beam behind its end."""


def owners(beams: Ints) -> Ints:
    """``[texts, width, length]`` of the same shape: the first beam with the same tokens up to each place.

    >>> owners(np.array([[[91, 92, 93, 95], [91, 92, 94, 96], [91, 92, 93, 97]]])).tolist()
    [[[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 2]]]
    """
    same = np.logical_and.accumulate(beams[:, :, None] == beams[:, None], axis=3)
    found: Ints = same.argmax(axis=2)
    return found


def packed(beams: Ints, scores: Floats) -> list[tuple[Ints, Ints, Floats]]:
    """Tokens, parents and scores of each text's tree, level by level, so shallow nodes stand first. ``scores`` are
    those of the places of ``beams``, ``[texts, width, length]``."""
    texts, width, length = beams.shape
    if not beams.size:
        return [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))] * texts
    owner = owners(beams)
    own: Bools = (owner == np.arange(width)[:, None]) & (beams != NO_TOKEN)
    by_level = own.swapaxes(1, 2).reshape(texts, -1)
    numbers = (by_level.cumsum(axis=1) - 1).reshape(texts, length, width).swapaxes(1, 2)
    parents = np.full(beams.shape, -1)
    if length > 1:
        parents[:, :, 1:] = np.take_along_axis(numbers[:, :, :-1], owner[:, :, :-1], axis=1)
    columns = (each.swapaxes(1, 2).reshape(texts, -1) for each in (beams, parents, scores))
    tokens, above, worth = columns
    return [(tokens[text][kept], above[text][kept], worth[text][kept]) for text, kept in enumerate(by_level)]


def padded(beams: list[list[int]]) -> Ints:
    """Beams of one text, of any lengths, as ``[1, width, length]``."""
    sizes = [len(beam) for beam in beams]
    array = np.full((1, len(beams), max(sizes, default=0)), NO_TOKEN)
    for row, beam in enumerate(beams):
        array[0, row, : sizes[row]] = beam
    return array
