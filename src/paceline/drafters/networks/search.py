"""Beam search with a head that has a state for each path, for several texts in the same operations, with one transfer
to their device and one back. The computation depends only on tensors, so a device may record it.

A level is one call of the head for all beams of all texts. The best tokens behind every beam are chosen on the device,
then the settings of each text and the noise of the place act on them, and the best candidates of each text are
continued. The choices of a level, with the numbers of the beams that they follow, are already a level of a tree: beams
that share a beginning share its nodes, so no prefixes have to be found and packed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from paceline.context import Context
from paceline.drafters.candidates import renumbered
from paceline.drafters.networks.settings import Adjusting
from paceline.drafters.noise import SharedNoise, exponentials_of
from paceline.law import Distribution, Noise, log_normalizer
from paceline.law.contenders import DEVICES
from paceline.law.draws import Draws, cuts, numbers_of
from paceline.law.outlook import CANDIDATES, IMPOSSIBLE, NO_TOKEN
from paceline.law.warp import Warps
from paceline.targets.base import Target
from paceline.tree import ROOT, Bools, DraftTree, Floats, Ints

AddedNoise = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Target ids ``[texts, width, candidates]``, their log-probabilities and the place ahead -> what the noise adds to
these."""


class KnownTokens(Protocol):
    """The sizes of a head, as the search sees them."""

    @property
    def known(self) -> int: ...


class PathHead(Protocol):
    """A head, as the search sees it. It says what follows a path: `first` is the state of the path of the text's last
    token alone, `next` that of the path with one more token, and `logits` those behind a path, of the target's last
    state and the path's. `token_ids` are the target's ids of the tokens it knows, ascending; None for all."""

    token_ids: torch.Tensor | None

    @property
    def shape(self) -> KnownTokens: ...

    def first(self, embedded: torch.Tensor) -> torch.Tensor: ...

    def next(self, state: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, eq=False)
class Level:
    """The choices of one level, ``[texts, width]`` each: tokens, the beams of the level above, scores given the beam,
    scores of the path, and whether the beam ends here."""

    tokens: torch.Tensor
    above: torch.Tensor
    scores: torch.Tensor
    paths: torch.Tensor
    ended: torch.Tensor


@dataclass(frozen=True)
class SearchShape:
    """The properties that searches must share to use one recording."""

    length: int
    width: int
    ends: int
    """Places for tokens that nothing follows."""
    cut: bool
    noisy: bool


class SearchInputs:
    """The inputs of a search, as numbers on its device: roots, depths, ends, and how tokens are drawn."""

    def __init__(self, numbers: torch.Tensor, shape: SearchShape) -> None:
        self.roots, self.depths = numbers[:, :1], numbers[:, 1:2]
        self.ends = numbers[:, None, 2 : 2 + shape.ends]
        self.draws = Draws(numbers[:, 2 + shape.ends :], cut=shape.cut, noisy=shape.noisy)

    @staticmethod
    def of(
        contexts: Sequence[Context], depths: Sequence[int], width: int, coins: Sequence[tuple[Noise, int] | None]
    ) -> tuple[list[list[int]], SearchShape]:
        """The numbers, a row for each text; ``coins`` are the noise of its next token, and where that stands."""
        ends = [sorted(context.ending.eos) or [NO_TOKEN] for context in contexts]
        most = max(map(len, ends))
        warps = [Warps.of(context.sampling) for context in contexts]
        rows = [
            [context.root, depth, *each, *each[:1] * (most - len(each)), *numbers_of(cut, own)]
            for context, depth, each, cut, own in zip(contexts, depths, ends, warps, coins, strict=True)
        ]
        noisy = any(own is not None for own in coins)
        return rows, SearchShape(max(depths), width, most, any(map(cuts, warps)), noisy)


