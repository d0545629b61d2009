"""Heads with rows that read the target's hidden states, as EAGLE's do.

A row of the text is read from its token and the state that the target had for the token before. For a token of a draft
there is no such state yet, so the head reads what it gave itself for the node above. These rows are only guesses: when
the text has gone on, its new tokens are read again with the target's states, and then rows are those of a forward over
the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Seen
from paceline.drafters.networks.drafter import RowDrafter
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.drafters.networks.products import ProductGrowth
from paceline.drafters.networks.reading import ReadText, TokenColumns
from paceline.law import Outlook
from paceline.targets.base import Rows
from paceline.tree import ROOT

if TYPE_CHECKING:
    import torch

    from paceline.drafters.networks.state_rows import ShownRows


class StateText(ReadText):
    """A text as a head has read it."""

    rows: ShownRows

    @property
    def known(self) -> int:
        return min(self.length, self.rows.shown + 1)

    def became_text(self) -> list[int]:
        return []


class ApartText(StateText):
    """A text whose places are predicted apart from one another, so that the likeliest paths of all can be found."""

    def growth(
        self, shape: DraftShape, nodes: int, depth: int, *, text: Context | None = None, row: int = ROOT
    ) -> Growth:
        assert text is None and row == ROOT, "nothing is read ahead of the text"
        return ProductGrowth(self, shape, nodes, depth)


class StateDrafter(RowDrafter):
    """A drafter by such a head. ``layers`` are those whose states it reads, one behind the other; they are part of what
    it `needs`. ``columns`` are known after `fit`."""

    layers: tuple[int, ...] = ()
    columns = TokenColumns()

    def reading(self, context: Context, rows: Rows) -> StateText:
        kind = StateText if self.network.ties else ApartText
        return kind(context, Outlook(context.sampling, context.prompt_length), self.columns, rows=rows)

    def levels(self, nodes: int) -> int:
        return min(self.shape.depth(nodes), nodes)

    def _depth(self, budget: Budget, length: int) -> int:
        return super()._depth(budget.within(budget.nodes), length)

    def taken(self, states: torch.Tensor) -> torch.Tensor:
        """What rows keep of the states ``[rows, width]`` that the target's layers have shown, one behind the other."""
        return states

    def observe(self, seen: Sequence[Seen]) -> None:
        """Note the states of the new text; while it is a prompt, read it."""
        import torch

        with self._rows.held():
            shown = [self._shown(each) for each in seen]
            parts = self.taken(torch.cat(shown)).split([len(states) for states in shown])
            for (state, _, scores), states in zip(seen, parts, strict=True):
                state.rows.show(scores.start, states)
        super().observe(seen)

    def _shown(self, seen: Seen) -> torch.Tensor:
        """The states of the rows that became text."""
        import torch

        kept = torch.from_numpy(np.array([0, *(node + 1 for node in seen.verdict.path)]))
        return torch.cat([torch.as_tensor(seen.scores.hidden(layer))[kept] for layer in self.layers], dim=-1)
