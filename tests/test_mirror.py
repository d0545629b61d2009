"""A draft model in a process of its own: what it drafts ahead, what is said, and a text without it."""

from __future__ import annotations

import gc
import json
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from batches import Wish
from clock import comes_true
from drafting import context_of
from engine import SIZE, habitual
from paceline.api.model import LanguageModel
from paceline.api.settings import Settings
from paceline.api.writing import Generation
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, make_drafter
from paceline.drafters.networks.assistant import Assistant, DraftModel
from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.mirror import drafter as drafter_module
from paceline.drafters.networks.mirror import place as place_module
from paceline.drafters.networks.mirror import process as process_module
from paceline.drafters.networks.mirror.drafter import Mirror, MirrorState
from paceline.drafters.networks.mirror.messages import Ahead, Forward, Go, Mangled, Message, MessageKind, Said, Window
from paceline.drafters.networks.mirror.place import DraftPlace, spot, usable_cores
from paceline.drafters.networks.mirror.process import DraftProcess
from paceline.drafters.networks.mirror.proxies import Outcomes, outcomes
from paceline.drafters.networks.mirror.rollout import Rollout
from paceline.drafters.networks.mirror.worker import Worker, WorkerAssistant, facts_of
from paceline.drafters.networks.network import IN_PASSING
from paceline.drafters.sharing import Shared
from paceline.engine.counters import Round
from paceline.engine.serial import run
from paceline.errors import DrafterWarning, InputError
from paceline.law import Outlook, Sampling
from paceline.planning.base import Planner, Room
from paceline.targets.base import Reach, Request
from paceline.targets.lending import KeptRows
from paceline.targets.scores import Scores
from paceline.targets.table import TableTarget
from paceline.tree import ROOT, DraftTree
from paceline.verify import Verdict
from paceline_lab import Waiting
from thinning import thinned

PROMPT = "The old house stood at the end of"
DRAFT, FOREIGN = "pocket-draft", "pocket-foreign"
ALWAYS = "mirror:overlap=always"
"""Here drafts are overlapped, whatever is faster; `test_mirror_ways` has the choice."""
TREE = DraftTree.build([3, 4, 5], [ROOT, 0, 1], source="mirror", scores=[-0.1, -0.5, -1.0])


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """However busy the machine, a draft is waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafter_module, "WAIT", 120.0)
        patch.setattr(place_module, "SAYING", 60.0)
        yield


@pytest.fixture(scope="module", autouse=True)
def one_process(lm: LanguageModel) -> Iterator[None]:
    """The draft model's process is kept between tests, as a server keeps it between texts."""
    threads, kept = torch.get_num_threads(), make_drafter(ALWAYS, DRAFT)
    kept.fit(lm.target, lm.vocabulary)
    yield
    kept.dispose()
    del kept
    gc.collect()
    assert torch.get_num_threads() == threads, "its cores are given back"


def written(lm: LanguageModel, method: str, count: int = 40, draft: str = DRAFT, **how: Any) -> Generation:
    settings = {"temperature": 0.8, "seed": 5, "planner": "fixed:7", **how}
    model = None if method == "plain" else draft
    method = (
        method if ":paper" in method else re.sub("mirror(?:(:)|$)", lambda m: f"{ALWAYS}{',' if m[1] else ''}", method)
    )
    lm.forget()
    return lm.generate(PROMPT, method=method, draft_model=model, max_new_tokens=count, **settings)


# --- what is drafted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", thinned([0.8, 0.0]))
def test_it_drafts_what_its_serial_twin_drafts(lm: LanguageModel, temperature: float) -> None:
    """Ahead or anew, a window is that of the same draft model asked in turns."""
    twin = written(lm, "assistant:length=7", temperature=temperature)
    for method in ("mirror", "mirror:branches=full", "mirror:kappa=1,branches=2", "mirror:exit=0.25"):
        ours = written(lm, method, temperature=temperature)
        assert ours.tokens == twin.tokens
        assert [(r.drafted, r.accepted) for r in ours.rounds] == [(r.drafted, r.accepted) for r in twin.rounds]


@pytest.fixture
def foreign_process(lm: LanguageModel) -> Iterator[None]:
    kept = make_drafter(ALWAYS, FOREIGN)
    kept.fit(lm.target, lm.vocabulary)
    yield
    kept.dispose()
    del kept
    gc.collect()


