"""The logits that vLLM computes, for methods that learn from them.

vLLM hands none to a proposer. But it gives it the model, whose `compute_logits` it then calls: the rows of a step are
those of all requests in order, for each the last token of its text and its draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.integrations.vllm.texts import Following
from paceline.targets.base import Want
from paceline.targets.scores import Scores
from paceline.tree import Ints, line


@dataclass(frozen=True)
class _Chain:
    """The rows of a text's last token and its draft."""

    tokens: Ints
    parents: Ints
    want: Want
    start: int
    held: int = 0


class Logits:
    """Those of the step under way."""

    def __init__(self, top: int) -> None:
        """``top`` is how many of the best tokens a drafter reads; 0 for one that reads none."""
        self.wanted = top > 0
        self._want = Want(top=top)
        self._newest: Any = None

    def listen(self, model: Any) -> None:
        if not self.wanted:
            return
        compute = model.compute_logits

        def heard(*given: Any, **more: Any) -> Any:
            self._newest = None  # of a step without a proposal; they may be large
            self._newest = compute(*given, **more)
            return self._newest

        model.compute_logits = heard

    def of(self, sampled: Sequence[Sequence[int]], followed: Mapping[int, Following]) -> dict[int, Scores]:
        """The scores of these rows. None where the engine scored other rows than were drafted, as it does where it has
        cut drafts: then nothing says whose they are."""
        newest, self._newest = self._newest, None
        if newest is None:
            return {}
        drafts = [followed[row].draft if row in followed else [] for row in range(len(sampled))]
        if sum(map(len, drafts)) + len(drafts) != len(newest):
            return {}
        found, start = dict[int, Scores](), 0
        for row, draft in enumerate(drafts):
            if row in followed:
                context = followed[row].context
                place = len(context) - len(sampled[row]) - 1
                tokens = np.array([context.at(place), *draft], np.int64)
                chain = _Chain(tokens, line(len(tokens))[0], self._want, place)
                found[row] = Scores(chain, newest[start : start + 1 + len(draft)])
            start += 1 + len(draft)
        return found
