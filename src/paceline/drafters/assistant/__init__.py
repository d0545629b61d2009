"""A small model drafts for a large one: `drafter` is the method, `model` what drafts, `growth` one draft being made."""

from paceline.drafters.assistant.drafter import Assistant
from paceline.drafters.assistant.model import DraftModel

__all__ = ["Assistant", "DraftModel"]
