"""The tokens that can win: few, and the winner of the whole row's race is always among them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine import write
from families import build
from paceline.drafters import make_drafter
from paceline.law import Distribution, KeyedDice, Law, Noise, Place, Sampling, Stream, device_rows, laws, shortlist
from paceline.law import contenders as module
from paceline.law.contenders import contenders
from paceline.law.device_rows import DeviceRows
from paceline.law.noise import kernels
from paceline.law.on_device import upper_words
from paceline.law.shortlist import on_host
from paceline.law.warp import Warps
from paceline.targets.hf.target import HFTarget
from scoring import load_quietly, tokens
from thinning import crossed

SIZE = 5003
"""No multiple of a block."""
NONE = np.array([], dtype=np.int64)


def normal(seed: int, size: int = SIZE) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def peaked(row: torch.Tensor) -> torch.Tensor:
    row[[7, 4000, 4001]] += torch.tensor([9.0, 8.0, 8.5])
    return row


def one_hot(row: torch.Tensor) -> torch.Tensor:
    row[torch.arange(SIZE) != 4321] = -torch.inf
    return row


def masked(row: torch.Tensor) -> torch.Tensor:
    row[row < 1.5] = -torch.inf
    return row


ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "usual": lambda row: 3 * row,
    "wild": lambda row: 30 * row,
    "flat": lambda row: 0.01 * row,
    "constant": lambda row: 0 * row,
    "peaked": peaked,
    "one-hot": one_hot,
    "masked": masked,
    "coarse": lambda row: (4 * row).round() / 4,
    "half": lambda row: (3 * row).bfloat16().float(),
    "high": lambda row: 1000 + row,
    "wide": lambda row: 3 * row.double() + 1e-12 * normal(99).double(),
}
TEMPERATURES = [5e-324, 1e-3, 0.8, 1.0, 30.0, 1e300]
CUTS: list[dict[str, Any]] = [
    {},
    {"top_p": 0.95},
    {"top_p": 0.3},
    {"top_p": 0.99999},
    {"top_k": 1},
    {"top_k": 50},
    {"min_p": 0.05},
    {"min_p": 0.9},
    {"top_k": 900, "top_p": 0.9, "min_p": 0.001},
    {"top_p": 0.9, "min_p": 0.001},
]
EACH = pytest.mark.parametrize("drawn", ["host", "device"])
"""Where tokens that can win are looked for."""


def rows_of(kind: str, count: int = 12) -> torch.Tensor:
    return torch.stack([ROWS[kind](normal(seed)) for seed in range(count)])


def coins_of(count: int) -> list[tuple[Noise, int]]:
    """Of a few texts; some rows share a place."""
    return [(Noise(2**63 + number // 5, number % 3), 1000 + number // 2) for number in range(count)]


def few(rows: torch.Tensor, sampling: Sampling, drawn: str) -> list[Distribution | None]:
    coins = coins_of(len(rows))
    if drawn == "device":
        return DeviceRows(rows, Warps.of(sampling), coins).laws()
    return [on_host(row, Warps.of(sampling), own) for row, own in zip(rows, coins, strict=True)]


def check(found: list[Distribution | None], rows: torch.Tensor, sampling: Sampling) -> None:
    """Each law has weights of the whole row's, unless it names the winner alone, and the same winner."""
    for (noise, index), row, law in zip(coins_of(len(rows)), rows, found, strict=True):
        if law is not None:
            whole = Law(sampling, 0).distribution(row, NONE)
            if len(law.ids) > 1:
                assert law.weights.tolist() == whole.weights[np.searchsorted(whole.ids, law.ids)].tolist()
            dice = KeyedDice(noise)
            assert dice.choose(index, law) == dice.choose(index, whole)


