"""A world in which planners can be judged: made drafts, a made text, and a clock that a formula moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.context import Context, Ending
from paceline.drafters import Budget
from paceline.law import Sampling
from paceline.planning.base import Draft, Outcome, Planner, Room
from paceline.tree import EMPTY, ROOT, DraftTree, merge

VOCABULARY = 1000
Seconds = Callable[[int], float]
Source = Callable[["World", Context, Budget], DraftTree]
"""Makes a draft; it may look at the text to come, with which it is as right or as wrong as it likes."""


@dataclass
class World:
    """Texts of random tokens. What a forward of so many rows takes is given, and so is what drafting takes."""

    source: Source
    seconds: Seconds
    seconds_draft: float = 0.0
    seed: int = 0
    rounds: int = 0
    clock: float = 0.0
    emitted: int = 0
    sent: list[int] = field(default_factory=list)
    drafts: int = 0
    planned: list[int] = field(default_factory=list)
    """How many texts were asked for a draft in each round."""
    seconds_deep: float = 0.0
    """What every level of a draft takes."""
    expensive: Source | None = None
    """The drafter's expensive part, if it has one."""
    seconds_level: float = 0.0
    """What one of its levels takes."""
    seconds_reading: float = 0.0
    """What it takes to read for the drafter what it learns from a round."""
    seconds_asking: float = 0.0
    """What it takes for each text to ask the planner, and to show it the round."""
    shown: list[bool] = field(default_factory=list)
    """Whether the drafter was shown each round."""
    levels: list[int] = field(default_factory=list)
    """How many levels it had in each round that was planned."""
    depth: int = 16
    """The deepest draft that a round has room for."""
    rests: int = 0
    """For how many rounds the planner is not asked."""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.coming = self.rng.integers(0, VOCABULARY, 100_000)

    def truth(self, context: Context, ahead: int) -> int:
        return int(self.coming[len(context) + ahead])

    def ride(self, planner: Planner, rounds: int, batch: int = 1, *, foreseeable: bool = True) -> World:
        """Write ``batch`` texts together for so many rounds."""
        ending = Ending(max_new_tokens=90_000)
        contexts = [Context([1], Sampling(), ending) for _ in range(batch)]
        for context in contexts:
            context.foreseeable = foreseeable
        for _ in range(rounds):
            if self.rests:
                self._rest(contexts)
            else:
                self._round(planner, contexts)
        return self

    def _rest(self, contexts: Sequence[Context]) -> None:
        """A round that the planner has no part in."""
        self.rests -= 1
        for context in contexts:
            self.emitted += len(self._written(context, EMPTY))
        self._note(self.seconds(len(contexts)), 0, 0, shown=False)

    def _note(self, seconds: float, drafts: int, sent: int, *, shown: bool) -> None:
        self.rounds += 1
        self.clock += seconds
        self.drafts += drafts
        self.sent.append(sent)
        self.shown.append(shown)
        self.planned.append(drafts)

    def _round(self, planner: Planner, contexts: Sequence[Context]) -> None:
        budgets = planner.plan([Room(context, self.depth) for context in contexts])
        asking = [i for i, budget in enumerate(budgets) if not budget.empty]
        drafts = [Draft(contexts[i], self.source(self, contexts[i], budgets[i]), budgets[i]) for i in asking]
        drafting = self.seconds_draft if asking else 0.0
        drafting += self.seconds_deep * max((draft.tree.depth for draft in drafts), default=0)
        if asking and self.expensive is not None:
            drafts, more = self._enriched(planner, drafts)
            drafting += more
        cuts = planner.cut(drafts) if asking else []
        proposed, sent = [EMPTY] * len(contexts), [EMPTY] * len(contexts)
        for i, draft, cut in zip(asking, drafts, cuts, strict=True):
            proposed[i], sent[i] = draft.tree, cut.tree
        shown = any(budget.shown for budget in budgets)
        reading = self.seconds_reading if shown else 0.0
        spent = self.seconds(sum(1 + len(tree) for tree in sent)) + reading
        outcomes = []
        for context, offered, tree in zip(contexts, proposed, sent, strict=True):
            tokens = self._written(context, tree)
            outcome = Outcome(
                context=context,
                proposed=offered,
                sent=tree,
                tokens=tokens,
                seconds_draft=drafting,
                seconds=spent,
                seconds_top=reading,
                shown=shown,
            )
            outcomes.append(outcome)
            self.emitted += len(tokens)
        planner.review(outcomes)
        spent += self.seconds_asking * len(contexts)
        self._note(spent + drafting, len(asking), sum(map(len, sent)), shown=shown)
        self.rests = budgets[0].rounds - 1

    def _enriched(self, planner: Planner, drafts: Sequence[Draft]) -> tuple[list[Draft], float]:
        """The drafts with the expensive part where the planner wants it, and the seconds of its levels."""
        assert self.expensive is not None, "asked only of a world that has one"
        levels = planner.worth(drafts)
        found, deepest = [], 0
        for draft, count in zip(drafts, levels, strict=True):
            if not count:
                found.append(draft._replace(cheap=draft.tree))
                continue
            more = self.expensive(self, draft.context, replace(draft.budget, depth=min(draft.budget.depth, count)))
            tree = merge([draft.tree, more]) if len(draft.tree) else more
            found.append(draft._replace(cheap=draft.tree, tree=tree, levels=count))
            deepest = max(deepest, more.depth)
        self.levels.append(deepest)
        return found, deepest * self.seconds_level

    def _written(self, context: Context, tree: DraftTree) -> tuple[int, ...]:
        """Commit the tokens of a round: the path of the draft that the text takes, and one more."""
        node, tokens = ROOT, list[int]()
        while True:
            token = self.truth(context, 0)
            context.commit(token)
            tokens.append(token)
            child = tree.child(node, token)
            if child is None:
                return tuple(tokens)
            node = child

    @property
    def speed(self) -> float:
        return self.emitted / self.clock


def chain(odds: Sequence[float], claims: Sequence[float] | None = None, name: str = "chain") -> Source:
    """A chain whose token at each depth is right with the odds of that depth, and claims what it claims: the truth
    unless told."""
    scores = np.log(claims if claims is not None else odds)

    def draft(world: World, context: Context, budget: Budget) -> DraftTree:
        count = min(budget.nodes, budget.depth, len(odds))
        tokens = []
        for ahead in range(count):
            right = world.rng.random() < odds[ahead]
            tokens.append(world.truth(context, ahead) if right else VOCABULARY + ahead)
        return DraftTree.chain(tokens, source=name, scores=scores[:count])

    return draft


def fan(odds: Sequence[float], name: str = "fan") -> Source:
    """Siblings below the root, of which one is right with the odds of its place."""

    def draft(world: World, context: Context, budget: Budget) -> DraftTree:
        count = min(budget.nodes, len(odds))
        right = world.rng.choice(len(odds) + 1, p=[*odds, 1 - sum(odds)])
        tokens = [world.truth(context, 0) if i == right else VOCABULARY + i for i in range(count)]
        return DraftTree.build(tokens, [ROOT] * count, source=name, scores=np.log(odds[:count]))

    return draft
