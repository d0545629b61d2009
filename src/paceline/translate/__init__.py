"""Between tokenizers, by way of bytes.

Spellings    a vocabulary as bytes: what its tokens spell, and which tokens spell some bytes
Follower     a text that goes on in the tokens of one tokenizer, read in those of another
Lattice      drafted bytes in the target's tokens: the canonical ones first, and others beside them
"""

from paceline.translate.follower import Follower
from paceline.translate.lattice import Habit, Lattice, Translation, canonical
from paceline.translate.spellings import Spellings

__all__ = ["Follower", "Habit", "Lattice", "Spellings", "Translation", "canonical"]
