"""Figure 7: fallbacks, when the target chooses what no proxy foresaw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from paceline import load
from paceline_lab import Stop, foreseen, open_suite
from papers.charts import Panel, curves
from papers.driver import Given
from papers.lab import CHAT, chat_or_stories
from papers.report import Claim, Report, Table

EXITS, KAPPAS = (0.25, 0.5, 0.75), (1, 2, 3, 4, 5, 6, 7, 8)
TASKS = "mt_bench", "summarization", "math_reasoning"
Found = Mapping[tuple[str, float], Sequence[Stop]]
"""By task and exit."""


def missed(stops: Sequence[Stop], kappa: int, *, noise: bool = True) -> float:
    return float(np.mean([(each.rank if noise else each.plain_rank) > kappa for each in stops]))


def outside(stops: Sequence[Stop], kappa: int) -> float:
    """1 - Omega at the stopping nodes."""
    return float(
        np.mean([1 - each.masses[min(kappa, len(each.masses)) - 1] if len(each.masses) else 1.0 for each in stops])
    )


def rows(found: Found, kappas: Sequence[int]) -> Table:
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
    places = {kappa: kappa for kappa in kappas}
    panels, number = list[Panel](), 1
    for task in dict.fromkeys(task for task, _ in found):
        lines = {f"exit {exit_:g}": stops for (name, exit_), stops in found.items() if name == task}
        drawn = curves(lines, places, lambda kappa, stops: missed(stops, kappa), number)
        panels, number = [*panels, Panel(task, "proxies", "share of rounds", drawn)], number + len(lines)
    return Report("Mirror-SD, Figure 7: fallbacks", [rows(found, kappas)], claims(found, kappas), notes, panels)


def texts(given: Given) -> dict[str, list[str]]:
    """Beginnings by task, or by language where there are no tasks."""
    tasks = given.tasks or (TASKS if given.suite == CHAT else None)
    how = {"data": given.data, "limit": given.limit}
    if given.suite == CHAT:
        found, _ = chat_or_stories(tasks, **how)
    else:
        found = open_suite(given.suite, tasks=tasks, **how).prompts
    by_task: dict[str, list[str]] = {}
    for prompt in found:
        name = prompt.task if given.suite == CHAT and prompt.language == "en" else prompt.language
        by_task.setdefault(name, []).append(prompt.turns[0])
    return by_task


def fallback(given: Given) -> Report:
    """Figure 7: how often the target chooses what no proxy foresaw, by the number of proxies and the depth of the exit.

    The same texts, with the same drafts, for every exit: only the proxies differ, and those of fewer are among those of
    more. Beside each share stands 1 - Omega, the probability that the target's law gives to other tokens than the
    proxies, at the node where the walk stopped; over all nodes it would be smaller, since a draft is refused at hard
    places.
    """
    by_task, kappas = texts(given), sorted(set(given.kappa))
    lm = load(given.model, dtype=given.dtype)
    how = {name: getattr(given, name) for name in ("temperature", "seed", "max_new_tokens")}
    found = {
        (task, exit_): foreseen(lm, given.draft, prompts, exit=exit_, proxies=max(kappas), levels=given.gamma, **how)
        for task, prompts in by_task.items()
        for exit_ in sorted(set(given.exit))
    }
    notes = [f"{given.model}, {given.dtype}, temperature {given.temperature:g}; drafts of {given.gamma} tokens"]
    return report(found, kappas, notes)
