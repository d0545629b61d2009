"""What a conformance run found, in numbers and in sentences."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.check.cases import Case
from paceline.check.rescore import Verdict
from paceline.engine.follow import Flip

RATE_ALARM = 1e-3


@dataclass(frozen=True)
class Result:
    """One case: how it compares with plain decoding, and what is wrong with it, if anything."""

    case: Case
    tokens: int
    flips: tuple[tuple[Flip, Verdict], ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.flips and not self.faults

    def count(self, verdict: Verdict) -> int:
        return sum(found is verdict for _, found in self.flips)

    @property
    def buggy(self) -> bool:
        return bool(self.faults) or self.count(Verdict.BUG) > 0


@dataclass
class Report:
    """A whole run. Exit code 1 is for `bugs` only."""

    target: str
    dtype: str
    fingerprint: str
    batches: tuple[int, ...] = (1,)
    results: list[Result] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What is wrong with a method as a whole."""
    notes: list[str] = field(default_factory=list)
    control_flips: int = 0
    control_tokens: int = 0
    seconds: float = 0.0

    def close(self) -> None:
        """Judge what no single case can show: near ties may not be commoner than this machine's arithmetic explains.

        The control says how often plain's own choices change with the width of a forward. A method may reach twice
        that rate; what goes beyond, and is not chance, is a bug that hides among near ties.
        """
        from scipy.stats import poisson

        for method in sorted({r.case.method for r in self.results}):
            mine = [r for r in self.results if r.case.method == method and r.case.followed]
            flips = sum(len(r.flips) for r in mine)
            expected = 2 * (self.control_flips + 1) / max(1, self.control_tokens) * sum(r.tokens for r in mine)
            if flips and poisson.sf(flips - 1, expected) < RATE_ALARM:
                self.faults.append(f"{method}: {flips} differences where the control explains {expected:.1f}")

    @property
    def tokens(self) -> int:
        """Tokens chosen along plain decoding's text."""
        return sum(r.tokens for r in self.results if r.case.followed and r.case.drafts)

    @property
    def flips(self) -> int:
        return sum(len(r.flips) for r in self.results)

    @property
    def bugs(self) -> int:
        return sum(r.buggy for r in self.results) + len(self.faults)

    def summary(self) -> dict[str, Any]:
        """The JSON line."""
        return {
            "cases": len(self.results),
            "equal": sum(r.equal for r in self.results),
            "near_ties": sum(r.count(Verdict.NEAR_TIE) for r in self.results),
            "not_rescored": sum(r.count(Verdict.NOT_RESCORED) for r in self.results),
            "bugs": self.bugs,
            "tokens": self.tokens,
            "flips_per_1000": _per_1000(self.flips, self.tokens),
            "control_flips_per_1000": _per_1000(self.control_flips, self.control_tokens),
            "control_tokens": self.control_tokens,
            "model": self.target,
            "dtype": self.dtype,
            "fingerprint": self.fingerprint,
            "batch_sizes": self.batches,
            "planners": dict(Counter(r.case.planner for r in self.results if r.case.drafts)),
            "seconds": round(self.seconds, 1),
            "notes": self.notes,
            "faults": self.sentences(),
        }

    def sentences(self) -> list[str]:
        """Every bug, named."""
        found = list(self.faults)
        for result in self.results:
            found += [f"{result.case.name}: {fault}" for fault in result.faults]
            bugs = [flip for flip, verdict in result.flips if verdict is Verdict.BUG]
            if bugs:
                first = asdict(bugs[0])
                found.append(f"{result.case.name}: {len(bugs)} tokens differ from plain decoding, the first {first}")
        return found

    def by_method(self) -> list[tuple[str, Counter[str]]]:
        """Counts per method, in the order in which they ran."""
        rows: dict[str, Counter[str]] = {}
        for result in self.results:
            row = rows.setdefault(result.case.method, Counter())
            row["cases"] += 1
            row["equal"] += result.equal
            row["near ties"] += result.count(Verdict.NEAR_TIE)
            row["not re-scored"] += result.count(Verdict.NOT_RESCORED)
            row["bugs"] += result.buggy
        return list(rows.items())


def _per_1000(part: int, whole: int) -> float:
    return round(1000 * part / whole, 3) if whole else 0.0
