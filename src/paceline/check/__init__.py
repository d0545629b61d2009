"""Conformance: a check on any model that speculation leaves its text alone.

`run` holds the check, `cases` what is tried, `adversaries` drafts made to find mistakes, `record` plain decoding's text
and its comparison with transformers, `walk` the way along it, `rescore` near tie or bug, `statistics` the rejection
rule, `report` what was found. `families` checks transformers' model types on tiny models.
"""

from paceline.check.adversaries import ADVERSARIES
from paceline.check.cases import CHOOSING, SIZES, fixed
from paceline.check.report import Report
from paceline.check.run import (
    ASSISTED,
    BATCHES,
    METHODS,
    WITH_DICTIONARY,
    WITH_HEAD,
    Checker,
    beside,
    completing,
    trained,
)

__all__ = [
    "ADVERSARIES",
    "ASSISTED",
    "BATCHES",
    "CHOOSING",
    "METHODS",
    "SIZES",
    "WITH_DICTIONARY",
    "WITH_HEAD",
    "Checker",
    "Report",
    "beside",
    "completing",
    "fixed",
    "trained",
]
