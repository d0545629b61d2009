"""The kernels of a layer beside torch's operations, for all that attention may be asked: on a GPU where there is one,
else by Triton's interpreter, which computes what a kernel says, one program after another."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from thinning import crossed, thinned

pytest.importorskip("triton")

from drafting import context_of
from families import FAMILIES, build
from paceline import launching
from paceline.drafters import Ask, Budget
from paceline.drafters.networks.assistant import Assistant
from paceline.targets.base import Request
from paceline.targets.cache import CacheRows
from paceline.targets.hf.attention import AttentionOptions
from paceline.targets.hf.fixed.block import LeanBlock
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.shapes import ForwardShape
from paceline.targets.hf.fixed.slab import Slab
from paceline.targets.hf.fixed.step import Step
from paceline.targets.hf.gpu import running, trial
from paceline.targets.hf.gpu.block import KernelBlock
from paceline.targets.hf.gpu.operations import LayerKernels
from paceline.targets.hf.gpu.running import splits_of
from paceline.targets.hf.operations import Operations
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.tree import EMPTY
from scoring import CLOSE, CONTEXT, SEEN, apart, filled, path_of, random_tree, recorded, target_of, tokens
from tape import launches

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = DEVICE.type == "cpu"
PACKED = [name for name, family in FAMILIES.items() if family.interface and name != "gpt2"]
HERE = Path(__file__).parent


class Slots:
    """Texts of random numbers in the slots of one layer, and a random draft behind each."""

    def __init__(
        self, lengths: list[int], sizes: list[int], kv_heads: int, width: int, value_width: int, held: int = 0
    ) -> None:
        random = torch.Generator().manual_seed(0)
        self.slab, count = Slab(), len(lengths)
        self.slab.slots, self.slab.capacity = count, 512 * (1 + (max(lengths) + 130) // 512)
        for buffers, each in ((self.slab.keys, width), (self.slab.values, value_width)):
            rows = torch.randn((count, kv_heads, self.slab.capacity, each), generator=random)
            buffers[0] = rows.to(DEVICE)
        self.n, requests = max(sizes), []
        for place, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
            rows_of = CacheRows(0)
            rows_of.note(np.zeros(length + 1, np.int64))
            rows_of.keep(range(length))
            tree = random_tree(place, size - 1 + held) if size + held > 1 else EMPTY
            whole = Request.of_tree(rows_of, 1, tree)
            rows_of.note(whole.tokens[:held])
            requests.append((place, Request(rows_of, whole.tokens[held:], whole.parents, held=held)))
        self.sizes = sizes
        self.inputs = Inputs(count, self.n, DEVICE)
        self.inputs.fill(requests, self.slab.capacity - 1)

    def both(self, heads: int, options: AttentionOptions, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """What kernels and what torch's operations find for the rows of the drafts."""
        count, width = len(self.sizes), self.slab.keys[0].shape[3]
        for buffers in (self.slab.keys, self.slab.values):
            buffers[0] = buffers[0].to(dtype)
        random = torch.Generator().manual_seed(1)
        query = torch.randn((1, count * self.n, heads, width), generator=random).to(DEVICE, dtype).transpose(1, 2)
        shape = ForwardShape(0, count, self.n, self.slab.capacity)
        blocks = KernelBlock(self.slab, shape, self.inputs), LeanBlock(self.slab, shape, self.inputs, splits=False)
        found, expected = (block.attend(0, query, options) for block in blocks)
        rows = [place * self.n + i for place, size in enumerate(self.sizes) for i in range(size)]
        return found[0][:, rows], expected[0][:, rows]


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return apart(found, expected) < (CLOSE if expected.dtype is torch.float32 else 0.02)


TYPES = [torch.float32, torch.float16] if INTERPRETED else [torch.float32, torch.float16, torch.bfloat16]
"""The interpreter multiplies no bfloat16."""


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "value_width"),
    [(4, 4, 16, 16), (4, 2, 64, 64), (6, 1, 80, 80), (8, 2, 128, 128), (7, 1, 48, 32), (2, 1, 256, 256)],
)
def test_attention_of_all_groupings(
    heads: int, kv_heads: int, width: int, value_width: int, dtype: torch.dtype
) -> None:
    slots = Slots([200], [6], kv_heads, width, value_width)
    assert near(*slots.both(heads, AttentionOptions(width**-0.5), dtype))


