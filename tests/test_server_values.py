"""Every wrong value in every field of every request: an answer or a sentence, and never an error of the server's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from http_server import ASKED, CHAT, COMPLETION, MODEST, HttpServer

pytestmark = pytest.mark.usefixtures("unharmed")
EMPTY = "the prompt is empty"


# --- types and values ------------------------------------------------------------------------------------------


def nested(depth: int = 60) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": [value]}
    return value


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2.5,
    1e308,
    10**400,
    "",
    "x" * 10_000,
    [],
    {},
    nested(),
    [None],
    ["a"],
    [10**30],
]
ODD += [{"a": 1}, {"1": 1e308}, {"type": "x"}, [{}], [{"role": 1}], [[]], "\ud83d\ude00\x00\u2028", "auto", [[1, "a"]]]


def fields_of(model: type[BaseModel], depth: int = 3) -> Iterator[tuple[str, ...]]:
    """The fields of a body by their paths, those of the bodies in it included."""
    for name, found in model.model_fields.items():
        path = found.alias or name
        yield (path,)
        for inner in _models_in(found.annotation) if depth else ():
            yield from ((path, *more) for more in fields_of(inner, depth - 1))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and get_origin(annotation) is None:
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, list):
        for one in get_args(annotation):
            yield from _models_in(one)


FRAMES: dict[str, Any] = {
    "stream_options": {},
    "prediction": {"type": "content", "content": "a"},
    "structured_outputs": {},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_object"},
    "text": {"format": {"type": "text"}},
    "reasoning": {},
}
"""Something that is right, to put a wrong value into."""


def with_value(body: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A body with a value at a place."""
    if len(path) == 1:
        return {**body, path[0]: value}
    inner = body.get(path[0], FRAMES.get(path[0], {}))
    if isinstance(inner, list):
        return {**body, path[0]: [with_value(inner[0], path[1:], value)]}
    return {**body, path[0]: with_value(inner if isinstance(inner, dict) else {}, path[1:], value)}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("path", ASKED)
def test_every_value_in_every_field(server: HttpServer, path: str) -> None:
    """Each has an answer or an error of the client's, in one sentence; never an error of the server's."""
    model, body = ASKED[path]
    asked = [(place, value) for place in sorted(set(fields_of(model))) for value in ODD]

    def ask(given: tuple[tuple[str, ...], Any]) -> str | None:
        answered = server.post(path, with_value(body, *given))
        shown = f"{given[0]} = {str(given[1])[:60]!r}: {answered.status} {answered.body[:300]!r}"
        if answered.status == 200:
            return None
        if not 400 <= answered.status < 500:
            return shown
        said = answered.error["message"]
        return shown if "\n" in said or len(said) > 700 or "Traceback" in said else None

    with ThreadPoolExecutor(4) as threads:
        wrong = [found for found in threads.map(ask, asked) if found]
    assert not wrong, "\n".join(wrong)


def test_values_that_no_text_can_be_written_with(server: HttpServer) -> None:
    context = server.served.lm.target.context_length
    size = server.served.lm.target.vocab_size
    assert context is not None
    for wrong, sentence in (
        ({"n": 17}, "n is at most 16"),
        ({"n": 10**9}, "n is at most 16"),
        ({"n": 0}, "greater than or equal to 1"),
        ({"max_tokens": 0}, "max_tokens is at least 1"),
        ({"max_tokens": -5}, "max_tokens is at least 1"),
        ({"max_tokens": 10**300}, "at most"),
        ({"prompt": ""}, EMPTY),
        ({"prompt": []}, "empty list"),
        ({"prompt": [[]]}, EMPTY),
        ({"prompt": ["a", ""]}, EMPTY),
        ({"prompt": ["a"] * 300}, "at most"),
        ({"prompt": [size]}, f"token {size}"),
        ({"prompt": [-1]}, "token -1"),
        ({"prompt": [10**30]}, "token 1000"),
        ({"prompt": [1] * (context + 1)}, "context"),
        ({"prompt": "word " * 4 * context}, "context"),
        ({"logit_bias": {str(size): 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 9: 1}}, "logit_bias names token 999999999"),
        ({"logit_bias": {"9" * 400: 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {str(number): 1 for number in range(50_000)}}, "logit_bias"),
        ({"logit_bias": {"\u0663": 10**400}}, "logit_bias"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 7}, "top_p"),
        ({"logprobs": 21}, "logprobs: input should be less than or equal to 20"),
    ):
        error = server.refuses(COMPLETION, {"prompt": "a", **MODEST, **wrong})
        assert sentence in error["message"], (wrong, error)


def test_minus_one_is_a_value(server: HttpServer) -> None:
    """It is no limit only for the number of tokens and for the cut to the best ones."""
    asked = {"prompt": "Once upon a time", "max_tokens": 40, "seed": 1}

    def text(**more: float) -> str:
        return str(server.post(COMPLETION, {**asked, **more}).json()["choices"][0]["text"])

    assert text(presence_penalty=-1.0) == text(presence_penalty=-1.000001) != text()
    assert text(top_k=-1) == text()


def test_values_that_are_odd_and_right(server: HttpServer) -> None:
    for odd in (
        {"seed": 0},
        {"seed": -1},
        {"seed": 10**100},
        {"temperature": 0},
        {"temperature": 1e-9},
        {"temperature": 1e-300},
        {"temperature": 1e9},
        {"stop": [f"stop {number}" for number in range(10_000)]},
        {"stop": ["", "", ""]},
        {"stop": ["x" * 10_000]},
        {"logit_bias": {"5": 100, "6": -100}},
        {"max_tokens": 1, "prompt": [1]},
    ):
        answered = server.post(COMPLETION, {"prompt": "a", **MODEST, **odd})
        assert answered.status == 200 or (answered.status == 400 and "stop" in odd), (str(odd)[:99], answered.body)


@pytest.mark.parametrize(
    "named",
    [
        {"method": "/etc/passwd:X"},
        {"method": "./drafter.py:Drafter"},
        {"method": "assistant:model=/etc/passwd"},
        {"method": "rest:path=/tmp/x"},
        {"method": "assistant:model=1"},
        {"method": "rest:corpus=1"},
        {"method": "lookup+rest:longest=8,corpus=1"},
        {"method": "auto:head=1"},
        {"method": "auto:dictionary=1"},
        {"method": "suffix:memory=1"},
        {"method": "suffix:remember=1"},
        {"method": "lookup:max_ngram=1000"},
        {"method": "lookup:length=__import__('os')"},
        {"method": "os:system"},
        {"method": "lookup\nplain"},
        {"draft_model": "/etc/passwd"},
        {"draft_model": "../../x"},
        {"draft_model": "https://evil.example/model"},
        {"planner": "/etc/passwd"},
        {"planner": "calibrated:/etc/passwd"},
        {"planner": "fixed:99999999"},
        {"planner": "fixed:257"},
        {"chat_template": "{{ 1 }}"},
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        {"chat_template_kwargs": {"tokenizer_kwargs": {}}},
        {"model": "/etc/passwd"},
        {"num_draft_tokens": 10**6},
    ],
    ids=str,
)
def test_a_request_names_no_file_no_code_and_no_model(server: HttpServer, named: dict[str, Any]) -> None:
    server.refuses(CHAT, {**ASKED[CHAT][1], **named})


def test_template_variables_that_choose_a_template_are_refused_everywhere(server: HttpServer) -> None:
    for path in ("/tokenize", "/apply-template"):
        body = {"messages": ASKED[CHAT][1]["messages"], "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}
        assert "operator" in server.refuses(path, body)["message"]
