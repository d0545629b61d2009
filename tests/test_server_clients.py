"""Existing clients work with the server unchanged. The main one is openai-python, with every call that we answer.

openai-python builds its objects without a check, so what it reads here is also validated by its own types, strictly:
a field that is missing or of another type is an error.
"""

import asyncio
import importlib.util
import json
import shutil
import subprocess
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server is an extra: pip install 'paceline[serve]'")
pytest.importorskip("openai", reason="openai-python is not installed")

import httpx
import openai
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, TypeAdapter
from transformers import AutoTokenizer

import families
import paceline
from clock import comes_true
from paceline.api.piece import Piece
from paceline.api.serving import Serving
from paceline.api.writing import Writing
from paceline.integrations.server.app import make_app
from paceline.integrations.server.doors import Doors, digest_of
from paceline.integrations.server.models import Limits, Models, ServedModel
from paceline.integrations.server.run import bind, server_for, url_of
from test_docs import blocks
from tokenizer_kinds import REAL

POCKET, CHATTY = "pocket", "chatty"
BURST = 3
SHORT: dict[str, Any] = {"seed": 7, "temperature": 0.8, "max_tokens": 12}
HELLO: list[Any] = [{"role": "user", "content": "Hello. Tell me of the old house at the end of the lane."}]
CHATML = """\
{%- if tools %}<|im_start|>system
{{ messages[0].content ~ "\n\n" if messages[0].role == "system" }}# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% elif messages[0].role == "system" %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in (messages[1:] if messages[0].role == "system" else messages) %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "The weather of a city.", "parameters": PARAMETERS}
TOOLS: list[Any] = [{"type": "function", "function": WEATHER}]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Bursting:
    """Texts of a server in bursts of some tokens, however many a draft gave."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def __getattr__(self, name: str) -> Any:
        return getattr(self._serving, name)

    async def read(self, write: Callable[[], Writing]) -> AsyncGenerator[list[Piece], None]:
        held: list[Piece] = []
        async with aclosing(self._serving.read(write)) as read:
            async for pieces in read:
                held += pieces
                if len(held) >= BURST:
                    yield held
                    held = []
        if held:
            yield held


def served(name: str, source: str | Path, **how: Any) -> ServedModel:
    lm = paceline.load(source, dtype="float32", probe=False)
    return ServedModel(name=name, lm=lm, serving=bursting(lm), **how)


def bursting(lm: paceline.LanguageModel) -> Any:
    return Bursting(lm.serving(at_once=4))


