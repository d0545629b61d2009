"""A text is one list of events, however rounds and readers cut it."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pytest

from paceline.api import piece as piece_module
from paceline.api.model import LanguageModel
from paceline.api.piece import Piece, Pieces
from paceline.context import Context
from paceline.drafters import Budget, Drafter
from paceline.engine.emission import Emission
from paceline.targets.replay import ReplayTarget
from paceline.tree import DraftTree
from paceline.vocabulary import Vocabulary
from paceline.vocabulary.detokenize import Detokenizer
from tokenizer_kinds import FOR_TEXT, OPAQUE, REAL_NAMES, REPLACEMENT, TEXTS, decode, vocabulary_of

COUNT = 5
"""Tokens of a text."""
Sizes = tuple[int, ...]


class Rehearsed(Drafter):
    """Drafts so much of a text that is known that rounds have these sizes; behind its end it drafts on."""

    name = "rehearsed"

    def __init__(self, text: Sequence[int], sizes: Sizes) -> None:
        self._text, self._sizes = text, sizes

    def open(self, context: Context) -> tuple[Context, Iterator[int]]:
        return context, iter(self._sizes)

    def propose_one(self, state: tuple[Context, Iterator[int]], budget: Budget) -> DraftTree:
        context, sizes = state
        length = len(context)
        return DraftTree.chain(self._text[length : length + next(sizes, 1) - 1])


def cuts(count: int) -> Iterator[Sizes]:
    """Every way to cut so many tokens into rounds."""
    for borders in product((False, True), repeat=count - 1):
        sizes = [1]
        for border in borders:
            if border:
                sizes.append(1)
            else:
                sizes[-1] += 1
        yield tuple(sizes)


def what(piece: Piece) -> tuple[Any, ...]:
    """All of an event that does not depend on drafts."""
    return piece.token, piece.bytes, piece.text, piece.finish, piece.logprobs


def events(name: str, prompt: list[int], ids: list[int], **how: Any) -> tuple[list[Any], str, str]:
    """The events of a text by the first cut, and its text and end: by every other cut they are the same, read piece by
    piece, in bursts, or at the end."""
    found = list[tuple[list[Any], str, str]]()
    vocabulary, eos = vocabulary_of(name), how.pop("eos", frozenset())
    target = ReplayTarget([[*prompt, *ids]], vocabulary.size, eos=eos)
    lm = LanguageModel(target, vocabulary)
    for sizes in cuts(len(ids)):
        given = {"method": Rehearsed([*prompt, *ids], sizes), "planner": "fixed:99", "max_new_tokens": len(ids), **how}
        writing = lm.write(prompt, **given)
        streamed = list(writing.pieces())
        with lm.batch() as batch:
            again = batch.add(prompt, **given)
            burst = [piece for _, pieces, _ in batch for piece in pieces]
        text = writing.result()
        assert [piece.token for piece in streamed] == text.tokens
        assert [piece.finish for piece in streamed] == [None] * (len(text.tokens) - 1) + [text.finish]
        assert "".join(piece.text for piece in streamed) == text.text == again.result().text
        found += [([what(piece) for piece in read], text.text, text.finish) for read in (streamed, burst, text.pieces)]
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.parametrize("name", [*FOR_TEXT, *REAL_NAMES])
def test_every_cut_of_a_text_has_the_same_events(name: str) -> None:
    for sentence in TEXTS[1:4]:
        ids = vocabulary_of(name).encode(sentence, add_special=False).tolist()
        cut = next(k for k in range(1, len(ids)) if REPLACEMENT not in decode(name, ids[:k]))
        prompt, ids = ids[:cut], ids[cut:][:COUNT]
        before = len(decode(name, prompt))
        whole = decode(name, [*prompt, *ids])[before:]
        found, text, finish = events(name, prompt, ids)
        assert (text, finish) == (whole, "length")
        spelled = b"".join(spelling for _, spelling, *_ in found)
        assert spelled.decode(errors="replace").strip() == whole.strip() or REPLACEMENT in whole

        stop = whole[len(whole) // 2 :][:3].replace(REPLACEMENT, "")
        if stop:
            _, text, finish = events(name, prompt, ids, stop=[stop, "never to be found"])
            assert (text, finish) == (whole[: whole.index(stop)], "stop")
        held = whole[len(whole) // 2 :].replace(REPLACEMENT, "")
        _, text, finish = events(name, prompt, ids, stop=[f"{held}\x00"])
        assert (text, finish) == (whole, "length"), "what was held back belongs to the last token"
        if ids.count(ids[3]) == 1:
            found, text, finish = events(name, prompt, ids, eos=frozenset({ids[3]}))
            assert (len(found), finish) == (4, "eos")


@pytest.mark.parametrize("name", OPAQUE)
def test_an_opaque_decoder_gives_the_rest_once(name: str) -> None:
    ids = vocabulary_of(name).encode(TEXTS[0], add_special=False).tolist()[: 1 + COUNT]
    _, text, _ = events(name, ids[:1], ids[1:])
    assert text == decode(name, ids)[len(decode(name, ids[:1])) :]


def test_an_event_has_its_log_probability_inside_a_burst() -> None:
    ids = vocabulary_of("byte-level").encode(TEXTS[0], add_special=False).tolist()
    found, _, _ = events("byte-level", ids[:2], ids[2:][:COUNT], logprobs=1)
    assert [one.token for *_, one in found] == ids[2:][:COUNT]
    assert all(one.top[0].token == one.token and one.logprob == 0 for *_, one in found)


def test_a_text_that_waits_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer without known spellings decodes the whole prompt before the first token."""
    vocabulary, begun = vocabulary_of("word ends"), list[int]()

    class Noted(Detokenizer):
        def __init__(self, vocabulary: Vocabulary, *, prefix: Sequence[int] = ()) -> None:
            begun.append(len(prefix))
            super().__init__(vocabulary, prefix=prefix)

    monkeypatch.setattr(piece_module, "Detokenizer", Noted)
    prompt = vocabulary.encode("Once upon a time")
    pieces = Pieces(vocabulary, (), prompt)
    assert begun == []
    for token in prompt[-2:]:
        pieces.of(Emission(token, ""))
    assert begun == [len(prompt)]
