"""What a conversation must be for the model's template, and the form that its answer must have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json

from paceline.api.settings import Options
from paceline.grammar import Grammar
from paceline.grammar.base import LARK, LAYOUTS
from paceline.integrations.server.errors import ApiError
from paceline.integrations.server.models import ServedModel
from paceline.integrations.server.replies import ReplyFormat
from paceline.integrations.server.requests import (
    ChatRequest,
    Format,
    Json,
    Structured,
    ToolChoice,
    Writes,
)

NAMED = "function:"
"""Before the name of the function that must be called."""
TAGGED, TAGS = "tagged", ("<tool_call>", "</tool_call>")
"""The format of calls that most families write, and its markers."""
OURS = frozenset({"chat_template", "conversation", "tokenize", "tokenizer_kwargs", "padding", "truncation"})
OURS |= {"max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "load_audio_from_video"}
"""Arguments of the function that renders a template; a request gives its template variables, and no template."""


def messages_for(messages: Sequence[Json]) -> list[Json]:
    """The messages as templates take them: with the arguments of calls as objects, and without empty fields."""
    found = []
    for message in messages:
        kept = {name: value for name, value in message.items() if value is not None or name == "content"}
        if kept.get("role") == "developer":
            kept["role"] = "system"  # templates know no other name
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
        arguments = from_json(function["arguments"] or "{}")  # which bounds the depth, as templates recurse
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
    return f"{NAMED}{choice.function.name}" if isinstance(choice, ToolChoice) else choice


@dataclass(frozen=True, kw_only=True)
class AskedReply:
    """What the reply to a conversation must be."""

    served: ServedModel
    messages: Sequence[Json]
    tools: Sequence[Json]
    choice: str | None
    """Whether a function must be called; see `choice_of`."""
    form: Format | None
    effort: str | None
    """Of the reasoning."""

    def settings(self, body: Writes, given: Options) -> Options:
        """The settings with the template's variables and with the reply's form."""
        has_template = self.served.vocabulary.has_template
        variables = variables_for(body.chat_template_kwargs, self.effort, self.tools)
        if self.tools and not has_template:
            said = f"{self.served.name} has no chat template, so it cannot call tools; leave tools out"
            raise ApiError(said, param="tools", code="unsupported")
        if variables and has_template:
            given["chat_template_kwargs"] = variables
        marker = self._reasoning_end(self.served.begun(self.messages, variables))
        return with_grammar(given, self._grammar(body.structured_outputs, marker))

    def _grammar(self, structured: Structured | None, marker: str | None) -> Grammar | None:
        """The reply's grammar. Reasoning that the prompt has opened is free up to its marker."""
        if forces_call(self.choice):
            return replace(_call_grammar(self.tools, self.choice or "", tagged=self._is_tagged), after=marker)
        if (grammar := grammar_of(self.form, structured)) is not None:
            return replace(grammar, after=marker)
        if self._has_strict and self._is_tagged:
            rules = _rules_behind_marker(self.served, [tool["function"] for tool in self.tools])
            return Grammar(LARK, rules, after=TAGS[0], optional=True, not_before=marker)
        return None

    def ignored(self) -> list[str]:
        """The name of `strict` for the header of ignored fields, where the model writes calls in a form of its own."""
        obeyed = forces_call(self.choice) or self._is_tagged
        return ["tools.function.strict"] if self._has_strict and not obeyed else []

    def _reasoning_end(self, begun: str) -> str | None:
        """The marker that ends the reasoning which a prompt has opened; None where it has opened none."""
        markers = self.served.reply_format.reasoning
        return markers[1] if markers and begun.rstrip().endswith(markers[0].rstrip()) else None

    @property
    def reply_format(self) -> ReplyFormat:
        """How the reply is read. A call that is forced is written as JSON, with the markers of the model's family where
        these are text."""
        own = self.served.reply_format
        if not forces_call(self.choice) or (own.name == TAGGED and TAGS[0] not in self.served.special_names):
            return own
        return self.served.json_call_format

    @property
    def _is_tagged(self) -> bool:
        return self.reply_format.name == TAGGED

    @property
    def _has_strict(self) -> bool:
        """Whether the arguments of a call must be valid, should the model make it."""
        return any(tool["function"].get("strict") for tool in self.tools)


def with_grammar(given: Options, grammar: Grammar | None) -> Options:
    """The settings with a grammar, unless others exclude it."""
    if grammar is None:
        return given
    if given.get("ignore_eos"):
        raise ApiError("a form and ignore_eos exclude each other; leave one out", param="ignore_eos")
    if given.get("processors"):
        raise ApiError("a form and min_tokens exclude each other; leave one out", param="min_tokens")
    given["grammar"] = grammar
    return given