@contextmanager
def listening(models: Sequence[ServedModel], **how: Any) -> Iterator[str]:
    """The address of a server in a thread."""
    bound, ready = bind("127.0.0.1", 0), threading.Event()
    own = [replace(one, serving=bursting(one.lm)) for one in models]  # a server closes its servings at its end
    server = server_for(make_app(Models(own), **how), ready=ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        assert ready.wait(60)
        yield url_of(bound)
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template that knows tools, its weights random."""
    folder = tmp_path_factory.mktemp("models") / CHATTY
    families.save("llama", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(chatty: Path) -> list[ServedModel]:
    return [served(POCKET, POCKET, drafts={"pocket-draft": "pocket-draft"}), served(CHATTY, chatty)]


@pytest.fixture(scope="module")
def url(models: list[ServedModel]) -> Iterator[str]:
    with listening(models) as found:
        yield found


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def strict(kind: type[BaseModel], text: str) -> Any:
    """A JSON text as a type of openai-python. Whatever is missing or of another type is an error."""
    return kind.model_validate_json(text, strict=True)


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json=body, timeout=60)


def frames(url: str, path: str, **body: Any) -> list[str]:
    """The data of each event of a stream."""
    answer = post(url, path, stream=True, **body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.split("\n\n")
    assert lines.pop() == ""
    return [line.split("data: ", 1)[1] for line in lines if not line.startswith(":")]


def counts(usage: Any) -> tuple[int, int, int]:
    """A usage without what was read already, which grows with every request for the same prompt."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


# --- chat ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [POCKET, CHATTY])
@pytest.mark.parametrize("count", [1, 3])
def test_a_chat_streams_what_it_answers_whole(url: str, model: str, count: int) -> None:
    body = {"model": model, "messages": HELLO, "n": count, "logprobs": True, "top_logprobs": 2, **SHORT}
    whole = strict(ChatCompletion, post(url, "/v1/chat/completions", **body).text)
    *data, done = frames(url, "/v1/chat/completions", stream_options={"include_usage": True}, **body)
    assert done == "[DONE]"
    chunks = [strict(ChatCompletionChunk, one) for one in data]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert [choice.index for choice in whole.choices] == [*range(count)]
    for choice in whole.choices:
        mine = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert mine[0].delta.role == "assistant"
        assert all(part.delta.role is None for part in mine[1:])
        assert "".join(part.delta.content or "" for part in mine) == choice.message.content
        assert [part.finish_reason for part in mine] == [None] * (len(mine) - 1) + [choice.finish_reason]
        tokens = [one for part in mine if part.logprobs for one in part.logprobs.content or ()]
        assert tokens == choice.logprobs.content
        assert max(len(part.logprobs.content) for part in mine if part.logprobs) >= BURST
        assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in tokens)
    assert sum(len(choice.logprobs.content) for choice in whole.choices) == whole.usage.completion_tokens
    assert chunks[-1].choices == []
    assert counts(chunks[-1].usage) == counts(whole.usage)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert all("usage" in json.loads(one) and json.loads(one)["usage"] is None for one in data[:-1])
    assert chunks[0].system_fingerprint == whole.system_fingerprint


