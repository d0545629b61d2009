"""From the text of a contestant to its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from paceline.engine.counters import SECONDS, Round, Totals
from paceline.vocabulary import Detokenizer, Vocabulary
from paceline_lab.bench.race import Lap
from paceline_lab.bench.run.contestant import Job, TextContestant, Work, Written, cut
from paceline_lab.bench.run.judge import Judgement
from paceline_lab.bench.run.record import EXPECTED, ROUND_COLUMNS, SPLIT, Record
from paceline_lab.bench.suites import Prompt

Spell = Callable[[Sequence[int], Sequence[int]], list[str]]
"""Of a prompt and the tokens after it, the text that each token made certain."""
DIGITS = 7
"""Digits of seconds: a tenth of a microsecond, below the resolution of clocks."""


def kept(
    contestant: TextContestant,
    prompt: Prompt,
    job: Job,
    written: Written,
    judgement: Judgement,
    text: Spell,
    **measured: Any,
) -> Record:
    """The record of a text; ``measured`` holds its `times` and its place in the run."""
    tokens = cut(written.tokens, job)
    pieces = text(job.prompt.tolist(), tokens)
    rounds = written.rounds
    if rounds is not None and not measured["seconds"]:  # by a clock that stands still
        rounds = [_timeless(one) for one in rounds]
    return Record(
        entry=contestant.name,
        prompt=prompt.key,
        task=prompt.task,
        language=prompt.language,
        prompt_tokens=len(job.prompt),
        text="".join(pieces),
        tokens=tokens,
        finish=written.finish or ("eos" if tokens and tokens[-1] in job.eos else "length"),
        rounds=None if rounds is None else columns(rounds),
        forwards=written.forwards,
        drafted=written.drafted,
        accepted=written.accepted,
        metrics={name: round(value, DIGITS) for name, value in written.metrics.items()},
        sources=written.sources,
        scores=written.scores,
        pieces=pieces,
        verdict=judgement.verdict,
        parts_at=judgement.parts_at,
        flips=judgement.flips,
        joules=measured.pop("joules", None),
        peak_bytes=measured.pop("peak", None),
        **{name: _rounded(value) for name, value in measured.items()},
    )


def times(work: Work, lap: Lap[list[Written]]) -> list[dict[str, Any]]:
    """Seconds and gauges of every text of a lap."""
    if work.at_once is None:
        return [_alone(written, work.jobs[0], lap) for written in lap.result]
    total = sum(written.deliveries[-1][0] for written in lap.result)
    decoded = [written.deliveries[-1][0] - written.before for written in lap.result]
    per_token = (lap.seconds - lap.result[0].apart) / max(1, sum(decoded))
    return [
        _together(written, job, lap, written.deliveries[-1][0] / total)
        | {"decoded": count, "seconds_decode": count * per_token}
        for job, written, count in zip(work.jobs, lap.result, decoded, strict=True)
    ]


def _alone(written: Written, job: Job, lap: Lap[list[Written]]) -> dict[str, Any]:
    """Decoding begins with the first delivery, for every contestant, since not all know when the prompt was read.
    Tokens after the end do not count."""
    first, when = written.deliveries[0] if written.deliveries else (0, lap.seconds)
    return {
        "seconds": lap.seconds,
        "seconds_first": when,
        "decoded": max(0, len(cut(written.tokens, job)) - first),
        "seconds_decode": lap.seconds - when,
        "split": _split(written, lap.seconds),
        **lap.gauges,
    }


def _together(written: Written, job: Job, lap: Lap[list[Written]], share: float) -> dict[str, Any]:
    """A batch is timed as a whole. Each text has a share of the time by its tokens. Its share of the decoding time is
    by the tokens emitted while all texts had their first one, so it has the speed of the batch. Its own seconds run
    from its arrival. Phases of the batch are parts of the share in which the batch was at work; the rest went to
    seating texts and to waiting for them."""
    (_, first), (_, last) = written.deliveries[0], written.deliveries[-1]
    taken, joules = share * lap.seconds, lap.gauges.get("joules")
    split = _split(written, last - job.arrives)
    if split is not None:
        split.pop("rest")
        whole = sum(split.values())
        split = {name: value * share * written.busy / whole if whole else 0.0 for name, value in split.items()}
        split["rest"] = max(0.0, taken - sum(split.values()))
    return {
        "seconds": last - job.arrives,
        "seconds_first": first - job.arrives,
        "seconds_waited": max(0.0, written.joined - job.arrives),
        "split": split,
        **lap.gauges,
        **({} if joules is None else {"joules": share * joules}),
    }


def _split(written: Written, seconds: float) -> dict[str, float] | None:
    """Seconds by what they went to; none by a clock that stands still."""
    if written.rounds is None:
        return None
    if not seconds:
        return dict.fromkeys(SPLIT, 0.0)
    totals = Totals.of(written.rounds, written.seconds_prefill or 0.0)
    found: dict[str, float] = {part: getattr(totals, f"seconds_{part}") for part in SPLIT[:-1]}
    return found | {"rest": max(0.0, seconds - sum(found.values()))}


def columns(rounds: Sequence[Round]) -> dict[str, list[float]]:
    """Rounds column by column."""
    found: dict[str, list[float]] = {
        name: [round(float(getattr(one, name)), DIGITS) for one in rounds]
        if name.startswith("seconds")
        else [int(getattr(one, name)) for one in rounds]
        for name in ROUND_COLUMNS
    }
    if any(one.why is not None for one in rounds):
        found |= {
            column: [0.0 if one.why is None else round(float(getattr(one.why, name)), DIGITS) for one in rounds]
            for column, name in EXPECTED.items()
        }
    return found


def pieces_of(vocabulary: Vocabulary | None) -> Spell:
    """The text that each token made certain; empty without a tokenizer."""

    def pieces(prompt: Sequence[int], tokens: Sequence[int]) -> list[str]:
        if vocabulary is None or not len(tokens):
            return [""] * len(tokens)
        stream = Detokenizer(vocabulary, prefix=prompt)
        said = [stream.push(int(token)) for token in tokens]
        said[-1] += stream.finish()
        return said

    return pieces


def _timeless(one: Round) -> Round:
    still: dict[str, Any] = dict.fromkeys(SECONDS, 0.0)
    return replace(one, **still)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: round(part, DIGITS) for name, part in value.items()}
    return round(value, DIGITS) if isinstance(value, float) else value
