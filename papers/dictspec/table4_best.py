"""Table 4: the best dictionary of each tokenizer and language.

python -m papers.dictspec.table4_best runs/dictionaries
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from papers.common import Claim, Report, script
from papers.dictspec.numbers import CORPORA, paper_best
from papers.dictspec.sweep import best, ngrams, read, reader

if TYPE_CHECKING:
    import pandas as pd

CYRILLIC, LATIN, REFERENCE = "crh-Cyrl", "crh-Latn", "uk"
"""The paper's languages: the one that gains most, the one that gains least, and the one with much text."""
RATIOS = ("speed_up", "coverage", "accepted_per_draft", "acceptance")
HEAD = ("here / paper", "speed-up", "coverage", "accepted/draft", "acceptance", "words counted", "dictionary")


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
        told = ", ".join(f"{one.tokenizer} {one.without:.2f} and {one.drafted:.2f}" for one in its.itertuples())
        yield (
            f"steps per word in {language}, without a dictionary and with the best: {told}; with one, {ahead} takes "
            f"fewer than {first.tokenizer} without"
        )


def main() -> None:
    options = reader(__doc__).parse_args()
    found = best(read(options.sweep))
    claims = [
        *compared(found, CYRILLIC, REFERENCE, "Crimean Tatar in Cyrillic gains more than Ukrainian"),
        *compared(found, REFERENCE, LATIN, "Crimean Tatar in Latin script gains less than Ukrainian"),
    ]
    rows = [row(one) for one in found.itertuples()]
    title, data = "DictSpec, Table 4: the best dictionaries", {"best": found.to_dict("records")}
    Report(title, [(HEAD, rows)], claims, list(steps_per_word(found)), data=data).show(options)


if __name__ == "__main__":
    script(main)
