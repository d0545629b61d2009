"""What the law costs per emitted token at a vocabulary of 150,000: logits to law, and the race that draws from it.

    python benchmarks/law_cost.py [--vocabulary 150000] [--repeats 200] [--json]

The last line with --json is one object: median milliseconds by setting and row.
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch

from paceline.law import KeyedDice, Law, Noise, Sampling

HISTORY = 2000

SETTINGS = {
    "greedy": Sampling(),
    "t=0.8 top-p 0.9": Sampling(temperature=0.8, top_p=0.9),
    "t=0.8 top-k 50": Sampling(temperature=0.8, top_k=50),
    "t=0.8 min-p 0.05": Sampling(temperature=0.8, min_p=0.05),
    "t=1": Sampling(temperature=1.0),
    "t=0.8 top-p 0.9, penalties": Sampling(
        temperature=0.8, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.3
    ),
}


def rows(vocabulary: int) -> dict[str, torch.Tensor]:
    """Rows of logits from sure of itself to knowing nothing."""
    noise = np.random.default_rng(0)
    spread = noise.normal(0, 3, vocabulary).astype(np.float32)
    peaked, sure = spread.copy(), spread.copy()
    peaked[noise.choice(vocabulary, 8, replace=False)] += 12
    sure[7] += 30
    flat = noise.normal(0, 0.05, vocabulary).astype(np.float32)
    named = {"sure": sure, "a few peaks": peaked, "std 3": spread, "nearly flat": flat}
    return {name: torch.from_numpy(row) for name, row in named.items()}


def milliseconds(row: torch.Tensor, sampling: Sampling, tokens: np.ndarray, repeats: int) -> float:
    """Median over positions, each with its own noise."""
    law, dice = Law(sampling, len(tokens) // 2), KeyedDice(Noise(0))
    taken = []
    for index in range(repeats):
        started = time.perf_counter()
        dice.choose(index, law.distribution(row, tokens))
        taken.append(1000 * (time.perf_counter() - started))
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tokens = np.random.default_rng(1).integers(0, options.vocabulary, HISTORY)
    table = rows(options.vocabulary)
    print(f"vocabulary {options.vocabulary}, float32, {torch.get_num_threads()} threads, ms per emitted token (median)")
    print(f"{'':28}" + "".join(f"{name:>14}" for name in table))
    found: dict[str, dict[str, float]] = {}
    for name, sampling in SETTINGS.items():
        found[name] = {kind: milliseconds(row, sampling, tokens, options.repeats) for kind, row in table.items()}
        print(f"{name:28}" + "".join(f"{ms:14.2f}" for ms in found[name].values()))
    if options.json:
        print(json.dumps({"vocabulary": options.vocabulary, "milliseconds": found}))


if __name__ == "__main__":
    main()
