"""What a round costs beyond the forward: drafting, reading logits, masks, law, judging, gathering cache rows.

    python benchmarks/round_cost.py [--model pocket+ballast:500M] [--dtype bfloat16] [--draft-model NAME] [--json]

A round is timed whole. Time inside the models' forwards, by whichever path they are computed, is taken off, and what
the engine does in there (building masks) is put back on. A draft model's forwards are drafting work, but no
bookkeeping: they stand in a column of their own.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import paceline
from paceline.targets.hf import attention
from paceline.targets.hf.target import HFTarget

PROMPT = "The old house stood at the end of the lane, and nobody who passed it in the evening cared to look up."
METHODS = {
    "plain": {"method": "plain"},
    "lookup": {"method": "lookup"},
    "assistant chain, 4": {"method": "assistant"},
    "assistant top-4, 16": {"method": "assistant:top=4", "planner": "fixed:16"},
    "assistant beams 4, 16": {"method": "assistant:beams=4", "planner": "fixed:16"},
}


class Clock:
    """Seconds spent in a function, counted from outside."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def measured(
    lm: paceline.LanguageModel, settings: dict[str, Any], clocks: dict[str, Clock], tokens: int, seed: int
) -> dict[str, float]:
    """Milliseconds per round of one text."""
    for clock in clocks.values():
        clock.seconds = 0.0
    writing = lm.write(PROMPT, max_new_tokens=tokens, temperature=0.8, seed=seed, ignore_eos=True, **settings)
    pieces = writing.pieces()
    next(pieces)  # the prompt is read, and the first round is over
    first = len(writing.session.rounds)
    for clock in clocks.values():
        clock.seconds = 0.0
    started = time.perf_counter()
    for _ in pieces:
        pass
    whole = time.perf_counter() - started
    rounds = len(writing.session.rounds) - first
    forward, draft = clocks["target"].seconds, clocks["draft"].seconds
    masks = clocks["masks"].seconds
    each = 1000 / rounds
    outside = whole - forward - draft + masks
    return {
        "round": whole * each,
        "forward": (forward - masks) * each,
        "draft_forwards": draft * each,
        "outside": outside * each,
        "share": outside / whole,
        "share_of_forward": outside / (forward - masks),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pocket+ballast:500M")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--draft-model", default="pocket-draft")
    parser.add_argument("--max-new-tokens", type=int, default=80)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lm = paceline.load(options.model, dtype=options.dtype)
    draft = paceline.load(options.draft_model, dtype=options.dtype)
    clocks = {"target": Clock(), "draft": Clock(), "masks": Clock()}
    for name, loaded in (("target", lm), ("draft", draft)):
        assert isinstance(loaded.target, HFTarget)
        for path in loaded.target.paths:
            path.run = clocks[name].around(path.run)  # type: ignore[method-assign]
    attention.View.of = clocks["masks"].around(attention.View.of)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    for repeat in range(options.repeats):
        for name, settings in METHODS.items():
            given = {**settings, "draft_model": draft} if "assistant" in name else settings
            found[name].append(measured(lm, given, clocks, options.max_new_tokens, repeat))
    print(
        f"{lm.target.name} {options.dtype}, weights {lm.target.fingerprint()}; draft {draft.target.name}; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; ms per round, medians of {options.repeats}"
    )
    print(f"{'':24} {'round':>8} {'forward':>8} {'draft model':>12} {'outside':>8} {'of round':>13} {'of forward':>15}")
    result = {}
    for name, rows in found.items():
        m = result[name] = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        print(
            f"{name:24} {m['round']:8.2f} {m['forward']:8.2f} {m['draft_forwards']:12.2f} {m['outside']:8.2f} "
            f"{100 * m['share']:12.1f}% {100 * m['share_of_forward']:14.1f}%"
        )
    if options.json:
        print(
            json.dumps(
                {
                    "model": lm.target.name,
                    "dtype": options.dtype,
                    "fingerprint": lm.target.fingerprint(),
                    "methods": result,
                }
            )
        )


if __name__ == "__main__":
    main()
