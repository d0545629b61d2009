"""The decode loop of one sequence, as a generator that asks.

A round asks four times: how large a draft may be (`Plan`), for the draft (`Propose`), what the target finds (`Score`),
and lastly tells the drafter what became of it (`Learn`). Who answers, and when, and for how many sequences at once, is
the driver's business; every driver therefore emits the same tokens.

Between rounds one identity holds: the cache has a committed row for every token but the last, the root, which
is scored together with the next draft.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter, Seen
from paceline.engine.calls import Learn, Plan, Propose, Question, Review, Score, Trim
from paceline.law import Dice, Distribution, KeyedDice, Law
from paceline.planning.base import Cut, Draft, Outcome, Planner, Room, Why
from paceline.targets.base import NOTHING, Request, Rows, Scores, Target, Want
from paceline.tree import EMPTY, DraftTree, Ints
from paceline.verify import Rule, Verdict, judge


@dataclass(frozen=True)
class TokenLogprobs:
    """The model's own log-probability of an emitted token (no warp applied), and its best alternatives."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Emission:
    """One emitted token and where it came from: a source's name, or "" for the target's own of a round."""

    token: int
    source: str
    logprobs: TokenLogprobs | None = None
    round: int = 0
    """The number of the round that brought it."""
    score: float = 0.0
    """The log-probability that its source gave it; 0 from a source without an opinion, and for the target's own."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one scored draft brought. ``position`` counts tokens before it, prompt included."""

    position: int
    drafted: int
    depth: int
    """How many levels the draft had."""
    accepted: int
    refused: bool
    """Whether the draft went on where the target went another way; its last token then is a correction."""
    emitted: int
    seconds_draft: float
    """What the method costs beside the target: planning, proposing, learning."""
    seconds_score: float
    seconds_read: float
    """From logits to laws, and to what the drafter learns. On a device that works ahead of the host, the waiting for it
    is part of this."""
    seconds_judge: float
    proposed: int = 0
    """How many nodes the drafter proposed; those that the planner left out are not in ``drafted``."""
    why: Why | None = None
    """What the planner expected, where it says."""
    rows: int = 0
    """How many rows were scored: root, nodes and probes."""


