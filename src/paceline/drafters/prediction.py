"""Drafts from a prediction of the text, such as a file before an edit of it (`Settings.prediction`).

The text is expected to begin as the prediction does, and to copy it with edits (`edited`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from paceline.context import Context
from paceline.drafters.base import Ahead, Budget, Drafter, Seen
from paceline.drafters.continuing import grafted
from paceline.drafters.counters import NOTHING_COUNTED, Counter, Tally
from paceline.drafters.edited import PLACES, CopyPlace, EditedCopy
from paceline.drafters.endings import Endings
from paceline.drafters.votes import LONGEST
from paceline.tree import EMPTY, ROOT, DraftTree, merge
from paceline.verify import Verdict

ACCEPTED = Counter("accepted_prediction_tokens", "tokens of the text that were drafted from its prediction")
REJECTED = Counter("rejected_prediction_tokens", "tokens that were drafted from the prediction and not taken")

BEGUN = 4
"""Tokens that the beginning of a prediction counts as in agreement."""


class LazyEndings:
    """The index of a prediction, made when it is first read: most copies without an edit never read it."""

    def __init__(self, predicted: Sequence[int]) -> None:
        self._predicted = predicted

    @cached_property
    def index(self) -> Endings:
        found = Endings()
        found.extend(self._predicted)
        return found


@dataclass(eq=False)
class PredictionState(EditedCopy):
    """One text and where it is in its prediction."""

    drafted: DraftTree | None = None
    """The draft of this round."""
    tally: Tally = field(default_factory=Tally)
    endings: LazyEndings = field(kw_only=True)
    """Of the prediction; one for this text and for all that it would be behind drafts (`ahead`)."""

    def _elsewhere(self) -> list[tuple[int, int]]:
        return self.endings.index.like(self._last(LONGEST), PLACES)

    def _ending(self) -> list[int]:
        return self._last(2)

    def _last(self, count: int) -> list[int]:
        """The last tokens of the text, those of the prompt apart."""
        start = max(self.context.prompt_length, self.known - count)
        return self.context.listed(start)[: self.known - start]

    def draft(self, budget: Budget) -> DraftTree:
        """What follows each of the places, and both sides of each edit that is expected."""
        tree = self.drafted_from(budget, Prediction.name)
        self.drafted = tree if len(tree) else None
        return tree

    def draft_behind(self, budget: Budget, ahead: Sequence[int]) -> DraftTree:
        """The same behind tokens of another draft, which count for no prediction."""
        self.catch_up()
        tree = self.ahead(ahead).drafted_from(budget, Prediction.name).head(budget.nodes, depth=budget.depth)
        if len(tree):
            whole = grafted(DraftTree.chain(ahead), len(ahead) - 1, tree)
            self.drafted = whole if self.drafted is None else merge([self.drafted, whole])
        return tree

    def count(self, tokens: Sequence[int], parents: Sequence[int], verdict: Verdict) -> None:
        """Count a round by the rows that were scored, the root's first. A probe node may be a second row of a path."""
        own, self.drafted = self.drafted, None
        if own is None or not verdict.tokens:
            return
        edges = zip(own.parents.tolist(), own.tokens.tolist(), strict=True)
        children = {edge: node for node, edge in enumerate(edges)}
        nodes: dict[int, int] = {0: ROOT}
        for row in range(1, len(tokens)):
            if parents[row] in nodes and (edge := (nodes[parents[row]], tokens[row])) in children:
                nodes[row] = children[edge]
        sent, node, taken = set(nodes.values()) - {ROOT}, ROOT, 0
        for token in verdict.tokens[: verdict.accepted]:
            node = children.get((node, token), len(own))
            if node not in sent:
                break
            taken += bool(own.sources[node])
        self.tally.add(ACCEPTED, taken)
        self.tally.add(REJECTED, sum(bool(own.sources[each]) for each in sent) - taken)


class Prediction(Drafter):
    """Follows the prediction of the text, if it has one."""

    name = "prediction"
    summary = "what follows in a prediction of the text, such as a file before its edit"
    source = "predicted outputs (OpenAI 2024)"
    requires = "prediction=, the text that the answer will probably follow"
    unfit = "texts without a prediction"
    skips = True
    copies = True
    nodes = 64
    counters = (ACCEPTED, REJECTED)

    def open(self, context: Context) -> PredictionState | None:
        """None for a text without a prediction: then every call returns at once."""
        predicted = list(context.prediction)
        if not predicted:
            return None
        places, endings = [CopyPlace(0, BEGUN)], LazyEndings(predicted)
        return PredictionState(context, predicted, places, context.prompt_length, endings=endings)

    def propose_one(self, state: PredictionState | None, budget: Budget) -> DraftTree:
        if state is None:
            return EMPTY
        state.catch_up()
        return EMPTY if budget.empty else state.draft(budget)

    def behind(self, asks: Sequence[Ahead]) -> list[DraftTree]:
        return [EMPTY if state is None else state.draft_behind(budget, ahead) for state, budget, ahead in asks]

    def sure(self, state: PredictionState | None) -> bool:
        if state is None:
            return False
        state.catch_up()
        return state.agrees

    def observe(self, seen: Sequence[Seen]) -> None:
        for state, verdict, scores in seen:
            if state is not None:
                state.catch_up()
                if state.drafted is not None:
                    state.count(scores.tokens.tolist(), scores.parents.tolist(), verdict)

    def counts(self, state: PredictionState | None) -> Mapping[str, float]:
        return NOTHING_COUNTED if state is None else state.tally.take()
