"""Replies in a form: JSON under a schema, and calls of tools, by a model whose own texts are neither."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from copy import copy
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import paceline
from paceline.api.model import LanguageModel
from paceline.integrations.server.models import ServedModel
from paceline.targets.pocket.names import MODELS
from paceline.vocabulary import Vocabulary
from schemas import PARAMETERS, SMALL, made_of
from test_server import CHAT, ask, chunks_of, client, serving

TEMPLATE = (
    "{%- if tools %}Tools: {{ tools | tojson }} as <tool_call>\n{% endif -%}"
    "{%- for m in messages %}{{ m.role }}: {{ m.content or (m.tool_calls | tojson) }}\n{% endfor -%}"
    "{%- if add_generation_prompt %}assistant: {% if enable_thinking %}<think>\n{% endif %}{% endif -%}"
)
PARAMETERS_OF = [
    made_of({"city": {"enum": ["Kraków", "Київ", "Oslo"]}, "days": SMALL}),
    made_of({"query": {"type": "string", "maxLength": 12}}),
]
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{number}", "parameters": parameters}}
    for number, parameters in enumerate(PARAMETERS_OF)
]
ASKED = [{"role": "user", "content": "What is the weather?"}]
WAYS: list[dict[str, Any]] = [{"speculative": False}, {}, {"method": "lookup"}]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    """A bundled model with a chat template. Its arguments are short, since it writes anything at all."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODELS / "pocket", local_files_only=True)
    tokenizer.chat_template = TEMPLATE
    return LanguageModel(paceline.load("pocket").target, Vocabulary(tokenizer))


# --- forced calls -------------------------------------------------------------------------------------------

FAMILIES = {
    "tagged": "",
    "llama": "{# <|python_tag|> #}",
    "mistral": "{# [TOOL_CALLS] #}",
    "harmony": "{# <|channel|> #}",
    "deepseek": "{# <｜tool▁calls▁begin｜> #}",
}
"""What a template has that other formats of replies are known by. Their calls are forced as JSON without markers."""
CALLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS[name]}} for name in PARAMETERS]
HOW: dict[str, dict[str, Any]] = {
    "plain": {"speculative": False},
    "auto": {},
    "forced": {"method": "forced", "planner": "fixed:12"},
}


def of_family(lm: LanguageModel, sign: str) -> LanguageModel:
    """The model with a chat template of this family."""
    assert lm.vocabulary is not None
    tokenizer = copy(lm.vocabulary.tokenizer)
    tokenizer.chat_template = sign + (TEMPLATE.replace("<tool_call>", "") if sign else TEMPLATE)
    return LanguageModel(lm.target, Vocabulary(tokenizer))


def asked_for(number: int) -> dict[str, Any]:
    """A request for a call: of the one tool that there is, or of one of three by its name."""
    tools = [CALLS[(number + more) % len(CALLS)] for more in range(3 if number % 2 else 1)]
    named = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
    how = {"seed": number, "temperature": (0, 0.8, 1.2)[number % 3], "max_tokens": 160}
    return {"messages": ASKED, **how, "tools": tools, "tool_choice": named if number % 2 else "required"}


