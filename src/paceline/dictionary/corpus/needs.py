"""Packages that only some of the work needs, asked for before it starts."""

from __future__ import annotations

from importlib.util import find_spec


def need(package: str, purpose: str, extra: str) -> None:
    """One sentence where a package is absent, and not an ImportError an hour later."""
    if find_spec(package) is None:
        raise ValueError(f"{purpose} needs {package}: pip install 'paceline[{extra}]'")
