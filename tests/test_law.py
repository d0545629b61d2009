"""The law in float64 is the law in fractions, its steps are those of transformers, its inputs stay as is."""

import math
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from transformers.generation import logits_process as hf

from fraction_oracle import oracle_law
from paceline.errors import CallbackError
from paceline.law import (
    Distribution,
    KeyedDice,
    Law,
    Noise,
    Processor,
    Sampling,
    log_normalizer,
    log_probabilities,
)

LN2 = math.log(2)
NONE = np.array([], dtype=np.int64)


def named(value: object) -> str:
    """A test's name from its parameters; objects by their type, since addresses differ between workers."""
    if isinstance(value, dict):
        return " ".join(key if key == "processors" else f"{key}={entry}" for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(named(entry) for entry in value)
    return str(value) if isinstance(value, (bool, int, float, str)) else type(value).__name__


def row_of(log2_logits: Sequence[float]) -> torch.Tensor:
    return torch.tensor(log2_logits, dtype=torch.float64) * LN2


def as_dict(law: Distribution) -> dict[int, float]:
    return dict(zip(law.ids.tolist(), law.probs.tolist(), strict=True))


def survivors(row: torch.Tensor | Sequence[float], **settings: Any) -> list[int]:
    row = torch.as_tensor(row, dtype=torch.float64) if not isinstance(row, torch.Tensor) else row
    return list(Law(Sampling(**settings), 0).distribution(row, NONE).ids.tolist())


# --- the oracle ---------------------------------------------------------------------------------------------

CUTS: list[dict[str, Any]] = [
    {},
    {"top_k": 3},
    {"top_p": 0.7137},  # no partial sum over a total below 10**4 equals these
    {"min_p": 0.1113},
    {"top_k": 7, "top_p": 0.9151, "min_p": 0.0313},
    {"top_p": 0.0001},
]
ADJUSTMENTS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 2.0},
    {"repetition_penalty": 0.5},
    {"presence_penalty": 2 * LN2},
    {"frequency_penalty": 2 * LN2},
    {"logit_bias": {0: 4 * LN2, 7: -8 * LN2}},
    {"banned": ((1,), (4, 6), (2, 4, 8), (9, 4, 3), (5, 5, 2, 4, 10))},
    {
        "logit_bias": {3: -4 * LN2, 5: 4 * LN2},
        "repetition_penalty": 2.0,
        "presence_penalty": -2 * LN2,
        "frequency_penalty": 4 * LN2,
        "banned": ((0,), (2, 4, 5)),
    },
]
TOKENS = [11, 5, 2, 4, 9, 5, 5, 2, 4]
PROMPT = 4


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("cut", CUTS, ids=named)
@pytest.mark.parametrize("adjustment", ADJUSTMENTS, ids=lambda a: "+".join(a) or "raw")
def test_the_law_is_the_one_in_fractions(temperature: float, cut: dict[str, Any], adjustment: dict[str, Any]) -> None:
    sampling = Sampling(temperature=temperature, **cut, **adjustment)
    law = Law(sampling, PROMPT)
    rng = np.random.default_rng(0)
    for _ in range(6):
        bits = (4 * rng.integers(-2, 3, size=12)).tolist()
        expected = oracle_law(bits, sampling, TOKENS, PROMPT)
        got = as_dict(law.distribution(row_of(bits), np.array(TOKENS)))
        assert got.keys() == expected.keys(), bits
        assert all(abs(got[t] - expected[t]) < 1e-9 for t in expected), bits


def test_the_oracle_knows_the_textbook_law() -> None:
    sampling = Sampling(temperature=1.0, top_p=0.8, banned=((0,),))
    assert oracle_law([9, 2, 1, 0, 0], sampling) == {1: Fraction(4, 7), 2: Fraction(2, 7), 3: Fraction(1, 7)}
    assert oracle_law([1, 3, 3], Sampling()) == {1: Fraction(1)}


# --- beside transformers ------------------------------------------------------------------------------------

