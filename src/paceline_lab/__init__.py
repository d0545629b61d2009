"""Races of methods, their results, counts without a model, and atomic file writes. The scripts of `papers/` use these
names, and `make_drafter` where they change a method's drafts; each is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.dictionary.header import EntryRule as EntryRule
    from paceline.drafters import make_drafter as make_drafter
    from paceline.files import terminable as terminable
    from paceline.files import write_whole as write_whole
    from paceline.integrations.vllm import Proposer as Proposer
    from paceline.targets.replay import open_vocabulary as open_vocabulary
    from paceline.targets.torchrun import launched as launched
    from paceline.vocabulary import Vocabulary as Vocabulary
    from paceline_lab.bench.branches import BranchedRound as BranchedRound
    from paceline_lab.bench.branches import branched_rounds as branched_rounds
    from paceline_lab.bench.compare import Between as Between
    from paceline_lab.bench.early_exit import Stop as Stop
    from paceline_lab.bench.early_exit import foreseen as foreseen
    from paceline_lab.bench.energy import open_meter as open_meter
    from paceline_lab.bench.loading import load_in_steps as load_in_steps
    from paceline_lab.bench.machine import sitting as sitting
    from paceline_lab.bench.peers import vllm
    from paceline_lab.bench.peers.transformers import Watch as Watch
    from paceline_lab.bench.peers.transformers import generated as generated
    from paceline_lab.bench.peers.weights import ordinary as ordinary
    from paceline_lab.bench.run import directory
    from paceline_lab.bench.statistics import Estimate as Estimate
    from paceline_lab.bench.statistics import difference as difference
    from paceline_lab.bench.suites import Prompt as Prompt
    from paceline_lab.bench.suites import as_lines as as_lines
    from paceline_lab.bench.suites import open_suite as open_suite
    from paceline_lab.bench.suites.running import languages_of as languages_of
    from paceline_lab.bench.suites.running import passages as passages
    from paceline_lab.bench.suites.sources import Sources as Sources
    from paceline_lab.bench.suites.sources import tokenizers_in as tokenizers_in
    from paceline_lab.bench.summary import Figures as Figures
    from paceline_lab.bench.summary import Summary as Summary
    from paceline_lab.bench.waiting import Waiting as Waiting
    from paceline_lab.machine.overlap import OverlapCell as OverlapCell
    from paceline_lab.machine.overlap import OverlapTrial as OverlapTrial
    from paceline_lab.machine.overlap import RoundParts as RoundParts
    from paceline_lab.measure import Calibration as Calibration
    from paceline_lab.measure import calibrate_method as calibrate_method
    from paceline_lab.measure import race_methods as race_methods
    from paceline_make.dictionary import counting
    from paceline_make.dictionary.counting import NgramCounts as NgramCounts
    from paceline_make.dictionary.emulator import Emulated as Emulated
    from paceline_make.dictionary.emulator import emulate as emulate
    from paceline_make.texts import corpus
    from paceline_make.texts.corpus import Corpus as Corpus
    from paceline_make.texts.corpus import open_corpus as open_corpus

    VLLMEngine = vllm.Engine
    count_ngrams, split_corpus, read_run = counting.count, corpus.split_by_document, directory.read

_HOME = {
    name: module
    for module, names in {
        "paceline.dictionary.header": "EntryRule",
        "paceline.drafters": "make_drafter",
        "paceline.files": "terminable write_whole",
        "paceline.integrations.vllm": "Proposer",
        "paceline.targets.replay": "open_vocabulary",
        "paceline.targets.torchrun": "launched",
        "paceline.vocabulary": "Vocabulary",
        "paceline_lab.bench.compare": "Between",
        "paceline_lab.bench.branches": "BranchedRound branched_rounds",
        "paceline_lab.bench.early_exit": "Stop foreseen",
        "paceline_lab.bench.energy": "open_meter",
        "paceline_lab.bench.loading": "load_in_steps",
        "paceline_lab.bench.machine": "sitting",
        "paceline_lab.measure": "Calibration calibrate_method race_methods",
        "paceline_lab.bench.peers.transformers": "Watch generated",
        "paceline_lab.bench.peers.vllm:Engine": "VLLMEngine",
        "paceline_lab.bench.peers.weights": "ordinary",
        "paceline_lab.bench.run.directory:read": "read_run",
        "paceline_lab.bench.statistics": "Estimate difference",
        "paceline_lab.bench.suites": "Prompt as_lines open_suite",
        "paceline_lab.bench.suites.running": "languages_of passages",
        "paceline_lab.bench.suites.sources": "Sources tokenizers_in",
        "paceline_lab.bench.summary": "Figures Summary",
        "paceline_lab.bench.waiting": "Waiting",
        "paceline_lab.machine.overlap": "OverlapCell OverlapTrial RoundParts",
        "paceline_make.dictionary.counting": "NgramCounts",
        "paceline_make.dictionary.counting:count": "count_ngrams",
        "paceline_make.dictionary.emulator": "Emulated emulate",
        "paceline_make.texts.corpus": "Corpus open_corpus",
        "paceline_make.texts.corpus:split_by_document": "split_corpus",
    }.items()
    for name in names.split()
}
"""Exported name -> the module that defines it, and its name there where that is another."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'paceline_lab' has no attribute {name!r}")
    module, _, there = _HOME[name].partition(":")
    value: object = getattr(import_module(module), there or name)
    globals()[name] = value
    return value
