"""Drafts of one token after another in one call: forwards, and between them the choice of the next token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float32, float64, int32

from paceline.compiled import compiled, native
from paceline.law.kernels import uniform
from paceline.law.outlook import LOG_NEGLIGIBLE
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.forward import MINE, meet
from paceline.targets.hf.fused.vector import call, doubles_at, float_of, floats_at, longs_at, shorts_at


@native(MINE)
def chained(job: int, thread: int) -> None:
    """Forwards of a chain: of all unread rows, then of one row of each text."""
    J = longs_at(job)
    threads, texts, met = J[at.THREADS], J[at.CHAINS], 0
    for step in range(J[at.DEPTH]):
        call(J[at.STEP], job, thread)
        met = meet(J[at.CHAIN_MEETING], threads, met)
        if thread == 0:
            longs_at(J[at.MEETING])[0] = 0  # for the next forward
            J[at.ROWS], J[at.COUNT], J[at.CHOSEN] = J[at.NEXT_ROWS], texts, texts
            J[at.CHOICE] = J[at.NEXT_CHOICE]
        for text in range(thread, texts, threads):
            drawn(job, text, step, thread)
        met = meet(J[at.CHAIN_MEETING], threads, met)
        left = 0
        for text in range(texts):
            left += longs_at(J[at.RACES] + 8 * at.RACE * text)[at.LENGTH] > step + 1
        if left == 0:
            return  # all have ended, and each thread sees that


@compiled()
def drawn(job: int, text: int, step: int, thread: int) -> None:
    """The token after a text, and the row that reads it next."""
    J = longs_at(job)
    R = longs_at(J[at.RACES] + 8 * at.RACE * text)
    if step >= R[at.LENGTH]:
        return  # it has ended
    R[at.READ] = step + 1
    token = next_token(job, text, text, step, thread)
    if token < 0:
        return
    embedded(job, token, text)
    row = longs_at(J[at.NEXT_ROWS] + 8 * at.ROW * text)
    if step:
        row[at.POSITION] += 1
        row[at.PLACE] += 1
        row[at.PREFIX] += 1


@compiled()
def next_token(job: int, text: int, row: int, step: int, thread: int) -> int:
    """The token that a text's draft has behind this row of logits, which is noted as its number ``step``. Nothing
    follows where it is an end; where there is none, -1, nothing follows the token before."""
    J = longs_at(job)
    R = longs_at(J[at.RACES] + 8 * at.RACE * text)
    count, speeds = raced(job, text, row, step, thread)
    if count == 0:
        R[at.LENGTH] = step
        return -1
    own = J[at.DRAWN] + 16 * thread * J[at.VOCABULARY]
    ids, weights = longs_at(own), doubles_at(own + 8 * J[at.VOCABULARY])
    token, speed = -1, -1.0
    for number in range(count):
        if weights[number] > speed:
            token, speed = ids[number], weights[number]
    longs_at(J[at.DRAFTED])[text * J[at.DEPTH] + step] = token
    doubles_at(J[at.CHANCES])[text * J[at.DEPTH] + step] = math.log(speed / speeds)
    if is_end(R, token):
        R[at.LENGTH] = step + 1
    return token


@compiled()
def raced(job: int, text: int, row: int, step: int, thread: int) -> tuple[int, float]:
    """The tokens that may follow a row of logits and their speeds, in the thread's own memory: how many these are, and
    the sum of the speeds."""
    J = longs_at(job)
    R, N = longs_at(J[at.RACES] + 8 * at.RACE * text), doubles_at(J[at.RACES] + 8 * at.RACE * text)
    scores = floats_at(J[at.LOGITS] + 4 * row * J[at.VOCABULARY])
    own = J[at.DRAWN] + 16 * thread * J[at.VOCABULARY]
    ids, weights = longs_at(own), doubles_at(own + 8 * J[at.VOCABULARY])
    count = _weighed(scores, R[at.SIZE_OF_RACE], N[at.TEMPERATURE], ids, weights)
    count = kept(ids, weights, count, R[at.MOST], N[at.MASS], N[at.LEAST], 0.0)
    return count, race(R, ids, weights, count, step)


@compiled()
def is_end(races: Any, token: int) -> bool:
    """Whether nothing follows a token."""
    ends, found = longs_at(races[at.ENDS]), False
    for number in range(races[at.END_COUNT]):
        found = found or ends[number] == token
    return found


@compiled()
def race(races: Any, ids: Any, weights: Any, count: int, step: int) -> float:
    """Turn the weights of tokens into their speeds in the text's race, ``step`` places ahead; the sum of these."""
    speeds = 0.0
    for number in range(count):
        if races[at.IS_NOISY]:
            draw = uniform(
                np.uint64(ids[number]),
                np.uint64(races[at.INDEX] + step),
                np.uint64(races[at.SAMPLE]),
                np.uint64(0),
                np.uint64(races[at.SEED]),
                np.uint64(races[at.SEED + 1]),
            )
            weights[number] /= -math.log(draw)
        speeds += weights[number]
    return speeds


