"""Replies in a form: JSON under a schema, and calls of tools, by a model whose own texts are neither."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from transformers import PreTrainedTokenizerFast

import paceline
from paceline.api.model import LanguageModel
from paceline.targets.pocket.bundle import MODELS
from paceline.vocabulary import Vocabulary
from test_server import CHAT, ask, chunks_of, serving

TEMPLATE = (
    "{%- if tools %}Tools: {{ tools | tojson }} as <tool_call>\n{% endif -%}"
    "{%- for m in messages %}{{ m.role }}: {{ m.content or (m.tool_calls | tojson) }}\n{% endfor -%}"
    "{%- if add_generation_prompt %}assistant: {% if enable_thinking %}<think>\n{% endif %}{% endif -%}"
)
DAYS = {"type": "integer", "minimum": 1, "maximum": 7}
INNER = {"type": "object", "properties": {"x": DAYS}, "required": ["x"], "additionalProperties": False}
PARAMETERS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"city": {"enum": ["Kraków", "Київ", "Oslo"]}, "days": DAYS}},
    {"type": "object", "properties": {"query": {"type": "string", "maxLength": 12}}, "required": ["query"]},
    {"type": "object", "properties": {"on": {"type": "boolean"}, "level": {"enum": [0, 0.5, 1]}}},
    {"type": "object", "properties": {"ids": {"type": "array", "items": DAYS, "minItems": 1, "maxItems": 3}}},
    {"type": "object", "properties": {"at": INNER}},
]
for one in PARAMETERS:
    one.setdefault("required", list(one["properties"]))
    one["additionalProperties"] = False
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{number}", "parameters": parameters}}
    for number, parameters in enumerate(PARAMETERS)
]
ASKED = [{"role": "user", "content": "What is the weather?"}]
WAYS: list[dict[str, Any]] = [{"speculative": False}, {}, {"method": "lookup"}]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    """A bundled model with a chat template. Its arguments are short, since it writes anything at all."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODELS / "pocket", local_files_only=True)
    tokenizer.chat_template = TEMPLATE
    return LanguageModel(paceline.load("pocket").target, Vocabulary(tokenizer))


