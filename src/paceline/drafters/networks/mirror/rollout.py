"""What the draft model writes ahead for one text: a window behind each of the outcomes that the target may come to.

All outcomes of a text are one tree over shared rows: the unread end of the text, the draft in flight, and behind its
nodes the tokens that the text may go on with there. The first forward reads all of these; each later one adds a token
to every window. When the outcome is known, its window is finished and the others get no more forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.context import Context
from paceline.drafters.networks.assistant.growth import DraftShape, Growth
from paceline.drafters.networks.assistant.state import AssistantState
from paceline.drafters.networks.mirror.messages import Ahead, Window
from paceline.targets.base import Request, Target
from paceline.targets.scores import Scores
from paceline.tree import ROOT, Ints

IN_PASSING = 16
"""Up to this many unread tokens are read together with what is drafted behind them."""


@dataclass(eq=False)
class ExpectedText:
    """The text goes on with these ``tokens``, the last of them read as ``row``, and a window grows behind it."""

    tokens: tuple[int, ...]
    row: int
    growth: Growth
    levels: int = 0


class Rollout:
    """One text, as the draft model's process knows it."""

    def __init__(
        self, reading: AssistantState, model: Target, shape: DraftShape, source: str, end: Callable[[], None]
    ) -> None:
        self.reading, self._model, self._shape, self._source, self.end = reading, model, shape, source, end
        self._outcomes: list[ExpectedText] = []
        self._begun = False
        self._first: tuple[Ints, Ints] = np.empty(0, np.int64), np.empty(0, np.int64)
        self._due: int | None = None
        """The length of the text whose window is waited for."""
        self._ready = -1
        self._forwards = self._drafted = 0

    @property
    def context(self) -> Context:
        return self.reading.context

    def ahead(self, asked: Ahead) -> None:
        """Draft for these outcomes of the draft in flight. What was under way before is left."""
        self.reading.catch_up()
        self._due, unread = None, len(self.reading.unread)
        asked = self._readable(asked)
        rows, tokens, parents = _needed(asked, unread)
        self._drop(self._outcomes)
        for stop, proxy in zip(asked.stops.tolist(), asked.proxies.tolist(), strict=True):
            path = (*path_of(asked, stop), proxy)
            row = unread + len(tokens)
            tokens.append(proxy)
            parents.append(unread - 1 if stop == ROOT else rows[stop])
            self._expect(path, row, asked.levels)
        self._read_first(tokens, parents)

    def _readable(self, asked: Ahead) -> Ahead:
        """The outcomes whose tokens the draft model has; the first of them alone where it cannot read siblings."""
        pairs = zip(asked.stops.tolist(), asked.proxies.tolist(), strict=True)
        kept = [place for place, (stop, proxy) in enumerate(pairs) if self._can_read((*path_of(asked, stop), proxy))]
        if not self._model.reach(len(self.context)).trees:
            kept = kept[:1]
        return replace(asked, stops=asked.stops[kept], proxies=asked.proxies[kept])

    def go(self, tokens: Sequence[int], levels: int) -> None:
        """These tokens followed: finish their window if it is under way, or begin it."""
        for token in tokens:
            self.context.commit(token)
        self._due = len(self.context)
        found = [each for each in self._outcomes if each.tokens == tuple(tokens)]
        if found and self._begun:
            self._drop([each for each in self._outcomes if each not in found])
            self._ready = found[0].levels
            return
        self.reading.catch_up()
        self._ready = -1
        self._drop(self._outcomes)
        self._expect((), len(self.reading.unread) - 1, levels)
        self._read_first([], [])

    def _drop(self, outcomes: Sequence[ExpectedText]) -> None:
        self._drafted += sum(len(each.growth) for each in outcomes)
        self._outcomes = [each for each in self._outcomes if each not in outcomes]

    def _expect(self, path: tuple[int, ...], row: int, levels: int) -> None:
        text = self.context.extended(path) if path else self.context
        depth = min(levels, text.room - 1, *self._limits(len(text))) if self._can_read(path) else 0
        nodes = levels * self._shape.top
        growth = Growth(self.reading, self._shape, nodes, max(depth, 0), text=text, row=row)
        self._outcomes.append(ExpectedText(path, row, growth))

    def _limits(self, length: int) -> Iterator[int]:
        reach, context = self._model.reach(length - 1).depth, self._model.context_length
        if reach is not None:
            yield reach + 1
        if context is not None:
            yield context - length + 1

    def _can_read(self, path: tuple[int, ...]) -> bool:
        """Whether the draft model has all the tokens, and room for them."""
        unread, limit = self.reading.unread, self._model.context_length
        known = max(int(unread.max()), *path, 0) < self._model.vocab_size
        return known and (limit is None or len(self.context) + len(path) <= limit)

    def _read_first(self, tokens: list[int], parents: list[int]) -> None:
        unread = self.reading.unread
        chain = np.arange(-1, len(unread) - 1)
        self._first = (
            np.concatenate([unread, np.array(tokens, np.int64)]),
            np.append(chain, np.array(parents, np.int64)),
        )
        self._begun = False

    # forwards

    @property
    def _live(self) -> list[Growth]:
        return [each.growth for each in self._outcomes if not each.growth.done]

    def requests(self) -> list[Request]:
        """The rows to score next, if there is anything to do."""
        live = self._live
        return [self._request(live)] if live else []

    def _request(self, live: Sequence[Growth]) -> Request:
        reading = self.reading
        if not self._begun:
            if len(reading.unread) > IN_PASSING:
                return self._piece()
            return Request(reading.rows, self._first[0].copy(), self._first[1].astype(np.int64))
        fresh = [growth.fresh() for growth in live]
        above = np.concatenate([reading.parents, *(rows for _, rows in fresh)])
        return Request(reading.rows, np.concatenate([ids for ids, _ in fresh]), above, held=len(reading.parents))

    def _piece(self) -> Request:
        unread = self.reading.unread[:-1]
        return Request.of_prompt(self.reading.rows, unread[: self._model.prefill_size(len(unread))])

    def take(self, requests: Sequence[Request], scored: Sequence[Scores]) -> None:
        """What the forward of `requests` found."""
        (request,), (scores,) = requests, scored
        if request.prefill:
            self._take_piece(len(request.tokens))
            return
        live, self._forwards = [each for each in self._outcomes if not each.growth.done], self._forwards + 1
        first = request.held
        if not self._begun:
            self._begun, self.reading.parents = True, request.parents
            for each in live:
                each.growth.add(scores.logits[each.row : each.row + 1])
                each.levels += 1
            return
        counts = [len(each.growth.fresh()[0]) for each in live]
        self.reading.parents = request.parents
        for each, start, count in zip(live, np.cumsum([0, *counts[:-1]]).tolist(), counts, strict=True):
            each.growth.add(scores.logits[start : start + count], first + start)
            each.levels += 1

    def _take_piece(self, count: int) -> None:
        """Tokens of the text were read; the first rows of the outcomes move up."""
        self.reading.read(count)
        tokens, parents = self._first
        self._first = tokens[count:], parents[count:] - count
        for each in self._outcomes:
            each.row -= count
            each.growth.moved(-count)

    def window(self) -> tuple[int, Window] | None:
        """The window that is waited for, once it is finished, and the length of its text."""
        if self._due is None or self._live:
            return None
        (outcome,), due, self._due = self._outcomes, self._due, None
        tree = outcome.growth.tree(self._source)
        window = Window(tree, self._ready, self._forwards, self._drafted + len(tree))
        self._forwards = self._drafted = 0
        return due, window

    @property
    def busy(self) -> bool:
        """Whether there is a row to read, or a window to send."""
        return bool(self._live) or self._due is not None


def path_of(asked: Ahead, node: int) -> list[int]:
    path = []
    while node != ROOT:
        path.append(int(asked.tokens[node]))
        node = int(asked.parents[node])
    return path[::-1]


def _needed(asked: Ahead, unread: int) -> tuple[dict[int, int], list[int], list[int]]:
    """Rows behind the unread text of the nodes that outcomes follow, with their tokens and parents' rows."""
    nodes = set[int]()
    for stop in asked.stops.tolist():
        while stop != ROOT and stop not in nodes:
            nodes.add(stop)
            stop = int(asked.parents[stop])
    rows, tokens, parents = dict[int, int](), list[int](), list[int]()
    for node in sorted(nodes):
        rows[node] = unread + len(tokens)
        above = int(asked.parents[node])
        tokens.append(int(asked.tokens[node]))
        parents.append(unread - 1 if above == ROOT else rows[above])
    return rows, tokens, parents
