"""Table 2: words counted and words tested, by language.

python -m papers.dictspec.table2_corpora runs/dictionaries
"""

from __future__ import annotations

from papers.common import Report, script
from papers.dictspec.numbers import CORPORA
from papers.dictspec.sweep import read, reader

HEAD = ("language", "counted", "tested", "paper, counted", "paper, tested")


def main() -> None:
    options = reader(__doc__).parse_args()
    cells = read(options.sweep)
    rows = [
        (language, f"{one.train_words:,}", f"{one.test_words:,}", *(f"{n:,}" for n in CORPORA.get(language, ())))
        for language, one in cells.groupby("language", sort=False).first().iterrows()
    ]
    short = cells[cells.entries < cells["size"]]
    counts = ", ".join(
        f"{count} in {language}" for language, count in short.value_counts("language", sort=False).items()
    )
    note = f"{len(short)} of {len(cells)} dictionaries have fewer entries than asked for, since the text gives no more"
    notes = [f"{note}: {counts}"] if len(short) else []
    Report("DictSpec, Table 2: words", [(HEAD, rows)], notes=notes).show(options)


if __name__ == "__main__":
    script(main)
