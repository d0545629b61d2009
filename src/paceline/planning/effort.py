"""Seconds of a method's drafting on one target, beside those of plain decoding.

They depend on the machine and not on the text, so all drafters of a method share them while the program runs: a later
text knows the seconds of a draft from its first round on.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from paceline.drafters.base import Drafter
from paceline.planning.backoff import LONGEST, NOTED, Steady
from paceline.recent import RecentMean
from paceline.targets.base import Target

Times = defaultdict[int, Steady]
"""Seconds by the number of binary digits of the batch size."""


def times() -> Times:
    return defaultdict(Steady)


@dataclass(eq=False)
class Start:
    """Whether texts begin with drafts, after what earlier ones have found (`beginning`)."""

    worth: RecentMean = field(default_factory=lambda: RecentMean(NOTED))
    """Tokens that rounds with drafts were worth, beyond their time."""
    left: int = 0
    """For how many rounds texts still begin without drafts."""
    length: int = 0
    """For how many they did at first; 0 if drafts are not known to be too expensive."""

    def passed(self, rounds: int) -> None:
        """A text wrote rounds without drafts."""
        self.left = max(0, self.left - rounds)

    def judge(self, value: float, *, paid: bool) -> None:
        """A round with drafts was worth ``value`` tokens; unless they ``paid``, the text goes on without them."""
        self.worth.add(value)
        if not paid and self.length and not self.left:
            self.left = self.length = min(LONGEST, 2 * self.length)


@dataclass(eq=False)
class Effort:
    """Seconds by batch size."""

    cheap: Times = field(default_factory=times)
    """Drafting without the expensive part."""
    levels: Times = field(default_factory=times)
    """A level of the expensive part, by the number of texts that it is for."""
    showing: Times = field(default_factory=times)
    """Showing the drafter a round in which it drafts nothing, and its learning from it."""
    idle: Times = field(default_factory=times)
    """The part of drafting in rounds without it: the loop's own."""
    plain: Times = field(default_factory=times)
    """The rest of such a round."""
    starts: defaultdict[int, Start] = field(default_factory=lambda: defaultdict(Start))
    """How texts begin."""


_KNOWN: WeakKeyDictionary[Target, dict[tuple[str, ...], Effort]] = WeakKeyDictionary()


def effort_of(target: Target, drafter: Drafter, *, overlapped: bool = False) -> Effort:
    """The known effort of this method on this target, of drafts in turns or of ``overlapped`` ones; empty for a drafter
    that no spec made."""
    if not drafter.spec:
        return Effort()
    key = drafter.spec, str(overlapped), *(model.name for model in drafter.models)
    return _KNOWN.setdefault(target, {}).setdefault(key, Effort())
