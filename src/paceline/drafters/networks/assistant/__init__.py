"""A small model drafts for a large one: `drafter` is the method, `model` the draft model; `foreign` and `spelled` are
texts that it reads in tokens of another tokenizer."""

from paceline.drafters.networks.assistant.drafter import Assistant
from paceline.drafters.networks.assistant.model import DraftModel

__all__ = ["Assistant", "DraftModel"]
