"""Noise is a frozen function of (seed, sample, stream, index, token): Philox4x32-10 in a fixed layout."""

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from paceline.law import Distribution, KeyedDice, Noise, Stream, race
from paceline.law import noise as module
from paceline.law.noise import philox

VOCABULARY = np.arange(50_001)
SEED = 0x0123456789ABCDEF

ONES = 0xFFFFFFFF
PUBLISHED = [  # the known answers of Random123: counter, key, output
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

Words = tuple[int, int, int, int]


def reference_philox(counter: Words, key: tuple[int, int]) -> Words:
    """The published algorithm, one word at a time."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & ONES, (p0 >> 32) ^ c3 ^ k1, p0 & ONES
        k0, k1 = (k0 + 0x9E3779B9) & ONES, (k1 + 0xBB67AE85) & ONES
    return c0, c1, c2, c3


def reference_uniform(noise: Noise, stream: Stream, index: int, token: int) -> float:
    words = reference_philox((token // 2, index, noise.sample, int(stream)), (noise.seed & ONES, noise.seed >> 32))
    low, high = words[2:] if token % 2 else words[:2]
    return ((low | high << 32) // 2**12 + 0.5) / 2**52


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_philox_gives_the_published_answers(counter: Words, key: tuple[int, int], expected: Words) -> None:
    c0, c1, c2, c3 = (np.array([word, 0], dtype=np.uint64) for word in counter)
    even, odd = philox(np.stack([c0, c2]), np.stack([c1, c3]), key[0] | key[1] << 32)
    words = (even[0, 0], odd[0, 0], even[1, 0], odd[1, 0])
    assert tuple(int(word) & ONES for word in words) == expected
    assert reference_philox(counter, key) == expected


FROZEN = [
    (0, 0, Stream.TARGET, 0, 0, 0.8805201978886142),
    (0, 0, Stream.TARGET, 0, 1, 0.6054818538799213),
    (SEED, 3, Stream.RESIDUAL, 77, 149_999, 0.9046310038227222),
    (2**64 - 1, 2**32 - 1, Stream.DRAFT, 2**32 - 1, 2**33 - 1, 0.7034432262594591),
]


@pytest.mark.parametrize(("seed", "sample", "stream", "index", "token", "value"), FROZEN)
def test_the_layout_is_frozen(seed: int, sample: int, stream: Stream, index: int, token: int, value: float) -> None:
    assert Noise(seed, sample).uniform(stream, index, np.array([token])).tolist() == [value]


def test_the_streams_keep_their_numbers() -> None:
    assert {stream.name: int(stream) for stream in Stream} == {
        "TARGET": 0,
        "ACCEPT": 1,
        "RESIDUAL": 2,
        "DRAFT": 3,
    }


@pytest.mark.parametrize("stream", list(Stream))
def test_every_token_has_the_number_the_layout_says(stream: Stream) -> None:
    noise = Noise(SEED, sample=5)
    ids = np.array([0, 1, 2, 3, 4097, 20_479, 20_480, 20_481, 50_000])
    expected = [reference_uniform(noise, stream, 12, int(token)) for token in ids]
    assert noise.uniform(stream, 12, ids).tolist() == expected
    assert noise.uniform(stream, 12, VOCABULARY)[ids].tolist() == expected


@pytest.mark.parametrize("count", [1, 2, 50, 5000, 20_480, 25_000, 49_999])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_subset_sees_the_same_bits_as_the_whole(count: int, ordered: bool) -> None:
    ids = np.random.default_rng(count).permutation(VOCABULARY)[:count]
    ids = np.sort(ids) if ordered else ids
    noise = Noise(SEED)
    whole = noise.exponential(Stream.TARGET, 9, VOCABULARY)
    assert np.array_equal(noise.exponential(Stream.TARGET, 9, ids), whole[ids])
    assert np.array_equal(noise.gumbel(9, ids), noise.gumbel(9, VOCABULARY)[ids])


def test_ids_may_repeat_be_shifted_or_be_none() -> None:
    noise = Noise(SEED)
    whole = noise.uniform(Stream.DRAFT, 0, VOCABULARY)
    assert np.array_equal(noise.uniform(Stream.DRAFT, 0, np.array([7, 7, 3])), whole[[7, 7, 3]])
    assert np.array_equal(noise.uniform(Stream.DRAFT, 0, np.arange(31, 47_000)), whole[31:47_000])
    assert noise.uniform(Stream.DRAFT, 0, np.array([], dtype=np.int64)).size == 0


def test_the_extreme_bits_stay_strictly_inside_the_unit_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    def extremes(*_: object) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        words = np.array([[0, 0], [ONES, ONES]], dtype=np.uint64)
        return words, words

    monkeypatch.setattr(module, "kernels", lambda: None)
    monkeypatch.setattr(module, "philox", extremes)
    noise, ids = Noise(0), np.array([0, 1])
    assert noise.uniform(Stream.TARGET, 0, ids).tolist() == [2.0**-53, 1 - 2.0**-53]
    exponentials = noise.exponential(Stream.TARGET, 0, ids)
    assert (exponentials > 0).all()
    assert np.isfinite(exponentials).all()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=str(seed)):
        Noise(seed)
    with pytest.raises(ValueError, match="sample is -1"):
        Noise(0, sample=-1)


# --- the race and the dice ----------------------------------------------------------------------------------

WEIGHTS = np.array([8.0, 1.0, 4.0, 0.5, 2.0, 0.5])
IDS = np.array([3, 4, 17, 1000, 1001, 49_999])


def frequencies(draws: list[int]) -> list[int]:
    return [draws.count(int(token)) for token in IDS]


@pytest.mark.parametrize("ask", ["choose", "draw"])
def test_the_race_samples_the_law(ask: str) -> None:
    law, dice = Distribution(IDS, WEIGHTS), KeyedDice(Noise(11))
    draws = [getattr(dice, ask)(index, law) for index in range(6000)]
    assert stats.chisquare(frequencies(draws), 6000 * law.probs).pvalue > 1e-3
    table, _, _ = np.histogram2d(draws[:-1], draws[1:], bins=(IDS[:5] - 0.5).tolist())
    assert stats.chi2_contingency(table).pvalue > 1e-3, "successive indices must be independent"


def test_choosing_reveals_nothing_about_drawing_or_accepting() -> None:
    law, dice = Distribution(IDS[:2], np.ones(2)), KeyedDice(Noise(12))
    outcomes = [
        (dice.choose(i, law) == 3, dice.draw(i, law) == 3, dice.accept(i, 3, 0.5), dice.accept(i, 4, 0.5))
        for i in range(3000)
    ]
    for one, other in combinations(np.array(outcomes).T, 2):
        table, _, _ = np.histogram2d(one, other, bins=2)
        assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.93])
def test_a_draft_is_accepted_with_its_chance(chance: float) -> None:
    dice = KeyedDice(Noise(13))
    taken = sum(dice.accept(i, 42, chance) for i in range(4000))
    assert stats.binomtest(taken, 4000, chance).pvalue > 1e-3
    assert all(dice.accept(i, 42, 1.0) for i in range(200))
    assert not any(dice.accept(i, 42, 0.0) for i in range(200))


def test_answers_do_not_depend_on_the_questions_before() -> None:
    law = Distribution(IDS, WEIGHTS)
    busy = KeyedDice(Noise(SEED))
    for i in range(50):
        busy.draw(i, law)
        busy.accept(i, 3, 0.5)
    fresh = KeyedDice(Noise(SEED))
    assert [busy.choose(i, law) for i in range(50)] == [fresh.choose(i, law) for i in reversed(range(50))][::-1]


def test_tokens_at_places_of_their_own_have_the_noise_of_those_places() -> None:
    noise = Noise(seed=5, sample=2)
    random = np.random.default_rng(0)
    places, ids = random.integers(0, 9, 40), random.integers(0, 150_000, 40)
    each = noise.exponential_each(Stream.TARGET, places, ids)
    alone = [
        float(noise.exponential(Stream.TARGET, place, ids[i : i + 1])[0]) for i, place in enumerate(places.tolist())
    ]
    assert each.tolist() == alone
    assert noise.exponential_each(Stream.TARGET, places[:0], ids[:0]).size == 0


@pytest.mark.parametrize("draw", ["compiled", "numpy"])
@pytest.mark.parametrize("count", [1, 2, 31, 300])
def test_compiled_and_numpy_draw_the_published_bits(count: int, draw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.kernels() is not None
    if draw == "numpy":
        monkeypatch.setattr(module, "kernels", lambda: None)
    random = np.random.default_rng(count)
    for _ in range(20):
        noise = Noise(int(random.integers(0, 2**64, dtype=np.uint64)), int(random.integers(0, 2**32)))
        stream, turn = Stream(int(random.integers(4))), int(random.integers(2**24))
        places, ids = random.integers(0, 2**32, count), random.integers(0, 2**33, count)
        even, odd = philox(
            np.stack([ids >> 1, np.full(count, noise.sample)]).astype(np.uint64),
            np.stack([places, np.full(count, stream)]).astype(np.uint64),
            noise.seed,
        )
        words = [even[0], odd[0] & np.uint64(ONES), even[1], odd[1] & np.uint64(ONES)]
        low, high = np.where(ids & 1, words[2], words[0]), np.where(ids & 1, words[3], words[1])
        uniforms = ((low | high << np.uint64(32)) // np.uint64(2**12) + 0.5) * 2.0**-52
        assert np.array_equal(noise.exponential_each(stream, places, ids), -np.log(uniforms))
        one = int(random.integers(count))
        assert noise.uniform(stream, int(places[one]), ids[one : one + 1]).tolist() == [uniforms[one]]
        whole = noise.uniform(stream, int(places[0]), ids, turn)
        wanted = philox(
            np.array([[ids[one] >> 1], [noise.sample]], np.uint64),
            np.array([[places[0]], [stream + 256 * turn]], np.uint64),
            noise.seed,
        )
        low, high = (int(words[ids[one] & 1, 0]) & ONES for words in wanted)
        assert whole[one] == ((low | high << 32) // 2**12 + 0.5) * 2.0**-52


def test_ids_may_lie_anywhere_and_be_read_only() -> None:
    ids = np.arange(0, 90, 3)
    frozen = ids.copy()
    frozen.flags.writeable = False
    found = [Noise(3).uniform(Stream.TARGET, 8, each).tolist() for each in (ids, np.arange(90)[::3], frozen)]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("broken", ["missing", "other bits"])
def test_what_cannot_be_compiled_right_is_left_to_numpy(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "missing":
        monkeypatch.setitem(sys.modules, "paceline.law.kernels", None)
        monkeypatch.delattr("paceline.law.kernels")
    else:
        monkeypatch.setattr("paceline.law.kernels.uniforms", lambda *given: given[-1].fill(0.5))
    assert module.kernels.__wrapped__() is None


def test_threads_do_not_disturb_each_other() -> None:
    def drawn(index: int) -> list[float]:
        ids = np.random.default_rng(index).integers(0, 150_000, 500)
        return Noise(7).uniform(Stream.TARGET, index, ids).tolist()

    alone, interval = [drawn(index) for index in range(400)], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads then meet in the middle of a draw
    try:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(drawn, range(400))) == alone
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("ids", [[-1], [3, -5], [2**33], [0, 2**40]])
def test_a_token_that_fits_no_counter_word_is_refused(ids: list[int]) -> None:
    with pytest.raises(AssertionError, match="do not fit a counter word"):
        Noise(0).uniform(Stream.TARGET, 0, np.array(ids))


def test_gumbel_ranks_as_the_race_does() -> None:
    law, noise = Distribution(IDS, WEIGHTS), Noise(SEED)
    for index in range(200):
        ranked = np.log(law.probs) + noise.gumbel(index, IDS)
        assert IDS[np.argmax(ranked)] == KeyedDice(noise).choose(index, law)


def test_a_dead_heat_goes_to_the_lowest_id() -> None:
    law = Distribution(np.array([2, 5, 9]), np.array([1.0, 2.0, 4.0]))
    assert race(law, np.array([3.0, 2.0, 4.0])) == 5
    assert race(law, np.array([1.0, 2.0, 4.0])) == 2


def test_a_vanishing_weight_loses_without_a_warning() -> None:
    law = Distribution(np.array([0, 1]), np.array([5e-324, 1.0]))
    assert race(law, np.array([1e-16, 36.7])) == 1
