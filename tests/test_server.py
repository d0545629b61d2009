"""The server's texts are those of `LanguageModel.generate`, whatever else is written, and its answers have one form."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import paceline
from paceline import Settings
from paceline.api.drafters import KEPT
from paceline.api.model import LanguageModel
from paceline.api.serving import Serving
from paceline.cli import parser
from paceline.cli.serve import models_of, run
from paceline.errors import InputError
from paceline.integrations.server.app import make_app
from paceline.integrations.server.models import Limits, Models, ServedModel
from paceline.vocabulary import Vocabulary

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPTS = (
    "The old man sat down by the fire and",
    "The old man sat down by the sea and",
    "Stary człowiek usiadł przy ogniu i",
    "Старий чоловік сів біля вогню і",
    "one two three one two three one two",
)


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket")


@contextmanager
def serving(lm: LanguageModel, limits: Limits | None = None, **how: Any) -> Iterator[ServedModel]:
    with lm.serving(**how) as texts:
        yield ServedModel(name="pocket", lm=lm, serving=texts, drafts={"pocket-draft": "pocket-draft"})


def client(served: ServedModel, limits: Limits | None = None) -> httpx.AsyncClient:
    app = make_app(Models([served]), limits=limits)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=120)


def ask(served: ServedModel, path: str, body: dict[str, Any], limits: Limits | None = None) -> httpx.Response:
    async def asking() -> httpx.Response:
        async with client(served, limits) as http:
            return await http.post(path, json=body)

    return asyncio.run(asking())


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end as OpenAI's do."""
    frames = [one for one in text.split("\n\n") if one and not one.startswith(":")]
    assert frames[-1] == "data: [DONE]"
    return [json.loads(one.removeprefix("data: ")) for one in frames[:-1]]


# --- requests at random, and the same texts by `generate` ---


Drawn = tuple[str, dict[str, Any], Any, dict[str, Any], int]
"""A request: its path and body, and the prompt, settings and number of texts that `sample` is given for it."""


def drawn(rng: random.Random, turns: list[Any] | None = None) -> Drawn:
    """A request at random; of the chat with these ``turns``, if they are given."""
    prompt = rng.choice(PROMPTS)
    body: dict[str, Any] = {"max_tokens": rng.randint(1, 24), "seed": rng.randint(0, 2**32)}
    same: dict[str, Any] = {"max_new_tokens": body["max_tokens"], "seed": body["seed"]}
    body["temperature"] = same["temperature"] = rng.choice([0, 0, 0.7, 1.0, 1.3])
    for name, values in (
        ("top_p", (0.5, 0.9)),
        ("top_k", (3, 40)),
        ("min_p", (0.05,)),
        ("repetition_penalty", (1.2,)),
        ("presence_penalty", (0.5,)),
        ("frequency_penalty", (0.4,)),
        ("stop", ([" the", "i"],)),
    ):
        if rng.random() < 0.2:
            body[name] = same[name] = rng.choice(values)
    if rng.random() < 0.2:
        same["logit_bias"] = {rng.randint(0, 4000): rng.choice([-3.0, 2.5])}
        body["logit_bias"] = {str(token): bias for token, bias in same["logit_bias"].items()}
    if rng.random() < 0.3:
        body["prediction"] = {"type": "content", "content": rng.choice(PROMPTS)}
    _draw_method(rng, body)
    n = body["n"] = rng.choice([1, 1, 1, 2, 3])
    body["stream"] = rng.random() < 0.5
    if turns is not None or rng.random() < 0.5:
        messages = [{"role": "user", "content": prompt}] if turns is None else turns
        return CHAT, {**body, "messages": messages}, messages, same, n
    return TEXT, {**body, "prompt": prompt}, prompt, same, n


def _draw_method(rng: random.Random, body: dict[str, Any]) -> None:
    match rng.randint(0, 5):
        case 0:
            body["speculative"] = False
        case 1:
            body["draft_model"] = rng.choice([None, "pocket-draft"])
        case 2:
            body["method"] = rng.choice(["lookup", "suffix:noise=shared", "lookup+foresight", "unispec", "plain"])
        case 3:
            body["num_draft_tokens"] = rng.randint(0, 5)
        case 4:
            body["method"] = "assistant"


