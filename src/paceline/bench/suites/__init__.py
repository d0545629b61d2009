"""Suites: what is written when speed is measured."""

from paceline.bench.suites.prompts import Prompt, Workload
from paceline.bench.suites.suites import SUITES, open_suite
from paceline.bench.suites.template import encode

__all__ = ["SUITES", "Prompt", "Workload", "encode", "open_suite"]
