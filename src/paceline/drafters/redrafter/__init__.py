"""A trained recurrent head drafts: `drafter` is the method, `head` the weights, `search` a draft, `fitting` which head."""

from paceline.drafters.redrafter.drafter import ReDrafter

__all__ = ["ReDrafter"]
