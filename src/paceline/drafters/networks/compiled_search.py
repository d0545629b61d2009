"""A search with a head as one compiled call, beside a target whose forward is one.

Called one by one, the operations of a small head take several times as long as its arithmetic. So a head writes down
what it computes for a level (`LevelSteps`), and compiled code computes it, draws and chooses (`fused.beams`). Its
matrices are 8-bit integers, as in `compiled`. Loads numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, Self, cast

import numpy as np
import torch
from torch import nn

from paceline.drafters.networks.compiled import integer_weights
from paceline.drafters.networks.residual import Block
from paceline.drafters.networks.search import KnownTokens
from paceline.law import Draw
from paceline.law.draws import COLDEST
from paceline.law.outlook import CANDIDATES, NO_TOKEN
from paceline.targets.base import Target
from paceline.targets.cache import persistent_tensors
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.beams import searched
from paceline.targets.hf.fused.drafting import fill_race
from paceline.targets.hf.fused.stages import reach, size_of
from paceline.targets.hf.fused.team import TEAM, Table
from paceline.targets.hf.fused.weights import Weights
from paceline.targets.hf.integers.kernels import obstacle
from paceline.targets.hf.threads import compiled_threads
from paceline.tree import Ints

KEPT = 8
"""Shapes of searches whose memory is kept."""
PLACES = 4
"""Of a level's tree: tokens, beams above, ends and scores."""


class SteppedHead(Protocol):
    """A head that writes down its steps, level by level. `token_ids` are those of `PathHead`."""

    token_ids: torch.Tensor | None

    @property
    def shape(self) -> KnownTokens: ...

    def steps(self, made: LevelSteps, level: int) -> None: ...


@dataclass(frozen=True)
class BeamText:
    """One text of a search: its last token, how its tokens are drawn, how many levels it gets, and its ends."""

    root: int
    draw: Draw
    depth: int
    ends: Ints


class HeadMemory:
    """What the searches with one head share, since one runs at a time: the weights of its linear layers, each rounded
    once, and room for the most beams so far."""

    def __init__(self) -> None:
        self._weights: dict[nn.Module, Weights] = {}
        self._rooms: dict[str, torch.Tensor] = {}

    def weights(self, layer: nn.Module) -> Weights:
        if layer not in self._weights:
            self._weights[layer] = integer_weights(layer)
        return self._weights[layer]

    def room(self, name: str, beams: int, channels: int) -> torch.Tensor:
        """Searches of fewer beams hold the smaller room that they were made with."""
        if name not in self._rooms or len(self._rooms[name]) < beams:
            self._rooms[name] = torch.zeros(beams, channels, dtype=torch.float32, device="cpu")
        return self._rooms[name][:beams]