def forces_call(choice: str | None) -> bool:
    """Whether the reply must be a call."""
    return choice == "required" or (choice or "").startswith(NAMED)


def grammar_of(form: Format | None, structured: Structured | None) -> Grammar | None:
    """The grammar of a text; None where its form is free."""
    free = form is None or form.type == "text"
    if structured is not None:
        if not free:
            said = "response_format and structured_outputs exclude each other; leave one out"
            raise ApiError(said, param="structured_outputs")
        return _structured(structured)
    if form is None or free:
        return None
    if form.type == "json_object":
        return Grammar.json_object() if form.schema_ is None else Grammar.json_schema(form.schema_)
    if form.type != "json_schema":
        said = f"response_format is text, json_object or json_schema, not {form.type[:40]!r}"
        raise ApiError(said, param="response_format")
    schema = (form.json_schema or {}).get("schema", form.schema_)
    if schema is None:
        raise ApiError("response_format has no json_schema.schema; give one", param="response_format")
    return Grammar.json_schema(schema)


def _structured(given: Structured) -> Grammar:
    """vLLM's ``structured_outputs``."""
    named = [given.json_, given.regex, given.choice, given.grammar, given.json_object or None]
    if sum(one is not None for one in named) > 1:
        said = "structured_outputs takes one of json, regex, choice, grammar and json_object"
        raise ApiError(said, param="structured_outputs")
    if given.json_ is not None:
        return Grammar.json_schema(given.json_)
    if given.regex is not None:
        return Grammar.regex(given.regex)
    if given.choice is not None:
        return Grammar.choice(given.choice)
    if given.grammar is not None:
        return Grammar.gbnf(given.grammar) if "::=" in given.grammar else Grammar.lark(given.grammar)
    if given.json_object:
        return Grammar.json_object()
    said = "structured_outputs names no form; give one of json, regex, choice, grammar and json_object"
    raise ApiError(said, param="structured_outputs")


def _call_grammar(tools: Sequence[Json], choice: str, *, tagged: bool) -> Grammar:
    """The grammar of a reply that must be a call."""
    name = choice.removeprefix(NAMED) if choice.startswith(NAMED) else None
    functions = [tool["function"] for tool in tools if name in (None, tool["function"]["name"])]
    if not functions:
        missing = "tool_choice asks for a call, and there are no tools"
        said = missing if name is None else f"tool_choice names {name!r}, which is none of the tools"
        raise ApiError(said, param="tool_choice")
    opening, close = json.dumps(TAGS[0] + "\n"), json.dumps("\n" + TAGS[1])
    return Grammar.lark(_rules(f"{opening} call {close}" if tagged else "call", functions))


def _rules(start: str, functions: Sequence[Json]) -> str:
    """Rules for a text with calls. Each schema is a rule of its own, since its references begin at its own root."""
    found = [f"start: {start}", f"call: {' | '.join(f'call_{number}' for number in range(len(functions)))}"]
    for number, function in enumerate(functions):
        named = json.dumps(function["name"], ensure_ascii=False)
        head = json.dumps(f'{{"name": {named}, "arguments": ', ensure_ascii=False)
        schema = json.dumps(_arguments_schema(function), ensure_ascii=False)
        found += [f'call_{number}: {head} arguments_{number} "}}"', f"arguments_{number}: %json {schema}"]
    return "\n".join(found)


def _rules_behind_marker(served: ServedModel, functions: Sequence[Json]) -> str:
    """Rules for what follows the marker of a call: the call, and more of them. No grammar can name a special token, and
    the end of a text may stand for the closing marker."""
    close = "" if TAGS[1] in served.special_names else json.dumps(f"\n{TAGS[1]}")
    more = json.dumps(f"\n{TAGS[0]}\n")
    again = "" if not close or TAGS[0] in served.special_names else f"({more} call {close})*"
    loose = [one if one.get("strict") else {"name": one["name"], "parameters": {}} for one in functions]
    return _rules(f'"\\n"? call {close} {again}', loose)


def _arguments_schema(function: Json) -> Json:
    """The schema of a call's arguments, on one line: otherwise a model may write blanks without end."""
    schema = function.get("parameters")
    if schema is None:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}  # a function of no parameters
    if not isinstance(schema, dict):
        raise ApiError(f"parameters of {function['name']!r} is a JSON schema, an object", param="tools")
    return {"type": "object", **schema, "x-guidance": dict(LAYOUTS["line"])}
