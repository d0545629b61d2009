"""Fixed shapes and laws on the device they are for. Skipped where there is none; what can be known there is in
`test_fixed` and `test_contenders`."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine import write
from families import FAMILIES, build
from paceline.drafters import make_drafter
from paceline.drafters.networks.assistant import Assistant
from paceline.law import KeyedDice, Law, Noise, Sampling
from paceline.law.contenders import contenders
from paceline.law.warp import Warps
from paceline.targets.base import Request, Rows, Want
from paceline.targets.hf.fixed.kernels import splits_here
from paceline.targets.hf.fixed.replay import FixedPath
from paceline.targets.hf.load import load_target
from paceline.targets.hf.own import Mode
from paceline.targets.hf.path import ForwardPath
from paceline.targets.hf.target import HFTarget
from paceline.tree import EMPTY, DraftTree
from scoring import CLOSE, CONTEXT, apart, filled, random_tree, tokens

DEVICE = "cuda"
NEAR = 10 * CLOSE
"""Other kernels than on a CPU; the largest of many differences, in float32."""
ROUNDED = 1.5
"""In bfloat16: how much farther than the model's own rows recorded ones may lie from those of the same weights in
float32, in mean square."""
NO_INTERFACE = "the model does not call the registered attention function"

pytestmark = pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="there is no GPU")

PACKED = [name for name, family in FAMILIES.items() if family.interface and name != "gpt2"]


def built(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """In half precision a near tie sends a row to another expert, so there all of them are asked; which of them are
    chosen is compared in float32."""
    every = {"num_experts_per_tok": 4} if FAMILIES[name].moe and dtype is not torch.float32 else {}
    return build(name, dtype, **every)


def on_device(name: str, dtype: torch.dtype = torch.float32) -> tuple[HFTarget, FixedPath]:
    """Probed, as users have it; nothing may have gone wrong."""
    target = load_target(built(name, dtype).to(DEVICE), fixed_shapes=True)
    assert target.fixed is not None
    if target.refused_modes.get(Mode.PACKED) == NO_INTERFACE and name == "gptj":
        pytest.skip(f"of this transformers {NO_INTERFACE}")
    assert target.fixed.refused is None
    assert target.mode is Mode.PACKED, target.refused_modes
    assert target.fixed.without_kernels is None
    assert target.fixed.recorded, "the probe scores drafts"
    return target, target.fixed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PACKED)
def test_a_replay_is_what_the_model_finds(name: str, dtype: torch.dtype) -> None:
    """Several sequences, one of them long, kept and scored again, each recording played for other texts."""
    target, fixed = on_device(name, dtype)
    exact = None if dtype is torch.float32 else unrounded(target, name, dtype)
    texts = [tokens(n, n) for n in (CONTEXT, 1300, 9)]
    ours, theirs = ([filled(target, text) for text in texts] for _ in range(2))
    truth = [] if exact is None else [filled(exact, text) for text in texts]
    gaps = list[tuple[float, float]]()
    for seed in range(4):
        drafts = [EMPTY if seed == 2 else random_tree(seed + i, 12) for i in range(3)]
        found = scored(target, fixed, ours, seed, drafts)
        expected = scored(target, target.own, theirs, seed, drafts)
        if exact is None:
            assert max(apart(*both) for both in zip(found, expected, strict=True)) < NEAR
        else:
            alone = scored(exact, exact.own, truth, seed, drafts)
            gaps += [(squared(f, a), squared(e, a)) for f, e, a in zip(found, expected, alone, strict=True)]
        for rows in (*ours, *theirs, *truth):
            rows.keep([0] if seed == 2 else [0, 1])
            rows.check()
    assert fixed.refused is None
    if gaps:
        recorded, own = np.sqrt(np.mean(gaps, axis=0))
        assert recorded < ROUNDED * own


def unrounded(target: HFTarget, name: str, dtype: torch.dtype) -> HFTarget:
    """The same weights, computed in float32."""
    exact = HFTarget(built(name, dtype).float().to(DEVICE))
    exact.limits = target.limits
    return exact


def scored(
    target: HFTarget, path: ForwardPath, rows: list[Rows], root: int, drafts: list[DraftTree]
) -> list[torch.Tensor]:
    with target.using(path):
        found = target.submit([Request.of_tree(r, root, d) for r, d in zip(rows, drafts, strict=True)]).result()
    return [scores.logits for scores in found]


def squared(one: torch.Tensor, other: torch.Tensor) -> float:
    """The mean square of differences, in squared deviations of the logits."""
    return float((one.double() - other.double()).square().mean() / other.double().var())


@pytest.mark.parametrize("name", PACKED)
def test_early_exits_are_heard_while_the_device_goes_on(name: str) -> None:
    target, fixed = on_device(name)
    ours, theirs = (filled(target, tokens(CONTEXT)) for _ in range(2))
    for seed in range(3):
        heard = list[torch.Tensor]()
        ask = partial(Request.of_tree, root=seed, tree=random_tree(seed, 12), want=Want(early_exit=1))
        with target.using(fixed):
            found = target.submit([ask(ours, on_early=lambda logits: heard.append(logits.cpu()))]).result()[0]  # noqa: B023
        with target.using(target.own):
            expected = target.submit([ask(theirs)]).result()[0]
        assert apart(found.early, expected.early) < NEAR
        assert apart(found.logits, expected.logits) < NEAR
        assert torch.equal(heard[0], found.early.cpu())
        for rows in (ours, theirs):
            rows.keep([0, 1])
    assert any(shape.exit == 1 for shape in fixed.recorded)
    assert fixed.refused is None


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_texts_are_those_of_the_models_own_path(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # experts may not be recordable
        target = load_target(build(name).to(DEVICE), fixed_shapes=True)
    paths = target.paths
    for length in (CONTEXT, 500):
        written = []
        for tried in ([target.own], paths, paths):
            target.paths = tried
            session = write(target, tokens(length), make_drafter("lookup"), max_new_tokens=64)
            written.append(session.context.emitted)
        assert np.array_equal(written[0], written[1])
        assert np.array_equal(written[0], written[2])


@pytest.mark.parametrize("how", [{}, {"temperature": 0.8}, {"temperature": 1.0, "top_k": 20, "top_p": 0.9}], ids=str)
def test_drafts_are_played_whole(how: dict[str, float]) -> None:
    """A draft model's chain in one call, and the text is that of plain decoding."""
    target, fixed = on_device("llama")
    model, drafts = on_device("llama")
    plain = write(target, tokens(CONTEXT), make_drafter("plain"), max_new_tokens=64, sampling=Sampling(**how))
    session = write(target, tokens(CONTEXT), Assistant(model=model), max_new_tokens=64, sampling=Sampling(**how))
    assert np.array_equal(session.context.emitted, plain.context.emitted)
    assert drafts.linked
    assert fixed.refused is None
    assert drafts.refused is None
    assert sum(each.accepted for each in session.rounds) > 50


