"""Dictionaries of every order, rule, size and least probability, emulated on text that they were not counted on.

    python -m papers.dictspec sweep --out runs/dictionaries

Tables 2 and 4 and Figures 1 to 3 are read from the folder that this writes. It holds settings.json, the n-grams of each
language and the text that was kept apart (counts/LANG.parquet and .json), and TOKENIZER--LANG.jsonl with a line for
each dictionary. Every file appears whole, so the same command goes on with a sweep that was stopped.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline_lab import (
    Corpus,
    EntryRule,
    NgramCounts,
    Sources,
    count_ngrams,
    emulate,
    open_corpus,
    open_vocabulary,
    split_corpus,
)
from papers.dictspec.data import NO_TEXTS, fertility, parallel, tokenizers
from papers.dictspec.numbers import MIN_PROBABILITIES, ORDERS, SIZES
from papers.driver import Given, by_name, write
from papers.report import Report

if TYPE_CHECKING:
    import pandas as pd

    from paceline_lab import Vocabulary

TOKENIZERS = ("mistral-v3", "mistral-nemo-tekken", "llama3", "qwen2-2.5-3", "gpt2")
LANGUAGES = ("uk", "crh-Cyrl", "crh-Latn")
"""The defaults from the data folder: the paper's languages, and five tokenizers, as many as the paper has."""
SETTINGS = "settings.json"
Pair = tuple[str, str]


TEST_WORDS, NGRAMS, BUDGET = 100_000, 2_000_000, 8


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every choice that decides the results."""

    tokenizers: Mapping[str, str]
    """Name -> where it is opened from."""
    texts: Mapping[str, Sequence[str]]
    """Language -> the sources of its corpus."""
    parallel: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Language -> files of a text that says the same in many languages, for its fertility."""
    rules: Sequence[str] = tuple(EntryRule)
    orders: Sequence[int] = ORDERS
    sizes: Sequence[int] = SIZES
    min_probabilities: Sequence[float] = MIN_PROBABILITIES
    test_words: int = TEST_WORDS
    ngrams: int = NGRAMS
    budget: int = BUDGET

    @property
    def pairs(self) -> list[Pair]:
        return [(tokenizer, language) for language in self.texts for tokenizer in self.tokenizers]

    def identity(self) -> dict[str, Any]:
        """As it is kept: tokenizers by their fingerprints and texts by what they say."""
        prints = {name: open_vocabulary(place).fingerprint for name, place in self.tokenizers.items()}
        said = {
            name: {language: _checksum(sources) for language, sources in getattr(self, name).items()}
            for name in ("texts", "parallel")
        }
        found: dict[str, Any] = json.loads(json.dumps(vars(self) | {"tokenizers": prints} | said))
        return found


