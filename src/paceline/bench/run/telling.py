"""From what a contestant wrote to the line that is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from paceline.bench.run.contestant import Contestant, Job, Written, cut
from paceline.bench.run.judge import Finding
from paceline.bench.run.record import EXPECTED, NEW_COLUMNS, ROUND_COLUMNS, Record
from paceline.bench.suites import Prompt
from paceline.engine.account import Round
from paceline.vocabulary import Detokenizer, Vocabulary

Spell = Callable[[Sequence[int], Sequence[int]], list[str]]
"""Of a prompt and the tokens after it, the text that each token made certain."""
DIGITS = 7
"""Of seconds: a tenth of a microsecond, which is less than a clock tells."""


def kept(
    who: Contestant,
    prompt: Prompt,
    job: Job,
    written: Written,
    finding: Finding,
    text: Spell,
    *,
    seconds: float,
    joules: float | None,
    peak: int | None,
    **where: Any,
) -> Record:
    """The record of a text that was written alone."""
    tokens = cut(written.tokens, job)
    pieces = text(job.prompt.tolist(), tokens)
    decoded, seconds_decode = decoding(written, tokens, seconds)
    rounds = written.rounds if seconds > 0 or written.rounds is None else [_timeless(one) for one in written.rounds]
    split = None if rounds is None else _split(written.seconds_prefill or 0.0, rounds, seconds)
    return Record(
        entry=who.name,
        prompt=prompt.key,
        task=prompt.task,
        language=prompt.language,
        prompt_tokens=len(job.prompt),
        text="".join(pieces),
        tokens=tokens,
        finish=written.finish or _finish(tokens, job),
        seconds=round(seconds, DIGITS),
        seconds_first=round(written.deliveries[0][1] if written.deliveries else seconds, DIGITS),
        decoded=decoded,
        seconds_decode=round(seconds_decode, DIGITS),
        split=split,
        rounds=None if rounds is None else columns(rounds),
        forwards=written.forwards,
        sources=written.sources,
        scores=written.scores,
        pieces=pieces,
        verdict=finding.verdict,
        parts_at=finding.parts_at,
        flips=finding.flips,
        joules=joules,
        peak_bytes=peak,
        **where,
    )


def decoding(written: Written, tokens: Sequence[int], seconds: float) -> tuple[int, float]:
    """How many tokens came in how many seconds, prefill apart: what came after the first delivery, of everybody alike,
    since not all can tell when the prompt was read. Tokens behind the end do not count."""
    if not written.deliveries:
        return 0, 0.0
    first, when = written.deliveries[0]
    return max(0, len(tokens) - first), seconds - when


def columns(rounds: Sequence[Round]) -> dict[str, list[float]]:
    """Rounds column by column."""
    found: dict[str, list[float]] = {
        name: [round(float(getattr(one, name)), DIGITS) for one in rounds]
        if name.startswith("seconds")
        else [int(getattr(one, name)) for one in rounds]
        for name in (*ROUND_COLUMNS, *NEW_COLUMNS)
    }
    if any(one.why is not None for one in rounds):
        found |= {
            column: [0.0 if one.why is None else round(float(getattr(one.why, name)), DIGITS) for one in rounds]
            for column, name in EXPECTED.items()
        }
    return found


def pieces_of(vocabulary: Vocabulary | None) -> Spell:
    """What each token made certain of the text; nothing where there is no tokenizer."""

    def pieces(prompt: Sequence[int], tokens: Sequence[int]) -> list[str]:
        if vocabulary is None or not len(tokens):
            return [""] * len(tokens)
        stream = Detokenizer(vocabulary, prefix=prompt)
        said = [stream.push(int(token)) for token in tokens]
        said[-1] += stream.finish()
        return said

    return pieces


def _timeless(one: Round) -> Round:
    """A round by a clock that stood still."""
    return replace(one, seconds_draft=0.0, seconds_score=0.0, seconds_read=0.0, seconds_judge=0.0)


def _split(prefill: float, rounds: Sequence[Round], seconds: float) -> dict[str, float]:
    found = {
        "prefill": prefill if seconds > 0 else 0.0,
        "draft": sum(one.seconds_draft for one in rounds),
        "score": sum(one.seconds_score for one in rounds),
        "read": sum(one.seconds_read for one in rounds),
        "judge": sum(one.seconds_judge for one in rounds),
    }
    found["rest"] = max(0.0, seconds - sum(found.values()))
    return {name: round(value, DIGITS) for name, value in found.items()}


def _finish(tokens: Sequence[int], job: Job) -> str:
    return "eos" if tokens and tokens[-1] in job.eos else "length"
