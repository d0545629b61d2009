"""Names that versions of transformers have for one thing."""

from __future__ import annotations

CACHE_NAMES = "cache", "past_key_values", "cache_params"
"""Argument of a model's forward that takes the cache of keys and values: since transformers 5.24, and before, where
models without attention called it in the last way. A model whose code comes with it may have the old name in either."""

TRACKS = "paceline_tracks"
"""The type, in a configuration, of a model whose layers run in parallel tracks."""
