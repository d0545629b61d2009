"""Copying within a draft: behind the leaves of a draft by a network goes on what copies the text.

A network guesses the next few tokens of any text, and takes time for each level. A copy goes on for free, but only
where the text repeats itself already. Together: the network drafts the first tokens, and if they lead into something
that stood before, the copy goes on behind them in the same draft.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from paceline.drafters.asking import admitted, answered
from paceline.drafters.base import Ahead, Ask, Budget, Drafter
from paceline.tree import ROOT, DraftTree, merge

LEAVES = 4
"""Leaves of a draft that are continued, at most: the likeliest."""


def continued(drafts: Sequence[DraftTree], asks: Sequence[Ask], copying: Mapping[int, Drafter]) -> list[DraftTree]:
    """These drafts with what the parts that copy bring behind their leaves, within the budgets. A path's score is that
    of its leaf times that of the copy. The states of the asks have those of the parts, by number.

    Drafts that were sampled stay as they are. Whether one can be continued depends on the tokens drawn, and then it
    would be sent by their value.
    """
    leaves = [
        (number, leaf)
        for number, (draft, ask) in enumerate(zip(drafts, asks, strict=True))
        if not draft.drawn and draft.probes is None
        for leaf in likeliest_leaves(draft, ask.budget, ask.state.context.ending.eos)
    ]
    more: list[list[DraftTree]] = [[] for _ in drafts]
    for part_number, part in copying.items() if leaves else ():
        given = [_ahead(asks[number], part_number, drafts[number], leaf) for number, leaf in leaves]
        for (number, leaf), ask, copy in zip(leaves, given, answered(part, "behind", given, DraftTree), strict=True):
            if len(copy):
                copy = admitted(part, copy, part.leaves * ask.budget.nodes).head(len(copy), depth=ask.budget.depth)
                more[number].append(grafted(drafts[number], leaf, copy))
    return [
        merge([draft, *added]).top(ask.budget.nodes) if added else draft
        for draft, added, ask in zip(drafts, more, asks, strict=True)
    ]


def likeliest_leaves(draft: DraftTree, budget: Budget, ends: Collection[int]) -> list[int]:
    """The leaves that are worth continuing, the likeliest first: those that do not end the text, if the budget has room
    behind them."""
    above, tokens, depths, scores = set(draft.parents.tolist()), draft.tokens, draft.depths(), draft.path_scores()
    leaves = [node for node in range(len(draft)) if node not in above and tokens[node] not in ends]
    leaves = [leaf for leaf in leaves if depths[leaf] < budget.depth]
    return sorted(leaves, key=lambda leaf: -scores[leaf])[:LEAVES]


def _ahead(ask: Ask, part: int, draft: DraftTree, leaf: int) -> Ahead:
    """The path to a leaf, as a part that copies is asked for what follows."""
    path = draft.path(leaf)
    return Ahead(ask.state[part], ask.budget.within(ask.budget.depth - len(path)), draft.tokens[path].tolist())


def grafted(draft: DraftTree, leaf: int, copy: DraftTree) -> DraftTree:
    """The path to a leaf, and a draft behind it."""
    path = draft.path(leaf)
    parents = np.where(copy.parents == ROOT, len(path) - 1, copy.parents + len(path))
    return DraftTree(
        tokens=np.concatenate([draft.tokens[path], copy.tokens]),
        parents=np.concatenate([np.arange(ROOT, len(path) - 1), parents]),
        scores=np.concatenate([draft.scores[path], copy.scores]),
        sources=(*(draft.sources[node] for node in path), *copy.sources),
    )