@dataclass(eq=False)
class Session:
    """One sequence being written. ``rows`` may already hold a prefix of the prompt; only the rest is read."""

    context: Context
    target: Target
    rows: Rows
    drafter: Drafter
    planner: Planner
    rule: Rule = Rule.COUPLED
    law: Law | None = None
    dice: Dice | None = None
    top_logprobs: int | None = None
    """None for no logprobs, 0 for the emitted token's only, k for k alternatives besides."""
    checked: bool = False
    """Assert the cache's accounting identity after every round."""
    emissions: list[Emission] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    seconds_prefill: float = 0.0
    """Reading the prompt: the target's part, and what the drafter does when it is opened."""
    reused: int = 0
    """Prompt tokens whose rows were there already."""
    _seconds_read: float = 0.0
    """Of the round that is being judged."""
    seconds_away: float = 0.0
    """Spent by whoever the tokens were handed to; drivers keep count."""

    def __post_init__(self) -> None:
        refuse_foreign(self.context.tokens, self.target)
        if self.law is None:
            self.law = Law(self.context.sampling, self.context.prompt_length)
        if self.dice is None:
            self.dice = KeyedDice(self.context.noise)
        self.context.foreseeable = self.rule is Rule.COUPLED

    def _clock(self) -> float:
        """Time, less what the driver's caller took while tokens were handed out."""
        return time.perf_counter() - self.seconds_away

    def flow(self) -> Generator[Question, Any, None]:
        """Ask until the sequence ends. Closing the generator at any question closes the drafter's state."""
        started = self._clock()
        state = self.drafter.open(self.context)
        try:
            yield from self._prefill(state)
            self.seconds_prefill = self._clock() - started
            while self.context.finish is None:
                yield from self._round(state)
        finally:
            self.drafter.close(state)

    @property
    def reusable(self) -> Ints:
        """The beginning of the prompt whose rows may come from a cache: none if the drafter needs to see all rows."""
        return self.context.tokens[: 0 if self.drafter.prompt_needs != NOTHING else -1]

    def _prefill(self, state: Any) -> Generator[Question, Any, None]:
        """Read what the rows do not hold yet of all tokens but the root.

        Of rows that are read anyway the drafter is shown the hidden states that it needs of a draft's.
        """
        prompt = self.context.tokens[:-1]
        want = self.drafter.prompt_needs | Want(hidden=self.drafter.needs.hidden)
        self.rows.rewind(self.rows.common_prefix(self.reusable))
        self.reused = self.rows.committed
        size = self.target.prefill_size(len(prompt))
        for start in range(self.rows.committed, len(prompt), size):
            piece = prompt[start : start + size]
            scores = yield Score(Request.of_prompt(self.rows, piece, want))
            self._keep(range(len(piece)))
            verdict = Verdict(path=tuple(range(len(piece) - 1)), tokens=(), accepted=0)
            yield Learn(self.drafter, Seen(state, verdict, scores))

    def _round(self, state: Any) -> Generator[Question, Any, None]:
        """Draft, score, judge, keep, learn."""
        started = self._clock()
        proposed, cut = yield from self._draft(state)
        tree = cut.tree
        drafted = self._clock()
        scores: Scores = yield Score(Request.of_tree(self.rows, self.context.root, tree, self.drafter.needs))
        scored = self._clock()
        position = len(self.context)
        self._seconds_read = 0.0
        verdict = self._judge(tree, scores)
        self._keep([0, *(node + 1 for node in verdict.path)])
        assert self.rows.committed == len(self.context) - 1, "every token but the root has its row"
        judged, read = self._clock(), self._seconds_read
        yield Learn(self.drafter, Seen(state, verdict, scores))
        learned, top = self._clock(), scores.seconds_top
        drafting = drafted - started + learned - judged - top
        outcome = Outcome(
            context=self.context,
            proposed=proposed,
            sent=tree,
            tokens=verdict.tokens,
            seconds_draft=drafting,
            seconds=judged - drafted + top,
        )
        yield Review(self.planner, outcome)
        self.rounds.append(
            Round(
                position=position,
                drafted=tree.drafted,
                depth=tree.depth,
                accepted=verdict.accepted,
                refused=verdict.refused,
                emitted=len(verdict.tokens),
                seconds_draft=drafting + self._clock() - learned,
                seconds_score=scored - drafted,
                seconds_read=read + top,
                seconds_judge=judged - scored - read,
                proposed=proposed.drafted,
                why=cut.why,
                rows=1 + len(tree),
            )
        )

    def _draft(self, state: Any) -> Generator[Question, Any, tuple[DraftTree, Cut]]:
        """What the drafter proposes within the planner's budget, and the part of it that is to be scored."""
        room = Room(self.context, self._depth())
        if room.depth <= 0:
            return EMPTY, Cut(EMPTY)
        budget: Budget = yield Plan(self.planner, room)
        if budget.empty:
            return EMPTY, Cut(EMPTY)
        proposed = self._admit((yield Propose(self.drafter, state, budget)), budget)
        return proposed, (yield Trim(self.planner, Draft(self.context, proposed)))

    def _depth(self) -> int:
        """How deep a draft may go: as the sequence has room and the target can score.

        A round emits one token more than it accepts, so a draft as deep as the room left is one too deep.
        """
        depth = self.context.room - 1
        limit = self.target.reach(len(self.context) - 1).depth
        return depth if limit is None else min(depth, limit)

    def _admit(self, tree: DraftTree, budget: Budget) -> DraftTree:
        """A draft that keeps the rules: valid, within budget, of a shape the target can score."""
        tree.check(self.target.vocab_size)
        tree = tree.head(budget.nodes, depth=budget.depth)
        return tree if self.target.reach(len(self.context) - 1).trees else tree.trunk()

    def _judge(self, tree: DraftTree, scores: Scores) -> Verdict:
        law, dice = self.law, self.dice
        assert law is not None, "set when the session was made"
        assert dice is not None, "set when the session was made"

        def node_law(node: int) -> Distribution:
            started = self._clock()
            if law.argmax_only:
                token = scores.choice(node)
                law.check_peak(float(scores.row(node)[token]))
                found = Distribution.one_hot(token)
            else:
                found = law.distribution(scores.row(node), self.context.tokens)
            self._seconds_read += self._clock() - started
            return found

        def emit(token: int, node: int) -> bool:
            child = tree.child(node, token)
            source = "" if child is None else tree.sources[child] or self.drafter.name
            score = 0.0 if child is None else float(tree.scores[child])
            logprobs = self._logprobs(scores, node, token)
            self.emissions.append(Emission(token, source, logprobs, len(self.rounds), score))
            return self.context.commit(token)

        return judge(tree, node_law, self.rule, dice, index=len(self.context), emit=emit)

    def _logprobs(self, scores: Scores, node: int, token: int) -> TokenLogprobs | None:
        if self.top_logprobs is None:
            return None
        assert self.law is not None, "set when the session was made"
        row = self.law.log_probabilities(scores.row(node))
        best = row.topk(min(self.top_logprobs, len(row)))
        top = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return TokenLogprobs(float(row[token]), tuple(top))

    def _keep(self, path: Sequence[int]) -> None:
        self.rows.keep(path)
        if self.checked:
            self.rows.check()


def refuse_foreign(tokens: Ints, target: Target) -> None:
    """A prompt of another tokenizer is told before it is an index out of range."""
    if len(tokens) and (largest := tokens.max()) >= target.vocab_size:
        raise ValueError(
            f"the prompt holds token {largest}, outside the model's vocabulary of {target.vocab_size}; "
            "encode it with the model's own tokenizer"
        )