SIZE = 600
HISTORY = np.random.default_rng(5).integers(0, SIZE, 40)


def transformers_law(row: torch.Tensor, processors: list[hf.LogitsProcessor]) -> dict[int, float]:
    scores = hf.LogitsProcessorList(processors)(torch.from_numpy(HISTORY)[None], row.clone()[None])
    probabilities = torch.softmax(scores[0], dim=-1)
    return {int(t): float(probabilities[t]) for t in probabilities.nonzero().flatten()}


def assert_same_law(law: Distribution, expected: dict[int, float]) -> None:
    got = as_dict(law)
    assert got.keys() == expected.keys()
    assert all(math.isclose(got[t], expected[t], rel_tol=1e-4) for t in expected)


@pytest.mark.parametrize("width", [0.05, 1.0, 3.0, 8.0])
@pytest.mark.parametrize(
    ("settings", "warpers"),
    [
        ({"top_k": 20}, [hf.TopKLogitsWarper(20)]),
        ({"top_p": 0.9}, [hf.TopPLogitsWarper(0.9)]),
        ({"top_p": 0.05}, [hf.TopPLogitsWarper(0.05)]),
        ({"min_p": 0.1}, [hf.MinPLogitsWarper(0.1)]),
        (
            {"top_k": 50, "top_p": 0.8, "min_p": 0.03},
            [hf.TopKLogitsWarper(50), hf.TopPLogitsWarper(0.8), hf.MinPLogitsWarper(0.03)],
        ),
    ],
    ids=named,
)
def test_the_warps_are_those_of_transformers(
    width: float, settings: dict[str, Any], warpers: list[hf.LogitsProcessor]
) -> None:
    law = Law(Sampling(temperature=0.8, **settings), 0)
    for seed in range(5):
        row = width * torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
        expected = transformers_law(row, [hf.TemperatureLogitsWarper(0.8), *warpers])
        assert_same_law(law.distribution(row, HISTORY), expected)


def test_the_adjustments_act_in_the_order_of_transformers() -> None:
    """A bias that changes the sign of a repeated token's logit tells one order from another."""
    row = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    repeated, last = HISTORY[:4].tolist(), HISTORY[-2:].tolist()
    biases = dict(zip(repeated, [3.0, -3.0, 2.5, -2.5], strict=True))
    chain: list[hf.LogitsProcessor] = [
        hf.SequenceBiasLogitsProcessor([[[t], bias] for t, bias in biases.items()]),
        hf.RepetitionPenaltyLogitsProcessor(1.7),
        hf.NoBadWordsLogitsProcessor([[11], [*last, 12], [last[0], 13]]),
        hf.NoRepeatNGramLogitsProcessor(2),
        hf.TemperatureLogitsWarper(0.7),
        hf.TopPLogitsWarper(0.95),
    ]
    sampling = Sampling(
        temperature=0.7,
        top_p=0.95,
        logit_bias=biases,
        repetition_penalty=1.7,
        banned=((11,), (*last, 12), (last[0], 13)),
        processors=(hf.NoRepeatNGramLogitsProcessor(2),),
    )
    assert_same_law(Law(sampling, 5).distribution(row, HISTORY), transformers_law(row, chain))


# --- adjustments --------------------------------------------------------------------------------------------


def adjusted(row: torch.Tensor, tokens: Sequence[int], prompt_length: int = 0, **settings: Any) -> list[float]:
    scores = Law(Sampling(**settings), prompt_length).adjust(row, np.array(tokens, dtype=np.int64))
    return [round(score, 6) for score in scores.tolist()]


def test_tokens_beyond_the_output_layer_are_passed_over() -> None:
    settings = {"repetition_penalty": 2.0, "presence_penalty": 1.0, "frequency_penalty": 1.0}
    assert adjusted(torch.tensor([4.0, 4.0]), [7, 1, 9, 1], 0, **settings) == [4.0, -1.0]


