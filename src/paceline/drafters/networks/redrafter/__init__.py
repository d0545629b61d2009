"""A trained recurrent head drafts: `drafter` is the method, `head` the network, `checkpoint` its files, `fitting` the
choice of a head for a model, `search` one draft, `settings` the effect of users' settings on it."""

from paceline.drafters.networks.redrafter.drafter import ReDrafter

__all__ = ["ReDrafter"]
