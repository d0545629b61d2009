"""What a drafter asks of the target: of prompts, of drafts, and early."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import families
import paceline
from batches import Wish, finish
from paceline.api.chat import Conversation
from paceline.context import Context
from paceline.drafters import Budget, Drafter, Plain, Seen, make_drafter
from paceline.drafters.compose import Fallback, Union
from paceline.engine.batch import Batch
from paceline.engine.serial import run
from paceline.planning.base import Outcome, Planner, Room
from paceline.targets.base import Request, Target, Want
from paceline.tree import DraftTree, Ints
from scoring import target_of, tokens

LAYER = 1


@dataclass(eq=False)
class Head:
    """One text, and the state behind the last row that was scored."""

    context: Context
    state: Tensor | None = None


class LastRow(Drafter):
    """Drafts from the state of the last scored row, as trained heads do, and notes what it drafted from."""

    name = "last row"
    needs = Want(hidden=frozenset({LAYER}))

    def __init__(self) -> None:
        self.states: list[tuple[Ints, Tensor]] = []

    def open(self, context: Context) -> Head:
        return Head(context)

    def observe(self, seen: Sequence[Seen]) -> None:
        for head, verdict, scores in seen:
            head.state = scores.hidden(LAYER)[len(verdict.path) and verdict.path[-1] + 1]

    def propose_one(self, state: Head, budget: Budget) -> DraftTree:
        assert state.state is not None, "every text begins with rows that are read"
        self.states.append((state.context.tokens[:-1], state.state))
        return DraftTree.chain([state.context.root] * min(2, budget.nodes, budget.depth), source=self.name)


def state_after(target: Target, text: Ints) -> Tensor:
    """That of the last of these tokens, read at once on rows of its own."""
    rows = target.open()
    [scores] = target.submit([Request.of_prompt(rows, text, LastRow.needs)]).result()
    return scores.hidden(LAYER)[-1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llama"
    families.save("llama", folder)
    return folder


@pytest.mark.parametrize("model", ["pocket", "tiny"])
def test_a_head_that_reads_the_last_row_reads_only_what_is_new_of_a_chat(
    model: str, request: pytest.FixtureRequest
) -> None:
    lm = paceline.load(request.getfixturevalue(model) if model == "tiny" else model, dtype="float32")
    drafter = LastRow()
    settings: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_new_tokens": 12}
    conversation = Conversation(lm, method=drafter, **settings)
    plain = Conversation(lm, method="plain", **settings)
    for said in ("Hello there", "And then?"):
        for each in (conversation, plain):
            for _ in each.stream(said):
                pass
    first, second = conversation.replies
    assert second.cached_tokens >= first.prompt_tokens + len(first.tokens) - 2 > second.prompt_tokens / 2
    assert [reply.tokens for reply in conversation.replies] == [reply.tokens for reply in plain.replies]
    for text, state in drafter.states:
        assert torch.allclose(state, state_after(lm.target, text), atol=1e-4)


class Early(Drafter):
    """Drafts by the early logits of the root's row and notes what it was told, and when."""

    name = "early"

    def __init__(self, exit_at: int | None = LAYER) -> None:
        if exit_at is not None:
            self.needs = Want(early_exit=exit_at)
        self.told: list[Tensor] = []

    def open(self, context: Context) -> Head:
        return Head(context)

    def on_early(self, state: Head, tree: DraftTree, logits: Tensor) -> None:
        assert state.state is None, "once in a round"
        state.state = logits.clone()

    def observe(self, seen: Sequence[Seen]) -> None:
        for head, verdict, scores in seen:
            if verdict.tokens and head.state is not None:
                assert torch.equal(head.state, scores.early)
                self.told.append(head.state)
                head.state = None

    def propose_one(self, state: Head, budget: Budget) -> DraftTree:
        guess = int(self.told[-1][0].argmax()) if self.told else state.context.root
        return DraftTree.chain([guess] * min(3, budget.nodes, budget.depth), source=self.name)


