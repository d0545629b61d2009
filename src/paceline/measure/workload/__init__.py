"""Suites: what is written when speed is measured."""

from paceline.measure.workload.prompts import Prompt, Workload
from paceline.measure.workload.suites import SUITES, open_suite
from paceline.measure.workload.template import encode

__all__ = ["SUITES", "Prompt", "Workload", "encode", "open_suite"]
