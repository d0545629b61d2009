"""`auto`: one tree of the cheap sources, and the dear one where it is worth its time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine import PROMPT, SIZE, habitual, write, write_slowly
from paceline.context import Context, Ending
from paceline.drafters import Budget, Drafter, Seen
from paceline.drafters.auto import Auto
from paceline.drafters.base import Ask
from paceline.drafters.foresight import Foresight
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Sampling
from paceline.planning.specs import make_planner
from paceline.targets.table import TableTarget
from paceline.tree import DraftTree, Floats
from paceline.verify import Rule


def context_of(tokens: Sequence[int]) -> Context:
    return Context(tokens, Sampling(), Ending(max_new_tokens=1000))


class Part(Drafter):
    """Proposes a chain and keeps a record."""

    nodes = 6

    def __init__(self, name: str, tokens: Sequence[int]) -> None:
        self.part, self.tokens = name, list(tokens)
        self.asked, self.closed, self.resets, self.seen = list[int](), 0, 0, 0

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        self.asked.append(budget.nodes)
        count = min(budget.nodes, budget.depth, len(self.tokens))
        return DraftTree.chain(self.tokens[:count], source=self.part, scores=[-0.1] * count)

    def observe(self, seen: Sequence[Seen]) -> None:
        self.seen += len(seen)

    def reset(self) -> None:
        self.resets += 1

    def close(self, state: Context) -> None:
        self.closed += 1


def made_of(*tokens: Sequence[int]) -> tuple[Auto, list[Part]]:
    """An `auto` with a draft model whose parts are replaced."""
    auto = Auto(model=TableTarget(habitual(memory=1), SIZE))
    parts = [Part(name, told) for name, told in zip(("one", "two", "dear"), tokens, strict=True)]
    auto.cheap, auto.dear, auto.parts = tuple(parts[:2]), tuple(parts[2:]), tuple(parts)
    return auto, parts


@dataclass
class Advice:
    """Somebody who knows: what was told."""

    judge: Callable[[Context, DraftTree], bool] = lambda context, tree: True
    odds: dict[str, float] = field(default_factory=dict)
    """By source: nobody's claim counts."""

    def worth(self, context: Context, draft: DraftTree) -> bool:
        return self.judge(context, draft)

    def paths(self, context: Context, draft: DraftTree) -> Floats:
        own = np.array([self.odds[source] for source in draft.sources])
        return np.array([own[draft.path(node)].prod() for node in range(len(draft))])


def test_where_a_union_is_too_large_those_go_who_were_seldom_right_whatever_they_claim() -> None:
    auto, _ = made_of([1], [2], [3, 4, 5])
    state = auto.open(context_of([5]))
    advice = Advice(odds={"one": 0.1, "two": 0.2, "dear": 0.8})
    [tree] = auto.propose([Ask(state, Budget(3, 8, advice))])
    assert tree.tokens.tolist() == [3, 4, 5]
    [tree] = auto.propose([Ask(state, Budget(4, 8, advice))])
    assert sorted(tree.tokens.tolist()) == [2, 3, 4, 5]


def test_the_assistant_is_asked_only_where_the_budget_finds_it_worth_it() -> None:
    auto, (one, two, dear) = made_of([1, 2], [1, 3], [1, 2, 4])
    contexts = [context_of([5]), context_of([6])]
    states = [auto.open(context) for context in contexts]
    shown = list[tuple[Context, list[int]]]()

    def judge(context: Context, tree: DraftTree) -> bool:
        shown.append((context, sorted(tree.tokens.tolist())))
        return context is contexts[1]

    def drafts(worth: Callable[[Context, DraftTree], bool] | None) -> list[DraftTree]:
        adviser = None if worth is None else Advice(worth)
        return auto.propose([Ask(state, Budget(20, 8, adviser)) for state in states])

    first, second = drafts(judge)
    assert shown == [(contexts[0], [1, 2, 3]), (contexts[1], [1, 2, 3])]
    assert len(dear.asked) == 1
    assert one.asked == two.asked == [6, 6]
    assert set(first.sources) == {"one+two", "one", "two"}
    assert set(second.sources) == {"one+two+dear", "one+dear", "two", "dear"}
    drafts(None)
    assert len(dear.asked) == 3
    drafts(lambda context, tree: False)
    assert len(dear.asked) == 3
    for tree in auto.propose([Ask(state, Budget(2, 8)) for state in states]):
        assert len(tree) == 2


def test_what_is_told_to_auto_reaches_all_parts() -> None:
    auto, parts = made_of([1], [2], [3])
    session = write(TableTarget(habitual(memory=1), SIZE), PROMPT, auto, max_new_tokens=8)
    auto.reset()
    for part in parts:
        assert part.closed == part.resets == 1
        assert part.seen >= len(session.rounds)


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("planner", ["fixed:8", "adaptive"])
@pytest.mark.parametrize("assisted", [False, True])
def test_auto_drafts_with_and_without_a_draft_model(rule: Rule, planner: str, assisted: bool) -> None:
    target = TableTarget(habitual(memory=1), SIZE)
    sampling = Sampling(temperature=0.0 if rule is not Rule.COUPLED else 0.8, seed=3)
    auto = Auto(model=TableTarget(habitual(memory=1), SIZE) if assisted else None)
    assert (len(auto.dear) == 1) == assisted
    auto.fit(target)
    context = Context(PROMPT, sampling, Ending(max_new_tokens=40))
    session = Session(context, target, target.open(), auto, make_planner(planner, auto, target), rule, checked=True)
    list(run(session))
    assert context.emitted.tolist() == write_slowly(target, PROMPT, sampling, max_new_tokens=40).tokens
    assert sum(round.proposed for round in session.rounds) > 0
    sources = {name for emission in session.emissions for name in emission.source.split("+")}
    if planner == "fixed:8":
        assert ("assistant" in sources) == assisted
        assert sources & {"suffix", "foresight"}


def test_auto_is_planned_adaptively_and_asks_for_what_its_parts_need() -> None:
    make: Callable[[], Drafter] = Auto
    auto = make()
    assert type(make_planner(None, auto)) is type(make_planner("adaptive", auto))
    assert auto.needs.top == Foresight().needs.top
    assert auto.nodes < Auto(model=TableTarget(habitual(memory=1), SIZE)).nodes
