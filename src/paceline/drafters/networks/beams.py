"""Drafts by heads that read the target's last state, as beams of one search for all texts.

All choices of the search become the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Ask, Drafter, Seen
from paceline.drafters.noise import SHARED, SharedNoise, hides_noise, wants_noise
from paceline.errors import InputError
from paceline.law import Outlook
from paceline.targets.base import NOTHING, Target, Want
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, DraftTree
from paceline.verify import Verdict

if TYPE_CHECKING:
    import torch

    from paceline.drafters.networks.compiled_search import BeamText, CompiledSearch
    from paceline.drafters.networks.fitting import FittedHead
    from paceline.drafters.networks.search import BeamSearch, PathHead, SearchShape
    from paceline.drafters.networks.settings import Adjusting


@dataclass(eq=False)
class HeadState:
    """One text, and the state that the target's head read for its last token."""

    context: Context
    hidden: torch.Tensor | None = None
    length: int = 0
    """The length of the text for which the state is."""

    @cached_property
    def outlook(self) -> Outlook:
        """The text's settings, as its drafts see them."""
        return Outlook(self.context.sampling, self.context.prompt_length)

    @property
    def ready(self) -> bool:
        return self.hidden is not None and self.length == len(self.context)

    def note(self, scores: Scores, verdict: Verdict, layer: int) -> None:
        """Keep the state that chose the text's last token, which behind a piece of the prompt is that of its last row.
        It is copied: the row's forward may be large."""
        row = verdict.path[-1] + 1 if verdict.path else 0
        import torch

        self.hidden = torch.as_tensor(scores.hidden(layer))[row].clone()
        self.length = len(self.context)


