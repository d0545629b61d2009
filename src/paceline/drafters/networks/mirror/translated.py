"""What a draft model of another tokenizer writes ahead.

It reads the text in its own tokens, and the last of these change when the text goes on. So outcomes share no rows: each
is a text of its own, with a copy of the rows that are certain. The one that comes is the text from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.context import Context
from paceline.drafters.base import Ask, Budget
from paceline.drafters.networks.assistant.drafter import Assistant, Growing
from paceline.drafters.networks.assistant.state import AssistantState
from paceline.drafters.networks.mirror.messages import Ahead, Window
from paceline.drafters.networks.mirror.rollout import path_of
from paceline.targets.base import Request
from paceline.targets.scores import Scores


@dataclass(eq=False)
class _Outcome:
    """The text goes on with these ``tokens`` of the target, and a window grows behind it."""

    tokens: tuple[int, ...]
    state: AssistantState
    growth: Growing
    levels: int = 0


class TranslatedRollout:
    """One text, as the draft model's process knows it."""

    def __init__(self, assistant: Assistant, context: Context, source: str) -> None:
        self._assistant, self._context, self._source = assistant, context, source
        self._text: AssistantState = assistant.open(context)
        self._outcomes: list[_Outcome] = []
        self._due: int | None = None
        self._ready = -1
        self._forwards = self._drafted = 0

    def ahead(self, asked: Ahead) -> None:
        """Draft for these outcomes of the draft in flight. What was under way before is left."""
        self._due = None
        self._leave(self._outcomes)
        self._text.catch_up()
        for stop, proxy in zip(asked.stops.tolist(), asked.proxies.tolist(), strict=True):
            path = (*path_of(asked, stop), proxy)
            state = self._assistant.branch(self._text, self._context.extended(path))
            self._expect(path, state, asked.levels)

    def go(self, tokens: Sequence[int], levels: int) -> None:
        """These tokens followed: finish their window if it is under way, or begin it."""
        for token in tokens:
            self._context.commit(token)
        self._due = len(self._context)
        came = next((each for each in self._outcomes if each.tokens == tuple(tokens) and each.levels), None)
        self._leave([each for each in self._outcomes if each is not came])
        if came is None:
            self._ready = -1
            self._expect((), self._text, levels)
            return
        self._ready, old = came.levels, self._text
        self._text, came.state.context = came.state, self._context
        if old is not self._text:
            self._assistant.close(old)

    def _expect(self, path: tuple[int, ...], state: AssistantState, levels: int) -> None:
        depth = max(0, min(levels, state.context.room - 1))
        growth = self._assistant.growth(Ask(state, Budget(levels * self._assistant.shape.top, depth)))
        self._outcomes.append(_Outcome(path, state, growth))

    def _leave(self, outcomes: Sequence[_Outcome]) -> None:
        for each in outcomes:
            self._drafted += len(each.growth)
            if each.state is not self._text:
                self._assistant.close(each.state)
        self._outcomes = [each for each in self._outcomes if each not in outcomes]

    @property
    def _live(self) -> list[_Outcome]:
        return [each for each in self._outcomes if not each.growth.done]

    def requests(self) -> list[Request]:
        """The rows to score next: a piece of a long text that is unread, or a level of every window."""
        live = self._live
        if live and (piece := self._assistant.piece(live[0].state)) is not None:
            return [piece]
        return [each.growth.request() for each in live]

    def take(self, requests: Sequence[Request], scores: Sequence[Scores]) -> None:
        """What the forward of `requests` found."""
        live = self._live
        if requests[0].prefill:
            live[0].state.read(len(requests[0].tokens))
            return
        self._forwards += 1
        for each, found in zip(live, scores, strict=True):
            each.growth.grow(found)
            each.levels += 1

    def window(self) -> tuple[int, Window] | None:
        """The window that is waited for, once it is finished, and the length of its text."""
        if self._due is None or self._live:
            return None
        (outcome,), due, self._due = self._outcomes, self._due, None
        tree = outcome.growth.tree(self._source)
        window = Window(tree, self._ready, self._forwards, self._drafted + len(outcome.growth))
        self._forwards = self._drafted = 0
        self._outcomes = []
        return due, window

    @property
    def busy(self) -> bool:
        """Whether there is a row to read, or a window to send."""
        return bool(self._live) or self._due is not None

    def end(self) -> None:
        self._leave(self._outcomes)
        self._assistant.close(self._text)
