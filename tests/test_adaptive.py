"""The adaptive planner: hardly ever slower than plain, near the best size there is, and exact in what it picks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from paceline.context import Context, Ending
from paceline.drafters import Budget, Drafter
from paceline.law import Distribution, Sampling
from paceline.planning.adaptive import Adaptive
from paceline.planning.backoff import BEARABLE, JOINING, TRIED
from paceline.planning.base import Draft, Outcome, Planner, Room
from paceline.planning.chances import Reliability, Trust
from paceline.planning.costs import Costs
from paceline.planning.effort import Effort
from paceline.planning.fixed import Fixed
from paceline.planning.knowledge import LEARNING, PROBING, SELDOM, Knowledge
from paceline.planning.levels import MEASURED
from paceline.planning.seconds import TRUSTED
from paceline.planning.timing import Timing
from paceline.tree import EMPTY, ROOT, DraftTree, Floats, merge
from planned import VOCABULARY, Seconds, Source, World, chain, fan
from thinning import crossed

CURVES: dict[str, Seconds] = {
    "rising": lambda rows: 0.030 + 0.0012 * (rows - 1),
    "flat": lambda rows: 0.030 if rows <= 64 else 0.030 * rows / 64,
    "steps": lambda rows: 0.030 * (1 + (rows - 1) // 8 * 0.5),
}
SOURCES = {
    "good": chain([0.8] * 16),
    "weak": chain([0.25] * 16),
    "boastful": chain([0.3] * 16, [0.95] * 16),
    "modest": chain([0.9] * 16, [0.1] * 16),
    "bushy": fan([0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01]),
}
WIDE = Budget(64, 16)
HOSTILE = chain([1e-12] * 16, [0.999] * 16, "hostile")


class Sized(Drafter):
    """It may learn from rounds, as far as the planner knows."""

    nodes = 32
    observes = True  # type: ignore[assignment]


def planner(costs: Costs | None = None) -> Adaptive:
    return Adaptive(Sized(), costs or Costs())


def measured(seconds: Seconds, most: int = 64, batch: int = 1) -> Costs:
    """Costs of single texts and of a batch."""
    sizes = [(rows, sequences) for sequences in {1, batch} for rows in range(sequences, most + 1)]
    return Costs(Timing(rows=rows, seconds=seconds(rows), sequences=sequences) for rows, sequences in sizes)


def context(*, foreseeable: bool = True) -> Context:
    made = Context([1], Sampling(), Ending(max_new_tokens=1000))
    made.foreseeable = foreseeable
    return made


# what it costs and brings


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(("drafting", "rounds", "least"), [(1e-4, 100, 0.98), (5e-3, 100, 0.97), (5e-3, 600, 0.98)])
def test_who_is_always_wrong_and_claims_certainty_costs_hardly_anything(
    curve: str, drafting: float, rounds: int, least: float
) -> None:
    seconds = CURVES[curve]
    for batch in (1, 8):
        world = World(HOSTILE, seconds, drafting).ride(planner(), rounds, batch)
        assert world.speed > least * batch / seconds(batch)


@pytest.mark.parametrize(("curve", "source"), crossed(CURVES, SOURCES))
def test_it_is_about_as_fast_as_the_best_fixed_size(curve: str, source: str) -> None:
    """The best of many sizes in hindsight, that is, over the same number of rounds; the planner has to find out first
    what forwards take and whom to believe. One text's luck says little, so there are three."""
    made, seconds = SOURCES[source], CURVES[curve]

    def share(seed: int) -> float:
        def ride(by: Planner) -> float:
            return World(made, seconds, 1e-4, seed=seed).ride(by, 300).speed

        return ride(planner()) / max(ride(Fixed(nodes)) for nodes in (0, 1, 2, 3, 4, 6, 8, 12, 16))

    shares = [share(seed) for seed in range(3)]
    assert np.mean(shares) > 0.92
    assert min(shares) > 0.85


def test_in_a_batch_drafts_shrink_as_the_rows_of_others_make_them_expensive() -> None:
    seconds = CURVES["rising"]
    alone = World(SOURCES["good"], seconds).ride(planner(), 200)
    together = World(SOURCES["good"], seconds).ride(planner(), 200, batch=8)
    assert np.mean(together.sent) / 8 < 0.7 * np.mean(alone.sent)
    assert together.speed > 1.5 * 8 / seconds(8)


def test_nothing_is_sent_until_it_is_known_what_a_round_takes() -> None:
    world = World(SOURCES["good"], CURVES["flat"]).ride(planner(), TRUSTED + 1)
    assert world.sent[:TRUSTED] == [0] * TRUSTED
    assert world.sent[TRUSTED] > 0


def test_drafts_that_seem_free_in_every_round_are_held_against_rounds_without() -> None:
    """What is known of single texts, where drafts pay, has the first rounds of a batch draft; there they do not."""
    world = World(SOURCES["good"], lambda rows: 0.030 if rows <= 8 else 0.030 * rows / 8)
    made = planner()
    world.ride(made, 200)
    assert sum(world.sent[-50:]) > 50, "a single text drafts"
    together = World(SOURCES["good"], lambda rows: 0.030 * rows / 8, seed=1).ride(made, 100, batch=8)
    assert together.speed > 0.9 * 8 / 0.030


