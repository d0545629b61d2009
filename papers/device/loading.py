"""The seconds that a program takes to start with a model, step by step. Run it in a fresh process.

python -m papers.device.loading --model pocket
"""

from __future__ import annotations

from paceline_lab import load_in_steps
from papers.device.findings import found, options_of


def main() -> None:
    given = options_of(__doc__).parse_args()
    for step, seconds in load_in_steps(given.model, device=given.device, dtype=given.dtype):
        found(step, seconds=seconds)


if __name__ == "__main__":
    main()
