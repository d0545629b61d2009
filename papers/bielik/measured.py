"""Shared by the measuring scripts: data sets or their substitutes, the ways to translate, and the paper's Tables 2 to
4.

The paper's texts are not here. Its Wikipedia articles are replaced by paragraphs of guides, documentation and novels,
pl_alpaca by the Polish MT-Bench, and its made questions by questions written for this script. `--prompts
Wikipedia=FILE.jsonl` takes your own, one prompt a line, as `bench run --suite prompts:FILE.jsonl` does. The paper cuts
articles into windows of 1,024 tokens; prompts of your own are used as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

import paceline
from paceline_lab import Prompt, open_suite
from papers.bielik.formula import CONFIDENCE
from papers.driver import Given, Option, asked, progress
from papers.lab import temperature_of
from papers.report import CHANCE

MODEL, DRAFT_MODEL = "pocket", "pocket-foreign"
WIKIPEDIA, ALPACA, SYNTHETIC = "Wikipedia", "pl_alpaca", "Synthetic"
STAND_INS = {
    WIKIPEDIA: "paragraphs of guides, documentation and novels, to be continued",
    ALPACA: "the first turns of the Polish MT-Bench",
    SYNTHETIC: "questions written for this script",
}
SUITES: Mapping[str, Mapping[str, Any]] = {
    WIKIPEDIA: {"spec": "continuation", "languages": ["pl"]},
    ALPACA: {"spec": "multi-spec-bench", "languages": ["pl"], "tasks": ["mt_bench"]},
}
QUESTIONS = (
    "Jaka jest stolica Polski?",
    "Dlaczego niebo jest niebieskie?",
    "Ile nóg ma pająk?",
    "Kto napisał „Pana Tadeusza”?",
    "Jak ugotować jajko na twardo?",
    "Co robią niedźwiedzie zimą?",
    "Gdzie wpada do morza Wisła?",
    "Po co drzewom liście?",
    "Jak długo trwa rok na Marsie?",
    "Z czego piecze się chleb?",
    "Kiedy kwitną jabłonie?",
    "Czym różni się jezioro od stawu?",
)
STRATEGIES = {
    "no translation": "translate=none,noise=none",
    "naive": "translate=naive,noise=none",
    "naive without the space": "translate=context:0,noise=none",
    "context-aware": "translate=context:5,noise=none",
    "lattice": "translate=lattice,noise=none",
    "lattice, shared noise": "translate=lattice,noise=shared",
}
"""The paper's three, with its 5 tokens before a draft, and ours. The last is the same as `lattice` when greedy."""
NOISY, CONTEXT = "lattice, shared noise", "context-aware"
WIDE = 4
"""A draft of k tokens of the draft model may become this many times k tokens of the target, or nodes of a lattice."""
DRAFTERS = "Bielik-1.5B", "Llama-3.2-1B", "Qwen2.5-1.5B"
Key = tuple[str, str, str, int]
"""Drafter, strategy, data set and k."""


def _table2() -> Iterator[tuple[Key, float]]:
    rows = {
        "Bielik-1.5B": ((28.5, 12.5, 11.8), (19.1, 11.9, 16.7), (31.1, 23.9, 22.2)),
        "Llama-3.2-1B": ((26.7, 12.1, 10.6), (8.9, 4.2, 3.1), (42.0, 36.0, 36.5)),
        "Qwen2.5-1.5B": ((30.3, 13.4, 12.2), (10.5, 6.4, 4.9), (44.6, 41.0, 42.7)),
    }
    four = {"Bielik-1.5B": (38.5, 29.5, 29.1), "Llama-3.2-1B": (49.7, 43.7, 44.5), "Qwen2.5-1.5B": (53.8, 49.7, 51.6)}
    six = {"Bielik-1.5B": 20.6, "Llama-3.2-1B": 41.7, "Qwen2.5-1.5B": 45.0}
    for drafter, conditions in rows.items():
        for strategy, cells in zip(("no translation", "naive", CONTEXT), conditions, strict=True):
            yield from (((drafter, strategy, one, 2), alpha) for one, alpha in zip(STAND_INS, cells, strict=True))
        yield from (((drafter, CONTEXT, one, 4), alpha) for one, alpha in zip(STAND_INS, four[drafter], strict=True))
        yield (drafter, CONTEXT, ALPACA, 6), six[drafter]