class LevelSteps:
    """The steps of a head, and the memory that they work in: matrices ``[beams, channels]``."""

    def __init__(self, memory: HeadMemory, texts: int, width: int, channels: int, embedded: int, known: int) -> None:
        self._memory = memory
        self._beams, self._most = texts * width, 1
        self._room: dict[str, torch.Tensor] = {}
        self._held: list[torch.Tensor] = []
        self._steps: list[Table] = []
        self._form = at.BYTES
        self.hidden, self.embedded = self.room("hidden", channels), self.room("embedded", embedded)
        """What the target's head read for the last token of each text, and the embedding of each beam's last token."""
        self._logits = self.room("logits", known)
        self.above = np.zeros(self._beams, np.int64)
        """The beam of the level above that each continues."""
        self.owner = np.arange(self._beams) // width
        """The text of each beam."""

    def room(self, name: str, channels: int) -> torch.Tensor:
        """Memory under a name, the same at every level."""
        if name not in self._room:
            self._room[name] = self._memory.room(name, self._beams, channels)
        return self._room[name]

    def copied(
        self, given: torch.Tensor, into: torch.Tensor, *, of: Ints | None = None, added: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rows of another matrix: those of the same number, or those that ``of`` says."""
        self._step(given, into, added=added)[at.OF_ROW] = 0 if of is None else of.ctypes.data
        return into

    def multiplied(
        self,
        given: torch.Tensor,
        layer: nn.Module,
        into: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        added: torch.Tensor | None = None,
        active: bool = False,
        beside: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A linear layer's outputs. To them is ``added`` before SiLU, if they are ``active``, and ``beside`` behind."""
        step, weights = self._step(given, into, added=added, active=active, beside=beside), self._memory.weights(layer)
        bias = cast("torch.Tensor | None", layer.bias) if bias is None else bias
        wide = None if bias is None else bias.detach().float().contiguous()
        self._held += [part for part in (weights.memory, weights.scales, wide) if part is not None]
        self._form, self._most = weights.kind.form, max(self._most, weights.inputs)
        step[at.MATRIX : at.MATRIX + at.LINEAR] = weights.at(0, 0 if wide is None else wide.data_ptr())
        return into

    def block(self, block: nn.Module, given: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """A residual block."""
        assert isinstance(block, Block)
        if block.res_connection is None:
            return self.multiplied(given, block.linear, into, active=True, beside=given)
        beside = self.multiplied(given, block.res_connection, self.room("beside", into.shape[1]))
        return self.multiplied(given, block.linear, into, active=True, beside=beside)

    def scored(self, given: torch.Tensor, output: nn.Module) -> None:
        """The logits of a level, by an output matrix or two thin ones."""
        *before, last = [part for part in output.modules() if not isinstance(part, nn.Sequential | nn.Dropout)]
        for part in before:
            given = self.multiplied(given, part, self.room("thin", int(cast("int", part.out_features))))
        self.multiplied(given, last, self._logits)

    def _step(
        self,
        given: torch.Tensor,
        into: torch.Tensor,
        *,
        added: torch.Tensor | None = None,
        active: bool = False,
        beside: torch.Tensor | None = None,
    ) -> Table:
        step = np.zeros(at.HEAD_STEP, np.int64)
        named = {at.FROM: given, at.INTO: into, at.ADDED: added, at.BESIDE: beside}
        for place, matrix in named.items():
            if matrix is not None:
                step[place], step[place + 1] = matrix.data_ptr(), matrix.stride(0)
        step[at.INPUTS], step[at.OUTPUTS], step[at.ACTIVE] = given.shape[1], into.shape[1], active
        self._steps.append(step)
        return step

    def taken(self) -> Table:
        """The steps since the last call, as a table."""
        found, self._steps = np.stack(self._steps), []
        return found

    def into(self, job: Table) -> list[torch.Tensor]:
        """Addresses of memory; returns what has to be held."""
        size = int(size_of.py_func(reach.py_func(self._most, self._form), self._form))
        prepared = torch.empty(self._beams * size, dtype=torch.int8, device="cpu")
        steps = torch.empty(self._beams, dtype=torch.float32, device="cpu")
        job[at.PREPARED], job[at.STEPS], job[at.FORM] = prepared.data_ptr(), steps.data_ptr(), self._form
        job[at.STATES], job[at.WIDTH] = self.embedded.data_ptr(), self.embedded.shape[1]
        job[at.LOGITS], job[at.VOCABULARY] = self._logits.data_ptr(), self._logits.shape[1]
        job[at.ABOVE] = self.above.ctypes.data
        return [prepared, steps]


class _Beams:
    """Searches of one shape: their steps, and their memory."""

    def __init__(
        self,
        head: SteppedHead,
        memory: HeadMemory,
        texts: int,
        width: int,
        length: int,
        channels: int,
        embedded: int,
    ) -> None:
        known, beams, threads = head.shape.known, texts * width, compiled_threads()
        self._made = LevelSteps(memory, texts, width, channels, embedded, known)
        self.threads = threads
        self._tables = list[Table]()
        for level in range(length):
            head.steps(self._made, level)
            self._tables.append(self._made.taken())
        levels = [(table.ctypes.data, len(table)) for table in self._tables]
        self._levels = np.array(levels, np.int64)
        self._tokens, self._counts = np.zeros(beams, np.int64), np.zeros(beams, np.int64)
        self._paths, self._lately = np.zeros(beams), np.zeros(beams)
        self._best, self._chances = np.zeros((beams, width), np.int64), np.zeros((beams, width))
        self._own = np.zeros((threads, 2 * CANDIDATES), np.int64)
        self._races = np.zeros((texts, at.RACE), np.int64)
        self._found = np.zeros((PLACES, texts, length, width))
        self._known = None if head.token_ids is None else head.token_ids.long().contiguous()
        self._job = self._table()
        self._held = self._made.into(self._job)

    def _table(self) -> Table:
        job = np.zeros(at.JOB, np.int64)
        _, texts, length, width = self._found.shape
        job[at.FUNCTION], job[at.THREADS] = searched(), self.threads
        job[at.CHAINS], job[at.DEPTH], job[at.BEAMS] = texts, length, width
        arrays = {
            at.LEVELS: self._levels,
            at.TOKENS: self._tokens,
            at.CHOICE: self._counts,
            at.PATHS: self._paths,
            at.CHANCES: self._lately,
            at.BEST: self._best,
            at.BEST_CHANCES: self._chances,
            at.DRAWN: self._own,
            at.RACES: self._races,
            at.DRAFTED: self._found,
        }
        for place, array in arrays.items():
            job[place] = array.ctypes.data
        job[at.KNOWN] = 0 if self._known is None else self._known.data_ptr()
        return job

    def run(self, hidden: torch.Tensor, texts: Sequence[BeamText], embedding: Table) -> torch.Tensor:
        """The levels, packed, as those of `BeamSearch`."""
        self._made.hidden[: len(texts)] = hidden
        self._tokens[: len(texts)] = [text.root for text in texts]
        self._lately[: len(texts)] = 0.0
        self._races[:] = 0
        for line, text in zip(self._races, texts, strict=True):
            fill_race(line, text.draw, text.depth, text.ends)
            line[at.SIZE_OF_RACE] = self._job[at.VOCABULARY]
        temperatures = self._races.view(np.float64)[:, at.TEMPERATURE]
        np.maximum(temperatures, COLDEST, out=temperatures)  # all but the best would weigh the same
        self._found[:] = NO_TOKEN
        self._job[at.EMBEDDING], self._job[at.NARROW_EMBEDDING] = embedding.ctypes.data, embedding.dtype == np.int16
        TEAM.run(self._job)
        return torch.from_numpy(self._found.copy())


class CompiledSearch:
    """Searches with one head beside one target. Their memory is kept, so threads whose texts share a drafter search one
    after another."""

    def __init__(self, head: SteppedHead, target: Target) -> None:
        self._head, self._target = head, target
        self._memory = HeadMemory()
        self._known: dict[tuple[int, int, int], _Beams] = {}
        self._lock = Lock()

    @classmethod
    def of(cls, head: object, target: Target) -> Self | None:
        """None where head or target are of another kind, or numba fails."""
        if not target.compiled or not hasattr(head, "steps") or obstacle() is not None:
            return None
        try:
            searched()
        except Exception:  # compilers raise errors of every kind
            return None
        return cls(cast("SteppedHead", head), target)

    def __call__(self, hidden: torch.Tensor, texts: Sequence[BeamText], width: int) -> torch.Tensor | None:
        """The levels, packed; None where the target's embeddings cannot be read now."""
        embedding = self._target.embedding_rows
        if embedding is None or len(embedding) < self._target.vocab_size:
            return None
        key = len(texts), width, max(text.depth for text in texts)
        with self._lock, persistent_tensors():
            known = self._known.pop(key, None)
            if known is None or known.threads != compiled_threads():
                known = _Beams(self._head, self._memory, *key, hidden.shape[1], embedding.shape[1])
            self._known[key] = known  # the last of all
            if len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
            return known.run(hidden, texts, embedding)
