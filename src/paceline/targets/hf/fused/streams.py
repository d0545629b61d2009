"""Drafts of one token after another in one call, where streams guess several tokens ahead.

A forward reads the last certain token of each text and a small tree of guesses behind it, as rows of the model's own.
In the last layers rows of streams join them. The model's choice behind the certain token confirms one of the guesses
or none, its choice behind that guess the next, and so on: the draft is the one that forwards of single rows find. The
streams behind the last confirmed row make the guesses of the next forward.

All rows of a forward read the weights together. To compute streams only behind the confirmed row would take a second
pass over the last layers and the head, which costs more than the rows that it spares.
"""

from __future__ import annotations

from typing import Any

from paceline.compiled import compiled, native
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.chains import embedded, is_end, next_token, raced
from paceline.targets.hf.fused.forward import MINE, meet
from paceline.targets.hf.fused.vector import call, double_of, doubles_at, floats_at, longs_at, shorts_at

USUAL_CHANCE = 0.5
"""That the model confirms the guess of a stream: the next stream is asked then."""


@native(MINE)
def streamed(job: int, thread: int) -> None:
    """Forwards, until all texts have their drafts."""
    J = longs_at(job)
    threads, texts, met = J[at.THREADS], J[at.CHAINS], 0
    if thread == 0:
        laid(job)
    met = meet(J[at.CHAIN_MEETING], threads, met)
    while J[at.MAIN_ROWS]:
        met = rows_read(job, thread, met)
        for text in range(thread, texts, threads):
            confirmed(job, text, thread)
        met = meet(J[at.CHAIN_MEETING], threads, met)
        if thread == 0:
            laid(job)
        met = meet(J[at.CHAIN_MEETING], threads, met)


@compiled()
def rows_read(job: int, thread: int, met: int) -> int:
    """One forward; how often the threads have met."""
    J = longs_at(job)
    threads, planned = J[at.THREADS], J[at.PLANNED]
    call(J[at.STEP], job, thread)
    met = meet(J[at.CHAIN_MEETING], threads, met)
    if planned == 0:
        return met
    for row in range(thread, planned, threads):
        _joined(job, row)
    if thread == 0:
        longs_at(J[at.MEETING])[0] = 0
        J[at.FIRST], J[at.LAST], J[at.HEAD] = J[at.STREAMED_FROM], J[at.LAYERS], 1
        J[at.COUNT], J[at.STREAM_ROWS] = J[at.MAIN_ROWS] + planned, planned
    met = meet(J[at.CHAIN_MEETING], threads, met)
    call(J[at.STEP], job, thread)
    return meet(J[at.CHAIN_MEETING], threads, met)  # type: ignore[no-any-return]


@compiled()
def _joined(job: int, row: int) -> None:
    """The state with which a row of a stream joins the model's own rows."""
    J = longs_at(job)
    width, origin = J[at.WIDTH], longs_at(J[at.ORIGINS] + 8 * at.ORIGIN * row)
    given = floats_at(J[at.STATES] + 4 * origin[at.ORIGIN_ROW] * width)
    embedding = floats_at(J[at.STREAM_EMBEDDING] + 4 * origin[at.ORIGIN_STREAM] * width)
    states = floats_at(J[at.STATES] + 4 * (J[at.MAIN_ROWS] + row) * width)
    for place in range(width):
        states[place] = given[place] + embedding[place]


@compiled()
def _text(job: int, text: int) -> Any:
    return longs_at(longs_at(job)[at.GUESSED] + 8 * at.GUESSED_TEXT * text)


@compiled()
def _node(job: int, text: int, node: int) -> int:
    """The address of a node of the next forward."""
    J = longs_at(job)
    return J[at.NODES] + 8 * at.NODE * (text * (1 + J[at.MOST_GUESSES]) + node)  # type: ignore[no-any-return]


# --- what the model's rows say ------------------------------------------------------------------------------------


@compiled()
def confirmed(job: int, text: int, thread: int) -> None:
    """Follow the model's choices behind a text's certain token as far as its guesses hold, and guess on."""
    J, T = longs_at(job), _text(job, text)
    if T[at.GOES_ON] == 0:
        return
    R = longs_at(J[at.RACES] + 8 * at.RACE * text)
    R[at.READ] += 1
    T[at.GOES_ON], T[at.EARLIER] = 0, 0
    node = token = 0
    while node >= 0:
        last = node
        token = next_token(job, text, T[at.LOGITS_ROW] + last, T[at.HAVE], thread)
        if token < 0:
            return
        T[at.HAVE] += 1
        if T[at.HAVE] >= R[at.LENGTH]:
            return
        node = _below(job, text, last, token)
        if node >= 0:
            _moved(job, text, T[at.CERTAIN] + node, T[at.CERTAIN] + longs_at(_node(job, text, node))[at.NODE_LEVEL])
    T[at.GOES_ON] = 1
    T[at.CERTAIN] += longs_at(_node(job, text, last))[at.NODE_LEVEL] + 1
    _guessed(job, text, last, thread)
    longs_at(_node(job, text, 0))[at.NODE_TOKEN] = token


