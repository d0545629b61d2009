"""Copying in the same draft: behind a network's leaves, through the edits of a copy, and while a planner rests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import paceline
from drafting import PLENTY, as_plain, context_of, paths_of
from engine import PROMPT, SIZE, habitual, tabled, write
from paceline.api.model import LanguageModel
from paceline.context import Context, Ending
from paceline.drafters import Budget, Drafter, make_drafter
from paceline.drafters.base import Ahead, Ask, Enrich
from paceline.drafters.compose import Fallback, Union
from paceline.drafters.continuing import LEAVES, continued, likeliest_leaves
from paceline.drafters.edited import PROVEN, OwnCopy
from paceline.drafters.endings import SIZES, Endings
from paceline.drafters.lookup import Lookup
from paceline.drafters.prediction import Prediction
from paceline.drafters.suffix import Suffix
from paceline.engine.batch import Batch
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Distribution, Sampling
from paceline.planning.adaptive import Adaptive
from paceline.planning.backoff import BackOff
from paceline.planning.base import LISTENING, Draft, Planner, Resting, Room
from paceline.planning.costs import Costs
from paceline.planning.fixed import Fixed
from paceline.targets.replay import ReplayTarget
from paceline.targets.table import TableTarget
from paceline.tree import DraftTree
from paceline.verify import Rule
from test_suffix import places

RANDOM = np.random.default_rng(11)
PASSAGE = RANDOM.integers(10, 200, 150).tolist()
"""Tokens that hardly repeat."""
OLD, NEW = [201, 202], [203, 204, 205]


class Guessing(Drafter):
    """An expensive part: a tree of given beams, which are the same for every text."""

    name, nodes, costly_levels = "guessing", 8, 3

    def __init__(self, *beams: Sequence[int]) -> None:
        self.beams = beams

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        scores = [[-0.1 * (1 + number)] * len(beam) for number, beam in enumerate(self.beams)]
        tree = DraftTree.from_beams(self.beams, source=self.name, scores=scores)
        return tree.head(budget.nodes, depth=budget.depth)


def enriched(union: Drafter, tokens: Sequence[int], budget: Budget = PLENTY, levels: int = 99, **how: Any) -> DraftTree:
    """The whole draft for a text, the expensive part asked for so many levels."""
    state = union.open(context_of(tokens, **how))
    [cheap] = union.propose([Ask(state, budget)])
    [tree] = union.enrich([Enrich(state, budget.within(levels), cheap, budget.depth)])
    tree.check()
    return tree


# --- places ahead of a text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("sizes", [SIZES, (1, 2, 3)])
def test_endings_behind_a_text_are_those_of_the_longer_text(seed: int, sizes: tuple[int, ...]) -> None:
    random = np.random.default_rng(seed)
    for _ in range(40):
        text = random.integers(0, 4, random.integers(1, 60)).tolist()
        ahead = random.integers(0, 4, random.integers(0, 30)).tolist()
        drafted = random.integers(0, 4, random.integers(0, 4)).tolist()
        endings = Endings(sizes)
        endings.extend(text)
        known = len(text) + len(ahead) - (not drafted)
        expected = places([*text, *ahead], [*text, *ahead, *drafted], sizes, before=known)
        assert endings.behind(ahead, 999, drafted) == expected
        assert endings.behind(ahead, 3, drafted) == expected[:3]
        latest = Endings(sizes, linked=False)
        latest.extend(text)
        assert latest.behind(ahead, 1, drafted) == expected[:1]


# --- behind a leaf ----------------------------------------------------------------------------------------------------


def committed(drafter: Drafter, text: Sequence[int], ahead: Sequence[int], budget: Budget, **how: Any) -> DraftTree:
    """The definition: the draft of a text that really went on with these tokens."""
    context = context_of(text, **how)
    context.prediction = PREDICTION
    state = drafter.open(context)
    drafter.propose([Ask(state, budget)])
    for token in ahead:
        context.commit(token)
    return drafter.propose([Ask(state, budget)])[0]


PREDICTION = [*PASSAGE[:30], *OLD, *PASSAGE[30:]]
COPIERS = ("lookup", "lookup:chain=true", "lookup:paper", "lookup:max_ngram=6,min_ngram=2", "suffix", "prediction")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("spec", [*COPIERS, "lookup,suffix", "lookup+lookup:max_ngram=6,min_ngram=2"])
def test_a_leaf_is_continued_exactly_as_the_text_with_its_path(spec: str, temperature: float) -> None:
    random, found = np.random.default_rng(5), 0
    make = Prediction if spec == "prediction" else lambda: make_drafter(spec)
    texts = [random.integers(0, 5, random.integers(2, 50)).tolist() for _ in range(25)]
    texts += [[*PASSAGE, 7, *PASSAGE[:at]] for at in (5, 9, 40, 41, 77)]
    for text in texts:
        for ahead in ([3], [1, 2], PASSAGE[9:12], [201, *PASSAGE[42:45]], random.integers(0, 5, 5).tolist()):
            budget, how = Budget(12, 9), {"temperature": temperature, "seed": 3}
            context = context_of(text, **how)
            context.prediction = PREDICTION
            drafter = make()
            state = drafter.open(context)
            before = drafter.propose([Ask(state, budget)])[0]
            [behind] = drafter.behind([Ahead(state, budget, ahead)])
            expected = committed(make(), text, ahead, budget, **how)
            behind.check()
            assert len(behind) <= budget.nodes * drafter.leaves
            assert behind.depth <= budget.depth
            if len(behind) or spec != "suffix":  # which leaves matches of one or two tokens alone
                assert paths_of(behind) == paths_of(expected.head(len(expected), depth=budget.depth))
                assert behind.scores == pytest.approx(expected.scores)
                found += len(behind) > 0
            assert paths_of(drafter.propose([Ask(state, budget)])[0]) == paths_of(before), "nothing was changed"
    assert found > 20


def test_suffix_leaves_short_matches_behind_a_guess_alone() -> None:
    drafter = Suffix()
    state = drafter.open(context_of([1, 2, 3, 4, 5, 9, 2, 3]))
    trees = drafter.behind([Ahead(state, PLENTY, ahead) for ahead in ([4], [5], [7, 3], [4, 5])])
    assert [tree.tokens[:2].tolist() for tree in trees] == [[5, 9], [], [], [9, 2]]


def test_the_likeliest_leaves_are_continued_within_the_budget() -> None:
    beams = [[11, 12], [13, 14], [15, 16], [17, 18], [19, 20], [21, 22]]
    tree = Guessing(*beams).propose_one(context_of([1]), Budget(12, 9))
    ends = [tree.tokens[leaf] for leaf in likeliest_leaves(tree, Budget(12, 9), {14})]
    assert ends == [12, 16, 18, 20]
    assert len(ends) == LEAVES
    assert [tree.tokens[leaf] for leaf in likeliest_leaves(tree, Budget(12, 2), {})] == []


def test_a_network_leads_into_a_copy_that_goes_on_in_the_same_draft() -> None:
    """The scores of a path multiply: the first beam is the likeliest, and only what stood before is continued."""
    text = [*PASSAGE, 5]
    union = Union([Suffix(), Guessing(PASSAGE[20:23], [6, 7, 8])])
    tree = enriched(union, text, Budget(16, 16))
    path = tree.along(PASSAGE[20:40])
    assert len(path) > 8
    assert tree.along([6, 7, 8])[-1] not in tree.parents
    assert tree.sources[path[2]] == "guessing"
    assert {tree.sources[node] for node in path[3:]} == {"suffix"}
    assert tree.scores[path[:3]] == pytest.approx([-0.1] * 3)
    whole = committed(Suffix(), text, PASSAGE[20:23], Budget(16, 13))
    assert tree.scores[path[3:]] == pytest.approx(whole.scores[: len(path) - 3])


def test_the_copy_goes_on_deeper_than_the_levels_of_the_network() -> None:
    text, union = [*PASSAGE, 5], Union([Suffix(), Guessing(PASSAGE[20:23])])
    assert enriched(union, text, Budget(16, 16), levels=3).depth > 10
    assert enriched(union, text, Budget(16, 5), levels=3).depth == 5
    assert len(enriched(union, text, Budget(6, 16), levels=3)) <= union.leaves * 6


def test_nothing_follows_an_end_of_the_text() -> None:
    text, union = [*PASSAGE, 5], Union([Lookup(), Guessing(PASSAGE[20:22])])
    assert enriched(union, text, Budget(16, 16)).depth > 2
    assert enriched(union, text, Budget(16, 16), eos=[PASSAGE[21]]).depth == 2


def test_a_sampled_draft_keeps_its_laws_and_is_not_continued() -> None:
    """Whether it could be continued depends on its tokens, by which it would then be sent."""
    law = Distribution.one_hot(PASSAGE[20])
    drawn = DraftTree.chain([PASSAGE[20]], source="n", laws=[law])
    union = Union([Lookup(), Guessing([1])])
    states = union.open(context_of([*PASSAGE, 5]))
    asks, copying = [Ask(states, PLENTY)], {0: union.parts[0]}
    assert continued([drawn], asks, copying) == [drawn]
    assert len(continued([DraftTree.chain([PASSAGE[20]])], asks, copying)[0]) > 1


def test_costly_parts_wait_for_the_others_and_not_for_one_another() -> None:
    costly = Guessing([1, 2])
    for parts, waits in (((costly, Lookup()), True), ((costly, Guessing([3])), False), ((Lookup(),), False)):
        union = Union(parts)
        assert union.enriches == waits
        assert union.costly_levels == (3 if costly in parts else 0)
    union = Union((costly, Lookup()))
    [cheap] = union.propose([Ask(union.open(context_of([4, 5, 6, 4])), PLENTY)])
    assert set(cheap.sources) == {"lookup"}
    assert not Fallback((costly, Lookup())).enriches


# --- texts ------------------------------------------------------------------------------------------------------------

SPECS = ("redrafter+suffix", "assistant+suffix", "auto", "auto:head=shipped")


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


STORY = "Tom saw the red house by the river. Tom walked to the red house. "


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("spec", SPECS)
def test_the_same_seed_writes_the_same_text_alone_and_in_batches(
    lm: LanguageModel, spec: str, temperature: float
) -> None:
    how: dict[str, Any] = {"temperature": temperature, "seed": 5, "max_new_tokens": 20}
    prompts = [STORY, STORY + STORY.replace("Tom", "Ann"), "One", STORY + "Tom"]
    model = "pocket-draft" if "assistant" in spec else None
    plain = [lm.generate(prompt, method="plain", **how).tokens for prompt in prompts]
    how |= {"method": spec, "draft_model": model}
    alone = [lm.generate(prompt, **how).tokens for prompt in prompts]
    together = [one.tokens for [one] in lm.generate_batch(prompts, **how)]
    assert alone == together == plain


@pytest.mark.parametrize("spec", SPECS)
def test_rejection_writes_valid_texts_that_come_again(lm: LanguageModel, spec: str) -> None:
    model = "pocket-draft" if "assistant" in spec else None
    how: dict[str, Any] = {"method": spec, "draft_model": model, "rule": Rule.REJECTION, "max_new_tokens": 16}
    for temperature in (0.0, 0.8):
        lm.forget()
        first = lm.generate(STORY, temperature=temperature, seed=2, **how)
        lm.forget()
        again = lm.generate(STORY, temperature=temperature, seed=2, **how)
        assert first.tokens == again.tokens
    assert (
        lm.generate(STORY, temperature=0.0, **how).tokens
        == lm.generate(STORY, temperature=0.0, method="plain", max_new_tokens=16).tokens
    )


@pytest.mark.parametrize("nodes", [2, 5, 12])
def test_drafts_are_valid_and_within_their_budgets(nodes: int) -> None:
    """Of the target's own text, in which the network guesses now right, now wrong."""
    seen: list[DraftTree] = []

    class Watched(Fixed):
        def cut(self, drafts: Sequence[Draft]) -> list[Any]:
            cuts = super().cut(drafts)
            seen.extend(cut.tree for cut in cuts)
            return cuts

    target = TableTarget(habitual(memory=1), SIZE, eos=frozenset())
    drafter = make_drafter("assistant+suffix+lookup", TableTarget(habitual(memory=1), SIZE))
    drafter.fit(target)
    context = Context(PROMPT, Sampling(temperature=0.8, seed=4), Ending(max_new_tokens=40))
    session = Session.on_new_rows(context, target, drafter, Watched(nodes), checked=True)
    list(run(session))
    assert any("suffix" in source for tree in seen for source in tree.sources)
    for tree in seen:
        tree.check(SIZE)
        assert len(tree) <= nodes