class BeamDrafter(Drafter):
    """A head and the shape of its beams. The head is read when a target is known."""

    whole_beams = False
    """Whether only what leads to a beam's end is drafted."""

    def __init__(self, width: int, length: int, noise: str | None) -> None:
        for option, value in (("width", width), ("length", length)):
            if value < 1:
                raise InputError(f"option {option!r} of method {self.name!r} is at least 1, not {value}")
        self.width, self._wished = width, length
        self._reach(length)
        self._asked = noise
        self._noise = wants_noise(self.name, noise or SHARED)
        self._head: PathHead | None = None
        self._target: Target | None = None
        self._compiled: CompiledSearch | None = None
        self._layer = 0

    def _reach(self, length: int) -> None:
        """Draft no longer paths."""
        self.length = self.costly_levels = min(self._wished, length)
        self.nodes = self.width * self.length

    def use(self, found: FittedHead[Any], target: Target, layer: int) -> None:
        """Draft with this head, which reads the target's states of a layer."""
        self._head, self._target, self._layer, self.light = found.head, target, layer, found.light
        self._compiled = None
        if target.compiled:
            from paceline.drafters.networks.compiled_search import CompiledSearch  # loads numba

            self._compiled = CompiledSearch.of(found.head, target)
        self._noise = wants_noise(self.name, self._asked or found.noise or SHARED)
        self.needs = Want(hidden=frozenset({layer}))

    def dispose(self) -> None:
        self._head = self._target = self._compiled = None
        self.needs = NOTHING

    def levels(self, nodes: int) -> int:
        return min(self.length, nodes)

    def open(self, context: Context) -> HeadState:
        return HeadState(context)

    def observe(self, seen: Sequence[Seen]) -> None:
        for state, verdict, scores in seen:
            state.note(scores, verdict, self._layer)

    def hidden(self, states: Sequence[Any]) -> torch.Tensor:
        """What the head reads for the last token of each text, ``[texts, width]``."""
        import torch

        return torch.stack([state.hidden for state in states])

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        drafts = [EMPTY] * len(asks)
        live = [number for number, ask in enumerate(asks) if ask.state.ready and not ask.budget.empty]
        sampled = [number for number in live if self._samples(asks[number].state)]
        beams = [number for number in live if number not in sampled]
        for numbers, make in ((beams, self._beams), (sampled, self._chains)):
            if numbers:
                for number, tree in zip(numbers, make([asks[number] for number in numbers]), strict=True):
                    drafts[number] = tree
        return drafts

    def _samples(self, state: HeadState) -> bool:
        """Whether its draft is drawn, with its law: under the rejection rule, where a draft is one line."""
        return self.width == 1 and hides_noise(state.context)

    def _beams(self, asks: Sequence[Ask]) -> list[DraftTree]:
        from paceline.drafters.networks.search import trees

        noises = [SharedNoise.of(ask.state.context, self._noise) for ask in asks]
        levels = self._compiled_levels(asks, noises)
        found = trees(self._levels(asks, noises) if levels is None else levels, self.name, whole_beams=self.whole_beams)
        return [tree.top(ask.budget.nodes) for tree, ask in zip(found, asks, strict=True)]

    def _levels(self, asks: Sequence[Ask], noises: Sequence[SharedNoise | None]) -> torch.Tensor:
        """The levels of a search, packed."""
        from paceline.drafters.networks.search import BeamSearch, shared_noise

        head, target = self._fitted()
        noise = None if target.device.startswith("cuda") else shared_noise(noises)
        numbers, shape, adjusting = self._asked_for(asks, [None] * len(asks) if noise else noises)
        search = BeamSearch(head, target, shape, adjusting=adjusting, noise=noise)
        whole = noise is None and adjusting is None
        return self._searched(asks, search, numbers, (id(head), shape, len(asks)) if whole else None)

    def _compiled_levels(self, asks: Sequence[Ask], noises: Sequence[SharedNoise | None]) -> torch.Tensor | None:
        """The same in one compiled call; None where there is none, or where settings need more than a row."""
        if self._compiled is None or any(ask.state.context.sampling.adjusts for ask in asks):
            return None
        texts = [self._beam_text(ask, noise) for ask, noise in zip(asks, noises, strict=True)]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            return None
        return self._compiled(self.hidden([ask.state for ask in asks]), known, self.width)

    def _beam_text(self, ask: Ask, noise: SharedNoise | None) -> BeamText | None:
        from paceline.drafters.networks.compiled_search import BeamText

        context = ask.state.context
        draw = ask.state.outlook.draw(None if noise is None else context.noise, len(context))
        ends = np.array(sorted(context.ending.eos), np.int64)
        return None if draw is None else BeamText(context.root, draw, self._depth(ask), ends)

    def _depth(self, ask: Ask) -> int:
        return min(self.length, ask.budget.depth, ask.budget.nodes)

    def _chains(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """One drawn line for each text, with the law of every token."""
        from paceline.drafters.networks.search import BeamSearch, drawn_noise, trees

        noise = drawn_noise([ask.state.context for ask in asks])
        numbers, shape, adjusting = self._asked_for(asks, [None] * len(asks))
        search = BeamSearch(*self._fitted(), shape, adjusting=adjusting, noise=noise, sampled=True)
        found = trees(self._searched(asks, search, numbers), self.name, whole_beams=False)
        return [
            replace(tree, drawn={place - 1: search.law(text, place) for place in range(len(tree))})
            for text, tree in enumerate(found)
        ]

    def _fitted(self) -> tuple[PathHead, Target]:
        assert self._head is not None and self._target is not None, "a head is read by `fit`"
        return self._head, self._target

    def _asked_for(
        self, asks: Sequence[Ask], noises: Sequence[SharedNoise | None]
    ) -> tuple[torch.Tensor, SearchShape, Adjusting | None]:
        """The inputs of the search, sent in one copy, and the settings that change logits."""
        import torch

        from paceline.drafters.networks.fitting import place_of
        from paceline.drafters.networks.search import SearchInputs
        from paceline.drafters.networks.settings import Adjusting
        from paceline.law.on_device import sent

        head, target = self._fitted()
        contexts = [ask.state.context for ask in asks]
        depths = [self._depth(ask) for ask in asks]
        coins = [None if noise is None else noise.coins(0) for noise in noises]
        rows, shape = SearchInputs.of(contexts, depths, self.width, coins)
        device = place_of(target)
        numbers = sent(torch.tensor(rows), device)
        adjusts = any(context.sampling.adjusts for context in contexts)
        adjusting = Adjusting(contexts, head.token_ids, head.shape.known, device) if adjusts else None
        return numbers, shape, adjusting

    def _searched(
        self, asks: Sequence[Ask], search: BeamSearch, numbers: torch.Tensor, key: Any = None
    ) -> torch.Tensor:
        """By a recording under this key, where there is one and the target records."""
        import torch

        target = self._fitted()[1]
        with torch.inference_mode():
            hidden = self.hidden([ask.state for ask in asks])
            return search(hidden, numbers) if key is None else target.played(key, search, [hidden, numbers])
