"""Serving: the texts of many requests are those written alone, whatever comes, goes, waits or is paused beside them."""

import asyncio
import os
import random
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import cache
from typing import Any

import pytest

import paceline
from engine import PROMPT, SIZE, habitual, tabled
from paceline.api.model import LanguageModel
from paceline.api.piece import Piece
from paceline.api.schedule import FLOOR, RowSchedule
from paceline.api.serving import Serving, rows_that_fit
from paceline.api.writing import Writing
from paceline.errors import InputError, OutOfMemory
from paceline.targets.table import TableTarget
from test_cancelling import SECONDS, Gated
from test_text_batch import speaking

THREAD = "paceline-astream"
CLOSE = 2e-3
"""How far log-probabilities of a batch may be from those of a text alone, in float32."""


@cache
def loaded(quantize: str | None) -> LanguageModel:
    return paceline.load("pocket", quantize=quantize, generation_config=False, probe=False)


def run(work: Coroutine[Any, Any, Any], seconds: float = 8 * SECONDS) -> Any:
    return asyncio.run(asyncio.wait_for(work, seconds))


async def read(serving: Serving, write: Callable[[], Writing], seen: list[Piece] | None = None) -> list[Piece]:
    """All pieces of a text."""
    found = list[Piece]() if seen is None else seen
    async with aclosing(serving.read(write)) as bursts:
        async for pieces in bursts:
            assert pieces
            found += pieces
    return found


def tokens_of(pieces: list[Piece]) -> list[int]:
    return [piece.token for piece in pieces if piece.token is not None]


async def arrived(serving: Serving, texts: int) -> None:
    """Wait until so many texts are there, begun or not."""
    shared = serving._shared
    while len({*list(shared._readers.values()), *list(shared._changed)}) < texts:
        await asyncio.sleep(0)