@pytest.mark.parametrize("at_once", [None, 1, 3], ids=["serial", "batch of 1", "batch of 3"])
@pytest.mark.parametrize("composed", [False, True], ids=["alone", "in a union"])
def test_early_logits_reach_the_drafter_that_asked(composed: bool, at_once: int | None) -> None:
    target = target_of("llama")
    early, deaf = Early(), Early(None)
    method = Union([make_drafter("lookup"), Fallback([deaf, early])]) if composed else early
    wishes = [Wish(tokens(5 + number, number).tolist()) for number in range(3)]
    if at_once is None:
        sessions = [wish.alone(target, method) for wish in wishes]
    else:
        sessions = [wish.session(target, method) for wish in wishes]
        batch = Batch(target, at_once=at_once)
        for session in sessions:
            batch.join(session)
        assert not [turn.error for turn in finish(batch) if turn.error is not None]
    rounds = [round_ for session in sessions for round_ in session.rounds]
    assert len(early.told) == sum(not round_.prefill for round_ in rounds) > 20, "the first round has no draft"
    assert not deaf.told
    for session, wish in zip(sessions, wishes, strict=True):
        assert session.context.tokens.tolist() == wish.alone(target, Plain()).context.tokens.tolist()


class Skipping(Drafter):
    """Counts the tokens that it is shown, and asks for all there is."""

    name = "skipping"
    needs = Want(top=3, hidden=frozenset({LAYER}), early_exit=LAYER)

    def __init__(self, skips: bool) -> None:
        self.skips, self.observed, self.early, self.lengths = skips, 0, 0, list[int]()

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        self.lengths.append(len(state))
        return DraftTree.chain([state.root], source=self.name)

    def on_early(self, state: Context, tree: DraftTree, logits: Tensor) -> None:
        self.early += 1

    def observe(self, seen: Sequence[Seen]) -> None:
        self.observed += sum(len(verdict.tokens) > 0 for _, verdict, _ in seen)


class Resting(Planner):
    """Asks for a draft in every fourth round, and has the drafter shown only the round before it and that one."""

    def __init__(self) -> None:
        self.rounds = 0
        self.shown: list[bool] = []

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        self.rounds += 1
        turn = self.rounds % 4
        return [Budget(1, 1) if turn == 0 else Budget(0, 0, "it rests", shown=turn == 3)] * len(rooms)

    def review(self, outcomes: Sequence[Outcome]) -> None:
        self.shown += [outcome.shown for outcome in outcomes]


@pytest.mark.parametrize("composed", [False, True], ids=["alone", "in a union"])
@pytest.mark.parametrize("skips", [True, False])
def test_a_round_that_is_not_shown_asks_the_model_for_nothing(skips: bool, composed: bool) -> None:
    """Only of a drafter that says that it may miss rounds. The text is the same."""
    target, drafter, planner = target_of("llama"), Skipping(skips), Resting()
    wants = list[Want]()
    submit = target.submit

    def watched(requests: Sequence[Request]) -> Any:
        wants.extend(request.want for request in requests)
        return submit(requests)

    wish = Wish(tokens(5, 1).tolist())
    session = wish.session(target, Union([make_drafter("lookup"), drafter]) if composed else drafter)
    session.planner = planner
    target.submit = watched  # type: ignore[method-assign]
    try:
        list(run(session))
    finally:
        target.submit = submit  # type: ignore[method-assign]
    rounds = sum(not one.prefill for one in session.rounds)
    expected = [turn % 4 in (0, 3) or not skips for turn in range(1, planner.rounds + 1)]
    assert planner.shown[: planner.rounds] == expected
    assert [want == Want() for want in wants[-rounds:]][: planner.rounds] == [not shown for shown in expected]
    assert drafter.early == sum(want.early_exit == LAYER for want in wants[-rounds:])
    assert drafter.observed == 1 + sum(planner.shown)
    assert session.context.tokens.tolist() == wish.alone(target, Plain()).context.tokens.tolist()


class Counting(Planner):
    """Learns nothing from rounds."""

    def __init__(self) -> None:
        self.rounds = 0

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        self.rounds += 1
        return [Budget(0, 0)] * len(rooms)


def test_a_planner_has_no_part_in_a_plain_text_unless_it_learns_from_rounds() -> None:
    wish = Wish(tokens(5, 1).tolist())
    for planner, asked in ((Counting(), False), (Resting(), True)):
        session = wish.session(target_of("llama"), Plain())
        session = replace(session, planner=planner)
        list(run(session))
        assert (planner.rounds > 0) is asked
        assert {one.unasked for one in session.rounds if not one.prefill} == {"the method is plain"}
