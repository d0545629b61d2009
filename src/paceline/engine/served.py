"""The served driver: drafts for texts whose forward another program computes.

A host owns the model and writes the texts. In each of its rounds it requests drafts (`drafts`), scores any part of
them, commits the tokens that it emits, and reports these tokens and the seconds of its forward (`emitted`). Drafter and
planner are the same objects as in every other driver, and are called in the order of the decode loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

from paceline.context import Context
from paceline.drafters.asking import admitted, answered
from paceline.drafters.base import Ask, Budget, Drafter, Enrich, Seen
from paceline.planning.base import LISTENING, Draft, Outcome, Planner, Resting, Room
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, ROOT, DraftTree, is_chain
from paceline.verify import Verdict

TOGETHER = 64
"""Texts that are asked for together; the clock is read between them."""
FEW = 4
"""Texts whose logits are read at once; the clock is read between them."""


@dataclass(eq=False)
class ServedText:
    """A text of the host's, as far as drafts for it go."""

    context: Context
    state: Any
    """The drafter's."""
    proposed: DraftTree = EMPTY
    sent: DraftTree = EMPTY
    """The part of it that is worth scoring."""
    planned: bool = False
    """Whether the planner was asked for its next round."""
    shown: bool = True
    """Whether the drafter is shown that round."""
    rest: int = 0
    """For how many rounds the planner is not asked."""
    slept: bool = False
    """Whether its last budget was empty."""
    off: bool = False
    """Whether drafting failed for it, so that it is left alone."""

    def forget(self) -> None:
        """Its last draft was not scored, or its outcome is unknown."""
        self.proposed = self.sent = EMPTY
        self.shown = False


class ServedRound(NamedTuple):
    """The tokens that a text got in a round, which its context holds already."""

    text: ServedText
    tokens: tuple[int, ...]
    scores: Scores | None = None
    """Of the root and the draft that was sent; None where the host has none, or the drafter needs none."""


def raised(error: Exception) -> NoReturn:
    """The default handling of a drafter's failure."""
    raise error


