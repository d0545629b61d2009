"""How a part of `papers.device` says what it found: lines of standard output that are JSON objects.

``{"not_run": SENTENCE}`` says that it cannot run here. Nothing heavy is imported here, so that a part can time imports.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from typing import Any

Finding = dict[str, Any]
KEY, NOT_RUN = "what", "not_run"
"""The field of a finding that names it within its part, and the field of a sentence why there is none."""
LONGEST = 300
"""Characters of an error."""


def options_of(page: str | None) -> argparse.ArgumentParser:
    """The options that parts with a model have in common."""
    asked = argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = asked.add_argument
    add("--model", default="pocket", metavar="MODEL", help="the model that writes (pocket)")
    add("--device", default="cpu", metavar="DEVICE", help="where it runs (cpu)")
    add("--dtype", metavar="TYPE", help="its type")
    add("--max-new-tokens", "-n", type=int, default=96, metavar="N", help="tokens of a text (96)")
    add("--known", nargs="*", default=[], metavar="NAME", help="findings that need not be made again")
    return asked


def found(what: str, **facts: Any) -> None:
    """Say a finding."""
    print(json.dumps({KEY: what, **facts}), flush=True)


def not_run(why: str) -> None:
    """Say that the part cannot run here."""
    print(json.dumps({NOT_RUN: why}), flush=True)


def short(error: BaseException) -> str:
    """An error in a line."""
    first, *_ = [*str(error).splitlines(), ""]
    return f"{type(error).__name__}: {first}"[:LONGEST]


def findings_of(said: str) -> list[Finding]:
    """The lines that are JSON objects."""
    findings = list[Finding]()
    for line in said.splitlines():
        with suppress(ValueError):
            one = json.loads(line)
            if isinstance(one, dict):
                findings.append(one)
    return findings
