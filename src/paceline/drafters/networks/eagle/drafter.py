"""Drafts by an EAGLE head: a layer that reads the text beside the target's states, and drafts a tree behind it.

As in EAGLE-2 and 3 the best nodes of every level go on, and the draft is the best of all nodes by the product of their
scores; the planner says how many. Two things differ. Candidates are ranked by probability / shared noise, so drafts
guess samples; and the text is exact at every temperature. ``noise=none`` is the papers' form. Under the rejection rule
a draft of one beam is sampled, and its law goes with it. P-EAGLE predicts the levels apart from one another, in one
forward, so its draft is the likeliest paths of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.drafters.base import at_least
from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.heads import SHIPPED
from paceline.drafters.networks.network import RowNetwork
from paceline.drafters.networks.states import StateDrafter
from paceline.drafters.noise import SHARED, wants_noise
from paceline.errors import InputError
from paceline.targets.base import NOTHING, Target, Want
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

    from paceline.drafters.networks.eagle.model import EagleModel

PAPER = {"beams": 10, "length": 8, "nodes": 59, "noise": "none"}
"""EAGLE-2's default: 60 nodes with the root, and 7 levels behind the first."""


class Eagle(StateDrafter):
    """A head and the shape of its drafts. The head is read when a target is known."""

    name = "eagle"
    summary = "a trained layer on the model's states drafts a tree level by level (EAGLE, P-EAGLE, MTP)"
    source = "EAGLE-1, 2 and 3 (Li 2024, 2025), P-EAGLE, multi-token prediction; public noise after Daliri 2024"
    requires = "a head trained for the model: head=FOLDER, in the files of SafeAILab or of speculators"
    unfit = "a model for which no head was trained, and text unlike that of the training"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"paper": PAPER})

    def __init__(
        self,
        *,
        head: str | Path = SHIPPED,
        beams: int = 4,
        length: int = 5,
        nodes: int | None = None,
        confidence: float = 0.0,
        noise: str | None = None,
    ) -> None:
        at_least(self.name, 1, beams=beams, length=length, nodes=1 if nodes is None else nodes)
        if not 0 <= confidence < 1:
            raise InputError(f"option 'confidence' of method 'eagle' is from 0 to below 1, not {confidence}")
        shared = wants_noise(self.name, noise or SHARED)
        super().__init__(DraftShape(beams=beams, top=beams, length=length, confidence=confidence, shared=shared))
        self.nodes = beams * length if nodes is None else nodes
        self.costly_levels = self.levels(self.nodes)
        self._named, self._asked = head, noise
        self._model: EagleModel | None = None
        self._network: RowNetwork | None = None
        self._target: Target | None = None

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        from paceline.drafters.networks.eagle.fitting import head_for
        from paceline.drafters.networks.eagle.model import made_for

        fitted = head_for(self._named, target)
        if self._model is not None and (target is not self._target or fitted.head is not self._model.head):
            self._rows.clear()  # they are of another model's states
        with self._rows.held():
            self.shape = replace(self.shape, shared=wants_noise(self.name, self._asked or fitted.noise or SHARED))
            self.layers, self.needs = fitted.layers, Want(hidden=frozenset(fitted.layers))
            self._target, self.light = target, fitted.light
            self._model, self._network = made_for(fitted, target)
            self.columns = self._model.columns
            self.costly_levels = self.levels(self.nodes) if self._network.ties else 1

    def dispose(self) -> None:
        with self._rows.held():
            self._model = self._network = self._target = None
            self.needs = NOTHING
        self._rows.clear()

    @property
    def network(self) -> RowNetwork:
        assert self._network is not None, "a head is read by `fit`"
        return self._network

    @property
    def model(self) -> EagleModel:
        """The head over its target; known after `fit`."""
        assert self._model is not None, "a head is read by `fit`"
        return self._model

    def taken(self, states: torch.Tensor) -> torch.Tensor:
        return self.model.taken(states)
