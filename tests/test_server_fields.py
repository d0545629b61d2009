"""Every field of a request is obeyed, named as ignored, or refused with advice; a body with mistakes costs little."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

from http_server import ASKED, CHAT, COMPLETION, RESPONSE, HttpServer
from paceline.integrations.server import requests
from paceline.integrations.server.items import Items
from paceline.integrations.server.replies import Delta
from paceline.integrations.server.requests import SamplingBody
from paceline.integrations.server.responses import _messages
from test_server_values import fields_of

SOURCES = Path(requests.__file__).parent
DUMPED = {"strict", "description", "parameters", "function", "type", "name"}
"""Fields of tools and forms that are passed on with the object that holds them."""
MILLION = 1_000_000


# --- bodies with a million mistakes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETION, {"prompt": [{}] * MILLION}),
        (COMPLETION, {"prompt": [[{}] * MILLION]}),
        (COMPLETION, {"prompt": [1, *[None] * MILLION]}),
        (COMPLETION, {"stop": [1] * MILLION}),
        (COMPLETION, {"stop": ["a"] * 65}),
        (COMPLETION, {"stop": ["a" * 1001]}),
        (COMPLETION, {"stop_token_ids": [None] * MILLION}),
        (COMPLETION, {"logit_bias": {str(number): None for number in range(100_000)}}),
        (COMPLETION, {"structured_outputs": {"choice": [1] * MILLION}}),
        (COMPLETION, {"prediction": {"type": "content", "content": [1] * MILLION}}),
        (CHAT, {"messages": [1] * MILLION}),
        (CHAT, {"messages": [{}] * MILLION}),
        (CHAT, {"tools": [1] * MILLION}),
        (RESPONSE, {"input": [1] * MILLION}),
        (RESPONSE, {"include": [1] * MILLION}),
        ("/detokenize", {"tokens": [None] * MILLION}),
    ],
    ids=lambda given: given if isinstance(given, str) else next(iter(given)),
)
def test_a_million_mistakes_cost_little(server: HttpServer, path: str, body: dict[str, Any]) -> None:
    began = time.process_time()
    error = server.refuses(path, {**ASKED[path][1], **body})
    assert time.process_time() - began < 5
    assert len(error["message"]) < 700


# --- messages that json cannot read ----------------------------------------------------------------------------


@pytest.mark.parametrize("role", [[], {}, 1, None, [[]]])
def test_a_role_that_is_no_text(server: HttpServer, role: Any) -> None:
    server.refuses(CHAT, {"messages": [{"role": role}]})
    server.refuses(CHAT, {"messages": [{"role": role, "content": "a"}]})


@pytest.mark.parametrize(
    "arguments", ["[" * 100_000, "[" * 900 + "]" * 900, '{"a":' * 5000, "9" * 5000, '"\\ud800"', "NaN", "", "{"]
)
def test_arguments_that_are_hard_to_read(server: HttpServer, arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = [{"role": "assistant", "content": "b", "tool_calls": [call]}, {"role": "user", "content": "c"}]
    assert server.post(CHAT, {"messages": said, "max_tokens": 1}).status < 500


# --- fields ----------------------------------------------------------------------------------------------------


def test_every_declared_field_is_read_somewhere() -> None:
    code = "\n".join(path.read_text(encoding="utf8") for path in SOURCES.rglob("*.py") if path.name != "requests.py")
    names = {name for kind, _ in ASKED.values() for path in fields_of(kind) for name in path}
    names -= set(SamplingBody.model_fields)  # which the table names
    assert len(names) > 50
    assert [name for name in sorted(names - DUMPED) if not _is_read(name, code)] == []
    assert not _is_read("include_obfuscation", code)


def _is_read(name: str, code: str) -> bool:
    name = {"json": "json_", "schema": "schema_"}.get(name, name)
    return re.search(rf'\.{name}\b|"{name}"', code) is not None


@pytest.mark.parametrize(
    ("path", "fields", "sentence"),
    [
        (COMPLETION, {"n_predict": 5}, "write max_tokens"),
        (COMPLETION, {"repeat_penalty": 1.1}, "write repetition_penalty"),
        (COMPLETION, {"typical_p": 0.9}, "typical_p is not served"),
        (COMPLETION, {"mirostat": 2}, "mirostat is not served"),
        (COMPLETION, {"dry_multiplier": 0.8}, "dry_multiplier is not served"),
        (COMPLETION, {"xtc_probability": 0.5}, "xtc_probability is not served"),
        (CHAT, {"thinking_token_budget": 0}, "thinking_token_budget is not served"),
        (CHAT, {"skip_special_tokens": False}, "return_token_ids"),
        (CHAT, {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens is not served"),
        (CHAT, {"use_beam_search": True}, "use_beam_search is not served"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs needs logprobs"),
        (CHAT, {"add_generation_prompt": False}, "add_generation_prompt: false is not served"),
        (CHAT, {"continue_final_message": True}, "needs a last message of the assistant"),
        (RESPONSE, {"conversation": "a"}, "write previous_response_id"),
        (RESPONSE, {"background": True}, "background is not served"),
        (RESPONSE, {"prompt": {"id": "a"}}, "write instructions and input"),
        (
            CHAT,
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "exclude each other",
        ),
        (CHAT, {"structured_outputs": {"regex": "a", "choice": ["a"]}}, "takes one of"),
        (COMPLETION, {"structured_outputs": {"regex": "a"}, "min_tokens": 5}, "a form and min_tokens"),
        (RESPONSE, {"max_output_tokens": 0}, "max_output_tokens is at least 1"),
        (CHAT, {"max_completion_tokens": 10**300}, "max_completion_tokens is at least 1"),
        (COMPLETION, {"method": "assistant"}, "needs a draft model, and this server has none"),
    ],
    ids=str,
)
def test_fields_that_change_the_text_are_refused(
    server: HttpServer, path: str, fields: dict[str, Any], sentence: str
) -> None:
    message = server.refuses(path, {**ASKED[path][1], **fields})["message"]
    assert sentence in message
    assert "--" not in message
    assert "max_new_tokens" not in message


def test_values_that_change_nothing_are_ignored_and_named(server: HttpServer) -> None:
    neutral = {"repeat_penalty": 1.0, "mirostat": 0, "skip_special_tokens": True, "use_beam_search": False}
    answered = server.post(COMPLETION, {**ASKED[COMPLETION][1], **neutral})
    assert answered.headers["x-paceline-ignored"] == "mirostat, repeat_penalty, skip_special_tokens, use_beam_search"
    more = {"stream": True, "stream_options": {"include_obfuscation": True}, "parallel_tool_calls": False}
    answered = server.post(CHAT, {**ASKED[CHAT][1], **more})
    assert answered.headers["x-paceline-ignored"] == "stream_options.include_obfuscation, parallel_tool_calls"
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert server.post(CHAT, {"messages": said, "max_tokens": 1, "continue_final_message": True}).status == 200


def test_options_of_methods_that_are_numbers_are_taken(server: HttpServer) -> None:
    for method in ("lookup:max_ngram=3,min_ngram=1", "suffix:noise=shared", "lookup+foresight:k=4", "unispec"):
        assert server.post(COMPLETION, {**ASKED[COMPLETION][1], "method": method, "planner": "fixed:256"}).status == 200


@pytest.mark.parametrize("path", [COMPLETION, CHAT, RESPONSE])
def test_the_seed_of_every_answer_repeats_it(server: HttpServer, path: str) -> None:
    asked = {**ASKED[path][1], "max_tokens": 8, "temperature": 1.0}
    del asked["seed"]
    first = server.post(path, asked).json()
    again = server.post(path, {**asked, "seed": first["seed"]}).json()
    place = "output" if path == RESPONSE else "choices"
    assert _without_ids(first[place]) == _without_ids(again[place])
    assert first["seed"] != server.post(path, asked).json()["seed"]


def _without_ids(found: Any) -> Any:
    return [{name: value for name, value in one.items() if name != "id"} for one in found]


# --- items of responses ----------------------------------------------------------------------------------------


def test_neighbouring_items_of_the_assistant_are_one_message() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": "Let me see."}
    for items in ([said, call, call], [call, call, said]):
        (message,) = _messages(items)
        assert message["content"] == "Let me see."
        assert len(message["tool_calls"]) == 2
    assert [one["role"] for one in _messages([said, said])] == ["assistant"] * 2


def test_logprobs_of_text_that_is_held_back_are_kept() -> None:
    items, told = Items("resp_1"), list[Any]()
    for number, text in enumerate(["a", "", "b", ""]):
        items.hold([number])
        told += items.push(Delta("content", text)) if text else []
    told += items.end("completed")
    deltas = [event for event in told if event["type"] == "response.output_text.delta"]
    assert [one for event in deltas for one in event["logprobs"]] == [0, 1, 2, 3]
    assert items.output[0]["content"][0]["logprobs"] == [0, 1, 2, 3]


# --- refusals are recorded -------------------------------------------------------------------------------------


def test_refusals_are_counted_and_logged(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "paceline.server"):
        server.refuses(COMPLETION, {"prompt": "a", "model": "evil\x1b[2J\nname"})
        server.refuses("/no%0Awhere", {})
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert any(f"status=404 path={COMPLETION}: the model " in line for line in lines)
    assert any("path=/no?where" in line for line in lines)
    assert not any(re.search(r"[\x00-\x1f]", line) for line in lines)
    metrics = server.ask("GET", "/metrics").body.decode()
    assert re.search(r'paceline:request_errors_total\{status="404"\} [1-9]', metrics)