def test_growing_and_giving_back_leaves_nothing_wrong() -> None:
    target, fixed = on_device("llama")
    for round_ in range(3):
        rows = [filled(target, tokens(40 * (i + 1), i)) for i in range(1 + 2 * round_)]
        found = target.submit([Request.of_tree(r, 1, random_tree(i, 9)) for i, r in enumerate(rows)]).result()
        assert all(bool(scores.logits.isfinite().all()) for scores in found)
        for row in rows:
            row.close()
        assert fixed.slab.release()
        assert fixed.slab.nbytes == 0
    assert fixed.refused is None


def test_which_ways_work_here() -> None:
    """A long text is split on the devices that this is for; where not, it is slower and as right."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert splits_here(torch.device(DEVICE, 0) if DEVICE == "cuda" else torch.device(DEVICE), dtype, 128)
    assert on_device("llama")[0].mode is Mode.PACKED


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.05}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tokens_that_can_win_are_found_where_the_rows_are(dtype: torch.dtype, cut: dict[str, float]) -> None:
    random = torch.Generator().manual_seed(0)
    rows = [(3 * torch.randn(150_000, generator=random)).to(dtype).float() for _ in range(40)]
    sampling, coins = Sampling(temperature=0.8, **cut), [(Noise(number), 7) for number in range(40)]
    found = contenders([row.to(DEVICE) for row in rows], Warps.of(sampling), coins)
    assert sum(law is None for law in found) <= 4
    for (noise, index), row, law in zip(coins, rows, found, strict=True):
        whole = KeyedDice(noise).choose(index, Law(sampling, 0).distribution(row, np.array([1])))
        assert law is None or KeyedDice(noise).choose(index, law) == whole
