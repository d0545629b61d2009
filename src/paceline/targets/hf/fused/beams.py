"""A beam search in one call: the layers of a head, level after level, and between them the choice of its beams.

The head is a list of steps for each level, whose rows are the beams. A level begins with the tokens' embeddings and
ends with logits. At the first level each text has one beam, and then as many as the search is wide.
"""

from __future__ import annotations

import math
from typing import Any

from numba import float32, float64

from paceline.compiled import compiled, native
from paceline.law.outlook import CANDIDATES, IMPOSSIBLE, NO_TOKEN
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.chains import embedded, greatest, kept, race
from paceline.targets.hf.fused.forward import MINE, meet, shared
from paceline.targets.hf.fused.stages import exponential, prepared, reach
from paceline.targets.hf.fused.vector import doubles_at, floats_at, longs_at


@native(MINE)
def searched(job: int, thread: int) -> None:
    """The levels of a search, until all beams have ended."""
    J = longs_at(job)
    threads, counter, texts, width, met = J[at.THREADS], J[at.MEETING], J[at.CHAINS], J[at.BEAMS], 0
    count, tokens = texts, longs_at(J[at.TOKENS])
    paths, lately = doubles_at(J[at.PATHS]), doubles_at(J[at.CHANCES])
    for level in range(J[at.DEPTH]):
        for row in range(thread, count, threads):
            paths[row] = lately[row]
            embedded(job, max(0, tokens[row]), row)
        met = meet(counter, threads, met)
        steps = longs_at(J[at.LEVELS] + 8 * at.HEAD_LEVEL * level)
        for number in range(steps[at.STEP_COUNT]):
            met = stepped(job, thread, steps[at.FIRST_STEP] + 8 * at.HEAD_STEP * number, count, met)
        for row in range(thread, count, threads):
            contended(job, row, row // width if level else row, level, thread)
        met = meet(counter, threads, met)
        for text in range(thread, texts, threads):
            chosen(job, text, level)
        met = meet(counter, threads, met)
        count, going = texts * width, 0
        for row in range(count):
            going += lately[row] > IMPOSSIBLE
        if going == 0:
            return  # and each thread sees that


@compiled()
def stepped(job: int, thread: int, step: int, count: int, met: int) -> int:
    """A step of the head, for all beams; how often the threads have met."""
    J, S = longs_at(job), longs_at(step)
    threads, counter, form, matrix = J[at.THREADS], J[at.MEETING], J[at.FORM], step + 8 * at.MATRIX
    if longs_at(matrix)[at.PRODUCT] == 0:
        for row in range(thread, count, threads):
            given = longs_at(S[at.OF_ROW])[row] if S[at.OF_ROW] else row
            origin = floats_at(S[at.FROM] + 4 * given * S[at.FROM_STRIDE])
            result = floats_at(S[at.INTO] + 4 * row * S[at.INTO_STRIDE])
            for place in range(S[at.OUTPUTS]):
                result[place] = origin[place]
            finished(step, row, 0, S[at.OUTPUTS])
        return meet(counter, threads, met)  # type: ignore[no-any-return]
    inputs, outputs = S[at.INPUTS], S[at.OUTPUTS]
    for row in range(thread, count, threads):
        prepared(job, S[at.FROM] + 4 * row * S[at.FROM_STRIDE], inputs, row, form)
    met = meet(counter, threads, met)
    wide, result, stride = reach(inputs, form), S[at.INTO], S[at.INTO_STRIDE]
    first, last = shared(job, thread, matrix, J[at.PREPARED], wide, outputs, count, result, stride)
    for row in range(count):
        finished(step, row, first, last)
    return meet(counter, threads, met)  # type: ignore[no-any-return]


@compiled()
def finished(step: int, row: int, first: int, last: int) -> None:
    """What a step does with the values that it found."""
    S = longs_at(step)
    result = floats_at(S[at.INTO] + 4 * row * S[at.INTO_STRIDE])
    if S[at.ADDED]:
        added = floats_at(S[at.ADDED] + 4 * row * S[at.ADDED_STRIDE])
        for place in range(first, last):
            result[place] += added[place]
    if S[at.ACTIVE]:
        for place in range(first, last):
            result[place] /= float32(exponential(float64(-result[place]))) + float32(1.0)
    if S[at.BESIDE]:
        beside = floats_at(S[at.BESIDE] + 4 * row * S[at.BESIDE_STRIDE])
        for place in range(first, last):
            result[place] += beside[place]


@compiled()
def contended(job: int, row: int, text: int, level: int, thread: int) -> None:
    """The best tokens behind a beam, as many as the search is wide, and the logarithms of their chances."""
    J, race_table = longs_at(job), longs_at(races_of(job, text))
    width, size = J[at.BEAMS], race_table[at.SIZE_OF_RACE]
    best, chances = longs_at(J[at.BEST] + 8 * row * width), doubles_at(J[at.BEST_CHANCES] + 8 * row * width)
    for place in range(width):
        best[place] = NO_TOKEN
    scores, numbers = floats_at(J[at.LOGITS] + 4 * row * J[at.VOCABULARY]), doubles_at(races_of(job, text))
    peak = greatest(scores, size)
    if peak - peak != float32(0.0) or doubles_at(J[at.PATHS])[row] <= IMPOSSIBLE:
        return  # a broken state gives none
    own = J[at.DRAWN] + 16 * thread * CANDIDATES
    ids, weights = longs_at(own), doubles_at(own + 8 * CANDIDATES)
    count = foremost(scores, size, ids, weights)
    temperature = numbers[at.TEMPERATURE]
    others = mass(scores, size, float64(peak), temperature)
    for number in range(count):
        weights[number] = exponential((weights[number] - float64(peak)) / temperature)
        others -= weights[number]
        if J[at.KNOWN]:
            ids[number] = longs_at(J[at.KNOWN])[ids[number]]
    others = max(0.0, others)
    left = kept(ids, weights, count, race_table[at.MOST], numbers[at.MASS], numbers[at.LEAST], others)
    if left < count or race_table[at.MOST] > 0:
        others = 0.0
    speeds = race(race_table, ids, weights, left, level) + others
    for place in range(min(width, left)):
        winner = place
        for number in range(place + 1, left):
            if weights[number] > weights[winner]:
                winner = number
        best[place], chances[place] = ids[winner], math.log(weights[winner] / speeds)
        ids[winner], weights[winner] = ids[place], weights[place]


@compiled()
def races_of(job: int, text: int) -> int:
    """The address of how a text's tokens are chosen."""
    return longs_at(job)[at.RACES] + 8 * at.RACE * text  # type: ignore[no-any-return]


@compiled(fastmath={"reassoc", "contract"})
def mass(scores: Any, size: int, peak: float, temperature: float) -> float:
    """What all tokens weigh; in any order, and so by vectors."""
    total = 0.0
    for token in range(size):
        total += exponential((float64(scores[token]) - peak) / temperature)
    return total


@compiled()
def foremost(scores: Any, size: int, ids: Any, values: Any) -> int:
    """The tokens of the greatest scores, in no order: a heap, whose first has the least. How many there are."""
    count = min(size, CANDIDATES)
    for token in range(count):
        ids[token], values[token] = token, scores[token]
    for place in range(count // 2 - 1, -1, -1):
        sink(ids, values, place, count)
    for token in range(count, size):
        if scores[token] > values[0]:
            ids[0], values[0] = token, scores[token]
            sink(ids, values, 0, count)
    return count


@compiled()
def sink(ids: Any, values: Any, place: int, count: int) -> None:
    """Put an element of a heap where none below it is less."""
    while True:
        least = place
        for below in (2 * place + 1, 2 * place + 2):
            if below < count and values[below] < values[least]:
                least = below
        if least == place:
            return
        ids[place], ids[least] = ids[least], ids[place]
        values[place], values[least] = values[least], values[place]
        place = least


@compiled()
def chosen(job: int, text: int, level: int) -> None:
    """Choose the best candidates of a text's beams: they are its draft at this level, and the beams of the next."""
    J, R = longs_at(job), longs_at(races_of(job, text))
    width, depth, texts = J[at.BEAMS], J[at.DEPTH], J[at.CHAINS]
    beams, first = (width, text * width) if level else (1, text)
    best, chances, paths = longs_at(J[at.BEST]), doubles_at(J[at.BEST_CHANCES]), doubles_at(J[at.PATHS])
    place = (text * depth + level) * width
    found, apart = doubles_at(J[at.DRAFTED]), texts * depth * width
    used, lately, ends = longs_at(J[at.CHOICE] + 8 * text * width), doubles_at(J[at.CHANCES]), longs_at(R[at.ENDS])
    for beam in range(beams):
        used[beam] = 0  # how many of its candidates were chosen: they are in order
    for number in range(width):
        winner, worth = -1, IMPOSSIBLE
        for beam in range(beams):
            candidate = (first + beam) * width + used[beam]
            if used[beam] < width and best[candidate] != NO_TOKEN and paths[first + beam] + chances[candidate] > worth:
                winner, worth = beam, paths[first + beam] + chances[candidate]
        if winner < 0:
            found[place + number], lately[text * width + number] = NO_TOKEN, -math.inf
            longs_at(J[at.ABOVE])[text * width + number] = first
            continue
        candidate = (first + winner) * width + used[winner]
        used[winner] += 1
        token, ended = best[candidate], R[at.LENGTH] <= level + 1
        for end in range(R[at.END_COUNT]):
            ended = ended or ends[end] == token
        found[place + number], found[apart + place + number] = token, winner
        found[2 * apart + place + number], found[3 * apart + place + number] = ended, chances[candidate]
        lately[text * width + number] = -math.inf if ended else worth
        longs_at(J[at.ABOVE])[text * width + number] = first + winner
        longs_at(J[at.TOKENS])[text * width + number] = token
