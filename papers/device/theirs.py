"""transformers' own decoding on the same weights: as it is, and with a static cache, called and compiled.

    python -m papers.device.theirs --model pocket -n 32

Texts are greedy. The numbers are those of the last text; the seconds of the first one show what compiling costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import torch

import paceline
from paceline_lab import Watch, generated, open_suite, ordinary
from papers.device.findings import found, options_of, short
from papers.driver import script

OURS = "paceline, plain"
STATIC: dict[str, Any] = {"cache_implementation": "static"}
WAYS: Mapping[str, dict[str, Any]] = {
    "transformers, eager": {},
    "transformers, static cache": {**STATIC, "disable_compile": True},
    "transformers, static cache, compiled": STATIC,
}
"""Way -> arguments of `generate`, which compiles where it has a static cache on a GPU."""
ON_GPU = "transformers, static cache, compiled"
TEXTS = 3


def options() -> argparse.Namespace:
    return options_of(__doc__).parse_args()


def ours(lm: paceline.LanguageModel, prompt: str, tokens: int) -> dict[str, float]:
    """Plain decoding of the same model."""
    how: dict[str, Any] = {"method": "plain", "temperature": 0.0, "ignore_eos": True, "max_new_tokens": tokens}
    first, *_, last = [lm.generate(prompt, **how).totals for _ in range(TEXTS)]
    return figures(first.seconds_prefill + first.seconds, last.seconds / last.rounds)


def of_transformers(model: Any, prompt: Any, tokens: int, way: dict[str, Any]) -> dict[str, float]:
    """Between the first token and the last there is a forward for each."""
    took = list[float]()
    for _ in range(TEXTS):
        began = time.perf_counter()
        watch = Watch(time.perf_counter, began)
        generated(model, prompt, tokens, frozenset(), {"do_sample": False, "streamer": watch, **way})
        took.append(time.perf_counter() - began)
    (count, start), (most, end) = watch.deliveries[0], watch.deliveries[-1]
    return figures(took[0], (end - start) / max(1, most - count))


def figures(first: float, forward: float) -> dict[str, float]:
    return {"first_seconds": first, "milliseconds": 1000 * forward, "tokens_per_second": 1 / forward}


def main() -> None:
    given = options()
    lm = paceline.load(given.model, device=given.device, dtype=given.dtype)
    prompt = open_suite("stories", languages=["en"], limit=1).prompts[0].turns[0]
    if OURS not in given.known:
        found(OURS, **ours(lm, prompt, given.max_new_tokens))
    model, tokens = ordinary(lm.target), lm.encode(prompt)
    del lm
    for name, way in WAYS.items():
        if name in given.known:
            continue
        if name == ON_GPU and torch.device(given.device).type != "cuda":
            found(name, failed="transformers compiles on a GPU alone")
            continue
        try:
            found(name, **of_transformers(model, tokens, given.max_new_tokens, way))
        except Exception as error:
            found(name, failed=short(error))


if __name__ == "__main__":
    script(main)
