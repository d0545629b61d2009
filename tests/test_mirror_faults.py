"""A draft model's process that dies, hangs or says what it must not: its text goes on, and others notice nothing."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

import bad_worker
import paceline
from bad_worker import AT_START, LOSES, STALLS, plan
from clock import comes_true
from engine import PROMPT, SIZE, habitual
from enumeration import World, outcome_of, output_law, played
from paceline.api.model import LanguageModel
from paceline.drafters.networks.mirror import drafter as drafter_module
from paceline.drafters.networks.mirror import place as place_module
from paceline.drafters.networks.mirror import process as process_module
from paceline.drafters.networks.mirror.drafter import Mirror
from paceline.drafters.networks.mirror.messages import Mangled, Message, MessageKind
from paceline.drafters.networks.mirror.process import DraftProcess
from paceline.drafters.sharing import Shared
from paceline.errors import DrafterWarning, InputError
from paceline.planning.base import Room
from paceline.planning.fixed import Fixed
from paceline.targets.table import TableTarget
from paceline.verify import Rule
from thinning import thinned

BEGIN = place_module.BEGIN
LONG = 600.0
"""Seconds that nothing here takes, unless it hangs."""
GAMMA = 3
SLOWER = "the text goes on without drafts: it becomes slower, not different"
OTHER = [4, 2, 4]


class Layered(TableTarget):
    """A table that another process can draft beside."""

    layers = 2


def table() -> LanguageModel:
    return LanguageModel(Layered(habitual(), SIZE))


def mirror(model: str = "any") -> Mirror:
    return Mirror(model=model, gamma=GAMMA, overlap="always")


@pytest.fixture(autouse=True)
def bad(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Other tests have other processes; those begun here do as they are told."""
    monkeypatch.setattr(DraftProcess, "_running", Shared())
    monkeypatch.setattr(place_module, "BEGIN", bad_worker.BEGIN)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.setattr(drafter_module, "WAIT", LONG)

    def prepare(fault: str, step: int = 2, size: int = SIZE, fingerprint: str | None = None) -> Path:
        log = tmp_path / "begun"
        for name, value in plan(fault, step, size, log, fingerprint).items():
            monkeypatch.setenv(name, value)
        return log

    yield prepare
    gc.collect()


@contextmanager
def warned() -> Iterator[list[str]]:
    said = list[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
        said += [str(each.message) for each in caught if each.category is DrafterWarning]


class Counted(Fixed):
    """Counts the rounds that it was asked in, and does something before the second."""

    def __init__(self, before_second: Callable[[], None] = lambda: None) -> None:
        super().__init__(GAMMA)
        self.rounds, self._before_second = 0, before_second

    def plan(self, rooms: Sequence[Room]) -> Any:
        self.rounds += 1
        if self.rounds == 2:
            self._before_second()
        return super().plan(rooms)


def written(lm: LanguageModel, method: Any, count: int = 24, **how: Any) -> Any:
    return lm.generate(PROMPT, method=method, **{"planner": f"fixed:{GAMMA}", "max_new_tokens": count, **how})


HOW: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 1.0, "seed": 3, "rule": "rejection"},
]
FAULTS = [*LOSES, *STALLS]


