"""Energy per token from a power and a speed: the arithmetic, and figures that others published.

The rows are those of Table 12 of the paper on cross-family speculative decoding for Polish on Apple Silicon (an 11B
model in 8 bits, one text at a time); its powers are the chips' rated ones, and only the first machine's speed was
measured there. What follows from watts and speeds is computed here and not copied.
"""

from __future__ import annotations

from dataclasses import dataclass

JOULES_PER_WATT_HOUR = 3600


@dataclass(frozen=True)
class Platform:
    """A machine as it was published."""

    name: str
    kind: str
    watts: float
    bandwidth: float
    """Gigabytes per second."""
    tokens_per_second: float
    measured: bool
    """Whether the speed was, there; the power never was."""
    printed: float
    """Joules per token as the table has it."""

    @property
    def joules_per_token(self) -> float:
        return joules_per_token(self.watts, self.tokens_per_second)

    @property
    def agrees(self) -> bool:
        """Whether the printed number is the computed one, rounded as it was printed."""
        return abs(self.joules_per_token - self.printed) <= 0.05 + 1e-9


BIELIK = (
    Platform("Apple M2 Pro (chip)", "consumer", 30, 200, 15, True, 2.0),
    Platform("Apple M2 Pro (system)", "consumer", 40, 200, 15, True, 2.7),
    Platform("NVIDIA L4", "datacenter", 72, 300, 22, False, 3.3),
    Platform("NVIDIA A100 PCIe 40GB", "datacenter", 250, 1555, 110, False, 2.3),
    Platform("NVIDIA RTX 4090", "consumer", 450, 1008, 80, False, 5.6),
    Platform("NVIDIA RTX 4090 (system)", "consumer", 600, 1008, 80, False, 7.5),
)
BIELIK_NOTES = (
    "every printed figure of the table is its watts over its speed, rounded",
    "the text beside it has the L4 at 2.4 times the energy of the M2 Pro chip; its own rows give 1.6 (2.4 is the ratio "
    "of the powers)",
    "it has 90 conditions of 50 x 128 tokens take 2,400 Wh on an RTX 4090 system, 7.5 times an M2 Pro; its own rows "
    "give 1,200 Wh, which is 2.8 times an M2 Pro system (427 Wh)",
)
TABLES = {"bielik": (BIELIK, BIELIK_NOTES)}


def joules_per_token(watts: float, tokens_per_second: float) -> float:
    """What a token costs at a power and a speed."""
    return watts / tokens_per_second


def joules(watts: float, tokens_per_second: float, texts: int, tokens: int) -> float:
    """What so many texts of so many tokens cost."""
    return joules_per_token(watts, tokens_per_second) * texts * tokens


def watt_hours(found: float) -> float:
    return found / JOULES_PER_WATT_HOUR