def test_the_options_of_a_stream_say_where_the_usage_is(url: str) -> None:
    """Without options it comes with the last choice, for clients that never ask for it."""
    body = {"messages": HELLO, **SHORT}
    told = {}
    for name, options in (
        ("none", {}),
        ("off", {"stream_options": {"include_usage": False}}),
        ("on", {"stream_options": {"include_usage": True, "include_obfuscation": False}}),
        ("always", {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    ):
        told[name] = [json.loads(one) for one in frames(url, "/v1/chat/completions", **body, **options)[:-1]]
    with_usage = {name: [bool(one.get("usage")) for one in chunks] for name, chunks in told.items()}
    assert with_usage["none"] == [False] * (len(told["none"]) - 1) + [True]
    assert told["none"][-1]["choices"][0]["finish_reason"] == "length"
    assert not any("usage" in one for one in told["off"])
    assert with_usage["on"] == [False] * (len(told["on"]) - 1) + [True]
    assert with_usage["always"] == [True] * len(told["always"])
    assert told["always"][-1]["choices"] == []
    counts = [one["usage"]["completion_tokens"] for one in told["always"]]
    assert counts == sorted(counts)
    assert counts[-1] == SHORT["max_tokens"]
    for name in ("none", "on", "always"):
        last = told[name][-1]
        assert last["timings"]["predicted_n"] == SHORT["max_tokens"]
        assert last["metrics"]["speculative_decoding"]["num_rounds"] > 0


def test_the_helper_for_streams_puts_a_reply_together(client: OpenAI) -> None:
    how: dict[str, Any] = {"model": POCKET, "messages": HELLO, **SHORT, "stop": ["e"]}  # it refuses a reply that is cut
    whole = client.chat.completions.create(**how)
    with client.chat.completions.stream(**how, stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} == {*kinds}
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert counts(final.usage) == counts(whole.usage)


def test_a_template_renders_system_tools_and_turns(url: str, client: OpenAI, chatty: Path) -> None:
    """The prompt is the one that transformers renders, and arguments reach the template as objects."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Łódź"}'}}
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "The weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees"},
        {"role": "user", "content": "And now?"},
    ]
    tokenizer = AutoTokenizer.from_pretrained(chatty)
    parsed = {**call, "function": {**call["function"], "arguments": {"city": "Łódź"}}}
    own = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "The weather?"},
        {**messages[2], "tool_calls": [parsed]},
        *messages[3:],
    ]
    text = tokenizer.apply_chat_template(own, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    assert text.index("# Tools") < text.index('"arguments": {"city": ') < text.index("4 degrees")
    body = {"model": CHATTY, "messages": messages, "tools": TOOLS}
    assert post(url, "/apply-template", **body).json() == {"prompt": text}
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert post(url, "/tokenize", **body).json()["tokens"] == ids
    told = client.chat.completions.create(**body, **SHORT)
    assert told.usage is not None
    assert told.usage.prompt_tokens == len(ids)
    assert client.chat.completions.create(**body, **SHORT, tool_choice="none").usage.prompt_tokens < len(ids)  # type: ignore[union-attr]


def test_a_real_tokenizer_streams_what_it_writes_whole(tmp_path: Path) -> None:
    """Random weights write bytes of a large vocabulary in any order: characters that are split over tokens, and halves
    of characters."""
    if not REAL.exists():
        pytest.skip("real tokenizers are not here: ../shared/data/tokenizers is absent")
    tokenizer = AutoTokenizer.from_pretrained(REAL / "gpt2")
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tmp_path)
    families.build("llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id).save_pretrained(tmp_path)
    body = {"messages": HELLO, "tools": TOOLS, "logprobs": True, **SHORT, "max_tokens": 60}
    with listening([served("gpt2", tmp_path)]) as url:
        whole = strict(ChatCompletion, post(url, "/v1/chat/completions", **body).text)
        *data, _ = frames(url, "/v1/chat/completions", **body)
        prompt = post(url, "/apply-template", messages=HELLO, tools=TOOLS).json()["prompt"]
    parts = [strict(ChatCompletionChunk, one).choices[0] for one in data]
    assert "".join(part.delta.content or "" for part in parts) == whole.choices[0].message.content
    entries = whole.choices[0].logprobs.content
    assert [one for part in parts if part.logprobs for one in part.logprobs.content] == entries
    assert len(entries) == whole.usage.completion_tokens
    spelled = b"".join(bytes(one.bytes) for one in entries).decode(errors="replace")
    assert spelled.startswith(whole.choices[0].message.content)
    assert prompt == tokenizer.apply_chat_template(HELLO, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    assert whole.usage.prompt_tokens == len(tokenizer.encode(prompt, add_special_tokens=False))


def test_what_changes_nothing_is_ignored_and_named(client: OpenAI) -> None:
    ignored: dict[str, Any] = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "verbosity": "low",
        "safety_identifier": "x",
        "prompt_cache_key": "k",
    }
    told = client.chat.completions.with_raw_response.create(model=POCKET, messages=HELLO, **SHORT, **ignored)
    assert told.headers["x-paceline-ignored"] == ", ".join(sorted(ignored))
    assert told.headers["x-request-id"] == told.parse()._request_id
    plain = client.chat.completions.with_raw_response.create(model=POCKET, messages=HELLO, **SHORT)
    assert "x-paceline-ignored" not in plain.headers
    assert plain.parse().choices == told.parse().choices
    named = client.chat.completions.create(
        model=POCKET, messages=HELLO, **SHORT, extra_headers={"x-request-id": "mine-1"}
    )
    assert named._request_id == "mine-1"


def test_drafting_is_chosen_by_a_request_and_changes_no_text(client: OpenAI) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"speculative": False},
        {"draft_model": None},
        {"draft_model": "pocket-draft", "num_draft_tokens": 3},
        {"speculative.n_max": 4, "method": "lookup"},
        {"method": "suffix", "planner": "fixed:4"},
    ]
    told = [client.chat.completions.create(model=POCKET, messages=HELLO, **SHORT, extra_body=way) for way in ways]
    assert len({one.choices[0].message.content for one in told}) == 1
    assert len({one.system_fingerprint for one in told}) == 1
    drafted = [one.timings["draft_n"] for one in told]  # type: ignore[attr-defined]
    assert drafted[1] == drafted[2] == 0 < drafted[3]
    guessed = told[0].choices[0].message.content
    predicted = client.chat.completions.create(
        model=POCKET, messages=HELLO, **SHORT, prediction={"type": "content", "content": guessed or ""}
    )
    assert predicted.choices == told[0].choices


# --- completions --------------------------------------------------------------------------------------------


def test_completions_stream_what_they_answer_whole(url: str) -> None:
    body = {"model": POCKET, "prompt": ["Once upon a time", "It was"], "n": 2, "logprobs": 2, "echo": False, **SHORT}
    whole = strict(Completion, post(url, "/v1/completions", **body).text)
    *data, done = frames(url, "/v1/completions", stream_options={"include_usage": True}, **body)
    assert done == "[DONE]"
    parts = [json.loads(one) for one in data[:-1]]
    for part in parts:
        assert [choice["finish_reason"] for choice in part["choices"]] in ([None], ["length"])
        part["choices"][0]["finish_reason"] = "length"  # the type has no null, though OpenAI sends it before the end
    chunks = [strict(Completion, json.dumps(part)) for part in parts]
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    for choice in whole.choices:
        mine = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in mine) == choice.text
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [one for part in mine for one in getattr(part.logprobs, name)]
            assert joined == getattr(choice.logprobs, name)
            assert len(joined) == SHORT["max_tokens"]
        assert "".join(choice.logprobs.tokens).startswith(choice.text)
        assert choice.finish_reason == "length"
    last = strict(Completion, data[-1])
    assert last.choices == []
    assert counts(last.usage) == counts(whole.usage)
    assert last.usage.completion_tokens == 4 * SHORT["max_tokens"]


def test_a_chunk_of_a_completion_has_no_reason_to_end_before_its_end(url: str) -> None:
    data = frames(url, "/v1/completions", prompt="Once", **SHORT)[:-1]
    reasons = [json.loads(one)["choices"][0]["finish_reason"] for one in data]
    assert reasons == [None] * (len(data) - 1) + ["length"]
    assert json.loads(data[-1])["usage"]["completion_tokens"] == SHORT["max_tokens"]


def test_prompts_are_texts_or_tokens(url: str, client: OpenAI) -> None:
    ids = post(url, "/tokenize", prompt="Once upon a time").json()["tokens"]
    told = [
        client.completions.create(model=POCKET, prompt=prompt, **SHORT).choices[0].text
        for prompt in ("Once upon a time", ["Once upon a time"], ids, [ids])
    ]
    assert len({*told}) == 1
    echoed = client.completions.create(model=POCKET, prompt="Once upon a time", echo=True, **SHORT)
    assert echoed.choices[0].text == "Once upon a time" + told[0]
    assert client.completions.create(model=POCKET, prompt="Once").usage.completion_tokens == 16  # type: ignore[union-attr]


def test_a_benchmark_gets_as_many_tokens_as_it_asks_for(url: str) -> None:
    """As `vllm bench serve` and guidellm ask."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": CHATTY, "max_tokens": 40, "ignore_eos": True, "temperature": 0.0, "stream_options": options}
    body |= {"repetition_penalty": 1.0, "top_k": -1, "logprobs": None}
    for path, prompt in (("/v1/completions", {"prompt": "Once"}), ("/v1/chat/completions", {"messages": HELLO})):
        *data, done = frames(url, path, **body, **prompt)
        assert done == "[DONE]"
        assert json.loads(data[-1])["usage"]["completion_tokens"] == 40


# --- responses ----------------------------------------------------------------------------------------------

ASKED: dict[str, Any] = {"input": "Hello", "max_output_tokens": 12, "temperature": 0.8, "extra_body": {"seed": 7}}


def test_a_response_streams_what_it_answers_whole(url: str) -> None:
    body = {"model": POCKET, "input": "Hello", "max_output_tokens": 12, "temperature": 0.8, "seed": 7}
    whole = strict(Response, post(url, "/v1/responses", **body).text)
    events = [EVENTS.validate_json(one, strict=True) for one in frames(url, "/v1/responses", **body)]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert {*kinds[4:-4]} == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    last = events[-1].response
    assert last.output_text == whole.output_text == events[-4].text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert last.usage.input_tokens == whole.usage.input_tokens
    assert last.usage.output_tokens == whole.usage.output_tokens
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage.output_tokens == 12


def test_responses_are_kept_continued_and_deleted(client: OpenAI) -> None:
    first = client.responses.create(model=CHATTY, instructions="Be brief.", **ASKED)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    again = client.responses.create(model=CHATTY, previous_response_id=first.id, **ASKED)
    assert again.previous_response_id == first.id
    assert again.usage is not None
    assert first.usage is not None
    assert again.usage.input_tokens > first.usage.input_tokens
    by_hand: list[Any] = [
        {"role": "user", "content": "Hello"},
        *[item.model_dump(exclude_none=True) for item in first.output],
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
    ]
    told = client.responses.create(model=CHATTY, **(ASKED | {"input": by_hand}))
    assert told.output_text == again.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    unkept = client.responses.create(model=CHATTY, store=False, **ASKED)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_a_response_includes_logprobs_where_they_are_asked_for(client: OpenAI) -> None:
    how: dict[str, Any] = {"model": POCKET, **ASKED}
    for more, alternatives in (({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 2}, 2)):
        told = client.responses.with_raw_response.create(**how, **more)  # type: ignore[arg-type]
        assert "x-paceline-ignored" not in told.headers
        entries = told.parse().output[0].content[0].logprobs  # type: ignore[union-attr,index]
        assert [len(one.top_logprobs) for one in entries or ()] == [alternatives] * 12
    other = client.responses.with_raw_response.create(**how, include=["reasoning.encrypted_content"])
    assert other.headers["x-paceline-ignored"] == "include"
    assert other.parse().output[0].content[0].logprobs == []  # type: ignore[union-attr,index]


def test_the_helper_for_streams_puts_a_response_together(client: OpenAI) -> None:
    whole = client.responses.create(model=POCKET, **ASKED)
    with client.responses.stream(model=POCKET, **ASKED) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text


# --- models, errors, keys -----------------------------------------------------------------------------------


def test_models_are_listed_and_found(url: str, client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [POCKET, CHATTY]
    assert client.models.retrieve(CHATTY).owned_by == "paceline"
    for entry in httpx.get(f"{url}/v1/models").json()["data"]:
        strict(Model, json.dumps(entry))
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("given", "kind", "param"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"temperature": "hot"}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"n": 99}, openai.BadRequestError, "n"),
        ({"extra_body": {"bad_words": ["x"]}}, openai.BadRequestError, "bad_words"),
        ({"extra_body": {"draft_model": "other"}}, openai.BadRequestError, "draft_model"),
    ],
)
def test_errors_are_the_clients_own_classes(
    client: OpenAI, given: dict[str, Any], kind: type[openai.APIStatusError], param: str
) -> None:
    for stream in (False, True):
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**{"model": POCKET, "messages": HELLO, **SHORT, "stream": stream, **given})
        assert caught.value.param == param
        assert caught.value.type == "invalid_request_error"
        assert caught.value.request_id


