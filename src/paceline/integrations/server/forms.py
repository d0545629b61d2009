"""What a conversation must be for the model's template, and the form that its answer must have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.api.settings import Options
from paceline.integrations.server.errors import ApiError
from paceline.integrations.server.models import Served
from paceline.integrations.server.requests import ChatRequest, Format, Json, ToolChoice

OURS = frozenset({"chat_template", "conversation", "tokenize", "tokenizer_kwargs", "padding", "truncation"})
OURS |= {"max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "load_audio_from_video"}
"""Arguments of the function that renders a template; a request gives its template variables, and no template."""
ROLES = {"developer": "system"}
"""Roles that templates do not know -> those that they do."""


def messages_for(messages: Sequence[Json]) -> list[Json]:
    """The messages as templates take them: with the arguments of calls as objects, and without empty fields."""
    found = []
    for message in messages:
        kept = {name: value for name, value in message.items() if value is not None or name == "content"}
        kept["role"] = ROLES.get(kept.get("role", ""), kept.get("role"))
        if calls := kept.get("tool_calls"):
            kept["tool_calls"] = [_call(call) for call in calls] if isinstance(calls, list) else calls
        found.append(kept)
    return found


def _call(call: Any) -> Any:
    """A call whose arguments are JSON in a text, as OpenAI sends them."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        arguments = function["arguments"]
    return {**call, "function": {**function, "arguments": arguments}}


def tools_for(body: ChatRequest) -> list[Json]:
    """The tools that a reply may call."""
    if body.tool_choice == "none" or not body.tools:
        return []
    return [tool.model_dump(exclude_none=True) for tool in body.tools]


def variables_for(given: Mapping[str, Any] | None, effort: str | None, tools: Sequence[Json]) -> dict[str, Any]:
    """The variables of the chat template."""
    found = dict(given or {})
    if refused := sorted(OURS & found.keys()):
        said = f"chat_template_kwargs cannot set {refused[0]}; the server's operator chooses the template"
        raise ApiError(said, param="chat_template_kwargs", code="unsupported")
    if tools:
        found["tools"] = list(tools)
    if effort is not None:
        found.setdefault("reasoning_effort", effort)
        found.setdefault("enable_thinking", effort != "none")
    return found


def choice_of(body: ChatRequest) -> str | None:
    """Whether a function must be called: ``required``, or its name behind ``function:``."""
    choice = body.tool_choice
    return f"function:{choice.function.name}" if isinstance(choice, ToolChoice) else choice


def form_settings(
    served: Served,
    given: Options,
    *,
    tools: Sequence[Json] = (),
    choice: str | None = None,
    form: Format | None = None,
) -> Options:
    """The settings with the form that the reply must have."""
    if not served.vocabulary.has_template:
        if tools:
            said = f"{served.name} has no chat template, so it cannot call tools; leave tools out"
            raise ApiError(said, param="tools", code="unsupported")
        given.pop("chat_template_kwargs", None)
    return given
