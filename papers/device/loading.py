"""What the start of a program takes with a model, step by step. Run it in a process of its own.

python -m papers.device.loading --model pocket
"""

from __future__ import annotations

import argparse

from paceline_lab import load_in_steps
from papers.device.findings import found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--model", default="pocket", metavar="MODEL", help="the model (pocket)")
    asked.add_argument("--device", default="cpu", metavar="DEVICE", help="where it runs (cpu)")
    asked.add_argument("--dtype", metavar="TYPE", help="its type")
    given = asked.parse_args()
    for step, seconds in load_in_steps(given.model, device=given.device, dtype=given.dtype):
        found(step, seconds=seconds)


if __name__ == "__main__":
    main()
