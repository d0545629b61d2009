"""Races of methods, what they found, and counts without a model. The scripts of `papers/` use these names; each is
fetched on first use."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.bench.compare import Between as Between
    from paceline.bench.dictionaries.emulator import Emulated as Emulated
    from paceline.bench.dictionaries.emulator import emulate as emulate
    from paceline.bench.measure import Calibrated as Calibrated
    from paceline.bench.measure import calibrate_method as calibrate_method
    from paceline.bench.measure import race_methods as race_methods
    from paceline.bench.statistics import Estimate as Estimate
    from paceline.bench.statistics import difference as difference
    from paceline.bench.suites.running import languages_of as languages_of
    from paceline.bench.suites.running import passages as passages
    from paceline.bench.suites.sources import Sources as Sources
    from paceline.bench.suites.sources import tokenizers_in as tokenizers_in
    from paceline.bench.summary import Figures as Figures
    from paceline.bench.summary import Summary as Summary
    from paceline.dictionary import corpus, counting
    from paceline.dictionary.corpus import Corpus as Corpus
    from paceline.dictionary.corpus import open_corpus as open_corpus
    from paceline.dictionary.counting import Counts as Counts
    from paceline.targets.replay import open_vocabulary as open_vocabulary
    from paceline.vocabulary import Vocabulary as Vocabulary

    count_ngrams, split_corpus = counting.count, corpus.split_by_document

_HOME = {
    "Between": "paceline.bench.compare",
    "Calibrated": "paceline.bench.measure",
    "Corpus": "paceline.dictionary.corpus",
    "Counts": "paceline.dictionary.counting",
    "Emulated": "paceline.bench.dictionaries.emulator",
    "Estimate": "paceline.bench.statistics",
    "Figures": "paceline.bench.summary",
    "Sources": "paceline.bench.suites.sources",
    "Summary": "paceline.bench.summary",
    "Vocabulary": "paceline.vocabulary",
    "calibrate_method": "paceline.bench.measure",
    "count_ngrams": "paceline.dictionary.counting:count",
    "difference": "paceline.bench.statistics",
    "emulate": "paceline.bench.dictionaries.emulator",
    "languages_of": "paceline.bench.suites.running",
    "open_corpus": "paceline.dictionary.corpus",
    "open_vocabulary": "paceline.targets.replay",
    "passages": "paceline.bench.suites.running",
    "race_methods": "paceline.bench.measure",
    "split_corpus": "paceline.dictionary.corpus:split_by_document",
    "tokenizers_in": "paceline.bench.suites.sources",
}
"""Exported name -> the module that defines it, and its name there where that is another."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'paceline.bench' has no attribute {name!r}")
    module, _, there = _HOME[name].partition(":")
    value: object = getattr(import_module(module), there or name)
    globals()[name] = value
    return value
