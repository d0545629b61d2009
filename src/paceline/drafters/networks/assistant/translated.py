"""A draft in the draft model's tokens, translated into the target's when it is grown."""

from __future__ import annotations

import numpy as np

from paceline.drafters.networks.assistant.growth import DraftShape, Growth
from paceline.drafters.networks.assistant.state import BYTES_TRANSLATED, DRAFT_TOKENS, ForeignState
from paceline.translate import CONTEXT, LATTICE, Lattice, TranslatedDraft
from paceline.tree import EMPTY, DraftTree, merge


class Translated(Growth):
    """The draft model follows its own choices: the noise names tokens of the target, and it has none."""

    of_target = False

    def __init__(self, reading: ForeignState, shape: DraftShape, nodes: int, depth: int) -> None:
        super().__init__(reading, shape, nodes, depth)
        self._state = reading

    def tree(self, source: str) -> DraftTree:
        state = self._state
        inner = {*self._parents}
        drafts = [self._draft(leaf) for leaf in range(len(self._tokens)) if leaf not in inner]
        state.tally.add(DRAFT_TOKENS, len(self._tokens))
        state.tally.add(BYTES_TRANSLATED, sum(len(draft.data) for draft in drafts))
        trees = [self._translated(draft, source) for draft in drafts if draft.data or draft.ends]
        tree = EMPTY if not trees else trees[0] if len(trees) == 1 else merge(trees)
        return tree.top(self._nodes)

    def _draft(self, leaf: int) -> TranslatedDraft:
        """The bytes of one path. A special token ends it: none arises from drafted text."""
        of = self._state.foreign.bridge.drafter.of
        pieces: list[tuple[bytes, float]] = []
        for node in self._path(leaf):
            token = self._tokens[node]
            spelled = of[token] if token < len(of) else b""
            if not spelled:
                return TranslatedDraft.of(pieces, self._scores[node] if token in self._state.ends else None)
            pieces.append((spelled, self._scores[node]))
        return TranslatedDraft.of(pieces)

    def _path(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self._parents[node]
        return path[::-1]

    def _translated(self, draft: TranslatedDraft, source: str) -> DraftTree:
        state, strategy = self._state, self._state.foreign.strategy
        bridge, end = state.foreign.bridge, state.end
        if strategy.name == LATTICE:
            lattice = Lattice(bridge.target, state.window(len(state.context)), draft)
            found = lattice.tree(self._nodes, state.habit.leaving, end)
        else:
            before = state.context.tokens[-strategy.prefix :].tolist() if strategy.prefix else []
            ids = bridge.behind(before, draft.data) if strategy.name == CONTEXT else bridge.naive(draft.data)
            found = draft.chain([(token, len(bridge.target.of[token])) for token in ids], end)
        scores = np.minimum(found.scores, 0.0)
        return DraftTree.build(found.tokens, found.parents, source=source, scores=scores)
