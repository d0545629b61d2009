"""All training-free methods beside one another, in every cell, and where they cannot gain anything.

    python benchmarks/training_free.py [--out runs/training-free] [--minutes 25] [--groups A,B] [--cells A,B] [--json]

Two suites at two temperatures, all methods in turns under one planner, plain decoding's text followed: the speed-up of
each method in each cell, ``auto`` against the best of the others, and UniSpec against Token Recycling. Then what no
draft can speed up: eight texts at a time, prompts of random tokens, and a drafter that is always wrong and claims to be
certain. No interval of a method under ``adaptive`` may lie wholly below 0.98x plain decoding.

``--minutes`` ends between two prompts; the same command goes on. Prompts of all cells take turns, so that a run which
was cut short has some of each. ``--show`` only reads what is there.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import paceline
from paceline.api.model import LanguageModel
from paceline.bench.run.desk import Plan
from paceline.bench.run.directory import About, begin, claimed, read
from paceline.bench.run.judge import Judge
from paceline.bench.run.memory import Peak
from paceline.bench.run.ours import Drafting, Ours
from paceline.bench.run.protocol import Referee
from paceline.bench.run.sitting import sitting
from paceline.bench.run.telling import pieces_of
from paceline.bench.statistics import Estimate, difference
from paceline.bench.suites import Prompt, Workload, encode, open_suite
from paceline.bench.summary import Summary
from paceline.context import Context, Ints
from paceline.drafters import Budget, Drafter, make_drafter
from paceline.law import Sampling
from paceline.tree import DraftTree
from paceline.verify import Rule

OTHERS = "foresight", "suffix", "unispec", "recycling", "lookahead", "spectra", "lookup"
METHODS = ("auto", *(f"{method}@adaptive" for method in OTHERS))
TEMPERATURES = 0.8, 1.0
LANGUAGES = "en", "pl", "uk"
NEVER_BELOW = 0.98
BATCH, BATCHES = 8, 3
RANDOM_TOKENS = 60
HOSTILE = "hostile@adaptive"


class TimeUp(Exception):
    """The time that was given is over."""


class Hostile(Drafter):
    """Certain of tokens that hardly ever come: two wrong ones for the next place, and more behind each."""

    name = "hostile"
    nodes = 16

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        count = min(budget.nodes, 2 * budget.depth)
        tokens = [(7919 * (len(state) + place) + 13 * state.root) % self.vocabulary for place in range(count)]
        if count > 1 and tokens[0] == tokens[1]:
            tokens[1] = (tokens[1] + 1) % self.vocabulary
        parents = [place - 2 if place > 1 else -1 for place in range(count)]
        return DraftTree.build(tokens, parents, scores=[0.0] * count, source=self.name)


@dataclass(frozen=True)
class Group:
    """Prompts that are written in one run."""

    name: str
    suite: str
    temperature: float
    methods: Sequence[str] = METHODS
    batch: int = 1
    random: bool = False
    limit: int | None = None
    languages: Sequence[str] | None = None

    @property
    def hard(self) -> bool:
        """Whether nothing is to be gained here."""
        return self.batch > 1 or self.random or HOSTILE in self.methods


def groups(methods: Sequence[str]) -> list[Group]:
    """Runs, what matters most first."""
    found = [
        Group(f"{suite} T={t:g}", suite, t, methods, languages=LANGUAGES if suite == "continuation" else None)
        for t in TEMPERATURES
        for suite in ("continuation", "spec-bench")
    ]
    hostile = Group("hostile", "continuation", 0.8, (HOSTILE,), limit=2, languages=LANGUAGES)
    random = Group("random", "continuation", 1.0, methods, random=True, limit=4, languages=("en",))
    batch = Group("batch 8", "continuation", 0.8, methods, BATCH, limit=BATCH, languages=LANGUAGES)
    return [*found, hostile, random, batch]


@dataclass
class Bench:
    """Writes groups on one model."""

    options: argparse.Namespace
    lm: LanguageModel = field(init=False)

    def __post_init__(self) -> None:
        self.lm = paceline.load(self.options.model, dtype=self.options.dtype)

    def make(self, spec: str, model: Any) -> Drafter:
        return Hostile(self.lm.target.vocab_size) if spec == "hostile" else make_drafter(spec, model, must_use=False)

    def encode(self, group: Group) -> Callable[[Prompt, int, Sequence[str]], Ints]:
        vocabulary, size = self.lm.vocabulary, self.lm.target.vocab_size
        assert vocabulary is not None, "the bundled models have tokenizers"

        def encoded(prompt: Prompt, turn: int, answers: Sequence[str]) -> Ints:
            if not group.random:
                return encode(vocabulary, prompt, turn, answers)
            seed = [ord(letter) for letter in prompt.key]
            ids: Ints = np.random.default_rng(seed).integers(0, min(size, 8000), RANDOM_TOKENS).astype(np.int64)
            return ids

        return encoded

    def run(self, group: Group, until: float) -> None:
        """Write what is not there yet, until the time is over."""
        options, target = self.options, self.lm.target
        prompts = chosen(group, options)
        if not prompts:
            return
        how = Drafting(vocabulary=self.lm.vocabulary, make=self.make)
        contestants = [Ours(name, target, how) for name in ("plain", *group.methods)]
        plan = Plan(
            sampling=Sampling(temperature=group.temperature, seed=0),
            max_new_tokens=options.tokens,
            eos=frozenset(),
            follow=True,
            repeat=options.repeat,
            batch=group.batch,
            context_length=target.context_length,
        )
        recipe = {"suite": group.name, "temperature": group.temperature, "follow": True, "batch": group.batch}
        recipe |= {"max_new_tokens": options.tokens, "repeat": options.repeat, "methods": list(group.methods)}
        about = About(
            recipe=recipe,
            model={"model": target.name, "dtype": options.dtype, "fingerprint": target.fingerprint()}
            | {"device": "cpu", "threads": torch.get_num_threads(), "ballast": None},
            entries=[{"name": who.name, "ours": True, **who.facts()} for who in contestants],
            workload={"suite": group.name, "cells": {}, "units": len(prompts) * options.repeat},
            sittings=[sitting("benchmarks/training_free.py")],
        )
        path = place(options.out, group)
        with claimed(path):
            referee = Referee(
                run=begin(path, about, prompts),
                workload=Workload(suite=group.name, prompts=tuple(prompts)),
                contestants=list(contestants),
                plan=plan,
                encode=self.encode(group),
                text=pieces_of(self.lm.vocabulary),
                judge=Judge(target, Rule.COUPLED),
                peak=Peak(torch.device("cpu")),
                progress=stopping(group.name, until),
            )
            referee.sit()


def stopping(name: str, until: float) -> Callable[[str, int, int], None]:
    """Tells each prompt, and ends before the first that would begin too late."""
    last = [-1]

    def progress(doing: str, number: int, count: int) -> None:
        if number == last[0]:
            return
        last[0] = number
        if time.monotonic() > until:
            raise TimeUp
        print(f"{time.strftime('%H:%M:%S')}  {name}: {number} of {count}  {doing}", flush=True)

    return progress


def chosen(group: Group, options: argparse.Namespace) -> list[Prompt]:
    """The prompts of a group: those of all cells in turns. Conversations have their first turn only."""
    suite = open_suite(group.suite, languages=group.languages, limit=group.limit or options.limit)
    cells: dict[str, list[Prompt]] = {}
    for prompt in suite.prompts:
        name = f"{prompt.task}/{prompt.language}"
        if options.cells is None or name in options.cells:
            cells.setdefault(name, []).append(replace(prompt, turns=prompt.turns[:1]))
    longest = max(map(len, cells.values()), default=0)
    found = [cell[number] for number in range(longest) for cell in cells.values() if number < len(cell)]
    return found[: BATCH * BATCHES] if group.batch > 1 else found


def place(out: Path, group: Group) -> Path:
    return out / group.name.replace(" ", "-").replace("=", "")


# --- what came of it ---


def interval(found: Estimate | None) -> str:
    if found is None:
        return "-"
    return f"{found.value:.2f}" + (f" [{found.low:.2f},{found.high:.2f}]" if found.bounded else "")


def between(summary: Summary, one: str, other: str, task: str | None, language: str | None) -> Estimate | None:
    """The speed of an entry over another's in a cell."""
    pairs = summary.pairs(summary.records(one, task, language), other)
    if not pairs:
        return None
    return difference([(a.speed or 0) / (b.speed or 1) for a, b in pairs], [a.unit for a, _ in pairs]).ratio


