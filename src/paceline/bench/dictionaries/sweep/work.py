"""The work of a sweep: the n-grams of one language, and all dictionaries of one tokenizer in one language."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.bench.dictionaries.emulator import Dictionaries, Script
from paceline.bench.dictionaries.sweep.cells import About, Cell
from paceline.bench.dictionaries.sweep.folder import Folder, Known
from paceline.bench.dictionaries.sweep.settings import Settings
from paceline.dictionary.corpus import Corpus, open_corpus, split_by_document
from paceline.dictionary.counting import count
from paceline.dictionary.lines import Advance
from paceline.vocabulary import Vocabulary


def count_language(folder: Folder, language: str, advance: Advance | None = None) -> None:
    """Keep some documents apart and count the rest."""
    settings = folder.settings
    train, documents = split_by_document(open_corpus(settings.texts[language]), settings.test_words)
    known = Known(sum(len(line.split()) for line in train), documents)
    counts = count(Corpus.of_lines(train), order=max(settings.orders), limit=settings.ngrams, advance=advance)
    folder.keep_counts(language, counts, known)


def measure_pair(folder: Folder, pair: tuple[str, str]) -> None:
    """Every dictionary of a tokenizer in a language, as far as it is missing."""
    tokenizer, language = pair
    known = folder.known(language)
    from paceline.dictionary.running import spelled
    from paceline.dictionary.statistics import statistics
    from paceline.targets.replay import open_vocabulary

    vocabulary = open_vocabulary(folder.settings.tokenizers[tokenizer])
    script = Script(vocabulary.encode_all(known.documents))
    if not script.size:
        raise ValueError(f"{tokenizer} makes no token of the {language} text, for it drops what it does not know")
    about = _about(pair, vocabulary, known, script)
    grams = spelled(folder.counts(language).grams, vocabulary)
    for order in folder.missing(pair):
        tables = Dictionaries.over(script, statistics(grams[:order]), folder.settings.budget)
        folder.keep_cells(about, order, list(_cells(pair, order, tables, folder.settings)))


def _about(pair: tuple[str, str], vocabulary: Vocabulary, known: Known, script: Script) -> About:
    from paceline.bench.fertility import fertility

    lines = [line for text in known.documents for line in text.splitlines()]
    return About(
        tokenizer=pair[0],
        language=pair[1],
        fingerprint=vocabulary.fingerprint,
        train_words=known.train_words,
        test_words=known.test_words,
        test_tokens=script.size,
        fertility=fertility(vocabulary, lines).per_word,
    )


def _cells(pair: tuple[str, str], order: int, tables: Dictionaries, settings: Settings) -> Iterator[Cell]:
    for least in settings.min_probabilities:
        for size, (entries, tally) in zip(settings.sizes, tables.tallies(least, settings.sizes), strict=True):
            yield Cell(
                tokenizer=pair[0],
                language=pair[1],
                order=order,
                size=size,
                min_probability=least,
                entries=entries,
                tally=tally,
            )
