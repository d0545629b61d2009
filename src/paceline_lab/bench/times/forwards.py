"""Times of forwards: over one row and over the rows of a draft, for one sequence and for many, along every path.

A token of plain decoding reads every weight and every cached row once, so it takes at least their bytes over the
bandwidth of the memory: the roofline. Paths take turns and figures are medians; the first forwards of a shape, which
may record it, are not counted. Each has the distance of its logits from those of the model's own path, so that a fast
but wrong path is seen.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from paceline.errors import InputError
from paceline.targets.base import Request
from paceline.targets.cache import CacheRows
from paceline.targets.device import asked
from paceline.targets.gguf.target import GgufTarget
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.packed import PackedLinear
from paceline.targets.hf.path import ForwardPath
from paceline.targets.hf.target import HFTarget
from paceline.targets.place import free_memory, named_dtype
from paceline.tree import EMPTY, DraftTree
from paceline_lab.bench.peers import open_reader
from paceline_lab.bench.peers.weights import PeerWeights, TextReader
from paceline_lab.bench.race import Clock, Progress, silent
from paceline_lab.bench.times.steps import TimedAct, TimedLine, medians, read_text

RANDOM = "random:"
SHAPES: dict[str, dict[str, Any]] = {
    "8b": {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8},
    "1b": {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True},
    "tiny": {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    | {"num_attention_heads": 4, "num_key_value_heads": 2},
}
"""Of Llama 3: models of random weights by name, ``random:8b``. Text does not matter to the clock."""
Timed = HFTarget | GgufTarget
WARM = 2
THEIRS = "transformers"


def random_target(shape: str, dtype: str, device: str | None) -> HFTarget:
    """A model of random weights that keep activations in range, made on its device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if shape not in SHAPES:
        raise InputError(f"unknown shape {shape!r}; choose {', '.join(SHAPES)}")
    rope = {"rope_type": "default", "rope_theta": 500_000.0}
    config = LlamaConfig(**SHAPES[shape], rope_parameters=rope, max_position_embeddings=131_072)
    with torch.device("meta"):
        model: Any = torch.nn.Module.to(LlamaForCausalLM(config), named_dtype(dtype))
    needed = sum(weight.nbytes for weight in model.parameters())
    place = asked(device).for_floats(f"{RANDOM}{shape}", needed, model.dtype)
    if place.type == "cuda" and needed > 0.8 * (free := free_memory(place) or 0):
        raise InputError(f"{shape} takes {needed / 1e9:.1f} GB and the GPU has {free / 1e9:.1f}; choose a smaller one")
    model = model.to_empty(device=place)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            torch.nn.init.ones_(weight)
        else:
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5 if "embed" not in name else 1.0)
    rotary = model.model.rotary_emb  # its frequencies are no parameters and stayed empty
    model.model.rotary_emb = type(rotary)(config).to(place)
    model.tie_weights()
    target = HFTarget(model.requires_grad_(False), name=f"{RANDOM}{shape}")
    lean = Lean.of(target.own)
    if target.fixed is not None:
        target.fixed.lean = lean
    elif lean is not None:
        target.paths = [lean, target.own]
    return target