@pytest.mark.parametrize("n", [1, 2, 3, 9, 16, 33, 100, 128])
def test_attention_of_one_to_many_rows(n: int) -> None:
    assert near(*Slots([150], [n], 2, 32, 32).both(6, AttentionOptions(0.2), torch.float32))


@pytest.mark.parametrize("window", [None, 1, 40, 1000])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 700, 5000])
def test_attention_behind_texts_of_all_lengths(length: int, window: int | None) -> None:
    options = AttentionOptions(0.2, window=window)
    assert near(*Slots([length], [7], 1, 32, 32).both(2, options, torch.float32))


@pytest.mark.parametrize(("kind", "parts"), crossed(["plain", "window", "softcap", "sinks", "all"], [(0, 1), (3, 30)]))
def test_attention_of_ragged_texts(kind: str, parts: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In one part and in several, of which some have nothing to read."""
    held, processors = parts
    monkeypatch.setattr(running, "processors", lambda device: processors)
    sinks = torch.randn(4, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    options = AttentionOptions(
        0.3,
        window=30 if kind in ("window", "all") else None,
        softcap=4.0 if kind in ("softcap", "all") else None,
        sinks=sinks if kind in ("sinks", "all") else None,
    )
    slots = Slots([5, 300, 64, 900], [4, 1, 12, 7], 2, 32, 32, held=held)
    assert near(*slots.both(4, options, torch.float32))


MISTAKES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a row that is not seen": lambda given: given["seen"][:, 1].logical_not_(),
    "a text a row too long": lambda given: given["committed"].add_(1),
    "a draft a row too short": lambda given: given["fresh"].sub_(1),
    "positions one behind": lambda given: given["positions"].sub_(1),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_seen(mistake: str) -> None:
    slots = Slots([70], [9], 2, 32, 32)
    options = AttentionOptions(0.5, window=20)
    expected = slots.both(4, options, torch.float32)[1]
    MISTAKES[mistake]({name: getattr(slots.inputs, name) for name in ("seen", "committed", "fresh", "positions")})
    assert apart(slots.both(4, options, torch.float32)[0], expected) > SEEN


def test_heads_whose_types_differ_are_left_to_torch() -> None:
    """A norm of heads is none of rows."""
    block, heads = torch.randn(1, 5, 4, 16, device=DEVICE), torch.randn(16, device=DEVICE)
    norm: Any = SimpleNamespace(_parameters={"weight": heads}, variance_epsilon=1e-5)
    assert torch.equal(LayerKernels().norm(block, norm), Operations().norm(block, norm))


def test_programs_have_what_fits_into_registers() -> None:
    assert running.tile(64, 128, torch.bfloat16) == (64, 64)
    assert running.tile(300, 256, torch.bfloat16) == (32, 32)
    assert running.tile(64, 64, torch.float32) == (32, 32)
    assert running.tile(64, 128, torch.float32) == (16, 32)
    assert running.tile(3, 512, torch.float32) == (16, 16)


def test_a_text_is_split_where_a_gpu_would_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    monkeypatch.setattr(running, "processors", lambda device: 8)
    assert [splits_of(programs, 1000, device) for programs in (1, 2, 3, 8, 16, 40)] == [16, 8, 4, 2, 1, 1]
    assert splits_of(1, 3, device) == 2
    assert splits_of(1, 0, device) == 1


# --- whole forwards -----------------------------------------------------------------------------------------


def kernel_target(name: str, *, lean: bool) -> HFTarget:
    target = recorded(build(name).to(DEVICE), lean=lean, kernels=True)
    target.limits = target_of(name).limits
    return target


SHOWN = (("opt", False), ("gpt_oss", False), ("qwen3", True))
"""Families that differ in what kernels treat apart; the others take long."""
WAYS = [(name, False) for name in PACKED] + [(name, True) for name in ("llama", "mistral", "qwen2", "qwen3")]


@pytest.mark.parametrize(
    ("name", "lean"), [pytest.param(*way, marks=() if way in SHOWN else pytest.mark.slow) for way in WAYS]
)
def test_what_is_played_back_is_what_the_model_finds(name: str, lean: bool) -> None:
    """Texts that grow, another draft each time, in slots of one recording."""
    target, plain = kernel_target(name, lean=lean), target_of(name)
    pairs = [(filled(target, tokens(n, n)), filled(plain, tokens(n, n))) for n in (CONTEXT, 9)]
    for seed in range(2):
        trees = [random_tree(seed + 3 * i, 3 - i) for i in range(2)]
        asked = [
            [
                Request.of_tree(pair[which], seed + i, tree)
                for i, (pair, tree) in enumerate(zip(pairs, trees, strict=True))
            ]
            for which in range(2)
        ]
        found, expected = target.submit(asked[0]).result(), [plain.submit([one]).result()[0] for one in asked[1]]
        assert max(apart(f.logits.cpu(), e.logits) for f, e in zip(found, expected, strict=True)) < CLOSE
        for pair in pairs:
            for rows in pair:
                rows.keep([0, 1])
                rows.check()
    assert len(path_of(target).recorded) == 1
    assert path_of(target).without_kernels is None


def test_a_twin_records_the_same_rows_without_kernels() -> None:
    target, plain = kernel_target("llama", lean=True), target_of("llama")
    path, text, tree = path_of(target), tokens(CONTEXT), random_tree(1, 3)
    rows, twin = filled(target, text), path.twin()
    expected = plain.submit([Request.of_tree(filled(plain, text), 3, tree)]).result()[0].logits
    for each in (path, twin):
        with target.using(each, target.own):
            found = target.submit([Request.of_tree(rows, 3, tree)]).result()[0].logits.cpu()
        assert apart(found, expected) < CLOSE
        rows.keep([])
        assert each.recorded
    rows.close()
    assert path.slab.release()
    assert not twin.recorded


def test_one_recording_serves_all_lengths() -> None:
    target, plain = kernel_target("llama", lean=True), target_of("llama")
    for length in (1, 255, 257, 400):
        text, tree = tokens(length, length), random_tree(length, 3)
        rows, twin = filled(target, text), filled(plain, text)
        found = target.submit([Request.of_tree(rows, 3, tree)]).result()[0].logits.cpu()
        assert apart(found, plain.submit([Request.of_tree(twin, 3, tree)]).result()[0].logits) < CLOSE
        rows.close()
    assert len(path_of(target).recorded) == 1


def test_a_draft_is_played_with_kernels() -> None:
    """The text moves on between the links of a recorded draft."""
    target, plain = kernel_target("llama", lean=True), target_of("llama")
    drafts = []
    for model in (target, plain):
        drafter = Assistant(model=model)
        drafter.fit(model)
        drafts.append(drafter.propose([Ask(drafter.open(context_of(tokens(30).tolist())), Budget(3, 3))])[0])
    assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
    assert np.allclose(drafts[0].scores, drafts[1].scores, atol=1e-3)
    assert path_of(target).linked


def tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


class Counted(TorchDispatchMode):
    """Operations that a device computes: all but views and memory."""

    def __init__(self) -> None:
        super().__init__()
        self.made = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        memory, made = ({each.untyped_storage().data_ptr() for each in tensors(of)} for of in (args, result))
        moved = made <= memory
        written = func._schema.is_mutable
        if (not moved or written) and not func.__name__.startswith(("empty", "new_empty", "detach")):
            self.made.append(func.__name__)
        return result

    def launched(self, launch: Callable[..., None], kernel: Any, *given: Any, **constants: Any) -> None:
        self.made.append(kernel.__name__)
        with _disable_current_modes():
            launch(kernel, *given, **constants)


def operations_of(layers: int, name: str, *, kernels: bool) -> int:
    """Of a forward over a text that is split."""
    from paceline.targets.hf.variants import join_layers

    model = build(name, num_hidden_layers=layers).to(DEVICE)
    join_layers(model, lambda layer: layer)
    target = recorded(model, lean=True, kernels=kernels)
    path, counted = path_of(target), Counted()
    rows = filled(target, tokens(CONTEXT))
    request = Request.of_tree(rows, 1, random_tree(1, 7))
    rows.note(request.tokens)
    step = Step(target.own, path.slab, ForwardShape(0, 1, 8, path.slab.capacity), path.lean, kernels=kernels)
    with torch.no_grad(), counted, launches(counted.launched):
        step.compute(lambda logits: lambda: None)
    return len(counted.made)


@pytest.mark.parametrize(("name", "before"), thinned([("llama", 29), ("qwen3", 42)]))
def test_a_layer_takes_ten_kernels(name: str, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "processors", lambda device: 8)
    took = {
        kernels: operations_of(5, name, kernels=kernels) - operations_of(4, name, kernels=kernels)
        for kernels in (False, True)
    }
    assert took[True] == 10
    assert took[False] == before or not INTERPRETED


# --- what does not work is not used -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
def test_the_kernels_work_here(dtype: torch.dtype) -> None:
    assert trial._difference.__wrapped__(DEVICE, dtype) is None
    assert trial.obstacle(DEVICE, torch.float64) == "they know no float64"


@pytest.mark.parametrize("which", ["added", "placed", "gated"])
def test_a_kernel_that_differs_is_named(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[..., Any] = getattr(LayerKernels, which)

    def other(*given: Any) -> Any:
        found = honest(*given)
        return tuple(1.1 * each for each in found) if isinstance(found, tuple) else 1.1 * found

    monkeypatch.setattr(LayerKernels, which, other)
    said = {"added": "the sum of states", "placed": "the rotation of queries", "gated": "the gate"}[which]
    assert trial._difference.__wrapped__(DEVICE, torch.float32) == f"{said} differs from torch's"


def test_a_compiler_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **constants: Any) -> None:
        raise RuntimeError("no such instruction\nmore of it")

    monkeypatch.setattr(launching, "launch", broken)
    trial._difference.cache_clear()
    assert trial.obstacle(DEVICE, torch.float32) == "RuntimeError: no such instruction"
    trial._difference.cache_clear()


def test_kernels_that_fail_a_model_are_dropped_and_the_rest_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Operations.gated
    monkeypatch.setattr(LayerKernels, "gated", lambda self, gate, up, act: 1.2 * honest(self, gate, up, act))
    target = HFTarget(build("llama").to(DEVICE), fixed_shapes=True)
    path_of(target).without_kernels = None
    with pytest.warns(UserWarning, match="kernels are not used, which costs speed and nothing else: "):
        prepare(target)
    assert path_of(target).without_kernels is not None
    assert path_of(target).refused is None
    assert path_of(target).recorded


def test_kernels_that_break_in_a_text_cost_it_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target, plain = kernel_target("llama", lean=True), target_of("llama")
    path_of(target).forgiven = (RuntimeError,)
    rows, twin = filled(target, tokens(CONTEXT)), filled(plain, tokens(CONTEXT))
    expected = plain.submit([Request.of_tree(twin, 3, random_tree(1))]).result()[0].logits

    def broken(*given: Any, **constants: Any) -> None:
        raise RuntimeError("an illegal memory access")

    with monkeypatch.context() as patched:
        patched.setattr(launching, "launch", broken)
        with pytest.warns(UserWarning, match="kernels are not used, .*: RuntimeError: an illegal memory access"):
            found = target.submit([Request.of_tree(rows, 3, random_tree(1))]).result()[0].logits
    assert apart(found.cpu(), expected) < CLOSE
    rows.keep([])
    assert apart(target.submit([Request.of_tree(rows, 3, random_tree(1))]).result()[0].logits.cpu(), expected) < CLOSE
    assert path_of(target).recorded
    assert path_of(target).refused is None


# --- without a GPU ------------------------------------------------------------------------------------------


def compiled(*capabilities: int, types: str) -> list[str]:
    """Lines of `compiling`, run outside of the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(HERE / "compiling.py"), types, *map(str, capabilities)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


SPILLED = 600
"""Bytes of a thread that may not fit into registers."""
KERNELS = {
    "gumbel",
    "block_maxima",
    "bounds",
    "reached",
    "add_norm",
    "rotate_and_write",
    "write",
    "gate",
    "attend",
    "join",
    "delta",
    "diagonal",
}


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu() -> None:
    """What a kernel finds is tested above, by default in the interpreter."""
    lines = [line.split() for line in compiled(90, types="bfloat16")]
    assert {kernel for _, kernel, *_ in lines} == KERNELS
    assert max(int(spilled) for *_, spilled in lines) <= SPILLED


@pytest.mark.slow
def test_every_kernel_compiles_for_all_gpus_and_types() -> None:
    for capability in (75, 80, 86, 89, 90, 100, 120):
        types = "float32 float16" if capability == 75 else "float32 float16 bfloat16"
        assert {line.split()[1] for line in compiled(capability, types=types)} == KERNELS
