"""What the start of a program takes with a model, step by step. Run it in a process of its own.

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
