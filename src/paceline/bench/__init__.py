"""Races of methods, their results, counts without a model, and atomic file writes. The scripts of `papers/` use these
names, and `make_drafter` where they change a method's drafts; each is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.bench.compare import Between as Between
    from paceline.bench.dictionaries import Emulated as Emulated
    from paceline.bench.dictionaries import emulate as emulate
    from paceline.bench.early_exit import Stop as Stop
    from paceline.bench.early_exit import foreseen as foreseen
    from paceline.bench.energy import open_meter as open_meter
    from paceline.bench.loading import load_in_steps as load_in_steps
    from paceline.bench.machine import sitting as sitting
    from paceline.bench.measure import Calibration as Calibration
    from paceline.bench.measure import calibrate_method as calibrate_method
    from paceline.bench.measure import race_methods as race_methods
    from paceline.bench.overlap import Cell as Cell
    from paceline.bench.overlap import Trial as Trial
    from paceline.bench.peers import vllm
    from paceline.bench.peers.transformers import Watch as Watch
    from paceline.bench.peers.transformers import generated as generated
    from paceline.bench.peers.weights import ordinary as ordinary
    from paceline.bench.run import directory
    from paceline.bench.statistics import Estimate as Estimate
    from paceline.bench.statistics import difference as difference
    from paceline.bench.suites import Prompt as Prompt
    from paceline.bench.suites import as_lines as as_lines
    from paceline.bench.suites import open_suite as open_suite
    from paceline.bench.suites.running import languages_of as languages_of
    from paceline.bench.suites.running import passages as passages
    from paceline.bench.suites.sources import Sources as Sources
    from paceline.bench.suites.sources import tokenizers_in as tokenizers_in
    from paceline.bench.summary import Figures as Figures
    from paceline.bench.summary import Summary as Summary
    from paceline.bench.waiting import Waiting as Waiting
    from paceline.dictionary import corpus, counting
    from paceline.dictionary.corpus import Corpus as Corpus
    from paceline.dictionary.corpus import open_corpus as open_corpus
    from paceline.dictionary.counting import Counts as Counts
    from paceline.dictionary.endings import Rule as Rule
    from paceline.drafters import make_drafter as make_drafter
    from paceline.files import terminable as terminable
    from paceline.files import write_whole as write_whole
    from paceline.integrations.vllm import Proposer as Proposer
    from paceline.targets.replay import open_vocabulary as open_vocabulary
    from paceline.vocabulary import Vocabulary as Vocabulary

    VLLMEngine = vllm.Engine
    count_ngrams, split_corpus, read_run = counting.count, corpus.split_by_document, directory.read

_HOME = {
    name: module
    for module, names in {
        "paceline.bench.compare": "Between",
        "paceline.bench.dictionaries": "Emulated emulate",
        "paceline.bench.early_exit": "Stop foreseen",
        "paceline.bench.energy": "open_meter",
        "paceline.bench.loading": "load_in_steps",
        "paceline.bench.machine": "sitting",
        "paceline.bench.measure": "Calibration calibrate_method race_methods",
        "paceline.bench.overlap": "Cell Trial",
        "paceline.bench.peers.transformers": "Watch generated",
        "paceline.bench.peers.vllm:Engine": "VLLMEngine",
        "paceline.bench.peers.weights": "ordinary",
        "paceline.bench.run.directory:read": "read_run",
        "paceline.bench.statistics": "Estimate difference",
        "paceline.bench.suites": "Prompt as_lines open_suite",
        "paceline.bench.suites.running": "languages_of passages",
        "paceline.bench.suites.sources": "Sources tokenizers_in",
        "paceline.bench.summary": "Figures Summary",
        "paceline.bench.waiting": "Waiting",
        "paceline.dictionary.corpus": "Corpus open_corpus",
        "paceline.dictionary.corpus:split_by_document": "split_corpus",
        "paceline.dictionary.counting": "Counts",
        "paceline.dictionary.counting:count": "count_ngrams",
        "paceline.dictionary.endings": "Rule",
        "paceline.drafters": "make_drafter",
        "paceline.files": "terminable write_whole",
        "paceline.integrations.vllm": "Proposer",
        "paceline.targets.replay": "open_vocabulary",
        "paceline.vocabulary": "Vocabulary",
    }.items()
    for name in names.split()
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
