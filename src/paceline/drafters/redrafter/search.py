"""Beam search with a recurrent head, for several texts in the same operations and with one transfer to the host.

A level is one call of the head for all beams of all texts. The best tokens behind every beam are chosen on the device,
then the settings of each text and the noise of the place act on them, and of all candidates of a text its best go on.
What was chosen on a level, with the numbers of the beams that it was chosen behind, is a level of a tree already: beams
that share a beginning never part, so nothing has to be found again and packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.beams import NO_TOKEN
from paceline.context import Context
from paceline.drafters.noise import SharedNoise, exponentials_of
from paceline.drafters.redrafter.head import RecurrentHead
from paceline.drafters.redrafter.settings import Adjusting, Warping
from paceline.law import Distribution, log_normalizer
from paceline.law.on_device import rough_gumbel
from paceline.targets.base import Target
from paceline.tree import ROOT, Bools, DraftTree, Floats, Ints

CANDIDATES = 64
"""Tokens behind a beam that settings and noise choose from."""
IMPOSSIBLE = -1e30
"""Candidates of a lower score are none."""

Luck = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Target ids ``[texts, width, candidates]``, their log-probabilities and the place ahead -> what the noise adds to
these."""


@dataclass(frozen=True, eq=False)
class Level:
    """What was chosen on one level, ``[texts, width]`` each: tokens, the beams of the level above, scores given the
    beam, scores of the path, and whether the beam ends here."""

    tokens: torch.Tensor
    above: torch.Tensor
    scores: torch.Tensor
    paths: torch.Tensor
    ended: torch.Tensor


