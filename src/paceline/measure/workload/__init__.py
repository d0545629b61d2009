"""Suites: what is written when speed is measured."""

from paceline.measure.workload.prompts import Prompt, Workload

__all__ = ["Prompt", "Workload"]
