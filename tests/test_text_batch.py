"""Texts written together are those written one after the other, and what they were written on comes back."""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import families
import paceline
from engine import PROMPT, SIZE, Erratic, Watched, habitual, tabled
from paceline.api.batch import Progress, TextBatch
from paceline.api.model import LanguageModel
from paceline.api.writing import Generation, Writing
from paceline.drafters import Plain
from paceline.drafters.networks.assistant import Assistant
from paceline.errors import CallbackError, InputError
from paceline.targets.base import Rows, Target
from paceline.targets.table import TableTarget
from paceline.tree import Ints
from paceline.vocabulary import Vocabulary


@cache
def speaking() -> LanguageModel:
    """A table of tokens that are bytes and short words, so that characters and stop strings are cut anywhere."""
    tokenizer = families.byte_tokenizer()
    size = len(tokenizer)
    return LanguageModel(TableTarget(habitual(size, seed=5), size), Vocabulary(tokenizer))


@cache
def pocket() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@cache
def tiny() -> LanguageModel:
    return paceline.load(families.build("mistral"))


def told(text: Generation) -> Any:
    """What a text is, however it came about: where its prompt was read before, its first token may be drafted."""
    pieces = [(piece.text, piece.token, piece.logprobs) for piece in text.pieces]
    return text.text, text.tokens, text.finish, text.prompt_tokens, pieces


# --- the same texts -----------------------------------------------------------------------------------------

PROMPTS: list[Any] = ["the rider", [7], "the rider in front", "za lidere", np.array([9, 9, 8, 9, 9])]
EACH: list[dict[str, Any]] = [
    {"stop": ["e", "rid"], "temperature": 1.0},
    {"max_new_tokens": 3, "logprobs": 2},
    {"method": "lookup:max_ngram=1", "seed": 5, "temperature": 0.7, "stop": "th"},
    {"rule": "rejection", "temperature": 1.0, "planner": "fixed:3", "stop": ["zz", "ąę"]},
    {"method": "plain", "eos": 9, "repetition_penalty": 1.5},
]


@pytest.mark.filterwarnings("ignore:samples at temperature 0")
@pytest.mark.parametrize("at_once", [1, 3, 16])
def test_texts_are_those_written_one_after_the_other(at_once: int) -> None:
    lm, finished = speaking(), list[tuple[int, int]]()
    all_of_them: dict[str, Any] = {"method": "lookup", "max_new_tokens": 24, "seed": 3, "logprobs": 0}
    texts = lm.generate_batch(
        PROMPTS, n=3, each=EACH, at_once=at_once, progress=lambda *done: finished.append(done), **all_of_them
    )
    assert [len(samples) for samples in texts] == [3] * 5
    for prompt, own, samples in zip(PROMPTS, EACH, texts, strict=True):
        alone = lm.sample(prompt, n=3, **all_of_them | own)
        assert [told(text) for text in samples] == [told(text) for text in alone]
    assert {text.finish for samples in texts for text in samples} >= {"stop", "length"}
    assert finished == [(number, 15) for number in range(1, 16)]


def test_so_are_those_of_the_bundled_models() -> None:
    prompts = ["The old house", "Stary dom stał na końcu drogi, a", "Старий дім", "The old house stood, and then"]
    for settings in (
        {"temperature": 0.8, "seed": 1, "method": "lookup"},
        {"temperature": 0.8, "draft_model": "pocket-draft", "method": "assistant"},
    ):
        how: dict[str, Any] = {"max_new_tokens": 12, "planner": "fixed:4"} | settings
        together = pocket().generate_batch(prompts, n=2, at_once=5, **how)
        assert [[told(t) for t in texts] for texts in together] == [
            [told(t) for t in pocket().sample(prompt, n=2, **how)] for prompt in prompts
        ]


def test_a_prompt_is_read_once_however_few_are_written_at_once() -> None:
    prompt = [token % 5 for token in range(33)]
    for at_once in (1, 2, 5):
        texts = LanguageModel(tabled(prefill_chunk=99)).generate_batch(
            [prompt], n=5, at_once=at_once, temperature=1.0, seed=0, max_new_tokens=6, method="plain"
        )
        assert [text.cached_tokens for text in texts[0]] == [0, 32, 32, 32, 32]


def test_texts_may_be_added_while_others_are_written() -> None:
    lm = LanguageModel(tabled())
    first = lm.generate(PROMPT, max_new_tokens=3).tokens
    ended = list[list[int]]()
    with lm.batch(at_once=2) as batch:
        batch.add(PROMPT, max_new_tokens=3)
        for writing, _, is_end in batch:
            if is_end:
                ended.append(writing.result().tokens)
                if len(ended) < 4:
                    batch.add([*PROMPT, *first[: len(ended)]], max_new_tokens=3 - len(ended) % 3)
    assert ended == [first, *(lm.generate([*PROMPT, *first[:n]], max_new_tokens=3 - n % 3).tokens for n in (1, 2, 3))]


