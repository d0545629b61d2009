"""Loops in LLVM's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from paceline.targets.hf.fused.vector import LONG

Sums = list[list[Any]]
"""By row and output."""


def long(value: int) -> Any:
    return ir.Constant(LONG, value)


@contextmanager
def each(builder: Any, begin: Any, end: Any, step: int) -> Iterator[Any]:
    """The numbers from ``begin`` to short of ``end``."""
    with _numbers(builder, begin, end, step) as (number, _, _):
        yield number


def loop(builder: Any, begin: Any, end: Any, step: int, totals: Sums, body: Callable[[Any, Sums], Sums]) -> Sums:
    """``totals``, and what ``body`` adds to them at each ``step`` from ``begin`` to short of ``end``."""
    with _numbers(builder, begin, end, step, totals) as (number, now, found):
        found.extend(body(number, now))
    return now


@contextmanager
def _numbers(
    builder: Any, begin: Any, end: Any, step: int, totals: Sums | None = None
) -> Iterator[tuple[Any, Sums, Sums]]:
    """A number, the totals by now, and a list for those behind this number."""
    before, head, inside, done = builder.block, *(builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    number = builder.phi(LONG)
    number.add_incoming(begin, before)
    given: Sums = totals or []
    now: Sums = [[builder.phi(total.type) for total in line] for line in given]
    builder.cbranch(builder.icmp_signed("<", number, end), inside, done)
    builder.position_at_end(inside)
    found: Sums = []
    yield number, now, found
    number.add_incoming(builder.add(number, long(step)), builder.block)
    for places, lines, made in zip(now, given, found, strict=True):
        for place, one, other in zip(places, lines, made, strict=True):
            place.add_incoming(one, before)
            place.add_incoming(other, builder.block)
    builder.branch(head)
    builder.position_at_end(done)