# --- a copy with edits ------------------------------------------------------------------------------------------------


def rounds_of(text: list[int], start: int, drafter: Drafter, nodes: int = 32) -> Session:
    """A known text, written from a place on."""
    target = ReplayTarget([text], 210)
    session = write(target, text[:start], drafter, nodes=nodes, max_new_tokens=len(text) - start)
    assert session.context.tokens.tolist() == text
    return session


def named(name: list[int]) -> list[int]:
    """A passage with a name in it, every 20 tokens."""
    return [token for start in range(0, 140, 20) for token in [*PASSAGE[start : start + 20], *name]]


def test_a_copy_of_a_passage_goes_on_behind_a_changed_name() -> None:
    """From its second place on, the new name is drafted within the copy: hardly more rounds than of a copy without
    edits, and far fewer than by what the text's ending finds."""
    text = [*named(OLD), 7, *named(NEW)]
    start = len(named(OLD)) + 1 + 9
    session = rounds_of(text, start, Suffix())
    assert len(session.rounds) <= (len(text) - start) / 33 + 7
    assert len(session.rounds) < 0.6 * len(rounds_of(text, start, Lookup()).rounds)


def test_the_bound_sees_a_copy_that_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnCopy, "_begin", lambda copy: None)
    with pytest.raises(AssertionError):
        test_a_copy_of_a_passage_goes_on_behind_a_changed_name()