# --- cancelling ---------------------------------------------------------------------------------------------


def steps(batch: TextBatch) -> Iterator[Progress]:
    """As iterating, but not for ever."""
    for _ in range(2000):
        if not len(batch):
            return
        yield from batch.step()
    raise AssertionError("a text is never finished")


def test_a_cancelled_text_is_the_beginning_of_itself() -> None:
    lm, drafter = LanguageModel(tabled()), Watched(Erratic())
    expected = lm.generate(PROMPT, max_new_tokens=30).tokens
    with lm.batch(at_once=2) as batch:
        written, going, waiting = (batch.add(PROMPT, method=drafter, max_new_tokens=30) for _ in range(3))
        for writing, pieces, _ in steps(batch):
            if writing is written and pieces:
                batch.cancel(written)
                batch.cancel(waiting)
    emitted = written.context.emitted.tolist()
    assert 0 < len(emitted) < 30
    assert emitted == expected[: len(emitted)]
    assert going.result().tokens == expected
    assert len(waiting.context.emitted) == 0
    assert drafter.opened == drafter.closed == 2
    batch.cancel(going)
    assert [w.result().finish for w in (written, going, waiting)] == ["cancelled", "length", "cancelled"]
    assert [w.result().tokens for w in (written, waiting)] == [emitted, []]
    assert [piece.token for piece in written.result().pieces] == emitted


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_text_that_was_paused_is_the_same_text(every: int) -> None:
    """Also while its prompt is read, in the middle of a character or of a stop string, and on rows of another text."""
    usual: dict[str, Any] = {"method": "lookup", "max_new_tokens": 24, "seed": 3, "logprobs": 0}
    lm, each = speaking(), [usual | how for how in EACH if how.get("rule") != "rejection"]
    prompts = [prompt for prompt, how in zip(PROMPTS, EACH, strict=True) if how.get("rule") != "rejection"]
    expected = [told(lm.generate(prompt, **how)) for prompt, how in zip(prompts, each, strict=True)]
    with lm.batch(at_once=2) as batch:
        texts = [batch.add(prompt, **how) for prompt, how in zip(prompts, each, strict=True)]
        paused, steps = list[Writing](), 0
        while len(batch) or paused:
            batch.step()
            steps += 1
            for writing in paused:
                batch.resume(writing)
            paused = [] if steps % every else list(batch._writing.values())
            for writing in paused:
                batch.pause(writing)
            paused = [writing for writing in paused if writing in batch._paused]
        assert [told(writing.result()) for writing in texts] == expected
        assert sum(len(writing.session.rounds) for writing in texts if writing.session) > len(texts)
        with pytest.raises(InputError, match="not paused"):
            batch.resume(texts[0])
        batch.pause(texts[0])
        assert len(batch) == 0, "a text that has ended stays as it is"


# --- nothing is left behind ---------------------------------------------------------------------------------


