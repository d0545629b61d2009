"""The best tokens of rows of a large vocabulary: against torch's own search, in every dtype and with odd rows."""

import math

import numpy as np
import pytest
import torch

from paceline.law import log_normalizer
from paceline.targets import reading
from paceline.targets.base import Request, Want
from paceline.targets.foremost import BLOCK
from paceline.targets.reading import SMALL, best_tokens, by_blocks, read_by_blocks, read_peaks, read_plainly
from paceline.targets.scores import Scores
from paceline.targets.table import TableTarget
from paceline.tree import DraftTree

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
SIZES = pytest.mark.parametrize("size", [SMALL + 1, 160 * BLOCK, 160 * BLOCK + 1, 40_000])
WORST = 0.04
"""The largest relative error of an estimated exponential."""


def rows_of(seed: int, count: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows from nearly flat to nearly certain, with some tokens that cannot be."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, size, generator=random, dtype=torch.float64) * torch.logspace(-1, 1, count)[:, None]
    logits[:, torch.randint(size, (99,), generator=random)] = -math.inf
    logits[0, -1] = 30.0
    return logits.to(dtype)


def scores_of(logits: torch.Tensor, top: int) -> Scores:
    tree = DraftTree.chain([0] * (len(logits) - 1))
    return Scores(Request.of_tree(TableTarget(lambda _: [0.0], 1).open(), 0, tree, Want(top=top)), logits)


@DTYPES
@SIZES
@pytest.mark.parametrize("count", [1, 13])
def test_the_best_tokens_are_exact_and_the_normaliser_nearly(dtype: torch.dtype, size: int, count: int) -> None:
    logits = rows_of(count, count, size, dtype)
    assert by_blocks(logits)
    for k in (1, 10, 70):
        top = read_by_blocks(logits, k)
        exact = logits.float().topk(k, dim=-1)
        assert np.array_equal(top.logits, exact.values.numpy())
        assert np.array_equal(np.take_along_axis(logits.float().numpy(), top.ids, 1), top.logits)
        assert all(len(set(row)) == k for row in top.ids.tolist())
        log_z = log_normalizer(logits.float()).double().numpy()
        rest = 1 - np.exp(top.logits - log_z[:, None]).sum(axis=1)
        assert (np.abs(top.log_z - log_z) <= 1.05 * WORST * np.maximum(rest, 0) + 1e-5).all()


@pytest.mark.parametrize("shift", np.linspace(0, math.log(2), 23))
def test_no_row_is_normalised_worse_than_is_said(shift: float) -> None:
    """The worst rows: all that is not best lies at one place of the binary logarithm's curve."""
    logits = torch.full((1, 2**15), 1.0)
    logits[0, 77] = 1.0 + 9 * math.log(2) + shift
    top = read_by_blocks(logits, 1)
    exact = float(log_normalizer(logits))
    assert abs(float(top.log_z[0]) - exact) <= WORST * (1 - math.exp(float(logits[0, 77]) - exact))


@DTYPES
@SIZES
def test_the_choice_is_the_first_of_the_greatest(dtype: torch.dtype, size: int) -> None:
    logits = rows_of(5, 9, size, dtype)
    logits[1, [4000, 17, size - 1]] = 60.0
    logits[2] = 0.0
    logits[3] = -math.inf
    logits[4, 300] = math.nan
    expected = logits.float().argmax(dim=-1).tolist()
    assert expected[1:5] == [17, 0, 0, 300]
    greatest = logits.float().amax(dim=-1)
    scores = scores_of(logits, top=3)
    ((ids, peaks),) = read_peaks([logits])
    assert ids.tolist() == expected
    assert np.array_equal(peaks, greatest, equal_nan=True)
    assert [scores.choice(node) for node in range(-1, 8)] == expected
    assert np.array_equal([scores.peak(node) for node in range(-1, 8)], greatest, equal_nan=True)


def test_one_pass_serves_choices_and_best_tokens_and_more_may_be_asked_for() -> None:
    for size, wanted in ((6000, 0), (6000, 4), (20_000, 0), (20_000, 4)):
        scores = scores_of(rows_of(1, 5, size, torch.bfloat16), top=wanted)
        choices = scores.choices()
        top = scores.top(4)
        assert np.array_equal(top.ids[:, 0], choices)
        assert scores.top(9).ids.shape == (5, 9)
        assert np.array_equal(scores.top(9).logits[:, :4], top.logits)


def test_where_nothing_is_compiled_torch_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = rows_of(3, 5, 20_000, torch.float32)
    found = read_by_blocks(logits, 9)
    monkeypatch.setattr(reading, "_compiled", lambda: None)
    exact = read_by_blocks(logits, 9)
    assert np.array_equal(found.ids, exact.ids)
    assert np.array_equal(found.logits, exact.logits)
    assert not np.array_equal(found.log_z, exact.log_z)
    assert np.allclose(found.log_z, exact.log_z, atol=WORST)


def test_small_vocabularies_and_other_devices_are_read_exactly() -> None:
    logits = rows_of(2, 4, SMALL, torch.float32)
    assert not by_blocks(logits)
    assert not by_blocks(torch.empty(2, 9000, device="meta"))
    top, exact = read_plainly(logits, 6), logits.topk(6, dim=-1)
    assert np.array_equal(top.ids, exact.indices.numpy())
    assert np.array_equal(top.logits, exact.values.numpy())
    assert np.allclose(top.log_z, log_normalizer(logits).numpy(), rtol=1e-6)


@DTYPES
@pytest.mark.parametrize("k", [0, 1, 10, 64, 300])
def test_small_vocabularies_are_read_exactly_in_every_type(dtype: torch.dtype, k: int) -> None:
    logits = rows_of(2, 7, 300, dtype)
    top, exact = read_plainly(logits, k), logits.float().topk(k, dim=-1)
    assert np.array_equal(top.logits, exact.values.numpy())
    assert np.array_equal(np.take_along_axis(logits.float().numpy(), top.ids, 1), top.logits)
    assert np.allclose(top.log_z, log_normalizer(logits.float()).numpy(), rtol=1e-5)


def test_of_equals_the_lowest_id_is_best() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0], [0.0] * 5])
    assert read_plainly(logits, 4).ids[0].tolist() == [1, 3, 2, 4]
    assert read_plainly(logits, 5).ids[1].tolist() == [0, 1, 2, 3, 4]
    assert [found.tolist() for found in read_peaks([logits])[0]] == [[1, 0], [3.0, 0.0]]
    many = np.array([[1.0, *[0.0] * 200, 2.0], [*range(202)]], np.float32)
    for size in range(1, 203):
        first, second = best_tokens(many, size).tolist()
        assert first == [201, 0, *range(1, 201)][:size]
        assert second == [*range(201, -1, -1)][:size]


def test_rows_in_which_nothing_is_possible_or_that_are_no_numbers_are_read_without_a_warning() -> None:
    top = read_plainly(torch.tensor([[-math.inf] * 4, [1.0, math.nan, 0.0, 0.0], [0.0, 1.0, -math.inf, -3.0]]), 2)
    assert top.log_z[0] == -math.inf
    assert math.isnan(top.log_z[1])
    assert top.ids[2].tolist() == [1, 0]


def test_reading_leaves_the_rows_alone() -> None:
    for size in (64 * BLOCK, 64 * BLOCK + 3):
        logits = rows_of(3, 3, size, torch.float32)
        before = logits.clone()
        read_by_blocks(logits, 5)
        assert torch.equal(logits, before)
