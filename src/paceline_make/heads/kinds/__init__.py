"""Kinds of heads, a file each. `base` is what the trainer knows of them."""
