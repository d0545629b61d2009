"""How often each n-gram of a corpus stands there, on this machine or on many."""

from paceline.dictionary.counting.counts import Counts
from paceline.dictionary.counting.local import count

__all__ = ["Counts", "count"]