@pytest.mark.slow
def test_a_draft_model_of_another_tokenizer_drafts_as_its_serial_twin(lm: LanguageModel, foreign_process: None) -> None:
    for translate, how in (
        ("", {"temperature": 0.0}),
        (",translate=context", {"temperature": 0.8}),
        ("", {"rule": "rejection"}),
    ):
        twin = written(lm, f"assistant:length=7{translate}", 24, draft=FOREIGN, **how)
        for method in ("mirror:branches=full", "mirror:gamma=7"):
            ours = written(lm, method + translate, 24, draft=FOREIGN, **how)
            assert ours.tokens == twin.tokens
            assert [(r.drafted, r.accepted) for r in ours.rounds] == [(r.drafted, r.accepted) for r in twin.rounds]
        assert twin.totals.drafted > 50


@pytest.mark.slow
def test_translated_drafts_are_there_when_a_slow_target_has_decided(lm: LanguageModel, foreign_process: None) -> None:
    slow = LanguageModel(Waiting(lm.target, 0.3), lm.vocabulary)
    twin = written(lm, "assistant:length=4", 16, draft=FOREIGN)
    ours = written(slow, "mirror:gamma=4,branches=24", 16, draft=FOREIGN, planner="fixed:4")
    assert ours.tokens == twin.tokens
    assert sum(r.counts["levels_ahead"] for r in ours.rounds) > 4
    assert sum(r.counts["drafts_anew"] for r in ours.rounds) < len(ours.rounds)


def test_settings_may_be_numpys(lm: LanguageModel) -> None:
    how: dict[str, Any] = {"temperature": np.float32(0.8), "top_k": np.int64(40)}
    found = written(lm, "mirror", 20, **how)
    assert found.totals.drafted > 0
    assert found.tokens == written(lm, "plain", 20, **how).tokens


@pytest.mark.parametrize("limit", ["tokens", "room", "trees"])
def test_outcomes_that_the_draft_model_cannot_read_are_left_out(limit: str) -> None:
    model = TableTarget(habitual(memory=1), SIZE)
    text = Context([1, 2, 3, 4, 5], Sampling(), Ending(max_new_tokens=50))
    if limit == "room":
        model.context_length = 7
    if limit == "trees":
        model.reach = lambda length: Reach(trees=False)  # type: ignore[method-assign]
    rollout = Rollout(Assistant(model=model, length=2), text, "mirror")
    tokens, parents = np.array([1, 2, 3]), np.array([-1, 0, 1])
    proxies = np.array([SIZE + 5 if limit == "tokens" else 4, 4, 4])
    rollout.ahead(Ahead(2, tokens, parents, np.array([2, -1, 0]), proxies))
    request = rollout._text.request(rollout.live)
    assert max(request.tokens.tolist()) < SIZE
    paths = [each.tokens for each in rollout._outcomes]
    assert paths == {"tokens": [(4,), (1, 4)], "room": [(4,), (1, 4)], "trees": [(1, 2, 3, 4)]}[limit]


def test_a_text_that_has_gone_on_far_is_not_read_amid_a_window() -> None:
    """Its rows would take the places of the window's."""
    text = Context([1, 2, 3, 4, 5] * 3, Sampling(), Ending(max_new_tokens=50))
    assistant = Assistant(model=TableTarget(habitual(memory=1), SIZE), length=4)
    rollout = Rollout(assistant, text, "mirror")
    rollout.ahead(Ahead(4, np.arange(1, 6), np.arange(-1, 4), np.array([4]), np.array([2])))
    assistant.network.add_level(rollout.live)
    rollout.go([1, 2, 3, 4, 5, 2], 4)
    while live := rollout.live:
        assert assistant.network.read_pieces([rollout._text]) == []
        assistant.network.add_level(live)
    found = rollout.window()
    assert found is not None
    (alone,) = assistant.propose([Ask(assistant.open(text), Budget(4, 4))])
    assert found[1].tree.tokens.tolist() == alone.tokens.tolist()
    assert found[1].ready == 1


class Branching(WorkerAssistant):
    """It drafts as one with another tokenizer does: behind a copy of the text for each outcome."""

    translates = True


