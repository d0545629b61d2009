"""What a draft costs to score: one forward over 1 to 64 nodes, against the fastest way there is to score one row.

    python benchmarks/scoring_curve.py [--model pocket+ballast:500M] [--dtype bfloat16] [--json]

One-row rivals, all on the same weights: transformers' own forward with its own cache; the same with torch's native
matrix-vector product in place of oneDNN's; the engine on ordinary weights; the engine on packed weights, which is what
`paceline.load` gives. Everything takes turns in every repeat, so that a slow minute of the machine slows all; figures
are medians, in milliseconds, with the spread from the first to the third quartile.
"""

import argparse
import copy
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache

import paceline
from paceline.targets.base import Request
from paceline.targets.hf.packed import PackedLinear
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree

NODES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (256, 1024, 2048)
Step = Callable[[], object]


@contextmanager
def native_product(model: nn.Module) -> Iterator[None]:
    """One row through torch's own matrix-vector kernel: oneDNN off, linear layers as products with a vector."""

    def product(layer: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
        vector = rows.reshape(-1)
        out = torch.mv(layer.weight, vector) if layer.bias is None else torch.addmv(layer.bias, layer.weight, vector)
        return out.view(*rows.shape[:-1], -1)

    layers = [module for module in model.modules() if type(module) is nn.Linear]
    for layer in layers:
        layer.forward = partial(product, layer)  # type: ignore[method-assign]
    try:
        torch._C._set_mkldnn_enabled(False)
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)
        for layer in layers:
            del layer.forward


def one_row_of_transformers(target: HFTarget, text: np.ndarray, *, native: bool) -> Step:
    """The library's own decoding step behind ``text``: its forward, its cache, its attention."""
    model = target.model
    cache = DynamicCache()
    ids = torch.from_numpy(text)[None]
    with torch.no_grad():
        model(ids[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)

    def step() -> None:
        with torch.no_grad():
            model(ids[:, -1:], past_key_values=cache, use_cache=True)
        cache.crop(-1)

    def native_step() -> None:
        with native_product(model):
            step()

    return native_step if native else step


def draft_of(nodes: int, vocabulary: int) -> DraftTree:
    """A tree of ``nodes - 1`` nodes, so that with the root ``nodes`` rows are scored: three chains."""
    random = np.random.default_rng(nodes)
    parents = [i - 3 if i >= 3 else -1 for i in range(nodes - 1)]
    return DraftTree.build(random.integers(1, vocabulary, nodes - 1), parents)


def scoring(target: HFTarget, text: np.ndarray, nodes: int) -> Step:
    """The engine's forward over ``nodes`` rows behind ``text``."""
    rows = target.open(len(text) + max(NODES))
    for start in range(0, len(text) - 1, 512):
        piece = text[:-1][start : start + 512]
        target.submit([Request.of_prompt(rows, piece)]).result()
        rows.keep(range(len(piece)))
    tree = draft_of(nodes, 8000)
    return lambda: target.submit([Request.of_tree(rows, int(text[-1]), tree)]).result()


def measure(steps: dict[str, Step], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of every step, taking turns; the order is drawn anew for every repeat."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    order = np.random.default_rng(0)
    for step in steps.values():
        step()
    for number in range(repeats):
        for name in order.permutation(list(steps)):
            started = time.perf_counter()
            steps[name]()
            taken[name].append(1000 * (time.perf_counter() - started))
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{repeats} ", end="", file=sys.stderr, flush=True)
    return taken


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def bandwidth(weights: int) -> float:
    """Bytes per second at which this machine reads memory it has not cached: a sum over a large array."""
    block = torch.ones(max(weights // 8, 1 << 26), dtype=torch.float64)
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        block.sum()
        best = max(best, block.nbytes / (time.perf_counter() - started))
    return best


def report(target: HFTarget, plain: HFTarget, context: int, repeats: int) -> dict[str, object]:
    text = np.random.default_rng(context).integers(1, 8000, context)
    steps: dict[str, Step] = {
        "transformers": one_row_of_transformers(plain, text, native=False),
        "transformers, native product": one_row_of_transformers(plain, text, native=True),
        "engine, ordinary weights": scoring(plain, text, 1),
        **{f"{n}": scoring(target, text, n) for n in NODES},
    }
    found = {name: quartiles(taken) for name, taken in measure(steps, repeats).items()}
    library = found["transformers"][1]
    fastest = min(
        found[name][1] for name in ("transformers", "transformers, native product", "engine, ordinary weights", "1")
    )
    print(f"\ncontext {context}")
    print(f"{'':32} {'ms':>7} {'quartiles':>15} {'of the library one row':>24} {'of the fastest one row':>24}")
    for name, (low, middle, high) in found.items():
        label = name if not name.isdigit() else f"engine, packed, {name} row{'s' if name != '1' else ''}"
        print(f"{label:32} {middle:7.1f} {low:7.1f}-{high:<7.1f} {middle / library:24.2f} {middle / fastest:24.2f}")
    return {"context": context, "milliseconds": found, "library": library, "fastest": fastest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pocket+ballast:500M")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lm = paceline.load(options.model, dtype=options.dtype)
    target = lm.target
    assert isinstance(target, HFTarget)
    plain = HFTarget(copy.deepcopy(target.model), name=f"{target.name}, ordinary weights")  # copies come unpacked
    plain.limits = target.limits
    weights = sum(p.nbytes for p in plain.model.parameters())
    speed = bandwidth(weights)
    packed = any(isinstance(module, PackedLinear) for module in target.model.modules())
    print(
        f"{target.name} {options.dtype}, weights {target.fingerprint()}, {'' if packed else 'not '}packed, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    print(
        f"weights {weights / 1e9:.2f} GB; at the {speed / 1e9:.0f} GB/s of a plain sum "
        f"a row takes {1000 * weights / speed:.1f} ms at best"
    )
    results = []
    for context in options.contexts:
        results.append(report(target, plain, context, options.repeats))
        gc.collect()
    if options.json:
        about = {"model": target.name, "dtype": options.dtype, "fingerprint": target.fingerprint(), "packed": packed}
        print(json.dumps({**about, "threads": torch.get_num_threads(), "bandwidth": speed, "curves": results}))


if __name__ == "__main__":
    main()
