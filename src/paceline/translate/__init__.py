"""Between tokenizers, through bytes.

Spellings    a vocabulary as bytes: the bytes of each token, and the tokens of some bytes
Bridge       two vocabularies: prompts, first tokens and equal tokens of one in the other
Follower     a text that goes on in the tokens of one tokenizer, read in those of another
TranslatedDraft  drafted bytes, with the weights that the draft model gave their tokens
Lattice      drafted bytes in the target's tokens: the canonical ones first, and others beside them
Strategy     the ways to translate a draft, by name
"""

from paceline.translate.bridge import WORD_WINDOW, Bridge
from paceline.translate.draft import TranslatedDraft, Translation
from paceline.translate.follower import Follower
from paceline.translate.lattice import Habit, Lattice, canonical
from paceline.translate.spellings import Spellings
from paceline.translate.strategies import CONTEXT, LATTICE, NAIVE, NONE, TLI, Strategy

__all__ = [
    "CONTEXT",
    "LATTICE",
    "NAIVE",
    "NONE",
    "TLI",
    "WORD_WINDOW",
    "Bridge",
    "Follower",
    "Habit",
    "Lattice",
    "Spellings",
    "Strategy",
    "TranslatedDraft",
    "Translation",
    "canonical",
]
