"""The decode loop of one sequence: plan, draft, score, judge, keep, learn.

The loop is a generator. It yields calls (`calls.Call`) to the planner, the drafter and the target, and a driver sends
the answers. Every driver therefore emits the same tokens, whether it answers one sequence at a time or many together.

Between rounds one identity holds: the cache has a committed row for every token but the last. That token, the root, is
scored together with the next draft.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from paceline.context import Context
from paceline.drafters.asking import admitted
from paceline.drafters.base import Budget, Drafter, Enrich, Plain, Seen
from paceline.engine.calls import READER, Call, Flow, Reply, ScoredRow
from paceline.engine.counters import Ledger, Round
from paceline.engine.drafting import FAILED, NO_BUDGET, NO_CUT, NO_DRAFT, PLAIN, Drafted, Drafting
from paceline.engine.emission import Emission, TokenLogprobs
from paceline.engine.observe import AUDIENCE, Observed, Observer, Showing
from paceline.engine.prompt import read, refuse_foreign
from paceline.errors import DrafterError
from paceline.law import Dice, Distribution, KeyedDice, Law
from paceline.planning.base import LISTENING, Draft, Outcome, Planner, Resting, Room
from paceline.targets.base import NOTHING, SPARE_ROWS, Request, Rows, Target
from paceline.targets.reading import best_tokens
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, DraftTree, Ints
from paceline.verify import Rule, Settled, Verdict, judge


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
    strict: bool = True
    """Whether a drafter that fails ends the text. Else the text goes on without drafts, after a `DrafterWarning`."""
    observer: Observer | None = None
    emissions: list[Emission] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    seconds_prefill: float = 0.0
    """Reading the prompt, the first token included: the target's part, and the opening of the drafter."""
    reused: int | None = None
    """Prompt tokens whose KV rows were there already; None before it is read."""

    @classmethod
    def on_new_rows(
        cls,
        context: Context,
        target: Target,
        drafter: Drafter,
        planner: Planner,
        *,
        ahead: int | None = None,
        **how: Any,
    ) -> Session:
        """A session on new rows, with memory for ``ahead`` more tokens but no more than may follow; by default for all
        of those."""
        ahead = context.room if ahead is None else min(ahead, context.room)
        return cls(context, target, target.open(len(context) + ahead + SPARE_ROWS), drafter, planner, **how)

    def __post_init__(self) -> None:
        refuse_foreign(self.context.tokens, self.target)
        self._law = self.law or Law(self.context.sampling, self.context.prompt_length)
        self._dice = self.dice or KeyedDice(self.context.noise)
        self._public = self._dice.public if self.rule is Rule.COUPLED else None
        self._ledger = Ledger()
        self._opened = False
        unplanned = type(self.drafter) is Plain and type(self.planner).review is Planner.review
        self._rest, self._resting, self._slept = (*((UNLIMITED, PLAIN) if unplanned else (0, NO_DRAFT)), False)
        """For how many rounds the planner is not asked, and their draft; and whether the last budget was empty."""
        self._drafting = Drafting(self.drafter, self.strict)
        self.context.foreseeable = self.rule is Rule.COUPLED

    @property
    def fault(self) -> DrafterError | None:
        """The failure of the drafter, or of its planner, since which there are no drafts."""
        return self._drafting.fault

    def flow(self) -> Flow:
        """Make calls until the sequence ends. Closing the generator at any call closes the drafter's state; another one
        goes on from there, also on other rows, with the same tokens. Under the rejection rule, where a text depends on
        its drafts, they follow the same law."""
        if self.fault is None:
            self._drafting.open(self.context)
        try:
            yield from self._prefill()
            while self.context.finish is None:
                yield from self._round()
        finally:
            self._drafting.close()

    def _round(self) -> Flow:
        """Plan, draft, score, judge, keep, learn."""
        draft, rests = self._resting, self._rest > 0
        if self._slept and not self._rest % LISTENING and self._drafting.may_be_sure and (yield from self._woken()):
            rests, self._rest = False, 0
        if rests:
            self._rest -= 1
        else:
            draft = yield from self._drafted()
        scores = yield from self._score(draft)
        position = len(self.context)
        verdict = yield from self._judge(draft.cut.tree, scores)
        self._keep([0, *(node + 1 for node in verdict.path)])
        assert self.rows.committed == len(self.context) - 1, "every token but the root has its row"
        if draft.overlapped and self.context.finish is None:
            yield from self._begin()
        if draft.shown:
            yield from self._observe(scores, verdict)
        if not rests and self._drafting.on:
            yield from self._review(draft, verdict)
        record = self._record(position, draft, verdict)
        yield from self._end_round(record, draft.cut.tree, verdict, scores)

    def _woken(self) -> Generator[Call, Reply, bool]:
        """Whether the planner is asked anew, since the drafter is sure of a draft."""
        try:
            return bool((yield from self._call("wake", self.planner, Resting(self.context, self._drafting.sure()))))
        except DrafterError as error:
            self._drafting.stop(error)
            return False

    def _drafted(self) -> Generator[Call, Reply, Drafted]:
        """Plan and draft."""
        if not self._drafting.on:
            return FAILED
        try:
            budget = yield from self._plan()
            draft = yield from self._draft(budget)
        except DrafterError as error:
            self._drafting.stop(error)
            return FAILED
        self._slept = budget.empty
        if self._slept:
            self._rest, self._resting = budget.rounds - 1, draft
        return draft

    # plan

    def _plan(self) -> Generator[Call, Reply, Budget]:
        """How large the draft may be."""
        depth = self._depth()
        if depth <= 0:
            return NO_BUDGET
        budget: Budget = yield from self._call("plan", self.planner, Room(self.context, depth))
        return budget.within(depth)

    def _depth(self) -> int:
        """How deep a draft may go: limited by the sequence's room, by the target's reach, and by its context.

        A round emits one token more than it accepts, so a draft as deep as the room left is one too deep. Called by
        transformers, a text may run past the model's context; drafts never do.
        """
        length, end = len(self.context), self.target.context_length
        reach, context = self.target.reach(length - 1).depth, None if end is None else end - length
        return min(limit for limit in (self.context.room - 1, reach, context) if limit is not None)

    # draft

    def _draft(self, budget: Budget) -> Generator[Call, Reply, Drafted]:
        """The drafter's tree within the budget, and the part of it that is worth scoring."""
        if type(self.drafter) is Plain:
            return PLAIN
        if budget.empty:
            self._drafting.flight = None  # it would follow a text that has gone on
            shown = budget.shown or not self.drafter.skips
            return Drafted(EMPTY, NO_CUT, budget.reason or "the budget was empty", shown)
        verb, ask = self._drafting.request(budget)
        tree = self._admit((yield from self._call(verb, self.drafter, ask)), budget)
        draft = Draft(self.context, tree, budget)
        if self.drafter.enriches:
            draft = yield from self._enrich(draft._replace(cheap=tree))
        cut = yield from self._call("cut", self.planner, draft)
        return Drafted(draft.tree, cut, overlapped=self._drafting.overlaps(budget))

    def _enrich(self, draft: Draft) -> Generator[Call, Reply, Draft]:
        """The draft with the expensive part of the drafter, where the planner finds that worth its time."""
        levels = yield from self._call("worth", self.planner, draft)
        if not levels:
            return draft
        budget = replace(draft.budget, depth=min(depth := draft.budget.depth, levels))
        tree = yield from self._call("enrich", self.drafter, Enrich(self._drafting.state, budget, draft.tree, depth))
        return draft._replace(tree=self._admit(tree, draft.budget), levels=levels)

    def _admit(self, tree: DraftTree, budget: Budget) -> DraftTree:
        """A valid draft, no deeper than the budget, of a shape the target can score."""
        tree = admitted(self.drafter, tree, self.drafter.leaves * budget.nodes, self.target.vocab_size)
        tree = tree.head(len(tree), depth=budget.depth)
        return tree if self.target.reach(len(self.context) - 1).trees else tree.trunk()

    # score

    def _score(self, draft: Drafted) -> Generator[Call, Reply, Scores]:
        """One forward over the root and the draft."""
        drafting = self._drafting
        how = drafting.wishes(draft) if draft.shown else ()
        request = Request.of_tree(self.rows, self.context.root, draft.cut.tree, *how)
        scores: Scores = yield from self._call("score", self.target, request)
        drafting.after_forward()
        return scores

    # judge

    def _judge(self, tree: DraftTree, scores: Scores) -> Generator[Call, Reply, Verdict]:
        """Walk the draft along the target's own choices, which are emitted."""
        emit = partial(self._emit, tree, scores)
        walk = judge(tree, self.rule, self._dice, index=len(self.context), emit=emit)
        law: Distribution | None = None
        while True:
            try:
                node = next(walk) if law is None else walk.send(law)
            except StopIteration as end:
                verdict: Verdict = end.value
                return verdict
            row = ScoredRow(scores, node, self._law, self.context, self._public)
            law = yield from self._call("law", READER, row)

    def _emit(self, tree: DraftTree, scores: Scores, settled: Settled) -> bool:
        token, node, child, kind = settled
        source = "" if child is None else tree.sources[child] or self.drafter.name
        score = 0.0 if child is None else float(tree.scores[child])
        logprobs = self._logprobs(scores, node, token)
        ended = True
        try:
            ended = self.context.commit(token)
            return ended
        finally:  # also where a criterion fails: the token is part of the text
            finish = self.context.finish if ended else None  # a text that goes on may be cancelled just now
            self.emissions.append(Emission(token, source, logprobs, len(self.rounds), score, kind, finish))

    def _logprobs(self, scores: Scores, node: int, token: int) -> TokenLogprobs | None:
        if self.top_logprobs is None:
            return None
        row = self._law.log_probabilities(scores.row(node))
        best = best_tokens(row[None], min(self.top_logprobs, len(row)))[0]
        top = zip(best.tolist(), row[best].tolist(), strict=True)
        return TokenLogprobs(float(row[token]), tuple(top))

    # keep

    def _keep(self, path: Sequence[int]) -> None:
        """Commit the KV rows of the path, drop those of the rest of the draft."""
        self.rows.keep(path)
        if self.checked:
            self.rows.check()

    # begin the next draft, and learn

    def _begin(self) -> Flow:
        """Begin the next draft, which is made while the engine goes on."""
        try:
            self._drafting.flight = yield from self._call("begin", self.drafter, self._drafting.state)
        except DrafterError as error:
            self._drafting.stop(error)

    def _observe(self, scores: Scores, verdict: Verdict) -> Flow:
        """Show the drafter the result of the round."""
        if not self._drafting.observes:
            return
        seen = Seen(self._drafting.state, verdict, scores)
        try:
            if self._drafting.reads:
                yield from self._call("read", self.drafter, seen)
            yield from self._call("observe", self.drafter, seen)
        except DrafterError as error:
            self._drafting.stop(error)

    def _review(self, draft: Drafted, verdict: Verdict) -> Flow:
        """Show the planner the result of the round."""
        spent = self._ledger.spent
        outcome = Outcome(
            context=self.context,
            proposed=draft.tree,
            sent=draft.cut.tree,
            tokens=verdict.tokens,
            seconds_draft=spent.draft,
            seconds=spent.score + spent.read + spent.judge,
            seconds_top=spent.top,
            shown=draft.shown,
        )
        try:
            yield from self._call("review", self.planner, outcome)
        except DrafterError as error:
            self._drafting.stop(error)

    def _record(self, position: int, draft: Drafted, verdict: Verdict) -> Round:
        tree, spent = draft.cut.tree, self._ledger.close()
        counts = self._drafting.counts() if draft.shown else self._drafting.no_counts
        return Round(
            position=position,
            drafted=tree.drafted,
            depth=tree.depth,
            accepted=verdict.accepted,
            refused=verdict.refused,
            emitted=len(verdict.tokens),
            seconds_draft=spent.draft,
            seconds_score=spent.score,
            seconds_read=spent.read,
            seconds_judge=spent.judge,
            proposed=draft.tree.drafted,
            why=draft.cut.why,
            rows=1 + len(tree),
            unasked=draft.unasked,
            counts=counts,
        )

    def _end_round(self, record: Round, draft: DraftTree, verdict: Verdict, scores: Scores) -> Flow:
        """Keep the record, and show the round to the observer, whose seconds are not the round's."""
        self.rounds.append(record)
        if self.observer is not None:
            observed = Observed(self.context, record, draft, verdict, scores)
            reply = yield Call("show", AUDIENCE, Showing(self.observer, observed))
            if reply.answer is not None:
                raise reply.answer

    # the prompt

    @property
    def reusable(self) -> Ints:
        """The beginning of the prompt whose rows may come from a cache: none if the drafter needs to see all rows."""
        return self.context.tokens[: 0 if self.drafter.prompt_needs != NOTHING else -1]

    def _prefill(self) -> Flow:
        """Read the part of the text that the KV rows do not hold yet. Its last forward yields the next token, too.

        Of rows that are read anyway the drafter is shown the hidden states that it needs of a draft's.
        """
        prompt = self.context.tokens[:-1]
        start = self.rows.rewind(self.rows.common_prefix(self.reusable))
        if self.reused is None:
            self.reused = start
        size = self.target.prefill_size(len(prompt))
        while start < len(prompt) and self.context.finish is None:
            stop = min(start + size, len(prompt))
            if stop == len(prompt) and self.rule is Rule.COUPLED and self.target.first_token_with_prompt:
                yield from self._first(self.context.tokens[start:])
            else:
                yield from self._read_piece(prompt[start:stop])
            start = stop
        self.seconds_prefill += self._ledger.close().total

    def _read_piece(self, piece: Ints) -> Flow:
        request = Request.of_prompt(self.rows, piece, self._drafting.prompt_needs)
        scores = yield from self._call("score", self.target, request)
        self._keep(range(len(piece)))
        yield from self._observe(scores, read(len(piece)))

    def _first(self, piece: Ints) -> Flow:
        """The last piece of the prompt with the root behind it: a round without a draft, whose forward is the prompt's.

        Not under the rejection rule, where the text depends on the drafts, and they begin with the first token.
        """
        needs = self._drafting.prompt_needs
        shown = needs != NOTHING or not self.drafter.skips or self.planner.awake(self.context)
        want = needs | replace(self._drafting.needs, logits=False, early_exit=None) if shown else needs
        request = Request.of_prompt(self.rows, piece, want, ends_prompt=True)
        scores: Scores = yield from self._call("score", self.target, request)
        assert scores.prompt is not None, "the request has rows before the root"
        position = len(self.context)
        verdict = yield from self._judge(EMPTY, scores)
        self._keep(range(len(piece)))
        if shown:
            yield from self._observe(scores.prompt, read(len(piece) - 1))
            yield from self._observe(scores, verdict)
        self.seconds_prefill += self._ledger.close().total
        record = replace(self._record(position, NO_DRAFT, verdict), prefill=True)
        yield from self._end_round(record, EMPTY, verdict, scores)

    def _call(self, verb: str, of: Any, payload: Any) -> Generator[Call, Reply, Any]:
        """Make a call and note its seconds. An answer that is an exception is raised."""
        reply = yield Call(verb, of, payload)
        own = reply.own
        if not self._opened:  # opening the drafter is part of reading the prompt, also where no row is left to read
            self._opened, self.seconds_prefill, own = True, own, 0.0
        self._ledger.note(verb, reply.seconds, own)
        if isinstance(reply.answer, Exception):
            raise reply.answer
        return reply.answer


UNLIMITED = 1 << 62
