"""What the engine costs: its speed against that of transformers' own generation, which writes the same text."""

from paceline.bench.overhead.contest import Contest, Side, Trial, Write, run
from paceline.bench.overhead.theirs import COUNTERPARTS, side, writing

__all__ = ["COUNTERPARTS", "Contest", "Side", "Trial", "Write", "run", "side", "writing"]
