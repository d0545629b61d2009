"""What the law costs per emitted token at a vocabulary of 150,000: logits to law, and the race that draws from it.

    python benchmarks/law_cost.py [--vocabulary 150000] [--repeats 200] [--device cuda] [--json]

The last line with --json is one object: median milliseconds by setting, row and number of texts settled together.
"""

import argparse
import json
import statistics
import time
from itertools import product

import numpy as np
import torch

from paceline.law import Distribution, KeyedDice, Law, Noise, Place, Sampling, laws

HISTORY = 2000
TEXTS = (1, 16)

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


def rows(vocabulary: int, device: str) -> dict[str, torch.Tensor]:
    """Rows of logits from sure of itself to knowing nothing."""
    noise = np.random.default_rng(0)
    spread = noise.normal(0, 3, vocabulary).astype(np.float32)
    peaked, sure = spread.copy(), spread.copy()
    peaked[noise.choice(vocabulary, 8, replace=False)] += 12
    sure[7] += 30
    flat = noise.normal(0, 0.05, vocabulary).astype(np.float32)
    named = {"sure": sure, "a few peaks": peaked, "std 3": spread, "nearly flat": flat}
    return {name: torch.from_numpy(row).to(device) for name, row in named.items()}


def milliseconds(row: torch.Tensor, sampling: Sampling, tokens: np.ndarray, texts: int, repeats: int) -> float:
    """Per emitted token: median over positions, each with its own noise."""
    law, dice = Law(sampling, len(tokens) // 2), [KeyedDice(Noise(0, sample)) for sample in range(texts)]
    taken = []
    for repeat in range(max(3, repeats // texts)):
        before = tokens[: len(tokens) - repeat]
        started = time.perf_counter()
        for each, found in zip(dice, laws([Place(law, row, before, each.noise) for each in dice]), strict=True):
            assert isinstance(found, Distribution), found
            each.choose(len(before), found)
        taken.append(1000 * (time.perf_counter() - started) / texts)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tokens = np.random.default_rng(1).integers(0, options.vocabulary, HISTORY)
    table = rows(options.vocabulary, options.device)
    machine = f"{options.device}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    print(f"vocabulary {options.vocabulary}, float32, {machine}, ms per emitted token (median)")
    print(f"{'':34}" + "".join(f"{name:>14}" for name in table))
    found: dict[str, dict[str, float]] = {}
    for texts, (setting, sampling) in product(TEXTS, SETTINGS.items()):
        name = f"{setting}, {texts} at once" if texts > 1 else setting
        found[name] = {kind: milliseconds(row, sampling, tokens, texts, options.repeats) for kind, row in table.items()}
        print(f"{name:34}" + "".join(f"{ms:14.2f}" for ms in found[name].values()))
    if options.json:
        print(json.dumps({"vocabulary": options.vocabulary, "milliseconds": found}))


if __name__ == "__main__":
    main()
