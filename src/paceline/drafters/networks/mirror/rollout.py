"""The drafts that are made ahead for one text: a window behind each of the possible outcomes of the target.

Where the draft model reads the target's tokens, all outcomes of a text are one tree over shared rows: the unread end of
the text, the draft in flight, and behind its nodes the tokens that the text may go on with there. The first forward
reads all of these; each later one adds a token to every window. A draft model of another tokenizer reads the text in
its own tokens, and the last of these change when the text goes on. So each outcome is then a separate text, with a
copy of the rows that are certain, and the outcome that the target chooses is the text from then on.

When the outcome is known, its window is finished and the others get no more forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.context import Context
from paceline.drafters.base import Ask, Budget
from paceline.drafters.networks.assistant.drafter import Assistant
from paceline.drafters.networks.growth import Growth
from paceline.drafters.networks.mirror.messages import Ahead, Window
from paceline.drafters.networks.reading import ReadText
from paceline.tree import ROOT


@dataclass(eq=False)
class ExpectedText:
    """The text goes on with these ``tokens`` of the target, and a window grows behind it."""

    tokens: tuple[int, ...]
    growth: Growth


class Rollout:
    """One text, as the draft model's process knows it."""

    def __init__(self, assistant: Assistant, context: Context, source: str) -> None:
        self._assistant, self._context, self._source = assistant, context, source
        self._text = assistant.open(context)
        self._outcomes: list[ExpectedText] = []
        self._due: int | None = None
        """The length of the text whose window is waited for."""
        self._ready, self._inside = -1, 0
        """Of that window: the levels that were there already, and the tokens of the text inside of another window."""
        self.forwards = 0
        """Of the draft model, since the last window."""
        self._drafted = 0

    def ahead(self, asked: Ahead) -> None:
        """Draft for these outcomes of the draft in flight. What was under way before is left."""
        self._due = None
        self._leave(self._outcomes)
        self._text.catch_up()
        outcomes = list(zip(asked.stops.tolist(), asked.proxies.tolist(), strict=True))
        if self._assistant.translates:
            for stop, proxy in outcomes:
                path = (*path_of(asked, stop), proxy)
                self._expect(path, self._assistant.branch(self._text, self._context.extended(path)), asked.levels)
            return
        outcomes = self._readable(asked, outcomes)
        rows, tokens, parents = _needed(asked, [stop for stop, _ in outcomes])
        first = len(tokens)
        self._text.look_ahead(
            [*tokens, *(proxy for _, proxy in outcomes)], [*parents, *(rows[stop] for stop, _ in outcomes)]
        )
        for number, (stop, proxy) in enumerate(outcomes):
            self._expect((*path_of(asked, stop), proxy), self._text, asked.levels, first + number)

    def _readable(self, asked: Ahead, outcomes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The outcomes whose tokens the draft model has; the first of them alone where it cannot read siblings."""
        network = self._assistant.network
        known = [each for each in outcomes if network.can_read(self._text, *path_of(asked, each[0]), each[1])]
        return known if network.reads_trees(self._text.length) else known[:1]

    def go(self, tokens: Sequence[int], levels: int) -> None:
        """These tokens followed: finish their window if it is under way, or begin it."""
        for token in tokens:
            self._context.commit(token)
        self._due, self._inside = len(self._context), 0
        found, self._ready = self._drafted_behind(tuple(tokens))
        self._leave([each for each in self._outcomes if each is not found])
        if found is None:
            self._expect((), self._text, levels)
            return
        old, rest = self._text, tokens[len(found.tokens) :]
        self._text, found.growth.state.context = found.growth.state, self._context
        if rest:
            self._inside = len(rest)
            found.growth.re_root(rest, self._assistant.depth(self._budget(levels, self._context), self._text.length))
        if old is not self._text:
            self._assistant.drop(old)

    def _drafted_behind(self, tokens: tuple[int, ...]) -> tuple[ExpectedText | None, int]:
        """The outcome with the most levels behind these tokens, and how many these are; -1 where none has any. The
        tokens are those of the outcome, or they go on into its window: a path in the tree of all windows, as the paper
        has it."""
        best, most = None, -1
        for each in self._outcomes:
            count = len(each.tokens)
            if each.tokens == tokens[:count]:
                levels = each.growth.levels_behind(tokens[count:])
                if levels > max(most, 0):
                    best, most = each, levels
        return best, most

    def _expect(self, path: tuple[int, ...], state: ReadText, levels: int, row: int = ROOT) -> None:
        """Begin a window behind the text as it will be; ``row`` is its last token among those ahead of ``state``."""
        text = state.context if row == ROOT else state.context.extended(path)
        budget = self._budget(levels, text)
        if row == ROOT:
            growth = self._assistant.growth(Ask(state, budget))
        else:
            growth = self._assistant.growth_behind(state, budget, *path, text=text, row=row)
        self._outcomes.append(ExpectedText(path, growth))

    def _budget(self, levels: int, text: Context) -> Budget:
        """Of a window behind this text."""
        return Budget(levels * self._assistant.shape.top, max(0, min(levels, text.room - 1)))

    def _leave(self, outcomes: Sequence[ExpectedText]) -> None:
        for each in outcomes:
            self._drafted += len(each.growth)
            if each.growth.state is not self._text:
                self._assistant.drop(each.growth.state)
        self._outcomes = [each for each in self._outcomes if each not in outcomes]

    @property
    def windows(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """The windows so far, by the tokens that the text goes on with."""
        trees = {each.tokens: each.growth.tree(self._source) for each in self._outcomes}
        return {path: tuple(tree.tokens.tolist()) for path, tree in trees.items()}

    @property
    def live(self) -> list[Growth]:
        """The windows that are not finished."""
        return [each.growth for each in self._outcomes if not each.growth.done]

    @property
    def fresh(self) -> Growth | None:
        """The window that is waited for, where nothing of it is drafted and no row of it is read."""
        if self._due is None or len(self.live) != 1 or self.live[0].level:
            return None
        (growth,) = self.live
        state: ReadText = growth.state
        return None if state.begun else growth

    def window(self) -> tuple[int, Window] | None:
        """The window that is waited for, once it is finished, and the length of its text."""
        if self._due is None or self.live:
            return None
        (outcome,), due, self._due = self._outcomes, self._due, None
        tree = outcome.growth.tree(self._source)
        drafted = self._drafted + len(outcome.growth)
        window = Window(tree, self._ready, self.forwards, drafted, self._inside)
        self.forwards = self._drafted = 0
        self._outcomes = []
        return due, window

    @property
    def busy(self) -> bool:
        """Whether there is a row to read, or a window to send."""
        return bool(self.live) or self._due is not None

    def end(self) -> None:
        self._leave(self._outcomes)
        self._assistant.close(self._text)


def path_of(asked: Ahead, node: int) -> list[int]:
    path = []
    while node != ROOT:
        path.append(int(asked.tokens[node]))
        node = int(asked.parents[node])
    return path[::-1]


def _needed(asked: Ahead, stops: Sequence[int]) -> tuple[dict[int, int], list[int], list[int]]:
    """The nodes that outcomes follow: their numbers in the order they are read, their tokens, their parents' numbers.
    The root is the end of the text."""
    nodes = set[int]()
    for node in stops:
        while node != ROOT and node not in nodes:
            nodes.add(node)
            node = int(asked.parents[node])
    rows, tokens, parents = {ROOT: ROOT}, list[int](), list[int]()
    for node in sorted(nodes):
        rows[node] = len(tokens)
        tokens.append(int(asked.tokens[node]))
        parents.append(rows[int(asked.parents[node])])
    return rows, tokens, parents
