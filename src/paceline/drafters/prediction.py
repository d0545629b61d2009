"""Drafts from a prediction of the text, such as a file before an edit of it (`Settings.prediction`).

The text is expected to begin as the prediction does. As long as it agrees, the draft is what follows in the prediction.
Where the text leaves it, there are several places at which it may come back, and the draft branches:

    a match   the last tokens of the text occur in the prediction: near ones by few tokens, others by three or more
    a skip    as many tokens were replaced as were written since, or one was, or none

After three tokens in agreement only that place is left. The edit is then known: which tokens were replaced, and by
what. Where the prediction has the replaced tokens again, such as a name, the draft has both ways to go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, log1p

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter, Seen
from paceline.drafters.counters import NOTHING_COUNTED, Counter, Tally
from paceline.drafters.endings import Endings
from paceline.drafters.votes import LONGEST
from paceline.tree import EMPTY, ROOT, DraftTree
from paceline.verify import Verdict

ACCEPTED = Counter("accepted_prediction_tokens", "tokens of the text that were drafted from its prediction")
REJECTED = Counter("rejected_prediction_tokens", "tokens that were drafted from the prediction and not taken")

SURE = 3
"""Tokens in agreement from which a place is the only one."""
BEGUN = 4
"""Tokens that the beginning of a prediction counts as in agreement."""
LONG = 8
"""Tokens in agreement after which a far place is the text's for certain."""
NEAR = 48
"""Tokens ahead among which one or two tokens of agreement find a place."""
PLACES = 16
"""Places that are compared elsewhere."""
KEPT = 4
"""Places that are drafted from at most while the text is off the prediction."""
BRANCH = 12
"""Tokens of a draft from a place that is not sure."""
LONGEST_EDIT = 12
"""Tokens replaced, or written in their place, of an edit that is expected again."""
AGREED = (0.12, 0.45, 0.7, 0.86, 0.9, 0.92, 0.94, 0.95, 0.96)
"""The chance of a place's next token, by its tokens in agreement; with more it approaches 1."""
_SCORES = [log(chance) for chance in AGREED] + [log1p(-0.32 / run) for run in range(len(AGREED), 128)]
_LAST = len(_SCORES) - 1


@dataclass
class PredictedPlace:
    """A place of the prediction at which the text may go on: the next token's, and how many agreed before it."""

    at: int
    run: int


@dataclass
class Edit:
    """Tokens of the prediction that the text replaced by others, and how often it did so where they came again."""

    old: list[int]
    new: list[int]
    taken: int = 1
    met: int = 1

    @property
    def chance(self) -> float:
        return (self.taken + 1) / (self.met + 2)


