"""A message is a function of the tokens: its events add up to it, and no way to cut a reply changes them."""

import json
import random
import re
from itertools import product
from typing import Any

import pytest
from transformers.cli.serving import utils as serving

from paceline.api.piece import Piece
from paceline.errors import InputError
from paceline.integrations.server.replies import FORMATS, ChatReply, Delta, ReplyFormat, format_of
from paceline.vocabulary import Vocabulary
from replies import (
    CASES,
    GLM,
    HARMONY,
    HERMES,
    TOOLS,
    UNCLOSED,
    W,
    added_up,
    is_spoken,
    merged,
    message_of,
    of_text,
    pieces,
    read,
    slow,
    vocabulary,
)
from tokenizer_kinds import REAL_NAMES, STREAMABLE, TEXTS, wrapped

TOKENIZERS = ["byte-level", "fallback", *REAL_NAMES]
HOW = ["special", "added", "spelled"]
COUNT = 4
"""Tokens that are cut in every way."""


def named(name: str, **how: Any) -> ReplyFormat:
    return format_of(vocabulary("byte-level", name, how.pop("markers", "special")), name)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_events_of_a_reply_add_up_to_its_message(tokenizer: str, name: str) -> None:
    for how, case in product(HOW[:1] if tokenizer in REAL_NAMES else HOW, CASES[name]):
        words = vocabulary(tokenizer, name, how)
        if not is_spoken(words, name, case.text):
            continue
        found = pieces(words, case.text)
        reply, events = read(format_of(words, name), found, begun=case.begun)
        assert message_of(reply) == (case.content, case.reasoning, list(case.calls)), (how, case.text)
        deltas = [delta for each in events for delta in each]
        content, reasoning, calls = added_up(deltas)
        assert (content, reasoning) == (case.content, case.reasoning)
        assert calls == [(call.name, call.arguments) for call in reply.calls]
        assert all(delta.text or delta.name for delta in deltas)
        assert reply.end() == []


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tokenizer", ["byte-level", "bielik-v3-APT4"])
def test_bursts_change_nothing(tokenizer: str, name: str) -> None:
    """A server may send the events of several tokens at once: every cut of some tokens in a row adds up to the same."""
    for case in CASES[name][:2]:
        words = vocabulary(tokenizer, name, "special")
        found, rng = pieces(words, case.text), random.Random(case.text)
        expected = None
        for borders in product((False, True), repeat=COUNT):
            first = rng.randrange(1 + max(0, len(found) - COUNT))
            reply = ChatReply(format_of(words, name), request_id="r", tools=TOOLS, begun=case.begun)
            sent, burst = list[Delta](), list[Delta]()
            for number, piece in enumerate(found):
                burst += reply.push(piece)
                if not first <= number < first + COUNT or borders[number - first]:
                    sent, burst = [*sent, *merged(burst)], []
            sent += merged([*burst, *reply.end()])
            expected = expected or (merged(sent), reply.message)
            assert (merged(sent), reply.message) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_a_text_may_be_cut_anywhere(name: str) -> None:
    """Also inside of markers and names, and with all of it at once."""
    rng = random.Random(name)
    format = ReplyFormat(**{**vars(FORMATS[name]), "vocabulary": None})
    for case in CASES[name]:
        whole = of_text(format, [case.text], begun=case.begun)
        for _ in range(20):
            cuts = sorted(rng.choices(range(len(case.text) + 1), k=rng.randrange(8)))
            parts = [case.text[a:b] for a, b in zip([0, *cuts], [*cuts, len(case.text)], strict=True)]
            reply, deltas = of_text(format, parts, begun=case.begun)
            assert (deltas, reply.message) == (whole[1], whole[0].message)
        assert of_text(format, case.text, begun=case.begun)[1] == whole[1]


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_lost_or_said_twice(name: str) -> None:
    """Without parsing, the text is what the tokens say; and every beginning of a reply adds up to its characters."""
    format = ReplyFormat(**{**vars(FORMATS[name]), "vocabulary": None})
    for case in CASES[name]:
        if name not in ("harmony", "gemma"):
            for how in ({"tools": ()}, {"parses_calls": False}):
                reply, _ = of_text(format, case.text, begun=case.begun, **how)
                assert reply.calls == []
                said = [char for char in reply.reasoning + reply.content if not char.isspace()]
                marks = FORMATS[name].reasoning if reply.reasoning or case.begun else None
                bare = case.text
                for mark in marks or ():
                    bare = bare.replace(mark, "", 1) if mark in bare else bare
                if reply.reasoning:
                    assert said == [char for char in bare if not char.isspace()]
        reply, _ = of_text(format, case.text, begun=case.begun)
        kept = sum(not char.isspace() for char in reply.content + reply.reasoning)
        whole = sum(not char.isspace() for char in case.text)
        assert kept == whole or (
            kept < whole and (reply.calls or reply.reasoning or name == "harmony" or "<think>" in case.text)
        )


