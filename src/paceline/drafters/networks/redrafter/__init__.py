"""A trained recurrent head drafts: `drafter` is the method, `head` what it computes, `checkpoint` its files, `fitting`
which head drafts for a model, `search` one draft, `settings` what users' settings do to it."""

from paceline.drafters.networks.redrafter.drafter import ReDrafter

__all__ = ["ReDrafter"]