class Buffers:
    """All rows that a target opens from now on."""

    def __init__(self, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = list[Any]()
        opens = target.open

        def noted(capacity: int = 0) -> Rows:
            self.rows.append(opens(capacity))
            return self.rows[-1]

        monkeypatch.setattr(target, "open", noted)

    @property
    def held(self) -> list[Any]:
        """Those that hold memory."""
        return [rows for rows in self.rows if rows.layers]


@pytest.mark.parametrize(("kind", "schedules"), [("tiny", 8), ("pocket", 3)])
def test_no_schedule_of_texts_leaves_anything(kind: str, schedules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lm: LanguageModel = {"tiny": tiny, "pocket": pocket}[kind]()
    draft = paceline.load("pocket-draft", dtype="float32", generation_config=False) if kind == "pocket" else None
    alone: dict[Any, list[int]] = {}
    lm.forget()
    buffers = Buffers(lm.target, monkeypatch)
    drafts = Buffers(draft.target, monkeypatch) if draft is not None else None
    for seed in range(schedules):
        random = np.random.default_rng(seed)
        drafter = Watched(Plain() if draft is None else Assistant(model=draft, top=2), fails="propose" * (seed == 1))
        batch, at_once = lm.batch(at_once=1 + seed % 4), 1 + seed % 4
        kept, added = batch._kept, list[tuple[Writing, Any]]()
        drafter._after = 4
        with batch:
            for _ in range(12):
                if random.random() < 0.6:
                    how = int(random.integers(1, 40)), int(random.integers(2, 9)), int(random.integers(2))
                    prompt = np.arange(how[0]) % 13 + 1
                    settings = {"temperature": float(how[2]), "method": drafter, "planner": "fixed:3"}
                    added.append((batch.add(prompt, max_new_tokens=how[1], ignore_eos=True, **settings), how))
                if added and random.random() < 0.2:
                    batch.cancel(added[random.integers(len(added))][0])
                if added and random.random() < 0.3:
                    batch.pause(added[random.integers(len(added))][0])
                for paused in [writing for writing in batch._paused if random.random() < 0.4]:
                    batch.resume(paused)
                batch.step()
                assert len(kept) <= at_once
                assert len(kept._lent) == len(batch._writing)
                assert batch._batch.seated <= at_once
                assert len(buffers.held) <= at_once + len(batch._writing) - batch._batch.seated
            if seed % 2 == 0:
                for paused in list(batch._paused):
                    batch.resume(paused)
                list(steps(batch))
                assert not kept._lent
        assert (len(batch), len(kept), len(kept._lent)) == (0, 0, 0)
        assert buffers.held == []
        assert drafter.opened == drafter.closed
        assert drafts is None or len(drafts.held) <= seed + 1
        for writing, how in added:
            if how not in alone:
                alone[how] = _alone(lm, *how)
            emitted = writing.context.emitted.tolist()
            assert emitted == alone[how][: len(emitted)]
            assert writing.context.finish in (None, "cancelled") or emitted == alone[how]
        lm.forget()
        buffers.rows.clear()


def _alone(lm: LanguageModel, length: int, count: int, warmth: int) -> list[int]:
    how: dict[str, Any] = {"max_new_tokens": count, "temperature": float(warmth), "ignore_eos": True}
    return lm.generate(np.arange(length) % 13 + 1, method="plain", **how).tokens


# --- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [
        ("one text", {}, "a batch is a list of prompts, not one text; put it into a list"),
        ([[1]], {"n": 0}, "cannot draw 0 samples; ask for 1 or more"),
        ([[1], [2]], {"each": [{}]}, "'each' holds settings for 1 prompts and there are 2"),
        ([[1]], {"each": [{"sample": 3}]}, "leave 'sample' out"),
        ([[1]], {"each": [{"temprature": 1}]}, "did you mean 'temperature'"),
        ([[1]], {"at_once": 0}, "at least 1 sequence at once"),
        ([[1], []], {}, "the prompt is empty"),
        ([[1], [SIZE]], {}, "outside the model's vocabulary of 6; the tokenizer that made it does not fit"),
        ([[1], "text"], {}, "came without a tokenizer"),
        ([[1]], {"stop": "x"}, "stop strings cannot be seen; leave them out"),
    ],
)
def test_what_cannot_be_written_is_told(prompts: Any, options: dict[str, Any], said: str) -> None:
    lm = LanguageModel(tabled())
    with pytest.raises(ValueError, match=said):
        lm.generate_batch(prompts, **options)
    assert lm.generate_batch([]) == []


def failing(tokens: Ints) -> bool:
    if len(tokens) == len(PROMPT) + 4:
        raise OSError("the criterion fails")
    return False


def test_a_text_that_fails_says_so_and_the_others_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = LanguageModel(tabled())
    expected = lm.generate(PROMPT, max_new_tokens=9, method="lookup")
    opens, opened = lm.target.open, itertools.count()

    def no_room(capacity: int = 0) -> Rows:
        if next(opened) == 1:
            raise MemoryError("no room")
        return opens(capacity)

    monkeypatch.setattr(lm.target, "open", no_room)
    settings: list[dict[str, Any]] = [{}, {}, {"criteria": (failing,)}, {}]
    with lm.batch() as batch:
        writings = [batch.add(PROMPT, max_new_tokens=9, method="lookup", **own) for own in settings]
        with pytest.raises(ValueError, match="outside the model's vocabulary of 6"):
            batch.add([SIZE + 1])
        said: dict[Writing, list[int | None]] = {writing: [] for writing in writings}
        ends = list[Writing]()
        for writing, pieces, ended in steps(batch):
            said[writing] += [piece.token for piece in pieces]
            ends += [writing] * ended
        assert not batch._kept._lent
    assert sorted(map(writings.index, ends)) == [0, 1, 2, 3]
    for number, error in ((1, "not enough memory"), (2, "the criterion fails")):
        with pytest.raises((MemoryError, CallbackError), match=error):
            writings[number].result()
        assert said[writings[number]] == expected.tokens[: 4 if number == 2 else 0]
    assert [told(writings[number].result()) for number in (0, 3)] == [told(expected)] * 2
    with pytest.raises(CallbackError, match="the criterion fails"):
        lm.generate_batch([PROMPT] * 2, each=[{}, {"criteria": (failing,)}])


