"""Drafts by a head that predicts a block of tokens in one pass: DFlash, DFlash2, DSpark, JetSpec.

The authors send one chain: the likeliest token of every place. Here the places' laws become a tree, whose best paths
are sent: places are predicted apart from one another, so a path's chance is the product of its tokens'. Where the head
ties a token to the one before it, each node has its own law. Candidates are ranked by probability / shared noise, so
that drafts guess samples. ``block:paper`` is the authors' chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.drafters.base import Seen, at_least
from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.heads import BLOCK, SHIPPED
from paceline.drafters.networks.reading import TokenColumns
from paceline.drafters.networks.states import StateDrafter
from paceline.drafters.noise import SHARED, wants_noise
from paceline.errors import InputError
from paceline.targets.base import NOTHING, Target, Want
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

    from paceline.drafters.networks.block.network import BlockNetwork

LONGEST = 16
"""Tokens of a path, if neither head nor option says less."""


class BlockDrafter(StateDrafter):
    """A head and the shape of its trees. The head is read when a target is known."""

    name = BLOCK
    summary = "a trained head predicts a block of tokens from the model's states in one pass; the best paths are a tree"
    source = "DFlash, DFlash2 (z-lab), DSpark (DeepSeek), JetSpec (Hao AI Lab); trees of products after DDTree"
    requires = "a head trained for the model: head=FOLDER with a public checkpoint of these kinds"
    unfit = "a model for which no head was trained, and text unlike that of the training"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"paper": {"noise": "none", "width": 1}})
    costly_levels = 1

    def __init__(
        self,
        *,
        head: str | Path = SHIPPED,
        width: int = 4,
        length: int = LONGEST,
        confidence: float = 0.0,
        noise: str | None = None,
    ) -> None:
        at_least(self.name, 1, width=width, length=length)
        if not 0 <= confidence < 1:
            raise InputError(f"option 'confidence' of method 'block' is from 0 to below 1, not {confidence}")
        shared = wants_noise(self.name, noise or SHARED)
        super().__init__(DraftShape(beams=width, top=width, length=length, confidence=confidence, shared=shared))
        self.nodes = width * length
        self._named, self._asked, self._wished = head, noise, length
        self._network: BlockNetwork | None = None

    @property
    def network(self) -> BlockNetwork:
        assert self._network is not None, "a head is read by `fit`"
        return self._network

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        from paceline.drafters.networks.block.fitting import head_for, states_of
        from paceline.drafters.networks.block.network import BlockModel, BlockNetwork

        found = head_for(self._named, target)
        self.layers = states_of(found.head.shape, self._named, target)
        self.needs, self.light = Want(hidden=frozenset(self.layers)), found.light
        self.columns = TokenColumns(target.vocab_size)
        shared = wants_noise(self.name, self._asked or found.noise or SHARED)
        length = min(self._wished, found.head.shape.places)
        self.shape = replace(self.shape, shared=shared, length=length)
        self.nodes = self.shape.beams * length
        if self._network is None or not self._network.model.is_of(found.head, target):
            self._rows.clear()
            with self._rows.held():
                self._network = BlockNetwork(BlockModel(found.head, target))

    def taken(self, states: torch.Tensor) -> torch.Tensor:
        return self.network.model.taken(states)

    def dispose(self) -> None:
        with self._rows.held():
            self._network, self.needs = None, NOTHING
        self._rows.clear()

    def observe(self, seen: Sequence[Seen]) -> None:
        """Note the new states, and read those of texts that end, for texts that go on from there."""
        super().observe(seen)
        ended = [entry.state for entry in seen if entry.state.context.finish is not None]
        if ended:
            with self._rows.held():
                self.network.read_pieces([state for state in ended if self.network.can_read(state)])
