"""Arguments of calls: as JSON text, and typed by a tool's schema where the model writes them untyped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.integrations.server.replies.cursor import Malformed
from paceline.integrations.server.replies.message import RequestedCall

Tools = Mapping[str, Mapping[str, Any]]
"""The functions that a request offers: the schemas of their parameters, by the function's name and the parameter's."""
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def tools_of(tools: Iterable[Mapping[str, Any]]) -> Tools:
    """The tools of a request in OpenAI's form, or of functions without the cover around them."""
    functions = [tool.get("function", tool) for tool in tools]
    return {str(one.get("name", "")): _properties(one.get("parameters")) for one in functions}


def _properties(parameters: Any) -> Mapping[str, Any]:
    found = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def request(name: Any, arguments: Any) -> RequestedCall:
    """A call of a function. The arguments are an object, or JSON text of one."""
    if not isinstance(name, str) or not name:
        raise Malformed("a call without a name")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise Malformed("arguments that are no JSON") from None
    if not isinstance(arguments, dict):
        raise Malformed("arguments that are no object")
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise Malformed("a number that JSON has not") from None
    halves = any("\ud800" <= character <= "\udfff" for character in text)
    return RequestedCall(name, json.dumps(arguments) if halves else text)


def requested(value: Any) -> RequestedCall:
    """A call that is an object with the function's name and its arguments, which some models name parameters."""
    if not isinstance(value, dict):
        raise Malformed("a call that is no object")
    if isinstance(value.get("function"), dict):
        value = value["function"]
    return request(value.get("name"), value.get("arguments", value.get("parameters", {})))


def typed(name: str, written: Mapping[str, str], tools: Tools) -> dict[str, Any]:
    """Arguments that are written without quotes: each of the first type of its schema that it can have, or a string."""
    schemas = tools.get(name, {})
    return {key: _typed(text, types_of(schemas.get(key))) for key, text in written.items()}


def types_of(schema: Any) -> Sequence[str]:
    """The types that a schema names, in its order."""
    if not isinstance(schema, Mapping):
        return ()
    declared = schema.get("type", ())
    types = [declared] if isinstance(declared, str) else [one for one in declared if isinstance(one, str)]
    for union in ("anyOf", "oneOf"):
        types += [one for choice in schema.get(union) or () for one in types_of(choice)]
    return [*types, "null"] if schema.get("nullable") else types


def _typed(text: str, types: Sequence[str]) -> Any:
    """The text itself if it has none of the types."""
    for name in types:
        try:
            return _as_type(text, name)
        except (ValueError, RecursionError):
            continue
    return text


def _as_type(text: str, name: str) -> Any:
    bare = text.strip()
    match name:
        case "boolean" if bare.lower() in TRUTHS:
            return TRUTHS[bare.lower()]
        case "null" if bare in ("null", "None"):
            return None
        case "integer":
            return whole(bare)
        case "number":
            return whole(bare) if "." not in bare and float(bare).is_integer() else finite(bare)
        case "object" | "array":
            value = json.loads(bare)
            if isinstance(value, dict if name == "object" else list):
                return value
    raise ValueError(name)


def whole(text: str) -> int:
    """A whole number; 3.0 is one."""
    try:
        return int(text)
    except ValueError:
        if not finite(text).is_integer():
            raise
        return int(float(text))


def finite(text: str) -> float:
    """A number that JSON has."""
    number = float(text)
    if number in (float("inf"), float("-inf")) or number != number:
        raise ValueError(text)
    return number