@pytest.mark.parametrize("kind", [WorkerAssistant, Branching])
def test_rows_of_the_last_texts_are_kept_for_all_settings(kind: type[WorkerAssistant]) -> None:
    """Outcomes that a text did not come to take no place among them."""
    model = TableTarget(habitual(memory=1), SIZE)
    kept = KeptRows(model.open, model.look, 2, copies_lent=True)
    prompts = [[1, 2, 3, 4, 5] * 6, [5, 4, 3] * 10]

    def opened(prompt: Sequence[int], top: int) -> Rollout:
        assistant = kind(kept, model=model, length=4, top=top)
        return Rollout(assistant, Context(prompt, Sampling(), Ending(max_new_tokens=50)), "mirror")

    def grow(rollout: Rollout) -> None:
        network = rollout._assistant.network
        while live := rollout.live:
            if not network.read_pieces(list({growth.state: None for growth in live})):
                network.add_level(live)

    for prompt in prompts:
        rollout = opened(prompt, 1)
        rollout.ahead(Ahead(4, np.arange(1, 4), np.arange(-1, 2), np.array([2, 1, 0]), np.array([4, 5, 5])))
        grow(rollout)
        rollout.go([1, 2, 3, 4], 4)
        grow(rollout)
        assert rollout.window() is not None
        rollout.end()
    assert len(kept) == 2
    begun = [opened(prompt, 2)._text.rows.committed for prompt in prompts]
    assert min(begun) >= len(prompts[0]) - IN_PASSING, "the last tokens were read with the draft"


def test_a_worker_has_one_store_of_rows() -> None:
    model = TableTarget(habitual(memory=1), SIZE)
    worker = Worker(None, queue.SimpleQueue(), DraftModel.of(model))  # type: ignore[arg-type]
    text = Context([1, 2, 3], Sampling(), Ending(max_new_tokens=50))
    shapes = [DraftShape(top=top, length=4) for top in (1, 2, 1)]
    facts = [facts_of(text, SIZE, shape, "mirror") | {"prompt": [1, 2, 3]} for shape in shapes]
    made = [worker._opened(said)[0] for said in facts]
    assert len({id(rollout._assistant) for rollout in made}) == 2
    assert {id(rollout._assistant._rows) for rollout in made} == {id(worker._rows)}


def test_waiting_for_one_process_delays_no_other() -> None:
    shared, silent, made = Shared[Context](), threading.Event(), list[str]()

    def make(name: str) -> Context:
        made.append(name)
        if name == "silent":
            assert silent.wait(60), "the other one was begun meanwhile"
        return context_of([1])

    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(shared.get, "silent", partial(make, "silent")) for _ in range(2)]
        while not made:
            time.sleep(0.001)
        other = shared.get("other", partial(make, "other"))
        assert not any(each.done() for each in waiting)
        silent.set()
        assert waiting[0].result() is waiting[1].result() is not other
    assert made == ["silent", "other"]


