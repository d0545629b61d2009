"""Long texts, and what scores are worth: Table 11 and Figure 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.bench.statistics import Estimate
from paceline.bench.studies.base import (
    Calibrations,
    Drawing,
    Drawn,
    Findings,
    Found,
    Setting,
    Sign,
    Stage,
    Study,
    Way,
    speed_up,
    speed_ups,
    told,
)
from paceline.bench.studies.methods import RUN, own_size, size_note, sized
from paceline.bench.summary import Summary

LENGTHS = 1024, 2048, 4096, 8192, 16384, 32768
SPARE, CHARACTERS = 8, 6
"""Tokens by which a text may be longer than its share of a longer one says, and characters that a token may have on
average."""
BINS = 10


# --- Table 11 ---


def lengths_within(setting: Setting) -> list[int]:
    """How long the texts are at which the method is looked at, prompt and answer: those that fit, and the whole context
    where it lies between two of them."""
    limit = setting.context_length or LENGTHS[-1]
    return [length for length in LENGTHS if length <= limit] or [limit]


def long_prompts(setting: Setting) -> list[tuple[str, str]]:
    """Running text of every length, from several places of the same texts."""
    assert setting.vocabulary is not None, "a study of texts has a tokenizer"
    text = setting.texts()
    found = []
    for length in lengths_within(setting):
        room = length - setting.tokens - SPARE
        if room < 1:
            raise ValueError(f"--max-new-tokens {setting.tokens} leaves no room in a text of {length} tokens")
        for number in range(setting.prompts):
            start = len(text) * number // (setting.prompts + 1)
            piece = text[start : start + CHARACTERS * length]
            tokens = len(setting.vocabulary.encode(piece))
            if tokens < room:
                raise ValueError(f"there is too little running text for prompts of {length} tokens; name more --langs")
            found.append((str(length), piece[: len(piece) * room // tokens]))
    return found


def _context(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    methods = (sized(setting.method, calibrated.get(setting.method)), "auto")
    return [Stage(name=RUN, methods=tuple(dict.fromkeys(methods)), prompts=tuple(long_prompts(setting)))]


def _read_context(found: Found) -> Findings:
    summary = found.runs[RUN]
    entries, tasks = summary.entries[1:], summary.tasks
    rows = [
        (
            f"{task}  {entry}",
            told(speed_up(summary, entry, task)),
            f"{figures.tokens_per_round or 0:.2f}",
            "" if figures.tokens_per_second is None else f"{figures.tokens_per_second:.1f}",
            "",
        )
        for task in tasks
        for entry in entries
        if (figures := summary.figures(entry, task)) is not None
    ]
    signs = []
    if len(tasks) > 1:
        first, last = (speed_up(summary, entries[0], task) for task in (tasks[0], tasks[-1]))
        assert first is not None, "every cell has texts"
        assert last is not None, "every cell has texts"
        signs.append(
            Sign(
                claim=f"the speed-up at {tasks[-1]} tokens is that at {tasks[0]}",
                paper="1.93x at 32768 and 1.86x at 1024 tokens",
                ours=f"{told(last)} and {told(first)}",
                wants=Way.EVEN,
                ratio=Estimate(last.value / first.value),
            )
        )
    limit = found.setting.context_length
    notes = size_note(found)
    if limit and limit < LENGTHS[-1]:
        notes.append(f"the model's context ends at {limit} tokens")
    lines = speed_ups(summary.entries, [(float(task), summary, task) for task in tasks])
    drawing = Drawing(title="Speed-up by length", words=("tokens", "x plain"), lines=lines, log=True)
    head = ("", "x plain [95%]", "tokens/round", "tokens/s", "")
    return Findings(head=head, rows=rows, signs=signs, notes=notes, drawings=[drawing])


# --- Figure 3 ---


def _scored(setting: Setting, calibrated: Calibrations) -> list[Stage]:
    methods = tuple(dict.fromkeys((setting.method, "auto")))
    return [Stage(name=RUN, methods=methods, nodes=True)]


def binned(scores: Sequence[float], accepted: Sequence[int]) -> list[tuple[float, float, int]]:
    """Of every tenth of the scores that has nodes: their mean score, the share that was accepted, and how many."""
    score, taken = np.asarray(scores, np.float64), np.asarray(accepted, np.float64)
    place = np.minimum((score * BINS).astype(np.int64), BINS - 1)
    return [
        (float(score[place == n].mean()), float(taken[place == n].mean()), int((place == n).sum()))
        for n in range(BINS)
        if (place == n).any()
    ]


def _read_scored(found: Found) -> Findings:
    summary = found.runs[RUN]
    rows, signs, lines, dense = list[tuple[str, ...]](), list[Sign](), list[Drawn](), list[Drawn]()
    for number, (entry, nodes) in enumerate(found.nodes.get(RUN, {}).items(), start=1):
        tenths = binned(nodes["score"], nodes["accepted"])
        count = max(sum(n for _, _, n in tenths), 1)
        for score, accepted, n in tenths:
            rows.append((entry, f"{score:.2f}", f"{accepted:.1%}", f"{n / count:.1%}", str(n), ""))
        lines.append(Drawn(name=entry, number=number, points=tuple((score, taken) for score, taken, _ in tenths)))
        dense.append(Drawn(name=entry, number=number, points=tuple((score, n / count) for score, _, n in tenths)))
        if len(tenths) > 1:
            signs.append(_rising(entry, nodes, tenths))
    if lines:
        lines.append(_foretold(lines))
    planned, rounds = _planned(summary)
    drawings = [
        Drawing(title="Accepted, by score", words=("score of a node", "share accepted"), lines=tuple(lines)),
        Drawing(title="How many nodes have which score", words=("score of a node", "share"), lines=tuple(dense)),
    ]
    if planned:
        drawings.append(
            Drawing(
                title="Tokens of a round: expected and happened", words=("expected", "happened"), lines=tuple(planned)
            )
        )
    notes = [f"{entry}: {told_}" for entry, told_ in rounds.items()]
    head = ("", "score", "accepted", "share of nodes", "nodes", "")
    return Findings(head=head, rows=rows, signs=signs, notes=notes, drawings=drawings)


def _rising(entry: str, nodes: Mapping[str, Any], tenths: Sequence[tuple[float, float, int]]) -> Sign:
    """Nodes above the middle score against those below it."""
    score, taken = np.asarray(nodes["score"], np.float64), np.asarray(nodes["accepted"], np.float64)
    above, below = taken[score >= 0.5], taken[score < 0.5]
    if not len(above) or not len(below):
        middle = np.median(score)
        above, below = taken[score > middle], taken[score <= middle]
    high, low = (float(part.mean()) if len(part) else 0.0 for part in (above, below))
    return Sign(
        claim=f"nodes of higher score are accepted more often, {entry}",
        paper="acceptance rises with the score",
        ours=f"{high:.1%} above the middle and {low:.1%} below, from {tenths[0][1]:.1%} to {tenths[-1][1]:.1%}",
        wants=Way.ABOVE,
        ratio=Estimate(high / max(low, 1e-9)),
    )


def _planned(summary: Summary) -> tuple[list[Drawn], dict[str, str]]:
    """What planners expected of rounds, and what happened, in groups of equal size."""
    lines, notes = list[Drawn](), dict[str, str]()
    for number, entry in enumerate(summary.entries):
        columns = [r.rounds for r in summary.records(entry) if r.rounds is not None and "expected_tokens" in r.rounds]
        if not columns:
            continue
        expected = np.concatenate([np.asarray(found["expected_tokens"]) for found in columns])
        emitted = np.concatenate([np.asarray(found["emitted"]) for found in columns])
        emitted, expected = emitted[expected > 0], expected[expected > 0]
        if not len(expected):
            continue
        groups = np.array_split(np.argsort(expected, kind="stable"), min(BINS, len(expected)))
        points = tuple((float(expected[group].mean()), float(emitted[group].mean())) for group in groups)
        lines.append(Drawn(name=entry, number=number, points=points))
        notes[entry] = (
            f"its planner expected {expected.mean():.2f} tokens a round and {emitted.mean():.2f} came, over "
            f"{len(expected)} rounds"
        )
    if lines:
        lines.append(_foretold(lines))
    return lines, notes


def _foretold(lines: Sequence[Drawn]) -> Drawn:
    """What came if exactly that came which was foretold, as far across as these lines go."""
    places = [x for line in lines for x, _ in line.points]
    return Drawn(name="as foretold", number=0, points=tuple((x, x) for x in (min(places), max(places))))


STUDIES: Sequence[Study] = (
    Study(
        name="context",
        source="Table 11",
        summary="texts of 1024 tokens up to 32768, as far as the model's context goes",
        wishes=own_size,
        stages=_context,
        read=_read_context,
    ),
    Study(
        name="reliability",
        source="Figure 3",
        summary="how often nodes are accepted, by their score, and whether planners expect what comes",
        stages=_scored,
        read=_read_scored,
    ),
)
