"""Figure 7: how often the target chooses what no proxy foresaw, by the number of proxies and the depth of the exit.

    python -m papers.mirror.fallback
    python -m papers.mirror.fallback --model M --draft D --exit 0.25 0.5 0.75 --kappa 1 2 4 8 --tasks writing,math,coding

The same texts, with the same drafts, for every exit: only the proxies differ, and those of fewer are among those of
more. Beside each share stands 1 - Omega, the probability that the target's law gives to other tokens than the proxies,
at the node where the walk stopped; over all nodes it would be smaller, since a draft is refused at hard places.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline import LanguageModel, load
from paceline.bench import Sources, open_suite
from paceline.drafters.assistant import Assistant
from paceline.drafters.base import Seen
from paceline.drafters.mirror.proxies import choices
from paceline.law import Outlook
from paceline.targets.base import Target, Want
from paceline.tree import ROOT, DraftTree
from paceline.vocabulary import Vocabulary
from papers.common import Claim, Curve, Panel, Report, parser, script

MODEL, DRAFT = "pocket", "pocket-draft"
EXITS, KAPPAS, GAMMA = (0.25, 0.5, 0.75), (1, 2, 3, 4, 5, 6, 7, 8), 7
SUITE, TASKS = "spec-bench", ("writing", "roleplay", "coding")


@dataclass
class Stop:
    """Where a walk stopped: the rank of the emitted token among the proxies there, by noise and by probability, and
    the target's probability of the proxies by probability, of one and more."""

    rank: int
    plain_rank: int
    masses: np.ndarray


class Watching(Assistant):
    """The draft model in turns, and what an exit of the target would have foreseen."""

    def __init__(self, *, exit: float, kappa: int, **how: Any) -> None:
        super().__init__(**how)
        self.exit, self.kappa = exit, kappa
        self.stops: list[Stop] = []

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        super().fit(target, vocabulary)
        self.needs = Want(early_exit=round(self.exit * target.layers))

    def on_early(self, state: Any, tree: DraftTree, logits: Any) -> None:
        outlook = Outlook(state.context.sampling, state.context.prompt_length)
        self._foreseen = [
            list(choices(logits, tree, state.context, outlook, shared=shared)) for shared in (True, False)
        ]

    def observe(self, seen: Sequence[Seen]) -> None:
        super().observe(seen)
        for state, verdict, scores in seen:
            if not verdict.tokens or scores.prompt is not None:
                continue
            row = 1 + (verdict.path[-1] if verdict.path else ROOT)
            by_noise, by_chance = (rows[row][0][: self.kappa] for rows in self._foreseen)
            token = verdict.tokens[-1]
            outlook = Outlook(state.context.sampling, state.context.prompt_length)
            (law,) = outlook.laws(scores.row(row - 1)[None], [state.context.tokens[:-1]])
            masses = np.cumsum([float(law.probability(int(proxy))) for proxy in by_chance])
            self.stops.append(Stop(_rank(token, by_noise), _rank(token, by_chance), masses))


def _rank(token: int, proxies: np.ndarray) -> int:
    found = np.flatnonzero(proxies == token)
    return int(found[0]) + 1 if len(found) else 10**6


def missed(stops: Sequence[Stop], kappa: int, *, noise: bool = True) -> float:
    return float(np.mean([(each.rank if noise else each.plain_rank) > kappa for each in stops]))


def outside(stops: Sequence[Stop], kappa: int) -> float:
    """1 - Omega at the stopping nodes."""
    return float(np.mean([1 - each.masses[min(kappa, len(each.masses)) - 1] if len(each.masses) else 1.0 for each in stops]))


Found = Mapping[tuple[str, float], Sequence[Stop]]
"""By task and exit."""


def rows(found: Found, kappas: Sequence[int]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    head = ("task, exit", *(f"{kappa}" for kappa in kappas), "rounds")
    cells = list[Sequence[str]]()
    for (task, exit_), stops in found.items():
        for name, of in (
            ("", lambda k: missed(stops, k)),
            (" by probability", lambda k: missed(stops, k, noise=False)),
            (" 1 - Omega", lambda k: outside(stops, k)),
        ):
            cells.append((f"{task}, {exit_:g}{name}", *(f"{of(kappa):.2f}" for kappa in kappas), str(len(stops))))
    return head, cells


def claims(found: Found, kappas: Sequence[int]) -> list[Claim]:
    falls = all(missed(stops, a) >= missed(stops, b) for stops in found.values() for a, b in zip(kappas, kappas[1:]))
    made = [Claim("more proxies, fewer fallbacks", "always", "at every task and exit" if falls else "not always", falls)]
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


def watched(lm: LanguageModel, given: argparse.Namespace, exit_: float, prompts: Sequence[str]) -> list[Stop]:
    drafter = Watching(model=given.draft, length=given.gamma, exit=exit_, kappa=max(given.kappa))
    for number, prompt in enumerate(prompts):
        lm.generate(
            prompt,
            method=drafter,
            planner=f"fixed:{given.gamma}",
            temperature=given.temperature,
            seed=given.seed + number,
            max_new_tokens=given.max_new_tokens,
            ignore_eos=True,
        )
    return drafter.stops


def options() -> argparse.ArgumentParser:
    found = parser(__doc__)
    add = found.add_argument
    add("--model", "-m", default=MODEL, metavar="MODEL", help=f"the target ({MODEL})")
    add("--draft", default=DRAFT, metavar="NAME", help=f"the draft model ({DRAFT})")
    add("--dtype", default="float32", metavar="TYPE", help="float32, bfloat16 or float16 (float32)")
    add("--exit", type=float, nargs="+", default=EXITS, metavar="SHARE", help="depths of the exit (0.25 0.5 0.75)")
    add("--kappa", type=int, nargs="+", default=KAPPAS, metavar="K", help="numbers of proxies (1 to 8)")
    add("--gamma", type=int, default=GAMMA, metavar="N", help=f"tokens of a draft ({GAMMA})")
    add("--tasks", nargs="+", default=TASKS, metavar="TASK", help="tasks of the suite (writing roleplay coding)")
    add("--limit", type=int, default=3, metavar="N", help="prompts of each (3)")
    add("--data", metavar="DIR", help="the data folder (default: $PACELINE_DATA)")
    add("--temperature", type=float, default=0.8, metavar="T", help="0 is greedy (0.8)")
    add("--max-new-tokens", type=int, default=64, metavar="N", help="tokens per text (64)")
    add("--seed", type=int, default=0, metavar="S", help="same seed, same texts (0)")
    return found


if __name__ == "__main__":
    script(lambda: None)
