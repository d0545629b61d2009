"""Texts whose forward is somebody else's: a host in a few lines, and plans that are those of every other driver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import PROMPT, habitual, tabled, write_slowly
from paceline.context import Context, Ending
from paceline.drafters import Budget, Drafter, make_drafter
from paceline.engine.batch import Batch
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.engine.served import Served, ServedRound, ServedText, best_chain
from paceline.errors import DrafterError
from paceline.integrations.vllm import Proposer
from paceline.law import Sampling
from paceline.planning.adaptive import Adaptive
from paceline.planning.base import Planner
from paceline.planning.costs import Costs
from paceline.planning.fixed import Fixed
from paceline.targets.base import Pending, Request
from paceline.targets.replay import ReplayTarget
from paceline.tree import ROOT, DraftTree
from test_vllm import SIZE, config

# --- a host --------------------------------------------------------------------------------------------------


class Host:
    """Writes texts with a model of its own. Of the drafts it takes what the model would have written."""

    def __init__(self, drafter: Drafter, planner: Planner, *, timed: bool = True) -> None:
        self.served = Served(drafter, planner, depth=4)
        self.timed = timed
        self.model = habitual()
        self.forwards = 0

    def write(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        contexts = [Context(prompt, Sampling(), Ending(max_new_tokens=tokens)) for prompt in prompts]
        texts = [self.served.open(context) for context in contexts]
        while writing := [text for text in texts if text.context.finish is None]:
            drafts = self.served.drafts(writing)
            self.forwards += 1
            news = [self.emit(text, draft) for text, draft in zip(writing, drafts, strict=True)]
            seconds = 0.01 + 0.0001 * sum(1 + len(draft) for draft in drafts)
            self.served.emitted(news, seconds if self.timed else 0.0)
        for text in texts:
            self.served.close(text)
        return [context.emitted.tolist() for context in contexts]

    def emit(self, text: ServedText, draft: DraftTree) -> ServedRound:
        """The accepted part of a chain, and one token more."""
        emitted = list[int]()
        for drafted in [*draft.tokens.tolist(), None]:
            emitted.append(int(np.argmax(self.model(tuple(text.context.tokens.tolist())))))
            if text.context.commit(emitted[-1]) or emitted[-1] != drafted:
                break
        return ServedRound(text, tuple(emitted))


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("method", ["lookup", "suffix", "lookup+suffix"])
def test_a_host_writes_its_own_texts_in_fewer_forwards(method: str, timed: bool) -> None:
    prompts, drafter = [PROMPT, PROMPT[2:], [1, 2]], make_drafter(method)
    host = Host(drafter, Adaptive(drafter, Costs()), timed=timed)
    found = host.write(prompts, 60)
    assert found == [write_slowly(tabled(), prompt, Sampling(), max_new_tokens=60).tokens for prompt in prompts]
    assert host.forwards < 50


# --- one planner for all hosts -------------------------------------------------------------------------------

LENGTH, FIRST, ROUNDS = 90, 24, 40


def seconds(rows: int) -> float:
    return 0.010 + 0.0004 * rows


class SlowReplay(ReplayTarget):
    """Its forwards take what `seconds` says."""

    def __init__(self, texts: Sequence[Sequence[int]], now: list[float]) -> None:
        super().__init__(texts, SIZE)
        self.now = now

    def submit(self, requests: Sequence[Request]) -> Pending:
        self.now[0] += seconds(sum(len(request.tokens) for request in requests))
        return super().submit(requests)


def slowed(drafter: Drafter, now: list[float]) -> Drafter:
    propose = drafter.propose

    def slowly(asks: Any) -> list[DraftTree]:
        now[0] += 0.0002
        return propose(asks)

    drafter.propose = slowly  # type: ignore[method-assign]
    return drafter


def texts_of(count: int) -> list[list[int]]:
    """They repeat themselves, mostly."""
    coins = np.random.default_rng(5)
    texts = np.tile(coins.integers(300, 600, (count, 8)), (1, 30))[:, : LENGTH - 1]
    wrong = coins.random(texts.shape) < 0.15
    texts[wrong] = coins.integers(600, 900, int(wrong.sum()))
    return texts.tolist()  # type: ignore[no-any-return]


def by_sessions(count: int, now: list[float], *, serial: bool) -> list[list[int]]:
    drafter, texts = slowed(make_drafter("lookup"), now), texts_of(count)
    target, planner = SlowReplay(texts, now), Adaptive(drafter, Costs())
    ending = Ending(max_new_tokens=LENGTH - FIRST)
    sessions = [
        Session.on_new_rows(Context(text[:FIRST], Sampling(), ending), target, drafter, planner) for text in texts
    ]
    if serial:
        list(run(sessions[0]))
    else:
        with Batch(target) as batch:
            for session in sessions:
                batch.join(session)
            while all(session.context.finish is None for session in sessions):
                batch.step()
    return [[record.rows - 1 for record in session.rounds] for session in sessions]


def accepted(text: Sequence[int], place: int, draft: Sequence[int]) -> list[int]:
    """What a host emits behind a place of the text."""
    count = 0
    while count < len(draft) and text[place + count] == draft[count]:
        count += 1
    return list(text[place : place + count + 1])


def by_host(count: int, now: list[float]) -> list[list[int]]:
    drafter, texts = slowed(make_drafter("lookup"), now), texts_of(count)
    served = Served(drafter, Adaptive(drafter, Costs()))
    ending = Ending(max_new_tokens=LENGTH - FIRST)
    open_texts = [served.open(Context(text[:FIRST], Sampling(), ending)) for text in texts]
    sent: list[list[int]] = [[] for _ in texts]
    while all(len(text.context) < LENGTH - 12 for text in open_texts):
        drafts, news = served.drafts(open_texts), list[ServedRound]()
        for number, (text, draft) in enumerate(zip(open_texts, drafts, strict=True)):
            sent[number].append(len(draft))
            new = accepted(texts[number], len(text.context), draft.tokens.tolist())
            for token in new:
                text.context.commit(token)
            news.append(ServedRound(text, tuple(new)))
        served.emitted(news, seconds(sum(1 + len(draft) for draft in drafts)))
    return sent


def by_vllm(count: int, now: list[float], place: Path) -> list[list[int]]:
    proposer, texts = Proposer(config(place, "lookup", k=10, rows=count, lengths="adaptive")), texts_of(count)
    slowed(proposer.drafter, now)
    tokens, lengths = np.zeros((count, LENGTH + 6), np.int32), np.full(count, FIRST)
    tokens[:, :FIRST] = [text[:FIRST] for text in texts]
    sampled = [[text[FIRST - 1]] for text in texts]
    sent: list[list[int]] = [[] for _ in texts]
    while max(lengths) < LENGTH - 12:
        drafts = proposer.propose(sampled, lengths, tokens)
        now[0] += seconds(sum(1 + len(draft) for draft in drafts))
        for row, draft in enumerate(drafts):
            sent[row].append(len(draft))
            sampled[row] = accepted(texts[row], int(lengths[row]), draft)
            tokens[row, lengths[row] : lengths[row] + len(sampled[row])] = sampled[row]
            lengths[row] += len(sampled[row])
    assert proposer._errors == 0
    return sent


@pytest.mark.parametrize("count", [1, 3])
def test_the_same_rounds_are_planned_alike_in_every_host(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    found = [by_sessions(count, now, serial=False), by_host(count, now), by_vllm(count, now, tmp_path)]
    if count == 1:
        found.append(by_sessions(count, now, serial=True))
    rounds = min(len(sent) for plans in found for sent in plans)
    plans = [[sent[:rounds] for sent in each] for each in found]
    assert all(each == plans[0] for each in plans), plans
    assert len({size for sent in plans[0] for size in sent}) > 2, "drafts of several sizes"


# --- shapes and failures -------------------------------------------------------------------------------------


def test_of_a_tree_a_host_of_chains_gets_the_path_that_brings_most() -> None:
    tree = DraftTree.build([1, 2, 3, 4], [ROOT, ROOT, 1, 2], scores=np.log([0.5, 0.45, 0.9, 0.9]))
    assert best_chain(tree).tokens.tolist() == [2, 3, 4]
    chain = DraftTree.chain([1, 2])
    assert best_chain(chain) is chain
    probed = DraftTree.build([1, 2], [ROOT, ROOT], scores=np.log([0.1, 0.9]), probes=[False, True])
    assert best_chain(probed).tokens.tolist() == [1]


def test_a_drafter_that_fails_is_heard_of_and_only_its_text_is_left_alone() -> None:
    class Picky(Drafter):
        def propose_one(self, state: Context, budget: Any) -> DraftTree:
            if state.tokens[0] == 2:
                raise RuntimeError("not this one")
            return DraftTree.chain([state.root])

        def close(self, state: Context) -> None:
            closed.append(state)

    failed, closed = list[Exception](), list[Context]()
    served = Served(Picky(), Fixed(1), failed=failed.append)
    texts = opened(served, 1, 2)
    for _ in range(2):
        assert [len(draft) for draft in served.drafts(texts)] == [1, 0]
    assert len(failed) == 1
    assert [text.off for text in texts] == [False, True]
    assert closed == [texts[1].context]
    for text in texts:
        served.close(text)
    assert closed == [texts[1].context, texts[0].context]
    with pytest.raises(Exception, match="not this one"):
        Served(Picky(), Fixed(1)).drafts([ServedText(texts[1].context, texts[1].context)])


def opened(served: Served, *firsts: int) -> list[ServedText]:
    return [served.open(Context([first], Sampling(), Ending(max_new_tokens=9))) for first in firsts]


class Given(Drafter):
    """Proposes one tree, of whatever depth."""

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree

    def propose_one(self, state: Context, budget: Any) -> DraftTree:
        return self.tree


def test_a_host_gets_no_draft_deeper_than_it_takes() -> None:
    class Deep(Fixed):
        def plan(self, rooms: Any) -> list[Budget]:
            return [Budget(9, 9) for _ in rooms]

    tree = DraftTree.build([1, 2, 3, 4], [ROOT, ROOT, 1, 2], scores=np.log([0.5, 0.45, 0.9, 0.9]))
    for depth, wanted in ((1, [1]), (2, [2, 3]), (3, [2, 3, 4])):
        served = Served(Given(tree), Deep(9), depth=depth)
        assert served.drafts(opened(served, 1))[0].tokens.tolist() == wanted


@pytest.mark.parametrize("tree", [DraftTree.chain([7, 50]), DraftTree.chain([7, -1])])
def test_a_draft_that_breaks_a_rule_is_a_failure(tree: DraftTree) -> None:
    served = Served(Given(tree), Fixed(9), vocab_size=50)
    with pytest.raises(DrafterError, match="no valid draft"):
        served.drafts(opened(served, 1))


def test_no_text_is_shown_a_round_twice() -> None:
    class Forgetful(Drafter):
        observes = True

        def propose_one(self, state: Context, budget: Any) -> DraftTree:
            return DraftTree.chain([3])

        def observe(self, seen: Sequence[Any]) -> None:
            for one in seen:
                if one.state.tokens[0] == 2:
                    raise RuntimeError("not this one")
                shown.append((int(one.state.tokens[0]), len(one.state)))

    failed, shown = list[Exception](), list[tuple[int, int]]()
    served = Served(Forgetful(), Fixed(1), failed=failed.append)
    texts = opened(served, 1, 2, 4)
    for _ in range(4):
        served.drafts(texts)
        for text in texts:
            text.context.commit(3)
        served.emitted([ServedRound(text, (3,)) for text in texts])
    assert len(shown) == len(set(shown))
    assert {place for first, place in shown if first == 4} >= {3, 4, 5}, "all behind the failure"
    assert [text.off for text in texts] == [False, True, False]
    assert len(failed) == 2
