"""Drafts of fixed shapes: recorded once, played back for other texts, and never anything but the model's own rows.

No GPU is needed: forwards are recorded on a `Tape`, which repeats what a CUDA graph would repeat. What a tape cannot
show (streams, memory pools, what CUDA's kernels find) is for the machine that has one; see docs/devices.md.
"""

import gc
import itertools
import re
import shlex
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

import paceline
from clock import MadeClock
from engine import Watched, write
from families import FAMILIES, build
from paceline.api.model import LanguageModel
from paceline.cli import parser
from paceline.drafters import Drafter, make_drafter
from paceline.drafters.networks.assistant import Assistant
from paceline.engine.calls import Call, Timed
from paceline.errors import DrafterError
from paceline.integrations.transformers import custom_generate
from paceline.once import once
from paceline.planning.fixed import Fixed
from paceline.targets.base import Request, Rows, Want
from paceline.targets.cache import CacheRows
from paceline.targets.hf.fixed import kernels, replay
from paceline.targets.hf.fixed.block import LeanBlock
from paceline.targets.hf.fixed.capture import (
    CapturesGraphs,
    Leave,
    Uncapturable,
    direct,
    hear_nothing,
    pass_by,
    rehearse,
)
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.kernels import piece_of
from paceline.targets.hf.fixed.replay import FixedPath
from paceline.targets.hf.fixed.shapes import SHORTEST_RECORDED_TEXT, ForwardShape, block, stretch
from paceline.targets.hf.fixed.slab import AHEAD, GRAIN, Slab, SlabRows, bucket
from paceline.targets.hf.fixed.step import Step
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.own import Mode, OwnForward
from paceline.targets.hf.path import UNTESTED_ERRORS
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.tree import EMPTY, ROOT, DraftTree, Ints
from papers.device.__main__ import ITEM as DEVICE
from papers.driver import asked_for
from scoring import (
    CLOSE,
    CONTEXT,
    SEEN,
    apart,
    draft_for,
    filled,
    generated,
    load_quietly,
    path_of,
    random_tree,
    read,
    recorded,
    score,
    target_of,
    tokens,
)
from tape import taped
from thinning import crossed

PADDING_CHECKED = "gpt2"
"""Looks for padding in its tokens, which a recording cannot; goes its own way."""
RECORDED = [name for name, family in FAMILIES.items() if family.interface and name != PADDING_CHECKED]
LEAN = ["llama", "mistral", "qwen2", "qwen3"]
WAYS = [(name, False) for name in RECORDED] + [(name, True) for name in LEAN]
every_way = pytest.mark.parametrize(("name", "lean"), WAYS)


def fixed(name: str = "llama", record: Any = taped, *, lean: bool = False, seed: int = 0) -> HFTarget:
    target = recorded(build(name, seed=seed), record, lean=lean)
    target.limits = target_of(name).limits
    return target


@cache
def shared(name: str) -> HFTarget:
    return fixed(name)


@cache
def own_only(name: str) -> HFTarget:
    """The same, as transformers computes it."""
    target = load_quietly(build(name))
    target.paths = [target.own]
    return target


def record_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    calls, method = list[str](), getattr(owner, name)

    def called(*args: Any) -> Any:
        calls.append(name)
        return method(*args)

    monkeypatch.setattr(owner, name, called)
    return calls


def slab_rows(rows: Rows) -> SlabRows:
    assert isinstance(rows, SlabRows), "rows of the slab"
    assert rows.slot is not None, "rows in a slot"
    return rows


class Pair:
    """A sequence in a slab and its twin in rows of its own, which the model itself scores."""

    def __init__(self, target: HFTarget, plain: HFTarget, text: Ints) -> None:
        self.target, self.plain = target, plain
        self.rows, self.twin = filled(target, text), filled(plain, text)

    def requests(self, root: int, tree: DraftTree, want: Want = Want()) -> tuple[Request, Request]:  # noqa: B008
        return Request.of_tree(self.rows, root, tree, want), Request.of_tree(self.twin, root, tree, want)

    def keep(self, path: list[int]) -> None:
        for rows in (self.rows, self.twin):
            rows.keep(path)
            rows.check()

    def close(self) -> None:
        self.rows.close()
        self.twin.close()


def gap(target: HFTarget, plain: HFTarget, pairs: list[tuple[Request, Request]]) -> float:
    found = target.submit([ours for ours, _ in pairs]).result()
    expected = [plain.submit([twin]).result()[0] for _, twin in pairs]
    return max(apart(f.logits, e.logits) for f, e in zip(found, expected, strict=True))


# --- rows of every family -----------------------------------------------------------------------------------


