"""A text with tokens behind it that were not emitted: for a drafter, a context like any other."""

import gc
from typing import Any

import numpy as np
import pytest

from engine import SIZE
from paceline.context import Context, Ending
from paceline.drafters import Budget, Drafter, make_drafter
from paceline.drafters.noise import SharedNoise
from paceline.law import Sampling
from paceline.tree import Ints

IDS = np.arange(50)
TEXT = [0, 3, 1, 4, 2, 0, 3, 1]


def context_of(tokens: Any) -> Context:
    """With an end that most of these texts pass: no hypothesis minds."""
    ending = Ending(max_new_tokens=30, eos=frozenset({5}), criteria=(lambda text: bool(text[-1] == 4),))
    return Context(tokens, Sampling(temperature=0.8, seed=4), ending, sample=2)


def committed(prompt: list[int], emitted: list[int]) -> Context:
    """A real context with these tokens, whatever ends it."""
    context = context_of(prompt)
    context.ending = Ending(max_new_tokens=30, eos=frozenset({5}))
    for token in emitted:
        context.commit(token)
        context.finish = None
    return context


def asked(context: Context) -> list[Any]:
    """All that a drafter may ask."""
    noise = SharedNoise.of(context)
    return [
        context.tokens.tolist(),
        context.emitted.tolist(),
        context.root,
        len(context),
        context.room,
        context.prompt_length,
        context.sampling,
        context.ending.eos,
        context.foreseeable,
        context.finish,
        context.gumbel(2, IDS).tolist(),
        context.exponentials(0, IDS).tolist(),
        context.exponentials(IDS % 7, IDS).tolist(),
        context.draft_coins(1, IDS).tolist(),
        context.draft_coins(1, IDS).tolist(),
        noise and noise.wins(np.full((1, 50), 0.02), IDS[None], 3).tolist(),
    ]


@pytest.mark.parametrize("emitted", [[], [2], [2, 5, 4]])
@pytest.mark.parametrize("ahead", [[], [1], [4, 5, 0, 2, 2, 2, 2, 2]])
def test_it_answers_like_a_context_with_the_same_tokens(emitted: list[int], ahead: list[int]) -> None:
    for foreseeable in (True, False):
        base, same = committed(TEXT, emitted), committed(TEXT, emitted + ahead)
        base.foreseeable = same.foreseeable = foreseeable
        assert asked(base.extended(ahead)) == asked(same)
        nested: Context = committed(TEXT, emitted)
        nested.foreseeable = foreseeable
        for token in ahead:
            nested = nested.extended([token])
        fresh = committed(TEXT, emitted + ahead)  # whose coins were not asked for yet
        fresh.foreseeable = foreseeable
        assert asked(nested) == asked(fresh)


@pytest.mark.parametrize("spec", ["lookup", "lookup:chain=true", "suffix", "spectra", "lookahead"])
def test_drafters_draft_for_it(spec: str) -> None:
    for seed in range(8):
        ahead = np.random.default_rng(seed).integers(0, SIZE, seed).tolist()
        text = TEXT * 2
        trees = [
            draft(make_drafter(spec), context) for context in (context_of(text).extended(ahead), committed(text, ahead))
        ]
        assert trees[0] == trees[1]


def draft(drafter: Drafter, context: Context) -> list[Any]:
    tree = drafter.propose_one(drafter.open(context), Budget(12, 5))
    return [tree.tokens.tolist(), tree.parents.tolist(), tree.scores.tolist()]


def test_it_stays_as_it_is_while_the_text_goes_on() -> None:
    context = context_of(TEXT)
    right, wrong = context.extended([2, 1]), context.extended([3])
    before = asked(right)[:12], asked(wrong)[:12]
    context.commit(2)
    assert (asked(right)[:12], asked(wrong)[:12]) == before
    later = context.extended([1])
    assert later.tokens.tolist() == right.tokens.tolist()
    assert wrong.tokens.tolist() == [*TEXT, 3]
    assert context.tokens.tolist() == [*TEXT, 2], "nothing was committed for it"


def test_no_view_of_tokens_ever_changes() -> None:
    """Whichever are held, in whatever order they are asked for, while the text goes on."""
    random = np.random.default_rng(0)
    context = Context(TEXT, Sampling(), Ending(max_new_tokens=1000))
    texts: list[tuple[Context, list[int]]] = [(context, TEXT)]
    held: list[tuple[Ints, list[int]]] = []
    for _ in range(400):
        if random.random() < 0.1:
            context.commit(int(random.integers(50)))
            texts[0] = context, context.tokens.tolist()
        text, tokens = texts[int(random.integers(len(texts)))]
        more = random.integers(50, size=random.integers(4)).tolist()
        texts.append((text.extended(more), tokens + more))
        if random.random() < 0.5:
            text, tokens = texts[int(random.integers(len(texts)))]
            start = int(random.integers(-9, 9))
            held.append((text.tokens[start:], tokens[start:]))
        if random.random() < 0.3 and held:
            held.pop(int(random.integers(len(held))))
        assert all(view.tolist() == expected for view, expected in held)
    for text, tokens in texts[1:]:
        assert text.tokens.tolist() == tokens


def test_many_take_no_more_memory_than_one() -> None:
    context = Context(np.arange(100_000) % 9, Sampling(), Ending(max_new_tokens=10))
    scratch = context._scratch
    first = context.extended([1]).tokens
    address = first.ctypes.data
    del first
    gc.collect()
    for number in range(100):
        text = context.extended([number]).extended([3, 4])
        assert text.tokens[-3:].tolist() == [number, 3, 4]
        assert text.tokens.ctypes.data == address
    assert scratch._buffer.nbytes < 3 * context.tokens.nbytes


def test_it_takes_no_tokens_and_asks_no_stop_rule() -> None:
    calls: list[int] = []
    ending = Ending(max_new_tokens=3, criteria=(lambda text: bool(calls.append(len(text))),))
    hypothesis = Context(TEXT, Sampling(), ending).extended([1, 2, 3, 4, 5])
    assert (hypothesis.room, calls, hypothesis.finish) == (-2, [], None)
    with pytest.raises(TypeError, match="extend it"):
        hypothesis.commit(1)
    with pytest.raises(TypeError, match="does not end"):
        hypothesis.cancel()
    with pytest.raises(ValueError, match="read-only"):
        hypothesis.tokens[0] = 3
