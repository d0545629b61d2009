"""Token ids on one side, bytes and text on the other: the only room in which the two meet.

Vocabulary      what each id spells, for every kind of tokenizer
Detokenizer     text from ids as they arrive: never half a character, never taken back
StopStrings     stop strings, found across token boundaries
TextStream      both at once: the text a reader may see, cut before a stop string
"""

from paceline.vocabulary.detokenize import Detokenizer
from paceline.vocabulary.stops import StopHit, StopMatcher, StopStrings, TextStream
from paceline.vocabulary.tokens import Vocabulary, check_ids

__all__ = ["Detokenizer", "StopHit", "StopMatcher", "StopStrings", "TextStream", "Vocabulary", "check_ids"]