def valid(choice: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether a reply is one valid call of a tool that it may call; False if it was cut."""
    if choice["finish_reason"] == "length":
        return False
    assert choice["finish_reason"] == "tool_calls"
    assert not choice["message"]["content"]
    (call,) = choice["message"]["tool_calls"]
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in asked["tools"]}
    if asked["tool_choice"] != "required":
        assert call["function"]["name"] == asked["tool_choice"]["function"]["name"]
    schema, arguments = tools[call["function"]["name"]], json.loads(call["function"]["arguments"])
    assert isinstance(arguments, dict)
    if schema is None:
        assert arguments == {}
    else:
        jsonschema.validate(arguments, schema)
    return True


def answers_of(served: ServedModel, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers to requests that come together."""

    async def asking() -> list[Any]:
        async with client(served) as http:
            return await asyncio.gather(*(http.post(CHAT, json=body) for body in bodies))

    answers = asyncio.run(asking())
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    return [answer.json() for answer in answers]


def test_thirty_forced_calls_are_valid_and_the_same_whatever_drafts(lm: LanguageModel) -> None:
    """Every fifth request is one of a family. Prints a table of the rounds."""
    assert len(CALLS) == 30
    ended, rounds = Counter[str](), Counter[str]()
    for place, (family, sign) in enumerate(FAMILIES.items()):
        bodies = [asked_for(number) for number in range(place, len(CALLS), len(FAMILIES))]
        with serving(of_family(lm, sign)) as served:
            assert served.reply_format.name == family
            found = {name: answers_of(served, [{**body, **how} for body in bodies]) for name, how in HOW.items()}
        for name, answers in found.items():
            choices = [answer["choices"][0] for answer in answers]
            ended[name] += sum(valid(choice, body) for choice, body in zip(choices, bodies, strict=True))
            rounds[name] += sum(answer["metrics"]["speculative_decoding"]["num_rounds"] for answer in answers)
            said = [without_ids(choice) for choice in choices]
            assert said == [without_ids(answer["choices"][0]) for answer in found["plain"]], (family, name)
    for name in HOW:
        print(f"{name}: {ended[name]} of {len(CALLS)} calls ended, all valid; {rounds[name]} rounds")
    assert set(ended.values()) == {ended["plain"]}
    assert ended["plain"] >= 28
    assert rounds["forced"] < 0.6 * rounds["plain"]


def without_ids(choice: dict[str, Any]) -> tuple[Any, ...]:
    """What must be the same in every answer to a request."""
    calls = [call["function"] for call in choice["message"].get("tool_calls", [])]
    return choice["message"]["content"], calls, choice["finish_reason"]


def test_a_forced_call_is_the_same_in_a_stream(lm: LanguageModel) -> None:
    with serving(lm) as served:
        for number in range(4, len(CALLS), 11):
            whole = answers_of(served, [asked_for(number)])[0]["choices"][0]["message"]["tool_calls"][0]["function"]
            chunks = chunks_of(ask(served, CHAT, {**asked_for(number), "stream": True}).text)
            deltas = [delta for chunk in chunks for c in chunk["choices"] for delta in c["delta"].get("tool_calls", [])]
            assert deltas[0]["function"]["name"] == whole["name"]
            assert "".join(delta["function"]["arguments"] for delta in deltas) == whole["arguments"]


# --- calls that the model may make --------------------------------------------------------------------------

OWN_MARKER = "<tool_call>"


def calling(lm: LanguageModel, marker: str = OWN_MARKER, *, special: bool = False) -> LanguageModel:
    """The model with another spelling of one of its usual tokens, so that it begins calls by itself. Its prompt is
    the same with all tools."""
    made = json.loads((MODELS / "pocket" / "tokenizer.json").read_text())
    vocab, often = made["model"]["vocab"], "Ġthe"
    made["model"]["merges"] = [pair for pair in made["model"]["merges"] if often not in (*pair, "".join(pair))]
    vocab[marker] = vocab.pop(often)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(made)), eos_token="<|end|>")
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": [marker, "</tool_call>"]})
    tokenizer.chat_template = TEMPLATE.replace("tools | tojson", "''")
    return LanguageModel(lm.target, Vocabulary(tokenizer))


def strict(tool: dict[str, Any], value: Any = True) -> dict[str, Any]:
    return {"type": "function", "function": {**tool["function"], "strict": value}}


