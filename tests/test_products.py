"""Drafts of one law for each place: the likeliest paths of all, and where they end."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest

from drafting import context_of, paths_of
from paceline.context import Context
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.drafters.networks.products import ProductGrowth
from paceline.law import Distribution

CHANCES = (0.6, 0.4), (0.7, 0.3), (0.8, 0.2)
"""Of two tokens at each of three places."""
LAWS = [Distribution(np.arange(2), np.array(chances)) for chances in CHANCES]


@dataclass
class PlacedText:
    """A text whose places are predicted apart from one another."""

    context: Context = field(default_factory=lambda: context_of([5]))
    ends: frozenset[int] = frozenset()


def drafted(kind: type[Growth], confidence: float, *, nodes: int = 99) -> dict[tuple[int, ...], float]:
    """The paths of a draft, and the chances of their last tokens."""
    growth = kind(PlacedText(), DraftShape(beams=2, top=2, confidence=confidence), nodes, len(LAWS))
    while not growth.done:
        growth.add([LAWS[growth.level]] * len(growth.texts))
    tree = growth.tree("products")
    tree.check()
    return dict(zip(paths_of(tree), np.exp(tree.scores).tolist(), strict=True))


def chance(path: tuple[int, ...]) -> float:
    return float(np.prod([CHANCES[place][token] for place, token in enumerate(path)]))


ALL = [path for length in (1, 2, 3) for path in product(range(2), repeat=length)]


@pytest.mark.parametrize("confidence", [0.0, 0.1, 0.3, 0.5, 0.59, 0.61])
def test_paths_below_the_confidence_end(confidence: float) -> None:
    likely = {path for path in ALL if chance(path) >= confidence}
    found = drafted(ProductGrowth, confidence)
    assert found.keys() == likely
    assert all(found[path] == pytest.approx(CHANCES[len(path) - 1][path[-1]]) for path in found)
    assert len(drafted(Growth, 0.5)) == len(drafted(ProductGrowth, 0.5)) == 1


def test_a_small_draft_has_the_likeliest_paths() -> None:
    for confidence in (0.0, 0.3):
        for nodes in range(1, 6):
            best = sorted((path for path in ALL if chance(path) >= confidence), key=lambda path: -chance(path))
            assert drafted(ProductGrowth, confidence, nodes=nodes).keys() == set(best[:nodes])