@EACH
@pytest.mark.parametrize(("kind", "cut"), crossed(ROWS, CUTS), ids=str)
def test_the_winner_is_the_one_of_the_whole_row(kind: str, cut: dict[str, Any], drawn: str) -> None:
    rows = rows_of(kind)
    for temperature in TEMPERATURES:
        sampling = Sampling(temperature=temperature, **cut)
        check(few(rows, sampling, drawn), rows, sampling)


@EACH
@pytest.mark.parametrize("size", [4097, 4224, 33_000])
def test_many_rows_at_usual_settings(size: int, drawn: str) -> None:
    for seed, sampling in enumerate((Sampling(temperature=0.8), Sampling(temperature=1.0, top_p=0.9))):
        rows = torch.stack([(1 + number % 4) * normal(1000 * seed + number, size) for number in range(120)])
        found = few(rows, sampling, drawn)
        assert sum(law is None for law in found) <= (2 if drawn == "device" or sampling.top_p == 1 else 120)
        check(found, rows, sampling)


@pytest.mark.parametrize(("kind", "most"), [("peaked", 200), ("usual", 200), ("flat", 2500)])
@EACH
def test_few_tokens_cross(kind: str, most: int, drawn: str) -> None:
    found = few(rows_of(kind, 40), Sampling(temperature=1.0), drawn)
    counts = [len(law.ids) for law in found if law is not None]
    assert len(counts) == 40
    if drawn == "host":
        assert counts == [1] * 40
    assert max(counts) <= SIZE // 2
    assert np.median(counts) < most


def test_where_the_nucleus_is_in_doubt_the_whole_row_decides() -> None:
    """Weights that are equal once rounded stand in the order of their ids, which the device does not look at."""
    sampling = Sampling(temperature=1.0, top_p=0.5)
    assert few(rows_of("constant"), sampling, "device") == [None] * 12
    assert contenders(list(rows_of("constant")), Warps.of(sampling), coins_of(12)) == [None] * 12


def lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = DeviceRows._bound.func
    monkeypatch.setattr(DeviceRows, "_bound", property(lambda field: 0.3 * bound(field)))


def other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = device_rows.upper_words
    monkeypatch.setattr(
        device_rows, "upper_words", lambda coins, *rest: draw([(noise, i + 1) for noise, i in coins], *rest)
    )


def everything_in_the_nucleus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceRows, "_inside", lambda field, logs, weights: logs == logs)


