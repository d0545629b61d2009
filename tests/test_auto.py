"""`auto`: one tree of the cheap sources, and the expensive one where it is worth its time."""

from collections.abc import Callable, Sequence

import pytest

from drafting import as_plain, context_of
from engine import PROMPT, SIZE, habitual, write, write_slowly
from paceline.context import Context, Ending
from paceline.drafters import Budget, Drafter, Seen, make_drafter
from paceline.drafters.auto import Auto
from paceline.drafters.base import Ask, Enrich
from paceline.drafters.foresight import Foresight
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Sampling
from paceline.planning.base import Draft
from paceline.planning.fixed import Fixed
from paceline.planning.specs import make_planner
from paceline.targets.table import TableTarget
from paceline.tree import DraftTree
from paceline.verify import Rule


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
    parts = [Part(name, told) for name, told in zip(("one", "two", "expensive"), tokens, strict=True)]
    auto.cheap, auto.expensive, auto.parts = tuple(parts[:2]), tuple(parts[2:]), tuple(parts)
    return auto, parts


class Choosy(Fixed):
    """Finds the expensive part worth its time beside drafts of some sizes."""

    def __init__(self, nodes: int, sizes: set[int]) -> None:
        super().__init__(nodes)
        self.sizes, self.shown = sizes, list[int]()

    def worth(self, drafts: Sequence[Draft]) -> list[int]:
        self.shown += [len(draft.tree) for draft in drafts]
        return [draft.budget.depth if len(draft.tree) in self.sizes else 0 for draft in drafts]


@pytest.mark.parametrize(("sizes", "ran"), [({3}, True), (set(), False)])
def test_the_assistant_runs_only_where_the_planner_finds_it_worth_its_time(sizes: set[int], ran: bool) -> None:
    auto, (one, two, expensive) = made_of([1, 2], [1, 3], [1, 2, 4])
    target, planner = TableTarget(habitual(memory=1), SIZE), Choosy(20, sizes)
    context = Context(PROMPT, Sampling(), Ending(max_new_tokens=20))
    session = Session(context, target, target.open(), auto, planner, checked=True)
    list(run(session))
    assert set(planner.shown[:-4]) == {3}
    assert bool(expensive.asked) == ran
    assert len(one.asked) == len(two.asked) == len(planner.shown)
    assert {each.proposed for each in session.rounds[1:-4]} == {4 if ran else 3}


def test_enriched_drafts_remember_all_sources_and_only_those_that_were_asked_for_grow() -> None:
    auto, (_, _, expensive) = made_of([1, 2], [1, 3], [1, 2, 4])
    states = [auto.open(context_of([5])), auto.open(context_of([6]))]
    budget = Budget(20, 8)
    first, second = auto.propose([Ask(state, budget) for state in states])
    assert set(first.sources) == {"one+two", "one", "two"}
    assert not expensive.asked
    [more] = auto.enrich([Enrich(states[1], budget, second)])
    assert set(more.sources) == {"one+two+expensive", "one+expensive", "two", "expensive"}
    assert len(expensive.asked) == 1


def test_a_draft_larger_than_the_budget_is_cut_to_its_best_nodes() -> None:
    auto, _ = made_of([1, 2], [1, 3], [1, 2, 4])
    state = auto.open(context_of([5]))
    [tree] = auto.propose([Ask(state, Budget(2, 8))])
    [cut] = Fixed(2).cut([Draft(context_of([5]), tree, Budget(2, 8))])
    assert len(tree) > len(cut.tree) == 2


@pytest.mark.parametrize("spec", ["auto,lookup", "auto+lookup", "lookup,auto", "lookup+auto"])
def test_what_is_composed_of_auto_has_its_expensive_part(spec: str) -> None:
    """Plain's text, and the draft model takes part."""
    target = TableTarget(habitual(memory=1), SIZE)
    drafter = make_drafter(spec, TableTarget(habitual(memory=1), SIZE))
    session = as_plain(target, PROMPT, drafter, nodes=12, sampling=Sampling(temperature=0.8, seed=2), max_new_tokens=30)
    assert any("assistant" in emission.source for emission in session.emissions)


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
    assert (len(auto.expensive) == 1) == assisted
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
