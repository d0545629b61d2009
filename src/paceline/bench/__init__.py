"""Measuring: suites of prompts, the race between methods and peers, reading of runs, and the report."""