def rows_of(group: Group, summary: Summary) -> Iterator[dict[str, Any]]:
    """A cell each, and all of them together."""
    cells: list[tuple[str | None, str | None]] = [*summary.cells()]
    if len(cells) > 1:
        cells.append((None, None))
    for task, language in cells:
        speeds = {
            entry: figures.speed_up
            for entry in summary.entries[1:]
            if (figures := summary.figures(entry, task, language)) is not None and figures.speed_up is not None
        }
        row: dict[str, Any] = {"group": group.name, "hard": group.hard, "cell": f"{task}/{language}" if task else "all"}
        row["speed_up"] = {entry: vars(found) for entry, found in speeds.items()}
        row["below"] = [e for e, found in speeds.items() if found.bounded and found.high < NEVER_BELOW]
        others = [entry for entry in speeds if entry != "auto"]
        if "auto" in speeds and others:
            best = max(others, key=lambda entry: speeds[entry].value)
            found = between(summary, "auto", best, task, language)
            assert found is not None, "both have speeds"
            row |= {"best_other": best, "auto_over_best": vars(found), "auto_loses": found.high < 1}
        pair = [entry for name in ("unispec", "recycling") for entry in speeds if entry.split("@")[0] == name]
        if len(pair) == 2:
            found = between(summary, *pair, task, language)
            assert found is not None, "both have speeds"
            row["unispec_over_recycling"] = vars(found)
        yield row


