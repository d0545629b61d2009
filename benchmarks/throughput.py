"""Tokens per second of several ragged sequences written together, and what packing their rows saves over padding them.

    python benchmarks/throughput.py [--model pocket+ballast:300M] [--dtype float32] [--json]

Prompts are of different lengths, every sequence has a seed of its own, and only rounds in which all of them write are
counted: no prompt is being read any more, and none has ended yet. Sizes and methods take turns.

The second table times single forwards: the same drafts behind the same cached texts, once packed as the engine packs
them, `[1, sum n]`, and once padded to the longest draft and the longest text, `[batch, n]`, through transformers' own
cache and attention. Both call the same model object with the same (packed) weights.
"""

import argparse
import itertools
import json
import statistics
import time
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

import paceline
from paceline.api.batch import TextBatch
from paceline.check.cases import PROMPTS
from paceline.targets.base import Request
from paceline.targets.hf.forward import Attention
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree

LENGTHS = (24, 200, 61, 120, 33, 310, 88, 150, 47, 260, 75, 180, 29, 99, 222, 140)
"""Tokens of the sequences' prompts."""
DRAFTS = (1, 5, 3, 8, 4, 1, 6, 2, 7, 5, 1, 3, 8, 4, 2, 6)
"""Rows of their drafts in the second table."""


def prompts(lm: paceline.LanguageModel, count: int) -> list[np.ndarray]:
    texts = [lm.encode(" ".join(PROMPTS[i:] + PROMPTS[:i])) for i in range(len(PROMPTS))]
    lengths = itertools.islice(itertools.cycle(LENGTHS), count)
    return [np.resize(texts[i % len(texts)], length) for i, length in enumerate(lengths)]


def steady(batch: TextBatch, count: int) -> tuple[int, float]:
    """Tokens and seconds of the steps in which all ``count`` texts write."""
    writing, tokens, seconds = set[int](), 0, 0.0
    while len(batch) == count:
        started = time.perf_counter()
        told = batch.step()
        took = time.perf_counter() - started
        if len(writing) == count:
            tokens += sum(piece.token is not None for turn in told for piece in turn.pieces)
            seconds += took
        writing.update(id(turn.writing) for turn in told)
    return tokens, seconds


def speed(lm: paceline.LanguageModel, count: int, tokens: int, repeat: int, settings: dict[str, Any]) -> float:
    with lm.batch(at_once=count) as batch:
        for number, prompt in enumerate(prompts(lm, count)):
            seed = 100 * repeat + number
            batch.add(prompt, seed=seed, max_new_tokens=tokens, temperature=0.8, ignore_eos=True, **settings)
        written, seconds = steady(batch, count)
    return written / seconds


