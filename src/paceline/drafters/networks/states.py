"""Heads with rows that read the target's hidden states, as EAGLE's do.

A row of the text is read from its token and the state that the target had for the token before. For a token of a draft
there is no such state yet, so the head reads what it gave itself for the node above. These rows are only guesses: when
the text has gone on, its new tokens are read again with the target's states, and then rows are those of a forward over
the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Ask, Budget, Seen
from paceline.drafters.networks.drafter import RowDrafter
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.drafters.networks.products import ProductGrowth
from paceline.drafters.networks.reading import ReadText, TokenColumns
from paceline.law import Outlook
from paceline.targets.base import Rows
from paceline.tree import ROOT, DraftTree

if TYPE_CHECKING:
    import torch

    from paceline.drafters.networks.state_rows import ShownRows


WAITING = 32
"""Rounds whose states wait before rows take them: in one product they take far less time, and a text that is written
without drafts takes none in between."""


class StateText(ReadText):
    """A text as a head has read it."""

    rows: ShownRows

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.waiting: list[tuple[int, torch.Tensor]] = []
        """States that the rows have not taken yet, each round's with the place of its first."""

    @property
    def known(self) -> int:
        return min(self.length, self.rows.shown + 1)

    def branched(self, context: Context, rows: Rows) -> StateText:
        other = cast("StateText", super().branched(context, rows))
        other.waiting = []
        return other

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

    def depth(self, budget: Budget, length: int) -> int:
        return super().depth(budget.within(budget.nodes), length)

    def taken(self, states: torch.Tensor) -> torch.Tensor:
        """What rows keep of the states ``[rows, width]`` that the target's layers have shown, one behind the other."""
        return states

    def observe(self, seen: Sequence[Seen]) -> None:
        """Note the states of the new text; while it is a prompt, read it."""
        for each in seen:
            each.state.waiting.append((each.scores.start, self._shown(each)))
        states = [each.state for each in seen]
        prompts = not all(each.verdict.tokens for each in seen)
        if prompts or any(len(one.waiting) >= WAITING or one.context.finish is not None for one in states):
            with self._rows.held():
                self._take(states)
        super().observe(seen)

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        with self._rows.held():
            self._take([ask.state for ask in asks])
        return super().propose(asks)

    def branch(self, state: ReadText, context: Context) -> ReadText:
        with self._rows.held():
            self._take([cast("StateText", state)])
        return super().branch(state, context)

    def _take(self, texts: Sequence[StateText]) -> None:
        """Let rows take the states that wait, those of all texts in one product."""
        import torch

        waiting = [(text, start, states) for text in texts for start, states in text.waiting]
        if not waiting:
            return
        parts = self.taken(torch.cat([states for *_, states in waiting])).split([len(each) for *_, each in waiting])
        for (text, start, _), states in zip(waiting, parts, strict=True):
            text.rows.show(start, states)
        for text in texts:
            text.waiting.clear()

    def _shown(self, seen: Seen) -> torch.Tensor:
        """The states of the rows that became text."""
        import torch

        kept = torch.from_numpy(np.array([0, *(node + 1 for node in seen.verdict.path)]))
        return torch.cat([torch.as_tensor(seen.scores.hidden(layer))[kept] for layer in self.layers], dim=-1)