def test_a_key_is_asked_for(models: list[ServedModel]) -> None:
    with listening(models[:1], doors=Doors(keys=(digest_of("secret"),))) as url:
        with OpenAI(base_url=f"{url}/v1", api_key="other") as wrong, pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        with OpenAI(base_url=f"{url}/v1", api_key="secret") as right:
            assert len(right.models.list().data) == 1


def test_the_client_of_a_page_on_another_site_may_ask(models: list[ServedModel]) -> None:
    """openai-node in a browser, whose own headers the browser asks about first."""
    asked = "authorization,content-type,x-stainless-lang,x-stainless-retry-count,openai-project,x-other"
    site = {"origin": "https://a.example", "access-control-request-headers": asked}
    with listening(models[:1], doors=Doors(origins=("https://a.example",))) as url:
        told = httpx.options(f"{url}/v1/chat/completions", headers=site | {"access-control-request-method": "POST"})
    allowed = told.headers["access-control-allow-headers"].split(", ")
    assert {*asked.split(",")} - {*allowed} == {"x-other"}
    assert told.headers["access-control-allow-origin"] == "https://a.example"


def test_a_client_tries_again_when_too_many_wait(models: list[ServedModel], monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(waiting=2)
    how: dict[str, Any] = {"model": POCKET, "prompt": ["a", "b"], "max_tokens": 2}
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    with listening(models[:1], limits=limits) as url, OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        client.completions.create(**how)
        monkeypatch.setattr(Bursting, "waiting", 1, raising=False)
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**how)
    assert waited == [1.0, 1.0]  # the server's retry-after, twice
    assert caught.value.code == "too_many_waiting"


