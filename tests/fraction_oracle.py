"""The law of the next token in exact arithmetic, written from the definitions alone.

Logits are given in bits, as integers or fractions, so that every weight is a power of two and every
probability a fraction. Nothing here is shared with the package: the law is a dictionary, and each step is
its textbook sentence.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from paceline.law import Sampling

Scores = dict[int, Fraction]
"""In bits; a token that is missing is impossible."""


def oracle_law(
    log2_logits: Sequence[Fraction | int],
    sampling: Sampling,
    tokens: Sequence[int] = (),
    prompt_length: int = 0,
) -> dict[int, Fraction]:
    """Probability of each next token after ``tokens``, the first ``prompt_length`` being the prompt.

    Settings in natural logarithms (biases, presence and frequency penalties) must be multiples of ln 2 up to
    a small denominator, and the tempered logits whole numbers of bits; other laws are not rational.
    """
    assert not sampling.processors, "a custom processor has no exact form"
    scores = adjusted({t: Fraction(s) for t, s in enumerate(log2_logits)}, sampling, list(tokens), prompt_length)
    if sampling.greedy:
        best = max(scores.values())
        return {min(t for t, s in scores.items() if s == best): Fraction(1)}
    weights = {t: power_of_two(s / decimal(sampling.temperature)) for t, s in scores.items()}
    weights = min_p(top_p(top_k(weights, sampling.top_k), sampling.top_p), sampling.min_p)
    mass = sum(weights.values())
    return {t: w / mass for t, w in sorted(weights.items())}


def adjusted(scores: Scores, sampling: Sampling, tokens: list[int], prompt_length: int) -> Scores:
    emitted = tokens[prompt_length:]
    repetition = decimal(sampling.repetition_penalty)
    result = {}
    for token, score in scores.items():
        score += bits(sampling.logit_bias.get(token, 0.0))
        if token in tokens:
            score = score / repetition if score > 0 else score * repetition
        if token in emitted:
            score -= bits(sampling.presence_penalty) + bits(sampling.frequency_penalty) * emitted.count(token)
        if not any(completes(entry, tokens, token) for entry in sampling.banned):
            result[token] = score
    return result


def completes(entry: Sequence[int], tokens: list[int], token: int) -> bool:
    *prefix, last = entry
    return token == last and tokens[len(tokens) - len(prefix) :] == prefix


def top_k(weights: Scores, k: int) -> Scores:
    if k == 0 or k >= len(weights):
        return weights
    kth = sorted(weights.values(), reverse=True)[k - 1]
    return {t: w for t, w in weights.items() if w >= kth}


def top_p(weights: Scores, p: float) -> Scores:
    before, needed = Fraction(0), Fraction(p) * sum(weights.values())
    kept = {}
    for token, weight in sorted(weights.items(), key=lambda item: (-item[1], item[0])):
        if p == 1 or before < needed:
            kept[token] = weight
        before += weight
    return kept


def min_p(weights: Scores, fraction: float) -> Scores:
    best = max(weights.values())
    return {t: w for t, w in weights.items() if w >= Fraction(fraction) * best}


def power_of_two(exponent: Fraction) -> Fraction:
    assert exponent.denominator == 1, f"2**({exponent}) is not rational"
    return Fraction(2) ** int(exponent)


def bits(natural: float) -> Fraction:
    """The small fraction of bits that a natural logarithm stands for."""
    value = Fraction(natural / math.log(2)).limit_denominator(64)
    assert math.isclose(value * math.log(2), natural, abs_tol=1e-12), f"{natural} is no simple multiple of ln 2"
    return value


def decimal(value: float) -> Fraction:
    """The short decimal a float was written as: 0.8 is 4/5."""
    return Fraction(value).limit_denominator(1000)