def texts_in(path: str, body: dict[str, Any], answer: httpx.Response) -> list[tuple[str, str]]:
    """The texts of an answer, and why each ended."""
    assert answer.status_code == 200, answer.text
    found = [["", ""] for _ in range(body["n"])]
    if not body["stream"]:
        for choice in answer.json()["choices"]:
            said = choice["message"]["content"] or "" if path == CHAT else choice["text"]
            found[choice["index"]] = [said, choice["finish_reason"]]
    else:
        for choice in (choice for chunk in chunks_of(answer.text) for choice in chunk["choices"]):
            said = choice["delta"].get("content", "") if path == CHAT else choice["text"]
            found[choice["index"]][0] += said
            found[choice["index"]][1] = choice["finish_reason"] or found[choice["index"]][1]
    return [(text, finish) for text, finish in found]


def expected(lm: LanguageModel, prompt: Any, settings: dict[str, Any], n: int) -> list[tuple[str, str]]:
    """What `sample` writes plainly, one text after another."""
    texts = lm.sample(prompt, n=n, method="plain", **settings)
    return [(text.text, "length" if text.finish in ("length", "context") else "stop") for text in texts]


async def all_of(http: httpx.AsyncClient, asked: Sequence[Any], rng: random.Random) -> list[httpx.Response]:
    """The answers to requests that come at random moments."""

    async def one(path: str, body: dict[str, Any], delay: float) -> httpx.Response:
        await asyncio.sleep(delay)
        return await http.post(path, json=body)

    tasks = [one(path, body, rng.random() * 0.02 * len(asked)) for path, body, *_ in asked]
    return list(await asyncio.gather(*tasks))


async def second_turns(lm: LanguageModel, http: httpx.AsyncClient, rng: random.Random, count: int) -> list[Drawn]:
    """Requests of chats whose assistant message is a reply of the server, written in unusual tokens."""
    found, unusual = list[Drawn](), 0
    for _ in range(count):
        turns: list[Any] = [{"role": "user", "content": rng.choice(PROMPTS)}]
        how = {"temperature": 1.3, "max_tokens": 24, "seed": rng.randint(0, 2**32), "return_token_ids": True}
        (choice,) = (await http.post(CHAT, json={"messages": turns, **how})).json()["choices"]
        said = choice["message"]
        assert lm.vocabulary is not None
        unusual += lm.vocabulary.encode(said["content"], add_special=False).tolist() != choice["token_ids"]
        found.append(drawn(rng, [*turns, said, {"role": "user", "content": "And then?"}]))
    assert unusual > 0, "only such replies can tell the encodings apart"
    return found


def fresh(lm: LanguageModel) -> LanguageModel:
    """The model in a process that has written nothing."""
    return LanguageModel(lm.target, lm.vocabulary, lm.defaults)


