"""JSON schemas of many kinds, as texts are constrained by them."""

from typing import Any


def made_of(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    """An object with these members and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


YES = {"type": "boolean"}
WORD = {"type": "string", "pattern": "^[a-z]{1,6}$"}
SMALL = {"type": "integer", "minimum": 1, "maximum": 12}
ANIMAL = {"enum": ["żółw", "źdźbło", "кіт", "їжак"]}

SCHEMAS: dict[str, Any] = {
    "boolean": YES,
    "null": {"type": "null"},
    "const": {"const": {"wersja": 2, "тип": "звіт"}},
    "enum of kinds": {"enum": ["tak", "ні", 3, None, False]},
    "unicode enum": made_of({"zwierzę": ANIMAL, "місто": {"enum": ["Łódź", "Київ", "Львів"]}}),
    "integer in bounds": made_of({"age": {"type": "integer", "minimum": 18, "maximum": 99}}),
    "number in bounds": made_of({"share": {"type": "number", "minimum": 0, "maximum": 1}}),
    "exclusive bounds": made_of({"n": {"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3}}),
    "pattern": made_of({"code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}}),
    "polish pattern": made_of({"słowo": {"type": "string", "pattern": "^[ąćęłńóśźż]{1,4}$"}}),
    "short string": made_of({"name": {"type": "string", "minLength": 1, "maxLength": 8}}),
    "date": made_of({"day": {"type": "string", "format": "date"}}),
    "optional": made_of({"a": SMALL, "b": YES, "c": ANIMAL}, "b", "c"),
    "all optional": made_of({"a": SMALL, "b": YES}, "a", "b"),
    "nested": made_of({"outer": made_of({"middle": made_of({"inner": YES})}), "n": SMALL}),
    "array": {"type": "array", "items": SMALL, "minItems": 2, "maxItems": 4},
    "empty array": {"type": "array", "items": YES, "maxItems": 0},
    "array of objects": {"type": "array", "items": made_of({"kto": ANIMAL, "ok": YES}), "minItems": 2, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [YES, ANIMAL, SMALL], "items": False, "minItems": 3},
    "any of": {"anyOf": [made_of({"yes": YES}), made_of({"count": SMALL}), {"type": "null"}]},
    "any of in a member": made_of({"value": {"anyOf": [SMALL, WORD, {"type": "null"}]}}),
    "two types": made_of({"value": {"type": ["integer", "null"], "minimum": 0, "maximum": 9}}),
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^[a-c]$": YES},
        "additionalProperties": False,
        "maxProperties": 1,
    },
    "references": {
        "$defs": {"point": made_of({"x": SMALL, "y": SMALL})},
        **made_of({"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}),
    },
    "recursive": {
        "$defs": {"tree": made_of({"v": YES, "left": {"$ref": "#/$defs/tree"}}, "left")},
        "$ref": "#/$defs/tree",
    },
    "all of": {"allOf": [made_of({"a": YES, "b": SMALL}), {"required": ["a", "b"]}]},
    "tool call": made_of({"name": {"const": "get_weather"}, "arguments": made_of({"city": ANIMAL, "days": SMALL})}),
    "person": made_of(
        {
            "first_name": WORD,
            "last_name": WORD,
            "address": made_of({"street": WORD, "house_number": SMALL, "country": {"enum": ["PL", "UA"]}}),
            "subscribed_to_newsletter": YES,
        }
    ),
    "report": made_of(
        {
            "severity": {"enum": ["low", "medium", "high"]},
            "categories": {"type": "array", "items": {"enum": ["звук", "obraz"]}, "maxItems": 2},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
            "needs_review": YES,
        }
    ),
    "matrix": {
        "type": "array",
        "items": {"type": "array", "items": SMALL, "minItems": 2, "maxItems": 2},
        "minItems": 2,
        "maxItems": 2,
    },
}

OBJECTS = ("recursive", "all of")
"""Schemas of objects that do not say so at once."""
PARAMETERS: dict[str, Any] = {"no parameters": None} | {
    name: schema if schema.get("type") == "object" or name in OBJECTS else made_of({"value": schema})
    for name, schema in SCHEMAS.items()
    if name != "boolean"  # which is in many others
}
"""Parameters of 30 functions: the schemas, those of other values than objects as the one member of an object."""