def test_a_batch_whose_plain_rounds_are_never_timed_drafts_all_the_same() -> None:
    """A text without room for a draft is in the round and not in the plan, so the round counts for a larger batch. And
    a long text beside short ones is of their class, which is that of their mean."""
    made = planner(measured(CURVES["flat"]))
    texts = [context(), Context([1] * 3000, Sampling(), Ending(max_new_tokens=1000)), *(context() for _ in range(6))]
    sent, ran = [], []
    for _ in range(5):
        budgets = made.plan([Room(one, 8) for one in texts])
        tree = DraftTree.chain([1, 2, 3], scores=np.log([0.9] * 3), source="sure")
        drafts = [Draft(one, tree, budget) for one, budget in zip(texts, budgets, strict=True)]
        ran.append(all(made.worth(drafts)))
        sent.append(sum(len(cut.tree) for cut in made.cut(drafts)))
    assert sent[0] == 0 < sent[-1]
    assert ran == [number > 0 for number in sent]


def test_a_drafter_that_does_not_pay_sleeps_within_the_probe_budget() -> None:
    rounds, drafting, plain = 2000, 0.003, 0.030
    world = World(HOSTILE, lambda rows: plain * rows, drafting).ride(planner(), rounds)
    assert sum(world.sent) < 20
    assert world.drafts * drafting / (rounds * plain) == pytest.approx(PROBING, rel=0.3)


@pytest.mark.parametrize("drafting", [0.25, 0.6, 1.5])
@pytest.mark.parametrize("rounds", [64, 128, 2000])
def test_drafts_that_cost_more_than_they_bring_are_off_after_a_few_and_lose_no_more_than_is_stated(
    drafting: float, rounds: int
) -> None:
    """Until the first verdict a drafter loses `BEARABLE` and the drafts in which that becomes known; then its share."""
    plain = 0.002
    world = World(HOSTILE, lambda rows: plain * rows, drafting * plain).ride(planner(), rounds)
    first = next(number for number, sent in enumerate(world.planned) if sent)
    assert sum(world.planned[: first + 2 * TRIED]) < TRIED
    lost = world.clock / plain - world.emitted - sum(world.sent)
    first_verdict, second = BEARABLE + 2 * drafting, 2 * (BEARABLE + drafting) * min(1.0, rounds * PROBING)
    assert lost < first_verdict + second + 2 * PROBING * rounds


def test_a_later_text_knows_what_a_draft_takes_and_begins_without_one() -> None:
    """Drafts of another drafter of the method, whose knowledge of texts is not shared, but whose time is."""
    effort, plain = Effort(), 0.002
    for number, expected in ((0, True), (1, False)):
        made = Adaptive(Sized(), measured(lambda rows: plain * (1 + 0.05 * rows)), effort)
        world = World(SOURCES["weak"], lambda rows: plain * (1 + 0.05 * rows), 1.2 * plain, seed=number)
        world.ride(made, 100)
        assert any(world.planned[:30]) is expected
        assert sum(world.planned) <= 4


DOUBLED = {1: 1.0, 2: 2.05, 4: 2.8, 8: 3.5, 16: 4.7, 32: 8.0}
"""Plain rounds that a forward takes by its rows, as llama.cpp's Q8_0 on a CPU."""


def texts(source: Source, plain: float, probe: Mapping[int, float], true: Seconds, count: int) -> list[World]:
    """Texts of 64 rounds, whose drafters have an effort in common and have known what a draft takes."""
    effort = Effort()
    for times in (effort.cheap, effort.plain):
        for _ in range(MEASURED):
            times[1].add(plain * (0.15 if times is effort.cheap else 1.0))
    costs = Costs(probed=[Timing(rows=rows, seconds=plain * share) for rows, share in probe.items()])
    reading = 0.05 * plain
    made = [World(source, true, 0.15 * plain, seed=number, seconds_reading=reading) for number in range(count)]
    return [world.ride(Adaptive(Sized(), costs, effort), 64) for world in made]


def doubled(rows: int) -> float:
    return 0.011 * float(np.interp(rows, [*DOUBLED], [*DOUBLED.values()]))


def test_where_a_second_row_costs_a_token_texts_begin_without_drafts_and_one_of_some_tries() -> None:
    worlds = texts(SOURCES["weak"], 0.011, DOUBLED, doubled, 12)
    trying = [number for number, world in enumerate(worlds) if any(world.planned)]
    assert 0 not in trying
    assert 2 <= len(trying) <= 3
    lost = sum(world.clock for world in worlds) / 0.011 - sum(world.emitted for world in worlds)
    assert lost < 1.5 * (PROBING + LEARNING) * 64 * len(worlds)