def show(options: argparse.Namespace, asked: Sequence[Group]) -> dict[str, Any]:
    """Print what is there."""
    rows = []
    for group in asked:
        path = place(options.out, group)
        if not (path / "run.json").exists() or not (run := read(path)).records:
            continue
        summary = Summary(run)
        state = "" if run.about.finished else f", unfinished: {len({(r.unit, r.repeat) for r in run.records})} units"
        print(f"\n{group.name}: x plain [95%], {run.about.model['model']}, {run.about.model['dtype']}{state}")
        for row in rows_of(group, summary):
            rows.append(row)
            print(f"  {row['cell']}")
            for entry, found in row["speed_up"].items():
                mark = "  <- wholly below 0.98" if entry in row["below"] else ""
                per_round = (summary.figures(entry) or summary.figures("plain")).tokens_per_round or 0
                rounds = f"{per_round:.2f} tokens/round" if row["cell"] == "all" else ""
                print(f"    {entry:24} {interval(Estimate(**found)):24} {rounds}{mark}")
            if "auto_over_best" in row:
                told = interval(Estimate(**row["auto_over_best"]))
                print(f"    auto over {row['best_other']}: {told}{'  <- auto loses' if row['auto_loses'] else ''}")
    return told_in_the_end(rows)


def told_in_the_end(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sentences that the table is made for."""
    cells = [row for row in rows if not row["hard"] and row["cell"] != "all" and "auto_over_best" in row]
    if cells:
        gains = [row["auto_over_best"]["value"] for row in cells]
        wins, losses = sum(gain > 1 for gain in gains), [r for r in cells if r["auto_loses"]]
        mean = float(np.exp(np.mean(np.log(gains))))
        print(
            f"\nauto is {mean:.3f}x the best other method of each cell on average, and ahead in {wins} of {len(cells)}"
        )
        print(f"below the best other beyond the interval: {[(r['group'], r['cell']) for r in losses] or 'nowhere'}")
    lost = [r for r in rows if r.get("unispec_over_recycling", {"value": 1})["value"] < 1 and r["cell"] != "all"]
    for row in lost:
        found = Estimate(**row["unispec_over_recycling"])
        print(f"unispec loses to recycling in {row['group']} {row['cell']}: {interval(found)}")
    below = [(row["group"], row["cell"], entry) for row in rows for entry in row["below"]]
    print(f"wholly below {NEVER_BELOW}x plain: {below or 'nothing'}")
    return {"rows": list(rows), "below": below}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="pocket+ballast:500M")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, default=Path("runs/training-free"))
    parser.add_argument("--groups", type=lambda given: given.split(","), help="only these, as --list names them")
    parser.add_argument("--cells", type=lambda given: given.split(","), help="only these, as in continuation/pl,qa/en")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--limit", type=int, default=3, help="prompts of a cell")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument(
        "--minutes", type=float, help="end after so many; each group has an equal share of what is left"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--show", action="store_true", help="only read what is there")
    parser.add_argument("--list", action="store_true", help="the groups")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    asked = [group for group in groups(options.methods) if options.groups is None or group.name in options.groups]
    if options.list:
        print("\n".join(group.name for group in asked))
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.show:
        end = np.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
        bench = Bench(options)
        for number, group in enumerate(asked):
            now = time.monotonic()
            try:
                bench.run(group, now + (end - now) / (len(asked) - number))
            except TimeUp:
                print(f"{group.name}: its time is over; the same command goes on", flush=True)
    found = show(options, asked)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
