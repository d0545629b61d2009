"""Table 1 and Figure 3b: the tasks of Spec-Bench at temperatures 0 and 1, beside other methods.

    python -m papers.mirror.tasks --svg tasks.svg
    python -m papers.mirror.tasks --model M --draft D --draft-device cuda:1 --limit 80 --max-new-tokens 512

Of the paper's rivals, vanilla speculative decoding (`assistant`), prompt lookup (PLD), Token Recycling and Lookahead
are here, the last three as published. Beside them stand `unispec`, `auto`, and `redrafter` where the target has a head.
Where Spec-Bench is not in the data folder, beginnings of stories stand in for it. E[A] is the number of accepted
drafted tokens of a round.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from paceline_lab import Summary
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.mirror.common import Lab, accepted, conditions, parser, rounds_of, two, with_draft
from papers.redrafter.common import CHAT, LENGTH, OWN, TASK, WIDTH, spec
from papers.redrafter.tasks import mt_bench
from papers.unispec.common import brings, faster, number, speed_up, tokens_per_round, with_interval
from papers.unispec.tables import remarks

TASKS = "translation", "summarization", "qa", "math_reasoning", "rag", "mt_bench"
TEMPERATURES = 0.0, 1.0
SHORT = {"translation": "transl.", "summarization": "summ.", "math_reasoning": "math", "mt_bench": "chat"}
"""Names of tasks in pictures."""
MIRROR, VANILLA = "mirror", "assistant"
RIVALS = "lookup:paper", "recycling:paper", "lookahead:paper", "unispec", "auto"
PAPER: Mapping[float, Mapping[str, Sequence[float]]] = {
    0.0: {
        MIRROR: (4.13, 3.07, 3.18, 5.32, 3.49, 3.70),
        VANILLA: (2.34, 1.76, 1.81, 2.80, 2.02, 2.07),
        "lookup:paper": (1.18, 2.12, 1.14, 1.67, 1.67, 1.63),
        "recycling:paper": (1.86, 2.30, 2.13, 2.58, 2.06, 2.44),
        "lookahead:paper": (1.09, 1.30, 1.27, 1.70, 1.32, 1.35),
    },
    1.0: {
        MIRROR: (3.89, 2.81, 2.80, 5.02, 2.95, 3.48),
        VANILLA: (2.19, 1.50, 1.36, 2.53, 1.68, 1.98),
        "lookup:paper": (1.07, 1.86, 1.04, 1.49, 1.56, 1.42),
        "recycling:paper": (1.78, 1.84, 1.84, 2.29, 1.89, 2.15),
        "lookahead:paper": (1.03, 1.13, 1.15, 1.39, 1.07, 1.24),
    },
}
"""Speed-ups of Qwen3-14B in the order of `TASKS`."""
ABSENT = (
    "of the paper's Table 1 are absent: EAGLE-3, EAGLE-2, Hydra and Medusa, since no method here drafts with their "
    "heads; SpS, which is the assisted generation of another library; and REST, which needs a corpus (add "
    "rest:paper,corpus=FILE to --rivals)"
)
SAME = (
    "with one draft model and one length the paper expects the same E[A] of mirror and vanilla (its appendix B); in "
    "its Table 1 mirror has a draft model of its own"
)
AS_PUBLISHED = "methods named :paper draft as published, without the shared noise"
Runs = Mapping[float, Summary]
"""By temperature."""


def methods(lab: Lab) -> dict[str, str]:
    """What drafts, by name: mirror first, then vanilla speculative decoding."""
    given, both = lab.given, two(lab.given, lab.given.draft, lab.given.gamma)
    found = {MIRROR: both.mirror, VANILLA: both.vanilla} | {rival: rival for rival in given.rivals}
    try:
        lab.need_head()
    except ValueError as why:
        if given.head is not None:
            raise
        lab.notes.append(f"{OWN} is left out: {why}")
        return found
    return found | {OWN: spec(given, WIDTH, LENGTH, method=OWN)}


def prompts(lab: Lab) -> dict[str, object]:
    """The paper's tasks of Spec-Bench where it is here, unless others were asked for."""
    found = lab.prompts()
    if found["suite"] == CHAT and lab.given.suite is None and lab.given.tasks is None:
        found["tasks"] = [*TASKS]
    return found


def paper_says(heat: float, rival: str) -> str:
    """The paper's means over tasks, where it has the rival at this temperature."""
    rows = PAPER.get(heat, {})
    if rival not in rows:
        return ""
    means = [sum(rows[name]) / len(TASKS) for name in (MIRROR, rival)]
    return f"{means[0]:.2f}x against {means[1]:.2f}x on average (Qwen3-14B)"