@pytest.mark.parametrize("edit", ["as many", "fewer", "more", "inserted", "deleted"])
def test_a_copy_comes_back_after_one_edit(edit: str) -> None:
    copy = {
        "as many": [*PASSAGE[:60], 201, 202, 203, *PASSAGE[63:]],
        "fewer": [*PASSAGE[:60], 201, *PASSAGE[64:]],
        "more": [*PASSAGE[:60], 201, 202, 203, 204, *PASSAGE[61:]],
        "inserted": [*PASSAGE[:60], 201, 202, *PASSAGE[60:]],
        "deleted": [*PASSAGE[:60], *PASSAGE[75:]],
    }[edit]
    start = len(PASSAGE) + 1 + 9
    session = rounds_of([*PASSAGE, 7, *copy], start, Suffix())
    fresh = len({201, 202, 203, 204} & set(copy))
    assert len(session.rounds) <= len(copy) / 33 + fresh + 4


def test_a_passage_is_given_up_and_another_one_followed() -> None:
    other = np.random.default_rng(12).integers(10, 200, 80).tolist()
    text = [*PASSAGE, 7, *other, 8, *PASSAGE[:60], *other[:60]]
    drafter = Suffix()
    context = context_of(text)
    state = drafter.open(context)
    assert state.copy.agrees
    for token in [*RANDOM.integers(205, 209, 40).tolist(), *PASSAGE[70:75]]:
        context.commit(token)
    state.catch_up()
    assert not state.copy.following
    for token in PASSAGE[75:90]:
        context.commit(token)
    assert drafter.sure(state)
    assert drafter.propose_one(state, Budget(4, 4)).tokens.tolist() == PASSAGE[90:94]


