"""A drafter in one file: a Markov chain, which proposes for each token the one that followed it last."""

import numpy as np

from paceline import Budget, Context, Drafter, DraftTree


class Markov(Drafter):
    name = "markov"
    summary = "propose for each token the one that followed it last"
    source = "the tutorial in docs/writing-a-drafter.md"

    def __init__(self, *, longest: int = 8) -> None:
        self.longest = longest

    def propose_one(self, context: Context, budget: Budget) -> DraftTree:
        text, line = context.tokens, [context.root]
        while len(line) <= min(budget.nodes, budget.depth, self.longest):
            places = np.flatnonzero(text[:-1] == line[-1])
            if len(places) == 0:
                break
            line.append(int(text[places[-1] + 1]))
        return DraftTree.chain(line[1:], source=self.name)