def test_a_probe_on_a_busy_machine_puts_drafts_off_for_some_texts_and_not_for_ever() -> None:
    probe, true = {1: 1.0, 2: 2.2, 4: 3.4, 8: 5.0}, {1: 1.0, 8: 1.2}
    worlds = texts(
        SOURCES["good"], 0.011, probe, lambda rows: 0.011 * float(np.interp(rows, [*true], [*true.values()])), 8
    )
    assert not any(worlds[0].planned), "it is believed at first"
    assert all(sum(world.planned) > 50 for world in worlds[5:]), "and held against what was seen"


def test_drafts_that_pay_where_rows_are_expensive_go_on_in_later_texts() -> None:
    worlds = texts(chain([0.95] * 16), 0.011, DOUBLED, doubled, 8)
    assert not any(worlds[0].planned)
    assert all(sum(world.planned) > 50 for world in worlds[3:])


@pytest.mark.parametrize(("reading", "least", "most"), [(1e-6, 0.9, 1.0), (2e-3, 0.0, 0.1), (2e-4, 0.02, 0.3)])
def test_a_drafter_that_is_left_out_is_shown_what_it_can_learn_from_in_its_share_of_time(
    reading: float, least: float, most: float
) -> None:
    plain, rounds = 0.002, 2000
    world = World(HOSTILE, lambda rows: plain * rows, plain, seconds_reading=reading).ride(planner(), rounds)
    resting = [shown for shown, planned in zip(world.shown, world.planned, strict=True) if not planned]
    assert least <= np.mean(resting) <= most
    assert sum(resting) * reading < 2 * LEARNING * rounds * plain
    for number in np.flatnonzero(world.planned)[1:].tolist():
        assert world.shown[number - 1], "it is shown the round before its draft"


def test_a_drafter_that_learns_nothing_is_shown_nothing_but_the_round_before_its_draft() -> None:
    world = World(HOSTILE, lambda rows: 0.002 * rows, 0.002)
    world.ride(Adaptive(Drafter(), Costs()), 2000)
    resting = [shown for shown, planned in zip(world.shown, world.planned, strict=True) if not planned]
    assert sum(resting) < 20


def test_while_it_rests_a_planner_is_asked_in_one_round_of_many() -> None:
    made = Adaptive(Drafter(), measured(lambda rows: 0.002 * rows))
    made._knowledge.backoff.left = 5 * SELDOM
    expected = [SELDOM] * 4 + [SELDOM - 1, 1]
    assert [made.plan([Room(context(), 9)])[0].rounds for _ in expected] == expected
    assert not made._knowledge.backoff.active
    made._knowledge.backoff.left = 5 * SELDOM
    together = [[budget.rounds for budget in made.plan([Room(context(), 9), Room(context(), 9)])] for _ in expected]
    assert together == [[rounds] * 2 for rounds in expected], "a batch rests as one text does"


def test_each_round_that_a_resting_planner_is_asked_in_is_timed() -> None:
    """To ask takes each text some time, so no round is asked for that tells nothing."""

    def outcome(of: Context) -> Outcome:
        return Outcome(of, EMPTY, EMPTY, tokens=(7,), seconds_draft=0.0, seconds=0.002)

    costs = measured(lambda rows: 0.002 * rows)
    made, one, noted = Adaptive(Drafter(), costs), context(), list[Timing]()
    costs.note = noted.append  # type: ignore[method-assign]
    made._knowledge.backoff.left = 5 * SELDOM
    for asked in range(1, 5):
        assert made.plan([Room(one, 9)])[0].empty
        made.review([outcome(one)])
        assert len(noted) == asked
    one.commit(7)
    joined, last = context(), context()
    made.plan([Room(joined, 9)])
    made.review([outcome(joined)])
    made.review([outcome(last)])
    assert len(noted) == asked, "texts that join others, and those that have no room to ask, are not all of their round"


def resting(texts: int) -> tuple[Adaptive, list[Context]]:
    """A planner that is backed off, and the texts that rest by it."""
    made, contexts = Adaptive(Drafter(), measured(lambda rows: 0.002 * rows)), [context() for _ in range(texts)]
    made._knowledge.round.batch = texts
    made._knowledge.backoff.left = 5 * SELDOM
    assert {budget.rounds for budget in made.plan([Room(each, 9) for each in contexts])} == {SELDOM}
    return made, contexts


def test_a_text_that_joins_a_resting_batch_rests_with_it() -> None:
    """Alone it would be planned as a batch of one, and the others would be asked in other rounds than it."""
    made, contexts = resting(4)
    left, newcomer = made._knowledge.backoff.left, context()
    for each in contexts:
        for _ in range(4):
            each.commit(7)
    assert not made.awake(newcomer)
    [budget] = made.plan([Room(newcomer, 9)])
    assert budget.empty
    assert budget.rounds == SELDOM - 4
    assert made._knowledge.backoff.left == left, "no round went by for it alone"
    for each in [*contexts, newcomer]:
        for _ in range(budget.rounds):
            each.commit(7)
    made.plan([Room(each, 9) for each in [*contexts, newcomer]])
    assert made._knowledge.round.batch == 5


