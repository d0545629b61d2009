"""Between tokenizers, by way of bytes.

Spellings    a vocabulary as bytes: what its tokens spell, and which tokens spell some bytes
Follower     a text in the tokens of one tokenizer as it goes on, read in those of another
Lattice      drafted bytes in the target's tokens: the canonical ones first, and others beside them
"""

from paceline.translate.spellings import Spellings

__all__ = ["Spellings"]