def writing_threads() -> int:
    """Threads of texts that do not end by themselves."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]
    for thread in ours:
        thread.join(SECONDS)
    return sum(thread.is_alive() for thread in ours)


# --- the same text, whatever happens ----------------------------------------------------------------------------

SYSTEM = "You are a patient teller of tales, and every tale that you tell begins in the mountains. "
OPENINGS = [SYSTEM, f"{SYSTEM}The rider ", f"{SYSTEM}The rider came home. ", "Dawno temu ", "The sea was calm and "]
METHODS: list[dict[str, Any]] = [
    {"method": "auto"},
    {"method": "lookup"},
    {"method": "plain"},
    {"method": "assistant", "draft_model": "pocket-draft"},
]


def requests(count: int, seed: int) -> list[tuple[str, int, dict[str, Any]]]:
    """Prompts, numbers of samples, and settings."""
    dice = random.Random(seed)
    found = []
    for number in range(count):
        how: dict[str, Any] = dict(dice.choice(METHODS), max_new_tokens=dice.randint(1, 40), seed=dice.randint(0, 3))
        how |= {"temperature": 0.8} if dice.random() < 0.6 else {"temperature": 0.0}
        how |= {"stop": [" the", "ie"]} if dice.random() < 0.3 else {}
        how |= {"logprobs": 2} if dice.random() < 0.3 else {}
        prompt = dice.choice(OPENINGS) + " ".join(dice.choices(["king", "horse", "i", "river", "snow"], k=number % 7))
        found.append((prompt.strip(), dice.randint(0, 2), how))
    return found


def assert_same(alone: paceline.Generation, pieces: list[Piece], writing: Writing, *, bits: bool) -> None:
    """Whole texts are equal, those that were left are beginnings."""
    result = writing.result()
    assert result.tokens == alone.tokens[: len(result.tokens)]
    assert "".join(piece.text for piece in pieces) == result.text
    if result.finish != "cancelled":
        assert (result.text, result.finish, result.tokens) == (alone.text, alone.finish, alone.tokens)
        assert tokens_of(pieces) == alone.tokens
    for ours, theirs in zip(result.pieces, alone.pieces, strict=False):
        if theirs.logprobs is not None and ours.logprobs is not None:
            assert ours.logprobs.logprob == (
                theirs.logprobs.logprob if bits else pytest.approx(theirs.logprobs.logprob, abs=CLOSE)
            )


async def random_load(lm: LanguageModel, serving: Serving, count: int, seed: int) -> int:
    """Requests come at random times; some are left, some are read slowly. Returns how many were cancelled."""
    dice, left = random.Random(seed), 0
    asked = requests(count, seed)
    bits = lm.target.exact
    alone = [Writing(lm, prompt, sample, *lm.settings_for(prompt, how)).result() for prompt, sample, how in asked]

    async def one(number: int) -> None:
        nonlocal left
        prompt, sample, how = asked[number]
        await asyncio.sleep(dice.random() * 0.002 * count)
        writing = Writing(lm, prompt, sample, *lm.settings_for(prompt, how))
        pieces, leaves, slow, gone = list[Piece](), dice.random() < 0.2, dice.random() < 0.2, False
        async with aclosing(serving.read(lambda: writing)) as bursts:
            async for burst in bursts:
                pieces += burst
                if slow:
                    await asyncio.sleep(0.02)
                if leaves and dice.random() < 0.3:
                    left += 1
                    gone = True
                    break
        assert serving.rows <= (serving.max_rows or 10**9) + 32 * 8
        if pieces and not gone and writing.context.finish != "cancelled":
            assert_same(alone[number], pieces, writing, bits=bits)
        else:
            assert tokens_of(pieces) == alone[number].tokens[: len(tokens_of(pieces))]

    await asyncio.gather(*(one(number) for number in range(count)))
    return left


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_requests_have_the_texts_that_are_written_alone(quantize: str | None) -> None:
    lm = loaded(quantize)
    with lm.serving(at_once=6, kept=3, max_rows=230) as serving:
        assert run(random_load(lm, serving, 60, seed=5)) > 0
        assert (serving.waiting, serving.running, serving.paused) == (0, 0, 0)
        assert len(serving.kept) <= 3
        assert serving.rows <= 230
    assert serving.closed
    assert serving.rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_requests_of_many_loads_have_the_texts_that_are_written_alone(quantize: str | None, seed: int) -> None:
    lm, limit = loaded(quantize), (100, 160, 240, 500, 900, None)[seed]
    with lm.serving(at_once=1 + 3 * seed, kept=seed, max_rows=limit) as serving:
        run(random_load(lm, serving, 150, seed=seed))
        assert len(serving.kept) <= seed
    assert serving.rows == 0


# --- order and memory -------------------------------------------------------------------------------------------


def test_first_tokens_come_in_the_order_of_arrival() -> None:
    lm, order = speaking(), list[int]()

    async def one(serving: Serving, number: int) -> None:
        def write() -> Writing:
            return lm.write("the rider in front"[: 18 - number], max_new_tokens=30, method="plain", seed=number)

        async with aclosing(serving.read(write)) as bursts:
            async for _ in bursts:
                order.append(number) if number not in order else None

    async def main() -> None:
        with lm.serving(at_once=2) as serving:
            await asyncio.gather(*(one(serving, number) for number in range(6)))

    run(main())
    assert order == list(range(6))


def test_a_long_prompt_holds_up_neither_running_texts_nor_a_short_prompt() -> None:
    """Every round gives the running text a token while a prompt is read in pieces."""
    target = Gated(10**6)
    target.prefill_chunk = 100
    lm, order = LanguageModel(target), list[tuple[str, int]]()
    long = [n % 5 for n in range(401)]

    async def follow(serving: Serving, name: str, prompt: list[int], tokens: int) -> None:
        def write() -> Writing:
            return lm.write(prompt, max_new_tokens=tokens, method="plain", seed=1)

        async with aclosing(serving.read(write)) as bursts:
            async for pieces in bursts:
                order.append((name, len(pieces)))

    async def main() -> None:
        with lm.serving() as serving:
            running = asyncio.create_task(follow(serving, "running", PROMPT, 400))
            while not order:
                await asyncio.sleep(0)
            target.closed = 0
            texts = asyncio.gather(follow(serving, "long", long, 3), follow(serving, "short", [4, 4, 4], 3))
            await arrived(serving, 3)
            target.gate.set()
            await texts
            assert serving.running == 1
            running.cancel()

    run(main())
    names = [name for name, _ in order]
    assert names.index("short") <= names.index("long")
    assert "running" in names[1 : names.index("long")]


def test_the_oldest_text_is_never_paused_and_all_come_to_their_end() -> None:
    target = Gated(10**6)
    lm = LanguageModel(target)
    how: Any = {"max_new_tokens": 60, "method": "plain", "temperature": 1.0}
    alone = [lm.generate(PROMPT, seed=seed, **how).tokens for seed in range(5)]
    target.closed = 0

    async def main() -> list[list[Piece]]:
        with lm.serving(at_once=5, kept=2, max_rows=100) as serving:
            texts = asyncio.gather(
                *(read(serving, lambda seed=seed: lm.write(PROMPT, seed=seed, **how)) for seed in range(5))  # type: ignore[misc]
            )
            await arrived(serving, 5)
            target.gate.set()
            found = await texts
            assert serving.pauses > 0
            return found

    assert [tokens_of(pieces) for pieces in run(main())] == alone


def test_slow_readers_give_their_rows_to_others() -> None:
    lm = LanguageModel(tabled())
    how: Any = {"max_new_tokens": 80, "method": "plain"}
    expected = lm.generate(PROMPT, **how).tokens

    async def main() -> None:
        with lm.serving(at_once=2, kept=0, max_rows=len(PROMPT) + 90) as serving:
            slow = serving.read(lambda: lm.write(PROMPT, **how))
            first = await anext(slow)
            assert tokens_of(await read(serving, lambda: lm.write(PROMPT, **how))) == expected
            assert serving.pauses > 0
            assert tokens_of([*first, *[piece async for pieces in slow for piece in pieces]]) == expected

    run(main())


def test_a_text_that_needs_all_rows_is_refused_or_ends_there() -> None:
    lm = LanguageModel(tabled())

    async def main() -> None:
        with lm.serving(max_rows=20) as serving:
            with pytest.raises(InputError, match="may hold 20 rows"):
                await read(serving, lambda: lm.write([1] * 20, max_new_tokens=1))
            pieces = await read(serving, lambda: lm.write(PROMPT, max_new_tokens=99))
            assert len(PROMPT) + len(pieces) == 20
            assert pieces[-1].finish == "context"

    run(main())
    for wrong in ({"at_once": 0}, {"kept": -1}, {"max_rows": 1}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} is"):
            lm.serving(**wrong)


def test_the_rows_that_fit_come_from_the_free_memory() -> None:
    target = loaded("int8").target
    rows, size, free = rows_that_fit(target, 16), target.row_bytes(), target.free_memory()
    assert None not in (rows, size, free)
    assert rows
    assert size
    assert free
    assert 0.2 * free < rows * size < 0.6 * free
    assert rows_that_fit(tabled(), 16) is None
    half = rows_that_fit(target, 16, models=2)
    assert half is not None
    assert 0.4 * rows < half < 0.6 * rows


# --- what is kept -----------------------------------------------------------------------------------------------


def test_the_next_turn_of_a_chat_begins_with_the_rows_of_the_last_one() -> None:
    """Also when others came between, whose prompts begin alike."""
    lm = loaded(None)
    chat: list[Any] = [{"role": "user", "content": "Tell me of the mountains and of their kings."}]

    async def main() -> list[int]:
        with lm.serving(at_once=2, kept=4) as serving:
            first = lm.write(chat, max_new_tokens=20, seed=1)
            await read(serving, lambda: first)
            others = [[{"role": "user", "content": f"Tell me of the {what}."}] for what in ("sea", "king", "horse")]
            await asyncio.gather(
                *(read(serving, lambda text=text: lm.write(text, max_new_tokens=20)) for text in others)  # type: ignore[misc]
            )
            reply = {"role": "assistant", "content": first.result().text}
            second = lm.write([*chat, reply, {"role": "user", "content": "And then?"}], max_new_tokens=5)
            await read(serving, lambda: second)
            return [first.result().prompt_tokens, second.result().cached_tokens]

    prompt, cached = run(main())
    assert cached > prompt


def test_equal_prompts_of_running_texts_are_read_once() -> None:
    target = Gated(10**6)
    lm = LanguageModel(target)

    async def main() -> int:
        with lm.serving(at_once=3, kept=0) as serving:
            endless = serving.read(lambda: lm.write(PROMPT, max_new_tokens=10**6))
            await anext(endless)
            second = lm.write(PROMPT, max_new_tokens=3)
            await read(serving, lambda: second)
            await endless.aclose()
            return second.result().cached_tokens

    assert run(main()) == len(PROMPT) - 1


def test_what_a_forgotten_model_wrote_is_not_kept() -> None:
    lm = LanguageModel(tabled())

    async def main() -> None:
        with lm.serving() as serving:
            await read(serving, lambda: lm.write(PROMPT, max_new_tokens=3))
            assert len(serving.kept) == 1
            lm.forget()
            assert serving.rows == len(serving.kept) == 0

    run(main())


# --- ends -------------------------------------------------------------------------------------------------------


def test_hundreds_of_cancelled_texts_leave_nothing() -> None:
    lm, dice = LanguageModel(tabled()), random.Random(3)

    async def briefly(serving: Serving) -> None:
        task = asyncio.create_task(read(serving, lambda: lm.write(PROMPT, max_new_tokens=10**6)))
        await asyncio.sleep(dice.random() * 0.02)
        task.cancel()
        await asyncio.wait([task])

    async def main() -> tuple[int, int]:
        with lm.serving(at_once=8, kept=2, max_rows=400) as serving:
            await briefly(serving)
            before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
            for _ in range(10):
                await asyncio.gather(*(briefly(serving) for _ in range(50)))
            assert (serving.waiting, serving.running, serving.paused) == (0, 0, 0)
            assert len(serving.kept) <= 2
            assert not serving.kept._lent
            after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        return before, after

    before, after = run(main())
    assert after <= before
    assert writing_threads() == 0


@pytest.mark.parametrize("apart", [True, False])
def test_closing_ends_all_texts(apart: bool) -> None:
    lm, seen = LanguageModel(tabled()), [list[Piece]() for _ in range(6)]

    async def main() -> None:
        serving = lm.serving(at_once=2)
        texts = [lm.write(PROMPT, max_new_tokens=10**6) for _ in range(6)]
        tasks = [
            asyncio.create_task(read(serving, lambda text=text: text, pieces))  # type: ignore[misc]
            for text, pieces in zip(texts, seen, strict=True)
        ]
        while not seen[0] or serving.running + serving.waiting < 6:
            await asyncio.sleep(0)
        await (asyncio.to_thread(serving.close) if apart else asyncio.sleep(0))
        serving.close()
        await asyncio.gather(*tasks)
        assert {text.result().finish for text in texts} == {"cancelled"}
        assert (serving.rows, serving.running, serving.waiting, serving.closed) == (0, 0, 0, True)
        with pytest.raises(InputError, match="closed"):
            await read(serving, lambda: lm.write(PROMPT))

    run(main())
    assert writing_threads() == 0


class Small(TableTarget):
    """No text can have more rows than there is memory for, and all of them together neither."""

    memory = 10**6
    refused = 0

    def submit(self, requests: Any) -> Any:
        if sum(request.end for request in requests) > self.memory:
            self.refused += 1
            raise MemoryError
        return super().submit(requests)


LONG_PROMPT = 80


class BrieflySmall(Gated):
    """One of three texts has no memory, with the others and then alone. Afterwards there is plenty."""

    refused = 0
    together = 0
    """The most rows of three texts in one forward."""
    schedule: RowSchedule | None = None
    fewest = 10**6
    """Rows that were allowed at any time."""

    def submit(self, requests: Any) -> Any:
        long = any(request.end > LONG_PROMPT for request in requests)
        if long and (self.refused == 1 or (self.refused == 0 and len(requests) == 3)):
            self.refused += 1
            raise MemoryError
        assert self.schedule is not None
        self.fewest = min(self.fewest, self.schedule._most or self.fewest)
        if len(requests) == 3:
            self.together = max(self.together, sum(request.end for request in requests))
        return super().submit(requests)


def after_a_shortage(tokens: int, limit: int | None) -> tuple[BrieflySmall, int | None]:
    """Three texts, of which one lacks memory at the beginning: their target, and the rows that are allowed then."""
    target = BrieflySmall(0, eos=frozenset())
    lm = LanguageModel(target)

    async def main() -> int | None:
        with lm.serving(at_once=3, kept=0, max_rows=limit) as serving:
            target.schedule = serving._shared.schedule
            prompts = [PROMPT, PROMPT, [n % 5 for n in range(LONG_PROMPT)]]
            texts = [lm.write(prompt, max_new_tokens=tokens, method="plain") for prompt in prompts]
            written = asyncio.gather(*(read(serving, lambda text=text: text) for text in texts))  # type: ignore[misc]
            await arrived(serving, 3)
            target.gate.set()
            await written
            assert [len(text.result().tokens) for text in texts] == [tokens] * 3
            assert serving.pauses > 0
            assert serving.max_rows == limit
            return target.schedule._most

    rows: int | None = run(main())
    assert target.refused == 2
    return target, rows


@pytest.mark.parametrize("limit", [None, 1400])
def test_after_a_shortage_of_memory_texts_are_written_together_again(limit: int | None) -> None:
    target, rows = after_a_shortage(400, limit)
    assert target.together > 600
    assert rows is None or FLOOR < rows <= (limit or rows)


def test_a_shortage_of_memory_leaves_rows_for_several_texts() -> None:
    """However little the texts held that had memory."""
    assert after_a_shortage(400, None)[0].fewest == FLOOR


def test_a_text_without_memory_ends_alone() -> None:
    target = Small(habitual(), SIZE)
    target.memory, lm = 40, LanguageModel(target)

    async def main() -> list[Any]:
        with lm.serving() as serving:
            texts = [lm.write(PROMPT, max_new_tokens=n, method="plain") for n in (60, 20, 20)]
            return await asyncio.gather(
                *(read(serving, lambda text=text: text) for text in texts),  # type: ignore[misc]
                return_exceptions=True,
            )

    failed, *written = run(main())
    assert isinstance(failed, OutOfMemory)
    assert "not enough memory for the KV rows" in str(failed)
    expected = LanguageModel(tabled()).generate(PROMPT, max_new_tokens=20, method="plain").tokens
    assert [tokens_of(pieces) for pieces in written] == [expected] * 2
    assert target.refused > 0
