"""Stop strings over ids, held to their definition: decode everything after every token, and look."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from paceline.vocabulary import StopHit, StopStrings, TextStream
from tokenizer_kinds import (
    FOR_TEXT,
    REPLACEMENT,
    STREAMABLE,
    TEXTS,
    decode,
    ids_named,
    random_sequences,
    vocabulary_of,
)


def expected_stop(
    name: str, prompt: Sequence[int], ids: Sequence[int], stops: Sequence[str]
) -> tuple[int, StopHit] | None:
    """The definition: decode everything after every token, and look."""
    told = len(decode(name, prompt))
    for count in range(1, len(ids) + 1):
        text = decode(name, [*prompt, *ids[:count]])[told:]
        found = [(text.index(s) + len(s), text.index(s), s) for s in stops if s in text]
        if found:
            end, start, stop = min(found)
            return count, StopHit(stop, start, end)
    return None


def check_stops(name: str, prompt: Sequence[int], ids: Sequence[int], stops: Sequence[str]) -> None:
    expected = expected_stop(name, prompt, ids, stops)
    matcher = StopStrings(vocabulary_of(name), stops).open(prompt)
    hits = [matcher.push(token) for token in ids]
    assert next(((i + 1, hit) for i, hit in enumerate(hits) if hit), None) == expected
    stream = TextStream(vocabulary_of(name), stops, prompt)
    pieces = [*map(stream.push, ids), stream.finish()]
    text = decode(name, [*prompt, *ids])[len(decode(name, prompt)) :]
    if expected:
        count, hit = expected
        text = decode(name, [*prompt, *ids[:count]])[len(decode(name, prompt)) :][: hit.start]
        assert not any(pieces[count:])
    assert "".join(pieces) == text
    assert stream.stopped == (expected and expected[1].stop)


@pytest.mark.parametrize("name", FOR_TEXT)
def test_a_stop_string_is_found_wherever_it_is_split(name: str) -> None:
    for sentence in TEXTS:
        ids = vocabulary_of(name).encode(sentence).tolist()
        text = decode(name, ids)
        cut = next(k for k in range(4, len(ids)) if REPLACEMENT not in decode(name, ids[:k]))
        for start in range(0, len(text), 3):
            for length in (1, 2, 7):
                check_stops(name, [], ids, [text[start : start + length]])
                stops = [text[start : start + length], text[start + 1 :][:4] + "@"]
                check_stops(name, ids[:cut], ids[cut:], stops)


@pytest.mark.parametrize("name", [name for name in STREAMABLE if name not in FOR_TEXT] + FOR_TEXT)
def test_stop_strings_in_nonsense(name: str) -> None:
    rng = random.Random(3)
    for ids in random_sequences(name, 400, seed=4):
        text = decode(name, ids).replace(REPLACEMENT, "")
        starts = [rng.randrange(len(text)) for _ in range(3)] if text else []
        stops = [text[start : start + rng.randrange(1, 5)] for start in starts]
        check_stops(name, [], ids, stops or ["never"])


@pytest.mark.parametrize(
    ("prompt", "tokens", "stops", "hit"),
    [
        ("", "abcde", ["bcd", "cd", "d"], StopHit("bcd", 1, 4)),
        ("", "abcde", ["abcde", "bc"], StopHit("bc", 1, 3)),
        ("", "ababac", ["abac"], StopHit("abac", 2, 6)),
        ("", "aab", ["ab", "aaa"], StopHit("ab", 1, 3)),
        ("ab", "cab", ["abc", "bc"], None),
        ("abc", "dabc", ["abc"], StopHit("abc", 1, 4)),
        ("", "abc", [], None),
    ],
)
def test_which_stop_string_wins(prompt: str, tokens: str, stops: list[str], hit: StopHit | None) -> None:
    matcher = StopStrings(vocabulary_of("fallback"), stops).open(ids_named("fallback", *prompt))
    for token in ids_named("fallback", *tokens):
        matcher.push(token)
    assert matcher.hit == hit


def test_a_stop_string_in_an_open_byte_run_stops_at_once() -> None:
    ids = ids_named("fallback", "a", "<0xC3>", "<0xB3>", "<0xC5>", "<0x82>")
    matcher = StopStrings(vocabulary_of("fallback"), ["ół"]).open()
    assert [bool(matcher.push(token)) for token in ids] == [False] * 4 + [True]
    stream = TextStream(vocabulary_of("fallback"), ["ł"])
    assert ([stream.push(token) for token in ids], stream.stopped) == (["a", "", "", "", "ó"], "ł")


def test_special_tokens_are_no_text_unless_they_are_shown() -> None:
    ids = ids_named("byte-level", "a", "<|end|>", "b")
    assert decode("byte-level", ids) == "ab"
    for skip_special, stops, hits in [
        (True, ["<|end|>"], [False, False, False]),
        (True, ["ab"], [False, False, True]),
        (False, ["|end"], [False, True, True]),
        (False, ["ab"], [False, False, False]),
    ]:
        matcher = StopStrings(vocabulary_of("byte-level"), stops, skip_special).open()
        assert [bool(matcher.push(token)) for token in ids] == hits


def test_text_that_may_begin_a_stop_string_is_held_back_and_no_more() -> None:
    stream = TextStream(vocabulary_of("fallback"), ["stop", "op."])
    told = [stream.push(token) for token in ids_named("fallback", *"xstoststox")]
    assert told == ["x", "", "", "", "sto", "", "st", "", "", "stox"]
    assert (stream.finish(), stream.stopped) == ("", None)


@pytest.mark.parametrize("stops", [[""], ["a", ""], "", [None]])
def test_an_empty_stop_string_is_refused(stops: Any) -> None:
    with pytest.raises(ValueError, match="at least one character"):
        StopStrings(vocabulary_of("fallback"), stops)


@pytest.mark.parametrize("name", ["bielik-v3-APT4", "qwen2-2.5-3"])
def test_real_tokenizers_stop_where_their_text_does(name: str) -> None:
    for sentence in TEXTS:
        ids = vocabulary_of(name).encode(sentence, add_special=False).tolist()
        for start in range(len(sentence)):
            check_stops(name, ids[:1], ids[1:], [sentence[start : start + 3], sentence[start] + "@"])
