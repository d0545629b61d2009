"""The bodies of requests, as OpenAI's clients and those of other servers send them.

Types are checked here; values are checked where they act, with the sentences that the Python API gives. Fields that are
not listed are ignored, and a header of the answer names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from paceline.law.settings import Sampling
from paceline.law.table import table

Json = dict[str, Any]
MOST_LOGPROBS = 20
"""Candidates of a token that an answer lists. All of a vocabulary would make gigabytes of a long text."""
SIMPLE = {row.name: (row.kind | None, None) for row in table(Sampling) if row.kind is not None}
BY_TOKEN = {
    row.name: (Json | None, None)
    for row in table(Sampling)
    if row.token is not None and isinstance(row.default, Mapping)
}
"""The settings of the table, under their own names."""
MOST_MESSAGES, MOST_TOOLS, MOST_STOPS, MOST_PARTS, MOST_TOKENS = 10_000, 1000, 64, 10_000, 1 << 20
StopString = Annotated[str, StringConstraints(max_length=1000)]
StopStrings = Annotated[list[StopString], Field(fail_fast=True, max_length=MOST_STOPS)]
Names = Annotated[list[str], Field(fail_fast=True, max_length=MOST_PARTS)]
Tokens = Annotated[list[int], Field(fail_fast=True, max_length=MOST_TOKENS)]
Objects = Annotated[list[Json], Field(fail_fast=True, max_length=MOST_TOOLS)]
Messages = Annotated[list[Json], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)]
"""Lists are checked up to their first mistake: a million mistakes in one body cost as little as one."""


class Body(BaseModel):
    """A JSON object. Its types are taken as they stand: no text becomes a number."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=False)

    @property
    def unknown(self) -> list[str]:
        """The names of the fields that nothing here reads, also of fields inside its objects."""
        inner = [f"{name}.{one}" for name in type(self).model_fields for one in _extra(getattr(self, name))]
        return sorted([*(self.model_extra or {}), *inner])


def _extra(value: Any) -> list[str]:
    """The fields of an object that nothing here reads, unless they ask for nothing."""
    return [name for name, given in (value.model_extra or {}).items() if given] if isinstance(value, Body) else []


BodyT = TypeVar("BodyT", bound=Body)
FIELDS: Any = {**SIMPLE, **BY_TOKEN}
SamplingBody: Any = create_model("SamplingBody", __base__=Body, **FIELDS)
"""A body with the settings of sampling."""


class StreamOptions(Body):
    """What a stream holds besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TextPart(Body):
    """A part of a content that is a list."""

    type: str
    text: str | None = None


class PredictedText(Body):
    """OpenAI's predicted outputs."""

    type: Literal["content"] = "content"
    content: str | Annotated[list[TextPart], Field(fail_fast=True, max_length=MOST_PARTS)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text or "" for part in self.content)


class Format(Body):
    """The form of a text: OpenAI's ``response_format``."""

    type: str
    json_schema: Json | None = None
    schema_: Json | None = Field(None, alias="schema")
    """Of llama.cpp's ``json_object``, and of ``text.format`` in the Responses API."""
    name: str | None = None
    strict: bool | None = None


class Structured(Body):
    """The form of a text as vLLM takes it. One of them is given."""

    json_: Json | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Names | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Writes(SamplingBody):  # type: ignore[misc]  # made from the table
    """What every request for a text may say."""

    model: str | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: Tokens | None = None
    n: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0)
    max_tokens: int | None = None
    prediction: PredictedText | None = None
    structured_outputs: Structured | None = None
    chat_template_kwargs: Json | None = None
    method: str | None = None
    planner: str | None = None
    speculative: bool | None = None
    draft_model: str | None = None
    num_draft_tokens: int | None = None
    return_pieces: bool | None = None
    return_token_ids: bool | None = None


class ToolFunction(Body):
    """A function that a model may call."""

    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: ToolFunction


class ToolChoice(Body):
    """The one function to call."""

    type: Literal["function"]
    function: ToolFunction


class ChatRequest(Writes):
    """``POST /v1/chat/completions``."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionRequest(Writes):
    """``POST /v1/completions``."""

    prompt: str | list[Any]
    """`prompts_of` checks the entries. A union of list types would report each wrong entry once for each type."""
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    response_format: Format | None = None


class TextOptions(Body):
    format: Format | None = None


class Reasoning(Body):
    effort: str | None = None


class ResponseRequest(Writes):
    """``POST /v1/responses``."""

    input: str | Annotated[list[Json], Field(fail_fast=True, max_length=MOST_MESSAGES)]
    instructions: str | None = None
    previous_response_id: str | None = None
    include: Names | None = None
    max_output_tokens: int | None = None
    store: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: Objects | None = None
    tool_choice: Literal["none", "auto", "required"] | Json | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    metadata: Json | None = None


class TokenizeRequest(Body):
    """``POST /tokenize``: llama.cpp's ``content``, or vLLM's ``prompt`` or ``messages``."""

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Json], Field(fail_fast=True, max_length=MOST_MESSAGES)] | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    with_pieces: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: Json | None = None
    tools: Objects | None = None


class DetokenizeRequest(Body):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: Tokens


class TemplateRequest(Body):
    """``POST /apply-template``."""

    model: str | None = None
    messages: Messages
    tools: Objects | None = None
    chat_template_kwargs: Json | None = None
