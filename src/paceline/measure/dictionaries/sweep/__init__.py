"""Dictionaries of every tokenizer, language, order, size and probability, emulated: `settings` says which, `folder` is
where the results are kept, `work` does one tokenizer and language, `crew` many at a time."""

from paceline.measure.dictionaries.sweep.cells import About, Cell, Swept
from paceline.measure.dictionaries.sweep.run import sweep
from paceline.measure.dictionaries.sweep.settings import Settings

__all__ = ["About", "Cell", "Settings", "Swept", "sweep"]
