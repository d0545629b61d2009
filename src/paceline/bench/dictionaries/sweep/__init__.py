"""Dictionaries of every tokenizer, language, order, size and probability, emulated: `settings` says which, `folder` is
where the results are kept, `work` does one tokenizer and language, `crew` many at a time."""

from paceline.bench.dictionaries.sweep.cells import About, Cell, Swept
from paceline.bench.dictionaries.sweep.run import sweep
from paceline.bench.dictionaries.sweep.settings import Settings

__all__ = ["About", "Cell", "Settings", "Swept", "sweep"]
