"""Drafters by heads with rows that read the target's hidden states. `states` has the rows.

The target shows the states of a text's tokens as it scores them, all but the last one's, which is scored with the
draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Seen
from paceline.drafters.networks.drafter import RowDrafter
from paceline.drafters.networks.reading import ReadText, TokenColumns
from paceline.law import Outlook
from paceline.targets.base import Rows

if TYPE_CHECKING:
    from paceline.drafters.networks.states import ShownRows


class StateText(ReadText):
    """A text as a head has read it."""

    rows: ShownRows

    @property
    def known(self) -> int:
        return min(self.length, self.rows.shown + 1)

    def became_text(self) -> list[int]:
        return []


class StateDrafter(RowDrafter):
    """A drafter by such a head. ``layers`` are those whose states it reads, one behind the other; they are part of what
    it `needs`."""

    layers: tuple[int, ...] = ()
    columns = TokenColumns()

    def reading(self, context: Context, rows: Rows) -> StateText:
        outlook = Outlook(context.sampling, context.prompt_length)
        return StateText(context, outlook, self.columns, rows=rows)

    def observe(self, seen: Sequence[Seen]) -> None:
        """Note the states of the new text; while it is a prompt, read it."""
        import torch

        with self._rows.held():
            for state, verdict, scores in seen:
                kept = np.array([0, *(node + 1 for node in verdict.path)])
                states = torch.cat([scores.hidden(layer)[torch.from_numpy(kept)] for layer in self.layers], dim=-1)
                state.rows.show(scores.start, states)
        super().observe(seen)