@compiled()
def _below(job: int, text: int, above: int, token: int) -> int:
    """The guess of this token below a node, or -1."""
    for node in range(above + 1, _text(job, text)[at.NODE_COUNT]):
        N = longs_at(_node(job, text, node))
        if N[at.NODE_ABOVE] == above and N[at.NODE_TOKEN] == token:
            return node
    return -1


@compiled()
def _moved(job: int, text: int, origin: int, place: int) -> None:
    """Keys and values of a row in the place of another, which no confirmed row has."""
    J = longs_at(job)
    if origin == place:
        return
    size = J[at.SIZE] if J[at.NARROW] else 2 * J[at.SIZE]  # in halves of a float
    for layer in range(J[at.LAYERS]):
        B = longs_at(longs_at(J[at.TEXTS])[text] + 8 * at.BUFFERS * layer)
        for head in range(J[at.SHARED]):
            for buffer in (B[at.KEYS], B[at.VALUES]):
                begin = buffer + 2 * head * B[at.CAPACITY] * size
                given, result = shorts_at(begin + 2 * origin * size), shorts_at(begin + 2 * place * size)
                for number in range(size):
                    result[number] = given[number]


# --- what the streams say -----------------------------------------------------------------------------------------


@compiled()
def _guessed(job: int, text: int, node: int, thread: int) -> None:
    """The guesses behind the next certain token, from the streams of the last confirmed row: the likeliest nodes of a
    tree in which every token may follow every token."""
    J, T = longs_at(job), _text(job, text)
    N, most = longs_at(_node(job, text, node)), J[at.MOST_GUESSES]
    levels, first = N[at.NODE_STREAMS], N[at.NODE_STREAM]
    tokens = J[at.CANDIDATES] + 16 * thread * J[at.MOST_STREAMS] * most
    chances = tokens + 8 * J[at.MOST_STREAMS] * most
    for level in range(levels):
        _candidates(
            job, text, first + level, T[at.HAVE] + level, thread, tokens + 8 * level * most, chances + 8 * level * most
        )
    root, chance = longs_at(_node(job, text, 0)), doubles_at(_node(job, text, 0))
    root[at.NODE_ABOVE], root[at.NODE_LEVEL], chance[at.NODE_CHANCE] = -1, 0, 1.0
    count = 1
    while count <= T[at.GUESSES]:
        best, above, rank = double_of(J[at.LEAST_GUESS]), -1, 0
        for parent in range(count):
            level = longs_at(_node(job, text, parent))[at.NODE_LEVEL]
            used = 0
            for other in range(parent + 1, count):
                used += longs_at(_node(job, text, other))[at.NODE_ABOVE] == parent
            if level < levels and used < most:
                worth = doubles_at(_node(job, text, parent))[at.NODE_CHANCE] * doubles_at(chances)[level * most + used]
                if worth > best:
                    best, above, rank = worth, parent, used
        if above < 0:
            break
        one, number = longs_at(_node(job, text, count)), doubles_at(_node(job, text, count))
        level = longs_at(_node(job, text, above))[at.NODE_LEVEL]
        one[at.NODE_TOKEN], one[at.NODE_ABOVE] = longs_at(tokens)[level * most + rank], above
        one[at.NODE_LEVEL], number[at.NODE_CHANCE] = level + 1, best
        count += 1
    T[at.NODE_COUNT] = count


@compiled()
def _candidates(job: int, text: int, row: int, step: int, thread: int, tokens: int, chances: int) -> None:
    """The likeliest winners of the race behind a row of a stream, and their shares of all speeds. Ends are none: what
    they confirm is over."""
    J = longs_at(job)
    R = longs_at(J[at.RACES] + 8 * at.RACE * text)
    count, speeds = raced(job, text, row, step, thread)
    own = J[at.DRAWN] + 16 * thread * J[at.VOCABULARY]
    ids, weights = longs_at(own), doubles_at(own + 8 * J[at.VOCABULARY])
    for place in range(J[at.MOST_GUESSES]):
        best, speed = -1, 0.0
        for number in range(count):
            if weights[number] > speed:
                best, speed = number, weights[number]
        longs_at(tokens)[place], doubles_at(chances)[place] = -1, 0.0
        if best >= 0:
            longs_at(tokens)[place] = ids[best]
            doubles_at(chances)[place] = 0.0 if is_end(R, ids[best]) else speed / speeds
            weights[best] = 0.0


# --- the rows of a forward ----------------------------------------------------------------------------------------


