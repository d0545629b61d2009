"""What a round sends to the device, makes there and waits for, counted on a stand-in for one."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from elsewhere import NAME, AsOnADevice, Away, Crossings, sent_away
from engine import write
from families import build
from paceline.context import Context, Ending
from paceline.drafters import make_drafter
from paceline.engine import batch, serial
from paceline.engine.batch import Batch
from paceline.engine.calls import BEFORE, Call, answers
from paceline.engine.loop import Session
from paceline.law import Law, Sampling
from paceline.planning.fixed import Fixed
from paceline.targets.hf.fixed.replay import FixedPath
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.target import HFTarget
from scoring import tokens
from thinning import crossed

SIZE = 5003
"""Tokens: more than are copied whole."""
LIKELY = 16
"""Tokens that the model writes."""
NODES, LENGTH = 10, 60
TREES = ("unispec", "recycling")
METHODS = ("plain", "lookup", "suffix", *TREES)
FORWARD = {("sends", "score"): 1}
"""Tokens, positions and what sees what, in one copy; the host does not wait for it."""
BEST = {("waits", "law"): 1}
"""The best token of every row."""
RACES = {("sends", "law"): 1, ("makes", "law"): 3, ("waits", "law"): 1}
"""The noise of the whole draft, memory to work in, and the tokens of all its rows that can win."""
READING = {("waits", "read"): 1}
"""The best tokens of all rows, for drafters that learn from them."""

SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.8, seed=3),
    "min-p": Sampling(temperature=0.8, min_p=0.02, seed=3),
    "top-k": Sampling(temperature=0.8, top_k=8, seed=3),
    "bias": Sampling(temperature=0.8, logit_bias={5: 0.5}, banned=((7,),), seed=3),
}


def habitual() -> Any:
    """A model that repeats itself: the next token depends on the last one alone, and few tokens are likely."""
    model = build("llama", vocab_size=SIZE)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight[:LIKELY] *= 6
    return model


Round = Counter[tuple[str, str]]


class Counted:
    """Writes texts with a model on the stand-in, whose recorded forwards are launches, and counts what rounds do."""

    def __init__(self) -> None:
        self.log = Crossings()
        self.target = HFTarget(sent_away(habitual()), fixed_shapes=True)
        self.target.fixed = self.path = FixedPath(self.target.own, self.log.launching)
        self.path.lean = Lean.of(self.target.own)
        self.target._one_at_a_time = self.path.slab.lock
        self.target.paths = [self.path, self.target.own]
        self._before = ""

    def answers(self, calls: list[Call]) -> list[Any]:
        """A driver's. A round begins with the first call that is made before a forward."""
        verb = calls[0].verb
        if verb in BEFORE and self._before not in BEFORE:
            self.log.rounds.append(Counter())
        self._before = verb
        with self.log.within(verb):
            return answers(calls)

    def write(self, method: str, sampling: Sampling, texts: int = 1) -> tuple[list[Session], list[Round]]:
        """Texts, written together, and what each round does but the first, which reads the prompts. They are written
        twice, so that the shapes of all forwards are recorded before anything is counted."""
        for _ in range(2):
            known, drafter, self.log.rounds, self._before = [*self.path.recorded], make_drafter(method), [], ""
            sessions = [
                Session(context(self.target, sampling, seed), self.target, self.target.open(), drafter, Fixed(NODES))
                for seed in range(texts)
            ]
            with self.log, AsOnADevice():  # type: ignore[no-untyped-call]
                finish(sessions)
        assert self.path.refused is None
        assert set(self.path.recorded) == set(known), "a shape was recorded in a round that was counted"
        return sessions, self.log.rounds[1:]


def context(target: HFTarget, sampling: Sampling, seed: int) -> Context:
    return Context(tokens(20, seed), sampling, Ending(max_new_tokens=LENGTH, context_length=target.context_length))


def finish(sessions: list[Session]) -> None:
    if len(sessions) == 1:
        list(serial.run(sessions[0]))
    else:
        with Batch(sessions[0].target) as together:
            for session in sessions:
                together.join(session)
            while len(together):
                assert all(turn.error is None for turn in together.step())
    for session in sessions:
        session.rows.close()


@pytest.fixture(scope="module")
def counted() -> Iterator[Counted]:
    with pytest.MonkeyPatch.context() as patch:
        for name, constant in (("contenders", "DEVICES"), ("on_device", "BESIDE")):
            patch.setattr(importlib.import_module(f"paceline.law.{name}"), constant, frozenset({NAME}))
        patch.setattr(torch, "is_autocast_enabled", lambda device: False)  # torch knows no such device here
        made = Counted()
        for driver in (serial, batch):
            patch.setattr(driver, "answers", made.answers)
        yield made


@pytest.fixture(scope="module")
def here() -> HFTarget:
    return HFTarget(habitual())


def expected(method: str, sampling: Sampling, moving: int, *, last: bool = False) -> Round:
    """What a round of a method does. Of ``moving`` texts it keeps other rows than the first, and sends their
    numbers. After the ``last`` round of a text nothing is shown to its drafter."""
    law, reading = BEST if sampling.greedy else RACES, READING if method in TREES and not last else {}
    return Counter(FORWARD | law | reading | ({("sends", "loop"): moving} if moving else {}))