PRINTED = dict(_table2())
"""Acceptance in percent: Tables 2, 4 and 11."""


UNIT = Option("UNIT", "what acceptance is a share of (drafted)", choices=("drafted", "k", "emitted"))


def options(**own: Any) -> dict[str, Option]:
    """The options of all items that measure, and those of one."""
    usual = {"model": (MODEL,), "draft_model": (DRAFT_MODEL,), "k": (2, 4), "limit": 4}
    own = {"strategies": Option("NAME", f"of {', '.join(map(repr, STRATEGIES))} (all)", default=()), **own}
    names = "dtype", "device", "prompts", "max_new_tokens", "temperature", "seed", "data", "quick"
    return asked(*names, **usual | own)


def checked(given: Given, tokens: int) -> Given:
    """The options, in order; ``tokens`` of a text are enough to be quick. ValueError where they are none."""
    if given.quick:
        given.limit, given.max_new_tokens = min(given.limit, 2), min(given.max_new_tokens, tokens)
    if unknown := [name for name in given.strategies if name not in STRATEGIES]:
        raise ValueError(f"there is no strategy {unknown[0]!r}; there are {', '.join(map(repr, STRATEGIES))}")
    given.temperature = temperature_of(given.temperature, *given.model)
    given.strategies = given.strategies or [name for name in STRATEGIES if given.temperature or name != NOISY]
    given.k = sorted(set(given.k))
    return given


def method(drafter: str, strategy: str, k: int) -> str:
    """The method of a condition, with a planner that leaves out no drafted token."""
    return f"assistant:model='{drafter}',length={k},{STRATEGIES[strategy]}@fixed:{WIDE * k}"


def datasets(given: Given) -> tuple[dict[str, list[Prompt]], list[str]]:
    """The prompts of every data set, and notes on substitutes."""
    found, notes, own = dict[str, list[Prompt]](), list[str](), dict(given.prompts)
    for name in dict.fromkeys([*STAND_INS, *own]):
        if name in own:
            found[name] = [*open_suite(f"prompts:{own[name]}", limit=given.limit).prompts]
            continue
        try:
            found[name] = stand_in(name, given)
        except ValueError as why:
            notes.append(f"{name} is left out: {why}")
            continue
        notes.append(f"{name} is not here; in its place stand {STAND_INS[name]} ({len(found[name])} prompts)")
    return found, notes


def stand_in(name: str, given: Given) -> list[Prompt]:
    if name == SYNTHETIC:
        few = QUESTIONS[: given.limit]
        return [Prompt(key=f"pl-question-{n}", task=name, language="pl", turns=(q,)) for n, q in enumerate(few, 1)]
    return [*open_suite(data=given.data, limit=given.limit, **SUITES[name]).prompts]


# --- counts


@dataclass(frozen=True)
class Text:
    """The counts of a text."""

    rounds: int
    emitted: int
    drafted: int
    """Tokens of the target that were sent to it; of a lattice all nodes."""
    accepted: int
    draft_tokens: int
    """Tokens that the draft model made."""
    rolled_back: int
    """Rows of the draft model that were read again, since new bytes changed its tokens."""


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


DRAFTED, OWN, WRITTEN = "accepted / drafted", "accepted / k", "accepted / emitted"
UNITS: Mapping[str, Callable[[Text], float]] = {
    DRAFTED: lambda one: _share(one.accepted, one.drafted),
    OWN: lambda one: _share(one.accepted, one.draft_tokens),
    WRITTEN: lambda one: _share(one.accepted, one.emitted),
}
"""Acceptance of a text: of the target's tokens that were drafted (the paper's definition in section 4.4), of those that
the draft model made, and of the tokens of the text."""

