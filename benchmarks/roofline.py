"""How close to the memory's speed: plain decoding against the bytes it must read, and what drafts cost to score.

    python benchmarks/roofline.py [--shape 8b|1b|tiny] [--device cuda] [--json]

A model of random weights is made on the device, in the shape of a Llama 3 of that size (text does not matter to the
clock). A token of plain decoding reads every weight and every cached row once, so it takes at least their bytes over
the device's copy bandwidth: the roofline. The table then tells what one forward takes over 1 to 128 rows of each of 1
to 32 sequences, in milliseconds, along the model's own path, without transformers' layers (lean), and in fixed shapes,
and how many times the time of a single row that is. Paths take turns, figures are medians, and the first forwards of a
shape, which record it, are not counted. How far the paths' logits lie apart is told, too: what is fast and wrong is
not fast.
"""

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paceline.targets.base import Request, Rows
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.path import Path
from paceline.targets.hf.target import HFTarget
from paceline.tree import EMPTY, DraftTree

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
BATCHES = (1, 2, 4, 8, 16, 32)
SHAPES = {
    "8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
    "1b": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


@dataclass(frozen=True)
class Cost:
    """Seconds of a forward over so many rows of each of so many sequences."""

    path: str
    batch: int
    rows: int
    seconds: float
    apart: float
    """Root of the mean square by which its logits differ from those of the model's own path, in deviations."""


def random_model(shape: str, dtype: torch.dtype, device: torch.device) -> LlamaForCausalLM:
    """Weights that keep activations in range, made where they stay: a host that is smaller than the device will do."""
    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=131072)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(dtype)
    model = model.to_empty(device=device)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            torch.nn.init.ones_(weight)
        else:
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5 if "embed" not in name else 1.0)
    rotary = model.model.rotary_emb  # its frequencies are no parameters and stayed empty
    model.model.rotary_emb = type(rotary)(config).to(device)
    model.tie_weights()
    return model.requires_grad_(False)