# --- the asynchronous client --------------------------------------------------------------------------------


def test_many_requests_at_once_are_each_as_alone(url: str, client: OpenAI) -> None:
    def how(number: int) -> dict[str, Any]:
        return {"model": POCKET, "messages": [{"role": "user", "content": f"Tale {number}"}], **SHORT, "seed": number}

    async def all_of_them() -> list[str]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as several:

            async def one(number: int) -> str:
                stream = await several.chat.completions.create(**how(number), stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(5)))

    alone = [client.chat.completions.create(**how(number)).choices[0].message.content for number in range(5)]
    assert asyncio.run(all_of_them()) == alone


def test_a_client_that_leaves_ends_its_text(url: str, client: OpenAI) -> None:
    """By closing its stream, by cancelling, and by its timeout. The seats are free afterwards."""
    how: dict[str, Any] = {"model": POCKET, "messages": HELLO, "extra_body": {"ignore_eos": True}, "max_tokens": 4000}

    async def leave() -> None:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as leaving:
            stream = await leaving.chat.completions.create(**how, stream=True)
            async for _ in stream:
                break
            await stream.close()
            while running():
                await asyncio.sleep(0.02)
            task = asyncio.create_task(leaving.chat.completions.create(**how))
            while not running():
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(openai.APITimeoutError):
                await leaving.chat.completions.create(**how, timeout=httpx.Timeout(60, read=0.2))

    def running() -> float:
        return counted(url, "vllm:num_requests_running")

    before = counted(url, "vllm:request_success_total", finished_reason="abort")
    asyncio.run(leave())
    assert client.chat.completions.create(model=POCKET, messages=HELLO, **SHORT).choices[0].finish_reason == "length"
    left = partial(counted, url, "vllm:request_success_total", finished_reason="abort")
    assert comes_true(lambda: left() == before + 3), "a text goes on without its reader"