@pytest.mark.parametrize("where", ["propose", "criterion", "feed"])
def test_after_an_interrupt_nothing_is_left(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = LanguageModel(tabled())

    def interrupt(*given: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    drafter = Watched(Erratic(), fails=where, after=1, error=KeyboardInterrupt)
    batch = lm.batch(at_once=2)
    criteria = (interrupt,) if where == "criterion" else ()
    for _ in range(3):
        batch.add(PROMPT, method=drafter, criteria=criteria)
    with monkeypatch.context() as patch:
        if where == "feed":
            patch.setattr(Writing, "feed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            list(steps(batch))
    assert (len(batch), len(batch._kept), len(batch._kept._lent)) == (0, 0, 0)
    assert drafter.opened == drafter.closed == 2
    with pytest.raises(ValueError, match="this batch is closed; open another one"):
        batch.add(PROMPT)
    assert lm.generate_batch([PROMPT], max_new_tokens=9)[0][0].tokens == lm.generate(PROMPT, max_new_tokens=9).tokens


# --- from inside, and by halves -----------------------------------------------------------------------------


@pytest.mark.parametrize("reach", ["cancel", "step", "close"])
def test_who_reaches_for_the_batch_from_inside_is_told_and_the_others_go_on(reach: str) -> None:
    lm = LanguageModel(tabled())
    batch = lm.batch()

    def criterion(tokens: Ints) -> bool:
        getattr(batch, reach)(*([meddler] if reach == "cancel" else []))
        return False

    meddler, other = batch.add(PROMPT, criteria=(criterion,)), batch.add(PROMPT, max_new_tokens=9)
    list(steps(batch))
    with pytest.raises(CallbackError, match=r"from inside one of its sequences|from inside its own callback"):
        meddler.result()
    assert other.result().tokens == lm.generate(PROMPT, max_new_tokens=9).tokens
    assert not batch._kept._lent


def test_whoever_leaves_the_loop_finds_there_what_was_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = speaking().batch()
    writings = [batch.add(prompt, max_new_tokens=12) for prompt in ("the rider", "in front", "za liderem")]
    heard: dict[Writing, list[int | None]] = {writing: [] for writing in writings}
    gone = batch.add("gone", max_new_tokens=12)
    while len(batch):
        for writing, pieces, _ in batch:
            if writing is writings[0] and gone.context.finish is None:
                batch.cancel(gone)
            assert writing is not gone or gone.context.finish is None, "nothing is told of what was cancelled"
            heard.setdefault(writing, []).extend(piece.token for piece in pieces if piece.token is not None)
            break
    for writing in writings:
        assert heard[writing] == writing.result().tokens


def test_seats_are_not_kept_for_those_who_wait_for_anothers_prompt() -> None:
    lm = LanguageModel(tabled(prefill_chunk=4))
    prompt = (PROMPT * 20)[:100]
    with lm.batch(at_once=3) as batch:
        for number in range(6):
            batch.add(prompt, sample=number, temperature=1.0, max_new_tokens=4)
        short = batch.add([5, 5], max_new_tokens=4)
        for _ in range(8):
            batch.step()
        assert short.context.finish is not None, "the others are still reading"
        assert sum(len(writing.context.emitted) > 0 for writing in batch._writing.values()) == 0
        list(steps(batch))


def test_a_text_is_written_once() -> None:
    lm = LanguageModel(tabled())
    with lm.batch() as batch:
        writing = batch.add(PROMPT, max_new_tokens=5)
        batch.step()
        with pytest.raises(ValueError, match="a text is written once"):
            next(writing.pieces())
        list(steps(batch))
    assert writing.result().tokens == lm.generate(PROMPT, max_new_tokens=5).tokens


class Reusing:
    """A processor that answers every call in the same memory."""

    def __init__(self) -> None:
        self.memory: Any = None

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.memory is None:
            self.memory = torch.empty_like(scores)
        return torch.mul(scores, 0.5, out=self.memory)


def test_a_processor_that_reuses_its_memory_mixes_no_texts() -> None:
    lm, prompts = speaking(), ["the rider", "za lidere", "the rider in front"]
    how: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 12, "processors": (Reusing(),), "method": "lookup"}
    together = lm.generate_batch(prompts, **how)
    assert [texts[0].tokens for texts in together] == [lm.generate(prompt, **how).tokens for prompt in prompts]


def test_the_number_of_finished_texts_grows_by_one() -> None:
    told: list[tuple[int, int]] = []
    LanguageModel(tabled()).generate_batch(
        (prompt for prompt in ([1], [2], [3])),
        n=2,
        max_new_tokens=3,
        temperature=1.0,
        progress=lambda *done: told.append(done),
    )
    assert told == [(number, 6) for number in range(1, 7)]
