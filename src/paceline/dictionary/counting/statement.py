"""The SQL of counting: how a line becomes n-grams, and which of those stay.

A column ``line`` is cut into segments and each of them into two lists of equal length, its units ``u`` and its bare
words ``w``. The n-grams of n words are then, for every place i with n - 1 units after it::

    w[i] <tab> u[i+1] <tab> ... <tab> u[i+n-1]

which `paceline.dictionary.words.ngrams` writes in Python.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.dictionary.words import TAB, re2_patterns

HIGHEST_ORDER = 8


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def counted(lines: str, order: int) -> str:
    """Every n-gram of a relation of lines with how often it stands there."""
    cut = re2_patterns()
    segment, unit, word = map(quoted, (cut.segment, cut.unit, cut.word))
    lists = ["w", *(_ngrams(words) for words in range(2, order + 1))]
    return f"""
        SELECT gram, count(*) AS count FROM (
            SELECT unnest(list_concat({", ".join(lists)})) AS gram FROM (
                SELECT regexp_extract_all(s, {unit}) AS u, regexp_extract_all(s, {word}) AS w FROM (
                    SELECT unnest(regexp_extract_all(line, {segment})) AS s FROM {lines})))
        GROUP BY gram"""


def _ngrams(words: int) -> str:
    units = f" || {quoted(TAB)} || ".join(["w[i]", *(f"u[i + {later}]" for later in range(1, words))])
    return f"list_transform(range(1, len(w) - {words - 2}), lambda i: {units})"


def summed(tables: Iterable[str]) -> str:
    """Counts of parts of a corpus as those of the whole."""
    rows = " UNION ALL ".join(f"SELECT gram, count FROM {table}" for table in tables)
    return f"SELECT gram, sum(count)::BIGINT AS count FROM ({rows}) GROUP BY gram"


WORDS = f"(length(gram) - length(replace(gram, {quoted(TAB)}, '')) + 1)"
"""How many words a gram has: one more than tabs."""


def totals(grams: str) -> str:
    """For each number of words, how many different n-grams there are and how many in all."""
    return f"SELECT {WORDS} AS words, count(*), sum(count)::BIGINT FROM {grams} GROUP BY words ORDER BY words"


def frequent(grams: str, words: int, min_count: int, limit: int) -> str:
    """The most frequent n-grams of so many words, in the order in which they are kept."""
    return f"""
        SELECT gram, count FROM {grams} WHERE {WORDS} = {words} AND count >= {min_count}
        ORDER BY count DESC, gram LIMIT {limit}"""