def test_an_id_the_model_does_not_score_is_refused() -> None:
    for settings in ({"logit_bias": {4: 1.0}}, {"banned": ((0, 4),)}):
        with pytest.raises(ValueError, match=r"token 4, and the model has 4 tokens"):
            adjusted(torch.zeros(4), [0], **settings)


EVERYTHING: dict[str, Any] = {
    "logit_bias": {0: 1.0},
    "repetition_penalty": 2.0,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "banned": ((1,), (3, 2)),
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_and_tokens_are_left_alone(dtype: torch.dtype, temperature: float) -> None:
    def overwrite(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ids.fill_(0)
        return scores.mul_(2)

    for settings in (
        {},
        EVERYTHING,
        {"processors": (overwrite,)},
        {**EVERYTHING, "processors": (overwrite,)},
    ):
        row, tokens = torch.arange(5, dtype=dtype), np.array([4, 3, 3])
        Law(Sampling(temperature=temperature, **settings), 1).distribution(row, tokens)
        assert torch.equal(row, torch.arange(5, dtype=dtype))
        assert tokens.tolist() == [4, 3, 3]


def test_half_precision_is_widened_and_nothing_is_narrowed() -> None:
    law = Law(Sampling(temperature=1.0, repetition_penalty=1.1), 0)
    for dtype, wide in (
        (torch.bfloat16, np.float32),
        (torch.float16, np.float32),
        (torch.float32, np.float32),
        (torch.float64, np.float64),
    ):
        row = torch.tensor([1.0, 2.0], dtype=dtype)
        assert law.adjust(row, np.array([1])).dtype == wide
        assert law.log_probabilities(row).dtype == wide
    penalised = law.adjust(torch.tensor([1.0, 2.0], dtype=torch.bfloat16), np.array([1]))
    assert penalised[1] == np.float32(2) / np.float32(1.1), "the penalty itself must not be rounded to bfloat16"


# --- custom processors --------------------------------------------------------------------------------------


class Recorder:
    """Keeps the very tensors it is handed, as a stateful processor may."""

    def __init__(self, shift: float) -> None:
        self.shift = shift
        self.calls: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls.append((ids, scores.clone()))
        return scores + self.shift


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_sees_each_position_once_with_its_tokens_and_its_row(temperature: float) -> None:
    first, second = Recorder(1.0), Recorder(10.0)
    law = Law(Sampling(temperature=temperature, processors=(first, second), logit_bias={2: 5.0}), 1)
    buffer = np.array([3, 1, 2, 0, 0])
    for length in range(1, 4):
        law.distribution(torch.full((4,), float(length)), buffer[:length])
    buffer[:] = 0  # what the processors kept must not change with the sequence's own buffer
    assert [ids.tolist() for ids, _ in first.calls] == [[[3]], [[3, 1]], [[3, 1, 2]]]
    assert [ids.dtype for ids, _ in first.calls] == [torch.int64] * 3
    assert [scores.tolist() for _, scores in first.calls] == [[[n, n, n + 5, n]] for n in (1.0, 2.0, 3.0)]
    assert [scores.tolist() for _, scores in second.calls] == [[[n, n, n + 5, n]] for n in (2.0, 3.0, 4.0)]


def test_a_processor_decides_the_greedy_token() -> None:
    def forbid_the_best(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(scores == scores.max(), -math.inf)

    law = Law(Sampling(processors=(forbid_the_best,)), 0)
    assert not law.argmax_only
    assert law.distribution(torch.tensor([1.0, 3.0, 2.0]), NONE).ids.tolist() == [2]


def test_a_processor_that_loses_the_vocabulary_is_named() -> None:
    def shrink(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores[:, :2]

    with pytest.raises(CallbackError, match=r"shrink.*\(1, 2\).*\(1, 4\)"):
        adjusted(torch.zeros(4), [0], processors=(shrink,))


# --- warps --------------------------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    law = Law(Sampling(), 0)
    assert law.argmax_only
    greedy = law.distribution(torch.tensor([0.0, 7.0, 1.0, 7.0]), NONE)
    assert as_dict(greedy) == {1: 1.0}
    wide = torch.zeros(100_000)
    wide[[99_999, 70_001, 40_000]] = 1.0
    assert law.distribution(wide, NONE).ids.tolist() == [40_000]


def test_top_k_cannot_bring_back_the_impossible() -> None:
    assert survivors([-math.inf, 3, -math.inf, 1], temperature=1.0, top_k=3) == [1, 3]
    assert survivors([5, 3], temperature=1.0, top_k=9) == [0, 1]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.25, [0]), (0.26, [0, 1]), (0.5, [0, 1]), (0.75, [0, 1, 2]), (0.76, [0, 1, 2, 3])]
)
def test_among_equals_top_p_keeps_the_lowest_ids_up_to_the_exact_boundary(top_p: float, kept: list[int]) -> None:
    assert survivors([2.0, 2.0, 2.0, 2.0], temperature=0.7, top_p=top_p) == kept
    spread = [2.0, -math.inf, 2.0, 2.0, -math.inf, 2.0]
    assert survivors(spread, temperature=0.7, top_p=top_p) == [[0, 2, 3, 5][i] for i in kept]


def test_ties_at_the_least_surviving_weight_are_cut_by_id() -> None:
    assert survivors([0.0, 9.0, 0.0, 0.0, 9.0, 0.0], temperature=5.0, top_p=0.84) == [0, 1, 2, 4]


def full_sort_nucleus(row: torch.Tensor, temperature: float, p: float) -> list[int]:
    """The definition of top-p over the whole vocabulary, in order of descending score and ascending id."""
    scores = row.double().numpy()
    weights = np.exp((scores - scores.max()) / temperature)
    order = np.argsort(-weights, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    return sorted(order[before < p * weights.sum()].tolist())


def wide_rows() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(30_000, generator=generator)
    peaked, masked = 2 * noise, 3 * noise
    peaked[[5, 20_000]] = 20.0
    masked[100:29_000] = -math.inf
    return {
        "peaked": peaked,
        "realistic": 3 * noise,
        "flat": 0.01 * noise,
        "masked": masked,
        "coarse": (8 * noise).round() / 8,
        "constant": torch.zeros(30_000),
    }


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.999, 1 - 2**-53])
@pytest.mark.parametrize("name", list(wide_rows()))
def test_partial_selection_finds_the_nucleus_of_a_full_sort(name: str, p: float) -> None:
    row = wide_rows()[name]
    assert survivors(row, temperature=0.8, top_p=p) == full_sort_nucleus(row, 0.8, p)