def check_call(call: dict[str, Any], name: str | None = None) -> None:
    assert name in (None, call["function"]["name"])
    number = int(call["function"]["name"].removeprefix("tool_"))
    jsonschema.validate(json.loads(call["function"]["arguments"]), PARAMETERS[number])


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("choice", ["required", *range(len(TOOLS))])
def test_a_forced_call_is_valid_whatever_drafts(lm: LanguageModel, choice: Any, temperature: float) -> None:
    name = None if choice == "required" else f"tool_{choice}"
    asked = choice if name is None else {"type": "function", "function": {"name": name}}
    body = {"messages": ASKED, "tools": TOOLS, "tool_choice": asked, "seed": 7, "temperature": temperature}
    with serving(lm) as served:
        answers = [ask(served, CHAT, {**body, "max_tokens": 120, **way}).json() for way in WAYS]
        chunks = chunks_of(ask(served, CHAT, {**body, "max_tokens": 120, "stream": True}).text)
    choices = [answer["choices"][0] for answer in answers]
    assert {choice["finish_reason"] for choice in choices} == {"tool_calls"}
    for one in choices:
        assert not one["message"]["content"]
        (call,) = one["message"]["tool_calls"]
        check_call(call, name)
    assert len({json.dumps(one["message"]["tool_calls"][0]["function"]) for one in choices}) == 1
    deltas = [delta for chunk in chunks for c in chunk["choices"] for delta in c["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == choices[0]["message"]["tool_calls"][0]["function"]["name"]
    said = "".join(delta["function"]["arguments"] for delta in deltas)
    assert said == choices[0]["message"]["tool_calls"][0]["function"]["arguments"]


def test_forced_text_spares_rounds(lm: LanguageModel) -> None:
    body = {"messages": ASKED, "tools": TOOLS, "tool_choice": "required", "seed": 3, "max_tokens": 120}
    with serving(lm) as served:
        plain, drafted = (ask(served, CHAT, {**body, **way}).json() for way in (WAYS[0], {"num_draft_tokens": 8}))
    found = [answer["metrics"]["speculative_decoding"] for answer in (plain, drafted)]
    assert found[1]["num_rounds"] < 0.7 * found[0]["num_rounds"]
    assert found[1]["accepted_by_source"]["forced"] > 10


@pytest.mark.parametrize("form", ["json_schema", "json_object", "structured_outputs", "llama.cpp"])
def test_json_is_valid_and_the_same_whatever_drafts(lm: LanguageModel, form: str) -> None:
    schema = PARAMETERS[0]
    asked: dict[str, Any] = {
        "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
        "json_object": {"response_format": {"type": "json_object"}},
        "llama.cpp": {"response_format": {"type": "json_object", "schema": schema}},
        "structured_outputs": {"structured_outputs": {"json": schema}},
    }[form]
    body = {"messages": ASKED, "seed": 5, "max_tokens": 60, "temperature": 0.8, **asked}
    with serving(lm) as served:
        answers = [ask(served, CHAT, {**body, **way}).json()["choices"][0] for way in WAYS]
    assert len({answer["message"]["content"] for answer in answers}) == 1
    if answers[0]["finish_reason"] == "stop":
        found = json.loads(answers[0]["message"]["content"])
        if form == "json_object":
            assert isinstance(found, dict)
        else:
            jsonschema.validate(found, schema)
    else:
        assert form == "json_object"  # which may be as long as the model likes


def test_a_form_waits_for_the_end_of_reasoning(lm: LanguageModel) -> None:
    """The prompt has opened the reasoning, so the first token is free; without that it is a brace."""
    form = {"response_format": {"type": "json_object"}, "messages": ASKED, "seed": 5, "max_tokens": 3}
    with serving(lm) as served:
        thinking = ask(served, CHAT, {**form, "chat_template_kwargs": {"enable_thinking": True}}).json()
        direct = ask(served, CHAT, form).json()
    assert thinking["choices"][0]["message"]["reasoning_content"]
    assert not thinking["choices"][0]["message"]["content"]
    assert thinking["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
    assert direct["choices"][0]["message"]["content"].startswith("{")


def test_calls_and_their_results_reach_the_template(lm: LanguageModel) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "tool_0", "arguments": '{"days": 3}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    with serving(lm) as served:
        text = ask(served, "/apply-template", {"messages": messages, "tools": TOOLS[:1]}).json()["prompt"]
        none = ask(served, CHAT, {"messages": messages, "tools": TOOLS, "tool_choice": "none", "max_tokens": 2}).json()
        wrong = ask(served, CHAT, {"messages": messages, "tool_choice": "required"})
        missing = {"type": "function", "function": {"name": "nope"}}
        unknown = ask(served, CHAT, {"messages": messages, "tools": TOOLS, "tool_choice": missing})
    assert '"arguments": {"days": 3}' in text
    assert "system: Be brief." in text
    assert text.endswith("tool: rain\nassistant: ")
    assert "tool_calls" not in none["choices"][0]["message"]
    assert "there are no tools" in wrong.json()["error"]["message"]
    assert "'nope', which is none of the tools" in unknown.json()["error"]["message"]


def test_responses_call_tools_too(lm: LanguageModel) -> None:
    tool = {"type": "function", **TOOLS[1]["function"]}  # type: ignore[dict-item]
    body = {"input": "Look it up.", "tools": [tool], "tool_choice": "required", "seed": 1, "max_output_tokens": 100}
    with serving(lm) as served:
        answer = ask(served, "/v1/responses", body).json()
    (item,) = answer["output"]
    assert (answer["status"], item["type"], item["name"]) == ("completed", "function_call", "tool_1")
    jsonschema.validate(json.loads(item["arguments"]), PARAMETERS[1])