def bandwidth(device: str) -> float:
    """Bytes per second, read and written both counted, of a copy that no cache holds; the best of several."""
    if device == "gpu":  # llama.cpp's name
        device = "cuda" if torch.cuda.is_available() else "cpu"
    source = torch.ones(1 << (28 if device.startswith("cuda") else 25), dtype=torch.float64, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(_seconds(lambda: target.copy_(source), device) for _ in range(8))


def bytes_of_token(target: Timed, context: int, sequences: int = 1) -> int:
    """The bytes that plain decoding reads for a token of each sequence: the weights, one row of the embeddings, and the
    cached rows of all. Of a GGUF file all of it counts."""
    if not isinstance(target, HFTarget):
        return target.stored + (target.row_bytes() or 0) * context * sequences
    config: Any = target.model.config.get_text_config()
    weights = sum(weight.nbytes for weight in target.model.parameters())
    weights += sum(one.nbytes for one in target.model.modules() if isinstance(one, PackedLinear) and not one.tied)
    if not config.tie_word_embeddings:
        weights -= target.model.get_input_embeddings().weight.nbytes
    rows = read_text(target, np.zeros(1, np.int64), 2)
    assert isinstance(rows, CacheRows), "a model of transformers opens no other rows"
    cached = sum(part.nbytes for layer in rows.layers.values() for part in layer.span(0, 1))
    rows.close()
    return int(weights + cached * context * sequences)


def forwards(
    target: Timed,
    *,
    contexts: Sequence[int],
    sequences: Sequence[int],
    rows: Sequence[int],
    repeats: int,
    peers: Sequence[str] = (),
    progress: Progress = silent,
) -> Iterator[TimedLine]:
    """Every number of rows of every number of sequences behind every context, along every path; for one row also the
    library's own forward with its own cache. ``peers``, other libraries on the same weights, score one sequence.
    ``apart`` is the root of the mean square by which logits differ from those of the own path, in their deviations."""
    random = np.random.default_rng(1)
    with ExitStack() as leaving:
        theirs = dict[str, _Other]()
        if isinstance(target, HFTarget) and 1 in sequences and 1 in rows:
            theirs[THEIRS] = _Library(target)
        weights = PeerWeights(target)
        for spec in peers if 1 in sequences else ():
            reader = open_reader(spec, weights, max(contexts) + 2 * max(rows))
            leaving.callback(reader.close)
            theirs[spec] = _Peer(reader)
        for context in contexts:
            for count in sequences:
                texts = random.integers(0, target.vocab_size, (count, context))
                held = [read_text(target, text, 2 * max(rows)) for text in texts]
                for number in rows:
                    requests = [Request.of_tree(one, 1, _draft(number, random, target.vocab_size)) for one in held]
                    others = {name: other for name, other in theirs.items() if count == 1 and number <= other.widest}
                    yield from _timed(target, requests, context, repeats, others, progress)
                for one in held:
                    one.close()


def paths_of(target: Timed) -> dict[str, list[ForwardPath]]:
    """The paths of a model: as transformers computes it, the same without its layers, that compiled, and that recorded,
    also by torch's operations alone.
    An exact model has one path only, and so has one of llama.cpp."""
    if not isinstance(target, HFTarget):
        return {target.dtype: []}
    if target.exact:
        return {target.dtype: target.paths}
    found: dict[str, list[ForwardPath]] = {"own": [target.own]}
    for path in target.paths:
        if path.compiled:
            found["compiled"] = [path, target.own]
    lean = next((path for path in target.paths if isinstance(path, Lean) and not path.compiled), None)
    if target.fixed is not None:
        lean = target.fixed.lean
    if lean is not None:
        found["lean"] = [lean, target.own]
    if target.fixed is not None:
        found["fixed"] = [target.fixed, target.own]
        if target.fixed.without_kernels is None:
            found["fixed without kernels"] = [target.fixed.twin(), target.own]
    return found


class TimedForward(TimedAct):
    """A forward along one path, or the library's own. The second of two counts: threads of the library that was timed
    before look for more work for a while, and those of this one may sleep."""

    def do(self, task: None, clock: Clock) -> Mapping[str, float]:
        super().do(task, clock)
        return super().do(task, clock)


def _timed(
    target: Timed,
    requests: list[Request],
    context: int,
    repeats: int,
    theirs: Mapping[str, _Other],
    progress: Progress,
) -> Iterator[TimedLine]:
    def along(path: list[ForwardPath]) -> torch.Tensor:
        with target.using(*path) if isinstance(target, HFTarget) else nullcontext():
            return torch.as_tensor(target.score(requests)[-1].logits)

    paths = paths_of(target)
    others = {name: other.read(requests[0]) for name, other in theirs.items()}
    settle = partial(_wait, target.device)
    acts = {name: partial(along, path) for name, path in paths.items()} | others
    about = {"context": context, "sequences": len(requests), "rows": len(requests[0].tokens)}
    steps = [TimedForward("forward", act, settle, path=name, **about) for name, act in acts.items()]
    lines = list(medians(steps, repeats, WARM, progress))
    logits = {name: along(path).float() for name, path in paths.items()}
    own = next(iter(logits.values()))
    gaps = {name: _apart(rows, own) for name, rows in logits.items()}
    gaps |= {name: _apart(step().float(), own[0]) for name, step in others.items()}
    for line in lines:
        yield line.found(apart=gaps[line.facts["path"]])


def _apart(rows: torch.Tensor, own: torch.Tensor) -> float:
    return float((rows - own).square().mean().sqrt() / own.std())


class _Other(ABC):
    """Another library on the same weights."""

    widest: int
    """The most rows that it scores here."""

    @abstractmethod
    def read(self, request: Request) -> Callable[[], torch.Tensor]:
        """A forward behind the text of a request's rows; it returns the logits of the root."""


class _Peer(_Other):
    """Its rows follow one another, since others score no trees without copies of the text."""

    def __init__(self, reader: TextReader) -> None:
        self._reader, self.widest = reader, reader.widest

    def read(self, request: Request) -> Callable[[], torch.Tensor]:
        text, rows = request.rows.tokens[: request.rows.committed].tolist(), request.tokens.tolist()
        self._reader.rewind(0)
        self._reader.read(text)

        def step() -> torch.Tensor:
            self._reader.rewind(len(text))
            self._reader.read(rows, scored=len(rows))
            return torch.from_numpy(self._reader.logits(-len(rows)))

        return step


class _Library(_Other):
    """The decoding step of transformers itself: its forward, its cache, its attention, on ordinary weights."""

    widest = 1

    def __init__(self, target: HFTarget) -> None:
        packed = any(isinstance(module, PackedLinear) for module in target.model.modules())
        self._model: Any = copy.deepcopy(target.model) if packed else target.model  # copies come unpacked
        self._own = target.own

    def read(self, request: Request) -> Callable[[], torch.Tensor]:
        from transformers import DynamicCache

        cache, device = DynamicCache(), self._model.device
        with_cache = self._own.with_cache(cache)
        text = torch.from_numpy(request.rows.tokens[: request.rows.committed].copy())[None].to(device)
        root = torch.from_numpy(request.tokens[:1].copy())[None].to(device)

        def step() -> torch.Tensor:
            with torch.no_grad():
                logits: torch.Tensor = self._model(root, use_cache=True, **with_cache).logits[0, -1]
            cache.crop(-1)
            return logits

        with torch.no_grad():
            self._model(text, use_cache=True, **with_cache, logits_to_keep=1)
        return step


def _draft(rows: int, random: np.random.Generator, vocabulary: int) -> DraftTree:
    """A tree that makes ``rows`` rows with its root: three chains side by side."""
    if rows == 1:
        return EMPTY
    return DraftTree.build(random.permutation(vocabulary)[: rows - 1], [max(i - 3, -1) for i in range(rows - 1)])


def _seconds(step: Callable[[], object], device: str) -> float:
    _wait(device)
    started = time.perf_counter()
    step()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