def test_a_word_that_was_interrupted_ends_the_process(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the draft model would look for the rest of it in the next one."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    process = DraftProcess(DraftPlace(DRAFT, "float32", None, *spot(None)))
    try:
        monkeypatch.setattr(process_module, "_say", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.tell(MessageKind.GO, 1, 1, {})
        assert process.lost == "a word to it was left unfinished"
    finally:
        process.close()


def test_texts_of_both_tokenizers_share_a_process(lm: LanguageModel) -> None:
    """A long prompt is read in pieces, and texts that come and go leave no rows."""
    prompts = [PROMPT * 30, "Once upon a time", "Kraków jest", "Київ"]
    how: dict[str, Any] = {"temperature": 0.8, "seed": 2, "max_new_tokens": 24}
    plain = lm.generate_batch(prompts, method="plain", **how)
    found = lm.generate_batch(prompts, method=f"{ALWAYS},gamma=3,translate=lattice", draft_model=DRAFT, **how)
    assert [one.tokens for (one,) in found] == [one.tokens for (one,) in plain]
    own = lm.generate_batch(prompts, method=f"{ALWAYS},gamma=3", draft_model=DRAFT, **how)
    assert [one.tokens for (one,) in own] == [one.tokens for (one,) in plain]


def test_drafts_that_begin_anew_may_be_shorter(lm: LanguageModel) -> None:
    ours = written(lm, "mirror:anew=2,branches=full")
    assert ours.tokens == written(lm, "plain").tokens
    rounds = [each for each in ours.rounds if each.drafted and each.position < 40]  # none is cut by the end of the text
    assert {each.drafted for each in rounds if each.counts["drafts_anew"]} == {2}
    assert {each.drafted for each in rounds if not each.counts["drafts_anew"]} == {7}


def test_windows_are_there_when_the_target_has_decided(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """If its later layers take long enough: on a busy machine those of `pocket` may be over first."""
    early = Mirror.on_early

    def rounds_with(pause: float) -> list[Round]:
        def then_paused(mirror: Mirror, state: MirrorState, tree: DraftTree, logits: torch.Tensor) -> None:
            early(mirror, state, tree, logits)
            time.sleep(pause)

        monkeypatch.setattr(Mirror, "on_early", then_paused)
        return [each for each in written(lm, "mirror:branches=full").rounds if each.drafted]

    for pause in (0.0, 0.05, 0.2, 0.8):
        rounds = rounds_with(pause)
        assert all(each.counts["bytes_exchanged"] > 0 for each in rounds)
        if sum(each.counts["levels_ahead"] > 0 for each in rounds) > len(rounds) / 3:
            break
    else:
        pytest.fail("no windows are there, however long the target takes")
    assert sum(each.counts["drafts_anew"] for each in rounds) < len(rounds)


def test_the_text_is_plain_decodings_in_batches_and_with_others(lm: LanguageModel) -> None:
    prompts = [PROMPT, "Once upon a time", "Kraków jest", "Київ"]
    how: dict[str, Any] = {"temperature": 0.8, "seed": 2, "max_new_tokens": 24}
    plain = lm.generate_batch(prompts, method="plain", **how)
    for method in (ALWAYS, f"{ALWAYS}+suffix", f"{ALWAYS},top=3,gamma=4"):
        found = lm.generate_batch(prompts, method=method, draft_model=DRAFT, **how)
        assert [one.tokens for (one,) in found] == [one.tokens for (one,) in plain]


@pytest.mark.slow
def test_under_rejection_drafts_are_taken_as_they_are(lm: LanguageModel) -> None:
    """They have no law, so the text is the one without drafts, whatever was drafted when."""
    how: dict[str, Any] = {"rule": "rejection", "temperature": 0.8, "planner": "fixed:4"}
    plain = written(lm, "plain", 60, **how)
    for method in ("mirror", "mirror:branches=full,top=2"):
        found = written(lm, method, 60, **how)
        assert found.tokens == plain.tokens
        assert found.totals.accepted > 5


@pytest.mark.slow
def test_a_text_in_bias_and_bans_is_drafted_like_that(lm: LanguageModel) -> None:
    how: dict[str, Any] = {"logit_bias": {300: 2.0}, "repetition_penalty": 1.2, "top_k": 40, "seed": 8}
    twin = written(lm, "assistant:length=7", **how)
    ours = written(lm, "mirror", **how)
    assert [(r.drafted, r.accepted) for r in ours.rounds] == [(r.drafted, r.accepted) for r in twin.rounds]


# --- outcomes ------------------------------------------------------------------------------------------------


def early_rows(count: int = 4) -> torch.Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(1)) * 2


@pytest.mark.parametrize("shared", [False, True])
def test_outcomes_are_disjoint_and_likeliest_first(shared: bool) -> None:
    context = context_of([1, 2], temperature=0.7, seed=3)
    outlook = Outlook(context.sampling, 2)
    found = outcomes(early_rows(), TREE, context, outlook, kappa=SIZE, shared=shared)
    pairs = list(zip(found.stops.tolist(), found.proxies.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert not {(ROOT, 3), (0, 4), (1, 5)} & set(pairs), "a token that is in flight is no end of the walk"
    assert (np.diff(found.chances) <= 0).all()
    assert found.chances.sum() == pytest.approx(1, abs=1e-4), "with all tokens as proxies nothing else can come"


def test_more_proxies_only_add_outcomes() -> None:
    context = context_of([1, 2], temperature=0.7, seed=3)
    known: set[tuple[int, int]] = set()
    for kappa in range(1, SIZE + 1):
        found = outcomes(early_rows(), TREE, context, Outlook(context.sampling, 2), kappa=kappa, shared=True)
        now = set(zip(found.stops.tolist(), found.proxies.tolist(), strict=True))
        assert known <= now
        known = now


@pytest.mark.slow
def test_the_overlap_mass_is_the_targets_own_probability(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    found, overlap = list[float](), drafter_module.overlap_mass

    def checked(state: MirrorState, verdict: Verdict, scores: Scores, foreseen: Outcomes) -> float:
        stop = verdict.path[-1] if verdict.path else ROOT
        chances = (scores.row(stop).double() / 0.8).softmax(-1)
        mass = float(chances[foreseen.proxies[foreseen.stops == stop]].sum())
        found.append(overlap(state, verdict, scores, foreseen))
        assert found[-1] == pytest.approx(mass, abs=0.02), "negligible tokens are left out of the law"
        return found[-1]

    monkeypatch.setattr(drafter_module, "overlap_mass", checked)
    totals = written(lm, "mirror:branches=full").totals
    assert totals.counts["rounds_foreseen"] == len(found) > 3
    assert totals.counts["overlap_mass"] == pytest.approx(sum(found))
    few = written(lm, "mirror:kappa=1,branches=1").totals
    assert few.counts["rounds_foreseen"] > 3
    narrow, wide = (one.counts["overlap_mass"] / one.counts["rounds_foreseen"] for one in (few, totals))
    assert max(0.1, narrow) < wide <= 1
    assert written(lm, "assistant:length=7").totals.counts["rounds_foreseen"] == 0


@pytest.mark.slow
def test_sampled_texts_come_to_what_was_foreseen_as_often_as_the_overlap_mass_says(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the rejection rule no noise chooses the outcomes. A penalty makes the law that of the right text.

    By default the test above compares the mass with the target's own rows.
    """
    came, overlap = list[bool](), drafter_module.overlap_mass

    def noted(state: MirrorState, verdict: Verdict, scores: Scores, foreseen: Outcomes) -> float:
        stop = verdict.path[-1] if verdict.path else ROOT
        came.append((stop, verdict.tokens[-1]) in zip(foreseen.stops.tolist(), foreseen.proxies.tolist(), strict=True))
        return overlap(state, verdict, scores, foreseen)

    monkeypatch.setattr(drafter_module, "overlap_mass", noted)
    mass, rounds = 0.0, 0
    for seed in range(6):
        how = {"rule": "rejection", "temperature": 1.0, "repetition_penalty": 1.3, "seed": seed, "planner": "fixed:2"}
        found = written(lm, "mirror:gamma=2,branches=8", 40, **how).totals
        mass, rounds = mass + found.counts["overlap_mass"], rounds + found.counts["rounds_foreseen"]
    assert rounds == len(came) > 100
    deviation = (rounds * 0.25) ** 0.5
    assert abs(sum(came) - mass) < 4 * deviation
    assert 0.1 < mass / rounds < 0.9


# --- what is said --------------------------------------------------------------------------------------------

SAYINGS: list[tuple[MessageKind, Said]] = [
    (MessageKind.AHEAD, Ahead(7, TREE.tokens, TREE.parents, np.array([ROOT, 2]), np.array([5, 6])).said()),
    (MessageKind.GO, Go(7, np.array([1, 2])).said()),
    (MessageKind.WINDOW, Window(TREE, 2, 3, 9).said()),
    (MessageKind.FORWARD, Forward(0.01, 8).said()),
]


def read(message: Message) -> Any:
    match message.kind:
        case MessageKind.AHEAD:
            return Ahead.of(message.said, SIZE + 1)
        case MessageKind.GO:
            return Go.of(message.said, SIZE + 1)
        case MessageKind.WINDOW:
            return Window.of(message.said, SIZE + 1, 8, "mirror")
        case _:
            return Forward.of(message.said)


def test_what_is_said_is_what_is_heard() -> None:
    heard = [Message.of(Message(kind, 3, 40, said).packed()) for kind, said in SAYINGS]
    assert heard == [Message(kind, 3, 40, said) for kind, said in SAYINGS]
    window = read(heard[2])
    assert window.tree.tokens.tolist() == [3, 4, 5]
    assert window.tree.scores.tolist() == TREE.scores.tolist()
    assert (window.ready, window.forwards, window.drafted) == (2, 3, 9)
    assert read(heard[0]).stops.tolist() == [ROOT, 2]


def lied(said: Said, coins: random.Random) -> Said:
    """One thing is of another kind, size or worth, or is missing."""
    name = coins.choice(list(said))
    whole = said[name] if isinstance(said[name], list) else [said[name]]
    lies: list[Any] = [
        *(None, "7", [], {}, [[1]], ["a"], [None], -2, 1 << 40, 10**30, float("inf"), float("nan"), 0.5),
        *(whole[:-1], [*whole, 1], [-3, *whole[1:]], [1 << 40, *whole[1:]], [float("nan"), *whole[1:]], whole[::-1]),
    ]
    lie = coins.choice(lies)
    return {key: value for key, value in said.items() if key != name} | ({} if lie is None else {name: lie})


def test_what_makes_no_sense_is_refused() -> None:
    """The other side may lie. What is taken is a tree of known tokens in order."""
    coins, refused = random.Random(1), 0
    for number in range(4000):
        kind, said = SAYINGS[number % 4]
        packed = json.dumps([kind, 3, 40, dict(lied(said, coins))]).encode()
        if coins.random() < 0.2:
            packed = packed[: coins.randrange(len(packed))]
        try:
            found = read(Message.of(packed))
        except Mangled:
            refused += 1
            continue
        if isinstance(found, Window):
            tree = found.tree
            assert len(tree) <= 8
            assert all(0 <= token <= SIZE for token in tree.tokens)
            assert all(ROOT <= parent < node for node, parent in enumerate(tree.parents))
            assert (tree.scores <= 0).all()
            assert not tree.drawn
    assert refused > 2500


@pytest.mark.parametrize("raw", [b"", b"7", b"[]", b'["window", 1, 2]', b'["word", 1, 2, {}]', b'["go", "1", 2, {}]'])
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(Mangled):
        Message.of(raw)


# --- without it ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_next_text_of_a_drafter_has_a_new_process(lm: LanguageModel, foreign_process: None) -> None:
    """Which knows the target's tokenizer, too. By default `test_mirror_faults` begins lost processes again."""
    drafter: Any = make_drafter(f"{ALWAYS},gamma=4", FOREIGN)
    lm.generate(PROMPT, method=drafter, max_new_tokens=4)
    os.kill(drafter.process.pid, signal.SIGKILL)
    assert comes_true(lambda: drafter.process.lost)
    with pytest.warns(DrafterWarning, match="and is begun again; drafts come once it is there"):
        lm.generate(PROMPT, method=drafter, max_new_tokens=20)
    assert comes_true(lambda: not drafter._begins, 1200)
    text = lm.generate(PROMPT, method=drafter, planner="fixed", max_new_tokens=20)
    assert text.totals.drafted > 0


def children() -> list[str]:
    """The processes that drafters of this one have begun."""
    found = subprocess.run(
        ["ps", "-ww", "-o", "args", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    )
    return [line for line in found.stdout.splitlines() if "mirror.worker" in line]


def test_a_text_leaves_the_draft_models_cores_free(lm: LanguageModel) -> None:
    had, seen = torch.get_num_threads(), list[int]()
    torch.set_num_threads(2)
    try:
        drafter = make_drafter(ALWAYS, DRAFT)
        for piece in lm.stream(PROMPT, method=drafter, planner="fixed:7", max_new_tokens=30, temperature=0.8):
            assert piece is not None
            seen.append(torch.get_num_threads())
        cores = len(usable_cores())
        assert set(seen[1:-1]) == {max(1, min(2, cores - 1))}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(had)


def test_other_threads_keep_theirs_and_a_text_may_change_its_thread(lm: LanguageModel) -> None:
    def threads() -> int:
        return ThreadPoolExecutor(1).submit(torch.get_num_threads).result()

    had, fewer = torch.get_num_threads(), max(1, min(2, len(usable_cores()) - 1))
    torch.set_num_threads(2)
    drafter = drafter_module.Mirror(model=DRAFT, overlap="always")
    drafter.fit(lm.target, lm.vocabulary)
    try:
        state = drafter.open(context_of([1, 2, 3]))
        drafter.propose([Ask(state, Budget(7, 7))])
        assert torch.get_num_threads() == fewer
        assert threads() == 2, "a thread that begins meanwhile has all"
        with ThreadPoolExecutor(1) as other:
            other.submit(drafter.propose, [Ask(state, Budget(7, 7))]).result()
            assert other.submit(torch.get_num_threads).result() == fewer
            other.submit(drafter.close, state).result()
            assert other.submit(torch.get_num_threads).result() == 2
        drafter.close(drafter.open(context_of([1, 2, 3])))
        drafter.propose([Ask(last := drafter.open(context_of([1, 2, 3])), Budget(7, 7))])
        drafter.close(last)
        assert torch.get_num_threads() == 2, "from its next text on"
    finally:
        torch.set_num_threads(had)


class FirstHalf(Planner):
    """Asks for drafts in the first rounds alone; the drafter is shown every round."""

    def __init__(self) -> None:
        self.rounds = 0

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        self.rounds += 1
        return [Budget(7, 7) if self.rounds <= 4 else Budget(0, 0, "it rests")] * len(rooms)


def test_while_no_draft_is_asked_for_the_draft_model_rests_and_the_text_has_all_cores(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, threads = list[tuple[int, MessageKind]](), list[int]()
    planner, tell, submit = FirstHalf(), DraftProcess.tell, lm.target.submit

    def noting(self: DraftProcess, kind: MessageKind, text: int, place: int, said: Said) -> int:
        told.append((planner.rounds, kind))
        return tell(self, kind, text, place, said)

    def counting(requests: Sequence[Request]) -> Any:
        threads.append(torch.get_num_threads())
        return submit(requests)

    monkeypatch.setattr(DraftProcess, "tell", noting)
    monkeypatch.setattr(lm.target, "submit", counting)
    drafter = make_drafter(ALWAYS, DRAFT)
    drafter.fit(lm.target, lm.vocabulary)
    had = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        wish = Wish(list(range(300, 312)), ending={"max_new_tokens": 40})
        list(run(wish.session(lm.target, drafter, planner)))
    finally:
        torch.set_num_threads(had)
    assert planner.rounds > 10
    assert {number for number, _ in told} == {1, 2, 3, 4}
    assert {kind for _, kind in told} == {MessageKind.GO, MessageKind.AHEAD}
    fewer = max(1, min(2, len(usable_cores()) - 1))
    assert threads[0] == 2, "of the prompt"
    assert set(threads[1:6]) == {fewer}
    assert set(threads[6:]) == {2}, "from the end of the first round without a draft on"


def test_drafters_share_a_process_and_the_last_one_ends_it(lm: LanguageModel) -> None:
    one, two = (make_drafter(f"{ALWAYS},gamma={gamma}", DRAFT) for gamma in (3, 5))
    for each in (one, two):
        each.fit(lm.target, lm.vocabulary)
    assert len(children()) == 1, "that of all tests"


PARENT = """
import sys, time, paceline
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, make_drafter
lm = paceline.load("pocket", dtype="float32", generation_config=False)
drafter = make_drafter("mirror:overlap=always", "pocket-draft")
drafter.fit(lm.target, lm.vocabulary)
print(drafter.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("stopped", thinned([True, False]))
def test_a_killed_program_leaves_no_process(stopped: bool) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if stopped:
            os.kill(child, signal.SIGSTOP)
    finally:
        parent.kill()
        parent.communicate(timeout=60)
    assert comes_true(lambda: not alive(child))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("mirror:gamma=0", "'gamma' of method 'mirror' is at least 1"),
        ("mirror:kappa=0", "'kappa' of method 'mirror' is at least 1"),
        ("mirror:anew=0", "'anew' of method 'mirror' is at least 1"),
        ("mirror:exit=0", "'exit' of method 'mirror' is a depth between 0 and 1, not 0"),
        ("mirror:exit=1", "'exit' of method 'mirror' is a depth between 0 and 1, not 1"),
        ("mirror:branches=some", "branches=best, branches=full or a number from 1 on, not 'some'"),
        ("mirror:noise=loud", "noise=shared or noise=none"),
        ("mirror:draft=streaming,translate=lattice", "drafts in the target's tokens; leave translate=lattice out"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_drafter(spec, DRAFT)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("", "'' is no place to draft; write cores as 1 or 2-3, or a device as cuda:1"),
        ("over there", "'over there' is no place to draft"),
        ("127.0.0.1:7777", "'127.0.0.1:7777' is no place to draft"),
        ("-1", "'-1' is no place to draft"),
        ("1-", "'1-' is no place to draft"),
        ("²", "'²' is no place to draft"),
        ("0,1", "'0,1' is no place to draft"),
        (",".join(map(str, range(9999))), "'0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16' and so on is no place to draft"),
        ("9" * 9999, "' and so on is no place to draft"),
        ("4096", "there is no core 4096 for the draft model; this process may use 0"),
        ("0-9999999999", "for the draft model; this process may use 0"),
        ("7-2", "'7-2' names no core for the draft model; write the lower number first: 2-7"),
        ("cuda:999", "there is no device cuda:999 for the draft model; torch sees"),
        ("cuda:256", "there is no device cuda:256 for the draft model; torch sees"),
        ("cuda:-1", "'cuda:-1' is no place to draft"),
        (1, "a place to draft is a text such as '2-3' or 'cuda:1', not 1"),
    ],
)
def test_a_place_that_is_not_there_is_one_sentence(device: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is loaded, and however many cores are named."""
    monkeypatch.setattr(place_module, "usable_cores", lambda: [0, 1])
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        Settings(method="mirror", draft_model=DRAFT, draft_device=device).drafter  # noqa: B018
    assert len(str(caught.value)) < 200


@pytest.mark.slow
def test_models_and_places_that_do_not_serve_are_one_sentence(lm: LanguageModel, tmp_path: Path) -> None:
    def refused(said: str, model: Any = DRAFT, **options: Any) -> None:
        with pytest.raises(InputError, match=said):
            drafter_module.Mirror(model=model, **options).fit(lm.target, lm.vocabulary)

    refused("loaded by a separate process; give its name or folder", lm)
    with pytest.raises(InputError, match="mirror cannot translate the drafts of pocket-foreign"):
        drafter_module.Mirror(model=FOREIGN).fit(lm.target)
    refused("mirror translates by lattice, context or naive, not tli", FOREIGN, translate="tli")
    refused("nothing", str(tmp_path / "nothing"))
    refused("is layer 0 of 8, which leaves nothing to overlap", exit=0.05)
    with pytest.raises(InputError, match="method 'mirror' needs a draft model"):
        make_drafter("mirror")
    table = TableTarget(habitual(), SIZE)
    with pytest.raises(InputError):
        drafter_module.Mirror(model=DRAFT, overlap="always").fit(table)


def test_an_abandoned_text_waits_for_nobody(lm: LanguageModel) -> None:
    """It is closed in a finalizer, which may run in the middle of a message that this very thread sends."""
    drafter = drafter_module.Mirror(model=DRAFT, overlap="always")
    drafter.fit(lm.target, lm.vocabulary)
    assert drafter.process is not None
    states = [drafter.open(context_of([1, 2, 3])) for _ in range(2)]
    drafter.propose([Ask(state, Budget(7, 7)) for state in states])
    assert states[0].remote is not None
    number = states[0].remote.number
    assert isinstance(drafter.process, DraftProcess)
    with drafter.process._sending.held():
        drafter.close(states[0])
    drafter.close(states[1])
    assert isinstance(drafter.process, DraftProcess)
    inbox = drafter.process._inbox
    assert not inbox.texts
    assert not inbox.windows
    inbox.take(Message(MessageKind.WINDOW, number, 3), 9)
    assert not inbox.windows, "what comes too late is dropped"


def test_a_default_timeout_of_sockets_is_not_the_pipes() -> None:
    ours, theirs = Pipe()
    socket.setdefaulttimeout(5.0)
    try:
        place_module._bound(ours)
    finally:
        socket.setdefaulttimeout(None)
    with ours, theirs:
        assert os.get_blocking(ours.fileno())


def test_numbers_of_numpy_are_numbers() -> None:
    said = {"room": np.int64(20), "confidence": np.float32(0.5)}
    assert Message.of(Message(MessageKind.OPEN, said=said).packed()).said == {"room": 20, "confidence": 0.5}


def test_a_pipe_that_is_closed_is_the_end() -> None:
    for said, why in ((b"", "it is gone"), (b"nonsense", "a message cannot be read")):
        ours, theirs = Pipe()
        inbox = process_module._Inbox()
        if said:
            theirs.send_bytes(said)
        theirs.close()
        with ours:
            process_module._read(ours, inbox)
        assert inbox.lost.startswith(why)
