"""ROUGE-1, ROUGE-2 and ROUGE-L: the F1 scores that the package rouge_score computes without its stemmer.

Words are runs of the letters a to z and of digits, in lower case; everything else parts them. So there is no score for
texts in other scripts: a reference without such words has none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

NAMES = "ROUGE-1", "ROUGE-2", "ROUGE-L"


def scores(reference: str, text: str) -> tuple[float, float, float] | None:
    """ROUGE-1, ROUGE-2 and ROUGE-L, from 0 to 1."""
    wanted, said = words(reference), words(text)
    if not wanted:
        return None
    return of_grams(wanted, said, 1), of_grams(wanted, said, 2), f1(common_subsequence(wanted, said), wanted, said)


def words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text.lower())


def of_grams(wanted: Sequence[str], said: Sequence[str], size: int) -> float:
    """F1 of how many n-grams both have, each as often as the one that has it less often."""
    one, other = (Counter(zip(*(of[start:] for start in range(size)), strict=False)) for of in (wanted, said))
    return f1((one & other).total(), list(one.elements()), list(other.elements()))


def f1(common: int, wanted: Sequence[object], said: Sequence[object]) -> float:
    """Harmonic mean of the shares of both sides."""
    return 2 * common / (len(wanted) + len(said)) if common else 0.0


def common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest sequence of words that both have in this order."""
    before = [0] * (len(other) + 1)
    for word in one:
        row = [0]
        for place, another in enumerate(other):
            row.append(before[place] + 1 if word == another else max(before[place + 1], row[place]))
        before = row
    return before[-1]
