"""Prompts: which are refused, and what a drafter is shown of their rows."""

from __future__ import annotations

from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.tree import Ints
from paceline.verify import Verdict


def refuse_foreign(tokens: Ints, target: Target) -> None:
    """Refuse a prompt of another tokenizer, before its ids are an index out of range."""
    if len(tokens) and (largest := tokens.max()) >= target.vocab_size:
        raise InputError(
            f"the prompt holds token {largest}, outside the model's vocabulary of {target.vocab_size}; "
            "the tokenizer that made it does not fit the model"
        )


def read(count: int) -> Verdict:
    """Prompt rows look like a chain that was accepted whole and emitted nothing."""
    return Verdict(path=tuple(range(count - 1)), tokens=(), accepted=0)