def test_random_texts_have_the_message_of_a_slow_parser() -> None:
    rng = random.Random(7)
    words = ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": "}"}}', " ", "\n"]
    words += ['{"name": "g"}', "x", "<", '"', "}", "<function=f>", "<parameter=a>", "1", "</parameter>", "</function>"]
    words += ["<function=f>\n<parameter=a>\n x\n</parameter>\n</function>", "</tool_", "é", '{"a": 1}', "[", "\\"]
    weights = [3, 3, 8, 7, 6, 3, 3, 4, 3, 1, 1, 1, 1, 1, 1, 1, 1, 5, 1, 1, 1, 1, 1]
    format, calls = ReplyFormat(**{**vars(FORMATS["tagged"]), "vocabulary": None}), 0
    for _ in range(1000):
        text = "".join(rng.choices(words, weights, k=rng.randrange(1, 14)))
        reply, deltas = of_text(format, text)
        assert message_of(reply) == slow(text), text
        assert added_up(deltas)[:2] == (reply.content, reply.reasoning)
        calls += len(reply.calls)
    assert calls > 80


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_special_tokens_stand_where_their_text_ends(tokenizer: str) -> None:
    """Text waits while it may begin a stop string or a character; a special token behind it does not overtake it."""
    for sentence in TEXTS[:5]:
        words = vocabulary(tokenizer, "tagged", "special")
        text = f"<think>{sentence}</think>{sentence} {GLM}"
        for stops in ([], [f"{sentence[-9:]}\x00"], [f"{sentence[-1]}{sentence[0]}\x00", "Brześć\x00"]):
            reply, _ = read(format_of(words, "tagged"), pieces(words, text, stops))
            assert reply.reasoning == sentence.strip()
            assert reply.content == sentence.strip()
            assert [call.arguments for call in reply.calls] == ['{"city": "Brześć", "days": 3}']
        reply, _ = read(format_of(words, "tagged"), pieces(words, text, finish=None))
        assert (reply.content, len(reply.calls)) == (sentence.strip(), 1)


def test_a_reply_that_is_cut_keeps_all_its_text() -> None:
    for finish, reason in (
        ("length", "length"),
        ("context", "length"),
        (None, "stop"),
        ("stop", "stop"),
        ("eos", "stop"),
    ):
        words = vocabulary("byte-level", "tagged", "special")
        found = pieces(words, f"I look. {UNCLOSED}", finish=finish)
        reply, events = read(format_of(words, "tagged"), found)
        assert (reply.content, reply.finish) == (f"I look. {UNCLOSED}", reason)
        assert events[-1], "what waits comes at the end"
        reply, _ = read(format_of(words, "tagged"), pieces(words, f"{HERMES}{UNCLOSED}", finish=finish))
        assert (reply.content, reply.finish, len(reply.calls)) == (
            UNCLOSED,
            "length" if reason == "length" else "tool_calls",
            2,
        )


def test_text_waits_only_while_it_may_begin_a_marker() -> None:
    reply = ChatReply(named("tagged"), request_id="r", tools=TOOLS)
    say = lambda text: reply.push(Piece(text, None, ""))  # noqa: E731
    assert say("Hi <tool") == [Delta("content", "Hi")]
    assert say("box> there") == [Delta("content", " <toolbox> there")]
    assert say("<tool_call>{") == []
    assert say("no JSON") == []
    assert say(" !") == [Delta("content", "<tool_call>{no JSON !")]
    assert say('<tool_call>{"name": "now"}') == []
    [call, arguments] = say("</tool_call>")
    assert (call.kind, call.name, call.index, arguments) == ("call", "now", 0, Delta("arguments", "{}"))
    assert reply.message["tool_calls"] == [
        {"id": call.id, "type": "function", "function": {"name": "now", "arguments": "{}"}}
    ]
    again = ChatReply(named("tagged"), request_id="s", tools=TOOLS)
    again.push(Piece(HERMES, None, ""))
    assert len({call.id, *(one.id for one in again.calls)}) == 3
    assert reply.end() == []