@every_way
def test_what_is_played_back_is_what_the_model_finds(name: str, lean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two recordings serve eight forwards: other tokens, other trees, other lengths, other slots of the block."""
    target, plain = fixed(name, lean=lean), own_only(name)
    computed = record_calls(monkeypatch, Lean, "computed")
    pairs = [Pair(target, plain, tokens(CONTEXT - 5 * i, i)) for i in range(2)]
    for seed in range(4):
        trees = [random_tree(seed, 9 + seed), random_tree(seed + 40, 12 - seed)]
        asked = [pair.requests(seed + i, tree) for i, (pair, tree) in enumerate(zip(pairs, trees, strict=True))]
        assert gap(target, plain, asked) < CLOSE
        for pair, tree in zip(pairs, trees, strict=True):
            pair.keep([0, *(node + 1 for node in tree.path(len(tree) - 1))])
        asked = [pair.requests(seed + 7, EMPTY) for pair in pairs]
        assert gap(target, plain, asked) < CLOSE
        for pair in pairs:
            pair.keep([0])
    assert [(s.first, s.count, s.rows, s.length) for s in path_of(target).recorded] == [(0, 2, 16, 256), (0, 2, 1, 256)]
    assert len(computed) == (4 if lean else 0)


def test_whatever_happens_rows_are_those_of_a_sequence_alone() -> None:
    """Sequences come, read, draft in groups, keep, are rewound, and go, while slots are reused and buffers grow."""
    target, plain, random = fixed("gemma2"), target_of("gemma2"), np.random.default_rng(0)
    open_ones: list[Pair] = []
    moves = 0
    for step in range(60):
        act = random.integers(6)
        if len(open_ones) < 2 or (act == 0 and len(open_ones) < 6) or step == 30:
            capacity = path_of(target).slab.capacity
            open_ones.append(Pair(target, plain, tokens(700 if step == 30 else int(random.integers(1, 90)), step)))
            moves += path_of(target).slab.capacity != capacity
        elif act == 1:
            open_ones.pop(int(random.integers(len(open_ones)))).close()
        elif act == 2:
            pair = open_ones[int(random.integers(len(open_ones)))]
            for rows in (pair.rows, pair.twin):
                rows.rewind(pair.twin.committed // 2)
                rows.check()
        else:
            some = [pair for pair in open_ones if random.random() < 0.6] or open_ones[:1]
            trees = [random_tree(int(random.integers(1000)), int(random.integers(1, 20))) for _ in some]
            asked = [pair.requests(3, tree) for pair, tree in zip(some, trees, strict=True)]
            assert gap(target, plain, asked) < CLOSE
            for pair, tree in zip(some, trees, strict=True):
                pair.keep([0, *(node + 1 for node in tree.path(int(random.integers(len(tree)))))])
    assert moves >= 2
    assert len(path_of(target).recorded) > 5
    for pair in open_ones:
        pair.close()
    assert path_of(target).slab.taken == []


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
def test_drafts_scored_level_by_level(name: str) -> None:
    target, plain, text = shared(name), target_of(name), tokens(CONTEXT)
    whole = Request.of_tree(filled(plain, text), 1, DraftTree.build(tokens(6), [ROOT, ROOT, 0, 1, 1, 3]))
    expected = plain.submit([whole]).result()[0].logits
    rows, found, done = filled(target, text), [], 0
    for size in (1, 2, 3, 1):
        fresh = Request(rows, whole.tokens[done : done + size], whole.parents[: done + size], held=done)
        found.append(target.submit([fresh]).result()[0].logits)
        done += size
    assert apart(torch.cat(found), expected) < CLOSE
    rows.keep([0, 2, 4, 6])
    rows.check()
    rows.close()


@pytest.mark.parametrize("name", ["llama", "qwen2", "opt"])
@pytest.mark.parametrize("mistake", [None, "weights", "pieces"])
def test_long_texts_are_split_and_put_together(name: str, mistake: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that a row sees nothing of weigh nothing."""
    found, pieces = list[int](), kernels._pieces

    def counted(rows: Tensor, keys: Tensor, *others: Any) -> Any:
        found.append(len(keys))
        mixed, weight = pieces(rows, keys, *others)
        return mixed.roll(1, 0) if mistake == "pieces" else mixed, 0 * weight if mistake == "weights" else weight

    target, plain = fixed(name), target_of(name)
    assert kernels.splits_here(torch.device("cpu"), torch.float32, 16)
    monkeypatch.setattr(kernels, "_pieces", counted)
    pairs = [Pair(target, plain, tokens(n, n)) for n in (1100, 1700)]
    worst = 0.0
    for seed in range(3):
        asked = [pair.requests(seed, random_tree(seed + i, 12)) for i, pair in enumerate(pairs)]
        worst = max(worst, gap(target, plain, asked))
        for pair in pairs:
            pair.keep([0, 1])
        worst = max(worst, gap(target, plain, [pairs[1].requests(seed, EMPTY)]))
        pairs[1].keep([0])
    assert worst < CLOSE if mistake is None else worst > SEEN
    assert set(found) == {7}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mistake", ["a rounding", "weights", "pieces", "a scale"])
def test_a_split_is_used_where_it_differs_by_rounding_alone(
    mistake: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way a device's kernels round."""
    pieces = kernels._pieces

    def other(*given: Any) -> Any:
        mixed, weight = pieces(*given)
        if mistake == "pieces":
            return mixed.roll(1, 0), weight
        factor = {"a rounding": 1 + torch.finfo(dtype).eps, "a scale": 1.05}.get(mistake, 1.0)
        return (mixed.float() * factor).to(mixed.dtype), 0 * weight if mistake == "weights" else weight

    monkeypatch.setattr(kernels, "_pieces", other)
    assert kernels.splits_here.__wrapped__(torch.device("cpu"), dtype, 128) is (mistake == "a rounding")


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("mistake", [0, 1])
def test_of_a_long_text_a_window_is_all_that_is_read(name: str, mistake: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found, keys = list[int](), Inputs.keys

    def counted(inputs: Inputs, window: int | None, length: int) -> Tensor | None:
        some = keys(inputs, window, length)
        found.append(length if some is None else some.shape[1])
        return some if some is None else (some + 600 * mistake).clamp(max=length - 1)

    monkeypatch.setattr(Inputs, "keys", counted)
    target, plain = fixed(name), target_of(name)
    pairs = [Pair(target, plain, tokens(n, n)) for n in (600, 1100, 9)]
    worst = 0.0
    for seed in range(2):
        worst = max(
            worst, gap(target, plain, [p.requests(seed, random_tree(seed + i, 12)) for i, p in enumerate(pairs)])
        )
        for pair in pairs:
            pair.keep([0, 1])
    assert worst > SEEN if mistake else worst < CLOSE
    assert set(found) == ({512} if name == "mistral" else {512, 1280})


@pytest.mark.parametrize("lean", [False, True])
def test_wanted_states_come_along(lean: bool) -> None:
    target, plain = fixed(lean=lean), own_only("llama")
    pair = Pair(target, plain, tokens(CONTEXT))
    for want in (Want(hidden=frozenset({0, 2, 3})), Want(hidden=frozenset({1}))):
        for seed in range(2):
            ours, twin = pair.requests(seed, random_tree(seed, 12), want)
            found, expected = target.submit([ours]).result()[0], plain.submit([twin]).result()[0]
            assert all(apart(found.hidden(i), expected.hidden(i)) < CLOSE for i in want.hidden)
    assert [shape.hidden for shape in path_of(target).recorded] == [{0, 2, 3}, {1}]


@every_way
def test_early_exits_are_heard_between_two_halves_of_a_recording(name: str, lean: bool) -> None:
    """Of those that want them, while the outlet that later layers write to still holds them."""
    target, plain = fixed(name, lean=lean), own_only(name)
    path, pairs = path_of(target), [Pair(target, plain, tokens(CONTEXT - 5 * i, i)) for i in range(3)]
    target.anatomy.scale = plain.anatomy.scale  # the probe finds it when a model is loaded
    for seed in range(3):
        heard, there = dict[int, Tensor](), list[Tensor]()

        def on_early(number: int, logits: Tensor) -> None:
            heard[number] = logits  # noqa: B023
            if path._outlet is not None:
                there.append(path._outlet.clone())  # noqa: B023

        wants = [Want(early_exit=1), Want(), Want(early_exit=1)]
        asked = [
            p.requests(seed, random_tree(seed + i, 12), w) for i, (p, w) in enumerate(zip(pairs, wants, strict=True))
        ]
        found = target.submit(
            [replace(ours, on_early=partial(on_early, i)) for i, (ours, _) in enumerate(asked)]
        ).result()
        for number, (_, twin) in enumerate(asked):
            expected = plain.submit([twin]).result()[0]
            assert apart(found[number].logits, expected.logits) < CLOSE
            if number != 1:
                assert apart(found[number].early, expected.early) < CLOSE
                assert torch.equal(heard[number], found[number].early)
        assert sorted(heard) == [0, 2]
        slot = slab_rows(pairs[0].rows).slot
        assert slot is not None
        (shape,) = path.recorded
        start = (slot - shape.first) * shape.rows
        assert torch.equal(there[0][start : start + 13], heard[0])
        for pair in pairs:
            pair.keep([0, 1])
    assert [(shape.exit, shape.rows, shape.count) for shape in path.recorded] == [(1, 16, 4)]


@pytest.mark.filterwarnings("ignore:forwards are not recorded")
def test_what_an_exit_says_is_heard_once_where_the_forward_is_repeated() -> None:
    """The model changes: its recording is dropped, and the forward computed by its own path, which exits again."""
    target, plain = fixed(), own_only("llama")
    pair, heard = Pair(target, plain, tokens(CONTEXT)), list[Tensor]()
    for seed in range(2):
        ours, twin = pair.requests(seed, random_tree(seed, 12), Want(early_exit=1))
        found = target.submit([replace(ours, on_early=heard.append)]).result()[0]
        assert apart(found.logits, plain.submit([twin]).result()[0].logits) < CLOSE
        assert len(heard) == seed + 1
        if seed == 0:
            target.model.model.layers[1].register_forward_hook(lambda *_: None)
            pair.keep([0])


@pytest.mark.parametrize("forgiven", [(), UNTESTED_ERRORS])
def test_an_error_of_a_listener_is_raised_and_ends_no_recording(forgiven: tuple[type[Exception], ...]) -> None:
    def broken(_: Tensor) -> None:
        raise ValueError("not what I wanted to hear")

    target, plain = fixed(), own_only("llama")
    path_of(target).forgiven = forgiven
    pair = Pair(target, plain, tokens(CONTEXT))
    for _ in range(2):
        for request, scored in zip(pair.requests(1, random_tree(1), Want(early_exit=1)), (target, plain), strict=True):
            with pytest.raises(ValueError, match="not what I wanted"):
                scored.submit([replace(request, on_early=broken)]).result()
            request.rows.keep([0])
    assert len(path_of(target).recorded) == 1
    assert path_of(target).refused is None


@pytest.mark.parametrize("leaves", [True, False])
def test_what_an_exit_says_must_be_what_was_rehearsed(leaves: bool) -> None:
    def late(function: Callable[[Leave], Any]) -> Callable[[Leave], Any]:
        """Leaves with the last layer's logits, as a cut at a wrong place would."""

        def replay(leave: Leave) -> Any:
            result = function(pass_by)
            if leaves:
                leave(result.logits)()
            return result

        return replay

    target, plain = fixed(record=late), own_only("llama")
    pair = Pair(target, plain, tokens(CONTEXT))
    ours, twin = pair.requests(1, random_tree(1), Want(early_exit=1))
    with pytest.warns(UserWarning, match="a replay is not what was recorded"):
        found = target.submit([ours]).result()[0]
    assert apart(found.early, plain.submit([twin]).result()[0].early) < CLOSE


def test_a_prompt_among_drafts_goes_another_way_in_the_same_round() -> None:
    target, plain = fixed(), own_only("llama")
    pairs = [Pair(target, plain, tokens(CONTEXT - i, i)) for i in range(3)]
    asked = [pair.requests(i, random_tree(i, 9)) for i, pair in enumerate(pairs)]
    for want in (Want(), Want(logits=True)):
        rows, text = target.open(), tokens(40, 9)
        drafts = [ours for ours, _ in asked]
        found = target.submit([drafts[0], Request.of_prompt(rows, text, want), *drafts[1:]]).result()
        expected = [plain.submit([twin]).result()[0] for _, twin in asked]
        drafted = [found[0], *found[2:]]
        assert max(apart(f.logits, e.logits) for f, e in zip(drafted, expected, strict=True)) < CLOSE
        rows.keep(range(len(text)))
        rows.check()
        alone = score(plain, filled(plain, text), 1, random_tree(5))
        assert apart(score(target, rows, 1, random_tree(5)), alone) < CLOSE
        rows.close()
    assert (0, 4) in {(shape.first, shape.count) for shape in path_of(target).recorded}


def test_a_copy_of_a_common_beginning() -> None:
    target, plain, text = fixed(), target_of("llama"), tokens(CONTEXT)
    first, second = filled(target, text), target.open(GRAIN + 1)
    second.adopt(first, 20)
    second.check()
    tree = random_tree(5)
    assert apart(score(target, second, 1, tree), score(plain, filled(plain, text[:20]), 1, tree)) < CLOSE
    assert apart(score(target, first, 1, tree), score(plain, filled(plain, text), 1, tree)) < CLOSE


# --- mistakes that these laws would see ---------------------------------------------------------------------


def wrong_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeanBlock, "_slots", lambda block, buffer: buffer[: block._shape.count])


def stale_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[object, Tensor] = {}
    mask = Inputs.mask

    def first(inputs: Inputs, window: int | None, *key: Any) -> Tensor:
        return made.setdefault((inputs, window), mask(inputs, window, *key).clone())

    monkeypatch.setattr(Inputs, "mask", first)


def scratch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = Inputs.fill
    monkeypatch.setattr(Inputs, "fill", lambda inputs, requests, scratch: fill(inputs, requests, 0))


def baked_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places on the host: what a graph would remember of its first forward for ever."""
    update = replay.Step.compute

    def compute(step: Step, *leave: Any, **outlet: Any) -> Any:
        step.inputs.places = torch.tensor(step.inputs.places.tolist())
        return update(step, *leave, **outlet)

    monkeypatch.setattr(Step, "compute", compute)
    monkeypatch.setattr(replay, "rehearse", lambda function: function())


@pytest.mark.parametrize("mistake", [None, wrong_slot, stale_mask, scratch_is_read, baked_in])
def test_mistakes_would_be_seen(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target, plain = fixed(), target_of("llama")
    second = Pair(target, plain, tokens(CONTEXT - 3, 1))
    first = Pair(target, plain, tokens(CONTEXT))
    assert [slab_rows(pair.rows).slot for pair in (second, first)] == [0, 1]
    if mistake is not None:
        mistake(monkeypatch)
    worst = 0.0
    for seed in range(3):
        for pair in (first, second):
            worst = max(worst, gap(target, plain, [pair.requests(seed, random_tree(seed, 12))]))
            pair.keep([0, 1])
    assert worst < CLOSE if mistake is None else worst > SEEN


def test_hidden_keys_that_are_no_numbers_would_be_felt_and_are_cleaned_away() -> None:
    target, plain, tree = fixed(), target_of("llama"), random_tree(1)
    rows = slab_rows(filled(target, tokens(100)))
    slot, keys = rows.slot, rows.layers[0].keys
    assert keys is not None
    keys[:, :, 60:100] = float("nan")
    rows.close()
    again, twin = filled(target, tokens(CONTEXT)), filled(plain, tokens(CONTEXT))
    assert slab_rows(again).slot == slot
    assert apart(score(target, again, 1, tree), score(plain, twin, 1, tree)) < CLOSE
    keys = slab_rows(again).layers[0].keys
    assert keys is not None
    keys[:, :, 60:100] = float("nan")
    assert not score(target, again, 1, tree).isfinite().all()


# --- texts --------------------------------------------------------------------------------------------------

METHODS: dict[str, Callable[[], Drafter]] = {
    "plain": lambda: make_drafter("plain"),
    "lookup": lambda: make_drafter("lookup"),
    "assistant": lambda: Assistant(model=fixed("llama", seed=0), top=2),
    "assistant's beams": lambda: Assistant(model=fixed("llama", seed=1), beams=3, noise="none"),
}


@pytest.mark.parametrize(("name", "method"), crossed(["llama", "gemma3", "gpt_oss", PADDING_CHECKED], METHODS))
@pytest.mark.filterwarnings("ignore:fixed shapes are not used")
def test_texts_are_the_models_own(name: str, method: str) -> None:
    target = shared(name)
    for seed in (3, 4):
        expected = generated(target.model, tokens(CONTEXT, seed), 20)
        rows = target.open()
        session = write(target, tokens(CONTEXT, seed), METHODS[method](), rows=rows, max_new_tokens=20)
        assert session.context.emitted.tolist() == expected
        rows.close()
    assert bool(path_of(target).recorded) == (name != PADDING_CHECKED)


def test_a_text_that_outgrows_its_slot_and_leaves_others_where_they_are() -> None:
    target, plain = fixed(), target_of("llama")
    other = Pair(target, plain, tokens(CONTEXT))
    assert gap(target, plain, [other.requests(1, random_tree(1))]) < CLOSE
    prompt = tokens(GRAIN - 30)
    expected = write(plain, prompt, make_drafter("lookup"), max_new_tokens=60)
    rows = target.open()
    found = write(target, prompt, make_drafter("lookup"), rows=rows, max_new_tokens=60)
    assert found.context.emitted.tolist() == expected.context.emitted.tolist()
    assert path_of(target).slab.capacity == 2 * GRAIN
    assert gap(target, plain, [other.requests(2, random_tree(2))]) < CLOSE


def test_texts_written_together_and_from_several_threads() -> None:
    """Of different lengths, one of them longer than a slot: buffers move while others write."""
    target = fixed("gemma3", direct)
    lm, prompts = LanguageModel(target), [tokens(n, n) for n in (GRAIN - 20, 9, 70, 31, 100)]
    expected = [generated(target.model, prompt, 40) for prompt in prompts]
    with lm.batch() as batch:
        writings = [batch.add(prompt, method="lookup", max_new_tokens=40) for prompt in prompts]
        for _ in batch:
            pass
    assert [writing.result().tokens for writing in writings] == expected
    assert max(shape.count for shape in path_of(target).recorded) >= 4
    lm.forget()
    assert path_of(target).slab.nbytes == 0
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda prompt: lm.generate(prompt, method="lookup", max_new_tokens=40).tokens, prompts)
        assert list(found) == expected
    lm.forget()
    assert path_of(target).slab.taken == []


# --- which models are recorded --------------------------------------------------------------------------------------


def test_on_a_cpu_nothing_is_recorded_unless_asked() -> None:
    assert load_quietly(build("llama")).fixed is None
    assert HFTarget(build("llama"), fixed_shapes=False).fixed is None
    scaled = build("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    with pytest.warns(UserWarning, match="rotates by the largest position"):
        target = HFTarget(scaled, fixed_shapes=True)
    assert target.fixed is None


@pytest.mark.parametrize("name", ["llama", "falcon", PADDING_CHECKED])
@pytest.mark.filterwarnings("ignore:fixed shapes are not used")
def test_the_probe_holds_recordings_to_the_law(name: str) -> None:
    target = load_quietly(build(name), fixed_shapes=True)
    assert bool(path_of(target).recorded) == (name == "llama")
    assert target.mode is target_of(name).mode
    assert target.limits == target_of(name).limits


def test_a_probe_that_finds_other_rows_shuts_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = Inputs.fill
    monkeypatch.setattr(Inputs, "fill", lambda inputs, requests, scratch: fill(inputs, requests, 0))
    target = HFTarget(build("llama"), fixed_shapes=True)
    with pytest.warns(UserWarning, match="fixed shapes are not used"):
        prepare(target)
    assert path_of(target).refused
    assert target.mode is Mode.PACKED
    assert target.limits.trees
    assert type(target.open()) is CacheRows


def test_what_cannot_be_recorded_is_told_once_and_goes_its_own_way(recwarn: pytest.WarningsRecorder) -> None:
    target, plain = fixed(PADDING_CHECKED), target_of(PADDING_CHECKED)
    pair = Pair(target, plain, tokens(CONTEXT))
    for seed in range(3):
        assert gap(target, plain, [pair.requests(1, random_tree(seed))]) < CLOSE
        pair.keep([0, 1])
    assert [str(w.message) for w in recwarn] == [
        "fixed shapes are not used, which costs speed and nothing else: "
        "the model looks at its own numbers (aten._local_scalar_dense.default)"
    ]


@pytest.mark.parametrize("record", [direct, taped])
@pytest.mark.parametrize("error", [RuntimeError("one\ntwo"), KeyError("layer"), AttributeError()])
def test_a_mistake_of_ours_is_not_passed_over(
    error: Exception, record: Any, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """On a CPU it is raised. On a GPU, where not all that may go wrong is known, the text goes on and the warning names
    the error."""

    def wrong(*_: Any) -> None:
        raise error

    target, plain = fixed(record=record), target_of("llama")
    pair = Pair(target, plain, tokens(CONTEXT))
    monkeypatch.setattr(LeanBlock, "write", wrong)
    with pytest.raises(type(error)):
        gap(target, plain, [pair.requests(1, random_tree(1))])
    assert path_of(target).refused is None
    assert not recwarn.list
    path_of(target).forgiven = UNTESTED_ERRORS
    assert gap(target, plain, [pair.requests(1, random_tree(1))]) < CLOSE
    pair.keep([0, 1])
    assert gap(target, plain, [pair.requests(1, random_tree(2))]) < CLOSE
    (reviewed,) = [str(w.message) for w in recwarn]
    first = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
    assert reviewed.endswith(f"nothing else: {first} (this is not meant to happen, please report it)")


def test_a_replay_that_is_not_the_call_is_never_used() -> None:
    def forgetful(function: Callable[[Leave], Any]) -> Callable[[Leave], Any]:
        result = function(pass_by)
        return lambda _: result._replace(logits=torch.zeros_like(result.logits))

    target, plain = fixed(record=forgetful), target_of("llama")
    pair = Pair(target, plain, tokens(CONTEXT))
    with pytest.warns(UserWarning, match="a replay is not what was recorded"):
        assert gap(target, plain, [pair.requests(1, random_tree(1))]) < CLOSE


def test_a_shape_too_large_for_memory_goes_its_own_way_and_others_do_not() -> None:
    sizes = []

    def small(function: Callable[[Leave], Any]) -> Callable[[Leave], Any]:
        result = function(pass_by)
        sizes.append(len(result.logits))
        if len(result.logits) > 8:
            raise torch.OutOfMemoryError("no memory for a graph")
        return function

    target, plain = fixed(record=small), target_of("llama")
    pair = Pair(target, plain, tokens(CONTEXT))
    for size in (4, 12, 12, 6):
        assert gap(target, plain, [pair.requests(1, random_tree(1, size))]) < CLOSE
    assert sizes == [8, 16, 8]


@every_way
@torch.no_grad()
def test_nothing_of_the_host_gets_into_a_forward(name: str, lean: bool) -> None:
    """Weights, rows and inputs on a device without memory: whatever came from the host would meet them there."""
    model = build(name, torch.bfloat16).to("meta")
    config, slab = model.config, Slab()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    slab.open(300)
    for layer in range(config.num_hidden_layers):
        like = torch.empty(1, heads, 1, width, device="meta", dtype=model.dtype)
        slab.ensure_layer(layer, like, like)
    shape = ForwardShape(0, 1, 4, 256, frozenset({1}), 1)
    own = OwnForward(model, None, Mode.PACKED)
    step, early = Step(own, slab, shape, Lean.of(own) if lean else None), list[Tensor]()

    def leave(logits: Tensor) -> Callable[[], None]:
        early.append(logits)
        return hear_nothing

    result = rehearse(partial(step.compute, leave))
    assert result.logits.device.type == early[0].device.type == "meta"
    assert result.logits.shape == early[0].shape == (4, model.config.vocab_size)


NUMBERS = torch.arange(6.0)


@pytest.mark.parametrize(
    ("function", "refused"),
    [
        (lambda: NUMBERS[torch.tensor([1, 2])] + NUMBERS.sum(), False),
        (lambda: NUMBERS.sum().item(), True),
        (lambda: NUMBERS[NUMBERS > 2], True),
        (lambda: NUMBERS.nonzero(), True),
        (lambda: torch.empty(6, device="meta").copy_(NUMBERS), True),
    ],
)
def test_what_a_recording_cannot_repeat_is_refused_before_it(function: Callable[[], Any], refused: bool) -> None:
    if refused:
        with pytest.raises(Uncapturable, match="the model"):
            rehearse(function)
    else:
        assert rehearse(function).equal(function())


def test_graphs_are_cut_and_heard_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's own parts replaced by what notes that they were called; what they do is for a machine that has them."""
    log, count = list[str](), itertools.count()

    def stream(name: str) -> Any:
        return SimpleNamespace(name=name, wait_stream=lambda other: log.append(f"{name} waits for {other.name}"))

    main, made = stream("main"), iter((stream("capture"), stream("hearing")))
    stack = [main]

    class Graph:
        def __init__(self) -> None:
            self.number = next(count)

        def capture_begin(self, pool: int, capture_error_mode: str) -> None:
            assert (pool, capture_error_mode) == (7, "thread_local")
            log.append(f"begin {self.number} on {stack[-1].name}")

        def capture_end(self) -> None:
            log.append(f"end {self.number}")

        def replay(self) -> None:
            log.append(f"replay {self.number} on {stack[-1].name}")

    @contextmanager
    def on(one: Any) -> Iterator[None]:
        stack.append(one)
        yield
        stack.pop()

    for name, value in {
        "Stream": lambda _: next(made),
        "stream": on,
        "CUDAGraph": Graph,
        "current_stream": lambda *_: stack[-1],
        "graph_pool_handle": lambda: 7,
        "device": lambda _: nullcontext(),
        **dict.fromkeys(("synchronize", "empty_cache", "set_sync_debug_mode"), lambda *_: None),
        "get_sync_debug_mode": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)

    def forward(leave: Leave) -> int:
        log.append("lower layers")
        leave(torch.zeros(1))()
        log.append("upper layers")
        return 5

    def leave(_: Tensor) -> Callable[[], None]:
        log.append(f"pick up on {stack[-1].name}")
        return lambda: log.append(f"hear on {stack[-1].name}")

    record = CapturesGraphs(torch.device("cpu"))
    replay = record(forward)
    halves = ["begin 0 on capture", "lower layers", "end 0", "begin 1 on capture", "upper layers", "end 1"]
    assert log[-6:] == halves
    log.clear()
    assert replay(leave) == 5
    assert log == [
        *("replay 0 on main", "pick up on main", "hearing waits for main"),
        *("replay 1 on main", "hear on hearing", "main waits for hearing"),
    ]
    assert stack == [main]
    log.clear()

    def interrupted(leave: Leave) -> None:
        leave(torch.zeros(1))()
        if log[-1].startswith("begin"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(interrupted)
    assert log[-3:] == ["end 2", "begin 3 on capture", "end 3"], "no capture is left open"


# --- the page in the docs ---------------------------------------------------------------------------------


def page(language: str) -> list[str]:
    text = (Path(__file__).parent.parent / "docs" / "devices.md").read_text(encoding="utf8").partition("\n## CUDA")[2]
    blocks = re.findall(r"^```(.*?)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for marked, block in blocks if marked == language]


def test_the_pages_python_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks one after the other, on a CPU that is asked to do as a GPU does."""
    load = paceline.load
    monkeypatch.setattr(paceline, "load", lambda name, **how: load(name, **{"fixed_shapes": True, **how}))
    known: dict[str, Any] = {}
    for code in page("python"):
        exec(code.replace("cuda", "cpu"), known)
    refused, held, left = capsys.readouterr().out.split()
    assert (refused, left) == ("None", "0")
    assert int(held) > 0
    assert known["never"].target.fixed is None
    assert known["called"].target.fixed is not None


def test_the_pages_commands_can_be_run() -> None:
    commands = [shlex.split(line, comments=True) for block in page("") for line in block.splitlines() if line]
    for words in commands:
        if words[0] == "paceline":
            assert parser().parse_args(words[1:]).device == "cuda"
        else:
            assert words[:3] == ["python", "-m", "papers.device"]
            assert asked_for("device", "", DEVICE, words[3:]).device == "cuda"
    assert len(commands) == 3


# --- memory -------------------------------------------------------------------------------------------------


def test_slots_are_free_whatever_ended_a_text() -> None:
    target = fixed(record=direct)
    lm, slab = LanguageModel(target), path_of(target).slab
    prompt = tokens(CONTEXT)
    lm.generate(prompt, method="lookup", max_new_tokens=8)
    stream = lm.stream(prompt, method="lookup", max_new_tokens=30)
    next(stream)
    assert len(slab.taken) == 1
    stream.close()
    for place in ("open", "propose", "observe"):
        with pytest.raises(DrafterError, match=place):
            lm.generate(prompt, method=Watched(make_drafter("lookup"), fails=place), max_new_tokens=8, strict=True)
    lm.kept.clear()
    assert slab.taken == []
    rows = filled(target, prompt)
    assert len(slab.taken) == 1
    assert not slab.release()
    del rows
    gc.collect()
    assert slab.taken == []
    assert slab.nbytes > 0
    assert slab.release()
    assert slab.nbytes == 0
    assert lm.generate(prompt, method="lookup", max_new_tokens=8).tokens == generated(target.model, prompt, 8)


def test_forgetting_gives_the_memory_of_texts_to_come_back_too() -> None:
    """Rows, recordings and the place of their logits; while a text is being written all of it stays."""
    target, prompt = fixed(), tokens(CONTEXT)
    path, lm = path_of(target), LanguageModel(target)
    stream = lm.stream(prompt, method="lookup", max_new_tokens=30)
    next(stream)
    lm.forget()
    assert path.slab.nbytes > 0
    stream.close()
    written = lm.generate(prompt, method="lookup", max_new_tokens=8).tokens
    outlet, (step, _) = weakref.ref(path._outlet), next(iter(path.recorded.values()))
    inputs = weakref.ref(step.inputs.tokens)
    del step, _
    lm.forget()
    gc.collect()
    assert (path.slab.nbytes, outlet(), inputs()) == (0, None, None)
    assert lm.generate(prompt, method="lookup", max_new_tokens=8).tokens == written
    assert path.recorded


def test_a_model_that_generated_with_drafts_takes_its_slab_along_when_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls `custom_generate` holds no target: the memory is the model's."""
    made: list[FixedPath] = []

    def always(own: OwnForward, **_: Any) -> FixedPath:
        made.append(FixedPath(own))
        return made[-1]

    monkeypatch.setattr(FixedPath, "of", always)
    model = build("llama")
    prompt = torch.from_numpy(tokens(CONTEXT))[None]
    model.generate(prompt, max_new_tokens=8, do_sample=False, custom_generate=custom_generate("lookup"))
    (path,) = made
    assert path.recorded
    buffer = weakref.ref(path.slab.keys[0])
    made.clear()
    del model, path
    gc.collect()
    assert buffer() is None


def test_recordings_are_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "RECORDINGS", 2)
    target = fixed(record=direct)
    rows = filled(target, tokens(CONTEXT))
    for size in (1, 3, 1, 7):
        score(target, rows, 1, random_tree(1, size))
    assert [shape.rows for shape in path_of(target).recorded] == [2, 8]


def test_a_recording_does_not_hold_the_rows_it_was_made_with() -> None:
    target = fixed()
    rows = filled(target, tokens(CONTEXT))
    score(target, rows, 1, random_tree(1))
    del rows
    gc.collect()
    assert path_of(target).recorded
    assert path_of(target).slab.taken == []


def test_where_memory_ends_sequences_live_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    target, plain = fixed(), target_of("llama")
    path = path_of(target)
    first = Pair(target, plain, tokens(CONTEXT))
    path.slab._spare = lambda: 0
    second = Pair(target, plain, tokens(CONTEXT, 1))
    assert type(second.rows) is CacheRows
    assert gap(target, plain, [p.requests(1, random_tree(1)) for p in (first, second)]) < CLOSE
    for pair in (first, second):
        pair.keep([])
    read(target, first.rows, tokens(GRAIN - CONTEXT - 4, 2))
    read(plain, first.twin, tokens(GRAIN - CONTEXT - 4, 2))
    assert gap(target, plain, [first.requests(1, DraftTree.chain(tokens(2)))]) < CLOSE
    first.keep([])
    assert slab_rows(first.rows).slot == 0
    assert gap(target, plain, [first.requests(1, DraftTree.chain(tokens(3)))]) < CLOSE
    first.keep([0, 1, 2, 3])
    assert gap(target, plain, [first.requests(1, random_tree(2))]) < CLOSE
    assert isinstance(first.rows, SlabRows)
    assert first.rows.slot is None
    assert path.slab.taken == []
    assert path.slab.capacity == GRAIN


def test_rows_given_back_in_the_middle_of_a_move_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may close the rows of an abandoned text at any time."""
    target = fixed(record=direct)
    slab, staying, doomed = path_of(target).slab, filled(target, tokens(7)), filled(target, tokens(5))
    attach = Slab._attach

    def collecting(slab: Slab, *given: Any) -> None:
        attach(slab, *given)
        doomed.close()

    monkeypatch.setattr(Slab, "_attach", collecting)
    read(target, staying, tokens(GRAIN))
    staying.check()
    assert slab.taken == [staying]


@pytest.mark.parametrize("gone", [False, True])
def test_a_slot_is_given_back_by_whoever_has_it(gone: bool) -> None:
    """Rows are garbage before they are closed; by then other rows may have their slot."""
    target = fixed(record=direct)
    slab, late = path_of(target).slab, slab_rows(target.open())
    slab._taken[0] = weakref.ref(Slab())  # type: ignore[assignment]  # dead, as the collector leaves it
    again = slab_rows(target.open())
    assert again.slot == late.slot
    if gone:
        again.close()
    late.close()
    assert slab.taken == ([] if gone else [again])


def test_requested_rows_take_memory_as_they_are_written() -> None:
    """Every slot is as large as the longest text, so requested rows take no memory before they are written."""
    target = fixed(record=direct)
    slab, others = path_of(target).slab, [filled(target, tokens(5, i)) for i in range(4)]
    before = slab.nbytes
    assert len(slab.taken) == len(others)
    requesting = target.open(3500)
    read(target, requesting, tokens(100))
    assert slab.capacity <= AHEAD
    assert slab.nbytes <= 2 * before * AHEAD // GRAIN  # the fifth slot doubled them
    written, moves = 100, 0
    while written < 3400:
        capacity = slab.capacity
        read(target, requesting, tokens(100))
        written += 100
        moves += slab.capacity != capacity
        assert written < slab.capacity <= bucket(written + AHEAD)
        requesting.check()
    assert moves <= 4


def test_requested_rows_that_do_not_fit_are_left_out() -> None:
    target = fixed(record=direct)
    slab, rows = path_of(target).slab, target.open()
    read(target, rows, tokens(5))
    slab._spare = lambda: slab.nbytes  # room for another slot, and for no longer ones
    assert isinstance(target.open(4000), SlabRows)
    assert (slab.slots, slab.capacity) == (2, GRAIN)


def test_capacities_are_few_and_hold_every_shape() -> None:
    for rows in range(1, 20000, 7):
        assert rows <= bucket(rows) <= max(rows + GRAIN, 1.25 * rows)
        assert stretch(rows) <= bucket(rows + 1)
    assert len({bucket(rows) for rows in range(1, 131073)}) < 30


def test_slots_and_capacity_double_and_count_what_they_take() -> None:
    target = fixed(record=direct)
    slab, sizes = path_of(target).slab, []
    opened = []
    for count in (1, 2, 3, 5):
        while len(opened) < count:
            opened.append(filled(target, tokens(5)))
        sizes.append((slab.slots, slab.capacity))
    assert sizes == [(1, GRAIN), (2, GRAIN), (4, GRAIN), (8, GRAIN)]
    assert slab.nbytes == 3 * 2 * 8 * 2 * GRAIN * 16 * 4

    opened.append(target.open())
    read(target, opened[-1], tokens(GRAIN))
    assert (slab.slots, slab.capacity) == (8, 2 * GRAIN)
    opened.pop(2).close()
    assert slab_rows(target.open()).slot == 2


# --- shapes -------------------------------------------------------------------------------------------------


def test_blocks_hold_their_slots_and_are_few() -> None:
    for low in range(40):
        for high in range(low, 40):
            first, count = block([high, low])
            assert first <= low
            assert high < first + count
            assert first % count == 0
    assert len({block([low, high]) for low in range(32) for high in range(low, 32)}) == 63


def test_lengths_are_rounded_up_by_a_quarter_at_most() -> None:
    for length in range(1, 9000):
        assert length <= stretch(length) <= max(length + SHORTEST_RECORDED_TEXT, 1.25 * length)
    lengths = {stretch(length) for length in range(1, 131073)}
    assert len(lengths) < 45
    assert all(length % piece_of(length) == 0 and length <= 64 * piece_of(length) for length in lengths)


def test_a_shape_of_mostly_padding_is_not_recorded() -> None:
    target, plain = fixed(record=direct), target_of("llama")
    pairs = [Pair(target, plain, tokens(9, i)) for i in range(16)]
    ends = [pairs[0], pairs[15]]
    assert gap(target, plain, [p.requests(1, random_tree(1, 12)) for p in ends]) < CLOSE
    assert [(s.count, s.rows) for s in path_of(target).recorded] == [(16, 16)]
    assert gap(target, plain, [p.requests(1, random_tree(1, 20)) for p in ends]) < CLOSE
    assert gap(target, plain, [p.requests(1, random_tree(1, 150)) for p in ends[:1]]) < CLOSE
    assert len(path_of(target).recorded) == 1
    assert draft_for(target, 1)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_rows_with_copies_of_their_experts_are_the_models_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    honest = ALL_EXPERTS_FUNCTIONS["batched_mm"]

    def counted(module: Any, *given: Any) -> Any:
        calls.append(len(given[0]))
        return honest(module, *given)

    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS._global_mapping, "batched_mm", counted)
    target, plain = fixed(name), own_only(name)
    path_of(target).experts_apart = True
    pair, before = Pair(target, plain, tokens(CONTEXT)), target.model.config._experts_implementation
    for seed in range(3):
        assert gap(target, plain, [pair.requests(seed, random_tree(seed, 12))]) < CLOSE
        pair.keep([0, 1])
    assert set(calls) == {16}
    assert target.model.config._experts_implementation == before


# --- before the first text ------------------------------------------------------------------------------------


def prepared(*, ahead: bool) -> HFTarget:
    target = recorded(build("llama"), taped)
    path_of(target).ahead = ahead
    return prepare(target)


@pytest.mark.parametrize("ahead", [False, True])
def test_usual_shapes_are_recorded_before_the_first_text(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    target = prepared(ahead=ahead)
    made = record_calls(monkeypatch, FixedPath, "_recorded")
    for nodes in (0, 3, 7, 15, 30):
        drafter = make_drafter("lookup") if nodes else make_drafter("plain")
        write(target, tokens(20).tolist() * 2, drafter, nodes=nodes, max_new_tokens=24)
    assert bool(made) is not ahead
    assert path_of(target).refused is None
    assert not path_of(target).slab.taken


def test_recording_is_no_part_of_a_round(clock: MadeClock) -> None:
    """A driver says how long a forward took without what is done once."""

    def flow() -> Any:
        reply = yield Call("score", None, None)
        seconds.append(reply.seconds)
        yield Call("score", None, None)

    seconds = list[float]()
    timed = Timed(flow())
    timed.send(None)
    with once(), once():
        clock.sleep(5)
    clock.sleep(1)
    timed.send("scores")
    assert seconds == [pytest.approx(1, abs=0.1)]


def test_no_planner_hears_of_recordings(clock: MadeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round of a shape takes what its replay takes."""
    reviewed, review = list[float](), Fixed.review

    def noted(planner: Fixed, outcomes: Any) -> None:
        reviewed.extend(outcome.seconds for outcome in outcomes)
        review(planner, outcomes)

    def slowly(function: Any) -> Any:
        clock.sleep(60)
        return taped(function)

    monkeypatch.setattr(Fixed, "review", noted)
    target = recorded(build("llama"), slowly)
    write(target, tokens(CONTEXT), make_drafter("lookup"), max_new_tokens=12)
    assert path_of(target).recorded
    assert clock.now > 60
    assert reviewed
    assert max(reviewed) < 5
