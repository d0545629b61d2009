"""Forwards compiled in one call: the bits of torch's operations, whatever the number of rows, texts and threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import paceline
from families import build
from paceline.errors import InputError
from paceline.targets.base import NOTHING, Request, Want
from paceline.targets.hf.fused import placed
from paceline.targets.hf.fused.forward import forward
from paceline.targets.hf.fused.path import Fused
from paceline.targets.hf.fused.team import ASLEEP, CALLS, TEAM, Team, raised
from paceline.targets.hf.fused.weights import groups_of, nibbles_of, of_bytes, of_nibbles, product
from paceline.targets.hf.integers import kernels
from paceline.targets.hf.integers.target import IntegerTarget
from paceline.targets.hf.integers.target import quantized as in_integers
from paceline.targets.hf.lean import Lean
from paceline.tree import DraftTree
from scoring import filled, load_quietly, mixed_requests, tokens
from thinning import crossed, thinned

FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
"""With windows, biases and norms of heads."""

if kernels.obstacle() is not None:
    pytest.skip(f"nothing is compiled here: {kernels.obstacle()}", allow_module_level=True)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> Iterator[None]:
    """Also where another kernel is faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.targets.hf.integers.linear.kernel_for", lambda threads: kernels.Compiled)
        yield


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    had = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(had)


@cache
def target_of(name: str, bits: int = 8) -> IntegerTarget:
    return in_integers(load_quietly(build(name)), bits=bits)


def fused_of(target: IntegerTarget) -> Fused:
    path = target.paths[0]
    assert isinstance(path, Fused)
    return path


def lean_of(target: IntegerTarget) -> Lean:
    """The same products between torch's operations."""
    fused = fused_of(target)
    return Lean(target._own, fused._operations)


def scored(target: IntegerTarget, path: Lean, want: Want = NOTHING) -> list[Tensor]:
    """Logits, hidden states and early logits."""
    found = []
    with target.using(path):
        for scores in target.submit(mixed_requests(target, want)).result():
            found += [scores.logits, *(scores.hidden(layer) for layer in sorted(want.hidden))]
            if want.early_exit is not None:
                found.append(scores.early)
    return found


