"""Races of methods and of other engines, what was measured, and reports of it."""