class BeamSearch:
    """One draft for several texts, computed of tensors alone."""

    def __init__(
        self,
        head: PathHead,
        target: Target,
        shape: SearchShape,
        *,
        adjusting: Adjusting | None = None,
        noise: AddedNoise | None = None,
        sampled: bool = False,
    ) -> None:
        """``noise`` is added where the draws of `shape` have none. With ``sampled`` every beam's next token is drawn by
        it, and the `law` of each draw is kept."""
        self._head, self._target, self._shape = head, target, shape
        self._adjusting, self._noise, self._sampled = adjusting, noise, sampled
        self._laws: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, hidden: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """The levels, packed, of ``hidden`` ``[texts, width]``: what the target's head read for the last token of each
        text."""
        inputs, levels, device = SearchInputs(numbers, self._shape), list[Level](), hidden.device
        texts, hidden = len(hidden), hidden[:, None]
        state = self._head.first(self._target.embed(inputs.roots))
        paths = torch.zeros(texts, 1, device=device)
        drafted = torch.empty(texts, 1, 0, dtype=torch.int64, device=device)
        for place in range(self._shape.length):
            logits = self._head.logits(hidden.expand(-1, state.shape[1], -1), state).float()
            if self._adjusting is not None:
                logits = self._adjusting.apply(logits, drafted)
            ids, scores, at = self._candidates(logits, inputs.draws, place)
            level, at = self._chosen(ids, scores, at, paths, inputs, place)
            levels.append(level)
            if place + 1 == self._shape.length:
                break
            paths = level.paths.masked_fill(level.ended, -torch.inf)
            state = self._head.next(
                state.gather(1, level.above[..., None].expand(-1, -1, state.shape[2])),
                self._target.embed(level.tokens.clamp_min(0)),
            )
            before = drafted.gather(1, level.above[..., None].expand(-1, -1, place))
            drafted = torch.cat([before, at[..., None]], dim=2)
        return _packed(levels)

    def _candidates(
        self, logits: torch.Tensor, draws: Draws, place: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The target's ids of the best tokens behind every beam, the log-probability of choosing each, and their places
        in the head's vocabulary. A broken state gives none."""
        logits = logits / draws.temperatures
        best, at = logits.topk(min(CANDIDATES, logits.shape[-1]), dim=-1)
        logs, rest = draws.logs(best, log_normalizer(logits))
        ids = at if self._head.token_ids is None else self._head.token_ids[at]
        if self._sampled:
            logs = logs.double()  # the draw must follow its law to the last bit
            self._laws.append((ids, logs))
        if self._noise is None:
            logs = draws.favoured(ids, logs, rest, place)
        else:
            favours = logs + self._noise(ids, logs, place)
            logs = favours - torch.logaddexp(log_normalizer(favours), rest)[..., None]
        return ids, logs.nan_to_num(nan=-torch.inf, posinf=-torch.inf), at

    def _chosen(
        self,
        ids: torch.Tensor,
        scores: torch.Tensor,
        at: torch.Tensor,
        paths: torch.Tensor,
        inputs: SearchInputs,
        place: int,
    ) -> tuple[Level, torch.Tensor]:
        """The best of all candidates of each text, and their places in the head's vocabulary."""
        texts, _, count = scores.shape
        whole = (paths[..., None] + scores).view(texts, -1)
        values, numbers = whole.topk(min(self._shape.width, whole.shape[1]), dim=-1)
        tokens = ids.view(texts, -1).gather(1, numbers).masked_fill(values <= IMPOSSIBLE, NO_TOKEN)
        ended = (tokens[..., None] == inputs.ends).any(dim=-1) | (inputs.depths <= place + 1)
        own = scores.view(texts, -1).gather(1, numbers)
        return Level(tokens, numbers // count, own, values, ended), at.view(texts, -1).gather(1, numbers)

    def law(self, text: int, place: int) -> Distribution:
        """The distribution that the token at a place was drawn from."""
        ids, logs = (each[text, 0].numpy(force=True) for each in self._laws[place])
        possible = np.flatnonzero(np.exp(logs) > 0)
        order = possible[np.argsort(ids[possible])]
        return Distribution(ids[order], np.exp(logs[order]))


def trees(levels: torch.Tensor, source: str, *, whole_beams: bool) -> list[DraftTree]:
    """The draft of each text: everything that was chosen, or with ``whole_beams`` only what leads to a beam's end.
    ``levels`` are what a search has packed, and read in one transfer."""
    tokens, above, ended, scores = _on_host(levels)
    texts, length, width = tokens.shape
    real = tokens != NO_TOKEN
    if whole_beams:
        real &= _leading(above, real & ended)
    parents = above + (np.arange(length)[:, None] - 1) * width
    parents[:, 0] = ROOT
    columns = (each.reshape(texts, -1) for each in (tokens, parents, np.minimum(scores, 0.0), real))
    found = list[DraftTree]()
    for ids, whole, worth, kept in zip(*columns, strict=True):
        chosen = kept.nonzero()[0]
        found.append(DraftTree(ids[chosen], renumbered(whole, chosen), worth[chosen], (source,) * len(chosen)))
    return found


def _packed(levels: Sequence[Level]) -> torch.Tensor:
    """Tokens, numbers of beams above, ends and scores, ``[4, texts, length, width]``. A narrow first level is filled
    up."""
    first, width = levels[0].tokens, max(level.tokens.shape[1] for level in levels)
    kind = torch.float64 if first.device.type in DEVICES else torch.float32  # which holds all ids, too
    found = torch.full((4, len(first), len(levels), width), NO_TOKEN, dtype=kind, device=first.device)
    for number, level in enumerate(levels):
        for rows, values in zip(found, (level.tokens, level.above, level.ended, level.scores), strict=True):
            rows[:, number, : values.shape[1]] = values
    return found


def _on_host(levels: torch.Tensor) -> tuple[Ints, Ints, Bools, Floats]:
    tokens, above, ended, scores = levels.numpy(force=True)
    return tokens.astype(np.int64), np.maximum(above, 0).astype(np.int64), ended > 0, scores


def _leading(above: Ints, ends: Bools) -> Bools:
    """Which of the chosen lead to the end of a beam."""
    leading = ends.copy()
    for level in range(leading.shape[1] - 1, 0, -1):
        text, beam = np.nonzero(leading[:, level])
        leading[text, level - 1, above[text, level, beam]] = True
    return leading


def shared_noise(noises: Sequence[SharedNoise | None]) -> AddedNoise | None:
    """The public noise of each text that is ranked by it, drawn on the host; None where no text is."""
    known = [noise for noise in noises if noise is not None]
    if not known:
        return None
    rows = [number for number, noise in enumerate(noises) if noise is not None]

    def added_noise(ids: torch.Tensor, _: torch.Tensor, place: int) -> torch.Tensor:
        asked = ids[rows].reshape(-1).numpy(force=True)
        whose = np.repeat(np.arange(len(known)), len(asked) // len(known))
        drawn = -np.log(exponentials_of(known, whose, asked, place))
        added = torch.zeros(ids.shape, device="cpu")
        added[rows] = torch.from_numpy(drawn).float().view(len(rows), *ids.shape[1:])
        return added.to(ids.device)

    return added_noise


def drawn_noise(contexts: Sequence[Context]) -> AddedNoise:
    """Noise of each text that nothing else uses."""

    def added_noise(ids: torch.Tensor, _: torch.Tensor, place: int) -> torch.Tensor:
        rows = [
            -np.log(context.draft_coins(place, row.ravel()))
            for context, row in zip(contexts, ids.numpy(force=True), strict=True)
        ]
        return torch.from_numpy(np.stack(rows)).to(ids.device)[:, None]

    return added_noise