def _checksum(sources: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for lines in open_corpus(sources).lines():
        digest.update("".join(f"{line}\n" for line in lines).encode())
    return digest.hexdigest()[:16]


def made(out: Path, settings: Settings, workers: int, tell: Callable[[str], None] = print) -> None:
    """Make every file that is missing."""
    _begin(out, settings)
    missing = [pair for pair in settings.pairs if not cells_of(out, pair).exists()]
    words = {language: _counted(out, settings, language, tell) for language in {pair[1]: None for pair in missing}}
    missing.sort(key=lambda pair: -words[pair[1]])  # the longest first, so that no worker is left alone at the end
    jobs = [(out, settings, pair) for pair in missing]
    for done, (tokenizer, language) in enumerate(_each(jobs, workers), start=1):
        tell(f"{tokenizer} in {language}: {done} of {len(jobs)}")


def _begin(out: Path, settings: Settings) -> None:
    """Make the folder, or see that it holds this very sweep."""
    wanted, file = settings.identity(), out / SETTINGS
    if out.exists() and not file.exists() and any(not one.name.startswith(".paceline-") for one in out.iterdir()):
        raise ValueError(f"{out} is there and is no sweep; give another --out")
    if not file.exists():
        write(file, json.dumps(wanted, indent=1, ensure_ascii=False))
    known = json.loads(file.read_text(encoding="utf8"))
    if other := [name for name in wanted if known.get(name) != wanted[name]]:
        name = other[0]
        raise ValueError(
            f"{out} holds another sweep ({name}: was {json.dumps(known.get(name))} and is {json.dumps(wanted[name])}); "
            "give another --out, or the settings of it"
        )


def _counted(out: Path, settings: Settings, language: str, tell: Callable[[str], None]) -> int:
    """Keep some documents apart and count the rest. Returns how many words there are to count."""
    counts, held = _counts_of(out, language)
    if not held.exists():
        tell(f"counting words of {language}")
        counts.parent.mkdir(exist_ok=True)
        train, documents = split_corpus(open_corpus(settings.texts[language]), settings.test_words)
        count_ngrams(Corpus.of_lines(train), order=max(settings.orders), limit=settings.ngrams).save(counts)
        write(held, json.dumps({"train_words": _words(train), "documents": documents}, ensure_ascii=False))
    return int(json.loads(held.read_text(encoding="utf8"))["train_words"])


def measure(job: tuple[Path, Settings, Pair]) -> Pair:
    """Every dictionary of a tokenizer in a language."""
    out, settings, pair = job
    counts, held = _counts_of(out, pair[1])
    known = json.loads(held.read_text(encoding="utf8"))
    vocabulary, documents = open_vocabulary(settings.tokenizers[pair[0]]), known["documents"]
    lines = [line for text in documents for line in text.splitlines()]
    about = {
        "tokenizer": pair[0],
        "language": pair[1],
        "train_words": known["train_words"],
        "test_words": _words(documents),
        "fertility": fertility(vocabulary, lines).per_word,
        "parallel": _parallel(settings, vocabulary, pair[1]),
    }
    found = emulate(
        vocabulary,
        NgramCounts.load(counts),
        documents,
        orders=settings.orders,
        sizes=settings.sizes,
        min_probabilities=settings.min_probabilities,
        rules=list(map(EntryRule, settings.rules)),
        budget=settings.budget,
    )
    rows = [json.dumps(about | one.as_dict(), ensure_ascii=False) for one in found]
    write(cells_of(out, pair), "".join(f"{row}\n" for row in rows))
    return pair


def _parallel(settings: Settings, vocabulary: Vocabulary, language: str) -> float | None:
    """The fertility of the parallel text, where the language has one."""
    files = settings.parallel.get(language)
    return None if files is None else fertility(vocabulary, list(chain(*open_corpus(files).lines()))).per_word


def _each(jobs: Sequence[tuple[Path, Settings, Pair]], workers: int) -> Iterator[Pair]:
    """Pairs as they are done, many at a time. However this ends, no process is left."""
    if min(workers, len(jobs)) <= 1:
        yield from map(measure, jobs)
        return
    others = set(multiprocessing.active_children())
    # started as new processes rather than split off, for tokenizers and the counting engine have threads
    pool = ProcessPoolExecutor(min(workers, len(jobs)), multiprocessing.get_context("spawn"), _alone)
    try:
        pairs = [pool.submit(measure, job) for job in jobs]
        # The pool looks at the workers it had when a job came, and starts another only after that: without one more
        # job, the death of the last worker would be seen when another one has finished, hours later.
        pool.submit(int)
        for done in as_completed(pairs):
            yield done.result()
    except BrokenProcessPool:
        raise ValueError(
            "a process was killed, perhaps for want of memory; give --workers 1, and the same sweep goes on"
        ) from None
    finally:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        pool.shutdown(cancel_futures=True)


def _alone() -> None:
    """A worker ignores Ctrl-C, since the process that started it stops it, and ends with that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker was started"

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def read(out: Path) -> pd.DataFrame:
    """A row for each dictionary of a whole sweep, in the order of its settings."""
    import pandas as pd

    file = out / SETTINGS
    if not file.exists():
        raise ValueError(f"{out} holds no sweep; make one with python -m papers.dictspec sweep --out {out}")
    settings = json.loads(file.read_text(encoding="utf8"))
    if "rules" not in settings:
        raise ValueError(f"{out} was made before sweeps had two rules for entries; make it again in another folder")
    files = [cells_of(out, (name, language)) for language in settings["texts"] for name in settings["tokenizers"]]
    if missing := [one for one in files if not one.exists()]:
        raise ValueError(f"{missing[0]} is missing; the same sweep makes it")
    cells = pd.concat([pd.read_json(one, lines=True) for one in files], ignore_index=True)
    return cells.assign(pair=cells.tokenizer + " " + cells.language)


def by_rule(cells: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The cells of each rule, and how the rule is named in a sentence."""
    for rule, its in cells.groupby("rule", sort=False):
        yield f"entries {rule}", its


def best(cells: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Of each group the dictionary of the fewest steps; of equals the smallest, then the surest."""
    ranked = cells.sort_values(["steps", "size", "min_probability", "order"], ascending=[True, True, False, True])
    return ranked.groupby(["pair", *by], sort=False).head(1).sort_index()


def ngrams(order: int) -> str:
    """The paper's name for dictionaries of n-grams of up to ``order`` words: n1, n12, n123."""
    return "n" + "".join(map(str, range(1, order + 1)))


def cells_of(out: Path, pair: Pair) -> Path:
    return out / f"{_slug(pair[0])}--{_slug(pair[1])}.jsonl"


def _counts_of(out: Path, language: str) -> tuple[Path, Path]:
    return out / "counts" / f"{_slug(language)}.parquet", out / "counts" / f"{_slug(language)}.json"


def _slug(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-")


def _words(texts: Iterable[str]) -> int:
    return sum(len(text.split()) for text in texts)


def sweep(given: Given) -> Report:
    """Dictionaries of every order, rule, size and least probability, emulated on text that they were not counted on.

    Tables 2 and 4 and Figures 1 to 3 are read from the folder that this writes. Every file appears whole, so the same
    command goes on with a sweep that was stopped.
    """
    sources = Sources(given.data)
    settings = Settings(
        tokenizers=tokenizers(given.tokenizers or None, sources, TOKENIZERS),
        texts=(texts := _texts(given.texts, sources)),
        parallel=_parallel_texts(given.parallel, sources, texts),
        rules=[rule for rule in EntryRule if rule in given.entries],
        orders=sorted(set(given.orders)),
        sizes=sorted(set(given.sizes)),
        min_probabilities=sorted(set(given.min_probs)),
        test_words=given.test_words,
        ngrams=given.ngrams,
        budget=given.budget,
    )
    made(given.out, settings, given.workers, lambda doing: print(doing, file=sys.stderr))
    count = f"{len(settings.pairs)} pairs of a tokenizer and a language are in {given.out}"
    return Report("DictSpec: a sweep of dictionaries", notes=[count])


def _texts(named: Sequence[tuple[str, Path]], sources: Sources) -> dict[str, list[str]]:
    if named:
        return {language: list(map(str, files)) for language, files in by_name(named).items()}
    folders = {language: sources.find(f"text/{language}") for language in LANGUAGES}
    found = {one: sorted(map(str, folder.glob("*.txt"))) for one, folder in folders.items() if folder is not None}
    if not found:
        raise ValueError(NO_TEXTS)
    return found


def _parallel_texts(
    named: Sequence[tuple[str, Path]], sources: Sources, languages: Iterable[str]
) -> dict[str, list[str]]:
    found = by_name(named) or parallel(sources)
    return {language: list(map(str, found[language])) for language in languages if language in found}
