"""The tables and figures of the UniSpec paper, repeated on this machine: `base` says what a study is."""

from paceline.measure.studies.base import Study
from paceline.measure.studies.device import STUDIES as DEVICE
from paceline.measure.studies.methods import STUDIES as METHODS
from paceline.measure.studies.sizes import STUDIES as SIZES
from paceline.measure.studies.texts import STUDIES as TEXTS

STUDIES: dict[str, Study] = {study.name: study for study in (*METHODS, *SIZES, *TEXTS, *DEVICE)}
"""By their names."""