@dataclass(eq=False)
class PredictionState:
    """One text and where it is in its prediction."""

    context: Context
    predicted: list[int]
    """The prediction."""
    places: list[PredictedPlace]
    """Where the text may go on, the likeliest first."""
    known: int
    """Tokens of the context that were followed."""
    left: int = 0
    """The place at which the text left the prediction."""
    fresh: list[int] = field(default_factory=list)
    """The tokens since then; none while the text agrees."""
    edits: dict[int, Edit] = field(default_factory=dict)
    """By the first token that they replace."""
    drafted: DraftTree | None = None
    """The draft of this round."""
    tally: Tally = field(default_factory=Tally)
    _endings: Endings | None = None

    @property
    def endings(self) -> Endings:
        """The index of the prediction, which most copies without an edit never need."""
        if self._endings is None:
            self._endings = Endings()
            self._endings.extend(self.predicted)
        return self._endings

    def catch_up(self) -> None:
        """Follow the tokens that are new."""
        if len(self.context) > self.known:
            for token in self.context.listed(self.known):
                self.known += 1
                self._follow(token)

    def _follow(self, token: int) -> None:
        predicted, before = self.predicted, self.places
        self.places = [
            PredictedPlace(place.at + 1, place.run + 1)
            for place in before
            if place.at < len(predicted) and predicted[place.at] == token
        ]
        if not self.fresh:
            if self.places:
                self._pass_edit(before[0].at)
                return
            if before[0].run >= LONG or abs(before[0].at - self.left) <= NEAR:  # else it was perhaps never there
                self.left = before[0].at
        self.fresh.append(token)
        if self._edited():
            return
        sure = next((place for place in self.places if place.run >= SURE), None)
        if sure is None:
            self.places += self._found() + self._skips()
            sure = next((place for place in self.places if place.run >= SURE), None)
        if sure is not None:
            self._back(sure)
        else:
            self._keep_best()

    def _keep_best(self) -> None:
        """The likeliest places, each once."""
        best: dict[int, PredictedPlace] = {}
        for place in sorted(self.places, key=lambda place: -place.run):  # stable: of equals the first
            best.setdefault(place.at, place)
        self.places = list(best.values())[:KEPT]

    def _back(self, place: PredictedPlace) -> None:
        """The text is back at a place; what it wrote in between is an edit."""
        start = max(place.at - place.run, self.left)
        new = self.fresh[: len(self.fresh) - (place.at - start)] if place.at - start <= len(self.fresh) else []
        old = self.predicted[self.left : start] if place.at > self.left else []
        if old and max(len(old), len(new)) <= LONGEST_EDIT and old != new:
            same = self.edits.get(old[0])
            if same is None or (same.old, same.new) != (old, new):
                self.edits[old[0]] = Edit(old, new)
        self.places, self.fresh = [place], []

    def _edited(self) -> bool:
        """Whether a known edit was just written in place of the same tokens: then the text is behind them. A deletion
        is seen by the token behind it."""
        edit = self.edit_at(self.left)
        if edit is None:
            return False
        behind, more = self.left + len(edit.old), 0 if edit.new else 1
        if self.fresh != edit.new + self.predicted[behind : behind + more]:
            return False
        edit.taken, edit.met = edit.taken + 1, edit.met + 1
        self.places, self.fresh = [PredictedPlace(behind + more, SURE)], []
        return True

    def _pass_edit(self, at: int) -> None:
        """Count an edit that was not written where it might have been."""
        edit = self.edits.get(self.predicted[at])
        if edit is not None and edit.old == self.predicted[at : at + len(edit.old)] and edit.new[:1] != edit.old[:1]:
            edit.met += 1

    def edit_at(self, at: int) -> Edit | None:
        """The edit that is known of the tokens at a place."""
        edit = self.edits.get(self.predicted[at]) if at < len(self.predicted) else None
        return edit if edit is not None and edit.old == self.predicted[at : at + len(edit.old)] else None

    def _found(self) -> list[PredictedPlace]:
        """Places behind the last tokens of the text, the nearest ahead first."""
        start = max(self.context.prompt_length, self.known - LONGEST)
        ending = self.context.listed(start)[: self.known - start]
        elsewhere = [PredictedPlace(at + 1, size) for at, size in self.endings.like(ending, PLACES) if size >= SURE]
        if elsewhere:
            longest = max(place.run for place in elsewhere)
            return [min((p for p in elsewhere if p.run == longest), key=lambda p: (p.at < self.left, p.at))]
        near, last = self.predicted[self.left : self.left + NEAR], ending[-1]
        found = [PredictedPlace(self.left + i + 1, 1) for i, token in enumerate(near) if token == last]
        for place in found:
            if len(ending) > 1 and place.at > 1 and self.predicted[place.at - 2] == ending[-2]:
                place.run = 2
        return sorted(found, key=lambda place: -place.run)[:2]

    def _skips(self) -> list[PredictedPlace]:
        """Places behind as many tokens as were written since the text left the prediction, behind one and none."""
        ahead = dict.fromkeys((len(self.fresh), 1, 0)) if len(self.fresh) <= LONGEST_EDIT else (0,)
        return [PredictedPlace(self.left + skip, 0) for skip in ahead if self.left + skip < len(self.predicted)]

    def draft(self, budget: Budget) -> DraftTree:
        """What follows each of the places, and both sides of each edit that is expected."""
        tree = _Growing(self, budget)
        for place in self.places:
            tree.add(ROOT, place, budget.depth if place.run >= SURE else min(budget.depth, BRANCH))
        self.drafted = tree.built() if tree.tokens else None
        return EMPTY if self.drafted is None else self.drafted

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
        sent, node, taken = set(nodes.values()), ROOT, 0
        for token in verdict.tokens[: verdict.accepted]:
            node = children.get((node, token), len(own))
            if node not in sent:
                break
            taken += 1
        self.tally.add(ACCEPTED, taken)
        self.tally.add(REJECTED, len(sent) - 1 - taken)


