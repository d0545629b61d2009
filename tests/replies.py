"""Replies of every format, their messages, and a slow parser of whole texts to compare with."""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from tokenizers import AddedToken
from transformers import AutoTokenizer

from paceline.api.piece import Piece, Pieces
from paceline.engine.emission import Emission
from paceline.integrations.server.replies import FORMATS, ChatReply, Delta, ReplyFormat
from paceline.vocabulary import Vocabulary
from tokenizer_kinds import REAL, REAL_NAMES, STREAMABLE, tokenizer_of, wrapped

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "warm": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                    "places": {"type": "array"},
                    "limit": {"type": "number"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
WEATHER = {"city": 'Łódź "}]{[\\ 🚴🏽', "days": 3, "places": [{"a": [1, 2.5]}, None]}
PARIS = {"city": "Paris", "days": 2}
BOTH = [("weather", WEATHER), ("now", {})]
W, P = (json.dumps(one, ensure_ascii=False) for one in (WEATHER, PARIS))


class Case(NamedTuple):
    """A reply and its message."""

    text: str
    content: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    begun: str = ""


XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\n  def f():\n    pass\n</parameter>\n<parameter=days>\n3\n"
    '</parameter>\n<parameter=warm>\ntrue\n</parameter>\n<parameter=places>\n[1, {"a": 2}]\n</parameter>\n'
    "<parameter=limit>\n2.50\n</parameter>\n<parameter=more>\n7\n</parameter>\n</function>\n</tool_call>"
)
XML_VALUES = {
    "city": "  def f():\n    pass",
    "days": 3,
    "warm": True,
    "places": [1, {"a": 2}],
    "limit": 2.5,
    "more": "7",
}
GLM = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Brześć</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>"
)
HERMES = (
    f'<tool_call>\n{{"name": "weather", "arguments": {W}}}\n</tool_call>\n<tool_call>\n{{"name": "now"}}\n</tool_call>'
)
UNCLOSED = '<tool_call>{"name": "weather", "arguments": {"city": "Par'
DEEPSEEK = (
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{W}\n```<｜tool▁call▁end｜>\n"
    "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    f"{W}<|tool_call_end|>"
    "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
)
GEMMA = (
    '<|tool_call>call:weather{city:<|"|>Łódź "}]{[ x:y 🚴🏽<|"|>,days:3,places:[{a:[1,2.5]},null]}<tool_call|>'
    "<|tool_call>call:now{}<tool_call|>"
)
GEMMA_VALUES = {**WEATHER, "city": 'Łódź "}]{[ x:y 🚴🏽'}
FINAL = "<|start|>assistant<|channel|>final<|message|>Zażółć!<|return|>"
COMMENTARY = "<|start|>assistant<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s<|call|>"
HARMONY = f"<|channel|>analysis<|message|>We need it.<|end|>{COMMENTARY % ('weather', W)}"
PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"

CASES: dict[str, list[Case]] = {
    "plain": [
        Case(
            "  Zażółć <think> gęślą </think>\n<tool_call>{}</tool_call>\n ",
            "  Zażółć <think> gęślą </think>\n<tool_call>{}</tool_call>\n ",
        ),
        Case("", ""),
    ],
    "think": [
        Case("<think>\nWhy?\n\nSo.\n</think>\n\nHello 🚴🏽 </think>.\n", "Hello 🚴🏽 </think>.", "Why?\n\nSo."),
        Case("Why <tool_call>?\n</think>\n\nHello", "Hello", "Why <tool_call>?", begun="<|assistant|><think>\n"),
        Case("\n\nHello", "\n\nHello", begun="<think>\n\n</think>\n\n"),
        Case("<think>\n\n</think>\n\n", ""),
        Case("<think>It never en</thin", "", "It never en</thin"),
        Case("Use <think> here", "Use <think> here"),
        Case("<thinking>", "<thinking>"),
    ],
    "tagged": [
        Case(HERMES, calls=BOTH),
        Case(f"<think>a <tool_call> b</think>{HERMES}", "", "a <tool_call> b", BOTH),
        Case(f"Let me see.\n\n{HERMES}\nDone.\n", "Let me see.\n\n\n\nDone.", calls=BOTH),
        Case(f"<think>\nHm.\n</think>\n\n{XML}\n{XML}", "", "Hm.", [("weather", XML_VALUES)] * 2),
        Case(f"{GLM}{GLM}", calls=[("weather", {"city": "Brześć", "days": 3})] * 2),
        Case("<tool_call>now\n</tool_call>", calls=[("now", {})]),
        Case(UNCLOSED, UNCLOSED),
        Case(f"{UNCLOSED}\n{GLM}", f"{UNCLOSED}", calls=[("weather", {"city": "Brześć", "days": 3})]),
        Case('<tool_call>{"name": "now"}', calls=[("now", {})]),
        Case('<tool_call>{"name": "now"}<tool_call>{"name": "now"}', calls=[("now", {})] * 2),
        Case('<tool_call>{"name": "now"}} </tool_call>', '<tool_call>{"name": "now"}} </tool_call>'),
        Case(
            '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
            '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        ),
        Case(
            '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
            '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
        ),
        Case('<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', calls=[("now", {"a": 1})]),
        Case(
            '<tool_call>{"name": "now", "arguments": {"a": "</tool_call>"}}</tool_call>',
            calls=[("now", {"a": "</tool_call>"})],
        ),
        Case("Write <tool_call>, then a body.\n", "Write <tool_call>, then a body.\n"),
        Case("<tool_call>word</tool_call> ", "<tool_call>word</tool_call> "),
        Case("<tool_call> ", "<tool_call> "),
    ],
    "llama": [
        Case(f'{{"name": "weather", "parameters": {W}}}; {{"name": "now", "parameters": {{}}}}', calls=BOTH),
        Case(f'<|python_tag|>{{"name": "weather", "arguments": {W}}}\n', calls=BOTH[:1]),
        Case('<|python_tag|>search.call(query="x")', '<|python_tag|>search.call(query="x")'),
        Case('{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}'),
        Case('\n{"name": "now", "parameters": {}} is it.', '\n{"name": "now", "parameters": {}} is it.'),
        Case('Hi {"name": "now", "parameters": {}}', 'Hi {"name": "now", "parameters": {}}'),
        Case('{"name": "now", "par', '{"name": "now", "par'),
    ],
    "mistral": [
        Case(
            f'[TOOL_CALLS][{{"name": "weather", "arguments": {W}}}, {{"name": "now", "arguments": {{}}}}]', calls=BOTH
        ),
        Case(f"[TOOL_CALLS]weather[ARGS]{W}[TOOL_CALLS]now[CALL_ID]abc[ARGS]{{}}", calls=BOTH),
        Case(f"[THINK]Hm [TOOL_CALLS][/THINK]I look.[TOOL_CALLS]weather{W}", "I look.", "Hm [TOOL_CALLS]", BOTH[:1]),
        Case('[TOOL_CALLS][{"name": "now"', '[TOOL_CALLS][{"name": "now"'),
        Case("[TOOL_CALLS] are markers [1].", "[TOOL_CALLS] are markers [1]."),
    ],
    "deepseek": [
        Case(f"<think>Hm.</think>\n\nI look.\n{DEEPSEEK}", "I look.", "Hm.", BOTH),
        Case(DEEPSEEK.replace("<｜tool▁calls▁end｜>", ""), calls=BOTH),
        Case(DEEPSEEK[:90], DEEPSEEK[:90]),
    ],
    "kimi": [Case(f"I look.{KIMI}", "I look.", calls=BOTH), Case(KIMI[:99], KIMI[:99])],
    "gemma": [
        Case(
            f"<|channel>thought\nHm.\n<channel|>I look.{GEMMA}",
            "I look.",
            "Hm.",
            [("weather", GEMMA_VALUES), ("now", {})],
        ),
        Case(GEMMA[:40], GEMMA[:40]),
        Case("<|tool_call>call:now{a:b}<tool_call|>", "<|tool_call>call:now{a:b}<tool_call|>"),
    ],
    "functiongemma": [
        Case(
            "<start_function_call>call:weather{city:<escape>Paris<escape>,days:2}<end_function_call>",
            calls=[("weather", PARIS)],
        ),
    ],
    "harmony": [
        Case(HARMONY, "", "We need it.", BOTH[:1], PROMPT),
        Case(f"{HARMONY}{COMMENTARY % ('now', '{}')}{FINAL}", "Zażółć!", "We need it.", BOTH, PROMPT),
        Case(f" to=functions.weather<|channel|>commentary json<|message|>{W}<|call|>", calls=BOTH[:1], begun=PROMPT),
        Case("<|channel|>commentary<|message|>I look.<|end|>" + FINAL, "I look.\nZażółć!", begun=PROMPT),
        Case("So <|end|>", "", "So", begun=f"{PROMPT}<|channel|>analysis<|message|>"),
        Case("No channels at all", "No channels at all", begun=PROMPT),
        Case("<|channel|>analysis<|message|>It never en", "", "It never en", begun=PROMPT),
        Case("<|channel|>fin", "<|channel|>fin", begun=PROMPT),
        Case(
            HARMONY[:-40],
            HARMONY[len("<|channel|>analysis<|message|>We need it.<|end|>") : -40],
            "We need it.",
            (),
            PROMPT,
        ),
    ],
}


def markers(name: str) -> list[str]:
    """The markers of a format that are one token in tokenizers for it."""
    found = FORMATS[name].markers or ()
    return sorted({one.strip().removesuffix("thought\n").removesuffix("thought") for one in found} - {""})


def vocabulary(tokenizer: str, format: str, how: str) -> Vocabulary:
    """A tokenizer in which the markers of a format are special tokens, added ones, or spelled by others. Real ones get
    those of all formats, because they take long to load."""
    return _vocabulary(tokenizer, "" if tokenizer in REAL_NAMES else format, how)


@cache
def _vocabulary(tokenizer: str, format: str, how: str) -> Vocabulary:
    if how == "spelled":
        return Vocabulary(tokenizer_of(tokenizer))
    if tokenizer in REAL_NAMES:
        tokenizer_of(tokenizer)  # skips the test without the data
        found: Any = AutoTokenizer.from_pretrained(REAL / tokenizer)
    else:
        found = wrapped(STREAMABLE[tokenizer]())
    names = sorted({one for name in ([format] if format else FORMATS) for one in markers(name)})
    found.add_tokens([AddedToken(one, special=how == "special", normalized=False) for one in names])
    return Vocabulary(found)


def is_spoken(vocabulary: Vocabulary, format: str, text: str) -> bool:
    """Whether the text of pieces has all that the text has: no special tokens but markers of the format."""
    marks = FORMATS[format].markers or ()
    names = {vocabulary.backend.id_to_token(token) for token in vocabulary.specials}
    if any(name in text and not any(name in one for one in marks) for name in names):
        return False
    keeps = "▁" in vocabulary.text(vocabulary.encode("▁", add_special=False).tolist())  # some write it for a space
    return keeps or not any("▁" in one and one in text and one not in names for one in marks)


def continued(vocabulary: Vocabulary, text: str) -> list[int]:
    """The tokens of a text that goes on: some tokenizers put a space before a text, and behind a special token."""
    for lead in ("\n", "a", ".", "\n\n.", "0"):
        before, both = (vocabulary.encode(one, add_special=False).tolist() for one in (lead, lead + text))
        whole = vocabulary.text(both, skip_special=False)
        if both[: len(before)] == before and whole == vocabulary.text(before) + text:
            return list(both[len(before) :])
    raise AssertionError(f"no tokens for {text!r}")


def tokens(vocabulary: Vocabulary, text: str) -> list[int]:
    """The tokens of a reply, its markers as tokens where they are some."""
    names = {one.content: number for number, one in vocabulary.backend.get_added_tokens_decoder().items()}
    parts = re.split("(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + ")", text)
    found = ([names[part]] if part in names else continued(vocabulary, part) for part in parts if part)
    return [token for each in found for token in each]


def pieces(vocabulary: Vocabulary, text: str, stops: Sequence[str] = (), finish: str | None = "eos") -> list[Piece]:
    """The pieces of a text, which goes on behind a prompt; without `finish` it is cancelled."""
    prompt, ids = vocabulary.encode("a", add_special=False).tolist(), tokens(vocabulary, text)
    made = Pieces(vocabulary, stops, prompt)
    ends: list[Any] = [None] * (len(ids) - 1) + [finish]
    found = [made.of(Emission(token, "", finish=end)) for token, end in zip(ids, ends, strict=False)]
    return found if finish else [*found, Piece(made.rest(), None, "")]


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """The events as a server may send them: neighbours of a kind as one."""
    found = list[Delta]()
    for delta in deltas:
        if found and delta.kind == found[-1].kind and delta.kind in ("content", "reasoning"):
            delta = Delta(delta.kind, found.pop().text + delta.text)
        found.append(delta)
    return found


def read(format: ReplyFormat, found: Iterable[Piece], **how: Any) -> tuple[ChatReply, list[list[Delta]]]:
    """A reply, and the events of each piece and of the end."""
    reply = ChatReply(format, request_id="r", **{"tools": TOOLS, **how})
    return reply, [*(reply.push(piece) for piece in found), reply.end()]


def of_text(format: ReplyFormat, parts: Iterable[str], **how: Any) -> tuple[ChatReply, list[Delta]]:
    """A reply whose text comes in these parts, its special tokens by name."""
    given = [Piece(part, None, "") for part in parts]
    reply, deltas = read(format, given, **how)
    return reply, merged(delta for each in deltas for delta in each)


def added_up(deltas: Iterable[Delta]) -> tuple[str, str, list[tuple[str, str]]]:
    """The message that events add up to."""
    content, reasoning, names, arguments = "", "", dict[int, str](), dict[int, str]()
    for delta in deltas:
        match delta.kind:
            case "content":
                content += delta.text
            case "reasoning":
                reasoning += delta.text
            case "call":
                assert delta.index == len(names)
                assert re.fullmatch("call_[0-9a-f]{24}", delta.id)
                names[delta.index] = delta.name
            case "arguments":
                arguments[delta.index] = arguments.get(delta.index, "") + delta.text
    assert names.keys() == arguments.keys()
    return content, reasoning, [(name, arguments[index]) for index, name in names.items()]


def message_of(reply: ChatReply) -> tuple[str, str, list[tuple[str, Any]]]:
    return reply.content, reply.reasoning, [(call.name, json.loads(call.arguments)) for call in reply.calls]


# --- a slow parser of whole texts -----------------------------------------------------------------------------

PARAMETER = r"<parameter=[^>]{1,200}>(?:(?!</parameter>).)*</parameter>"
TAGS = re.compile(rf"<function=([^>]{{1,200}})>\s*((?:{PARAMETER}\s*)*)</function>", re.DOTALL)
CLOSE = re.compile(r"\s*(?:</tool_call>|(?=<tool_call>)|\Z)")


def slow_body(text: str, start: int) -> tuple[tuple[str, Any], int] | None:
    """The call whose body begins here, in JSON or in tags, and where it ends."""
    start += len(text[start:]) - len(text[start:].lstrip())
    if tags := TAGS.match(text, start):
        pairs = re.findall(r"<parameter=([^>]*)>(.*?)</parameter>", tags[2], re.DOTALL)
        values = {key.strip(): value.removeprefix("\n").removesuffix("\n") for key, value in pairs}
        call, end = (tags[1].strip(), values), tags.end()
        if not call[0]:
            return None
    else:
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            return None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
            return None
        call = value["name"], value.get("arguments", {})
        if not isinstance(call[1], dict):
            return None
    close = CLOSE.match(text, end)
    return (call, close.end()) if close else None


def slow(text: str) -> tuple[str, str, list[tuple[str, Any]]]:
    """The message of a text in the format `tagged`."""
    thought = re.match(r"\s*<think>(.*?)(?:</think>|\Z)", text, re.DOTALL)
    at = thought.end() if thought else 0
    content, calls, strips = "", list[tuple[str, Any]](), thought is not None
    while at < len(text):
        if text.startswith("<tool_call>", at) and (found := slow_body(text, at + len("<tool_call>"))):
            calls.append(found[0])
            strips, at = True, found[1]
            content = content if content.strip() else ""
            continue
        content = (content + text[at]).lstrip() if strips and not content.strip() else content + text[at]
        at += 1
    return content.rstrip() if strips else content, thought[1].strip() if thought else "", calls
