"""Joules: measured where the machine has a meter, estimated from a stated power where not, and always labelled."""

from paceline.bench.energy.choose import KINDS, fitting_kinds, open_meter
from paceline.bench.energy.meter import Meter, Unmetered

__all__ = ["KINDS", "Meter", "Unmetered", "fitting_kinds", "open_meter"]
