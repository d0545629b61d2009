"""What the ways to compute a forward cost: the model called itself, the lean path, the same with joined layers.

    OMP_NUM_THREADS=1 python benchmarks/paths.py [--model pocket pocket-draft] [--dtype float32] [--compile] [--json]

All take turns in one process, on the same packed weights. Times are those of the thread, so with one thread other
processes count only by what they take of caches and memory. With --compile a fourth one takes part: the two halves of
a layer, before and after its attention, under torch.compile (which needs a C++ compiler and ordinary weights).
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.targets.base import Request
from paceline.targets.hf import lean
from paceline.targets.hf.attention import Asked, Part, by_part, write
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.packed import pack
from paceline.targets.hf.path import Found, Job, Path, Taps
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.targets.load import open_model
from paceline.tree import EMPTY, DraftTree

CASES = {"1 row": (1, 1), "5 rows": (1, 5), "16 sequences": (16, 1)}
"""Sequences, and rows of each."""
CONTEXT = 128

Run = Callable[[], None]


def read(
    given: Tensor, norm: Any, weight: Tensor, turns: lean.Turns, counts: tuple[int, int, int]
) -> tuple[Tensor, ...]:
    """A layer up to its attention: queries, keys and values."""
    width, queries, keys = counts
    heads = F.linear(lean._normed(given, norm), weight).view(1, given.shape[1], -1, width)
    turned = lean._turned(heads[:, :, : queries + keys], turns).transpose(1, 2)
    return turned[:, :queries], turned[:, queries:], heads[:, :, queries + keys :].transpose(1, 2)


def finish(states: Tensor, seen: Tensor, norm: Any, out: Tensor, gates: Tensor, down: Tensor) -> Tensor:
    """A layer from its attention on."""
    states = states + F.linear(seen.transpose(1, 2).reshape(1, states.shape[1], -1), out)
    gate, up = F.linear(lean._normed(states, norm), gates).chunk(2, dim=-1)
    return states + F.linear(F.silu(gate) * up, down)


class Compiled(Lean):
    """The lean path of a llama in compiled halves of layers; for measuring only, since it copies weights."""

    def prepare(self) -> Path:
        self._read, self._end = torch.compile(read, dynamic=False), torch.compile(finish, dynamic=False)
        self._weights = []
        for layer in self.build.layers:
            together = torch.cat([part.weight.detach() for part in layer.reads])
            gates = torch.cat([layer.gate.weight.detach(), layer.up.weight.detach()])
            self._weights.append((together, layer.out.weight.detach(), gates, layer.down.weight.detach()))
        return self

    def run(self, job: Job) -> Found:
        build, parts = self.build, Part.of_all(job.requests, self._scratch)
        tokens, positions = ([getattr(r, name) for r in job.requests] for name in ("tokens", "positions"))
        states = build.embedding(torch.from_numpy(np.concatenate(tokens))[None])
        end = max(request.end for request in job.requests)
        turns = self._rotation.at(torch.from_numpy(np.concatenate(positions)), end, build.rotary, states)
        config = build.layers[0].attention.config
        counts = (config.head_dim, config.num_attention_heads, config.num_key_value_heads)
        for number, (layer, weights) in enumerate(zip(build.layers, self._weights, strict=True)):
            query, key, value = self._read(states, layer.before, weights[0], turns, counts)
            write(parts, number, key, value)
            seen = by_part(parts, number, query, Asked(layer.attention.scaling))
            states = self._end(states, seen, layer.between, *weights[1:])
        return self._finish(build, states, job.asking, Taps())


def ways(name: str, dtype: str, *, compiled: bool) -> dict[str, tuple[HFTarget, Path]]:
    """Each on weights of its own: who came second to the same ones would find them in the caches."""
    joined, _ = open_model(name, dtype=dtype)
    itself, apart, plain = (HFTarget(copy.deepcopy(joined.model)) for _ in range(3))
    pack(itself.model)
    pack(apart.model)
    found: dict[str, tuple[HFTarget, Path]] = {"model itself": (itself, itself.own)}
    found |= {"lean": (apart, prepare(apart).paths[0]), "joined": (joined, joined.paths[0])}
    if compiled:
        path = Compiled.of(plain.own)
        assert path is not None
        found["compiled"] = (plain, path.prepare())
    return found


def scoring(target: HFTarget, path: Path, sequences: int, rows: int) -> Run:
    """A round's forward behind texts that the model read itself."""
    texts = [np.random.default_rng(i).integers(1, 1000, CONTEXT - 3 * i) for i in range(sequences)]
    caches = [target.open(CONTEXT + 64) for _ in texts]
    target.paths = [target.own]
    for cache, text in zip(caches, texts, strict=True):
        target.submit([Request.of_prompt(cache, text)])
        cache.keep(range(len(text)))
    draft = DraftTree.chain(list(range(5, 4 + rows))) if rows > 1 else EMPTY

    def run() -> None:
        target.paths = [path]
        target.submit([Request.of_tree(cache, 3, draft) for cache in caches]).result()
        for cache in caches:
            cache.keep([])

    return run


def timed(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    """Median milliseconds of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(3):
        for run in runs.values():
            run()
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.thread_time()
            run()
            times[name].append(1000 * (time.thread_time() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=["pocket", "pocket-draft"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name in options.model:
        known = ways(name, options.dtype, compiled=options.compile)
        for case, (sequences, rows) in CASES.items():
            runs = {way: scoring(*pair, sequences, rows) for way, pair in known.items()}
            times = found[f"{name}, {case}"] = timed(runs, options.repeats)
            first = times["model itself"]
            shown = "   ".join(f"{way} {ms:.2f} ms ({first / ms:.2f}x)" for way, ms in times.items())
            print(f"{name:20} {case:14} {shown}", flush=True)
    if options.json:
        print(json.dumps({"dtype": options.dtype, "threads": torch.get_num_threads(), "milliseconds": found}))


if __name__ == "__main__":
    main()