def test_ids_are_as_long_as_the_template_takes_and_the_same_again() -> None:
    template = "{%- if tool_call.id is undefined or tool_call.id|length != 9 %}{{ raise_exception('ids') }}{% endif %}"
    ids = []
    for checks, forced in product(("", template), (None, "llama")):
        tokenizer = wrapped(STREAMABLE["byte-level"]())
        tokenizer.chat_template = f"[TOOL_CALLS]{checks}"
        for _ in range(2):
            reply = ChatReply(format_of(Vocabulary(tokenizer), forced), request_id="r", tools=TOOLS)
            said = '{"name": "now", "arguments": {}}'
            reply.push(Piece(said if forced else f"[TOOL_CALLS][{said}, {said}]", None, ""))
            reply.end()
            ids.append([call.id for call in reply.calls])
    assert [len(each) for each in ids] == [2, 2, 1, 1, 2, 2, 1, 1]
    assert ids[::2] == ids[1::2]
    assert all(re.fullmatch("call_[0-9a-f]{24}", one) for each in ids[:4] for one in each)
    assert all(re.fullmatch("[0-9a-f]{9}", one) for each in ids[4:] for one in each)
    assert len({*ids[0], *ids[4]}) == 4


def test_without_tools_calls_are_content() -> None:
    for how in ({"tools": ()}, {"parses_calls": False}):
        for markers in ("special", "added", "spelled"):
            words = vocabulary("byte-level", "tagged", markers)
            reply, _ = read(format_of(words, "tagged"), pieces(words, HERMES), **how)
            assert reply.message == {"role": "assistant", "content": HERMES}
    reply, _ = of_text(named("harmony"), HARMONY, tools=())
    assert reply.content == HARMONY[HARMONY.index("<|start|>") :].replace("<|call|>", "").replace(
        "<|start|>", "<|start|>"
    )


def test_messages_have_openai_s_form() -> None:
    reply, _ = of_text(named("tagged"), f"<think>Hm.</think>{GLM}")
    message = reply.message
    assert list(message) == ["role", "content", "reasoning_content", "reasoning", "tool_calls"]
    assert [message[key] for key in ("content", "reasoning", "reasoning_content")] == [None, "Hm.", "Hm."]
    assert of_text(named("plain"), "")[0].message == {"role": "assistant", "content": ""}


def test_tokens_of_reasoning_are_counted() -> None:
    words = vocabulary("byte-level", "think", "special")
    inside = words.encode("Why? So.", add_special=False)
    for text, begun in (("<think>Why? So.</think>Hi there", ""), ("Why? So.</think>Hi there", "<think>\n")):
        reply, _ = read(format_of(words, "think"), pieces(words, text), begun=begun)
        assert (reply.reasoning, reply.reasoning_tokens) == ("Why? So.", len(inside))
    assert read(format_of(words, "think"), pieces(words, "Hi there"))[0].reasoning_tokens == 0


def test_long_bodies_are_read_once() -> None:
    """Every character of a call is looked at once, however many tokens it has: otherwise this takes minutes."""
    arguments = json.dumps({"text": 'x "y" {' * 20_000})
    text = f'<tool_call>{{"name": "write", "arguments": {arguments}}}</tool_call>'
    reply, _ = of_text(named("tagged", markers="spelled"), (text[i : i + 4] for i in range(0, len(text), 4)))
    assert reply.calls[0].arguments == arguments


# --- which format a tokenizer's models write ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "name", "reasoning"),
    [
        ("{{ messages }}", "plain", None),
        ("<think>\\n", "think", "<think>"),
        ("<tool_call></tool_call>", "tagged", None),
        ("<tool_call><think>", "tagged", "<think>"),
        ("<｜tool▁calls▁begin｜><think>", "deepseek", "<think>"),
        ("[TOOL_CALLS]", "mistral", None),
        ("[TOOL_CALLS][THINK]", "mistral", "[THINK]"),
        ("[TOOL_CALLS]<think>", "mistral", "<think>"),
        ("<|start|><|channel|>", "harmony", None),
        ("<|tool_call>call:<|channel>thought\\n", "gemma", "<|channel>thought\n"),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama", None),
        ("<|tool_calls_section_begin|>", "kimi", None),
    ],
)
def test_a_chat_template_shows_the_format(template: str, name: str, reasoning: str | None) -> None:
    tokenizer = wrapped(STREAMABLE["byte-level"]())
    for given in (template, {"default": "{{ messages }}", "tool_use": template}):
        tokenizer.chat_template = given
        found = format_of(Vocabulary(tokenizer))
        assert (found.name, found.reasoning and found.reasoning[0]) == (name, reasoning)


