"""One round of draft and target at the same time, as it happened: the draft that was scored, the outcomes that the exit
foresaw with the windows behind them, and what the target decided.

The slow twin of the draft model's process makes the windows, all of them to their ends, so nothing depends on how fast
the machine is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from paceline.api.model import LanguageModel
from paceline.drafters.base import Awaited, Seen
from paceline.drafters.networks.mirror.flight import WindowInFlight
from paceline.drafters.networks.mirror.state import MirrorState
from paceline.drafters.networks.mirror.twin import TwinMirror, TwinSource
from paceline.tree import DraftTree

ALL = 1 << 10
"""Forwards of a window, more than any has."""


@dataclass(frozen=True)
class Branch:
    """A window that was drafted ahead: for the outcome that the walk stops at this node of the draft, -1 for before it,
    and goes on with the proxy."""

    stop: int
    proxy: int
    window: tuple[int, ...]


@dataclass
class BranchedRound:
    """One round."""

    number: int
    draft: tuple[int, ...]
    branches: list[Branch]
    accepted: int = 0
    correction: int = 0
    """The target's own token behind the accepted ones."""
    following: tuple[int, ...] = ()
    """The draft of the next round."""
    anew: bool = True
    """Whether that was begun only then."""
    inside: int = 0
    """How many tokens of a branch's window were accepted or are the correction."""

    @property
    def reused(self) -> Branch | None:
        """The branch whose window is the next draft, or holds it."""
        for each in self.branches if not self.anew else ():
            if self._path(each, self.inside) == self._text:
                return each
        return None

    @property
    def on_a_path(self) -> bool:
        """Whether the accepted tokens and the correction are a path in the tree of all branches that goes on."""
        return any(self._path(each, k) == self._text for each in self.branches for k in range(len(each.window)))

    @property
    def _text(self) -> tuple[int, ...]:
        return (*self.draft[: self.accepted], self.correction)

    def _path(self, branch: Branch, inside: int) -> tuple[int, ...]:
        return (*self.draft[: branch.stop + 1], branch.proxy, *branch.window[:inside])


class WatchedMirror(TwinMirror):
    """It keeps its rounds. For drafts of one chain."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rounds: list[BranchedRound] = []

    def on_early(self, state: MirrorState, tree: DraftTree, logits: Any) -> None:
        super().on_early(state, tree, logits)
        found, remote = state.foreseen, state.remote
        if found is None or remote is None:
            return
        assert isinstance(remote.source, TwinSource), "the twin begins no process"
        windows, draft = remote.source.windows(remote.number), tuple(tree.tokens.tolist())
        outcomes = sorted(zip(found.stops.tolist(), found.proxies.tolist(), strict=True), key=itemgetter(0))
        branches = [Branch(stop, proxy, windows.get((*draft[: stop + 1], proxy), ())) for stop, proxy in outcomes]
        self.rounds.append(BranchedRound(len(self.rounds) + 1, draft, branches))

    def observe(self, seen: Sequence[Seen]) -> None:
        for state, verdict, _ in seen:
            if verdict.tokens and state.drafts and self.rounds:
                self.rounds[-1].accepted, self.rounds[-1].correction = verdict.accepted, verdict.tokens[-1]
        super().observe(seen)

    def finish(self, asks: Sequence[Awaited]) -> list[DraftTree]:
        drafts = super().finish(asks)
        for ask, draft in zip(asks, drafts, strict=True):
            flight = ask.flight
            if self.rounds and isinstance(flight, WindowInFlight) and (window := flight.window) is not None:
                last = self.rounds[-1]
                last.following, last.anew, last.inside = tuple(draft.tokens.tolist()), window.ready < 0, window.inside
        return drafts


def branched_rounds(
    lm: LanguageModel, draft: str, prompt: str, *, options: Mapping[str, Any], **writing: Any
) -> list[BranchedRound]:
    """The rounds of a text that had a draft, in order. ``options`` are those of `mirror`."""
    drafter = WatchedMirror(model=draft, branches="full", forwards=ALL, **options)
    lm.forget()
    lm.generate(prompt, method=drafter, planner=f"fixed:{drafter.gamma}", **writing)
    return drafter.rounds