@compiled()
def laid(job: int) -> None:
    """Lay out the rows of the next forward: the model's own of all texts, then those of streams."""
    J, further, rows, chosen = longs_at(job), 0, 0, 0
    for text in range(J[at.CHAINS]):
        if _text(job, text)[at.GOES_ON]:
            rows, chosen, further = _own_rows(job, text, rows, chosen, further)
    J[at.MAIN_ROWS], planned = rows, 0
    for text in range(J[at.CHAINS]):
        if _text(job, text)[at.GOES_ON]:
            planned, further = _stream_rows(job, text, rows, chosen, planned, further)
    J[at.PLANNED], J[at.COUNT], J[at.CHOSEN] = planned, rows, chosen + planned
    J[at.FIRST], J[at.LAST], J[at.HEAD] = 0, J[at.STREAMED_FROM] if planned else J[at.LAYERS], planned == 0
    J[at.STREAM_ROWS] = 0
    longs_at(J[at.MEETING])[0] = 0


@compiled()
def _own_rows(job: int, text: int, rows: int, chosen: int, further: int) -> tuple[int, int, int]:
    """The rows of a text's unread tokens and guesses; how many rows, chosen ones and further places there are now."""
    J, T = longs_at(job), _text(job, text)
    choice, extras, place = longs_at(J[at.CHOICE]), longs_at(J[at.EXTRAS]), T[at.CERTAIN]
    for number in range(T[at.EARLIER]):
        before = place - T[at.EARLIER] + number
        _row(job, rows, text, before, before, before + 1, 0, 0, 0)
        embedded(job, longs_at(T[at.UNREAD])[number], rows)
        rows += 1
    T[at.LOGITS_ROW] = chosen
    for node in range(T[at.NODE_COUNT]):
        N = longs_at(_node(job, text, node))
        behind = _path(job, text, node, extras, further)
        _row(job, rows, text, place + N[at.NODE_LEVEL], place + node, place + 1, further, behind - further, 0)
        embedded(job, N[at.NODE_TOKEN], rows)
        choice[chosen] = rows
        rows, chosen, further = rows + 1, chosen + 1, behind
    return rows, chosen, further


@compiled()
def _path(job: int, text: int, node: int, extras: Any, further: int) -> int:
    """Write down the places of a guess and of those above it, in the order of the text; where the list ends."""
    end, place = further + longs_at(_node(job, text, node))[at.NODE_LEVEL], _text(job, text)[at.CERTAIN]
    for behind in range(end - further):
        extras[end - 1 - behind] = place + node
        node = longs_at(_node(job, text, node))[at.NODE_ABOVE]
    return end  # type: ignore[no-any-return]


@compiled()
def _stream_rows(job: int, text: int, rows: int, chosen: int, planned: int, further: int) -> tuple[int, int]:
    """The rows of streams behind a text's certain token and guesses; how many there are now, and further places."""
    J, T = longs_at(job), _text(job, text)
    R, choice, extras = longs_at(J[at.RACES] + 8 * at.RACE * text), longs_at(J[at.CHOICE]), longs_at(J[at.EXTRAS])
    nodes, place = T[at.NODE_COUNT], T[at.CERTAIN]
    free = place + nodes
    for node in range(nodes):
        N, chance = longs_at(_node(job, text, node)), _last(job, text, node)
        left = R[at.LENGTH] - T[at.HAVE] - N[at.NODE_LEVEL] - 2  # guesses that can be needed behind the choice here
        streams = 0
        while streams < min(T[at.STREAMS], left) and chance >= double_of(J[at.LEAST_STREAM]):
            streams, chance = streams + 1, chance * USUAL_CHANCE
        N[at.NODE_STREAM], N[at.NODE_STREAMS] = chosen + planned, streams
        path = _path(job, text, node, extras, further)
        for stream in range(streams):
            extras[path + stream] = free
            row, count = rows + planned, path + stream + 1 - further
            _row(job, row, text, place + N[at.NODE_LEVEL] + stream + 1, free, place + 1, further, count, stream + 1)
            origin = longs_at(J[at.ORIGINS] + 8 * at.ORIGIN * planned)
            origin[at.ORIGIN_ROW], origin[at.ORIGIN_STREAM] = choice[T[at.LOGITS_ROW] + node], stream
            choice[chosen + planned] = row
            planned, free = planned + 1, free + 1
        further = path + streams
    return planned, further


@compiled()
def _last(job: int, text: int, node: int) -> float:
    """The chance that a node is confirmed and none below it."""
    chance = doubles_at(_node(job, text, node))[at.NODE_CHANCE]
    for below in range(node + 1, _text(job, text)[at.NODE_COUNT]):
        if longs_at(_node(job, text, below))[at.NODE_ABOVE] == node:
            chance -= doubles_at(_node(job, text, below))[at.NODE_CHANCE]
    return chance  # type: ignore[no-any-return]


@compiled()
def _row(
    job: int, row: int, text: int, position: int, place: int, prefix: int, further: int, count: int, ahead: int
) -> None:
    R = longs_at(longs_at(job)[at.ROWS] + 8 * at.ROW * row)
    R[at.TEXT], R[at.POSITION], R[at.PLACE], R[at.PREFIX] = text, position, place, prefix
    R[at.FURTHER], R[at.FURTHER_COUNT], R[at.AHEAD] = further, count, ahead
