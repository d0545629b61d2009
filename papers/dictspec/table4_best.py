"""Table 4: the best dictionary of each tokenizer and language, by each rule of entries.

python -m papers.dictspec.table4_best runs/dictionaries
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from papers.common import Claim, Report, script
from papers.dictspec.numbers import BEST, CORPORA, paper_best
from papers.dictspec.sweep import best, by_rule, ngrams, read, reader

if TYPE_CHECKING:
    import pandas as pd

CYRILLIC, LATIN, REFERENCE = "crh-Cyrl", "crh-Latn", "uk"
"""The paper's languages: the one that gains most, the one that gains least, and the one with much text."""
RATIOS = ("speed_up", "coverage", "accepted_per_draft", "acceptance")
EXACT = 1e-9
HEAD = ("speed-up", "coverage", "accepted/draft", "acceptance", "words counted", "dictionary")


def row(one: Any) -> tuple[str, ...]:
    """A dictionary beside the paper's, where it has one."""
    theirs = paper_best(one.tokenizer, one.language)
    beside = [f" / {value:.2f}" for value in theirs] if theirs is not None else [""] * len(RATIOS)
    ratios = (f"{getattr(one, name):.2f}{more}" for name, more in zip(RATIOS, beside, strict=True))
    words = f"{one.train_words:,}" + (f" / {CORPORA[one.language][0]:,}" if theirs is not None else "")
    return one.pair, *ratios, words, f"{ngrams(one.order)}, p {one.min_probability:g}, {one.entries:,} entries"


def compared(found: pd.DataFrame, more: str, less: str, claim: str) -> Iterator[Claim]:
    """Whether one language gains more than another with each tokenizer."""
    gains = found.pivot(index="tokenizer", columns="language", values="speed_up")
    if more not in gains or less not in gains or gains[[more, less]].dropna().empty:
        return
    both = gains[[more, less]].dropna()
    against = both[both[more] <= both[less]]
    named = ", ".join(f"{name} ({one[more]:.2f}x, {one[less]:.2f}x)" for name, one in against.iterrows())
    ours = f"with {len(both) - len(against)} of {len(both)}" + (f", not with {named}" if named else "")
    yield Claim(claim, "with all tokenizers", ours, against.empty)


def steps_per_word(found: pd.DataFrame) -> Iterator[str]:
    """Tokenizers cut words differently, so their speed-ups do not say which writes a text in fewer steps. This does."""
    per = found.assign(without=found.tokens / found.test_words, drafted=found.steps / found.test_words)
    for language, its in per.sort_values("without").groupby("language", sort=False):
        first = its.iloc[0]
        ahead = ", ".join(its[1:][its[1:].drafted < first.without].tokenizer) or "no other"
        listed = ", ".join(f"{one.tokenizer} {one.without:.2f} and {one.drafted:.2f}" for one in its.itertuples())
        yield (
            f"steps per word in {language}, without a dictionary and with the best: {listed}; with one, {ahead} takes "
            f"fewer than {first.tokenizer} without"
        )


def identity(cells: pd.DataFrame) -> Claim:
    """A step writes what it accepts and one token more."""
    off = (cells.speed_up - 1 - cells.coverage * cells.accepted_per_draft).abs().max()
    theirs = [abs(one.speed_up - 1 - one.coverage * one.accepted_per_draft) for one in BEST.values()]
    paper = f"off by {max(theirs):.3f} at most in {len(theirs)} rows of two digits"
    ours = f"off by {off:.0e} at most in {len(cells):,} dictionaries"
    return Claim("speed-up = 1 + coverage x accepted per draft", paper, ours, bool(off < EXACT))


def rules(cells: pd.DataFrame) -> Iterator[str]:
    """The two rules beside each other, dictionary by dictionary and each at its best."""
    at = ["pair", "order", "size", "min_probability"]
    steps = cells.pivot(index=at, columns="rule", values="steps")
    if len(steps.columns) < 2:
        return
    fewer = (steps.token < steps.paper).sum(), (steps.token > steps.paper).sum()
    speeds = best(cells, "rule").pivot(index="pair", columns="rule", values="speed_up")
    gains = speeds.token / speeds.paper
    yield (
        f"token by token takes fewer steps than whole endings in {fewer[0]} of {len(steps)} dictionaries and more in "
        f"{fewer[1]}; each at its best, its speed-up is {gains.min():.2f} to {gains.max():.2f} times the other's"
    )


def main() -> None:
    options = reader(__doc__).parse_args()
    cells = read(options.sweep)
    claims, tables = list[Claim](), []
    for rule, its in by_rule(cells):
        found = best(its)
        claims += compared(found, CYRILLIC, REFERENCE, f"{rule}: Crimean Tatar in Cyrillic gains more than Ukrainian")
        claims += compared(found, REFERENCE, LATIN, f"{rule}: Crimean Tatar in Latin script gains less than Ukrainian")
        tables.append(((rule, *HEAD), [row(one) for one in found.itertuples()]))
    data = {"best": best(cells, "rule").to_dict("records")}
    notes = ["numbers are here / in the paper", *rules(cells), *steps_per_word(best(cells))]
    title = "DictSpec, Table 4: the best dictionaries"
    Report(title, tables, [*claims, identity(cells)], notes, data=data).show(options)


if __name__ == "__main__":
    script(main)