UNIT_NAMES = {"drafted": DRAFTED, "k": OWN, "emitted": WRITTEN}
"""Units as options name them."""


def counted(lm: Any, prompt: Prompt, method: str, given: Given) -> Text:
    """One text, counted."""
    spec, _, planner = method.partition("@")
    asked = [{"role": "user", "content": prompt.turns[0]}] if prompt.chat else prompt.turns[0]
    how = {name: getattr(given, name) for name in ("max_new_tokens", "temperature", "seed")}
    totals = lm.generate(asked, method=spec, planner=planner, **how).totals
    drafts = totals.drafted, totals.accepted, totals.counts["draft_tokens"]
    return Text(totals.rounds, totals.tokens_in_rounds, *drafts, totals.counts["rows_rolled_back"])


Cells = Mapping[Key, Sequence[Text]]


def measured(given: Given, found: Mapping[str, Sequence[Prompt]], notes: Sequence[str]) -> tuple[Cells, list[str]]:
    """The texts of every condition, and notes."""
    lm = paceline.load(given.model[0], dtype=given.dtype, device=given.device, generation_config=False)
    cells, failed = dict[Key, list[Text]](), dict[tuple[str, str], str]()
    conditions = [(d, s, k) for d in given.draft_model for s in given.strategies for k in given.k]
    for number, (drafter, strategy, k) in enumerate(conditions):
        progress(f"{drafter}, {strategy}, k = {k}", number, len(conditions))
        for dataset, prompts in found.items():
            try:
                texts = [counted(lm, prompt, method(drafter, strategy, k), given) for prompt in prompts]
            except ValueError as why:
                failed[drafter, strategy] = str(why)
                break
            cells[drafter, strategy, dataset, k] = texts
    progress("")
    if not cells:
        raise ValueError(f"nothing could be measured: {'; '.join(failed.values())}")
    return cells, [*notes, *(f"{d}, {s}: {why}" for (d, s), why in failed.items())]


def acceptance(texts: Sequence[Text], unit: str = DRAFTED) -> float:
    """The mean of the texts that have drafts, as in the paper."""
    found = [alpha for one in texts if not math.isnan(alpha := UNITS[unit](one))]
    return float(np.mean(found)) if found else math.nan


def percent(texts: Sequence[Text], unit: str = DRAFTED) -> str:
    """The mean acceptance, from three texts on with the reach of its 95% interval over texts."""
    found = [alpha for one in texts if not math.isnan(alpha := UNITS[unit](one))]
    if not found:
        return "no drafts"
    mean = f"{100 * float(np.mean(found)):.1f}%"
    if len(found) < 3:
        return mean
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, len(found) - 1) * float(np.std(found, ddof=1)) / math.sqrt(len(found))
    return f"{mean} ± {100 * reach:.1f}"


def by_chance(one: Sequence[float], other: Sequence[float], *, paired: bool = False) -> str:
    """The addition to a claim on two means, if chance alone could explain it (t-test)."""
    test = stats.ttest_rel if paired else stats.ttest_ind
    known = len(one) > 1 and len(other) > 1 and bool(np.ptp(np.concatenate([one, other])))
    chance = float(test(one, other).pvalue) if known else math.nan
    return "" if chance < 1 - CONFIDENCE else CHANCE


def beside(drafter: str, cells: Mapping[str, float | None], form: str) -> str:
    """The paper's number of this drafter, or of all its drafters where it is none of them."""
    known = {one: number for one, number in cells.items() if number is not None}
    own = [number for one, number in known.items() if is_called(drafter, one)]
    return " / ".join(format(number, form) for number in own or known.values())


def printed(drafter: str, strategy: str, dataset: str, k: int) -> str:
    """The paper's acceptance."""
    return beside(drafter, {one: PRINTED.get((one, strategy, dataset, k)) for one in DRAFTERS}, ".1f")


def is_called(model: str, name: str) -> bool:
    """Whether a model of the hub is one of the paper's."""
    bare = model.rpartition("/")[2].lower()
    return bare.startswith(name.lower().rpartition("-")[0]) and name.lower().rpartition("-")[2] in bare
