"""The SQL of counting: how a line becomes n-grams, and which of those stay.

A column ``line`` is cut into segments and each of them into two lists of equal length, its units ``u`` and its bare
words ``w``. The n-grams of n words are then, for every place i with n - 1 units after it::

    w[i] <tab> u[i+1] <tab> ... <tab> u[i+n-1]

which `paceline.dictionary.words.ngrams` writes in Python.
"""

from __future__ import annotations

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


PARTS = 32
"""Grams are told apart by their hash, so that each part of many tables can be summed alone."""


def parted(grams: str) -> str:
    """Rows of one part lie together: whoever reads a part passes over the others."""
    return f"SELECT gram, count, hash(gram) % {PARTS} AS part FROM {grams} ORDER BY part"


def summed(tables: str, part: int) -> str:
    """One part of several tables as if all had been counted at once."""
    return f"SELECT gram, sum(count)::BIGINT AS count FROM {tables} WHERE part = {part} GROUP BY gram"


def numbered(grams: str) -> str:
    """The same with how many words each gram has: one more than tabs."""
    tabs = f"length(gram) - length(replace(gram, {quoted(TAB)}, ''))"
    return f"SELECT gram, count, ({tabs} + 1)::UTINYINT AS words FROM ({grams})"


def totals(grams: str) -> str:
    """For each number of words, how many different n-grams there are and how many in all."""
    return f"SELECT words, count(*), sum(count)::BIGINT FROM {grams} GROUP BY words"


def counts_of(grams: str, words: int) -> str:
    """How many n-grams of so many words were seen how often, the most often first."""
    return f"SELECT count, count(*) FROM {grams} WHERE words = {words} GROUP BY count ORDER BY count DESC"


def frequent(grams: str, words: int, min_count: int, limit: int) -> str:
    """The most frequent n-grams of so many words, in the order in which they are kept."""
    return f"""
        SELECT gram, count FROM {grams} WHERE words = {words} AND count >= {min_count}
        ORDER BY count DESC, gram LIMIT {limit}"""
