"""Drafts by Medusa's heads: each predicts one place, and the likeliest paths through all places are the draft.

Three things differ from the paper. Candidates are ranked by probability / shared noise, which is known for every place,
so drafts guess samples. The tree is made of what the heads say at this place of the text, and is not the same
everywhere. And the text is exact at every temperature. ``noise=none`` ranks by probability alone. The paper's trees are
lists that its authors measured for their models; `medusa:paper` has as many nodes, of as many candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.context import Context
from paceline.drafters.base import Ask, Seen, at_least
from paceline.drafters.networks.beams import HeadState
from paceline.drafters.networks.drafter import NetworkDrafter
from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.heads import MEDUSA, SHIPPED
from paceline.drafters.networks.products import ProductGrowth
from paceline.drafters.networks.reading import DraftedText, TokenColumns
from paceline.drafters.noise import SHARED, wants_noise
from paceline.law import Outlook
from paceline.targets.base import NOTHING, Target, Want
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    from paceline.drafters.networks.medusa.network import MedusaNetwork


@dataclass(eq=False)
class MedusaText(DraftedText):
    """A text, and the state that the heads read for its last token."""

    last: HeadState = field(init=False)

    def __post_init__(self) -> None:
        self.last = HeadState(self.context)


class Medusa(NetworkDrafter):
    """Heads and the size of their trees. The heads are read when a target is known."""

    name = MEDUSA
    summary = "trained heads on the model's last state predict one place each; their likeliest paths are the draft"
    source = "Medusa (Cai et al. 2024), verified exactly; public noise after Daliri 2024"
    requires = "heads trained for the model: head=FOLDER"
    unfit = "a model for which no heads were trained, and text unlike that of the training"
    skips = True
    costly_levels = 1
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"paper": {"noise": "none", "top": 10, "nodes": 63}}
    )

    def __init__(
        self,
        *,
        head: str | Path = SHIPPED,
        top: int = 10,
        length: int | None = None,
        nodes: int = 16,
        noise: str | None = None,
    ) -> None:
        at_least(self.name, 1, top=top, nodes=nodes, length=1 if length is None else length)
        super().__init__(DraftShape(beams=top, top=top, length=length))
        self.nodes, self._named, self._asked = nodes, head, noise
        self._shared = wants_noise(self.name, noise or SHARED)
        self._target: Target | None = None
        self._network: MedusaNetwork | None = None

    @property
    def network(self) -> MedusaNetwork:
        assert self._network is not None, "heads are read by `fit`"
        return self._network

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        from paceline.drafters.networks.medusa.fitting import heads_for
        from paceline.drafters.networks.medusa.network import MedusaNetwork

        found = heads_for(self._named, target)
        self._target, self._network = target, MedusaNetwork(found.head, target)
        self.light = found.light
        shared = wants_noise(self.name, self._asked or found.noise or SHARED)
        self.shape = replace(self.shape, shared=shared)
        self.needs = Want(hidden=frozenset({target.layers}))

    def dispose(self) -> None:
        self._target = self._network = None
        self.needs = NOTHING

    def levels(self, nodes: int) -> int:
        most = self.shape.length or (self._network.heads.shape.heads if self._network else nodes)
        return min(most, nodes)

    def open(self, context: Context) -> MedusaText:
        assert self._target is not None, "a text is opened after `fit`"
        outlook = Outlook(context.sampling, context.prompt_length)
        return MedusaText(context, outlook, TokenColumns(self._target.vocab_size))

    def observe(self, seen: Sequence[Seen]) -> None:
        for state, verdict, scores in seen:
            assert self._target is not None, "a text is opened after `fit`"
            state.last.note(scores, verdict, self._target.layers)

    def growth(self, ask: Ask) -> ProductGrowth:
        state: MedusaText = ask.state
        depth = min(self.levels(ask.budget.nodes), ask.budget.depth, self.network.heads.shape.heads)
        return ProductGrowth(state, self.shape, ask.budget.nodes, depth if state.last.ready else 0)
