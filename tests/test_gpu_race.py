"""The race of rows by kernels: on a GPU where there is one, else by Triton's interpreter."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from thinning import thinned

pytest.importorskip("triton")

from paceline import launching
from paceline.law import Distribution, KeyedDice, Law, Noise, Sampling
from paceline.law import kernel_rows as race
from paceline.law.device_rows import DeviceRows
from paceline.law.kernel_rows import KernelRows, fits, obstacle
from paceline.law.warp import Warps
from paceline.targets.hf.fixed.capture import rehearse
from test_contenders import NONE, ROWS, check, coins_of, rows_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter, where numbers end
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CUTS: list[dict[str, Any]] = [{}, {"top_k": 50}, {"min_p": 0.05}, {"top_k": 900, "min_p": 0.001}]


def raced(rows: torch.Tensor, sampling: Sampling) -> list[Distribution | None]:
    return KernelRows(rows.to(DEVICE), Warps.of(sampling), coins_of(len(rows))).laws()


PAIRS = [(kind, CUTS[number % len(CUTS)]) for number, kind in enumerate(ROWS)] + [("usual", cut) for cut in CUTS]


@pytest.mark.parametrize(("kind", "cut"), thinned(PAIRS, every=5), ids=str)
def test_the_winner_is_the_one_of_the_whole_row(kind: str, cut: dict[str, Any]) -> None:
    rows = rows_of(kind, 2).float()
    for temperature in (0.3, 1.0):
        sampling = Sampling(temperature=temperature, **cut)
        check(raced(rows, sampling), rows, sampling)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_shortlists_are_those_of_torchs_operations(dtype: torch.dtype) -> None:
    rows = rows_of("usual", 4).to(DEVICE, dtype)
    sampling, coins = Sampling(temperature=0.8), coins_of(4)
    for ours, theirs in zip(
        KernelRows(rows, Warps.of(sampling), coins).laws(),
        DeviceRows(rows, Warps.of(sampling), coins).laws(),
        strict=True,
    ):
        assert ours is not None
        assert theirs is not None
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.weights.tolist() == theirs.weights.tolist()


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_row_with_no_number_is_left_to_the_whole_law(broken: float) -> None:
    rows = rows_of("usual", 2)
    rows[1] = broken if broken < 0 else rows[1]
    rows[1, 4321] = broken
    assert [law is None for law in raced(rows, Sampling(temperature=1.0))] == [False, True]


def test_rows_with_too_many_tokens_for_the_transfer_take_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "CROSSING", 4)
    rows, sampling = torch.cat([rows_of("flat", 2), rows_of("peaked", 2)]), Sampling(temperature=0.9)
    found = raced(rows, sampling)
    assert max(len(law.ids) for law in found if law is not None) > 4
    check(found, rows, sampling)


def test_the_host_sends_once_and_waits_once_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sends, copies, numpy = list[int](), list[torch.Size](), torch.Tensor.numpy
    launched, send = list[str](), race.sent

    def counted(tensor: torch.Tensor, **how: Any) -> Any:
        copies.append(tensor.shape)
        return numpy(tensor, **how)

    def instead(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        launched.append(kernel.__name__)
        with monkeypatch.context() as inner:  # the interpreter reads tensors, too
            inner.setattr(torch.Tensor, "numpy", numpy)
            kernel[grid](*arguments, **constants)

    monkeypatch.setattr(launching, "launch", instead)
    monkeypatch.setattr(race, "sent", lambda numbers, device: sends.append(len(numbers)) or send(numbers, device))
    monkeypatch.setattr(torch.Tensor, "numpy", counted)
    rows = rows_of("usual", 3).to(DEVICE)
    found = KernelRows(rows, Warps.of(Sampling(temperature=0.8)), coins_of(3)).laws()
    assert all(law is not None for law in found)
    assert (len(sends), len(copies)) == (1, 1)
    assert launched == ["block_maxima", "bounds", "reached"]


def other_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    read = race.counters
    monkeypatch.setattr(race, "counters", lambda coins: read([(noise, index + 1) for noise, index in coins]))


def other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launching.launch

    def shifted(kernel: Any, grid: tuple[int, ...], rows: torch.Tensor, *rest: Any, **constants: Any) -> None:
        launch(kernel, grid, rows.roll(1, 1) if kernel.__name__ == "reached" else rows, *rest, **constants)

    monkeypatch.setattr(launching, "launch", shifted)


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **constants: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(launching, "launch", broken)


@pytest.mark.parametrize("mistake", [other_noise, other_rows, nothing])
def test_kernels_that_find_other_winners_are_not_used(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    said = "RuntimeError: no such instruction" if mistake is nothing else "they find other winners than torch"
    assert obstacle.__wrapped__(DEVICE) == said


def test_noise_by_a_kernel_is_the_public_noise() -> None:
    ids = torch.tensor([[0, 5, 8191, 150_000], [7, 7, 6, 1]])
    coins = [(Noise(3, 1), 17), (Noise(2**63 + 5), 4)]
    numbers = torch.tensor(race.counters(coins)).view(2, 5).to(DEVICE)
    for ahead in (0, 3):
        found = race.in_one_kernel(numbers, ids.to(DEVICE), ahead).cpu().numpy()
        wanted = [noise.gumbel(index + ahead, row.numpy()) for (noise, index), row in zip(coins, ids, strict=True)]
        np.testing.assert_allclose(found, np.stack(wanted), rtol=1e-5, atol=1e-5)


def test_they_are_tried_apart_from_what_is_being_recorded() -> None:
    """The trial sends numbers to the device, which a recording must not."""
    assert rehearse(lambda: obstacle.__wrapped__(DEVICE)) is None


def test_what_the_kernels_are_not_for_is_raced_without_them() -> None:
    row = rows_of("usual", 1)
    assert not fits(row, Warps.of(Sampling(temperature=0.8)))
    if DEVICE.type == "cuda":
        row = row.to(DEVICE)
        assert fits(row, Warps.of(Sampling(temperature=0.8)))
        assert not fits(row, Warps.of(Sampling(temperature=0.8, top_p=0.9)))
        assert not fits(row.double(), Warps.of(Sampling(temperature=0.8)))


def test_a_text_is_the_same_by_any_race() -> None:
    """Eight rows of one text, each chosen from the shortlist and from the whole row."""
    rows, sampling, noise = rows_of("usual", 8), Sampling(temperature=1.1), Noise(11)
    coins = [(noise, 50 + number) for number in range(len(rows))]
    laws = KernelRows(rows.to(DEVICE), Warps.of(sampling), coins).laws()
    for (_, index), row, law in zip(coins, rows, laws, strict=True):
        assert law is not None
        whole = Law(sampling, 0).distribution(row, NONE)
        assert KeyedDice(noise).choose(index, law) == KeyedDice(noise).choose(index, whole)
    assert np.unique([law.ids[0] for law in laws if law is not None]).size > 1
