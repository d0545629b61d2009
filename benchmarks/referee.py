"""Is the referee fair? The same thing run twice must be called different in at most one comparison of twenty, and a
method that was made ten percent slower must be found.

    python benchmarks/referee.py [--repetitions 40] [--model table] [--prompts 96] [--clock cpu] [--json]

Every repetition makes three runs of plain decoding and lookup by the protocol of ``paceline bench run``, one after the
other: a base, the same again, and one in which lookup waits after each round for a tenth of what the round took. The
second and the third are held against the first as ``paceline bench compare`` does. Beside the first stands a twin of
lookup, which must not be called different from it within the run either.

``--runs DIR...`` holds runs that were made apart against each other instead, all pairs of them: the same thing in
several processes must be called the same, too.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import paceline
from paceline.bench.compare import Between, Call, Finding, Within, across
from paceline.bench.run.desk import Plan
from paceline.bench.run.directory import About, Run, begin, read
from paceline.bench.run.judge import Judge
from paceline.bench.run.memory import Peak
from paceline.bench.run.ours import Drafting, Ours
from paceline.bench.run.protocol import Referee
from paceline.bench.run.telling import pieces_of
from paceline.bench.suites import Prompt, Workload, encode
from paceline.check.cases import PROMPTS
from paceline.drafters import Drafter, make_drafter
from paceline.law import Sampling
from paceline.targets.base import Target
from paceline.targets.table import TableTarget
from paceline.verify import Rule

METHOD, TWIN = "lookup", "lookup:max_ngram=3"
"""The twin says what is the default."""
TABLE, SIZE = "table", 6
PLANTED = 0.10
TOLERATED, WANTED = 1 / 20, 19 / 20

CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
"""On a machine that others use, the time that this thread computed is steadier than what a clock on the wall tells."""

Make = Callable[[str, Any], Drafter]


def ordinary(spec: str, model: Any) -> Drafter:
    return make_drafter(spec, model, must_use=False)


def slowed(spec: str, model: Any, clock: Callable[[], float]) -> Drafter:
    """The method, with a wait before each round but the first: a tenth of what the round before took."""
    drafter = ordinary(spec, model)
    if spec != METHOD:
        return drafter
    propose, opened = drafter.propose, drafter.open
    last: list[float | None] = [None]

    def propose_late(asks: Any) -> Any:
        now = clock()
        if last[0] is not None:
            until = now + PLANTED * (now - last[0])
            while clock() < until:
                pass
        last[0] = clock()
        return propose(asks)

    def open_afresh(context: Any) -> Any:
        last[0] = None
        return opened(context)

    drafter.propose, drafter.open = propose_late, open_afresh
    return drafter


@cache
def habit(recent: tuple[int, ...]) -> list[float]:
    """A law that favours one token after any two, so that texts repeat themselves now and then."""
    random = np.random.default_rng(recent)
    return list(np.where(np.arange(SIZE) == random.integers(SIZE), 2.5, random.integers(-2, 3, SIZE)).astype(float))


class Bench:
    """Makes runs of one model on one set of prompts. A table of six tokens takes a tenth of a millisecond for one, so
    that texts that are compared lie milliseconds apart: on a machine that others use, too, they have the same luck."""

    def __init__(self, model: str, prompts: int, tokens: int, clock: Callable[[], float]) -> None:
        self.vocabulary = None
        if model == TABLE:
            self.target: Target = TableTarget(lambda history: habit(history[-2:]), SIZE)
        else:
            lm = paceline.load(model)
            self.target, self.vocabulary = lm.target, lm.vocabulary
        self.tokens, self.clock = tokens, clock
        texts = itertools.islice(itertools.cycle(PROMPTS), prompts)
        self.prompts = tuple(
            Prompt(key=f"p{n}", task=("odd", "even")[n % 2], language="en", turns=(f"{text} {n}",), chat=False)
            for n, text in enumerate(texts)
        )

    def encode(self, prompt: Prompt, turn: int, answers: Sequence[str]) -> np.ndarray:
        if self.vocabulary is not None:
            return encode(self.vocabulary, prompt, turn, answers)
        return np.frombuffer(prompt.turns[turn].encode(), np.uint8).astype(np.int64) % SIZE

    def run(self, path: Path, make: Make = ordinary, methods: Sequence[str] = ("plain", METHOD, TWIN)) -> Run:
        how = Drafting(vocabulary=self.vocabulary, make=make)
        contestants = [Ours(method, self.target, how) for method in methods]
        about = About(
            recipe={"temperature": 0.8, "seed": 0, "follow": False, "max_new_tokens": self.tokens},
            model={"model": self.target.name, "fingerprint": self.target.fingerprint()},
            entries=[{"name": who.name, "ours": True} for who in contestants],
            workload={"suite": "referee", "cells": {}, "units": len(self.prompts)},
        )
        referee = Referee(
            run=begin(path, about),
            workload=Workload(suite="referee", prompts=self.prompts),
            contestants=list(contestants),
            plan=Plan(
                sampling=Sampling(temperature=0.8, seed=0),
                max_new_tokens=self.tokens,
                eos=frozenset(),
                follow=False,
                repeat=2,
                context_length=self.target.context_length,
            ),
            encode=self.encode,
            text=pieces_of(self.vocabulary),
            judge=Judge(self.target, Rule.COUPLED),
            peak=Peak(torch.device("cpu")),
            clock=self.clock,
        )
        referee.sit()
        return referee.run


def different(findings: Sequence[Finding]) -> bool:
    return any(found.call in (Call.FASTER, Call.SLOWER) for found in findings)


def overall(found: Between) -> Finding:
    return next(one for one in found.findings if one.task is None and one.entry == METHOD)


def repetition(bench: Bench) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        base = bench.run(Path(folder) / "base")
        again = bench.run(Path(folder) / "again")
        slow = bench.run(Path(folder) / "slow", partial(slowed, clock=bench.clock))
    same, planted = Between(base, again), Between(base, slow)
    found = overall(planted)
    twins = [one for one in Within(base).findings if {one.entry, one.other} == {METHOD, TWIN}]
    return {
        "same_called_different": different(same.findings),
        "same_interval_excludes_1": overall(same).ratio.excludes(1),
        "same_ratio": overall(same).ratio.value,
        "twin_called_different": different(twins),
        "planted_found": found.ratio.high < 1,
        "planted_called_slower": found.call is Call.SLOWER,
        "planted_ratio": found.ratio.value,
        "planted_interval": [found.ratio.low, found.ratio.high],
    }


def share(rows: Sequence[dict[str, Any]], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def repeated(options: argparse.Namespace) -> dict[str, Any]:
    bench, rows = Bench(options.model, options.prompts, options.tokens, CLOCKS[options.clock]), []
    for number in range(options.repetitions):
        rows.append(repetition(bench))
        row = rows[-1]
        told = f"same {row['same_ratio']:.3f}, planted {row['planted_ratio']:.3f}"
        print(f"{number + 1:3}: {told} {row['planted_interval'][0]:.3f}-{row['planted_interval'][1]:.3f}", flush=True)
    shares = {name: share(rows, name) for name in rows[0] if isinstance(rows[0][name], bool)}
    for name, found in shares.items():
        print(f"{name:28} {found:.3f}")
    fair = max(shares["same_called_different"], shares["twin_called_different"]) <= TOLERATED
    print(f"fair: {fair}; found: {shares['planted_found'] >= WANTED}")
    return {"repetitions": len(rows), **shares, "rows": rows}


def apart(paths: Sequence[Path]) -> dict[str, Any]:
    """Runs of the same thing, made in several processes: all pairs."""
    pairs = [across([one, two])[0] for one, two in itertools.combinations([read(path) for path in paths], 2)]
    ratios = [found.ratio.value for pair in pairs for found in pair.findings if found.task is None]
    called = float(np.mean([different(pair.findings) for pair in pairs]))
    print(f"{len(paths)} runs, {len(pairs)} pairs: {called:.3f} called different; ratios of speed-ups over all tasks")
    print("quantiles 0, 5, 50, 95, 100%:", *(f"{value:.3f}" for value in np.quantile(ratios, [0, 0.05, 0.5, 0.95, 1])))
    return {"runs": len(paths), "pairs": len(pairs), "called_different": called, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--model", default=TABLE)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--runs", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = apart(options.runs) if options.runs else repeated(options)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