def throughput(lm: paceline.LanguageModel, options: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Tokens per second of all sequences together, by how many there are and by method."""
    draft = paceline.load(options.draft_model, dtype=options.dtype)
    assisted = {"method": "assistant", "draft_model": draft, "planner": f"fixed:{options.num_draft_tokens}"}
    methods = {"plain": {"method": "plain"}, "assistant": assisted}
    found: dict[tuple[int, str], list[float]] = {}
    for settings in methods.values():
        speed(lm, 2, 8, 0, settings)
    for repeat in range(options.repeats):
        for count in options.sizes:
            for name, settings in methods.items():
                found.setdefault((count, name), []).append(speed(lm, count, options.max_new_tokens, repeat, settings))
    return {count: {name: statistics.median(found[count, name]) for name in methods} for count in options.sizes}


def packed_and_padded(lm: paceline.LanguageModel, count: int, repeats: int) -> dict[str, float]:
    """Milliseconds of a forward over the drafts of several sequences, packed and padded, and how far they part."""
    target = lm.target
    assert isinstance(target, HFTarget)
    texts = prompts(lm, count)
    drafts = list(itertools.islice(itertools.cycle(DRAFTS), count))
    held = []
    for text in texts:
        rows = target.open(len(text) + max(DRAFTS))
        target.submit([Request.of_prompt(rows, text)]).result()
        rows.keep(range(len(text)))
        held.append(rows)
    chains = [DraftTree.chain(text[: n - 1].tolist()) for text, n in zip(texts, drafts, strict=True)]
    requests = [Request.of_tree(rows, 5, chain) for rows, chain in zip(held, chains, strict=True)]
    padded = Padded(target, texts, requests)

    def packed() -> list[torch.Tensor]:
        return [scores.logits for scores in target.submit(requests).result()]

    times: dict[str, list[float]] = {"packed": [], "padded": []}
    logits: dict[str, list[torch.Tensor]] = {}
    for name, forward in [("packed", packed), ("padded", padded.forward)] * (repeats + 1):
        started = time.perf_counter()
        logits[name] = forward()
        times[name].append(1000 * (time.perf_counter() - started))
    gap = max(float((a - b).abs().max()) for a, b in zip(logits["packed"], logits["padded"], strict=True))
    return {name: statistics.median(taken[1:]) for name, taken in times.items()} | {"gap": gap}


class Padded:
    """The same drafts as a rectangle: texts padded on the left, drafts on the right."""

    def __init__(self, target: HFTarget, texts: list[np.ndarray], requests: list[Request]) -> None:
        self._model: Any = target.model
        self._requests = requests
        self._length, self._rows = max(map(len, texts)), max(len(request.tokens) for request in requests)
        self._cache = self._read(texts)
        self._ids = torch.zeros(len(requests), self._rows, dtype=torch.int64)
        self._positions = torch.zeros_like(self._ids)
        shape = (len(requests), 1, self._rows, self._length + self._rows)
        self._mask = torch.full(shape, torch.finfo(target.dtype).min, dtype=target.dtype)
        for place, (text, request) in enumerate(zip(texts, requests, strict=True)):
            n = len(request.tokens)
            self._ids[place, :n] = torch.from_numpy(request.tokens)
            self._positions[place, :n] = torch.from_numpy(request.positions)
            self._mask[place, 0, :, self._length - len(text) : self._length] = 0
            seen = torch.from_numpy(request.visible)
            self._mask[place, 0, :n, self._length : self._length + n].masked_fill_(seen, 0)

    @torch.no_grad()
    def _read(self, texts: list[np.ndarray]) -> DynamicCache:
        cache = DynamicCache()
        ids = torch.stack([torch.from_numpy(np.pad(text, (self._length - len(text), 0))) for text in texts])
        mask = torch.stack([(torch.arange(self._length) >= self._length - len(text)).long() for text in texts])
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        with Attention(self._model, "sdpa"):
            self._model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        return cache

    @torch.no_grad()
    def forward(self) -> list[torch.Tensor]:
        if excess := self._cache.get_seq_length() - self._length:
            self._cache.crop(-excess)
        with Attention(self._model, "sdpa"):
            logits = self._model(
                input_ids=self._ids,
                attention_mask=self._mask,
                position_ids=self._positions,
                past_key_values=self._cache,
            ).logits
        return [logits[place, : len(request.tokens)] for place, request in enumerate(self._requests)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pocket+ballast:300M")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--draft-model", default="pocket-draft")
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--max-new-tokens", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lm = paceline.load(options.model, dtype=options.dtype)
    print(
        f"{lm.target.name} {options.dtype}, weights {lm.target.fingerprint()}; draft {options.draft_model}, "
        f"{options.num_draft_tokens} tokens; torch {torch.__version__}, {torch.get_num_threads()} threads; "
        f"medians of {options.repeats}"
    )
    together = throughput(lm, options)
    print(f"\n{'sequences':>9} {'plain tok/s':>12} {'each':>7} {'assistant tok/s':>16} {'each':>7} {'speed-up':>9}")
    for count, row in together.items():
        plain, assistant = row["plain"], row["assistant"]
        print(
            f"{count:9} {plain:12.1f} {plain / count:7.1f} {assistant:16.1f} {assistant / count:7.1f} "
            f"{assistant / plain:8.2f}x"
        )
    print(f"\n{'sequences':>9} {'packed ms':>10} {'padded ms':>10} {'padded/packed':>14} {'largest gap of logits':>22}")
    layouts = {count: packed_and_padded(lm, count, 3 * options.repeats) for count in options.sizes}
    for count, row in layouts.items():
        ratio = row["padded"] / row["packed"]
        print(f"{count:9} {row['packed']:10.1f} {row['padded']:10.1f} {ratio:13.2f}x {row['gap']:22.1e}")
    if options.json:
        about = {"model": lm.target.name, "dtype": options.dtype, "fingerprint": lm.target.fingerprint()}
        print(json.dumps(about | {"tokens_per_second": together, "milliseconds": layouts}))


if __name__ == "__main__":
    main()