def test_texts_that_have_ended_or_were_left_in_a_rest_hold_up_no_others() -> None:
    made, [ended] = resting(1)
    before = made._knowledge.backoff.left
    ended.cancel()
    made.plan([Room(context(), 9)])
    assert made._knowledge.backoff.left < before, "the rest of a text that has ended is over"
    made, held = resting(1)
    before, later = made._knowledge.backoff.left, [context() for _ in range(JOINING + 1)]
    budgets = [made.plan([Room(each, 9)])[0] for each in later]
    assert len(held[0]) == 1
    assert {budget.rounds for budget in budgets[:-1]} == {SELDOM}, "as if it were still written"
    assert made._knowledge.backoff.left < before, "the last one is planned by itself"


def test_a_rest_that_goes_on_is_joined_by_any_number_of_short_texts() -> None:
    """One that was planned by itself would be taken for a batch of one, and ask in other rounds than the others."""
    made, contexts = resting(4)
    before, abandoned = made._knowledge.backoff.left, contexts.pop()
    for over in range(1, SELDOM):
        for each in contexts:
            each.commit(7)
        short = [context(), context()]
        budgets = made.plan([Room(each, 9) for each in short])
        assert {budget.rounds for budget in budgets} == {SELDOM - over}, "as long as those that are written"
        for each in short:
            each.cancel()
    assert 2 * SELDOM > JOINING
    assert len(abandoned) == 1
    assert made._knowledge.backoff.left == before


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
def test_where_drafts_do_not_pay_a_batch_pays_at_most_two_hundredths(batch: int) -> None:
    """A draft takes a plain round, and to ask the planner takes for each text what it does beside the 8M model: 6% of a
    round of 16 texts. The rounds that find this out are apart, since a program has them once."""
    plain = 0.002 * (1 + 0.25 * batch)
    world = World(HOSTILE, lambda rows: plain * rows / batch, plain, seconds_reading=0.1 * plain)
    world.seconds_asking = 0.035e-3
    made = planner()
    world.ride(made, 100, batch)
    before, emitted = world.clock, world.emitted
    for _ in range(10):
        world.ride(made, 100, batch)
    assert (world.emitted - emitted) / (world.clock - before) >= 0.98 * batch / plain


