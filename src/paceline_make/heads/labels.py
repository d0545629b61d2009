"""A model's outputs at every position of a text: its states, and the tokens with which it would continue. A draft
model may learn the continuations of another one, its target, from states of its own.

A window of n tokens is scored as one tentative chain. From each of its rows then hangs a continuation of the model's
own, a token longer with each forward. So T tokens behind n positions take T forwards of n rows, not n times T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from paceline.errors import InputError
from paceline.targets.base import Request, Rows, Target, Want
from paceline.targets.scores import Scores
from paceline_make.heads.data import TokenStream

KINDS = ("truth", "greedy", "sampled", "soft")
NOTHING = -100
"""The label of a place that nothing is learnt of."""
COLDEST, HOTTEST = 0.01, 100.0
MOST_SEED = (1 << 32) - 1
TOP = 32
"""Tokens of a law that are kept."""


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """How a text is labelled."""

    kind: str = "sampled"
    ahead: int = 5
    """Tokens that a head learns to predict behind the one that the model has chosen already."""
    temperature: float = 0.8
    window: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"labels are {', '.join(KINDS)}, not {self.kind!r}")
        if self.ahead < 1 or self.window < 2:
            raise InputError("a head learns at least 1 token ahead, in windows of at least 2")
        if self.temperature <= 0 and self.tempered:
            raise InputError(f"labels {self.kind!r} need a temperature above 0, not {self.temperature}")
        if self.temperature and not COLDEST <= self.temperature <= HOTTEST:
            raise InputError(f"labels take a temperature from {COLDEST} to {HOTTEST}, not {self.temperature}")
        if not 0 <= self.seed <= MOST_SEED:
            raise InputError(f"labels take a seed from 0 to {MOST_SEED}, not {self.seed}")

    @property
    def tempered(self) -> bool:
        """Whether they depend on the temperature."""
        return self.kind in ("sampled", "soft")

    @property
    def laws(self) -> bool:
        return self.kind == "soft"


class Labels(NamedTuple):
    """Of n positions: the states ``[n, width]``, the ``ahead + 1`` tokens that follow, with `NOTHING` where nothing is
    learnt. Of soft labels also the model's best tokens, with log-probabilities, at the places that a head predicts: the
    last ``ahead`` or all. Of whole windows also the ``text``: the token at each position."""

    states: torch.Tensor
    tokens: torch.Tensor
    law_ids: torch.Tensor | None = None
    law_logs: torch.Tensor | None = None
    text: torch.Tensor | None = None

    def rows(self, chosen: slice | torch.Tensor) -> Labels:
        return Labels(*(None if part is None else part[chosen] for part in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class HeadReading:
    """What a head reads of a text besides the tokens that follow: the target's states of these layers, side by side;
    None for the last state alone. A head that attends to a text learns from ``whole`` windows. A model that learns the
    ``next`` token, too, and not only those behind it, predicts all that follow."""

    layers: tuple[int, ...] | None = None
    whole: bool = False
    next: bool = False


class Teacher:
    """A target that labels windows of a stream. States are those of another ``reader`` where one is given."""

    def __init__(
        self,
        target: Target,
        stream: TokenStream,
        settings: LabelSettings,
        reading: HeadReading | None = None,
        reader: Target | None = None,
    ) -> None:
        self.target, self.stream, self.settings = target, stream, settings
        self.reading, self.reader = reading or HeadReading(), reader or target
        self.layers = (self.reader.layers,) if self.reading.layers is None else self.reading.layers
        self.ends = torch.tensor(sorted(target.eos) or [NOTHING])
        contexts = [each.context_length for each in (target, self.reader) if each.context_length is not None]
        self.size = min([settings.window, *(length - settings.ahead - 1 for length in contexts)])
        if self.size < 2:
            raise InputError(
                f"a context of {min(contexts)} tokens holds no window with {settings.ahead} more tokens; learn fewer "
                "ahead"
            )
        if len(self) < 1:
            raise InputError(f"the text has {len(stream)} tokens, fewer than one window; give more text")

    def __len__(self) -> int:
        """The number of windows."""
        return max(0, len(self.stream) - self.settings.ahead - 1) // self.size

    def shuffled(self) -> np.ndarray:
        """The numbers of all windows in an order of the seed's, so that the first ones are from all over the text."""
        return np.random.default_rng(self.settings.seed).permutation(len(self))

    def label(self, number: int) -> Labels:
        """One window: its labelled positions, or if windows stay whole all positions."""
        start, ahead = number * self.size, self.settings.ahead
        ids = self.stream.ids[start : start + self.size].astype(np.int64)
        rows = self.target.open(self.size * (ahead + 1))
        try:
            with torch.inference_mode():
                labels = (
                    self._truth(rows, ids, start) if self.settings.kind == "truth" else self._own(rows, ids, number)
                )
                if self.reader is not self.target:
                    labels = labels._replace(states=self._states_of_reader(ids))
        finally:
            rows.close()
        learnt = torch.from_numpy(self.stream.labelled[start + 1 : start + self.size + 1].copy())
        first = self.first
        learnt &= labels.tokens[:, first] != NOTHING
        if not self.reading.whole:
            return labels.rows(learnt)
        behind = labels.tokens[:, first:].masked_fill(~learnt[:, None], NOTHING)
        tokens = torch.cat([labels.tokens[:, :first], behind], dim=1)
        return labels._replace(tokens=tokens, text=torch.from_numpy(ids))

    @property
    def first(self) -> int:
        """The first of the tokens that follow a position, from 0, that is learnt."""
        return 0 if self.reading.next else 1

    @property
    def _hidden(self) -> frozenset[int]:
        """The states that the labelling target is asked for."""
        return frozenset(self.layers) if self.reader is self.target else frozenset()

    def _states(self, scores: Scores) -> torch.Tensor:
        """Of the width 0 where they are another's, or a head reads none."""
        parts = [scores.hidden(layer) for layer in self.layers] if self.reader is self.target else []
        return torch.cat(parts, dim=-1).clone() if parts else torch.empty(len(scores.tokens), 0)

    def _states_of_reader(self, ids: np.ndarray) -> torch.Tensor:
        """Of this window, which is all that the reader sees of the text, as the labelling target does."""
        if not self.layers:
            return torch.empty(len(ids), 0)
        rows = self.reader.open(len(ids))
        try:
            (scores,) = self.reader.score([Request.of_prompt(rows, ids, Want(hidden=frozenset(self.layers)))])
            return torch.cat([scores.hidden(layer) for layer in self.layers], dim=-1).clone()
        finally:
            rows.close()

    def _truth(self, rows: Rows, ids: np.ndarray, start: int) -> Labels:
        (scores,) = self.target.score([Request.of_prompt(rows, ids, Want(hidden=self._hidden))])
        count = self.settings.ahead + 1
        places = start + 1 + np.arange(len(ids))[:, None] + np.arange(count)
        tokens = torch.from_numpy(self.stream.ids[places].astype(np.int64))
        return Labels(self._states(scores), _until_end(tokens, self.ends))

    def _own(self, rows: Rows, ids: np.ndarray, number: int) -> Labels:
        """The model's own continuations."""
        coins = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + number)
        chain, levels = np.arange(-1, len(ids) - 1), list[torch.Tensor]()
        (scores,) = self.target.score([Request(rows, ids, chain, Want(logits=True, hidden=self._hidden))])
        states, laws = self._states(scores), list[tuple[torch.Tensor, torch.Tensor]]()
        if self.settings.laws and self.reading.next:
            laws.append(self._law(torch.as_tensor(scores.logits)))
        levels.append(self._chosen(torch.as_tensor(scores.logits), coins))
        parents, above = chain, np.arange(len(ids))
        for _ in range(self.settings.ahead):
            held = len(parents)
            parents = np.concatenate([parents, above])
            request = Request(rows, levels[-1].numpy(), parents, Want(logits=True), held=held)
            (scores,) = self.target.score([request])
            above = np.arange(held, held + len(ids))
            levels.append(self._chosen(torch.as_tensor(scores.logits), coins))
            if self.settings.laws:
                laws.append(self._law(torch.as_tensor(scores.logits)))
        tokens = _until_end(torch.stack(levels, dim=1), self.ends)
        if not laws:
            return Labels(states, tokens)
        law_ids, law_logs = (torch.stack(part, dim=1) for part in zip(*laws, strict=True))
        return Labels(states, tokens, law_ids, law_logs)

    def _chosen(self, logits: torch.Tensor, coins: torch.Generator) -> torch.Tensor:
        rows = logits.float().cpu()
        if self.settings.kind == "greedy":
            return rows.argmax(dim=-1)
        heaped = (rows / self.settings.temperature).softmax(dim=-1).cumsum(dim=-1)
        heights = torch.rand(len(rows), 1, generator=coins) * heaped[:, -1:]
        return torch.searchsorted(heaped, heights, right=True).squeeze(1).clamp_max(rows.shape[1] - 1)

    def _law(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logs = (logits.float().cpu() / self.settings.temperature).log_softmax(dim=-1)
        best, ids = logs.topk(min(TOP, logs.shape[-1]), dim=-1)
        return ids, best


def _until_end(tokens: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Tokens behind an end of the text are no labels."""
    ended = torch.isin(tokens, ends).cumsum(dim=1) - torch.isin(tokens, ends).long()
    return tokens.masked_fill(ended > 0, NOTHING)


def joined(parts: Sequence[Labels]) -> Labels:
    return Labels(*(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)))  # type: ignore[arg-type]