@pytest.mark.parametrize(("fault", "how"), thinned(zip(FAULTS, cycle(HOW)), every=4), ids=FAULTS)
def test_the_text_goes_on_as_plain_and_says_so_once(
    fault: str, how: dict[str, Any], bad: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on it is written as without a method: its planner is not asked, and nothing is read for it."""
    bad(fault)
    monkeypatch.setattr(process_module, "UNASKED", 500)

    def impatient() -> None:
        if fault in STALLS:
            monkeypatch.setattr(drafter_module, "WAIT", 0.6)
            monkeypatch.setattr(process_module, "PATIENCE", 0.05)

    lm, planner = table(), Counted(impatient)
    with warned() as said:
        found = written(lm, mirror(), planner=planner, **how)
    assert found.tokens == written(lm, "plain", **how).tokens
    (one,) = said
    assert one.startswith("drafter 'mirror' has lost the process of its draft model (")
    assert one.endswith(SLOWER)
    behind = [each for each in found.rounds if not each.prefill]
    assert [each.drafted > 0 for each in behind[:3]] == [True, False, False]
    assert planner.rounds <= 2, "it is off from then on"


@pytest.mark.slow
def test_a_window_that_is_late_is_waited_for_once(bad: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch all texts wait with the one that waits. Until the process speaks again none does, nor a new one."""
    waited, window = list[float](), DraftProcess.window

    def noted(self: DraftProcess, *given: Any, asked: float, until: float = 0.0) -> Any:
        began, late = time.monotonic(), self._inbox.late
        found = window(self, *given, asked=asked, until=until)
        if found is None and until > began and not late:
            waited.append(until - began)
        return found

    monkeypatch.setattr(DraftProcess, "window", noted)
    bad("hangs", step=3)  # the first of the second round
    lm, planner = table(), Counted(lambda: monkeypatch.setattr(drafter_module, "WAIT", 0.1))
    drafter = mirror()
    drafter.fit(lm.target)
    with lm.batch() as batch:
        how: dict[str, Any] = {"method": drafter, "planner": planner, "max_new_tokens": 40}
        faulty = [batch.add([*PROMPT, n], **how) for n in range(2)]
        sound = batch.add(OTHER, method="plain", max_new_tokens=40)
        longest = 0.0
        while len(batch):
            began = time.monotonic()
            batch.step()
            longest = longest if waited else max(longest, time.monotonic() - began)
            if waited and len(faulty) < 4:
                faulty.append(batch.add([*PROMPT, len(faulty)], **how))
    assert sound.result().tokens == lm.generate(OTHER, method="plain", max_new_tokens=40).tokens
    for n, writing in enumerate(faulty):
        assert writing.result().tokens == lm.generate([*PROMPT, n], method="plain", max_new_tokens=40).tokens
    assert len(waited) == 1
    assert waited[0] <= max(0.1, GAMMA * longest), "no longer than the target takes for these tokens"


@pytest.mark.parametrize("fault", thinned(AT_START))
def test_a_process_that_does_not_begin_is_one_sentence_and_holds_up_no_other_text(
    fault: str, bad: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lm = bad(fault), table()
    monkeypatch.setattr(process_module, "UNASKED", 500)
    if silent := fault == "is silent at start":
        monkeypatch.setattr(process_module, "LOADING", 2 * LONG)
    expected = lm.generate(OTHER, method="plain", max_new_tokens=20).tokens
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lm.generate, PROMPT, method="mirror:overlap=always", draft_model="any", max_new_tokens=4)
        assert comes_true(log.exists, LONG)
        for method in ("lookup", "suffix"):  # each is made, and leased, while the other one waits
            assert lm.generate(OTHER, method=method, max_new_tokens=20).tokens == expected
        if silent:
            assert not waiting.done()
            os.kill(int(log.read_text()), signal.SIGKILL)
        with pytest.raises(InputError, match="the process of draft model any did not start: ") as caught:
            waiting.result(LONG)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_a_lost_process_is_begun_again_three_times(bad: Callable[..., Path]) -> None:
    """Without waiting for it. A text that had no drafts says so, each one."""
    log, lm, drafter = bad("dies", step=1), table(), mirror()
    plain, begun = written(lm, "plain").tokens, []
    for _ in range(7):
        with warned() as said:
            assert written(lm, drafter).tokens == plain
        assert comes_true(lambda: not drafter._begins, LONG)
        begun.append(len(log.read_text().splitlines()))
        assert len(said) == 1, said
        again = "is begun again; drafts come once it is there" in said[0]
        assert again or said[0].endswith(SLOWER)
    assert begun[-1] == 4
    assert begun == sorted(begun)


def test_a_text_is_drafted_for_once_its_process_is_there(bad: Callable[..., Path], tmp_path: Path) -> None:
    bad("dies", step=1)
    lm, drafter, there = table(), mirror(), tmp_path / "there"
    with warned() as said:
        written(lm, drafter)
    assert len(said) == 1
    bad(f"waits for {there}")
    with warned() as said:
        text = lm.write(PROMPT, method=drafter, planner="fixed:3", max_new_tokens=60)
        pieces = text.pieces()
        begun = [next(pieces) for _ in range(20)]
        there.touch()
        assert comes_true(lambda: not drafter._begins, LONG)
        rest = list(pieces)
    assert len(said) == 1
    assert [piece.token for piece in begun + rest] == written(lm, "plain", 60).tokens
    drafted = [each.drafted for each in text.result().rounds]
    assert not any(drafted[:15])
    assert all(drafted[22:-3])


def test_of_what_a_process_says_no_more_is_kept_than_was_asked_for() -> None:
    inbox = process_module._Inbox()
    for number in range(1000):
        inbox.take(Message(MessageKind.WINDOW, number, 1), 100)
    assert not inbox.windows
    with pytest.raises(Mangled, match="says TOKENIZER"):
        inbox.take(Message(MessageKind.TOKENIZER, 1), 100)
    inbox.texts.add(3)
    for number in range(1000):
        inbox.take(Message(MessageKind.WINDOW, 3, number), 100)
    assert inbox.windows == {3: (Message(MessageKind.WINDOW, 3, 999), 100)}


# --- the law under the rejection rule -----------------------------------------------------------------------


class Overlapped(World):
    @property
    def target(self) -> TableTarget:  # type: ignore[override]
        return Layered(self.table, self.size)


def test_a_process_that_lies_cannot_change_the_law(bad: Callable[..., Path]) -> None:
    """It is sure of tokens that it draws by chance. Every outcome of every coin is played."""
    world = Overlapped()
    bad("is wrong", size=world.size)
    drafter, drafted = mirror(), [0]
    drafter.fit(world.target)

    def play(coins: Any) -> Any:
        session = played(world, Rule.REJECTION, drafter, coins)
        drafted[0] += sum(each.drafted for each in session.rounds)
        return outcome_of(session)

    assert output_law(play) == world.plain()
    assert drafted[0] > 50


# --- many of them -------------------------------------------------------------------------------------------


REAL = ("is killed", "is stopped")
"""What is done to the process that does draft."""
STALLED = 2.0
"""Seconds without a token that no other text may have."""


class Others:
    """Texts of the same model that other threads write meanwhile, each with a method that is made for it."""

    def __init__(self, lm: LanguageModel) -> None:
        self._lm, self._ended = lm, threading.Event()
        self.longest, self.wrong = 0.0, 0
        self.tokens = lm.generate(OTHER, method="plain", max_new_tokens=24).tokens
        self._thread = threading.Thread(target=self._write, daemon=True)

    def _write(self) -> None:
        number = 0
        while not self._ended.is_set():
            last, tokens, number = time.monotonic(), list[int](), number + 1
            for piece in self._lm.stream(OTHER, method=f"lookup:max_ngram={2 + number % 9}", max_new_tokens=24):
                self.longest, last = max(self.longest, time.monotonic() - last), time.monotonic()
                tokens += [] if piece.token is None else [piece.token]
            self.wrong += tokens != self.tokens

    def __enter__(self) -> Others:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(LONG)
        assert not self._thread.is_alive()


def steps(lm: LanguageModel, drafter: Any, how: dict[str, Any]) -> tuple[list[list[int]], float]:
    """A text with drafts and one without, in a batch: their tokens, and the longest step."""
    with lm.batch() as batch:
        both = [batch.add(PROMPT, method=drafter, planner=f"fixed:{GAMMA}", max_new_tokens=24, **how)]
        both.append(batch.add(OTHER, method="plain", max_new_tokens=24))
        longest, last = 0.0, time.monotonic()
        while len(batch):
            batch.step()
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
    return [each.result().tokens for each in both], longest


@pytest.mark.slow
def test_two_hundred_faults_stall_no_other_text_and_leave_nothing_behind(
    bad: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drafter_module, "WAIT", 1.0)
    monkeypatch.setattr(process_module, "PATIENCE", 3.0)
    monkeypatch.setattr(process_module, "LOADING", 30.0)
    lm, coins = paceline.load("pocket", dtype="float32"), random.Random(7)
    assert lm.vocabulary is not None
    kinds, worst, told = [*bad_worker.ALL, *REAL], 0.0, Counter[str]()
    expected = [lm.generate(PROMPT, method="plain", max_new_tokens=24, **how).tokens for how in HOW]
    with Others(lm) as others:
        for number in range(200):
            fault, how, step = kinds[number % len(kinds)], HOW[number % len(HOW)], coins.randrange(1, 8)
            monkeypatch.setattr(place_module, "BEGIN", BEGIN if fault in REAL else bad_worker.BEGIN)
            monkeypatch.setattr(process_module, "LOADING", 2.0 if fault == "is silent at start" else 30.0)
            bad(fault, step, lm.target.vocab_size, lm.vocabulary.fingerprint)
            with monkeypatch.context() as patch, warned() as said:
                drafter = mirror("pocket-draft")
                if fault in REAL:
                    hurt(patch, signal.SIGKILL if fault == "is killed" else signal.SIGSTOP, step)
                if fault in AT_START:
                    with pytest.raises(InputError, match="did not start"):
                        drafter.fit(lm.target, lm.vocabulary)
                    continue
                found, longest = steps(lm, drafter, how)
            assert found == [expected[number % len(HOW)], others.tokens], (number, fault)
            assert len(said) <= 1, (number, fault, said)
            told[fault] += len(said)
            worst = max(worst, longest)
            drafter.dispose()
            del drafter
            gc.collect()
            assert comes_true(lambda: not children(), LONG), (number, fault)
    with capsys.disabled():
        print(f"the longest step was {worst:.2f} s, and {others.longest:.2f} s passed without a token of another text")
    assert {fault for fault in LOSES if told[fault]} == set(LOSES), "each of these is said"
    assert not others.wrong
    assert max(worst, others.longest) < STALLED
    assert threading.active_count() < 10


def hurt(patch: pytest.MonkeyPatch, how: signal.Signals, step: int) -> None:
    tell, count = DraftProcess.tell, [0]

    def hurting(self: DraftProcess, *given: Any) -> int:
        count[0] += 1
        if count[0] == step:
            os.kill(self.pid, how)
        return tell(self, *given)

    patch.setattr(DraftProcess, "tell", hurting)


def children() -> list[str]:
    """The processes that drafters of this one have begun."""
    command = ["ps", "-ww", "-o", "args", "--ppid", str(os.getpid())]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if "import main" in line]