@pytest.mark.parametrize(("method", "setting"), crossed(METHODS, [*reversed(SAMPLINGS)]))  # greedy: of trees
def test_a_round_sends_two_copies_and_waits_once_for_its_laws(
    method: str, setting: str, counted: Counted, here: HFTarget
) -> None:
    """Of a greedy text one copy; however long its path is. The text is the one that is written on the host."""
    sampling = SAMPLINGS[setting]
    (one,), rounds = counted.write(method, sampling)
    alone = write(here, tokens(20), make_drafter(method), sampling=sampling, nodes=NODES, max_new_tokens=LENGTH)
    assert one.context.tokens.tolist() == alone.context.tokens.tolist()
    assert len(rounds) == len(one.rounds) - 1
    assert strange(rounds, method, sampling) == []
    if method != "plain":
        assert max(each.accepted for each in one.rounds) > 3
    if method in TREES and setting == "greedy":
        assert expected(method, sampling, 1) in rounds, "branches beside the first were accepted"


def known(method: str, sampling: Sampling, texts: int = 1, *, last: bool = False) -> list[Round]:
    """What rounds of a method may do. A chain's accepted rows are its first ones and need not move."""
    most = texts if method in ("suffix", *TREES) else 0
    return [expected(method, sampling, moving, last=last) for moving in range(1 + most)]


def strange(rounds: list[Round], method: str, sampling: Sampling, texts: int = 1) -> list[Round]:
    """The rounds that do anything else. Only the last one of all may show its drafter nothing."""
    *earlier, last = rounds
    ends = [*known(method, sampling, texts), *known(method, sampling, texts, last=True)]
    return [
        *(each for each in earlier if each not in known(method, sampling, texts)),
        *([] if last in ends else [last]),
    ]


@pytest.mark.parametrize(("method", "setting"), crossed(METHODS, ["greedy", "sampled"]))
def test_a_batch_sends_and_waits_as_often_as_one_text(method: str, setting: str, counted: Counted) -> None:
    """But for the rows that move, of which each text sends its own."""
    sampling = SAMPLINGS[setting]
    sessions, rounds = counted.write(method, sampling, texts=4)
    assert len(rounds) >= max(len(session.rounds) for session in sessions) - 1
    assert strange(rounds, method, sampling, 4) == []


# --- what would be seen -------------------------------------------------------------------------------------


def looks(law: Law, row: torch.Tensor, tokens: Any) -> torch.Tensor:
    """Reads a number for every node."""
    assert float(row[0]) < 1e9
    return row.float()


def sends(law: Law, row: torch.Tensor, tokens: Any) -> torch.Tensor:
    """Makes a tensor of the host's numbers for every node."""
    return row + torch.tensor([0.0], device=row.device)


@pytest.mark.parametrize(("mistake", "kind"), [(looks, "waits"), (sends, "sends")])
def test_mistakes_that_these_counts_would_see(
    mistake: Callable[..., torch.Tensor], kind: str, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Law, "adjust", mistake)
    (one,), rounds = counted.write("lookup", SAMPLINGS["sampled"])
    found = [round_[kind, "law"] for round_ in rounds]
    assert found == [1 + each.rows for each in one.rounds[1:]]


@pytest.mark.parametrize(
    ("does", "expects"),
    [
        (lambda there: torch.tensor([1, 2], device=NAME), {"sends": 1, "waits": 1}),
        (lambda there: torch.ones(2).to(NAME, non_blocking=True), {"sends": 1}),
        (lambda there: there.copy_(torch.ones(4)), {"sends": 1, "waits": 1}),
        (lambda there: there[torch.tensor([1, 2])], {"sends": 1, "waits": 1}),
        (lambda there: there + 1, {}),
        (lambda there: torch.arange(3, device=NAME), {"makes": 1}),
        (lambda there: there.new_zeros(3), {"makes": 1}),
        (lambda there: there.sum().item(), {"waits": 1}),
        (lambda there: bool(there[0] > 0), {"waits": 1}),
        (lambda there: there.tolist(), {"waits": 1}),
        (lambda there: there.cpu(), {"waits": 1}),
        (lambda there: there.numpy(force=True), {"waits": 1}),
        (lambda there: there.nonzero(), {"waits": 1}),
        (lambda there: there[there > 1], {"waits": 1}),
        (lambda there: torch.empty(4).copy_(there), {"waits": 1}),
    ],
)
def test_what_crosses_is_counted(does: Callable[[torch.Tensor], Any], expects: dict[str, int]) -> None:
    log = Crossings()
    there = Away(torch.arange(4.0))
    with log, AsOnADevice():  # type: ignore[no-untyped-call]
        does(there)
    assert log.rounds == [Counter({(kind, "loop"): count for kind, count in expects.items()})]


def test_numbers_are_right_there_and_reached_by_copies_alone() -> None:
    with Crossings(), AsOnADevice():  # type: ignore[no-untyped-call]
        there = torch.tensor([3.0, 1.0, 2.0], device=NAME)
        there[1:] += 4
        assert (there.device.type, there.sort().values.tolist()) == (NAME, [3.0, 5.0, 6.0])
        with pytest.raises(AssertionError, match="tensors of the host and of the device"):
            there + torch.ones(3)
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()
