"""A trained head that predicts a block of tokens drafts: `drafter` is the method, `head` the network with its `ties`
between tokens, `shape` its sizes and the public configurations, `checkpoint` its files, `fitting` the choice of a head
for a model, `network` its rows and drafts."""

from paceline.drafters.networks.block.drafter import BlockDrafter

__all__ = ["BlockDrafter"]