class _Growing:
    """A draft tree that grows by the ways in which the text may go on. Equal paths are one."""

    def __init__(self, text: PredictionState, budget: Budget) -> None:
        self.text, self.nodes = text, budget.nodes
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self._known: dict[tuple[int, int], int] = {}

    def node(self, parent: int, token: int, score: float) -> int | None:
        """The child of a node that carries a token; None where the draft is full."""
        known = self._known.get((parent, token))
        if known is None and len(self.tokens) < self.nodes:
            known = self._known[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.scores.append(score)
        elif known is not None:
            self.scores[known] = max(self.scores[known], score)
        return known

    def add(self, parent: int, place: PredictedPlace, count: int) -> None:
        """The likeliest way on from a place; behind it the other side of the first edit on this way."""
        predicted, at, run, depth = self.text.predicted, place.at, place.run, 0
        other: tuple[int, list[int], int, float] | None = None
        above: int | None = parent
        while depth < count and above is not None and at < len(predicted):
            edit, score = self.text.edit_at(at) if run >= SURE else None, _SCORES[min(run, _LAST)]
            if edit is None:
                above, at, run, depth = self.node(above, predicted[at], score), at + 1, run + 1, depth + 1
                continue
            follows = edit.chance >= 0.5
            sides = (edit.new, at + len(edit.old)), (predicted[at : at + 1], at + 1)
            (way, behind), (second, after) = sides if follows else sides[::-1]
            chance = log(edit.chance if follows else 1 - edit.chance)
            if other is None:
                other = above, second, after, log1p(-exp(chance))
            above, depth = self._chain(above, way[: count - depth], score + chance), depth + len(way)
            at = behind
        if other is not None:
            self._branch(*other)

    def _branch(self, parent: int, way: list[int], at: int, score: float) -> None:
        """The other side of an edit, with some tokens behind it."""
        above = self._chain(parent, way, score)
        for step, token in enumerate(self.text.predicted[at : at + BRANCH]):
            if above is None:
                return
            above = self.node(above, token, _SCORES[SURE + step])

    def _chain(self, above: int | None, way: Sequence[int], score: float) -> int | None:
        """Tokens of one side of an edit; the first decides."""
        for step, token in enumerate(way):
            if above is None:
                return None
            above = self.node(above, token, score if step == 0 else _SCORES[len(AGREED)])
        return above

    def built(self) -> DraftTree:
        return DraftTree.build(self.tokens, self.parents, source=Prediction.name, scores=self.scores)


class Prediction(Drafter):
    """Follows the prediction of the text, if it has one."""

    name = "prediction"
    summary = "what follows in a prediction of the text, such as a file before its edit"
    source = "predicted outputs (OpenAI 2024)"
    requires = "prediction=, the text that the answer will probably follow"
    unfit = "texts without a prediction"
    skips = True
    nodes = 64
    counters = (ACCEPTED, REJECTED)

    def open(self, context: Context) -> PredictionState | None:
        """None for a text without a prediction: then every call returns at once."""
        predicted = list(context.prediction)
        return (
            PredictionState(context, predicted, [PredictedPlace(0, BEGUN)], context.prompt_length)
            if predicted
            else None
        )

    def propose_one(self, state: PredictionState | None, budget: Budget) -> DraftTree:
        if state is None:
            return EMPTY
        state.catch_up()
        return EMPTY if budget.empty else state.draft(budget)

    def observe(self, seen: Sequence[Seen]) -> None:
        for state, verdict, scores in seen:
            if state is not None:
                state.catch_up()
                if state.drafted is not None:
                    state.count(scores.tokens.tolist(), scores.parents.tolist(), verdict)

    def counts(self, state: PredictionState | None) -> Mapping[str, float]:
        return NOTHING_COUNTED if state is None else state.tally.take()
