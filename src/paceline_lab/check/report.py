"""The report of a check, in numbers and in sentences."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.engine.follow import Flip
from paceline_lab.check.cases import Case
from paceline_lab.check.rescore import Cause

RATE_ALARM = 1e-3


@dataclass(frozen=True)
class CaseResult:
    """One case: how it compares with plain decoding, and what is wrong with it, if anything."""

    case: Case
    tokens: int
    flips: tuple[tuple[Flip, Cause], ...] = ()
    faults: tuple[str, ...] = ()

    def count(self, verdict: Cause) -> int:
        return sum(found is verdict for _, found in self.flips)

    @property
    def buggy(self) -> bool:
        return bool(self.faults) or self.count(Cause.BUG) > 0

    def counts(self) -> dict[str, int]:
        """Its part in the numbers of a report."""
        return {
            "cases": 1,
            "equal": not self.flips and not self.faults,
            "near_ties": self.count(Cause.NEAR_TIE),
            "not_rescored": self.count(Cause.NOT_RESCORED),
            "bugs": self.buggy,
        }

    def difference(self) -> str | None:
        """A sentence about tokens that differ by a bug."""
        if bugs := [flip for flip, verdict in self.flips if verdict is Cause.BUG]:
            first = asdict(bugs[0])
            return f"{self.case.name}: {len(bugs)} tokens differ from plain decoding, the first {first}"
        return None


@dataclass
class Report:
    """A whole run. Exit code 1 is for `bugs` only."""

    target: str
    dtype: str
    fingerprint: str
    batches: tuple[int, ...] = (1,)
    results: list[CaseResult] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Faults of a method as a whole."""
    same_bits: int | None = None
    """Rows of an exact target that were scored again and compared bit by bit."""
    notes: list[str] = field(default_factory=list)
    control_flips: int = 0
    control_tokens: int = 0
    seconds: float = 0.0

    def close(self) -> None:
        """Judge what no single case can show: near ties may not be more frequent than this machine's arithmetic
        explains.

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
    def bugs(self) -> int:
        return sum(r.buggy for r in self.results) + len(self.faults)

    def by_method(self) -> dict[str, Counter[str]]:
        """Counts per method, in the order in which they ran."""
        rows: dict[str, Counter[str]] = {}
        for result in self.results:
            rows.setdefault(result.case.method, Counter()).update(result.counts())
        return rows

    def summary(self) -> dict[str, Any]:
        """The JSON line."""
        counts = sum(self.by_method().values(), Counter[str]())
        tokens = sum(r.tokens for r in self.results if r.case.followed and r.case.drafts)
        return {
            **{name: counts[name] for name in ("cases", "equal", "near_ties", "not_rescored")},
            "bugs": self.bugs,
            "tokens": tokens,
            "flips_per_1000": _per_1000(sum(len(r.flips) for r in self.results), tokens),
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
        """Every bug, named. Cases of a method that failed alike share a sentence."""
        alike: dict[tuple[str, str], list[Case]] = {}
        for result in self.results:
            for fault in result.faults:
                alike.setdefault((result.case.method, fault), []).append(result.case)
        failed = (
            f"{cases[0].name}: {fault}" if len(cases) == 1 else f"{fault}; {len(cases)} cases, first {cases[0].name}"
            for (_, fault), cases in alike.items()
        )
        return [*self.faults, *failed, *filter(None, (result.difference() for result in self.results))]


def _per_1000(part: int, whole: int) -> float:
    return round(1000 * part / whole, 3) if whole else 0.0
