"""Drafts by Hydra's heads, as beams: each head reads the tokens of the path before it.

Candidates are ranked by probability / shared noise, so drafts guess samples; ``noise=none`` ranks by probability alone.
All choices of the search become the draft. The paper's trees are lists that its authors measured for their models;
`hydra:paper` is about as large, and made of what the heads say at this place of the text.

Hydra++ reads the states of the whole text by a layer of its own, whose rows follow the text as those of a draft model
do: they are lent to texts, and kept for those that begin alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Seen
from paceline.drafters.networks.beams import BeamDrafter, HeadState
from paceline.drafters.networks.heads import HYDRA, SHIPPED
from paceline.targets.base import SPARE_ROWS, Target
from paceline.targets.lending import KeptRows
from paceline.targets.scores import Scores
from paceline.tree import Ints
from paceline.verify import Verdict
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

    from paceline.drafters.networks.hydra.rows import PrefixReader, PrefixRows


@dataclass(eq=False)
class PrefixState(HeadState):
    """A text that the prefix layer reads, and the target's state for its last row."""

    rows: PrefixRows | None = None

    @property
    def ready(self) -> bool:
        behind = self.rows is None or self.rows.committed == len(self.context) - 1
        return super().ready and behind


class Hydra(BeamDrafter):
    """Heads and the shape of their beams. The heads are read when a target is known."""

    name = HYDRA
    summary = "trained heads on the model's last state, each of which reads the tokens drafted before it"
    source = "Hydra and Hydra++ (Ankner et al. 2024), verified exactly; public noise after Daliri 2024"
    requires = "heads trained for the model: head=FOLDER"
    unfit = "a model for which no heads were trained, and text unlike that of the training"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"paper": {"noise": "none", "width": 16, "length": 4}}
    )

    def __init__(
        self, *, head: str | Path = SHIPPED, width: int = 4, length: int = 4, noise: str | None = None
    ) -> None:
        super().__init__(width, length, noise)
        self._named = head
        self._reader: PrefixReader | None = None
        self._rows: KeptRows | None = None
        """Their lock is held while rows move: a new text copies rows of the others."""

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        from paceline.drafters.networks.hydra.fitting import heads_for, state_of
        from paceline.drafters.networks.hydra.rows import PrefixReader, open_rows

        found = heads_for(self._named, target)
        state = state_of(found.head.shape, self._named, target)
        if found.head is not self._head or target is not self._target:
            self._forget()
            if (prefix := found.head.prefix_embeding_layer) is not None:
                self._reader = PrefixReader(prefix)
                self._rows = KeptRows(partial(open_rows, target), target.look, copies_lent=True)
        self.skips = self._reader is None  # the layer reads every token's state, the heads only the last one's
        self.use(found, target, state)
        self._reach(found.head.shape.heads)

    def dispose(self) -> None:
        super().dispose()
        self._forget()

    def _forget(self) -> None:
        """Part with the prefix layer, and with rows that are of its states of a target."""
        if self._rows is not None:
            self._rows.clear()
        self._reader = self._rows = None

    def open(self, context: Context) -> PrefixState:
        """Begin with the rows of the last text, or a copy of another text's, as far as they hold the prompt."""
        if self._rows is None:
            return PrefixState(context)
        tokens = context.tokens[:-1]
        with self._rows.held():
            rows = self._rows.lend(tokens, SPARE_ROWS + context.reserve)
            rows.rewind(rows.common_prefix(tokens))
        return PrefixState(context, rows=cast("PrefixRows", rows))

    def close(self, state: PrefixState) -> None:
        if state.rows is not None and self._rows is not None:
            self._rows.give(state.rows)

    def observe(self, seen: Sequence[Seen]) -> None:
        """Keep the states behind the texts' last tokens, and let the prefix layer read those of their new tokens."""
        super().observe(seen)
        if self._rows is not None and self._reader is not None:
            with self._rows.held():
                texts = [text for text in (self._new(*each) for each in seen) if len(text[1])]
                if texts:  # else the layer has read more of a prompt than the target
                    self._reader.read(texts)

    def _new(self, state: PrefixState, verdict: Verdict, scores: Scores) -> tuple[PrefixRows, Ints, torch.Tensor]:
        """The tokens that the layer has not read, and the target's states of them. Those of a prompt's beginning that
        the target had cached, and the layer has not read, are zeros."""
        import torch
        import torch.nn.functional as F

        rows, kept = state.rows, np.array([0, *(node + 1 for node in verdict.path)])
        assert rows is not None, "a text of Hydra++ has rows"
        states = torch.as_tensor(scores.hidden(self._layer))[kept]
        if (missing := scores.start - rows.committed) > 0:
            states = F.pad(states, (0, 0, missing, 0))
        tokens = state.context.tokens[rows.committed : scores.start + len(kept)]
        return rows, tokens, states[max(0, -missing) :][: len(tokens)]

    def hidden(self, states: Sequence[PrefixState]) -> torch.Tensor:
        if self._rows is None or self._reader is None:
            return super().hidden(states)
        with self._rows.held():
            texts = [(cast("PrefixRows", state.rows), cast("torch.Tensor", state.hidden)) for state in states]
            return self._reader.outputs(texts)