# --- the forms of other servers -----------------------------------------------------------------------------


def counted(url: str, name: str, **labels: str) -> float:
    """The sum of a metric over the samples that have these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_prometheus_reads_the_metrics(url: str, client: OpenAI) -> None:
    names = ["prompt_tokens_total", "generation_tokens_total", "spec_decode_num_draft_tokens_total"]
    before = {name: counted(url, f"vllm:{name}", model_name=POCKET) for name in names}
    told = client.chat.completions.create(
        model=POCKET, messages=HELLO, **SHORT, extra_body={"draft_model": "pocket-draft", "num_draft_tokens": 2}
    )
    after = {name: counted(url, f"vllm:{name}", model_name=POCKET) for name in names}
    assert told.usage is not None
    timings = told.timings  # type: ignore[attr-defined]
    grown = [after[name] - before[name] for name in names]
    assert grown == [told.usage.prompt_tokens, told.usage.completion_tokens, timings["draft_n"]]
    assert timings["draft_n"] > 0
    answer = httpx.get(f"{url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_tokens_in_the_forms_of_llama_cpp_and_of_vllm(url: str) -> None:
    text = "Zażółć gęślą jaźń 🦔"
    llama = post(url, "/tokenize", content=text, add_special=False, with_pieces=True).json()["tokens"]
    spelled = [piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"]) for piece in llama]
    assert b"".join(spelled).decode().strip() == text
    ids = [piece["id"] for piece in llama]
    assert post(url, "/tokenize", content=text).json()["tokens"] == ids
    vllm = post(url, "/tokenize", prompt=text, add_special_tokens=False, return_token_strs=True).json()
    assert vllm["tokens"] == ids
    assert vllm["count"] == len(ids) == len(vllm["token_strs"])
    assert post(url, "/detokenize", tokens=ids).json()["content"].strip() == text
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{url}/props").json()["total_slots"] == Limits().at_once


def test_the_trailing_numbers_are_those_that_aiperf_reads(url: str) -> None:
    """At the root of the last chunk, all under vLLM's names."""
    body = {"messages": HELLO, **SHORT, "draft_model": "pocket-draft", "num_draft_tokens": 3}
    *data, _ = frames(url, "/v1/chat/completions", stream_options={"include_usage": True}, **body)
    found = json.loads(data[-1])["metrics"]["speculative_decoding"]
    assert found["num_draft_tokens"] >= found["num_accepted_draft_tokens"] >= 0
    histogram = found["acceptance_histogram"]
    assert len(histogram) == found["num_spec_tokens"] + 1
    assert found["num_spec_steps"] == sum(histogram) > 0
    accepted = sum(length * times for length, times in enumerate(histogram))
    assert accepted == found["num_accepted_draft_tokens"]
    assert found["mean_acceptance_length"] == pytest.approx(1 + accepted / found["num_spec_steps"])
    assert found["draft_acceptance_rate"] == pytest.approx(accepted / found["num_draft_tokens"])
    assert 1 <= found["num_spec_tokens"] <= 3


