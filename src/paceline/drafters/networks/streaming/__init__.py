"""Speculative streaming: a draft model guesses several tokens ahead of itself, and confirms them in its next forward.
`drafter` is the method, `network` the forwards, `reading` a text with its guesses, `adapter` what is trained,
`checkpoint` its files, `fitting` the choice of an adapter for a draft model."""

from paceline.drafters.networks.streaming.drafter import Streaming

__all__ = ["Streaming"]
