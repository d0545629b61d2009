"""Joules: measured where the machine has a meter, estimated from a stated power where not, and always labelled."""

from paceline.measure.energy.meter import Meter

__all__ = ["Meter"]
