"""Layers that keep a state: their rows, and how a draft is taken back."""
