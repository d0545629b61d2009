"""A drafter that reads hidden states: of all earlier places that go on with the text's last token it copies from those
where the model was in the most similar state."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline import Budget, Context, Drafter, DraftTree, Seen, Want


@dataclass(eq=False)
class History:
    """One text, and the unit states of the rows that were read of it: the last ones before its last token."""

    context: Context
    states: np.ndarray | None = None
    count: int = 0


class Nearest(Drafter):
    name = "nearest"
    summary = "copy what followed the last token where the model's state was most similar"
    source = "the second tutorial in docs/writing-a-drafter.md"
    nodes = 12

    def __init__(self, *, layer: int = 2, places: int = 3) -> None:
        self.layer, self.places = layer, places
        self.needs = Want(hidden=frozenset({layer}))

    def open(self, context: Context) -> History:
        return History(context)

    def observe(self, seen: Sequence[Seen]) -> None:
        for text, verdict, scores in seen:
            kept = [0, *(node + 1 for node in verdict.path)]
            states = scores.hidden(self.layer)[kept].float().cpu().numpy()
            if text.states is None:
                text.states = np.empty((len(text.context) + text.context.room, states.shape[1]), np.float32)
            new = slice(text.count, text.count + len(kept))
            text.states[new] = states / np.linalg.norm(states, axis=1, keepdims=True)
            text.count = new.stop

    def propose_one(self, text: History, budget: Budget) -> DraftTree:
        tokens = text.context.tokens[-text.count - 1 :]  # row i of the states is the one behind tokens[i]
        places = np.flatnonzero(tokens[1:-1] == text.context.root)
        if text.states is None or len(places) == 0:
            return DraftTree.chain([])
        alike = text.states[places] @ text.states[text.count - 1]
        best = places[np.argsort(-alike)[: self.places]]
        beams = [tokens[place + 2 : place + 2 + budget.depth].tolist() for place in best]
        return DraftTree.from_beams(beams, source=self.name).top(budget.nodes)
