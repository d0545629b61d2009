"""Figure 7: how often the target chooses what no proxy foresaw, by the number of proxies and the depth of the exit.

    python -m papers.mirror.fallback
    python -m papers.mirror.fallback --model M --draft D --exit 0.25 0.5 0.75 --kappa 1 2 4 8 --tasks mt_bench qa

The same texts, with the same drafts, for every exit: only the proxies differ, and those of fewer are among those of
more. Beside each share stands 1 - Omega, the probability that the target's law gives to other tokens than the proxies,
at the node where the walk stopped; over all nodes it would be smaller, since a draft is refused at hard places.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from paceline import load
from paceline_lab import Stop, foreseen, open_suite
from papers.common import Claim, Curve, Panel, Report, parser, script

MODEL, DRAFT = "pocket", "pocket-draft"
EXITS, KAPPAS, GAMMA = (0.25, 0.5, 0.75), (1, 2, 3, 4, 5, 6, 7, 8), 7
SUITE, TASKS = "spec-bench", ("mt_bench", "summarization", "math_reasoning")
STAND_IN = "stories"
"""What is written where there are no such prompts."""


def missed(stops: Sequence[Stop], kappa: int, *, noise: bool = True) -> float:
    return float(np.mean([(each.rank if noise else each.plain_rank) > kappa for each in stops]))


def outside(stops: Sequence[Stop], kappa: int) -> float:
    """1 - Omega at the stopping nodes."""
    return float(
        np.mean([1 - each.masses[min(kappa, len(each.masses)) - 1] if len(each.masses) else 1.0 for each in stops])
    )


Found = Mapping[tuple[str, float], Sequence[Stop]]
"""By task and exit."""


def rows(found: Found, kappas: Sequence[int]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    head = ("task, exit", *(f"{kappa}" for kappa in kappas), "rounds")
    cells = list[Sequence[str]]()
    for (task, exit_), stops in found.items():
        shares = {
            "": [missed(stops, kappa) for kappa in kappas],
            " by probability": [missed(stops, kappa, noise=False) for kappa in kappas],
            " 1 - Omega": [outside(stops, kappa) for kappa in kappas],
        }
        for name, of in shares.items():
            cells.append((f"{task}, {exit_:g}{name}", *(f"{share:.2f}" for share in of), str(len(stops))))
    return head, cells


def claims(found: Found, kappas: Sequence[int]) -> list[Claim]:
    falls = all(missed(stops, a) >= missed(stops, b) for stops in found.values() for a, b in pairwise(kappas))
    made = [
        Claim("more proxies, fewer fallbacks", "always", "at every task and exit" if falls else "not always", falls)
    ]
    exits, widest = sorted({exit_ for _, exit_ in found}), max(kappas)
    tasks = list(dict.fromkeys(task for task, _ in found))
    if len(exits) > 1:
        pairs = [(missed(found[task, exits[0]], widest), missed(found[task, exits[-1]], widest)) for task in tasks]
        ours = ", ".join(f"{task} {low:.2f} to {high:.2f}" for task, (low, high) in zip(tasks, pairs, strict=True))
        deeper = f"from {exits[0]:g} to {exits[-1]:g}"
        made.append(Claim(f"deeper exits, fewer fallbacks ({deeper})", "always", ours, all(a >= b for a, b in pairs)))
    bound = [missed(stops, k, noise=False) <= outside(stops, k) + 0.02 for stops in found.values() for k in kappas]
    ours = f"so it is in {sum(bound)} of {len(bound)} cells, at the nodes where the walk stopped and by probability"
    made.append(Claim("fallbacks are at most 1 - Omega", "always (E.2)", ours, all(bound)))
    return made


def report(found: Found, kappas: Sequence[int], notes: Sequence[str]) -> Report:
    panels = [
        Panel(
            task,
            "proxies",
            "share of rounds",
            [
                Curve(f"exit {exit_:g}", [(float(k), missed(stops, k)) for k in kappas], place)
                for place, ((name, exit_), stops) in enumerate(found.items(), start=1)
                if name == task
            ],
        )
        for task in dict.fromkeys(task for task, _ in found)
    ]
    title = "Mirror-SD, Figure 7: fallbacks"
    return Report(title, [rows(found, kappas)], claims(found, kappas), notes, panels)


def texts(given: argparse.Namespace) -> dict[str, list[str]]:
    """Beginnings by task, or by language where there are no tasks."""
    tasks = given.tasks or (TASKS if given.suite == SUITE else None)
    try:
        found = open_suite(given.suite, data=given.data, tasks=tasks, limit=given.limit).prompts
    except ValueError:
        if given.suite != SUITE:
            raise
        found = open_suite(STAND_IN, data=given.data, limit=given.limit).prompts
    by_task: dict[str, list[str]] = {}
    for prompt in found:
        name = prompt.task if given.suite == SUITE and prompt.language == "en" else prompt.language
        by_task.setdefault(name, []).append(prompt.turns[0])
    return by_task


def options() -> argparse.ArgumentParser:
    found = parser(__doc__)
    add = found.add_argument
    add("--model", "-m", default=MODEL, metavar="MODEL", help=f"the target ({MODEL})")
    add("--draft", default=DRAFT, metavar="NAME", help=f"the draft model ({DRAFT})")
    add("--dtype", default="float32", metavar="TYPE", help="float32, bfloat16 or float16 (float32)")
    add("--exit", type=float, nargs="+", default=EXITS, metavar="SHARE", help="depths of the exit (0.25 0.5 0.75)")
    add("--kappa", type=int, nargs="+", default=KAPPAS, metavar="K", help="numbers of proxies (1 to 8)")
    add("--gamma", type=int, default=GAMMA, metavar="N", help=f"tokens of a draft ({GAMMA})")
    add("--suite", default=SUITE, metavar="SUITE", help=f"as in 'paceline bench run' ({SUITE}, or else {STAND_IN})")
    add("--tasks", nargs="+", metavar="TASK", help=f"tasks of the suite ({' '.join(TASKS)})")
    add("--limit", type=int, default=4, metavar="N", help="prompts of each (4)")
    add("--data", type=Path, metavar="DIR", help="the data folder (default: $PACELINE_DATA)")
    add("--temperature", type=float, default=0.8, metavar="T", help="0 is greedy (0.8)")
    add("--max-new-tokens", type=int, default=64, metavar="N", help="tokens per text (64)")
    add("--seed", type=int, default=0, metavar="S", help="same seed, same texts (0)")
    return found


def main() -> None:
    given = options().parse_args()
    if min(given.kappa) < 1:
        raise ValueError("--kappa takes numbers of proxies from 1 on")
    by_task, kappas = texts(given), sorted(set(given.kappa))
    lm = load(given.model, dtype=given.dtype)
    found = {
        (task, exit_): foreseen(
            lm,
            given.draft,
            prompts,
            exit=exit_,
            proxies=max(kappas),
            levels=given.gamma,
            temperature=given.temperature,
            seed=given.seed,
            max_new_tokens=given.max_new_tokens,
        )
        for task, prompts in by_task.items()
        for exit_ in sorted(set(given.exit))
    }
    notes = [f"{given.model}, {given.dtype}, temperature {given.temperature:g}; drafts of {given.gamma} tokens"]
    report(found, kappas, notes).show(given)


if __name__ == "__main__":
    script(main)
