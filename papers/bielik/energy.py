"""Table 12: joules per token."""

from __future__ import annotations

from dataclasses import dataclass

from papers.driver import Given
from papers.report import Claim, Report

TEXTS, TOKENS, CONDITIONS = 50, 128, 90
"""Section 6.6: texts of a condition, tokens of a text, and conditions in all."""


@dataclass(frozen=True)
class Machine:
    """A row. ``printed`` is the table's joules per token, where it has some."""

    name: str
    watts: float
    bandwidth: float | None
    """Gigabytes per second."""
    tokens_per_second: float
    printed: float | None = None

    @property
    def joules_per_token(self) -> float:
        return self.watts / self.tokens_per_second

    def watt_hours(self, tokens: int) -> float:
        return self.joules_per_token * tokens / 3600


MACHINES = (
    Machine("Apple M2 Pro (chip)", 30, 200, 15, 2.0),
    Machine("Apple M2 Pro (system)", 40, 200, 15, 2.7),
    Machine("NVIDIA L4", 72, 300, 22, 3.3),
    Machine("NVIDIA A100 PCIe 40GB", 250, 1555, 110, 2.3),
    Machine("NVIDIA RTX 4090", 450, 1008, 80, 5.6),
    Machine("NVIDIA RTX 4090 (system)", 600, 1008, 80, 7.5),
)
HEAD = ("", "W", "GB/s", "tokens/s", "J/token", "printed", "Wh of all texts")


def claims() -> list[Claim]:
    """The statements of the paper's text beside its table, and the consequences of the table."""
    chip, system, l4, _, _, rtx = MACHINES
    ratio = l4.joules_per_token / chip.joules_per_token
    hours, other = (one.watt_hours(CONDITIONS * TEXTS * TOKENS) for one in (rtx, system))
    agree = all(abs(one.joules_per_token - (one.printed or 0)) <= 0.05 + 1e-9 for one in MACHINES)
    return [
        Claim("joules per token are watts over tokens/s", "six figures", "the same six, rounded", agree),
        Claim(
            "energy of the L4 over that of the M2 Pro chip", "2.4", f"{ratio:.1f} (2.4 is that of the powers)", False
        ),
        Claim(
            "90 conditions on an RTX 4090 system",
            "2,400 Wh, 7.5 times an M2 Pro",
            f"{hours:,.0f} Wh, {hours / other:.1f} times the M2 Pro system's {other:.0f}",
            False,
        ),
    ]


def row(one: Machine, tokens: int) -> tuple[str, ...]:
    numbers = ("" if n is None else f"{n:g}" for n in (one.watts, one.bandwidth, one.tokens_per_second))
    return one.name, *numbers, f"{one.joules_per_token:.2f}", str(one.printed or ""), f"{one.watt_hours(tokens):,.4g}"


def table12(given: Given) -> Report:
    """Table 12: joules per token of six machines, an 11B model in 8 bits, one text at a time.

    Joules per token are computed from the table's watts and speeds. The watts are rated ones, and of the speeds only
    the first machine's was measured. With both options a row of your own machine stands beside them. What a machine
    draws is measured by `paceline bench run`.
    """
    own = [one for one in (given.watts, given.tokens_per_second) if one is not None]
    if len(own) == 1:
        raise ValueError("energy per token is a power over a speed; give --watts W and --tokens-per-second R")
    machines = [*MACHINES, *([Machine("this machine, as stated", own[0], None, own[1])] if own else [])]
    rows = [row(one, given.texts * given.tokens) for one in machines]
    data = {"joules_per_token": {one.name: one.joules_per_token for one in machines}}
    return Report("Bielik, Table 12: energy", [(HEAD, rows)], claims(), data=data)