# --- the page of the server ---------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parent.parent / "docs" / "serving.md"
ADDRESS = "http://127.0.0.1:8000"


@pytest.mark.parametrize("body", [*blocks(PAGE, "python")], ids=lambda body: body.splitlines()[0].split()[1])
def test_the_python_of_the_page_runs(url: str, body: str, capsys: pytest.CaptureFixture[str]) -> None:
    need_package(body.split()[1])
    assert ADDRESS in body
    exec(compile(body.replace(ADDRESS, url), PAGE.name, "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_curl_of_the_page_runs(url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    commands = [body for body in blocks(PAGE, "sh") if body.startswith("curl ")]
    assert commands
    for command in commands:
        line = command.replace(ADDRESS, url)
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
        assert strict(ChatCompletion, done.stdout).usage.completion_tokens == 30


# --- other clients ------------------------------------------------------------------------------------------


def need_package(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


@pytest.mark.slow
def test_langchain(url: str) -> None:
    need_package("langchain_openai")
    from langchain_openai import ChatOpenAI

    how: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "model": POCKET, "temperature": 0.8}
    chat = ChatOpenAI(**how, seed=7, max_tokens=12)
    whole = chat.invoke("Hello")
    assert whole.usage_metadata["output_tokens"] == 12
    assert "accepted_prediction_tokens" in whole.response_metadata["token_usage"]["completion_tokens_details"]
    assert "".join(chunk.content for chunk in chat.stream("Hello")) == whole.content
    responses = ChatOpenAI(**how, use_responses_api=True, max_tokens=12, extra_body={"seed": 7})
    assert responses.invoke("Hello").usage_metadata["output_tokens"] == 12


@pytest.mark.slow
def test_litellm(url: str) -> None:
    need_package("litellm")
    import litellm

    how: dict[str, Any] = {"model": f"openai/{POCKET}", "api_base": f"{url}/v1", "api_key": "none", **SHORT}
    whole = litellm.completion(messages=HELLO, **how)
    parts = litellm.completion(messages=HELLO, stream=True, **how)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