# --- sure drafts wake a planner ---------------------------------------------------------------------------------------


def asleep(drafter: Drafter, rounds: int = 400) -> Adaptive:
    """A planner that has stopped drafting for so many rounds."""
    planner = Adaptive(drafter, Costs())
    planner._knowledge.round.batch = 1
    planner._knowledge.backoff.left = rounds
    return planner


@pytest.mark.parametrize("batch", [1, 3])
def test_a_long_copy_wakes_the_planner_soon_and_for_all_texts_together(batch: int) -> None:
    text = [*PASSAGE, 7, *PASSAGE[:100]]
    target, drafter = ReplayTarget([[*text, 3], *([5, number, *PASSAGE] for number in range(batch - 1))], 210), Suffix()
    drafter.fit(target)
    planner, planned = asleep(drafter), list[list[int]]()
    planner._knowledge.backoffs.clear()
    planner._knowledge.round.batch = batch
    planner._knowledge.backoff.left = 400

    class Noted(type(planner)):  # type: ignore[misc]
        def plan(self, rooms: Sequence[Room]) -> list[Budget]:
            planned.append([len(room.context) for room in rooms])
            return super().plan(rooms)

    planner.__class__ = Noted
    prompts = [text[: len(PASSAGE) + 3], *([5, number, *PASSAGE[:40]] for number in range(batch - 1))]
    sessions = [
        Session.on_new_rows(context_of(prompt, room=80), target, drafter, planner, checked=True) for prompt in prompts
    ]
    with Batch(target) as together:
        for session in sessions:
            together.join(session)
        for _ in range(20):
            together.step()
    lengths = [len(lengths) for lengths in planned]
    assert lengths[0] == batch
    woken = next(number for number, own in enumerate(planned[1:], 1) if own[0] > len(prompts[0]) + 2)
    assert planned[woken][0] - len(PASSAGE) - 1 <= PROVEN + 1 + LISTENING
    assert set(lengths) == {batch}, "texts that rest together wake together"


