"""Table 1 and Figure 3b: the tasks of Spec-Bench beside other methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from paceline_lab import Summary
from papers.charts import Panel
from papers.driver import Given
from papers.lab import CHAT, CHAT_TASK, Lab, method_of, names_of
from papers.mirror.drafts import accepted, rounds_of, shown, two
from papers.redrafter.heads import LENGTH, OWN, WIDTH, need_head, spec
from papers.redrafter.tasks import mt_bench
from papers.report import Claim, Report, Table, Way
from papers.speeds import best, brings, by_task, faster, per_round, speed_up, tokens_per_round, with_interval, written

TASKS = "translation", "summarization", "qa", "math_reasoning", "rag", "mt_bench"
TEMPERATURES = 0.0, 1.0
SHORT = {"translation": "transl.", "summarization": "summ.", "math_reasoning": "math", "mt_bench": "chat"}
"""Names of tasks in pictures."""
MIRROR, VANILLA = "mirror", "assistant"
TRAINED = "eagle:paper", "hydra:paper", "medusa:paper"
"""With heads that come with the package, or those that --rivals names, as in eagle:paper,head=FOLDER."""
RIVALS = *TRAINED, "lookup:paper", "recycling:paper", "lookahead:paper", "unispec", "auto"
PAPER: Mapping[float, Mapping[str, Sequence[float]]] = {
    0.0: {
        MIRROR: (4.13, 3.07, 3.18, 5.32, 3.49, 3.70),
        VANILLA: (2.34, 1.76, 1.81, 2.80, 2.02, 2.07),
        "eagle:paper": (2.53, 2.91, 3.09, 3.36, 2.66, 3.29),
        "hydra:paper": (2.03, 2.00, 2.19, 2.53, 2.04, 2.45),
        "medusa:paper": (1.65, 1.55, 1.62, 2.12, 1.64, 1.93),
        "lookup:paper": (1.18, 2.12, 1.14, 1.67, 1.67, 1.63),
        "recycling:paper": (1.86, 2.30, 2.13, 2.58, 2.06, 2.44),
        "lookahead:paper": (1.09, 1.30, 1.27, 1.70, 1.32, 1.35),
    },
    1.0: {
        MIRROR: (3.89, 2.81, 2.80, 5.02, 2.95, 3.48),
        VANILLA: (2.19, 1.50, 1.36, 2.53, 1.68, 1.98),
        "eagle:paper": (1.92, 2.84, 2.61, 3.25, 2.53, 3.05),
        "hydra:paper": (1.81, 1.66, 1.85, 2.42, 1.59, 2.16),
        "medusa:paper": (1.54, 1.40, 1.37, 2.01, 1.47, 1.81),
        "lookup:paper": (1.07, 1.86, 1.04, 1.49, 1.56, 1.42),
        "recycling:paper": (1.78, 1.84, 1.84, 2.29, 1.89, 2.15),
        "lookahead:paper": (1.03, 1.13, 1.15, 1.39, 1.07, 1.24),
    },
}
"""Speed-ups of Qwen3-14B in the order of `TASKS`. EAGLE's are those of EAGLE-3."""
ABSENT = (
    "of the paper's Table 1 are absent: SpS, which is the assisted generation of another library; REST, which needs a "
    "corpus (add rest:paper,corpus=FILE to --rivals); and methods for which the model has no head (add "
    "eagle:paper,head=FOLDER)"
)
SAME = (
    "with one draft model and one length the paper expects the same E[A] of mirror and vanilla (its appendix B); in "
    "its Table 1 mirror has another draft model"
)
AS_PUBLISHED = "methods named :paper draft as published, without the shared noise"
Runs = Mapping[float, Summary]
"""By temperature."""


def methods(lab: Lab) -> dict[str, str]:
    """The methods, by name: mirror first, then vanilla speculative decoding."""
    given, both = lab.given, two(lab.given, lab.given.draft, lab.given.gamma)
    rivals = {name: one for one, name in names_of(lab.able(given.rivals)).items()}
    found = {MIRROR: both.mirror, VANILLA: both.vanilla} | rivals
    try:
        need_head(lab)
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
    rows, method = PAPER.get(heat, {}), method_of(rival)
    if method not in rows:
        return ""
    means = [sum(rows[name]) / len(TASKS) for name in (MIRROR, method)]
    return f"{means[0]:.2f}x against {means[1]:.2f}x on average (Qwen3-14B)"