def other_place(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = kernels()
    assert compiled is not None
    found = compiled.contesting
    monkeypatch.setattr(compiled, "contesting", lambda *given: found(*given[:3], given[3] + 1, *given[4:]))


MISTAKES = {
    "device": [(lower_bound, 1.0), (other_words, 1.0), (everything_in_the_nucleus, 0.05)],
    "host": [(other_place, 1.0)],
}


@pytest.mark.parametrize(("drawn", "mistake", "top_p"), [(d, *mistake) for d in MISTAKES for mistake in MISTAKES[d]])
def test_mistakes_that_these_laws_would_see(
    drawn: str, mistake: Callable[[pytest.MonkeyPatch], None], top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    rows, sampling = rows_of("usual", 60), Sampling(temperature=1.0, top_p=top_p)
    lost = 0
    for (noise, index), row, law in zip(coins_of(60), rows, few(rows, sampling, drawn), strict=True):
        winner = KeyedDice(noise).choose(index, Law(sampling, 0).distribution(row, NONE))
        lost += law is None or winner not in law.ids
    assert lost > 5


@pytest.mark.parametrize("coins", [(Noise(0), 0), (Noise(2**64 - 1, 2**32 - 1), 2**32 - 1), (Noise(77, 3), 12)])
def test_words_are_the_noises_upper_bits_wherever_they_are_drawn(coins: tuple[Noise, int]) -> None:
    noise, index = coins
    size = 40 * 1024
    upper = np.floor(noise.uniform(Stream.TARGET, index, np.arange(size)) * 2.0**32)
    assert upper_words([(Noise(1), 1), coins], size, torch.device("cpu"))[1].tolist() == upper.tolist()


# --- laws of several places ---------------------------------------------------------------------------------


@pytest.fixture(params=["host", "device"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On the host, or as on a device, with fewer rows at once than there are."""
    if request.param == "device":
        monkeypatch.setattr("paceline.law.scores.HOST_DEVICE", "elsewhere")
        monkeypatch.setattr(module, "TOGETHER", 3 * SIZE)
    return str(request.param)


MIXED = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=1.0, top_p=0.9),
    Sampling(temperature=0.7, top_k=20),
    Sampling(temperature=0.7, min_p=0.1),
    Sampling(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5, logit_bias={5: 4.0}, banned=((7,),)),
    Sampling(repetition_penalty=1.3),
]


def test_places_of_many_texts_are_settled_as_each_alone(where: str) -> None:
    places, winners = [], []
    for number in range(5 * len(MIXED)):
        sampling = MIXED[number % len(MIXED)]
        before, row = np.arange(number), 3 * normal(number)
        law, noise = Law(sampling, 2), Noise(number)
        places.append(Place(law, row.clone(), before, noise if number % 3 else None))
        winners.append(KeyedDice(noise).choose(len(before), law.distribution(row, before)))
    found = laws(places)
    for number, (law, place) in enumerate(zip(found, places, strict=True)):
        assert isinstance(law, Distribution)
        assert KeyedDice(Noise(number)).choose(len(place.tokens), law) == winners[number]
        if place.noise is None:
            assert law.ids.tolist() == place.law.distribution(place.row, place.tokens).ids.tolist()


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 9}], ids=str)
def test_a_place_without_a_law_is_its_own_trouble(where: str, cut: dict[str, Any]) -> None:
    rows = [normal(seed) for seed in range(5)]
    rows[0][:], rows[2][11], rows[3][12] = -torch.inf, torch.nan, torch.inf

    def broken(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a processor failed")

    settings = [{}, {}, {}, {}, {"processors": (broken,)}]
    chosen = [Law(Sampling(temperature=1.0, **cut, **own), 0) for own in settings]
    found = laws([Place(law, row, NONE, Noise(1)) for law, row in zip(chosen, rows, strict=True)])
    assert isinstance(found[1], Distribution)
    sentences = ["no token is possible", None, "nan", "inf", "a processor failed"]
    for law, sentence in zip(found, sentences, strict=True):
        assert (sentence is None) == isinstance(law, Distribution)
        assert sentence is None or sentence in str(law)


def test_a_processor_is_called_once_for_each_place(where: str) -> None:
    calls: list[int] = []

    def counting(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(ids.shape[1])
        return scores

    law = Law(Sampling(temperature=1.0, top_p=0.5, processors=(counting,)), 0)
    laws([Place(law, 0 * normal(1), np.arange(count), Noise(1)) for count in (4, 2, 3)])
    assert calls == [4, 2, 3]


SAMPLINGS = [
    Sampling(temperature=0.9, seed=3),
    Sampling(temperature=0.9, top_p=0.9, seed=3),
    Sampling(temperature=1.0, min_p=0.05, repetition_penalty=1.1, seed=3),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_texts_are_those_of_whole_rows(where: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    target: HFTarget = load_quietly(build("llama", vocab_size=SIZE))

    def text(method: str) -> list[int]:
        drafter = make_drafter(method)
        return write(target, tokens(20), drafter, sampling=sampling, max_new_tokens=40).context.tokens.tolist()

    found = [text(method) for method in ("plain", "suffix")]
    monkeypatch.setattr(KeyedDice, "public", None)
    assert found == [text("plain")] * 2


def test_a_row_without_a_certain_token_is_decided_whole() -> None:
    """Five blocks tie, so no token is known to be in the nucleus; at this place the upper word of token 102925 is large
    enough to be on any shortlist."""
    size, coins = 150_016, (Noise(7), 2017)
    row = np.full(size, np.log(1e-9))
    row[102925] += 0.01
    row[[128 * block + 5 for block in (3, 99, 300, 500, 700)]] = 0.0
    sampling = Sampling(temperature=1.0, top_p=1 - 0.5 * size * 1e-9 / (5 + size * 1e-9))
    assert DeviceRows(torch.tensor(row, dtype=torch.float32)[None], Warps.of(sampling), [coins]).laws() == [None]


def test_on_the_host_all_tokens_are_named_that_rounding_may_decide_between() -> None:
    sampling, (noise, index) = Sampling(temperature=0.8), coins_of(1)[0]
    row = torch.full((SIZE,), -50.0)
    times = noise.exponential(Stream.TARGET, index, np.arange(SIZE))
    row[[4999, 99]] = 0.8 * torch.tensor(np.log(times[[4999, 99]])).float()  # a tie but for rounding
    tied = on_host(row, Warps.of(sampling), (noise, index))
    assert tied is not None
    assert tied.ids.tolist() == [99, 4999]


@pytest.mark.parametrize("kind", ROWS)
def test_where_nothing_is_compiled_the_whole_row_decides(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortlist, "kernels", lambda: None)
    assert few(rows_of(kind), Sampling(temperature=1.0), "host") == [None] * 12


@pytest.mark.parametrize("cut", [{}, {"top_k": 50}, {"min_p": 0.05}], ids=str)
def test_the_host_sends_once_and_waits_once_for_all_rows(cut: dict[str, Any]) -> None:
    """No shape on the device depends on values, and nothing is read but the tokens that can win."""

    class Waits(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert torch.Tag.data_dependent_output not in func.tags, func
            assert torch.Tag.dynamic_output_shape not in func.tags, func
            return func(*args, **(kwargs or {}))

    rows, numpy, sent, copies = rows_of("usual"), torch.Tensor.numpy, list[int](), list[torch.Size]()
    made = torch.tensor

    def counted(tensor: torch.Tensor, **how: Any) -> Any:
        copies.append(tensor.shape)
        return numpy(tensor, **how)

    def sending(values: Any, **how: Any) -> torch.Tensor:
        sent.append(len(values))
        return made(values, **how)

    with pytest.MonkeyPatch.context() as patch, Waits():  # type: ignore[no-untyped-call]
        patch.setattr(torch.Tensor, "numpy", counted)
        patch.setattr(torch, "tensor", sending)
        found = few(rows, Sampling(temperature=0.8, **cut), "device")
    assert all(law is not None for law in found)
    assert (len(sent), len(copies)) == (1, 1)


def test_rows_with_too_many_tokens_for_the_transfer_take_another(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, sampling = torch.cat([rows_of("flat", 3), rows_of("peaked", 3)]), Sampling(temperature=0.5, top_k=900)
    expected = few(rows, sampling, "device")
    monkeypatch.setattr(device_rows, "CROSSING", 4)
    for one, other in zip(few(rows, sampling, "device"), expected, strict=True):
        assert one is not None
        assert other is not None
        assert one.ids.tolist() == other.ids.tolist()
        assert one.weights.tolist() == other.weights.tolist()


def test_where_too_many_may_survive_min_p_the_whole_row_decides() -> None:
    """Rounding decides about all tokens but the best, which is slow at this place."""
    noise, sampling = Noise(5), Sampling(temperature=1.0, min_p=0.5)
    index = next(i for i in range(9999) if noise.exponential(Stream.TARGET, i, np.array([0]))[0] > 6)
    row = torch.full((SIZE,), float(np.log(0.5)))
    row[0] = 0.0
    assert on_host(row, Warps.of(sampling), (noise, index)) is None
    row[shortlist.ROOM :] = -9.0
    law = on_host(row, Warps.of(sampling), (noise, index))
    assert law is not None
    whole = Law(sampling, 0).distribution(row, NONE)
    assert KeyedDice(noise).choose(index, law) == KeyedDice(noise).choose(index, whole)
