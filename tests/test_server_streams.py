"""Streams say of every token what whole answers say, also where its text is held back; and they end as they should."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from paceline.api.model import LanguageModel
from paceline.api.piece import Piece
from paceline.api.writing import Writing
from paceline.integrations.server.models import Limits
from test_server import CHAT, PROMPTS, TEXT, ask, chunks_of, lm, serving

__all__ = ["lm"]
RESPONSES = "/v1/responses"


class Holding:
    """Texts of a server in which every second token has its text with the next one, each in a burst of its own."""

    def __init__(self, serving: Any) -> None:
        self._serving = serving

    def __getattr__(self, name: str) -> Any:
        return getattr(self._serving, name)

    async def read(self, write: Callable[[], Writing]) -> AsyncGenerator[list[Piece], None]:
        held, number = "", 0
        async with aclosing(self._serving.read(write)) as read:
            async for pieces in read:
                for piece in pieces:
                    number += 1
                    text, held = held + piece.text, ""
                    if number % 2 and piece.finish is None:
                        text, held = "", text
                    yield [replace(piece, text=text)]


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream of the Responses API."""
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("asked", ["return_token_ids", "return_pieces", "logprobs"])
def test_tokens_whose_text_is_held_back_are_in_the_stream(lm: LanguageModel, path: str, asked: str) -> None:
    given = {"messages": [{"role": "user", "content": PROMPTS[0]}]} if path == CHAT else {"prompt": PROMPTS[0]}
    body = {**given, "max_tokens": 20, "seed": 5, "stream": True, asked: True}
    if asked == "logprobs" and path == TEXT:
        body["logprobs"] = 0
    with serving(lm) as served:
        holding = replace(served, serving=Holding(served.serving))
        chunks = chunks_of(ask(holding, path, body).text)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    if asked == "return_token_ids":
        found = [token for choice in choices for token in choice.get("token_ids", [])]
    elif asked == "return_pieces":
        found = [piece for chunk in chunks for piece in chunk.get("paceline", {}).get("pieces", [])]
    else:
        lists = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        found = [one for entry in lists for one in entry["content" if path == CHAT else "tokens"]]
    assert len(found) == 20


def test_responses_have_the_logprobs_of_every_token(lm: LanguageModel) -> None:
    body = {"input": PROMPTS[0], "max_output_tokens": 20, "seed": 5, "stream": True, "top_logprobs": 1}
    with serving(lm) as served:
        holding = replace(served, serving=Holding(served.serving))
        events = events_of(ask(holding, RESPONSES, body).text)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert sum(len(event["logprobs"]) for event in deltas) == 20
    (item,) = events[-1]["response"]["output"]
    assert len(item["content"][0]["logprobs"]) == 20


def test_a_response_that_fails_says_so_at_its_end(lm: LanguageModel) -> None:
    body = {"input": PROMPTS[0], "max_output_tokens": 2000, "seed": 1, "ignore_eos": True, "stream": True}
    with serving(lm) as served:
        stream = ask(served, RESPONSES, body, Limits(seconds=0.05)).text
    events = events_of(stream)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert "not complete after 0.05 seconds" in events[-1]["response"]["error"]["message"]
    assert "[DONE]" not in stream


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_empty_options_of_a_stream_ask_for_no_usage(lm: LanguageModel, path: str) -> None:
    given = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT else {"prompt": "a"}
    body = {**given, "max_tokens": 2, "seed": 1, "stream": True, "stream_options": {}}
    with serving(lm) as served:
        chunks = chunks_of(ask(served, path, body).text)
    assert not any(chunk.get("usage") for chunk in chunks)
    assert chunks[-1]["seed"] == 1
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_offsets_are_places_in_the_text(lm: LanguageModel) -> None:
    """Also of tokens that are a part of a character."""
    body = {
        "prompt": "日本語 żółw",
        "max_tokens": 40,
        "seed": 3,
        "temperature": 2.0,
        "logprobs": 0,
        "return_pieces": True,
    }
    with serving(lm) as served:
        choice = ask(served, TEXT, body).json()["choices"][0]
    offsets, at = [], 0
    for piece in choice["paceline"]["pieces"]:
        offsets.append(at)
        at += len(piece["text"])
    assert choice["logprobs"]["text_offset"] == offsets
    assert at == len(choice["text"])


def test_tokens_of_several_prompts_are_counted_once_for_each(lm: LanguageModel) -> None:
    with serving(lm) as served:
        alone = [ask(served, TEXT, {"prompt": one, "max_tokens": 1}).json()["usage"] for one in PROMPTS[:2]]
        both = ask(served, TEXT, {"prompt": [*PROMPTS[:2]], "n": 2, "max_tokens": 1}).json()["usage"]
    assert both["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in alone)
    cached = both["prompt_tokens_details"]["cached_tokens"]
    assert alone[0]["prompt_tokens"] - 1 <= cached <= both["prompt_tokens"]


def test_a_text_that_timed_out_counts_its_drafts(lm: LanguageModel) -> None:
    import asyncio

    from test_server import client

    body = {"prompt": PROMPTS[4], "max_tokens": 2000, "temperature": 0, "ignore_eos": True, "num_draft_tokens": 3}

    async def asking(served: Any) -> str:
        async with client(served, Limits(seconds=0.5)) as http:
            answer = await http.post(TEXT, json={**body, "method": "lookup"})
            assert answer.status_code == 504
            return (await http.get("/metrics")).text

    with serving(lm) as served:
        text = asyncio.run(asking(served))
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['vllm:spec_decode_num_draft_tokens_total{model_name="pocket"}']) > 0
    assert float(values['paceline:request_errors_total{status="504"}']) == 1


def test_the_fingerprint_names_the_path_of_the_target(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lm) as served:
        first = served.system_fingerprint
        assert replace(served).system_fingerprint == first
        monkeypatch.setattr("paceline.integrations.server.models.kernels", lambda: "another")
        assert replace(served).system_fingerprint != first


def test_a_response_repeats_the_settings_that_acted(lm: LanguageModel) -> None:
    with serving(lm) as served:
        found = ask(served, RESPONSES, {"input": "a", "max_tokens": 3, "parallel_tool_calls": False}).json()
    assert found["max_output_tokens"] == 3
    assert found["temperature"] is not None
    assert isinstance(found["seed"], int)
    assert (found["parallel_tool_calls"], found["tool_choice"]) == (True, "none")
    assert found["completed_at"] >= found["created_at"]
