"""``auto``: suffix, foresight and dictionary drafts in one tree, and beside them a draft model if one is given.

Of a text with a prediction, drafts from that are in the tree, too.

A node that several of them propose carries all their names. So a planner that learns how often nodes of a name are
accepted also learns this for their agreement. These cheap parts always run, and in a text with a grammar so does
`forced`, which drafts what the grammar leaves no choice about. A draft model or a trained head runs if the
planner finds it worth its time in addition to the cheap draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.dictionary.index import Dictionary
from paceline.drafters.asking import answered
from paceline.drafters.base import Ask, Drafter
from paceline.drafters.compose import Beside
from paceline.drafters.dictionary import DictSpec, shipped_for
from paceline.drafters.forced import Forced
from paceline.drafters.foresight import Foresight
from paceline.drafters.networks.assistant import Assistant
from paceline.drafters.networks.assistant.drafter import Model
from paceline.drafters.networks.block import BlockDrafter
from paceline.drafters.networks.eagle import Eagle
from paceline.drafters.networks.heads import BLOCK, EAGLE, HYDRA, MEDUSA, REDRAFTER, STREAMING, method_for
from paceline.drafters.networks.heads import SHIPPED as SHIPPED_HEAD
from paceline.drafters.networks.hydra import Hydra
from paceline.drafters.networks.medusa import Medusa
from paceline.drafters.networks.redrafter import ReDrafter
from paceline.drafters.networks.streaming import Streaming
from paceline.drafters.noise import SHARED
from paceline.drafters.prediction import Prediction
from paceline.drafters.suffix import Suffix
from paceline.tree import DraftTree
from paceline.vocabulary import Vocabulary

NODES = 48
"""Nodes of the cheap parts' draft, at most: more are hardly ever worth a row, and each costs the host some time."""

SHIPPED, NONE = "shipped", "none"


class ShippedDictionaries(DictSpec):
    """The shipped dictionaries for the model's tokenizer, if any. In text of other languages they draft nothing."""

    cautious = True

    def _chosen(self, vocabulary: Vocabulary | None) -> tuple[Dictionary, ...]:
        return shipped_for(vocabulary) if vocabulary is not None else ()


HEADS: Mapping[str, Callable[..., Drafter]] = {
    REDRAFTER: ReDrafter,
    MEDUSA: Medusa,
    HYDRA: Hydra,
    EAGLE: Eagle,
    BLOCK: BlockDrafter,
}
"""By the kind of a head: what drafts with it."""


def expensive_parts(model: Model | None, head: str | None, noise: str | None) -> tuple[Drafter, ...]:
    """A draft model and the method that a trained head is for. Streams are of a draft model, by default their own."""
    kind = None if head is None else REDRAFTER if head == SHIPPED_HEAD else method_for(head)
    if head is not None and kind == STREAMING:
        return (Streaming(model=model, head=head, noise=noise or SHARED),)
    parts: tuple[Drafter, ...] = () if model is None else (Assistant(model=model, noise=noise or SHARED),)
    return parts if kind is None else (*parts, HEADS[kind](head=head, noise=noise))


class Auto(Beside):
    """The default method. A draft model and a trained head are its expensive parts."""

    name = "auto"
    summary = "suffix, foresight and dictionaries in one tree, with a draft model if one is given; drafts what pays"
    source = "suffix, foresight and dictionary joined under the adaptive planner"
    requires = (
        "nothing; uses dictionaries that come with paceline for the tokenizer or that dictionary=FILE names, a draft "
        "model (model=NAME or --draft-model NAME), and a trained head (head=shipped or head=FOLDER)"
    )
    unfit = "comparisons with papers: it is several methods, so name one of them"
    sized = False

    def __init__(
        self,
        *,
        model: Model | None = None,
        noise: str | None = None,
        prefill: bool = False,
        dictionary: str = SHIPPED,
        head: str | None = None,
    ) -> None:
        usual = noise or SHARED
        self.cheap: tuple[Drafter, ...] = (
            Prediction(),
            Suffix(noise=usual),
            Foresight(noise=usual, prefill=prefill),
        )
        if dictionary != NONE:
            self.cheap += (ShippedDictionaries(file=None if dictionary == SHIPPED else dictionary),)
        self.cheap += (Forced(),)
        self.expensive = expensive_parts(model, head, noise)
        super().__init__((*self.cheap, *self.expensive))

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """A budget beyond its own size bounds the whole draft: a part that is sure may fill it alone."""
        drafts = super().propose(asks)
        budgets = [ask.budget.nodes for ask in asks]
        return [draft.top(most) if most > self.nodes else draft for draft, most in zip(drafts, budgets, strict=True)]

    def _nodes(self, sizes: Sequence[int]) -> int:
        return NODES + sum(sizes[len(self.cheap) :])

    def _waits(self, part: Drafter) -> bool:
        return part in self.expensive

    def _valid(self, part: Drafter, verb: str, asks: Sequence[Any]) -> list[DraftTree]:
        """The drafts of its own parts are valid."""
        return answered(part, verb, asks, DraftTree)
