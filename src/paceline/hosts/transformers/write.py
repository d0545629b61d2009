"""All rows of a call, written to their ends."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.decode.batch import Batch
from paceline.decode.session import Session
from paceline.hosts.transformers.output import Columns
from paceline.hosts.transformers.rows import Row, Way
from paceline.targets.base import Target


def write(rows: Sequence[Row], way: Way, columns: Columns, *, padded: bool) -> list[Session]:
    """Returns the finished sessions. Rows that end early are ``padded``; where transformers has nothing to pad with,
    no token that ends a text, they go on until the last one has ended, and so they do here."""
    sessions = _write({row.session(way): row for row in rows}, columns, way.target, ended=padded)
    longest = max(len(row.tokens) for row in rows)
    short = [] if padded else [row for row in rows if len(row.tokens) < longest]
    late = {row.session(way, longest - len(row.tokens)): row for row in short}
    sessions += _write(late, columns, way.target, ended=False)
    columns.end()
    return sessions


def _write(writing: dict[Session, Row], columns: Columns, target: Target, *, ended: bool) -> list[Session]:
    """All rows go together. What was settled before one of them failed is still shown."""
    try:
        with Batch(target, at_once=None) as batch:
            for session in writing:
                batch.join(session)
            while batch:
                turns = batch.step()
                for turn in turns:
                    writing[turn.session].tokens += [emission.token for emission in turn.emissions]
                    writing[turn.session].ended = ended and turn.ended
                columns.show()
                for turn in turns:
                    if turn.error is not None:
                        raise turn.error
    finally:
        for session in writing:
            session.rows.close()
    return list(writing)
