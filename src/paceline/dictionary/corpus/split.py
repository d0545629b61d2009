"""Some documents kept apart from the rest, so that what is built from the rest can be tried on them."""

from __future__ import annotations

from itertools import accumulate

from paceline.dictionary.corpus.corpus import Corpus
from paceline.dictionary.corpus.meter import Meter
from paceline.dictionary.corpus.sources import Records, Source


def split_by_document(corpus: Corpus, test_words: int) -> tuple[list[str], list[str]]:
    """Lines to build from and documents to test on, which hold at least so many words between spaces.

    Each source gives its share. Of records every so many-th is taken; of a plain file, its end. Lines that stand in a
    test document as well are left out of the others, wherever they are.
    """
    if test_words < 1:
        raise ValueError(f"a test needs at least 1 word, not {test_words}")
    meter = Meter(0, None)
    read = [(source, list(source.texts(meter))) for source in corpus.sources]
    for _, texts in read:
        meter.text(texts)
    corpus.conclude(meter)
    sizes = [sum(len(text.split()) for text in texts) for _, texts in read]
    if test_words >= sum(sizes):
        raise ValueError(
            f"the corpus has {sum(sizes)} words, and {test_words} of them for a test leave none to build from"
        )
    train: list[str] = []
    tests: list[str] = []
    for (source, texts), size in zip(read, sizes, strict=True):
        kept, apart = _share(source, texts, -(-test_words * size // sum(sizes)))
        train += [line for text in kept for line in text.splitlines()]
        tests += apart
    return _disjoint(train, tests), tests


def _share(source: Source, texts: list[str], words: int) -> tuple[list[str], list[str]]:
    if words == 0:
        return texts, []
    return _spread(texts, words) if isinstance(source, Records) else _tail(texts, words)


def _spread(texts: list[str], words: int) -> tuple[list[str], list[str]]:
    """A document is taken whenever less was taken than is due by its end, so that they come from all over."""
    sizes = [len(text.split()) for text in texts]
    kept, apart, taken = [], [], 0
    for text, size, seen in zip(texts, sizes, accumulate(sizes), strict=True):
        if taken * sum(sizes) < words * seen:
            apart.append(text)
            taken += size
        else:
            kept.append(text)
    return kept, apart


def _tail(texts: list[str], words: int) -> tuple[list[str], list[str]]:
    lines = "\n".join(texts).split("\n")
    first, taken = len(lines), 0
    while taken < words:
        first -= 1
        taken += len(lines[first].split())
    return ["\n".join(lines[:first])], ["\n".join(lines[first:])]


def _disjoint(train: list[str], tests: list[str]) -> list[str]:
    held = {line.strip() for text in tests for line in text.splitlines()}
    rest = [line for line in train if line.strip() and line.strip() not in held]
    if not rest:
        raise ValueError(
            "a test of that many words leaves no line to build from; give more text or test on fewer words"
        )
    return rest