@pytest.mark.parametrize(("name", "threads", "bits"), crossed(FAMILIES, [1, 2, 3], [8, 4]), indirect=["threads"])
def test_it_finds_the_bits_of_torchs_operations(bits: int, name: str, threads: int) -> None:
    target = target_of(name, bits)
    for ours, theirs in zip(scored(target, fused_of(target)), scored(target, lean_of(target)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "want", [Want(hidden=frozenset({0, 1})), Want(hidden=frozenset({1, 2}), early_exit=1), Want(logits=True)]
)
def test_states_are_there_in_the_middle(want: Want) -> None:
    target = target_of("qwen3")
    ours, theirs = scored(target, fused_of(target), want), scored(target, lean_of(target), want)
    assert all(map(torch.equal, ours, theirs))


def test_the_last_states_of_a_prompt_are_there_without_its_logits() -> None:
    """No row has logits then."""
    target = target_of("qwen3")
    last = len(fused_of(target).modules.layers)

    def states(path: Lean) -> Tensor:
        with target.using(path):
            request = Request.of_prompt(target.open(), tokens(9), Want(hidden=frozenset({last})))
            return target.submit([request]).result()[0].hidden(last)

    assert torch.equal(states(fused_of(target)), states(lean_of(target)))


def test_early_logits_come_before_the_later_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    target, order = target_of("llama"), list[str]()
    run = TEAM.run
    rows = filled(target, tokens(9))

    def noting(job: placed.Table) -> None:
        if job[placed.at.FUNCTION] == forward():
            order.append("layers")
        run(job)

    monkeypatch.setattr(TEAM, "run", noting)
    want = Want(early_exit=1)
    request = Request.of_tree(rows, 5, DraftTree.chain([3]), want, on_early=lambda _: order.append("exit"))
    target.submit([request]).result()
    assert order == ["layers", "exit", "layers"]


def test_prompts_without_logits_only_write_keys_and_values() -> None:
    target = target_of("llama")
    rows = target.open()
    target.submit([Request.of_prompt(rows, tokens(20))]).result()
    rows.keep(range(20))
    [alone] = target.submit([Request.of_tree(rows, 5, DraftTree.chain([]))]).result()
    [behind] = target.submit([Request.of_tree(filled(target, tokens(20)), 5, DraftTree.chain([]))]).result()
    assert torch.equal(alone.logits, behind.logits)


@pytest.mark.parametrize("outputs", [1, 3, 4, 7, 96])
@pytest.mark.parametrize("threads", [1, 3], indirect=True)
def test_a_product_has_any_number_of_outputs_and_rows(outputs: int, threads: int) -> None:
    weight, scales = torch.randint(-128, 128, (outputs, 64), dtype=torch.int8), torch.rand(outputs)
    for count in (1, 2, 3, 5, 9):
        rows = torch.randint(-127, 128, (count, 64)).float()
        wanted = (rows.long() @ weight.long().t()).float() * scales
        assert torch.equal(product(rows, of_bytes(weight, scales)), wanted)


@pytest.mark.parametrize("inputs", [32, 64, 200, 512, 576, 1100])
@pytest.mark.parametrize("threads", [1, 3], indirect=True)
def test_products_of_4_bits_are_exact(inputs: int, threads: int) -> None:
    """Also with the largest sums there are."""
    groups = groups_of(inputs)
    values = torch.randint(-8, 8, (7, inputs), dtype=torch.int8)
    values[0] = -8
    most = min(2**15 - 1, (2**31 - 1) // (8 * 127 * inputs))
    multipliers = torch.randint(-most, most + 1, (7, -(-inputs // 512) * 16))
    multipliers[:2] = most
    scales = torch.rand(7)
    weights = of_nibbles(values, multipliers, scales)
    assert torch.equal(nibbles_of(weights)[:, :inputs], values)
    for count in (1, 2, 3, 5, 9):
        rows = torch.randint(-127, 128, (count, inputs)).float()
        rows[0] = 127
        wanted = (rows.long() @ (values.long() * multipliers[:, groups]).t()).float() * scales
        assert torch.equal(product(rows, weights), wanted)


def test_a_parameter_that_is_replaced_takes_effect() -> None:
    target = in_integers(load_quietly(build("llama")))
    norm = fused_of(target).modules.layers[0].before
    norm.weight = nn.Parameter(norm.weight.detach() * 1.5, requires_grad=False)
    ours, theirs = scored(target, fused_of(target)), scored(target, lean_of(target))
    assert all(map(torch.equal, ours, theirs))
    assert not torch.equal(ours[0], scored(target_of("llama"), fused_of(target_of("llama")))[0])


def test_a_draft_that_is_scored_level_by_level_keeps_its_rows_where_memory_grows() -> None:
    target = target_of("llama")

    def written(path: Lean) -> list[Tensor]:
        with target.using(path):
            rows, found = target.open(), []
            target.submit([Request.of_prompt(rows, tokens(9))]).result()
            rows.keep(range(9))
            parents = np.empty(0, np.int64)
            for level in range(4):
                fresh = np.array([level - 1, level - 1]) if level < 2 else np.array([2 * level - 1, 2 * level - 2])
                held, parents = len(parents), np.concatenate([parents, fresh])
                request = Request(rows, tokens(2, level), parents, held=held)
                found.append(target.submit([request]).result()[0].logits)
            return found

    assert all(map(torch.equal, written(fused_of(target)), written(lean_of(target))))


def test_layers_that_are_replaced_take_effect_or_are_refused() -> None:
    target = in_integers(load_quietly(build("llama")))
    before = scored(target, fused_of(target))
    layer: Any = target.model.model.layers[0]
    layer.self_attn.o_proj = target.model.model.layers[1].self_attn.o_proj
    ours, theirs = scored(target, fused_of(target)), scored(target, lean_of(target))
    assert all(map(torch.equal, ours, theirs))
    assert not torch.equal(ours[0], before[0])
    norm = layer.input_layernorm
    norm.weight.data = norm.weight.data * 2.0
    assert not torch.equal(scored(target, fused_of(target))[0], ours[0])
    hook = layer.mlp.down_proj.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="hooks or replaces"):
        target.submit(mixed_requests(target, NOTHING))
    hook.remove()
    assert scored(target, fused_of(target))


@pytest.mark.parametrize("planted", ["a neighbour is seen", "another scale"])
def test_a_forward_with_other_bits_is_not_used(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's operations are: the text stays."""
    rows_of, places = placed.rows_of, placed.PlacedWeights.__init__

    def seeing(requests: list[Request]) -> tuple[placed.Table, placed.Table]:
        table, further = rows_of(requests)
        further[1:-1] = further[2:]
        return table, further

    def scaling(self: placed.PlacedWeights, *given: Any) -> None:
        places(self, *given)
        self.numbers[:, placed.at.SCALE] *= 1.0001

    if planted == "a neighbour is seen":
        monkeypatch.setattr("paceline.targets.hf.fused.path.rows_of", seeing)
    else:
        monkeypatch.setattr(placed.PlacedWeights, "__init__", scaling)
    target = in_integers(load_quietly(build("llama")))
    assert type(target.paths[0]) is Lean
    assert target.note is not None
    assert target.note.startswith("compiled forwards find other numbers here than torch")


# --- threads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [3], indirect=True)
def test_threads_sleep_while_there_is_no_work_and_wake(threads: int) -> None:
    weight, scales = torch.ones(8, 32, dtype=torch.int8), torch.ones(8)
    rows = torch.ones(2, 32)
    for _ in range(3):
        assert torch.equal(product(rows, of_bytes(weight, scales)), torch.full((2, 8), 32.0))
        until = time.monotonic() + 60
        while TEAM._control[ASLEEP] < len(TEAM._threads) and time.monotonic() < until:
            time.sleep(0.01)
        assert TEAM._control[ASLEEP] == len(TEAM._threads) >= 2


@pytest.mark.parametrize("threads", [3], indirect=True)
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_leaves_the_threads_in_order(when: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, scales = torch.ones(8, 32, dtype=torch.int8), torch.ones(8)
    rows, call = torch.ones(2, 32), Team._call

    def interrupted(self: Team) -> None:
        if when == "after":
            raised(self._address + 8 * CALLS, 1)
        raise KeyboardInterrupt

    product(rows, of_bytes(weight, scales))
    for _ in range(3):
        monkeypatch.setattr(Team, "_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            product(rows, of_bytes(weight, scales))
        monkeypatch.setattr(Team, "_call", call)
        assert torch.equal(product(rows, of_bytes(weight, scales)), torch.full((2, 8), 32.0))


@pytest.mark.parametrize("threads", [4], indirect=True)
def test_fewer_threads_end_those_that_are_left_over(threads: int) -> None:
    weight, scales, rows = torch.ones(8, 32, dtype=torch.int8), torch.ones(8), torch.ones(2, 32)
    product(rows, of_bytes(weight, scales))
    assert len(TEAM._threads) == 3
    torch.set_num_threads(2)
    assert torch.equal(product(rows, of_bytes(weight, scales)), torch.full((2, 8), 32.0))
    assert len(TEAM._threads) == 1


def test_numbers_too_small_for_a_step_are_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """A division by 0 in a thread would leave the others waiting."""
    target = in_integers(load_quietly(build("llama")))
    for layer in fused_of(target).modules.layers:
        layer.before.weight.data.fill_(1e-45)
    assert all(bool(each.isfinite().all()) for each in scored(target, fused_of(target)))


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_several_callers_take_turns(threads: int) -> None:
    targets = [in_integers(load_quietly(build(name))) for name in ("llama", "qwen3")]
    wanted = [scored(target, fused_of(target)) for target in targets]
    found: list[list[list[Tensor]]] = [[], []]

    def write(number: int) -> None:
        torch.set_num_threads(2)
        for _ in range(10):
            found[number].append(scored(targets[number], fused_of(targets[number])))

    callers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for each, right in zip(found, wanted, strict=True):
        assert len(each) == 10
        assert all(torch.equal(one, other) for one_found in each for one, other in zip(one_found, right, strict=True))


# --- without it -------------------------------------------------------------------------------------------------

WRITE = """
import sys
{before}
import paceline
lm = paceline.load("pocket", quantize="int8")
print(type(lm.target.paths[0]).__name__, lm.target.note)
print(lm.generate("The old house stood at", max_new_tokens=24, temperature=0.8, seed=4, method="lookup").tokens)
"""
MISSING = "sys.modules['numba'] = None"
BROKEN = "import types; sys.modules['numba'] = types.SimpleNamespace(__version__='0.1')"


@pytest.mark.parametrize(
    ("before", "said"),
    thinned(
        [
            (BROKEN, "numba 0.1 does not compile it"),
            (MISSING, "numba is not installed, so integers are computed more slowly"),
        ]
    ),
)
def test_without_it_the_text_is_the_same_and_a_note_says_so(before: str, said: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", WRITE.format(before=before)], capture_output=True, text=True, check=True
    ).stdout
    path, tokens_ = found.splitlines()
    assert path.startswith("Lean ")
    assert said in path
    lm = paceline.load("pocket", quantize="int8")
    assert isinstance(lm.target.paths[0], Fused)
    text = lm.generate("The old house stood at", max_new_tokens=24, temperature=0.8, seed=4, method="lookup")
    assert tokens_ == str(text.tokens)


@pytest.mark.slow
def test_where_nothing_can_be_kept_it_is_compiled_each_time(tmp_path: Path) -> None:
    """No folder for compiled code can be written. Which takes long."""
    before = "from numba.core import caching; caching.CacheImpl._locator_classes = []"
    script = WRITE.format(before=before).replace("24", "2")
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout.startswith(("Fused None", "Lean None"))
