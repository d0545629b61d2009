"""Conformance: a check on any model that speculation leaves its text alone.

`run` holds the check, `cases` what is tried, `adversaries` drafts made to find mistakes, `record` plain decoding's text
and its comparison with transformers, `walk` the way along it, `rescore` near tie or bug, `report` what was found; the
evidence about a law is `paceline.testing`'s. `families` checks transformers' model types on tiny models.
"""

from paceline_lab.check.adversaries import ADVERSARIES
from paceline_lab.check.cases import CHOOSING, DRAFT_SIZES, fixed
from paceline_lab.check.report import Report
from paceline_lab.check.run import (
    ASSISTED,
    BATCHES,
    CHECKED_METHODS,
    WITH_DICTIONARY,
    Checker,
    beside,
    completing,
    trained,
)

__all__ = [
    "ADVERSARIES",
    "ASSISTED",
    "BATCHES",
    "CHECKED_METHODS",
    "CHOOSING",
    "DRAFT_SIZES",
    "WITH_DICTIONARY",
    "Checker",
    "Report",
    "beside",
    "completing",
    "fixed",
    "trained",
]