def test_a_rest_lasts_as_long_as_it_was_planned_where_nothing_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also its last part, whose rounds are counted as over when it begins."""
    monkeypatch.setattr(Suffix, "sure", lambda drafter, state: False)
    target, drafter, planned = ReplayTarget([[*PASSAGE, 3]], 210), Suffix(), list[int]()
    drafter.fit(target)

    class Noting(Adaptive):
        def plan(self, rooms: Sequence[Room]) -> list[Budget]:
            planned.append(len(rooms[0].context))
            return super().plan(rooms)

    noting = Noting(drafter, Costs())
    noting._knowledge = asleep(drafter, rounds=60)._knowledge
    for _ in run(Session.on_new_rows(context_of(PASSAGE[:5], room=90), target, drafter, noting, checked=True)):
        pass
    rests = [after - before for before, after in pairwise(planned) if before < 60]
    assert sum(rests[:3]) >= 58, planned


def test_without_it_the_planner_sleeps_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Suffix, "sure", lambda drafter, state: False)
    with pytest.raises((AssertionError, StopIteration)):
        test_a_long_copy_wakes_the_planner_soon_and_for_all_texts_together(1)


def test_what_was_woken_for_nothing_sleeps_its_time() -> None:
    back = BackOff()
    back.judge(-1.0, 0.01)
    assert back.left == 100
    assert back.wake()
    assert not back.active
    back.judge(-0.5, 0.01)
    assert back.active
    assert not back.wake(), "it brought nothing"
    back.passed(back.left)
    back.judge(1.0, 0.01)
    assert back.wake()
    for _ in range(5):
        back.judge(5.0, 0.01)
    for _ in range(60):
        back.judge(-0.4, 0.01)
        if back.active:
            break
    assert back.active
    assert back.wake(), "it was left out because the copy was over"


def test_a_text_that_asks_after_the_others_were_woken_wakes_too() -> None:
    """One that was left out of a round counts down behind the others."""
    planner, first, later = asleep(Suffix()), context_of([1]), context_of([2])
    assert planner.wake([Resting(later, False)]) == [False]
    assert planner.wake([Resting(first, True)]) == [True]
    assert planner.wake([Resting(later, False)]) == [True]


def test_planners_that_never_rest_need_no_waking() -> None:
    context = context_of([1])
    assert Planner().wake([Resting(context, True)]) == [False]
    hidden = context_of([2])
    hidden.foreseeable = False
    planner = asleep(Suffix())
    assert planner.wake([Resting(hidden, False), Resting(context, True)]) == [False, True]


def test_the_union_is_sure_where_a_part_is() -> None:
    text = [*PASSAGE, 7, *PASSAGE[:20]]
    for union in (Union([Guessing([1]), Suffix()]), make_drafter("auto"), Fallback([Lookup(), Suffix()])):
        assert union.may_be_sure
        state = union.open(context_of(text))
        assert union.sure(state)
        assert not union.sure(union.open(context_of(PASSAGE)))
    assert not Union([Guessing([1]), Lookup()]).may_be_sure


def test_a_sure_part_drafts_more_than_its_own_size_within_the_budget() -> None:
    auto = make_drafter("auto")
    auto.fit(tabled())
    state = auto.open(context_of([*PASSAGE, 7, *PASSAGE[:20]]))
    [tree] = auto.propose([Ask(state, Budget(40, 40))])
    assert 16 < tree.depth <= 40
    as_plain(tabled(), PROMPT, make_drafter("auto"), nodes=20, max_new_tokens=30)
