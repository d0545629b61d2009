"""Between tokenizers, by way of bytes.

Spellings    a vocabulary as bytes: what its tokens spell, and which tokens spell some bytes
Bridge       two vocabularies: prompts, first tokens and equal tokens of one in the other
Follower     a text that goes on in the tokens of one tokenizer, read in those of another
TranslatedDraft  drafted bytes, with what their tokens were worth to the draft model
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
