"""Names of types of numbers as users write them. No library of arrays is imported here."""

from __future__ import annotations

BITS = {"int8": 8, "int4": 4}
"""Weights in integers, by their names."""
SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
"""Other names of types."""


def type_name(dtype: object) -> str:
    """The full name of a type: ``float16`` for ``fp16`` and for ``torch.float16``."""
    name = str(dtype).removeprefix("torch.")
    return SHORT.get(name, name)