def speeds(runs: Runs, names: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Table 1: a row of every temperature and task, and the means over tasks; of every method speed-up and tokens."""
    rows = list[Sequence[str]]()
    for heat, run in runs.items():
        for task in run.tasks:
            cells = []
            for entry in names.values():
                figures = run.figures(entry, task)
                per_round = number(figures.tokens_per_round) if figures is not None else ""
                cells.append(f"{with_interval(speed_up(run, entry, task))}, {per_round}")
            rows.append((f"T={heat:g}  {task}", *cells))
        if len(run.tasks) > 1:
            found = (f"{with_interval(speed_up(run, e))}, {number(tokens_per_round(run, e))}" for e in names.values())
            rows.append((f"T={heat:g}  mean of tasks", *found))
    return ("x plain [95%], tokens/round", *names), rows


def lengths(
    runs: Runs, names: Mapping[str, str], kinds: Mapping[str, str]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Figure 3b: E[A] of every task, and of every category of MT-Bench, with the standard deviation over rounds."""
    rows = list[Sequence[str]]()
    for heat, run in runs.items():
        found = [by_kind(run, entry, kinds) for entry in names.values()]
        for kind in dict.fromkeys(kind for one in found for kind in one):
            rows.append((f"T={heat:g}  {kind}", *(one.get(kind, "") for one in found)))
    return ("E[A], mean ± standard deviation", *names), rows


def by_kind(run: Summary, entry: str, kinds: Mapping[str, str]) -> dict[str, str]:
    """E[A] of an entry by task. Prompts that ``kinds`` has count under their own names instead."""
    labels = [kinds.get(*both) for both in zip(run.texts.prompt, run.texts.task, strict=True)]
    rounds = rounds_of(run, entry)
    of = rounds.text.map(dict(zip(run.texts.index, labels, strict=True)))
    parts = {kind: rounds.accepted[of == kind] for kind in dict.fromkeys(labels)}
    return {kind: f"{part.mean():.2f} ± {part.std(ddof=0):.2f}" for kind, part in parts.items() if len(part)}


def categories(lab: Lab) -> dict[str, str]:
    """The category of each prompt of MT-Bench by its key, which the paper reports one by one."""
    try:
        return {one.key: f"{TASK}, {one.task}" for one in mt_bench(lab.given.data)}
    except ValueError:
        return {}


def claims(runs: Runs, names: Mapping[str, str]) -> Iterator[Claim]:
    mirror = names[MIRROR]
    for heat, run in runs.items():
        for rival, entry in names.items():
            if rival != MIRROR:
                paper = paper_says(heat, rival)
                claim = f"T={heat:g}: {MIRROR} {'is faster than' if paper else 'beside'} {rival}"
                yield faster(run, mirror, entry, claim, paper, Way.ABOVE)
        yield everywhere(heat, run, names)
        claim = f"T={heat:g}: E[A] of {MIRROR} is larger than of {VANILLA} (tokens a round, 1 + E[A])"
        yield brings(run, mirror, names[VANILLA], claim, "larger, which is why it is faster (4.3)", Way.ABOVE)


def everywhere(heat: float, run: Summary, names: Mapping[str, str]) -> Claim:
    """Whether mirror is the fastest in every task, of the methods here that the paper has, too."""
    entries = [entry for name, entry in names.items() if name in PAPER[0.0]]
    won = [task for task in run.tasks if fastest(run, entries, task) == names[MIRROR]]
    ours = f"in {len(won)} of {len(run.tasks)}"
    claim = f"T={heat:g}: {MIRROR} is the fastest of the methods that the paper has, too, in every task"
    return Claim(claim, "in every task", ours, len(won) == len(run.tasks))


def fastest(run: Summary, entries: Sequence[str], task: str) -> str:
    found = {entry: speed_up(run, entry, task).value for entry in entries}
    known = {entry: value for entry, value in found.items() if value == value}
    return max(known, key=lambda entry: known[entry], default="")


def panels(runs: Runs, names: Mapping[str, str]) -> Iterator[Panel]:
    """Of every temperature: speed-ups of all methods by task, and E[A] of mirror and vanilla."""
    for heat, run in runs.items():
        speed = {name: [speed_up(run, entry, task).value for task in run.tasks] for name, entry in names.items()}
        tokens = {name: [accepted(run, names[name], task)[0] for task in run.tasks] for name in (MIRROR, VANILLA)}
        short = [SHORT.get(task, task) for task in run.tasks]
        yield Panel(f"Speed-up, T={heat:g}", "task", "x plain", _curves(speed), level=1.0, names=short)
        yield Panel(f"E[A], T={heat:g}", "task", "accepted tokens of a round", _curves(tokens), names=short)


def _curves(found: Mapping[str, Sequence[float]]) -> list[Curve]:
    """A line of every method by task; what is not known is left out."""
    return [
        Curve(name, [(float(n), value) for n, value in enumerate(values) if value == value], place)
        for place, (name, values) in enumerate(found.items(), start=1)
    ]


def report(
    runs: Runs, names: Mapping[str, str], kinds: Mapping[str, str] = MappingProxyType({}), notes: Sequence[str] = ()
) -> Report:
    """``kinds`` are the categories of prompts."""
    spread = "the standard deviation is over rounds; the paper does not say over what its is"
    notes = [*notes, ABSENT, SAME, AS_PUBLISHED, spread, *remarks(runs.values())]
    title = "Mirror-SD, Table 1 and Figure 3b: tasks of Spec-Bench"
    tables = [speeds(runs, names), lengths(runs, names, kinds)]
    return Report(title, tables, list(claims(runs, names)), notes, list(panels(runs, names)))


def options() -> argparse.ArgumentParser:
    found = with_draft(parser(__doc__))
    add = found.add_argument
    add("--head", type=Path, metavar="FOLDER", help="a head of redrafter for the target (the one of paceline, if any)")
    add("--rivals", nargs="*", default=RIVALS, metavar="SPEC", help=f"other methods ({' '.join(RIVALS)})")
    add("--temperature", type=float, nargs="+", default=TEMPERATURES, metavar="T", help="temperatures (0 1)")
    return found


def main() -> None:
    lab = Lab(given := options().parse_args())
    names, how, heats = methods(lab), prompts(lab), sorted(set(given.temperature))
    made = lab.races({f"T={heat:g}": {**how, "methods": names.values(), "temperature": heat} for heat in heats})
    runs = {heat: made[label] for heat in heats if (label := f"T={heat:g}") in made}
    lab.show(report(runs, names, categories(lab), conditions(lab, heats, "those of the paper at 0 and 1")))


if __name__ == "__main__":
    script(main)
