"""How often does a 95% interval hold the truth, with few prompts on a machine that stalls?

    python benchmarks/intervals.py [--times 1000]

Candidates on the same made data: the percentile bootstrap, the same with Hesterberg's wider percentiles, the bootstrap
t on logarithms, and what `paceline.bench.statistics` does: the bootstrap's spread of the logarithm times a t
quantile. Prompts are drawn whole, two repeats each. Beside each coverage stands the median width, as a ratio of the
bounds.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from paceline.bench.statistics import mean_of, median_of, ratio_of_sums

RESAMPLES = 2000
SIZES = (4, 6, 12, 40)
WORLDS = {
    "prompts differ": (0.3, 0.05, 0.03),
    "prompts differ much": (0.6, 0.1, 0.05),
    "the same thing, few stalls": (0.0, 0.03, 0.03),
    "the same thing, many stalls": (0.0, 0.03, 0.10),
}
"""Spread of speed-ups among prompts, noise of a time (both of the logarithm), and how often a text stalls."""
Statistic = Callable[[np.ndarray], np.ndarray]
Bounds = tuple[float, float]


def world(rng: np.random.Generator, prompts: int, spread: float, noise: float, stalls: float) -> np.ndarray:
    """Tokens, seconds, plain's seconds: prompts x repeats x 3."""
    shape = prompts, 2
    tokens = np.exp(4 + 0.5 * rng.standard_normal((prompts, 1)))
    worth = 2 * np.exp(spread * rng.standard_normal((prompts, 1)))

    def machine() -> np.ndarray:
        stalled = np.where(rng.random(shape) < stalls, 1 + rng.exponential(1.0, shape), 1)
        return np.exp(noise * rng.standard_normal(shape)) * stalled

    return np.stack([np.broadcast_to(tokens, shape), tokens / worth * machine(), tokens * machine()], axis=-1)


def of_ratios(total: np.ndarray) -> np.ndarray:
    return total[..., 3] / total[..., 4]


def of_means(total: np.ndarray) -> np.ndarray:
    return total[..., 2] / total[..., 1]


def sums(texts: np.ndarray) -> np.ndarray:
    """Of each prompt: tokens, seconds, plain's seconds, ratios, texts."""
    ratios = texts[..., 2] / texts[..., 1]
    return np.column_stack([texts.sum(axis=1), ratios.sum(axis=1), np.full(len(texts), texts.shape[1])])


def candidates(found: np.ndarray, statistic: Statistic, rng: np.random.Generator) -> dict[str, Bounds]:
    n = len(found)
    weights = rng.multinomial(n, np.full(n, 1 / n), RESAMPLES)
    drawn = statistic(weights @ found)
    wide = float(stats.norm.cdf(math.sqrt(n / (n - 1)) * stats.t.ppf(0.025, n - 1)))
    return {
        "percentile": tuple(np.quantile(drawn, [0.025, 0.975])),
        "expanded": tuple(np.quantile(drawn, [wide, 1 - wide])),
        "bootstrap t": _studentized(found, statistic, weights, drawn),
    }


def _studentized(found: np.ndarray, statistic: Statistic, weights: np.ndarray, drawn: np.ndarray) -> Bounds:
    n, value = len(found), float(statistic(found.sum(axis=0)))
    left_out = np.log(statistic(found.sum(axis=0) - found))
    influence = (n - 1) * (left_out.mean() - left_out)
    mean = weights @ influence / n
    spread = np.sqrt(np.maximum(weights @ influence**2 / n - mean**2, 0) / (n - 1))
    kept = spread > 1e-6 * influence.std()
    low, high = np.quantile((np.log(drawn) - math.log(value))[kept] / spread[kept], [0.025, 0.975])
    error = influence.std() / math.sqrt(n - 1)
    return value * math.exp(max(-high * error, -50)), value * math.exp(min(-low * error, 50))


def chosen(texts: np.ndarray) -> dict[str, Bounds]:
    rows = texts.reshape(-1, 3)
    prompts = np.repeat(np.arange(len(texts)), texts.shape[1]).tolist()
    ratios = mean_of((rows[:, 2] / rows[:, 1]).tolist(), prompts)
    means = ratio_of_sums(rows[:, [0, 1, 0, 2]].tolist(), prompts)
    medians = median_of(rows[:, 1].tolist(), prompts)
    return {
        "mean of ratios": (ratios.low, ratios.high),
        "ratio of means": (means.low, means.high),
        "median time": (medians.low, medians.high),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=1000)
    options = parser.parse_args()
    for name, shape in WORLDS.items():
        print(f"\n{name}")
        rng = np.random.default_rng(1)
        everything = world(rng, 400_000, *shape)
        total = sums(everything).sum(axis=0)
        truths = {
            "mean of ratios": float(of_ratios(total)),
            "ratio of means": float(of_means(total)),
            "median time": float(np.median(everything[..., 1])),
        }
        for size in SIZES:
            tell(size, truths, [world(rng, size, *shape) for _ in range(options.times)], rng)


def tell(size: int, truths: dict[str, float], worlds: list[np.ndarray], rng: np.random.Generator) -> None:
    held: dict[tuple[str, str], list[Bounds]] = {}
    for texts in worlds:
        for what, bounds in chosen(texts).items():
            held.setdefault((what, "ours"), []).append(bounds)
        for what, statistic in (("mean of ratios", of_ratios), ("ratio of means", of_means)):
            for how, bounds in candidates(sums(texts), statistic, rng).items():
                held.setdefault((what, how), []).append(bounds)
    for what, truth in truths.items():
        told = [
            f"{how} {np.mean([low <= truth <= high for low, high in found]):.3f}"
            f" ({np.median([high / low for low, high in found]):.2f})"
            for (of, how), found in held.items()
            if of == what
        ]
        print(f"{size:3} prompts, {what:15}", "  ".join(told), flush=True)


if __name__ == "__main__":
    main()