@compiled()
def greatest(scores: Any, size: int) -> Any:
    """The greatest score; not a finite number where no score is."""
    peak, is_number = scores[0], True
    for token in range(size):
        peak = max(peak, scores[token])
        is_number = is_number and scores[token] == scores[token]
    return peak if is_number else float32(math.nan)


@compiled()
def _weighed(scores: Any, size: int, temperature: float, ids: Any, weights: Any) -> int:
    """The tokens that are not negligible and their weights, the best one's 1; none where no score is greatest."""
    peak = greatest(scores, size)
    if peak - peak != float32(0.0):
        return 0
    least, count = float32(float64(peak) + temperature * LOG_NEGLIGIBLE), 0
    for token in range(size):
        if scores[token] >= least:
            ids[count], weights[count] = token, math.exp((float64(scores[token]) - float64(peak)) / temperature)
            count += 1
    return count


@compiled()
def kept(ids: Any, weights: Any, count: int, most: int, mass: float, lightest: float, others: float) -> int:
    """Those that top-k, top-p and min-p leave, where ``others`` is the weight of the tokens that are not given. Of
    tokens that tie for the last place top-k keeps all, and top-p those of the lowest ids."""
    least, ties = 0.0, count
    if (0 < most < count) or mass < 1.0:
        lightness = np.empty(count)
        for number in range(count):
            lightness[number] = -weights[number]
        lightness.sort()
        first = min(count, most) if most > 0 else count
        while first < count and lightness[first] == lightness[first - 1]:
            first += 1
        if mass < 1.0:
            total, before, number = 0.0 if most > 0 else others, 0.0, 0
            for other in range(first):
                total -= lightness[other]
            while number < first and (number == 0 or before < mass * total):
                before -= lightness[number]
                number += 1
            first, ties = number, 0
            for other in range(first):
                ties += lightness[other] == lightness[first - 1]
        least = -lightness[first - 1]
    left = 0
    for number in range(count):
        if weights[number] < least or (weights[number] == least and ties == 0):
            continue
        ties -= weights[number] == least
        if weights[number] >= lightest:
            ids[left], weights[left] = ids[number], weights[number]
            left += 1
    return left


@compiled()
def embedded(job: int, token: int, row: int) -> None:
    """The state that enters the first layer for a token."""
    J = longs_at(job)
    width = J[at.WIDTH]
    states = floats_at(J[at.STATES] + 4 * row * width)
    if J[at.NARROW_EMBEDDING]:
        halves = shorts_at(J[at.EMBEDDING] + 2 * token * width)
        for place in range(width):
            states[place] = float_of(int32(halves[place]) << int32(16))
        return
    given = floats_at(J[at.EMBEDDING] + 4 * token * width)
    for place in range(width):
        states[place] = given[place]
