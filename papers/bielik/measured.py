"""What the measuring scripts share: data sets or their stand-ins, the ways to translate, and the paper's Tables 2 to 4.

The paper's texts are not here. Its Wikipedia articles are replaced by paragraphs of guides, documentation and novels,
pl_alpaca by the Polish MT-Bench, and its made questions by questions written for this script. `--prompts
Wikipedia=FILE.jsonl` takes your own, one prompt a line, as `bench run --suite prompts:FILE.jsonl` does. The paper cuts
articles into windows of 1,024 tokens; prompts of your own are used as they are.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from paceline_lab import Prompt, open_suite
from papers import common
from papers.bielik.formula import CONFIDENCE

MODEL, DRAFT_MODEL = "pocket", "pocket-foreign"
BUNDLED, BUNDLED_TEMPERATURE = ("pocket", "pocket-draft", "pocket-foreign"), 0.8
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
"""A draft of k tokens of the draft model may become so many times k tokens of the target, or nodes of a lattice."""
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


def parser(said: str | None, model: Sequence[str] = (MODEL,), new_tokens: int = 64) -> argparse.ArgumentParser:
    found = common.parser(said)
    add = found.add_argument
    add("--model", "-m", nargs="+", default=[*model], metavar="MODEL", help=f"target models ({' '.join(model)})")
    add("--draft-model", nargs="+", default=[DRAFT_MODEL], metavar="MODEL", help=f"draft models ({DRAFT_MODEL})")
    add("--dtype", metavar="TYPE", help="float32, bfloat16 or float16 (the model's own)")
    add("--device", metavar="DEVICE", help="where to run them (default: $PACELINE_DEVICE, or auto)")
    add("--k", type=int, nargs="+", default=[2, 4], metavar="K", help="tokens of a draft, the draft model's (2 4)")
    add("--strategies", nargs="+", metavar="NAME", help=f"of {', '.join(map(repr, STRATEGIES))} (all)")
    add("--prompts", type=named_file, nargs="+", default=[], metavar="NAME=FILE", help="your prompts of a data set")
    add("--limit", type=int, default=4, metavar="N", help="prompts of each data set (4; the paper has 50)")
    add("--max-new-tokens", type=int, default=new_tokens, metavar="N", help=f"of each ({new_tokens}; the paper: 128)")
    add("--temperature", type=float, metavar="T", help="0 is greedy (0.8 for bundled models, else 0)")
    add("--seed", type=int, default=0, metavar="S", help="same seed, same texts (0)")
    add("--data", type=Path, metavar="DIR", help="the data folder (default: $PACELINE_DATA)")
    add("--quick", action="store_true", help="less of everything, in under a minute")
    return found


def named_file(given: str) -> tuple[str, Path]:
    name, equals, file = given.partition("=")
    if not (name and equals and file):
        raise argparse.ArgumentTypeError(f"name a data set and its file, as in Wikipedia=wiki.jsonl; got {given!r}")
    return name, Path(file)


def checked(given: argparse.Namespace) -> argparse.Namespace:
    """The options, in order. ValueError where they are none."""
    for name, values in {"k": given.k, "limit": [given.limit], "max-new-tokens": [given.max_new_tokens]}.items():
        if min(values) < 1:
            raise ValueError(f"--{name} must be at least 1, not {min(values)}")
    if unknown := [name for name in given.strategies or [] if name not in STRATEGIES]:
        raise ValueError(f"there is no strategy {unknown[0]!r}; there are {', '.join(map(repr, STRATEGIES))}")
    if given.temperature is None:
        bundled = all(model.partition("+")[0] in BUNDLED for model in given.model)
        given.temperature = BUNDLED_TEMPERATURE if bundled else 0.0
    if given.strategies is None:
        given.strategies = [name for name in STRATEGIES if given.temperature or name != NOISY]
    given.k = sorted(set(given.k))
    return given


def method(drafter: str, strategy: str, k: int) -> str:
    """The method of a condition, with a planner that leaves out no drafted token."""
    return f"assistant:model='{drafter}',length={k},{STRATEGIES[strategy]}@fixed:{WIDE * k}"


def datasets(given: argparse.Namespace) -> tuple[dict[str, list[Prompt]], list[str]]:
    """The prompts of every data set, and notes on what stands in for what."""
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


def stand_in(name: str, given: argparse.Namespace) -> list[Prompt]:
    if name == SYNTHETIC:
        few = QUESTIONS[: given.limit]
        return [Prompt(key=f"pl-question-{n}", task=name, language="pl", turns=(q,)) for n, q in enumerate(few, 1)]
    return [*open_suite(data=given.data, limit=given.limit, **SUITES[name]).prompts]


# --- counts


@dataclass(frozen=True)
class Text:
    """What a text counts."""

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


def counted(lm: Any, prompt: Prompt, method: str, given: argparse.Namespace) -> Text:
    """One text, counted."""
    spec, _, planner = method.partition("@")
    asked = [{"role": "user", "content": prompt.turns[0]}] if prompt.chat else prompt.turns[0]
    how = {name: getattr(given, name) for name in ("max_new_tokens", "temperature", "seed")}
    totals = lm.generate(asked, method=spec, planner=planner, **how).totals
    drafts = totals.drafted, totals.accepted, totals.counts["draft_tokens"]
    return Text(totals.rounds, totals.tokens_in_rounds, *drafts, totals.counts["rows_rolled_back"])


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
    """What to add to a claim on two means, if chance alone could show it (t-test)."""
    test = stats.ttest_rel if paired else stats.ttest_ind
    known = len(one) > 1 and len(other) > 1 and bool(np.ptp(np.concatenate([one, other])))
    chance = float(test(one, other).pvalue) if known else math.nan
    return "" if chance < 1 - CONFIDENCE else common.CHANCE


def printed(drafter: str, strategy: str, dataset: str, k: int) -> str:
    """The paper's cell of this drafter, or of all three where it is none of them."""
    cells = {one: PRINTED.get((one, strategy, dataset, k)) for one in ("Bielik-1.5B", "Llama-3.2-1B", "Qwen2.5-1.5B")}
    own = [alpha for one, alpha in cells.items() if alpha is not None and is_called(drafter, one)]
    known = own or [alpha for alpha in cells.values() if alpha is not None]
    return " / ".join(f"{alpha:.1f}" for alpha in known)


def is_called(model: str, name: str) -> bool:
    """Whether a model of the hub is one of the paper's."""
    bare = model.rpartition("/")[2].lower()
    return bare.startswith(name.lower().rpartition("-")[0]) and name.lower().rpartition("-")[2] in bare