def bytes_needed(shape: str, dtype: torch.dtype) -> int:
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**SHAPES[shape]))
    return sum(weight.numel() for weight in model.parameters()) * dtype.itemsize


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(step: Callable[[], object], device: torch.device) -> float:
    wait(device)
    started = time.perf_counter()
    step()
    wait(device)
    return time.perf_counter() - started


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Bytes per second, read and written both counted, of a copy that no cache holds; the best of several."""
    source = torch.empty(size // 8, dtype=torch.float64, device=device)
    target = torch.empty_like(source)
    source.fill_(1.0)
    taken = [timed(lambda: target.copy_(source), device) for _ in range(8)]
    return 2 * source.nbytes / min(taken)


def opened(target: HFTarget, batch: int, context: int, random: np.random.Generator) -> list[Rows]:
    """Sequences that have read a text each."""
    found = []
    for _ in range(batch):
        rows = target.open(context + 2 * max(COUNTS))
        for start in range(0, context, 512):
            piece = random.integers(0, target.vocab_size, min(512, context - start))
            target.submit([Request.of_prompt(rows, piece)]).result()
            rows.keep(range(len(piece)))
        found.append(rows)
    return found


def draft(rows: int, random: np.random.Generator, vocabulary: int) -> DraftTree:
    """A tree that makes so many rows with its root: three chains side by side."""
    if rows == 1:
        return EMPTY
    parents = [i - 3 if i >= 3 else -1 for i in range(rows - 1)]
    return DraftTree.build(random.permutation(vocabulary)[: rows - 1], parents)


def plain_tokens(target: HFTarget, rows: Rows, count: int) -> float:
    """Tokens per second of greedy decoding one token at a time, choice and transfer included."""
    token = 1

    def write() -> None:
        nonlocal token
        for _ in range(count):
            scores = target.submit([Request.of_tree(rows, token, EMPTY)]).result()[0]
            token = scores.choice(-1)
            rows.keep([0])

    seconds = timed(write, target.device)
    rows.rewind(rows.committed - count)
    return count / seconds


def paths_of(target: HFTarget) -> dict[str, list[Path]]:
    """What is held against each other: the model as transformers computes it, the same without its layers, and that
    recorded."""
    found: dict[str, list[Path]] = {"own": [target.own]}
    assert target.fixed is not None, "it was asked for"
    if target.fixed.lean is not None:
        found["lean"] = [target.fixed.lean, target.own]
    return found | {"fixed": [target.fixed, target.own]}


def plain(target: HFTarget, context: int, tokens: int, bandwidth: float, weights: int) -> list[dict[str, object]]:
    """Plain decoding along each path, beside what the memory allows."""
    rows = opened(target, 1, context, np.random.default_rng(0))[0]
    config = target.model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_row = 2 * config.num_hidden_layers * config.num_key_value_heads * width * target.dtype.itemsize
    bound = bandwidth / (weights + per_row * context)
    found: list[dict[str, object]] = []
    print(f"\nplain decoding behind {context} tokens: the roofline is {bound:.1f} tokens/s")
    for name, paths in paths_of(target).items():
        target.paths = paths
        plain_tokens(target, rows, 4)
        speed = statistics.median(plain_tokens(target, rows, tokens) for _ in range(3))
        print(f"  {name:6} {speed:8.1f} tokens/s, {100 * speed / bound:5.1f} % of it")
        found.append({"path": name, "context": context, "tokens_per_second": speed, "roofline": bound})
    rows.close()
    return found


def scoring(target: HFTarget, context: int, batches: Sequence[int], counts: Sequence[int], repeats: int) -> list[Cost]:
    """Every number of sequences with every number of rows, along every path."""
    costs = []
    random = np.random.default_rng(1)
    for batch in batches:
        try:
            sequences = opened(target, batch, context, random)
        except torch.OutOfMemoryError:
            print(f"\nno memory for {batch} sequences of {context} tokens")
            break
        for rows in counts:
            trees = [draft(rows, random, target.vocab_size) for _ in sequences]
            requests = [Request.of_tree(r, 1, tree) for r, tree in zip(sequences, trees, strict=True)]
            costs += scored(target, requests, batch, rows, repeats)
        for sequence in sequences:
            sequence.close()
    return costs


def scored(target: HFTarget, requests: list[Request], batch: int, rows: int, repeats: int) -> list[Cost]:
    """One forward, timed along every path in turn."""
    paths, taken, logits = paths_of(target), dict[str, list[float]](), dict[str, torch.Tensor]()
    for number in range(repeats + 2):
        for name, tried in paths.items():
            target.paths = tried
            seconds = timed(lambda: target.submit(requests).result(), target.device)
            if number >= 2:
                taken.setdefault(name, []).append(seconds)
    for name, tried in paths.items():
        target.paths = tried
        logits[name] = target.submit(requests).result()[-1].logits.float()
    scale = logits["own"].std()
    apart = {name: float((found - logits["own"]).square().mean().sqrt() / scale) for name, found in logits.items()}
    return [Cost(name, batch, rows, statistics.median(found), apart[name]) for name, found in taken.items()]


def table(costs: Sequence[Cost]) -> None:
    counts = sorted({cost.rows for cost in costs})
    batches = sorted({cost.batch for cost in costs})
    for name in dict.fromkeys(cost.path for cost in costs):
        found = {(cost.batch, cost.rows): cost.seconds for cost in costs if cost.path == name}
        print(f"\n{name}: milliseconds of a forward; below, how many times those of one row of one sequence")
        print("sequences " + "".join(f"{f'{n} rows':>10}" for n in counts))
        for batch in batches:
            print(f"{batch:9} " + "".join(f"{1000 * found[batch, n]:10.2f}" for n in counts))
            print(f"{'':9} " + "".join(f"{found[batch, n] / found[batches[0], counts[0]]:10.2f}" for n in counts))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--context", type=int, default=1024, help="tokens before the draft (1024)")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of plain decoding per measurement (64)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON line at the end")
    return parser.parse_args()


def checked_device(options: argparse.Namespace) -> torch.device:
    """The device, if it is there and large enough."""
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU here that torch can use; --device cpu --shape tiny tries the program without one")
    needed = bytes_needed(options.shape, getattr(torch, options.dtype))
    if device.type == "cuda" and needed > 0.8 * (free := torch.cuda.mem_get_info(device)[0]):
        sys.exit(
            f"weights of shape {options.shape} take {needed / 1e9:.1f} GB and the GPU has {free / 1e9:.1f} GB free; "
            "choose --shape 1b or tiny"
        )
    if device.type == "cpu" and options.shape != "tiny":
        sys.exit(f"shape {options.shape} on a CPU takes hours; choose --shape tiny, which only tries the program")
    return device


def main() -> None:
    options = arguments()
    device = checked_device(options)
    dtype = getattr(torch, options.dtype)
    target = HFTarget(random_model(options.shape, dtype, device), name=f"random {options.shape}", fixed_shapes=True)
    fixed = target.fixed
    assert fixed is not None, "it was asked for"
    fixed.lean = Lean.of(target.own)
    weights = sum(weight.nbytes for weight in target.model.parameters())
    if not target.model.config.tie_word_embeddings:  # of the embeddings a token reads one row
        weights -= target.model.get_input_embeddings().weight.nbytes
    bandwidth = copy_bandwidth(device, 1 << (31 if device.type == "cuda" else 26))
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, for trying the program only"
    print(f"{target.name} {options.dtype} on {where}, torch {torch.__version__}")
    print(f"a token reads {weights / 1e9:.2f} GB of weights; copies run at {bandwidth / 1e9:.0f} GB/s")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        speeds = plain(target, options.context, options.tokens, bandwidth, weights)
        costs = scoring(target, options.context, options.batches, options.counts, options.repeats)
    table(costs)
    print(f"\npaths lie {max((cost.apart for cost in costs), default=0.0):.1e} deviations of the logits apart at most")
    if fixed.refused is not None:
        print(f"\nfixed shapes were NOT used: {fixed.refused}")
    if options.json:
        about = {"shape": options.shape, "dtype": options.dtype, "device": where, "context": options.context}
        about |= {"torch": torch.__version__, "weight_bytes": weights, "bandwidth": bandwidth, "refused": fixed.refused}
        print(json.dumps({**about, "plain": speeds, "scoring": [asdict(cost) for cost in costs]}))


if __name__ == "__main__":
    main()
