"""Whether a text begins with drafts: not where they are known to take more time than they can be expected to bring.

On some machines a forward over two rows takes twice as long as one over a single row, so that no draft pays unless it
is a copy. A probe says so before the first text. A probe on a busy machine may say so as well, and be wrong. So texts
begin without drafts only for a number of rounds, counted over all texts of a method; then one of them tries, and the
seconds of its rounds count for more than the probe's. If drafts do not pay there either, the next rest is twice as
long. The first text of a method always tries: what its drafts take is known from then on.
"""

from __future__ import annotations

import numpy as np

from paceline.planning.backoff import BEARABLE, LONGEST, BackOff
from paceline.planning.choice import FEW
from paceline.planning.costs import Costs
from paceline.planning.effort import Effort
from paceline.planning.levels import MEASURED

HOPED = 0.5
"""Tokens that a draft is expected to bring before the first one was made, and the chance of each of its nodes."""


def begun(effort: Effort, costs: Costs, batch: int, patience: float) -> BackOff:
    """The back-off of a batch that begins. ``patience`` is how many tokens a round may lose, for each text."""
    size = batch.bit_length()
    start, plain = effort.starts[size], effort.plain[size].seconds
    if start.worth.value > 0:
        start.left = start.length = 0
        return BackOff()
    if start.left:
        return BackOff(left=start.left)
    drafting = effort.cheap[size] if effort.cheap[size].times else effort.levels[size]
    if drafting.times < MEASURED or drafting.seconds <= patience * plain:
        return BackOff()  # what drafts take is not known yet, or loses nothing
    value = _hoped(costs, batch) - (drafting.seconds / plain if plain else 0.0)
    if start.length or value >= -BEARABLE:
        return BackOff()
    start.left = start.length = min(LONGEST, int(-value / patience))
    costs.doubt()
    return BackOff(left=start.left)


def _hoped(costs: Costs, batch: int) -> float:
    """What each text's first draft may bring, in tokens: `HOPED`, or less where rows are expensive."""
    seconds, nodes = costs.seconds(batch * FEW, sequences=batch), np.arange(1, FEW)
    rows = seconds[batch * (1 + nodes)] / seconds[batch] - 1
    return min(HOPED, float((1 - (1 - HOPED) ** nodes - rows).max()))
