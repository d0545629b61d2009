"""Measures the seconds of rounds and the tokens of drafts, for a profile."""

from paceline_lab.machine.calibrate.run import Calibrator, Method, Plan

__all__ = ["Calibrator", "Method", "Plan"]