@pytest.mark.parametrize("special", [False, True])
def test_arguments_of_a_call_that_the_model_chooses_are_valid_if_its_tool_is_strict(
    lm: LanguageModel, special: bool
) -> None:
    own, calls, texts = calling(lm, special=special), 0, 0
    assert own.vocabulary is not None
    marker = str(own.vocabulary.backend.token_to_id(OWN_MARKER))
    body = {"messages": ASKED, "tools": [strict(tool) for tool in TOOLS], "max_tokens": 120}
    bodies = [{**body, "seed": seed, "logit_bias": {marker: 3 if seed % 4 else -30}} for seed in range(8)]
    with serving(own) as served:
        plain, auto, forced = (answers_of(served, [{**body, **how} for body in bodies]) for how in HOW.values())
        free = answers_of(served, [{**body, "tools": TOOLS} for body in bodies])
    assert [without_ids(one["choices"][0]) for one in auto] == [without_ids(one["choices"][0]) for one in plain]
    assert [without_ids(one["choices"][0]) for one in forced] == [without_ids(one["choices"][0]) for one in plain]
    for answer, without in zip(plain, free, strict=True):
        message = answer["choices"][0]["message"]
        for call in message.get("tool_calls", []):
            number = int(call["function"]["name"].removeprefix("tool_"))
            jsonschema.validate(json.loads(call["function"]["arguments"]), PARAMETERS_OF[number])
            calls += 1
        assert "tool_calls" not in without["choices"][0]["message"], "the model itself writes no JSON"
        if OWN_MARKER not in (without["choices"][0]["message"]["content"] or ""):
            texts += 1
            assert message == without["choices"][0]["message"]
    assert calls >= 3
    assert texts >= 2
    assert sum(answer["metrics"]["speculative_decoding"]["num_rounds"] for answer in forced) < sum(
        answer["metrics"]["speculative_decoding"]["num_rounds"] for answer in plain
    )


def test_strict_is_named_where_it_is_ignored(lm: LanguageModel) -> None:
    body = {"messages": ASKED, "max_tokens": 2}
    with serving(of_family(lm, FAMILIES["mistral"])) as served:
        said = [
            ask(served, CHAT, {**body, "tools": [strict(TOOLS[0], value)], "tool_choice": choice}).headers
            for value, choice in ((True, "auto"), (False, "auto"), (True, "required"), (True, "none"))
        ]
        tool = {"type": "function", **TOOLS[0]["function"], "strict": True}  # type: ignore[dict-item]
        response = ask(served, "/v1/responses", {"input": "Look.", "tools": [tool], "max_output_tokens": 2})
    with serving(lm) as served:
        said.append(ask(served, CHAT, {**body, "tools": [strict(TOOLS[0])]}).headers)
        excluded = ask(served, CHAT, {**body, "tools": [strict(TOOLS[0])], "min_tokens": 2})
    assert [headers.get("x-paceline-ignored") for headers in said] == ["tools.function.strict", None, None, None, None]
    assert response.headers["x-paceline-ignored"] == "tools.function.strict"
    assert "min_tokens exclude" in excluded.json()["error"]["message"]


SHORT_IDS = """
{%- for m in messages if m.role == "tool" and m.tool_call_id | length != 9 -%}{{ raise_exception("no") }}{%- endfor -%}
{%- for m in messages %}{%- for call in m.tool_calls or () -%}
{%- if not call.id is defined or call.id|length != 9 %}{{ raise_exception("ids have length 9!") }}{% endif -%}
{%- endfor %}{% endfor %}"""
"""A check as Mistral's templates have it."""


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
def test_ids_of_calls_are_those_that_the_template_takes(path: str, lm: LanguageModel) -> None:
    body: dict[str, Any] = {"seed": 1, "max_tokens": 100, "tool_choice": "required", "tools": TOOLS[1:]}
    own = of_family(lm, FAMILIES["mistral"] + SHORT_IDS)
    with serving(own) as served:
        if path == CHAT:
            first = ask(served, path, {**body, "messages": ASKED}).json()["choices"][0]["message"]
            (call,) = first["tool_calls"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
            then = ask(served, path, {"messages": [*ASKED, first, result], "max_tokens": 2})
            wrong = {**result, "tool_call_id": "call_1"}
            assert ask(served, path, {"messages": [*ASKED, first, wrong]}).status_code == 400
        else:
            tools = [{"type": "function", **tool["function"]} for tool in TOOLS[1:]]
            (call,) = ask(served, path, {**body, "tools": tools, "input": ASKED}).json()["output"]
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
            then = ask(served, path, {"input": [*ASKED, call, result], "max_output_tokens": 2})
    assert re.fullmatch("[0-9a-f]{9}", call["id"] if path == CHAT else call["call_id"])
    assert then.status_code == 200, then.text


@pytest.mark.parametrize("form", ["json_schema", "json_object", "structured_outputs", "llama.cpp"])
def test_json_is_valid_and_the_same_whatever_drafts(lm: LanguageModel, form: str) -> None:
    schema = PARAMETERS_OF[0]
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
    jsonschema.validate(json.loads(item["arguments"]), PARAMETERS_OF[1])
