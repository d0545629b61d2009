"""Conformance: speculation must leave a model's text alone, and here is how to find out on any model.

`run` holds the check, `cases` what is tried, `planned` who sizes drafts, `adversaries` drafts made to find mistakes,
`walk` the way along plain decoding's text, alone and in company, `rescore` near tie or bug, `statistics` the rejection
rule, `report` what was found.
"""

from paceline.check.planned import CHOOSING, SIZES, fixed
from paceline.check.report import Report
from paceline.check.run import (
    ADVERSARIES,
    ASSISTED,
    BATCHES,
    METHODS,
    WITH_DICTIONARY,
    Checker,
    completing,
)

__all__ = [
    "ADVERSARIES",
    "ASSISTED",
    "BATCHES",
    "CHOOSING",
    "METHODS",
    "SIZES",
    "WITH_DICTIONARY",
    "Checker",
    "Report",
    "completing",
    "fixed",
]