class BeamSearch:
    """One draft for several texts."""

    def __init__(
        self,
        head: RecurrentHead,
        target: Target,
        contexts: Sequence[Context],
        depths: Sequence[int],
        *,
        width: int,
        luck: Luck | None = None,
        sampled: bool = False,
    ) -> None:
        """With ``sampled`` every beam's next token is drawn by ``luck``, and the `law` of each draw is kept."""
        self._head, self._target, self._luck = head, target, luck
        self._width, self._sampled = width, sampled
        self._laws: list[tuple[torch.Tensor, torch.Tensor]] = []
        device = target.device
        self._device = device
        self._adjusting = Adjusting(contexts, head.token_ids, head.shape.known, device)
        self._warping = Warping([context.sampling for context in contexts], device)
        self._depths = torch.tensor(list(depths), device=device)[:, None]
        self._length = max(depths)
        roots = torch.tensor([[context.root] for context in contexts], device=device)
        self._roots = roots
        ends = [sorted(context.ending.eos) or [NO_TOKEN] for context in contexts]
        most = max(map(len, ends))
        self._ends = torch.tensor([[*each, *each[:1] * (most - len(each))] for each in ends], device=device)[:, None]

    def run(self, hidden: torch.Tensor) -> list[Level]:
        """``hidden`` ``[texts, width]``: what the target's head read for the last token of each text."""
        texts, levels = len(hidden), list[Level]()
        hidden = hidden[:, None]
        state = self._head.first(self._target.embed(self._roots))
        paths = torch.zeros(texts, 1, device=self._device)
        drafted = torch.empty(texts, 1, 0, dtype=torch.int64, device=self._device)
        for place in range(self._length):
            logits = self._head.logits(hidden.expand(-1, state.shape[1], -1), state).float()
            ids, scores, at = self._candidates(self._adjusting.apply(logits, drafted), place)
            level, at = self._chosen(ids, scores, at, paths, place)
            levels.append(level)
            if place + 1 == self._length:
                break
            paths = level.paths.masked_fill(level.ended, -torch.inf)
            state = self._head.next(
                state.gather(1, level.above[..., None].expand(-1, -1, state.shape[2])),
                self._target.embed(level.tokens.clamp_min(0)),
            )
            before = drafted.gather(1, level.above[..., None].expand(-1, -1, place))
            drafted = torch.cat([before, at[..., None]], dim=2)
        return levels

    def _candidates(self, logits: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The target's ids of the best tokens behind every beam, how likely each is to be chosen, and their places in
        the head's vocabulary. A broken state gives none."""
        logits = logits / self._warping.temperatures
        best, at = logits.topk(min(CANDIDATES, logits.shape[-1]), dim=-1)
        logs, rest = self._warping.logs(best, log_normalizer(logits))
        ids = at if self._head.token_ids is None else self._head.token_ids[at]
        if self._sampled:
            logs = logs.double()  # the draw is to follow its law to the last bit
            self._laws.append((ids, logs))
        if self._luck is not None:
            favours = logs + self._luck(ids, logs, place)
            logs = favours - torch.logaddexp(log_normalizer(favours), rest)[..., None]
        return ids, logs.nan_to_num(nan=-torch.inf, posinf=-torch.inf), at

    def _chosen(
        self, ids: torch.Tensor, scores: torch.Tensor, at: torch.Tensor, paths: torch.Tensor, place: int
    ) -> tuple[Level, torch.Tensor]:
        """The best of all candidates of each text, and their places in the head's vocabulary."""
        texts, _, count = scores.shape
        whole = (paths[..., None] + scores).view(texts, -1)
        values, numbers = whole.topk(min(self._width, whole.shape[1]), dim=-1)
        tokens = ids.view(texts, -1).gather(1, numbers).masked_fill(values <= IMPOSSIBLE, NO_TOKEN)
        ended = (tokens[..., None] == self._ends).any(dim=-1) | (self._depths <= place + 1)
        own = scores.view(texts, -1).gather(1, numbers)
        return Level(tokens, numbers // count, own, values, ended), at.view(texts, -1).gather(1, numbers)

    def law(self, text: int, place: int) -> Distribution:
        """What the token at a place was drawn from."""
        ids, logs = (each[text, 0].numpy(force=True) for each in self._laws[place])
        possible = np.flatnonzero(np.exp(logs) > 0)
        order = possible[np.argsort(ids[possible])]
        return Distribution(ids[order], np.exp(logs[order]))


def trees(levels: Sequence[Level], source: str, *, whole_beams: bool) -> list[DraftTree]:
    """The draft of each text: everything that was chosen, or with ``whole_beams`` only what leads to a beam's end."""
    tokens, above, ended, scores = _on_host(levels)
    texts, length, width = tokens.shape
    real = tokens != NO_TOKEN
    if whole_beams:
        real &= _leading(above, real & ended)
    flat = real.reshape(texts, -1)
    numbers = flat.cumsum(axis=1) - 1
    rows = np.zeros(tokens.shape, np.int64)
    rows[:, 1:] = above[:, 1:] + np.arange(length - 1)[:, None] * width
    parents = np.take_along_axis(numbers, rows.reshape(texts, -1), axis=1)
    parents[:, :width] = ROOT
    whole = tokens.reshape(texts, -1), parents, np.minimum(scores, 0.0).reshape(texts, -1)
    found = list[DraftTree]()
    for text, kept in enumerate(flat):
        ids, above_each, worth = (column[text][kept] for column in whole)
        found.append(DraftTree(tokens=ids, parents=above_each, scores=worth, sources=(source,) * len(ids)))
    return found


def _on_host(levels: Sequence[Level]) -> tuple[Ints, Ints, Bools, Floats]:
    """Tokens, numbers of beams above, ends and scores, ``[texts, length, width]``, in one transfer. A narrow first
    level is filled up."""
    first, width = levels[0].tokens, max(level.tokens.shape[1] for level in levels)
    found = torch.full((4, len(first), len(levels), width), NO_TOKEN, dtype=torch.float64, device=first.device)
    for number, level in enumerate(levels):
        for rows, values in zip(found, (level.tokens, level.above, level.ended, level.scores), strict=True):
            rows[:, number, : values.shape[1]] = values
    tokens, above, ended, scores = found.numpy(force=True)
    return tokens.astype(np.int64), np.maximum(above, 0).astype(np.int64), ended > 0, scores


def _leading(above: Ints, ends: Bools) -> Bools:
    """Which of the chosen lead to the end of a beam."""
    leading = ends.copy()
    for level in range(leading.shape[1] - 1, 0, -1):
        text, beam = np.nonzero(leading[:, level])
        leading[text, level - 1, above[text, level, beam]] = True
    return leading


def shared_luck(noises: Sequence[SharedNoise | None]) -> Luck | None:
    """The public noise of each text that is ranked by it; None where no text is. It is drawn where the candidates
    are."""
    known = [noise for noise in noises if noise is not None]
    if not known:
        return None
    rows = [number for number, noise in enumerate(noises) if noise is not None]

    def luck(ids: torch.Tensor, _: torch.Tensor, place: int) -> torch.Tensor:
        drawn = _on_cpu if ids.device.type == "cpu" else _on_device
        added = torch.zeros(ids.shape, device=ids.device)
        added[rows] = drawn(known, ids[rows], place)
        return added

    return luck


def _on_cpu(noises: Sequence[SharedNoise], ids: torch.Tensor, place: int) -> torch.Tensor:
    asked = ids.reshape(-1).numpy()
    whose = np.repeat(np.arange(len(noises)), len(asked) // len(noises))
    luck = -np.log(exponentials_of(noises, whose, asked, place))
    return torch.from_numpy(luck).float().view(ids.shape)


def _on_device(noises: Sequence[SharedNoise], ids: torch.Tensor, place: int) -> torch.Tensor:
    coins = [noise.coins(place) for noise in noises]
    return rough_gumbel(coins, ids.flatten(1)).view(ids.shape)


def drawn_luck(contexts: Sequence[Context]) -> Luck:
    """Coins of each text's own, which nothing else uses."""

    def luck(ids: torch.Tensor, _: torch.Tensor, place: int) -> torch.Tensor:
        rows = [
            -np.log(context.draft_coins(place, row.ravel()))
            for context, row in zip(contexts, ids.numpy(force=True), strict=True)
        ]
        return torch.from_numpy(np.stack(rows)).to(ids.device)[:, None]

    return luck