def test_a_whole_vocabulary_law_has_every_possible_token() -> None:
    law = Law(Sampling(temperature=1.0), 0).distribution(torch.tensor([0.0, -math.inf, 0.0, -2000.0]), NONE)
    assert as_dict(law) == {0: 0.5, 2: 0.5}
    assert len(survivors(torch.zeros(1000), temperature=1.0)) == 1000


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e300])
def test_extreme_temperatures_are_greedy_or_flat(temperature: float) -> None:
    assert survivors([1.0, 2.0, 2.0, -5.0], temperature=temperature) == ([1, 2] if temperature < 1 else [0, 1, 2, 3])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("row", "sentence"),
    [([-math.inf, -math.inf], "no token is possible"), ([1.0, math.nan], "nan"), ([1.0, math.inf], "inf")],
)
def test_a_row_without_a_law_is_refused(temperature: float, row: list[float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        survivors(row, temperature=temperature)


def test_sampling_through_the_law_gives_its_probabilities() -> None:
    bits = [6, 5, 5, 3, 2, 0, -2, 4]
    sampling = Sampling(temperature=1.0, top_p=0.9301, repetition_penalty=1.5, logit_bias={7: LN2})
    expected = oracle_law(bits, sampling, [0, 3])
    law, dice = Law(sampling, 0), KeyedDice(Noise(sampling.seed))
    one = law.distribution(row_of(bits), np.array([0, 3]))
    draws = [dice.choose(index, one) for index in range(4000)]
    observed = [draws.count(token) for token in expected]
    assert stats.chisquare(observed, [4000 * float(p) for p in expected.values()]).pvalue > 1e-3


def test_log_probabilities_are_the_models_own() -> None:
    row = torch.tensor([3.0, 1.0, 0.0, 2.0])
    raw = Law(Sampling(**EVERYTHING, temperature=0.5), 0).log_probabilities(row)
    assert np.allclose(raw, row - math.log(sum(math.exp(x) for x in row.tolist())))
    rows = torch.stack([row, 2 * row]).bfloat16()
    assert np.allclose(rows.float() - log_normalizer(rows)[:, None], log_probabilities(rows))


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temperature": -0.5}, r"temperature is -0\.5: use"),
        ({"temperature": math.inf}, "temperature is inf: use"),
        ({"temperature": math.nan}, "temperature is nan: use"),
        ({"top_k": -1}, "top_k is -1: use"),
        ({"top_p": 0.0}, r"top_p is 0\.0: use"),
        ({"top_p": 1.5}, r"top_p is 1\.5: use"),
        ({"top_p": math.nan}, "top_p is nan: use"),
        ({"min_p": -0.1}, r"min_p is -0\.1: use"),
        ({"min_p": 1.0}, r"min_p is 1\.0: use"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty is 0\.0: use"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf: use"),
        ({"repetition_penalty": 1e308}, r"repetition_penalty is 1e\+308: use a positive number from 1e-30 to 1e\+30"),
        ({"repetition_penalty": 1e-308}, "repetition_penalty is 1e-308: use a positive"),
        ({"presence_penalty": math.nan}, "presence_penalty is nan: use"),
        ({"frequency_penalty": -math.inf}, "frequency_penalty is -inf: use"),
        ({"logit_bias": {-1: 1.0}}, "token -1"),
        ({"logit_bias": {3: math.nan}}, "token 3 is nan: use"),
        ({"banned": ((1,), ())}, "banned holds an empty entry: give"),
        ({"banned": ((1, -2),)}, r"banned holds \(1, -2\)"),
        ({"seed": -1}, "seed is -1: choose"),
        ({"seed": 2**64}, "seed is 18446744073709551616: choose"),
    ],
    ids=named,
)
def test_a_wrong_setting_is_named_with_its_value_and_its_mend(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Sampling(**settings)


def test_the_borders_of_the_settings_are_inside() -> None:
    sampling = Sampling(temperature=1e-3, top_p=1.0, min_p=0.0, top_k=0, seed=2**64 - 1)
    assert sampling == Sampling(temperature=1e-3, seed=2**64 - 1)
    assert hash(sampling) == hash(Sampling(temperature=1e-3, seed=2**64 - 1))


@pytest.mark.parametrize("penalty", [1e30, 1e-30])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_the_largest_and_the_smallest_factors_leave_numbers(kind: Any, penalty: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        law = Law(Sampling(temperature=1.0, repetition_penalty=penalty), 0)
        row = law.adjust(kind(np.array([3e4, -3e4, 0.0, 1.0], np.float32)), np.array([0, 1, 2]))
    assert np.isfinite(row).all()
    assert row[1] < 0 < row[0]


def identity(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores


PROCESSOR: Processor = identity


@pytest.mark.parametrize(
    ("settings", "greedy", "adjusts"),
    [
        ({}, True, False),
        ({"top_k": 5, "top_p": 0.5, "min_p": 0.5}, True, False),
        ({"temperature": 1.0}, False, False),
        ({"temperature": 0.8}, False, False),
        ({"temperature": 1.0, "top_k": 5}, False, False),
        ({"temperature": 1.0, "top_p": 0.5}, False, False),
        ({"temperature": 1.0, "min_p": 0.5}, False, False),
        ({"repetition_penalty": 0.9}, True, True),
        ({"presence_penalty": -0.1}, True, True),
        ({"frequency_penalty": 0.1}, True, True),
        ({"logit_bias": {1: 0.5}}, True, True),
        ({"banned": ((1, 2),)}, True, True),
        ({"processors": (PROCESSOR,)}, True, True),
    ],
    ids=named,
)
def test_the_settings_know_what_acts(settings: dict[str, Any], greedy: bool, adjusts: bool) -> None:
    sampling = Sampling(**settings)
    assert (sampling.greedy, sampling.adjusts) == (greedy, adjusts)
    assert Law(sampling, 0).argmax_only == (greedy and not adjusts)


# --- distributions, exactly ---------------------------------------------------------------------------------


def exact(weights: dict[int, Fraction]) -> Distribution:
    ids: NDArray[np.int64] = np.array(sorted(weights))
    return Distribution(ids, np.array([weights[int(t)] for t in ids], dtype=object))


def random_fractions(seed: int) -> dict[int, Fraction]:
    rng = np.random.default_rng(seed)
    ids = rng.choice(12, size=int(rng.integers(1, 9)), replace=False)
    return {int(t): Fraction(int(rng.integers(1, 40)), int(rng.integers(1, 9))) for t in ids}


@pytest.mark.parametrize("seed", range(30))
def test_offered_plus_residual_is_the_wanted_law(seed: int) -> None:
    """The identity of the rejection rule: min(p, q) + (p - q)+ = p, token by token, without rounding."""
    p, q = exact(random_fractions(seed)), exact(random_fractions(seed + 1000))
    rest = p.minus(q)
    short = dict(zip(rest.ids.tolist(), rest.weights.tolist(), strict=True))
    for token in range(12):
        common = min(p.probability(token), q.probability(token))
        assert common + short.get(token, 0) == p.probability(token)
    assert all(isinstance(weight, Fraction) and weight > 0 for weight in short.values())
    assert rest.mass == 1 - sum(min(p.probability(t), q.probability(t)) for t in range(12))
    assert sum(p.probs) == 1


def test_without_a_token_the_others_keep_their_proportions() -> None:
    law = exact({2: Fraction(1, 2), 5: Fraction(1, 3), 7: Fraction(1, 6)})
    rest = law.without(2)
    assert rest.ids.tolist() == [5, 7]
    assert rest.probs.tolist() == [Fraction(2, 3), Fraction(1, 3)]
    assert law.without(3).probs.tolist() == law.probs.tolist()
    assert rest.without(5).without(7).mass == 0


def test_a_token_outside_has_no_probability() -> None:
    law = exact({2: Fraction(1), 5: Fraction(3)})
    assert [law.probability(t) for t in (0, 2, 3, 5, 6)] == [0, Fraction(1, 4), 0, Fraction(3, 4), 0]
    assert Distribution.one_hot(3).probability(3) == 1
    assert Distribution.one_hot(3).minus(law).ids.tolist() == [3]


def test_a_law_less_itself_is_empty_whatever_the_rounding() -> None:
    rng = np.random.default_rng(1)
    weights = rng.exponential(size=50_000) ** 4
    law = Distribution(np.arange(50_000), weights)
    for scale in (1.0, 3.0, 1e-30):
        assert law.minus(Distribution(law.ids, weights * scale)).mass == 0
    split = Distribution(np.arange(1, 50_001), weights)
    assert law.minus(split).mass > 0
    assert exact({1: Fraction(2), 3: Fraction(5)}).minus(exact({1: Fraction(4), 3: Fraction(10)})).ids.size == 0


def test_the_float_residual_is_the_exact_one() -> None:
    p, q = random_fractions(7), random_fractions(8)

    def rounded(weights: dict[int, Fraction]) -> Distribution:
        law = exact(weights)
        return Distribution(law.ids, law.weights.astype(np.float64))

    in_fractions, in_floats = exact(p).minus(exact(q)), rounded(p).minus(rounded(q))
    assert in_floats.ids.tolist() == in_fractions.ids.tolist()
    assert np.allclose(in_floats.weights, in_fractions.weights.astype(np.float64), rtol=1e-12)
