"""Measuring what rounds take and what drafts bring, for a profile to keep."""

from paceline.bench.calibrate.run import Calibrator, Method, Plan

__all__ = ["Calibrator", "Method", "Plan"]
