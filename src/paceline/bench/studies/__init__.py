"""The tables and figures of the UniSpec paper, repeated on this machine: `base` says what a study is."""

from paceline.bench.studies.base import Study
from paceline.bench.studies.device import STUDIES as DEVICE
from paceline.bench.studies.methods import STUDIES as METHODS
from paceline.bench.studies.sizes import STUDIES as SIZES
from paceline.bench.studies.texts import STUDIES as TEXTS

STUDIES: dict[str, Study] = {study.name: study for study in (*METHODS, *SIZES, *TEXTS, *DEVICE)}
"""By their names."""
