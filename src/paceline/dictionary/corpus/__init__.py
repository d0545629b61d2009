"""Text to build a dictionary from: files, folders and data sets, read as one stream of lines."""

from paceline.dictionary.corpus.corpus import Corpus, open_corpus
from paceline.dictionary.corpus.meter import Advance
from paceline.dictionary.corpus.split import split_by_document

__all__ = ["Advance", "Corpus", "open_corpus", "split_by_document"]