def test_special_tokens_show_the_format() -> None:
    for name in ("mistral", "deepseek", "kimi", "tagged", "harmony", "think", "functiongemma"):
        assert format_of(vocabulary("byte-level", name, "special")).name == name
    assert format_of(vocabulary("byte-level", "tagged", "special"), "openai").name == "harmony"
    with pytest.raises(InputError, match="'martian'; there are harmony, mistral"):
        format_of(vocabulary("byte-level", "tagged", "special"), "martian")


# --- the parser of transformers -----------------------------------------------------------------------------

TEMPLATES = {types[0]: template for types, template in serving._RESPONSE_TEMPLATE_FALLBACKS.items()}
OURS = {"qwen2": "tagged", "qwen3_5": "tagged", "gemma4": "gemma"}
XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nPoznań</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
SAME = {
    "qwen2": [
        "Hi there",
        "<think>\nHm.\n</think>\n\nHi",
        f"<think>\nHm.\n</think>\n\n{HERMES}",
        f"I look.\n{HERMES}",
        HERMES,
    ],
    "qwen3_5": [f"<think>\na <tool_call> b\n</think>\n\nI look.\n\n{XML}\n{XML}", "Hi", XML],
    "gemma4": [case.text for case in CASES["gemma"][:1]],
}


def with_template(template: dict[str, Any], name: str) -> Vocabulary:
    words = vocabulary("byte-level", name, "special")
    words.tokenizer.response_template = template  # type: ignore[attr-defined]
    return words


@pytest.mark.parametrize("family", TEMPLATES)
def test_messages_are_those_of_transformers(family: str) -> None:
    """By the tokenizer's own template, and by our reader of the same format."""
    template = TEMPLATES[family]
    for begun, text in product(("", "<think>\n"), SAME[family]):
        if begun and ("<think>" not in text or family == "gemma4"):
            continue
        text = text.removeprefix(begun)
        words = vocabulary("byte-level", OURS[family], "special")
        found: Any = words.tokenizer
        expected = found.parse_response(text, template, prefix=begun, tools=TOOLS)
        calls = [one["function"] for one in expected.get("tool_calls", ())]
        whole = expected.get("content", ""), expected.get("reasoning_content", "")
        for format in (ReplyFormat("template", template=template, vocabulary=words), format_of(words, OURS[family])):
            reply, events = read(format, pieces(words, text), begun=begun)
            said = message_of(reply)
            assert said[:2] == whole, format.name
            assert said[2] == [(call["name"], call.get("arguments", {})) for call in calls]
            assert added_up(delta for each in events for delta in each)[:2] == whole


def test_a_response_template_is_found_and_comes_first() -> None:
    tokenizer = wrapped(STREAMABLE["byte-level"]())
    tokenizer.response_template = TEMPLATES["qwen2"]
    assert format_of(Vocabulary(tokenizer)).name == "template"
    tokenizer.response_template = {"fields": {"content": {"of another": "version"}}}
    assert format_of(Vocabulary(tokenizer)).name == "plain"


def test_what_transformers_cannot_parse_is_content() -> None:
    words = vocabulary("byte-level", "tagged", "special")
    format = ReplyFormat("template", template=TEMPLATES["qwen2"], vocabulary=words)
    good = f'<tool_call>{{"name": "weather", "arguments": {W}}}</tool_call>'
    bad = "<tool_call>{no JSON}</tool_call>"
    for text, content, count in (
        (f"A {bad} b {good}", f"A {bad} b", 1),
        (f"{good}{bad}", bad, 1),
        (UNCLOSED, UNCLOSED, 0),
    ):
        reply, events = read(format, pieces(words, text))
        assert (reply.content, len(reply.calls)) == (content, count)
        assert added_up(delta for each in events for delta in each)[0] == content
        assert of_text(ReplyFormat("template", template=TEMPLATES["qwen2"]), [text])[0].content == content
    reply, _ = read(format, pieces(words, f"A {good} b"), tools=())
    assert (reply.content, reply.calls) == (f"A {good} b", [])
