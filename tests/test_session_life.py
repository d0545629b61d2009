"""A session's life: cut short by whoever fails, and what the next text finds of the last one's cache."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import families
import paceline
from clock import MadeClock
from engine import METHODS, PROMPT, SIZE, Erratic, Shown, Watched, habitual, tabled, write, write_slowly
from paceline.api.model import LanguageModel
from paceline.api.piece import Piece
from paceline.api.settings import split_settings
from paceline.api.writing import Writing
from paceline.context import Context, Ending, Ints
from paceline.drafters import Budget, Plain, make_drafter
from paceline.drafters.compose import Fallback, Union
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.errors import CallbackError, DrafterError
from paceline.law import Sampling
from paceline.planning.base import Planner, Room
from paceline.planning.fixed import Fixed
from paceline.targets.base import Pending, Request
from paceline.targets.table import TableTarget

# --- a life cut short ---------------------------------------------------------------------------------------


def check_still_right(lm: LanguageModel, **options: Any) -> None:
    expected = write_slowly(tabled(), PROMPT, Sampling()).tokens
    assert lm.generate(PROMPT, max_new_tokens=16, **options).tokens == expected


@pytest.mark.parametrize("taken", range(6))
def test_a_closed_stream_closes_its_drafter_and_leaves_the_model_usable(taken: int) -> None:
    lm, drafter = LanguageModel(tabled()), Watched(Erratic())
    stream = lm.stream([3, 3], method=drafter, max_new_tokens=30)
    for _ in range(taken):
        next(stream)
    stream.close()
    assert drafter.opened == drafter.closed == (taken > 0)
    check_still_right(lm, method=drafter)
    assert drafter.opened == drafter.closed


def test_closing_the_driver_closes_the_flow_whoever_else_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    held, drafter, flow = [], Watched(Erratic()), Session.flow

    def holding(session: Session) -> Any:
        held.append(flow(session))
        return held[-1]

    monkeypatch.setattr(Session, "flow", holding)
    target = tabled()
    context = Context(PROMPT, Sampling(), Ending(max_new_tokens=9))
    driver = run(Session(context, target, target.open(), drafter, Fixed(3)))
    next(driver)
    driver.close()
    assert len(held) == drafter.opened == drafter.closed == 1


@pytest.mark.parametrize(("error", "raised"), [(OSError, DrafterError), (KeyboardInterrupt, KeyboardInterrupt)])
@pytest.mark.parametrize("where", ["open", "propose", "observe"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_drafter_that_fails_is_closed_once(
    where: str, after: int, error: type[BaseException], raised: type[BaseException]
) -> None:
    lm = LanguageModel(tabled())
    drafter = Watched(Erratic(), fails=where, after=after if where != "open" else 0, error=error)
    beside = Watched(make_drafter("lookup"))
    for method in (drafter, Union([beside, drafter]), Fallback([drafter, beside])):
        with pytest.raises(raised):
            lm.generate(PROMPT, method=method, planner="fixed", max_new_tokens=30, strict=True)
        assert (drafter.opened, beside.opened) == (drafter.closed, beside.closed)
        check_still_right(lm)


class Failing(TableTarget):
    """A target that breaks down in the middle of its ``count``-th forward, once: rows half written."""

    count = -1
    error: type[BaseException] = OSError

    def submit(self, requests: Sequence[Request]) -> Pending:
        pending = super().submit(requests)
        self.count -= 1
        if self.count == -1:
            raise self.error
        return pending


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("count", range(7))
def test_a_target_that_fails_leaves_no_trace(count: int, error: type[BaseException]) -> None:
    target, drafter = Failing(habitual(), SIZE), Watched(Erratic())
    lm = LanguageModel(target)
    target.count, target.error = count, error
    with pytest.raises(error):
        lm.generate(PROMPT, method=drafter, max_new_tokens=40)
    assert drafter.opened == drafter.closed == 1
    check_still_right(lm)


@pytest.mark.parametrize(("error", "raised"), [(OSError, CallbackError), (KeyboardInterrupt, KeyboardInterrupt)])
@pytest.mark.parametrize("kind", ["criterion", "processor"])
def test_a_callback_that_fails_leaves_no_trace(
    kind: str, error: type[BaseException], raised: type[BaseException]
) -> None:
    lm, drafter = LanguageModel(tabled()), Watched(Erratic())

    def fail(*given: Any) -> Any:
        if given[0].shape[-1] == len(PROMPT) + 3:
            raise error
        return False if kind == "criterion" else given[1]

    options: dict[str, Any] = {"criteria": (fail,)} if kind == "criterion" else {"processors": (fail,)}
    with pytest.raises(raised):
        lm.generate(PROMPT, method=drafter, **options)
    assert drafter.opened == drafter.closed == 1
    check_still_right(lm)


def test_parts_are_closed_also_where_one_fails_to_close() -> None:
    class Stubborn(Watched):
        def close(self, state: Any) -> None:
            super().close(state)
            raise OSError("will not close")

    parts = [Watched(Plain()), Stubborn(Plain()), Watched(Plain())]
    with pytest.raises(DrafterError, match="drafter 'watched' failed in close: OSError: will not close"):
        LanguageModel(tabled()).generate(PROMPT, method=Union(parts), strict=True)
    assert [part.closed for part in parts] == [1, 1, 1]


# --- what is read again and what is not ---------------------------------------------------------------------


class Counting(TableTarget):
    """Counts the prompt rows it scores."""

    prompt_rows = 0

    def submit(self, requests: Sequence[Request]) -> Pending:
        self.prompt_rows += sum(request.prompt for request in requests)
        return super().submit(requests)


@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_that_begins_alike_is_read_from_where_it_parts(method: str) -> None:
    target = Counting(habitual(), SIZE)
    lm = LanguageModel(target)

    def ask(prompt: list[int]) -> tuple[list[int], int]:
        target.prompt_rows = 0
        tokens = lm.generate(prompt, method=METHODS[method](), max_new_tokens=10).tokens
        assert tokens == write_slowly(target, prompt, Sampling(), max_new_tokens=10).tokens
        return tokens, target.prompt_rows

    tokens, read = ask(PROMPT)
    assert read == len(PROMPT) - 1
    assert ask(PROMPT)[1] == 0
    turn = [*PROMPT, *tokens, 5, 5, 1]
    assert ask(turn)[1] == len(turn) - 1 - (len(PROMPT) + len(tokens) - 1)
    branched = [*turn[:-4], 2, 2, 2]
    assert ask(branched)[1] == 2
    assert ask([4, *PROMPT])[1] == len(PROMPT)
    assert ask([4])[1] == 0
    lm.forget()
    assert ask([4, 4])[1] == 1


def test_a_drafter_that_needs_the_prompt_is_shown_all_of_it_every_time() -> None:
    lm = LanguageModel(tabled())
    for _ in range(2):
        reader = Shown()
        tokens = lm.generate(PROMPT, method=reader, max_new_tokens=4).tokens
        assert list(reader.shown.values()) == [[*PROMPT, *tokens[:-1]]]


def test_rows_that_are_reused_hold_what_they_say() -> None:
    target = tabled()
    rows = target.open()
    for prompt in (PROMPT, PROMPT[:3], [*PROMPT[:3], 5, 5], PROMPT):
        session = write(target, prompt, Erratic(), rows=rows, max_new_tokens=9)
        assert session.context.emitted.tolist() == write_slowly(target, prompt, Sampling()).tokens[:9]
        assert rows.tokens.tolist() == session.context.tokens[:-1].tolist()


def test_two_streams_of_one_model_do_not_disturb_each_other() -> None:
    lm = LanguageModel(tabled())
    prompts = ([1, 2, 3], [1, 2, 5])
    expected = [write_slowly(tabled(), prompt, Sampling()).tokens for prompt in prompts]
    first, second = (lm.stream(prompt, method=Erratic(), max_new_tokens=16) for prompt in prompts)
    pairs = list(zip(first, second, strict=True))
    assert [[a.token for a, _ in pairs], [b.token for _, b in pairs]] == expected
    check_still_right(lm)


def test_threads_of_one_model_write_what_they_would_alone() -> None:
    model = families.build("llama")
    lm = paceline.load(model)
    before = model.config._attn_implementation
    prompts = [[i + 1, i + 2, 3, 5, i + 1, i + 2] for i in range(4)]
    how = {"temperature": 1.0, "max_new_tokens": 40, "ignore_eos": True}
    alone = [lm.generate(prompt, **how).tokens for prompt in prompts]
    for _ in range(3):
        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(lambda prompt: lm.generate(prompt, **how).tokens, prompts))
        assert together == alone
    assert model.config._attn_implementation == before


# --- what is told, and to whom ------------------------------------------------------------------------------


def test_tokens_settled_before_a_failure_are_handed_out() -> None:
    calls = []

    def failing(tokens: Ints) -> bool:
        calls.append(len(tokens))
        if len(calls) == 4:
            raise OSError("the criterion fails")
        return False

    def drain(stream: Iterator[Piece], seen: list[int | None]) -> None:
        for piece in stream:
            seen += [piece.token]

    expected = LanguageModel(tabled()).generate(PROMPT, max_new_tokens=9).tokens
    for make in METHODS.values():
        calls.clear()
        seen: list[int | None] = []
        stream = LanguageModel(tabled()).stream(PROMPT, method=make(), max_new_tokens=9, criteria=(failing,))
        with pytest.raises(CallbackError, match=r"stopping criterion .*failing failed: OSError: the criterion fails"):
            drain(stream, seen)
        assert seen == expected[: len(seen)]
        assert len(seen) in (3, 4)


def test_a_slow_reader_is_not_counted(clock: MadeClock) -> None:
    lm = LanguageModel(tabled())
    writing = Writing(lm, PROMPT, 0, *split_settings({"max_new_tokens": 6}))
    for _ in writing.pieces():
        clock.sleep(1000)
    assert 0 < writing.result().totals.seconds < 1000


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "empty"),
        ([1, -1], "holds -1"),
        ([0.5, 1.0], "holds 0.5"),
        ([[1, 2], [3, 4]], "a batch of 2; use generate_batch"),
        ([1, SIZE], f"token {SIZE}, outside the model's vocabulary of {SIZE}"),
    ],
)
def test_a_prompt_that_is_none_is_told(prompt: list[int], said: str) -> None:
    lm = LanguageModel(tabled())
    with pytest.raises(ValueError, match=said):
        lm.generate(prompt, max_new_tokens=3)
    check_still_right(lm)


def test_the_context_cannot_be_written_through() -> None:
    context = Context(PROMPT, Sampling(), Ending(max_new_tokens=3))
    with pytest.raises(ValueError, match="read-only"):
        context.tokens[0] = 4


def test_a_greedy_row_that_is_no_number_is_refused() -> None:
    broken = TableTarget(lambda history: [float("nan")] * 3, 3)
    with pytest.raises(ValueError, match="score"):
        LanguageModel(broken).generate([1], max_new_tokens=3)


def test_a_misspelt_method_is_told_at_once_and_costs_no_cache() -> None:
    lm = LanguageModel(tabled())
    lm.generate(PROMPT, max_new_tokens=3)
    with pytest.raises(ValueError, match="unknown method"):
        lm.stream(PROMPT, method="nope")
    assert len(lm.kept) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_new_tokens": "8"}, "max_new_tokens is a whole number, not '8'"),
        ({"max_new_tokens": 8.5}, "max_new_tokens is a whole number, not 8.5"),
        ({"logprobs": True}, "logprobs is a whole number, not True"),
        ({"temperature": "0.8"}, "temperature is a number, not '0.8'"),
        ({"seed": "7"}, "seed is a whole number, not '7'"),
        ({"eos": "</s>"}, "eos is a whole number, not '</s>'"),
        ({"eos": [1, 10**9]}, "eos names token 1000000000, and table has 6 tokens"),
        ({"criteria": len}, "put the one criterion into a list"),
        ({"processors": len}, "put the one processor into a list"),
        ({"planner": 4}, "planner is a spec such as 'fixed:4'"),
        ({"method": ["plain"]}, "method is a spec such as 'lookup', or a drafter"),
        ({"method": Plain}, "method is the class Plain; make a drafter of it"),
        ({"method": tabled()}, "models go to draft_model"),
        ({"num_draft_tokens": 3}, "unknown setting 'num_draft_tokens'; write planner='fixed:N'"),
    ],
)
def test_what_python_would_take_in_silence_is_told(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        LanguageModel(tabled()).write(PROMPT, **settings)


@pytest.mark.parametrize("kind", [int, np.int64, np.array, torch.tensor, lambda t: torch.tensor([t]), lambda t: [t]])
def test_end_of_text_tokens_may_be_given_in_many_types(kind: Any) -> None:
    lm = LanguageModel(tabled())
    free = lm.generate(PROMPT, max_new_tokens=12).tokens
    cut = lm.generate(PROMPT, max_new_tokens=12, eos=kind(free[4]), stop=None)
    assert (cut.tokens, cut.finish) == (free[: free.index(free[4]) + 1], "eos")


class Slow(Plain):
    """Takes its time to open."""

    def __init__(self, clock: MadeClock) -> None:
        self.clock = clock

    def open(self, context: Context) -> Context:
        self.clock.sleep(1000)
        return context


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]])
def test_opening_a_drafter_is_reading_the_prompt_also_where_nothing_is_left_to_read(
    prompt: list[int], clock: MadeClock
) -> None:
    lm, drafter = LanguageModel(tabled()), Slow(clock)
    for _ in range(2):
        totals = lm.generate(prompt, method=drafter, max_new_tokens=6).totals
        assert totals.seconds_prefill > 1000 > totals.seconds


class Boundless(Planner):
    """Heeds no limit."""

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        return [Budget(12, 12) for _ in rooms]


def test_no_planner_drafts_beyond_the_end() -> None:
    lm = LanguageModel(tabled())
    found = lm.generate(PROMPT, method=Erratic(), planner=Boundless(), max_new_tokens=5)
    assert len(found.tokens) == 5
    assert all(each.depth <= 4 for each in found.rounds)