class Served:
    """Drafts of one drafter, of sizes of one planner. Not for several threads."""

    def __init__(
        self,
        drafter: Drafter,
        planner: Planner,
        *,
        depth: int | None = None,
        trees: bool = False,
        vocab_size: int | None = None,
        failed: Callable[[Exception], None] = raised,
        close: Callable[[Any], None] | None = None,
    ) -> None:
        """``depth`` is the most tokens in a row that the host takes, and ``trees`` whether it takes more than chains;
        tokens are below ``vocab_size``. ``failed`` is called with errors; a text whose own drafting failed is left
        alone from then on. ``close`` ends the drafter's state of a text, by default at once."""
        self.drafter, self.planner = drafter, planner
        self._depth, self._trees, self._vocab_size = depth, trees, vocab_size
        self._failed, self._close = failed, close or drafter.close
        self._reads = drafter.needs.top > 0
        self._spent, self._turn = 0.0, 0
        self._apart = False
        """Whether each text is shown by itself, until it is found whose showing fails."""

    def open(self, context: Context) -> ServedText:
        return ServedText(context, self.drafter.open(context))

    def close(self, text: ServedText) -> None:
        """A text has ended."""
        if not text.off:
            self._close(text.state)

    # after a forward

    def emitted(self, news: Sequence[ServedRound], seconds: float = 0.0, until: float = math.inf) -> None:
        """Learn from a round of ``seconds`` (0 if unknown), of texts that were scored together. The drafter learns
        until the clock reaches ``until``."""
        began = time.perf_counter()
        if self.drafter.observes:
            seen = [new for new in news if new.text.shown and not new.text.off]
            self._show([new for new in seen if new.scores is not None] if self._reads else seen, until)
        drafting = self._spent + time.perf_counter() - began
        outcomes = [
            Outcome(text.context, text.proposed, text.sent, tokens, drafting, seconds, 0.0, text.shown)
            for text, tokens, _ in news
            if text.planned
        ]
        if outcomes:
            self.planner.review(outcomes)

    def _show(self, news: Sequence[ServedRound], until: float) -> None:
        """Show the drafter as many texts as there is time for: others are first each time."""
        some = 1 if self._apart else FEW if self._reads else TOGETHER
        self._turn += 1
        first = self._turn % (len(news) or 1)
        news = [*news[first:], *news[:first]]
        for start in range(0, len(news), some):
            if start and time.perf_counter() > until:
                return
            self._learn(news[start : start + some])

    def _learn(self, news: Sequence[ServedRound]) -> None:
        """Show a round, once: a drafter that fails for one of several may have learnt from others before."""
        try:
            seen = [Seen(new.text.state, verdict(new.text.sent, new.tokens), new.scores) for new in news]  # type: ignore[arg-type]
            if self._reads:
                self.drafter.read(seen)
            self.drafter.observe(seen)
        except Exception as error:
            self._apart = len(news) > 1
            if self._apart:
                self._failed(error)
            else:
                self._leave(news[0].text, error)

    # before a forward

    def drafts(self, texts: Sequence[ServedText], until: float = math.inf) -> list[DraftTree]:
        """The parts of their drafts that are worth scoring in the next forward. Texts whose turn has not come when the
        clock says ``until`` have none."""
        began = time.perf_counter()
        asked = self._asked(texts)
        found = list[tuple[ServedText, Draft]]()
        for start in range(0, len(asked), TOGETHER):
            if time.perf_counter() > until:
                break
            found += self._proposed(asked[start : start + TOGETHER])
        cuts = self.planner.cut([draft for _, draft in found]) if found else []
        for (text, draft), cut in zip(found, cuts, strict=True):
            text.proposed, text.sent = draft.tree, cut.tree
        self._spent = time.perf_counter() - began
        return [text.sent for text in texts]

    def _asked(self, texts: Sequence[ServedText]) -> list[tuple[ServedText, Budget]]:
        """The texts that are drafted for, and how much."""
        planned, rooms = list[ServedText](), list[Room]()
        if self.drafter.may_be_sure:
            self._wake([text for text in texts if text.slept and not text.off and not text.rest % LISTENING])
        for text in texts:
            text.proposed = text.sent = EMPTY
            text.rest, text.planned = max(0, text.rest - 1), text.rest == 0
            depth = text.context.room - 1
            if self._depth is not None:
                depth = min(depth, self._depth)
            if text.planned and not text.off and depth > 0:
                planned.append(text)
                rooms.append(Room(text.context, depth))
        if not planned:
            return []
        budgets, asked = self.planner.plan(rooms), list[tuple[ServedText, Budget]]()
        for text, (_, depth), budget in zip(planned, rooms, budgets, strict=True):
            text.shown = budget.shown or not self.drafter.skips
            text.slept = budget.empty
            if budget.empty:
                text.rest = budget.rounds - 1
            else:
                asked.append((text, budget.within(depth)))
        return asked

    def _wake(self, texts: Sequence[ServedText]) -> None:
        """End the rest of texts that the planner wants to be asked about, since the drafter is sure of a draft."""
        resting = list[Resting]()
        for text in texts:
            try:
                resting.append(Resting(text.context, self.drafter.sure(text.state)))
            except Exception as error:
                self._leave(text, error)
                resting.append(Resting(text.context, sure=False))
        for text, woken in zip(texts, self.planner.wake(resting) if resting else (), strict=True):
            text.rest = 0 if woken else text.rest

    def _proposed(self, asked: Sequence[tuple[ServedText, Budget]]) -> list[tuple[ServedText, Draft]]:
        """Drafts, with the expensive part of the drafter where that is worth its time."""
        try:
            trees = answered(self.drafter, "propose", [Ask(text.state, budget) for text, budget in asked], DraftTree)
            found = [
                (text, Draft(text.context, self._fitting(tree, budget), budget))
                for (text, budget), tree in zip(asked, trees, strict=True)
            ]
            return self._enriched(found) if self.drafter.enriches else found
        except Exception as error:
            if len(asked) == 1:
                self._leave(asked[0][0], error)
                return []
            return [draft for one in asked for draft in self._proposed([one])]

    def _enriched(self, cheap: Sequence[tuple[ServedText, Draft]]) -> list[tuple[ServedText, Draft]]:
        levels = self.planner.worth([draft for _, draft in cheap])
        asks = [
            Enrich(
                text.state,
                replace(draft.budget, depth=min(draft.budget.depth, count)),
                draft.tree,
                draft.budget.depth,
            )
            for (text, draft), count in zip(cheap, levels, strict=True)
            if count
        ]
        trees = iter(answered(self.drafter, "enrich", asks, DraftTree) if asks else ())
        return [
            (
                text,
                draft._replace(
                    cheap=draft.tree,
                    levels=count,
                    tree=self._fitting(next(trees), draft.budget) if count else draft.tree,
                ),
            )
            for (text, draft), count in zip(cheap, levels, strict=True)
        ]

    def _fitting(self, tree: DraftTree, budget: Budget) -> DraftTree:
        """A valid draft, no deeper than the budget, of a shape that the host can score."""
        tree = admitted(self.drafter, tree, self.drafter.leaves * budget.nodes, self._vocab_size)
        tree = tree.head(len(tree), depth=budget.depth)
        return tree if self._trees else best_chain(tree)

    def _leave(self, text: ServedText, error: Exception) -> None:
        """Leave a text alone for which drafting failed."""
        text.off = True
        text.forget()
        try:
            self._close(text.state)
        except Exception as another:
            error.add_note(f"and then, closing the drafter's state: {another}")
        self._failed(error)


def verdict(sent: DraftTree, tokens: tuple[int, ...]) -> Verdict:
    """The verdict on a draft, from the tokens that the text got."""
    path = tuple(sent.along(tokens[:-1]))
    return Verdict(path, tokens, len(path))


def best_chain(tree: DraftTree) -> DraftTree:
    """The path that brings the most tokens by its scores."""
    count = len(tree)
    if is_chain(tree.parents) and tree.probes is None:
        return tree
    parents, probes = tree.parents.tolist(), tree.probes
    chances = [min(1.0, math.exp(score)) for score in tree.scores.tolist()]
    worth, best = [0.0] * (count + 1), [ROOT] * (count + 1)  # the root stands last, at -1
    for node in range(count - 1, -1, -1):
        value = chances[node] * (1 + worth[node])
        if value > worth[parents[node]] and (probes is None or not probes[node]):
            worth[parents[node]], best[parents[node]] = value, node
    path, node = list[int](), best[ROOT]
    while node != ROOT:
        path.append(node)
        node = best[node]
    return tree.select(path) if probes is None else replace(tree.select(path), probes=None)