def check_requests(lm: LanguageModel, count: int, seed: int, **how: Any) -> None:
    rng = random.Random(seed)
    asked = [drawn(rng) for _ in range(count)]
    alone = [expected(lm, prompt, settings, n) for *_, prompt, settings, n in asked]

    async def asking(order: list[int]) -> None:
        with serving(lm, **how) as served:
            async with client(served) as http:
                answers = await all_of(http, [asked[i] for i in order], rng)
                later = await second_turns(lm, http, rng, count // 4)
                replies = await all_of(http, later, rng)
        for (path, body, prompt, settings, n), answer in zip(later, replies, strict=True):
            assert texts_in(path, body, answer) == expected(fresh(lm), prompt, settings, n), body
        for i, answer in zip(order, answers, strict=True):
            path, body, *_ = asked[i]
            assert texts_in(path, body, answer) == alone[i], body

    order = list(range(count))
    for _ in range(2):
        asyncio.run(asking(order))
        rng.shuffle(order)


@pytest.mark.filterwarnings("ignore:samples at temperature 0:UserWarning")
def test_texts_are_those_of_generate(lm: LanguageModel) -> None:
    check_requests(lm, 20, 1, at_once=5)


@pytest.mark.filterwarnings("ignore:samples at temperature 0:UserWarning")
def test_texts_are_those_of_generate_where_memory_is_short(lm: LanguageModel) -> None:
    check_requests(lm, 12, 2, at_once=6, kept=1, max_rows=160)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:samples at temperature 0:UserWarning")
@pytest.mark.parametrize("kind", [None, "int8"])
def test_two_hundred_texts_are_those_of_generate(kind: str | None) -> None:
    check_requests(paceline.load("pocket", quantize=kind), 200, 3, at_once=8)


# --- the form of answers ---


def test_what_samples_have_in_common_is_read_once(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = list[str]()
    original = Vocabulary.encode

    def encode(self: Vocabulary, text: str, **how: Any) -> Any:
        encoded.append(text)
        return original(self, text, **how)

    monkeypatch.setattr(Vocabulary, "encode", encode)
    told = {"type": "content", "content": f"{PROMPTS[0]}!"}
    body = {"messages": [{"role": "user", "content": PROMPTS[1]}], "max_tokens": 9, "min_tokens": 6, "seed": 3}
    body |= {"prediction": told, "logit_bias": {"0": 60}, "return_token_ids": True}
    with serving(lm) as served:
        before = len(encoded)
        once = ask(served, CHAT, body).json()["choices"]
        count = len(encoded) - before
        several = ask(served, CHAT, {**body, "n": 3}).json()["choices"]
    assert 0 < count == len(encoded) - before - count
    assert several[0]["token_ids"] == once[0]["token_ids"]
    assert len({tuple(choice["token_ids"]) for choice in several}) == 3
    assert [len(choice["token_ids"]) for choice in several] == [7, 7, 7], "the end is likely, and comes at once"


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_is_the_whole_answer(lm: LanguageModel, path: str) -> None:
    given = {"messages": [{"role": "user", "content": PROMPTS[0]}]} if path == CHAT else {"prompt": PROMPTS[0]}
    logprobs = {"logprobs": True, "top_logprobs": 3} if path == CHAT else {"logprobs": 3}
    body = {**given, **logprobs, "max_tokens": 20, "seed": 5, "method": "lookup+foresight", "return_token_ids": True}
    with serving(lm) as served:
        whole = ask(served, path, body).json()
        options = {"include_usage": True}
        chunks = chunks_of(ask(served, path, {**body, "stream": True, "stream_options": options}).text)
    *said, last = chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all(chunk["usage"] is None for chunk in said)
    assert {chunk["system_fingerprint"] for chunk in chunks} == {whole["system_fingerprint"]}
    choices = [choice for chunk in said for choice in chunk["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    ids = [token for choice in choices for token in choice.get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]
    assert len(ids) == 20
    if path == CHAT:
        assert choices[0]["delta"]["role"] == "assistant"
        entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
        assert len(entries) == 20
        assert [len(entry["top_logprobs"]) for entry in entries] == [3] * 20
        same = whole["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in entries] == [entry["token"] for entry in same]
    else:
        lists = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        for name, values in whole["choices"][0]["logprobs"].items():
            if name in ("tokens", "text_offset"):
                assert [one for entry in lists for one in entry[name]] == values


def test_usage_comes_once(lm: LanguageModel) -> None:
    body = {"prompt": PROMPTS[0], "max_tokens": 6, "seed": 1, "stream": True}
    with serving(lm) as served:
        left_out = chunks_of(ask(served, TEXT, body).text)
        none = chunks_of(ask(served, TEXT, {**body, "stream_options": {"include_usage": False}}).text)
        each = {"include_usage": True, "continuous_usage_stats": True}
        always = chunks_of(ask(served, TEXT, {**body, "stream_options": each}).text)
    assert [bool(chunk.get("usage")) for chunk in left_out] == [False] * (len(left_out) - 1) + [True]
    assert not any(chunk.get("usage") for chunk in none)
    counts = [chunk["usage"]["completion_tokens"] for chunk in always]
    assert counts == sorted(counts)
    assert counts[-1] == 6


def test_the_fingerprint_names_no_drafter(lm: LanguageModel) -> None:
    body = {"prompt": PROMPTS[4], "max_tokens": 12, "seed": 1, "temperature": 0}
    with serving(lm) as served:
        ways: list[dict[str, Any]] = [{}, {"speculative": False}, {"method": "lookup"}, {"draft_model": "pocket-draft"}]
        found = [ask(served, TEXT, {**body, **way}).json() for way in ways]
    assert len({answer["system_fingerprint"] for answer in found}) == 1
    assert len({answer["choices"][0]["text"] for answer in found}) == 1
    assert found[1]["timings"]["draft_n"] == 0
    spoken = found[2]["metrics"]["speculative_decoding"]
    assert spoken["num_accepted_draft_tokens"] == found[2]["timings"]["draft_n_accepted"]


def test_a_second_turn_reads_only_what_is_new(lm: LanguageModel) -> None:
    first = [{"role": "user", "content": "Tell me of the sea and of the old man who lived beside it."}]
    with serving(lm) as served:
        said = ask(served, CHAT, {"messages": first, "max_tokens": 12, "seed": 3}).json()
        for prompt in PROMPTS[:3]:
            ask(served, TEXT, {"prompt": prompt, "seed": 1})
        turns = [*first, said["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        again = ask(served, CHAT, {"messages": turns, "max_tokens": 4, "seed": 3}).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= said["usage"]["prompt_tokens"]


def test_ignored_fields_are_named(lm: LanguageModel) -> None:
    with serving(lm) as served:
        answer = ask(served, TEXT, {"prompt": "x", "max_tokens": 1, "user": "me", "service_tier": "auto", "é": 1})
    assert answer.headers["x-paceline-ignored"] == "service_tier, user, ?"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("wrong", "said", "param"),
    [
        ({"temperature": -1}, "temperature is -1.0", "temperature"),
        ({"max_tokens": 0}, "max_tokens is at least 1", "max_tokens"),
        ({"temperature": "warm"}, "temperature: input should be a valid number, not 'warm'", "temperature"),
        ({"method": "./a.py:B"}, "a request may name a built-in method", "method"),
        ({"method": "rest:corpus=a"}, "a request may name a built-in method", "method"),
        ({"method": "lookupp"}, "unknown method 'lookupp'; did you mean lookup?", "method"),
        ({"draft_model": "/etc"}, "the draft model '/etc' is not served here", "draft_model"),
        ({"planner": "x" * 50}, "planner is fixed:N", "planner"),
        ({"n": 99}, "n is at most 16 here", "n"),
        ({"logit_bias": {"a": 1}}, "logit_bias has token ids for keys", "logit_bias"),
        ({"model": "gpt-4"}, "the model 'gpt-4' is not served here; GET /v1/models lists pocket", "model"),
        ({"prompt": [99999999]}, "prompt names token 99999999", "prompt"),
        ({"prompt": []}, "prompt is an empty list", "prompt"),
        ({"guided_json": {}, "bad_words": ["a"]}, "bad_words is not served", "bad_words"),
        ({"structured_outputs": {"regex": "("}}, "the regular expression has a mistake", None),
        ({"structured_outputs": {"choice": ["a"]}, "ignore_eos": True}, "exclude each other", "ignore_eos"),
    ],
)
def test_a_wrong_request_gets_one_sentence(
    lm: LanguageModel, wrong: dict[str, Any], said: str, param: str | None
) -> None:
    with serving(lm) as served:
        answer = ask(served, TEXT, {"prompt": "x", **wrong})
        good = ask(served, TEXT, {"prompt": "x", "max_tokens": 1})
    error = answer.json()["error"]
    assert answer.status_code in (400, 404)
    assert said in error["message"]
    assert error["param"] == param or param is None
    assert "\n" not in error["message"]
    assert good.status_code == 200


def test_waiting_is_bounded(lm: LanguageModel) -> None:
    limits = Limits(at_once=1, waiting=2)
    body = {"prompt": PROMPTS[0], "max_tokens": 30, "seed": 1}

    async def asking(served: ServedModel) -> list[httpx.Response]:
        async with client(served, limits) as http:
            return list(await asyncio.gather(*(http.post(TEXT, json=body) for _ in range(12))))

    with serving(lm, at_once=1) as served:
        answers = asyncio.run(asking(served))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert all(answer.headers["retry-after"] for answer in refused)
    assert len({answer.text.partition('"text"')[2][:200] for answer in answers if answer.status_code == 200}) == 1


def test_an_answer_that_takes_too_long_is_an_error(lm: LanguageModel) -> None:
    limits = Limits(seconds=0.05)
    body = {"prompt": PROMPTS[0], "max_tokens": 2000, "seed": 1, "ignore_eos": True}
    with serving(lm) as served:
        whole = ask(served, TEXT, body, limits)
        stream = ask(served, TEXT, {**body, "stream": True}, limits)
        assert (served.serving.running, served.serving.waiting) == (0, 0)
    assert whole.status_code == 504
    assert "not complete after 0.05 seconds" in whole.text
    assert chunks_of(stream.text)[-1]["error"]["code"] == "timeout"


def test_a_server_that_stops_asks_clients_to_come_again(lm: LanguageModel) -> None:
    with serving(lm) as served:
        served.serving.close()
        for path, body in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": [{"role": "user", "content": "x"}]})):
            answer = ask(served, path, {**body, "max_tokens": 2})
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert "the server is stopping" in answer.json()["error"]["message"]


# --- the command ---


def test_models_divide_the_memory_and_are_warm_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[str]()
    read = Serving.read

    def noted(self: Serving, write: Any) -> Any:
        written.append(repr(self._lm))
        return read(self, write)

    monkeypatch.setattr(Serving, "read", noted)
    options = "serve -m pocket pocket-draft --name a b --method lookup --no-probe --max-batch 4"
    models = list(models_of(parser().parse_args(options.split())))
    try:
        assert written == [repr(one.lm) for one in models]
        free = models[0].lm.target.free_memory()
        rows = [(one.serving.max_rows, one.lm.target.row_bytes()) for one in models]
        assert free is not None
        assert 0.2 * free < sum(count * size for count, size in rows if count and size) < 0.6 * free
        for one in models:
            assert (one.serving.running, one.serving.rows) == (0, 0)
            for number in range(KEPT + 1):
                one.lm.lease(Settings(method=f"lookup:max_ngram={number + 2}"))
            assert one.lease is one.lm.lease(Settings(method="lookup")), "requests cannot push it out"
    finally:
        for one in models:
            one.serving.close()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_has_two_bytes(port: int) -> None:
    with pytest.raises(InputError, match=f"--port is 0 to 65535, not {port}"):
        run(parser().parse_args(["serve", "-m", "pocket", "--port", str(port)]))


DRAFTS = {"num_draft_tokens": 3}
"""Drafts in every round, whatever the planner has seen."""


def test_prometheus_counts_what_was_answered(lm: LanguageModel) -> None:
    async def asking(served: ServedModel) -> str:
        async with client(served) as http:
            for _ in range(3):
                body = {"prompt": PROMPTS[4], "max_tokens": 8, "temperature": 0, "method": "lookup", **DRAFTS}
                assert (await http.post(TEXT, json=body)).status_code == 200
            return (await http.get("/metrics")).text

    with serving(lm) as served:
        text = asyncio.run(asking(served))
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['vllm:generation_tokens_total{model_name="pocket"}']) == 24
    drafted = float(values['vllm:spec_decode_num_draft_tokens_total{model_name="pocket"}'])
    accepted = float(values['vllm:spec_decode_num_accepted_tokens_total{model_name="pocket"}'])
    assert 0 <= accepted <= drafted
    assert drafted > 0
    assert float(values['vllm:num_requests_running{model_name="pocket"}']) == 0