def speeds(runs: Runs, names: Mapping[str, str]) -> Table:
    """Table 1: a row of every temperature and task, and the means over tasks; of every method speed-up and tokens."""
    rows = list[Sequence[str]]()
    for heat, run in runs.items():
        for task in [*run.tasks, *([None] if len(run.tasks) > 1 else [])]:
            cells = []
            for entry in names.values():
                tokens = tokens_per_round(run, entry) if task is None else per_round(run, entry, task)
                cells.append(f"{with_interval(speed_up(run, entry, task))}, {written(tokens)}")
            rows.append((f"T={heat:g}  {task or 'mean of tasks'}", *cells))
    return ("x plain [95%], tokens/round", *names), rows


def lengths(runs: Runs, names: Mapping[str, str], kinds: Mapping[str, str]) -> Table:
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
        return {one.key: f"{CHAT_TASK}, {one.task}" for one in mt_bench(lab.given.data)}
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
    entries = [entry for name, entry in names.items() if method_of(name) in PAPER[0.0]]
    won = [
        task
        for task in run.tasks
        if best({entry: speed_up(run, entry, task).value for entry in entries}) == names[MIRROR]
    ]
    ours = f"in {len(won)} of {len(run.tasks)}"
    claim = f"T={heat:g}: {MIRROR} is the fastest of the methods that the paper has, too, in every task"
    return Claim(claim, "in every task", ours, len(won) == len(run.tasks))


def panels(runs: Runs, names: Mapping[str, str]) -> Iterator[Panel]:
    """Of every temperature: speed-ups of all methods by task, and E[A] of mirror and vanilla."""
    both = {name: names[name] for name in (MIRROR, VANILLA)}
    for heat, run in runs.items():
        short = [SHORT.get(task, task) for task in run.tasks]
        speed = by_task(run, names, lambda *of: speed_up(*of).value)
        tokens = by_task(run, both, lambda *of: accepted(*of)[0])
        yield Panel(f"Speed-up, T={heat:g}", "task", "x plain", speed, level=1.0, names=short)
        yield Panel(f"E[A], T={heat:g}", "task", "accepted tokens of a round", tokens, names=short)


def report(runs: Runs, names: Mapping[str, str], kinds: Mapping[str, str] = MappingProxyType({})) -> Report:
    """``kinds`` are the categories of prompts."""
    spread = "the standard deviation is over rounds; the paper does not say over what its is"
    title = "Mirror-SD, Table 1 and Figure 3b: tasks of Spec-Bench"
    tables, notes = [speeds(runs, names), lengths(runs, names, kinds)], [ABSENT, SAME, AS_PUBLISHED, spread]
    return Report(title, tables, list(claims(runs, names)), notes, list(panels(runs, names)))


def tasks(given: Given) -> Report:
    """Table 1 and Figure 3b: the tasks of Spec-Bench at temperatures 0 and 1, beside other methods.

    Of the paper's rivals, vanilla speculative decoding (`assistant`), prompt lookup (PLD), Token Recycling and
    Lookahead are here, the last three as published, and EAGLE, Hydra and Medusa with the heads that come with paceline
    for the target, if any, or yours: ``--rivals eagle:paper,head=FOLDER medusa:paper,head=FOLDER``. Added are
    `unispec`, `auto`, and `redrafter` if the target has a head. If Spec-Bench is not in the data folder, beginnings of
    stories are used instead. E[A] is the number of accepted drafted tokens of a round.
    """
    lab = Lab(given)
    names, how, heats = methods(lab), prompts(lab), sorted(set(given.temperature))
    runs = lab.races({heat: {**how, "methods": names.values(), "temperature": heat} for heat in heats}, "T={:g}")
    return shown(lab, report(runs, names, categories(lab)), "those of the paper at 0 and 1", heats)