def test_without_a_draft_a_round_costs_the_planner_next_to_nothing() -> None:
    """Most rounds of a drafter that is left out are neither timed nor learnt from."""
    made = planner(measured(lambda rows: 0.002 * rows))
    World(HOSTILE, lambda rows: 0.002 * rows, 0.002, seconds_reading=1.0).ride(made, 50)
    known = made._knowledge
    known.backoff.left = 80
    before = known.costs._now
    World(HOSTILE, lambda rows: 0.002 * rows, seed=1).ride(made, 80)
    assert known.costs._now - before <= -(-80 // SELDOM) + 1, "and the round before a draft"


def test_what_was_not_sent_is_learnt_from_all_the_same() -> None:
    """Forwards of more than one row are far too expensive, and yet it is known then how good the drafts are."""
    made = planner(measured(lambda rows: 1.0 if rows == 1 else 50.0))
    world = World(SOURCES["modest"], lambda rows: 1.0).ride(made, 60)
    assert sum(world.sent) == 0
    tree = DraftTree.chain([1, 2, 3], source="chain", scores=np.log([0.1] * 3))
    known = made._known(context())
    assert known.reliability.odds([tree], tree.depths()).min() > 0.75


def test_of_many_doubtful_nodes_the_chosen_bring_less_than_each_of_its_kind_and_that_is_learnt() -> None:
    """Scores that are right on the whole and wrong each: the best of twenty is the one most overrated. Every round has
    sources of its own, so nothing is known of them but what they claim."""
    rng, one = np.random.default_rng(3), context()
    made = planner(measured(lambda rows: 1.0 + 0.03 * (rows - 1)))
    promised, came = [], []
    for number in range(300):
        odds = rng.uniform(0.0, 0.08, 20)
        odds /= max(1.0, odds.sum())
        claims = np.clip(odds * np.exp(rng.normal(0.0, 1.0, 20)), 1e-3, 0.9)
        right = int(rng.choice(21, p=[*odds, max(0.0, 1 - odds.sum())]))
        tree = DraftTree.build(range(20), [ROOT] * 20, source=f"doubtful {number}", scores=np.log(claims))
        made.plan([Room(one, 8)])
        [cut] = made.cut([Draft(one, tree, WIDE)])
        assert cut.why is not None
        tokens = (right, 99) if right in cut.tree.tokens else (right,)
        for token in tokens:
            one.commit(token)
        if one.finish is not None:
            one = context()
        spent = {"seconds_draft": 1e-5, "seconds": 1.0 + 0.03 * len(cut.tree)}
        made.review([Outcome(context=one, proposed=tree, sent=cut.tree, tokens=tokens, **spent)])
        promised.append(cut.why.tokens - 1)
        came.append(len(tokens) - 1)
    assert sum(came[100:]) > 0.7 * sum(promised[100:]) > 0


def test_who_was_trusted_too_little_is_given_another_chance() -> None:
    trust = Trust()
    for _ in range(3):
        trust.learn(5.0, 0.0)
    assert trust.share < 0.4
    for _ in range(300):
        trust.learn(0.0, 0.0)
    assert trust.share > 0.9


def test_what_sleeps_beside_many_wakes_beside_few_and_what_sleeps_alone_sleeps_beside_many() -> None:
    """Rows are expensive as soon as there are eight of them."""

    def seconds(rows: int) -> float:
        return 0.030 if rows <= 6 else 0.030 * rows / 2

    made = planner()
    together = World(SOURCES["weak"], seconds, 0.004).ride(made, 60, batch=8)
    assert together.drafts < 8 * 20
    alone = World(SOURCES["good"], seconds, 0.001).ride(made, 60)
    assert alone.drafts > 50
    known = planner()._knowledge
    known.backoff.judge(-1.0, 0.01)
    assert known.backoff.active
    known.round.batch = 8
    assert known.backoff.active


def test_a_draft_over_its_budget_is_cut_by_what_came_true_and_not_by_what_was_claimed() -> None:
    made, one = planner(), context()
    World(SOURCES["boastful"], CURVES["flat"]).ride(made, 200)
    boastful = DraftTree.chain([1, 2, 3], source="chain", scores=np.log([0.95] * 3))
    unknown = DraftTree.chain([4, 5], source="modest", scores=np.log([0.6, 0.9]))
    weighed = made._known(one).weigh([boastful])
    assert weighed.paths[0] == pytest.approx(0.3, abs=0.12)
    assert weighed.paths[2] < 0.1
    [cut] = made.cut([Draft(one, merge([boastful, unknown]), Budget(2, 8))])
    assert cut.tree.tokens.tolist() == [4, 5]


# what it picks


def random_tree(rng: np.random.Generator, nodes: int) -> DraftTree:
    parents = [int(rng.integers(-1, i)) if i else ROOT for i in range(nodes)]
    return DraftTree.build(range(nodes), parents, scores=np.log(rng.uniform(0.05, 0.95, nodes)), source="any")


def test_the_part_it_picks_is_connected_and_no_other_is_worth_more() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        tree, extra = random_tree(rng, 8), np.sort(rng.uniform(0, 1.5, 8))
        costs = Costs(Timing(rows=rows, seconds=float(took)) for rows, took in enumerate([1.0, *(1.0 + extra)], 1))
        made, times = planner(costs), costs.seconds(9)[1:]
        one = context()
        made.plan([Room(one, 9)])
        [cut] = made.cut([Draft(one, tree, WIDE)])
        odds = np.exp(tree.scores)  # nothing was seen yet, so what they claim is what they are worth
        paths = [float(np.prod(odds[tree.path(node)])) for node in range(8)]

        def worth(nodes: tuple[int, ...], paths: list[float] = paths, times: Floats = times) -> float:
            return sum(paths[node] for node in nodes) - float(times[len(nodes)])

        closed = [
            nodes
            for count in range(9)
            for nodes in combinations(range(8), count)
            if all(tree.parents[node] in (ROOT, *nodes) for node in nodes)
        ]
        picked = tuple(int(token) for token in cut.tree.tokens)
        assert picked in closed
        assert worth(picked) == pytest.approx(max(map(worth, closed)))
        assert cut.why is not None
        assert cut.why.tokens == pytest.approx(1 + sum(paths[node] for node in picked))


def test_sequences_that_are_scored_together_are_weighed_together() -> None:
    """The sure draft of one is sent and the doubtful one of the other is not."""
    made, one, other = planner(measured(CURVES["rising"], batch=2)), context(), context()
    made.plan([Room(one, 8), Room(other, 8)])
    sure = DraftTree.chain([1, 2, 3], scores=np.log([0.9] * 3), source="sure")
    doubtful = DraftTree.chain([1, 2, 3], scores=np.log([0.02] * 3), source="doubtful")
    first, second = made.cut([Draft(one, sure, WIDE), Draft(other, doubtful, WIDE)])
    assert len(first.tree) == 3
    assert len(second.tree) == 0


def test_probes_go_with_the_draft_whole_and_stay_away_where_rows_are_expensive() -> None:
    made, one = planner(measured(CURVES["flat"])), context()
    tree = DraftTree.build(
        [5, 6, 7, 8], [ROOT, ROOT, 1, ROOT], scores=np.log([0.9, 0.5, 0.5, 0.01]), probes=[False, True, True, False]
    )
    made.plan([Room(one, 8)])
    [cut] = made.cut([Draft(one, tree, WIDE)])
    assert cut.tree.probes is not None
    assert int(cut.tree.probes.sum()) == 2
    steep = planner(measured(lambda rows: 1.0 + 0.8 * (rows - 1)))
    steep.plan([Room(one, 8)])
    [cut] = steep.cut([Draft(one, tree, WIDE)])
    assert cut.tree.tokens.tolist() == [5]
    assert cut.tree.probes is None


def probing(odds: Sequence[float], probes: int = 27) -> Source:
    """A chain, and beside it a window of probes."""
    drafts = chain(odds)
    window = DraftTree.chain(range(2 * VOCABULARY, 2 * VOCABULARY + probes), source="chain")
    window = replace(window, probes=np.ones(probes, np.bool_))
    return lambda world, context, budget: merge([drafts(world, context, budget), window])


@pytest.mark.parametrize(("batch", "curve", "least"), [(1, "rising", 0.95), (8, "rising", 0.98), (8, "steps", 0.98)])
def test_probes_that_bring_nothing_cost_what_was_saved_for_them(batch: int, curve: str, least: float) -> None:
    seconds = CURVES[curve]
    for rounds in (32, 300):
        world = World(probing([1e-9] * 4), seconds, 1e-4).ride(planner(), rounds, batch)
        assert world.speed > least * batch / seconds(batch)


def test_probes_go_in_every_round_that_is_no_slower_for_them() -> None:
    world = World(probing([0.8] * 4), CURVES["flat"], 1e-4).ride(planner(), 100)
    assert sum(sent >= 27 for sent in world.sent) > 90


def test_where_probes_are_too_expensive_the_draft_goes_without_them() -> None:
    seconds = CURVES["rising"]
    world = World(probing([0.6] * 4), seconds, 1e-4).ride(planner(), 200, batch=8)
    alone = World(chain([0.6] * 4), seconds, 1e-4).ride(planner(), 200, batch=8)
    assert world.speed > 0.97 * alone.speed > 1.1 * 8 / seconds(8)


@pytest.mark.parametrize("foreseeable", [True, False])
def test_a_node_behind_a_probe_goes_where_the_probe_goes(foreseeable: bool) -> None:
    tree = DraftTree.build([5, 6, 7], [ROOT, ROOT, 1], scores=np.log([0.9] * 3), probes=[False, True, False])
    costs = Costs(Timing(rows=rows, seconds=1.0 + 0.8 * (rows - 1)) for rows in range(1, 9))
    made, one = planner(costs), context(foreseeable=foreseeable)
    made.plan([Room(one, 8)])
    [cut] = made.cut([Draft(one, tree, WIDE)])
    assert cut.tree.tokens.tolist() == [5]


def test_a_round_that_was_not_planned_says_nothing_of_drafting() -> None:
    """The last round of a text that ends by its length."""
    made, one = planner(measured(CURVES["flat"])), context()
    made.plan([Room(one, 8)])
    tree = DraftTree.chain([5, 6], scores=np.log([0.9, 0.9]), source="chain")
    [cut] = made.cut([Draft(one, tree, WIDE)])
    known, times = made._known(one), []
    for sent, drafting in ((cut.tree, 1e-4), (EMPTY, 0.0)):
        one.commit(99)
        made.review(
            [Outcome(context=one, proposed=sent, sent=sent, tokens=(99,), seconds_draft=drafting, seconds=0.03)]
        )
        times.append(known.cheap_time.times)
    assert times == [1, 1]


def test_a_draft_model_by_itself_drafts_as_many_levels_as_pay_and_one_at_first() -> None:
    class Model(Drafter):
        nodes, costly_levels = 8, 8

    plain, deepest = 0.030, list[int]()

    def level(world: World, context: Context, budget: Budget) -> DraftTree:
        deepest.append(budget.depth)
        return chain([0.7] * 8)(world, context, budget)

    for takes, expected in ((0.0005, 5), (0.012, 2), (0.040, 1)):
        deepest.clear()
        world = World(level, lambda rows: plain * (1 + 0.02 * (rows - 1)))
        world.seconds_deep = takes
        made = Adaptive(Model(), measured(world.seconds))
        world.ride(made, 300)
        assert deepest[0] == 1
        assert abs(np.median(deepest[len(deepest) // 2 :]) - expected) <= 1
        assert (len(deepest) < 20) is (takes > plain)


def test_a_drafter_whose_levels_come_at_once_is_asked_for_all_of_them() -> None:
    class Heads(Drafter):
        nodes, costly_levels = 8, 1

    deepest = list[int]()

    def levels(world: World, context: Context, budget: Budget) -> DraftTree:
        deepest.append(budget.depth)
        return chain([0.7] * 8)(world, context, budget)

    world = World(levels, lambda rows: 0.030 * (1 + 0.02 * (rows - 1)), seconds_draft=0.001)
    world.ride(Adaptive(Heads(), measured(world.seconds)), 300)
    assert min(deepest) >= 5
    assert len(deepest) > 50


# sources that take time


def test_an_expensive_source_runs_where_it_pays_and_not_beside_a_draft_that_is_good_already() -> None:
    """It helps only at every other place, where the cheap draft is weak."""
    made, one = planner(measured(lambda rows: 0.030 + 0.0002 * rows)), context()
    strong = DraftTree.chain([1, 2], scores=np.log([0.97, 0.97]), source="cheap")
    ran = {True: 0, False: 0}
    for number in range(400):
        easy = number % 2 == 0
        [budget] = made.plan([Room(one, 8)])
        tree = cheap = strong if easy else EMPTY
        [expensive] = made.worth([Draft(one, cheap, budget)])
        ran[easy] += expensive > 0
        if expensive and not easy:
            tree = DraftTree.chain([1, 2], scores=np.log([0.9, 0.9]), source="expensive")
        [cut] = made.cut([Draft(one, tree, budget, cheap, expensive)])
        tokens = (1, 2, 3) if len(tree) else (3,)
        for token in tokens:
            if one.finish is None:
                one.commit(token)
        if one.finish is not None:
            one = context()
            continue
        spent = {"seconds_draft": 0.010 if expensive else 1e-4, "seconds": 0.030 + 0.0002 * (1 + len(cut.tree))}
        made.review([Outcome(context=one, proposed=tree, sent=cut.tree, tokens=tokens, **spent)])
    assert ran[False] > 180
    assert ran[True] < 30


def test_in_a_batch_an_expensive_source_is_weighed_against_what_all_would_do_without_it() -> None:
    """Alone each text could have all the rows that were tried; together they share them, with and without it."""
    made, texts = planner(measured(lambda rows: 0.030 + 0.0001 * rows, most=8, batch=8)), [context() for _ in range(8)]
    cheap = DraftTree.chain([1, 2, 3, 4], scores=np.log([0.5] * 4), source="cheap")
    best = DraftTree.chain([1, 2, 3, 4], scores=np.log([0.95] * 4), source="expensive")
    ran = 0
    for _ in range(10):
        budgets = made.plan([Room(one, 8) for one in texts])
        drafts, asked = [], 0
        for one, budget in zip(texts, budgets, strict=True):
            [expensive] = made.worth([Draft(one, cheap, budget)])
            asked += expensive > 0
            drafts.append(Draft(one, best if expensive else cheap, budget, cheap, expensive))
        cuts = made.cut(drafts)
        ran += asked
        outcomes = []
        rows = sum(1 + len(cut.tree) for cut in cuts)
        spent = {"seconds_draft": 0.002 if asked else 1e-4, "seconds": 0.030 + 0.0001 * rows}
        for number, (draft, cut) in enumerate(zip(drafts, cuts, strict=True)):
            tokens = (*range(1, 1 + len(cut.tree)), 9) if draft.tree is best else (9,)
            for token in tokens:
                texts[number].commit(token)
            outcomes.append(Outcome(context=texts[number], proposed=draft.tree, sent=cut.tree, tokens=tokens, **spent))
        made.review(outcomes)
        texts = [one if one.finish is None else context() for one in texts]
    assert ran == 8 * (10 - 1), "in all rounds but the one without a draft that is timed"


# the rejection rule


def test_under_the_rejection_rule_no_clock_and_no_other_text_decides() -> None:
    def sent(seconds: Seconds, before: int) -> list[int]:
        made = planner()
        World(SOURCES["modest"], CURVES["rising"], seed=9).ride(made, before)
        return World(SOURCES["good"], seconds).ride(made, 50, foreseeable=False).sent

    assert sent(CURVES["flat"], 0) == sent(lambda rows: 0.01 * rows**2, 0) == sent(CURVES["steps"], 40)


def test_under_the_rejection_rule_a_draft_that_promises_less_than_it_counts_as_is_left_out() -> None:
    world = World(chain([1e-12] * 4, [0.02] * 4), CURVES["flat"]).ride(planner(), 400, foreseeable=False)
    assert 0 < world.drafts < 100
    assert all(world.shown)
    world = World(SOURCES["good"], CURVES["flat"]).ride(planner(), 100, foreseeable=False)
    assert world.drafts == 100


def test_nodes_that_were_sampled_are_cut_by_place_and_their_law_stays() -> None:
    law = Distribution(np.arange(4), np.array([0.97, 0.01, 0.01, 0.01]))
    made, one = planner(measured(lambda rows: float(rows))), context(foreseeable=False)
    lengths = set()
    for tokens in ([0, 1, 2], [1, 0, 0], [3, 3, 3]):  # likely and unlikely draws of the same law
        tree = DraftTree.chain(tokens, laws=[law] * 3, scores=np.log(law.probs[tokens]), source="drawn")
        made.plan([Room(one, 8)])
        [cut] = made.cut([Draft(one, tree, WIDE)])
        assert cut.tree.tokens.tolist() == tokens[: len(cut.tree)]
        assert set(cut.tree.drawn) == set(range(-1, len(cut.tree) - 1))
        lengths.add(len(cut.tree))
    assert len(lengths) == 1


# what it learns


def test_scores_are_believed_as_far_as_they_came_true() -> None:
    rng, seen = np.random.default_rng(1), Reliability()
    for _ in range(600):
        tree = DraftTree.build([1, 2], [ROOT, ROOT], scores=np.log([0.6, 0.3]), source="one")
        seen.learn(tree, ROOT, [1 if rng.random() < 0.2 else 2 if rng.random() < 0.75 else 3])
    tree = DraftTree.build([1, 2, 3], [ROOT] * 3, scores=np.log([0.6, 0.3, 0.6]), source="one")
    first, second, _ = seen.odds([tree], tree.depths())
    assert first == pytest.approx(0.2, abs=0.08)
    assert second == pytest.approx(0.6, abs=0.1)
    stranger = DraftTree.chain([1], scores=[np.log(0.6)], source="another")
    assert seen.odds([stranger], stranger.depths())[0] == pytest.approx(0.6)


def test_nodes_behind_one_that_was_wrong_say_nothing() -> None:
    seen = Reliability()
    tree = DraftTree.chain([1, 2], scores=np.log([0.5, 0.5]), source="one")
    for _ in range(50):
        assert seen.learn(tree, ROOT, [7]) is None
    before, after = seen.odds([tree], tree.depths())
    assert before < 0.05
    assert after > before  # nothing was seen of its depth: what its source claims, less what it was wrong by


def test_a_draft_is_followed_over_several_rounds() -> None:
    seen = Reliability()
    tree = DraftTree.chain([1, 2, 3], scores=np.log([0.5] * 3), source="one")
    node = seen.learn(tree, ROOT, [1])
    assert node == 0
    assert seen.learn(tree, node, [2, 9]) is None
    assert seen.learn(tree, 2, [5]) is None


# costs


def test_costs_rise_with_rows_and_lie_between_what_was_seen() -> None:
    costs = Costs()
    for rows, seconds in ((1, 1.0), (5, 1.4), (9, 1.2), (17, 2.0)) * 12:
        costs.note(Timing(rows=rows, seconds=seconds))
    found = costs.seconds(40)
    assert (np.diff(found) >= 0).all()
    assert found[1] == pytest.approx(1.0, rel=0.1)
    assert found[17] == pytest.approx(2.0, rel=0.1)
    assert found[9] < found[13] < found[17] < found[40]


def test_a_stall_and_the_first_of_its_size_change_nothing() -> None:
    costs = Costs()
    for rows in (1, 1, 1, 8, 8, 8):
        costs.note(Timing(rows=rows, seconds=1.0))
    costs.note(Timing(rows=8, seconds=30.0))
    costs.note(Timing(rows=32, seconds=30.0))
    found = costs.seconds(32)
    assert found[[8, 32]] / found[1] == pytest.approx([1.0, 1.25], rel=0.15)


def test_costs_follow_the_pace_of_the_machine_also_for_sizes_that_are_not_seen() -> None:
    costs = measured(lambda rows: 1.0 + 0.1 * rows)
    for _ in range(200):
        costs.note(Timing(rows=9, seconds=2 * 1.9))
    assert costs.seconds(30)[[1, 9, 30]] == pytest.approx([2.2, 3.8, 8.0], rel=0.25)
    assert costs.frozen().seconds(30)[[1, 9, 30]] == pytest.approx([1.1, 1.9, 4.0], rel=0.05)


def test_of_a_batch_size_and_a_length_that_were_never_seen_the_nearest_is_taken() -> None:
    costs = Costs(
        [Timing(rows=n, seconds=1.0, sequences=1) for n in (1, 9)]
        + [Timing(rows=n, seconds=2.0, sequences=8) for n in (8, 64)]
        + [Timing(rows=n, seconds=3.0, sequences=1, length=30_000) for n in (1, 9)]
    )
    for sequences, length, seconds in ((1, 100, 1.0), (2, 900, 1.0), (6, 100, 2.0), (1, 20_000, 3.0)):
        assert costs.seconds(8, sequences=sequences, length=length)[8] == pytest.approx(seconds)


def test_a_budget_is_never_larger_than_the_drafter_is_good_for() -> None:
    made, one = planner(measured(CURVES["flat"])), context()
    World(SOURCES["modest"], CURVES["flat"]).ride(made, 50)
    [budget] = made.plan([Room(one, 5)])
    assert budget.nodes <= Sized.nodes
    assert budget.depth == 5


def test_behind_a_long_draft_that_came_true_whole_the_next_is_far_longer() -> None:
    """A copy goes on; it must not take a round for every doubling of its drafts."""
    world, drafter = World(chain([1.0] * 48), lambda rows: 1.0 + 0.02 * rows, depth=48), Sized()
    drafter.nodes = 48
    world.ride(Adaptive(drafter, measured(world.seconds)), 12)
    first = next(number for number, sent in enumerate(world.sent) if sent >= 8)
    sizes = [sent for sent in world.sent[first:] if sent]
    assert sizes[0] < 30
    assert min(sizes[1:]) > 2 * sizes[0]


def test_a_round_without_a_draft_is_timed_from_time_to_time() -> None:
    """While all rounds have drafts, a machine that got slower cannot be told from rows that cost more."""
    costs = Costs()
    known = Knowledge(costs, live=True)
    known.round.batch = 2
    for _ in range(3):
        costs.note(Timing(rows=2, seconds=0.02, sequences=2))
    plain, drafted = list[int](), 0
    while drafted < 1000:
        if known.ready(10):
            costs.note(Timing(rows=14, seconds=0.04, sequences=2))
            drafted += 1
        else:
            costs.note(Timing(rows=2, seconds=0.02, sequences=2))
            plain.append(drafted)
    gaps = [after - before for before, after in zip([0, *plain], plain, strict=False)]
    assert gaps == [4, 8, 16, 32, 64, *[128] * (len(gaps) - 5)]
    assert costs.seconds(14, sequences=2)[2] == pytest.approx(0.02, rel=0.1)
    assert costs.seconds(14, sequences=2)[14] == pytest.approx(0.04, rel=0.1)
