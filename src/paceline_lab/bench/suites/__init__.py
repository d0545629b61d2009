"""Suites: sets of prompts for benchmarks."""

from paceline_lab.bench.suites.prompts import Prompt, Workload, encode
from paceline_lab.bench.suites.suites import SUITES, as_lines, is_here, open_suite

__all__ = ["SUITES", "Prompt", "Workload", "as_lines", "encode", "is_here", "open_suite"]
