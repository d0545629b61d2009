"""The path of fixed shapes: which forwards are recorded and replayed, and what happens where one cannot be."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from paceline import launching
from paceline.law import kernel_rows
from paceline.once import once
from paceline.targets.base import Request, Rows
from paceline.targets.cache import CacheRows
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.hf.fixed.capture import CapturesGraphs, Leave, Recorder, Uncapturable, direct, rehearse
from paceline.targets.hf.fixed.links import DEPTH, FEWEST_LINKS, Links, LinkShape, alike, job_of
from paceline.targets.hf.fixed.recordings import Recordings
from paceline.targets.hf.fixed.shapes import LARGEST_RECORDED_ROWS, TENTATIVE, ForwardShape, rounds_well, slots_of
from paceline.targets.hf.fixed.slab import Slab, SlabRows
from paceline.targets.hf.fixed.step import Result, Step
from paceline.targets.hf.fixed.whole import Function, WholeFunctions
from paceline.targets.hf.gpu import trial
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.own import Mode, OwnForward, Unsupported
from paceline.targets.hf.path import UNTESTED_ERRORS, ForwardJob, ForwardPath, Found

T = TypeVar("T")
RECORDINGS = 48
"""Shapes of each kind whose recordings are kept."""
REPLAY = 0.05
"""How far a first replay may lie from the call that it repeats: root mean square, as a share of the logits' standard
deviation."""
NO_TOKENS = np.empty(0, np.int64)
OFF_CUDA = "the model is on no CUDA device"
COMPARED = 64
"""Rows of it that are compared."""


class FixedPath(ForwardPath):
    """Scores drafts by replaying recordings. Other forwards, and models that cannot be recorded, use the model's own
    path over the same rows."""

    def __init__(self, own: OwnForward, record: Recorder | None = None) -> None:
        device = own.model.device
        self._own = own
        self._record = record or (CapturesGraphs(device) if device.type == "cuda" else direct)
        self.forgiven: tuple[type[Exception], ...] = UNTESTED_ERRORS if device.type == "cuda" else ()
        """Errors after which the model's own path is used. They are defects of ours, but a GPU may raise what was
        never seen before, and a text need not end for that. The same code on a CPU raises them."""
        self.wholes = WholeFunctions(self._record, self.forgiven)
        self.ahead = device.type == "cuda"
        """Whether usual shapes are recorded when a model is loaded."""
        self.experts_apart = device.type == "cuda" and own.model.dtype is not torch.bfloat16
        """Whether rows multiply with copies of their experts: torch asks the device how many rows each expert has, but
        in bfloat16."""
        self.lean: Lean | None = None
        """Computes the model instead of its own forward, where the probe found both equal."""
        self.slab = Slab(on_move=self.forget)
        self.recorded = Recordings[ForwardShape, tuple[Step, Callable[[Leave], Result]]](RECORDINGS)
        self.linked = Recordings[LinkShape, tuple[Links, list[Callable[[Leave], Result]]]](RECORDINGS)
        self.refused: str | None = None
        """Why nothing is recorded any more."""
        self.without_kernels: str | None = self._without_kernels(device) if device.type == "cuda" else OFF_CUDA
        """Why layers are computed by torch's operations instead of the kernels of `gpu`."""
        self._too_large: set[Hashable] = set()
        self._warned: set[str] = set()
        self._changes = own.changes
        self._outlet: torch.Tensor | None = None

    def _without_kernels(self, device: torch.device) -> str | None:
        """Why there are none; compiles and tries them, and those of the race for a token."""
        reasons = {
            "kernels of layers": trial.obstacle(device, self._own.model.dtype),
            "kernels of the race": kernel_rows.obstacle(device),
        }
        for what, reason in reasons.items():
            if reason not in (None, launching.NOT_INSTALLED):
                warnings.warn(f"{what} are not used, which costs speed and nothing else: {reason}", UserWarning, 4)
        return reasons["kernels of layers"]

    @classmethod
    def of(cls, own: OwnForward, *, wanted: bool | None, switching: bool) -> FixedPath | None:
        """The path for a model, if it is ``wanted``; None: if the model is on one CUDA device. A model that rotates by
        the largest position of a forward (``switching``) has none: padding rows would change its rotation."""
        if switching and wanted:
            name = type(own.model).__name__
            warnings.warn(f"fixed shapes are not used: {name} rotates by the largest position", UserWarning, 3)
        if wanted is None:
            devices = {weight.device for weight in own.model.parameters()}
            wanted = len(devices) == 1 and next(iter(devices)).type == "cuda"
        return cls(own) if wanted and not switching else None

    def twin(self) -> FixedPath:
        """Another path over the same rows, which records without the kernels of `gpu`."""
        twin = FixedPath(self._own, self._record)
        twin.slab, twin.lean, twin.without_kernels = self.slab, self.lean, "another path has them"
        self.slab.on_move.append(twin.forget)
        return twin

    def open(self, capacity: int = 0) -> CacheRows:
        """Rows in the slab, as long as forwards are recorded."""
        if self.refused is None:
            return self.slab.open(capacity)
        self.slab.release()
        return CacheRows(capacity)

    def apart(self, requests: Sequence[Request]) -> list[list[int]]:
        """Numbers of requests by forward: drafts apart from prompts. Recordings hold drafts only, and two forwards of
        which one is replayed take less time than one that is not."""
        if self.refused is not None:
            return [list(range(len(requests)))]
        kinds = [[i for i, r in enumerate(requests) if r.prefill is prompt] for prompt in (False, True)]
        return [kind for kind in kinds if kind]

    def takes(self, job: ForwardJob) -> bool:
        if self.refused is not None or self._own.mode is not Mode.PACKED or job.streamed:
            return False
        if not self._own.takes_positions or not self.slab.keys or len(slots_of(job)) < len(job.requests):
            return False
        for request in job.requests:
            if not (isinstance(request.rows, SlabRows) and request.rows.slab is self.slab) or request.prefill:
                return False
            if len(request.tokens) > LARGEST_RECORDED_ROWS or len(request.parents) > TENTATIVE:
                return False
        return rounds_well(job) and not torch.is_autocast_enabled(self._own.model.device.type)

    def run(self, job: ForwardJob) -> Found:
        if not self.slab.fits(max(request.end for request in job.requests)):
            return self._own.run(job)
        for request in job.requests:
            request.rows.note(request.tokens, request.held)
        shape = ForwardShape.of(job, self.slab.capacity, any_length=self.without_kernels is None)
        found = self._tried(shape, lambda: self._found(shape, job))
        if found is None:
            return self._own.run(job)
        for request in job.requests:
            slotted(request.rows).mark_written()
        return found

    def _tried(self, shape: Hashable, function: Callable[[], T | None]) -> T | None:
        """The result of a function of recordings; None where it cannot be recorded, or must not be any more."""
        if shape in self._too_large:
            return None
        try:
            return function()
        except torch.OutOfMemoryError:
            self.forget()
            self._too_large.add(shape)
        except (Uncapturable, Unsupported) as error:
            self.step_down(str(error))
        except self.forgiven as error:
            why = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
            self.step_down(f"{why} (this is not meant to happen, please report it)")
        return None

    def drafted(self, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        depth = max((chain.depth for chain in chains), default=0)
        if any(chain.streams is not None for chain in chains):
            return None
        if not 0 < depth <= DEPTH or not self.takes(job := job_of(chains)):
            return None
        ahead = max(depth, FEWEST_LINKS)
        if not self.slab.fits(max(request.end for request in job.requests) + ahead):
            return None
        any_length = self.without_kernels is None
        first = ForwardShape.of(job, self.slab.capacity, any_length=any_length, ahead=ahead)
        shape = LinkShape.of(chains, first)
        for chain in chains:
            chain.rows.note(chain.tokens)
        drafts = self._tried(shape, lambda: self._linked(shape, chains, job))
        if drafts is None:
            for chain in chains:
                chain.rows.note(NO_TOKENS)
            return None
        for chain, draft in zip(chains, drafts, strict=True):
            self._follow(chain, draft)
        return drafts

    def played(self, key: Hashable, function: Function, given: Sequence[torch.Tensor]) -> torch.Tensor:
        """`Target.played`: recorded as long as forwards are, for it may read the model's weights."""
        autocast = torch.is_autocast_enabled(self._own.model.device.type)
        self._look()
        if self.refused is not None or autocast or self._own.obstacle is not None:
            return function(*given)
        return self.wholes.played(key, function, given)

    def _follow(self, chain: Chain, draft: ChainDraft) -> None:
        """The unread tokens are read, and all tokens of the draft but the last."""
        rows = slotted(chain.rows)
        rows.mark_written()
        rows.keep(range(len(chain.tokens)))
        rows.note(np.array(draft.tokens[:-1], np.int64))
        rows.mark_written()

    def _linked(self, shape: LinkShape, chains: Sequence[Chain], job: ForwardJob) -> list[ChainDraft] | None:
        """By the recordings of this shape, which are made if there are none; None if the model must not be recorded as
        it is."""
        if self._hindered():
            return None
        if (kept := self.linked.used(shape)) is None:
            return self._recorded_links(shape, chains, job)
        links, plays = kept
        links.fill(chains, job)
        links.play(plays, max(chain.depth for chain in chains))
        return links.read(chains, job)

    def _recorded_links(self, shape: LinkShape, chains: Sequence[Chain], job: ForwardJob) -> list[ChainDraft]:
        """Call, record, play; a draft that differs from the one that was called is never played again."""
        least = max(FEWEST_LINKS, *(chain.depth for chain in chains))  # links of both kinds are tried
        with once():
            links = Links(shape, self._step)
            links.fill(chains, job)
            rehearse(partial(links.play, links.functions, least))
            expected = links.levels(job, least)
            plays = list[Callable[[Leave], Result]]()
            for function in links.functions:
                links.fill(chains, job)  # recording moves it on
                plays.append(self._record(function))
        links.fill(chains, job)
        links.play(plays, least)
        if not alike(links.levels(job, least), expected):
            raise Uncapturable("a draft that is played is not what was recorded")
        self.linked.keep(shape, (links, plays))
        return links.read(chains, job)

    def _step(self, shape: ForwardShape) -> Step:
        lean = self.lean if self.lean is not None and self.lean.ready() else None
        kernels = self.without_kernels is None
        return Step(self._own, self.slab, shape, lean, kernels=kernels, apart=self.experts_apart)

    def _found(self, shape: ForwardShape, job: ForwardJob) -> Found | None:
        """From the recording of this shape, which is made if there is none; None if the model must not be recorded as
        it is."""
        if self._hindered():
            return None
        if (recorded := self.recorded.used(shape)) is None:
            return self._recorded(shape, job)
        step, replay = recorded
        step.fill(job)
        return step.found(replay, job, job.hear)

    def _look(self) -> None:
        """Drop recordings of a model that has changed."""
        if self._changes != self._own.changes:
            self._changes = self._own.changes
            self.forget()

    def _hindered(self) -> bool:
        """Whether the model must not be recorded as it is; each reason is said once."""
        self._look()
        obstacle = self._own.obstacle
        if obstacle is not None and obstacle not in self._warned:
            self._warned.add(obstacle)
            warnings.warn(f"forwards are not recorded, which costs speed and nothing else: {obstacle}", UserWarning, 2)
        return obstacle is not None

    def _recorded(self, shape: ForwardShape, job: ForwardJob) -> Found:
        """Call, record, replay; a replay that differs from the call is never used again."""
        with once():
            step = self._step(shape)
            step.fill(job)
            expected = rehearse(partial(step.found, step.compute, job))
            assert expected.logits is not None, "all rows are wanted"
            outlet = self._outlet_for(shape.count * shape.rows, expected.logits)
            replay = self._record(partial(step.compute, outlet=outlet))
        found = step.found(replay, job, job.hear)
        if not _agree(found, expected):
            raise Uncapturable("a replay is not what was recorded")
        self.recorded.keep(shape, (step, replay))
        return found

    def _outlet_for(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """The memory in which recordings leave their logits: one for all, since each may need a gigabyte. They are
        copied before the next ones come."""
        outlet = self._outlet
        if outlet is None or len(outlet) < rows or outlet.dtype != like.dtype:
            with torch.inference_mode(False):
                outlet = self._outlet = like.new_empty((rows, like.shape[1]))
        return outlet

    def forget(self) -> None:
        """Drop all recordings, before buffers move or after the model has changed."""
        if (self.recorded or self.linked or self.wholes.recorded) and self._own.model.device.type == "cuda":
            torch.cuda.synchronize(self._own.model.device)
        self.recorded.clear()
        self.linked.clear()
        self.wholes.forget()
        self._outlet = None

    def step_down(self, reason: str) -> None:
        """Record without kernels from now on, or not at all where that was so."""
        if self.without_kernels is not None:
            self.give_up(reason)
            return
        self.without_kernels = reason
        self.forget()
        warnings.warn(f"kernels are not used, which costs speed and nothing else: {reason}", UserWarning, 2)

    def give_up(self, reason: str) -> None:
        """Use the model's own path from now on. Rows stay in the slab until they are closed."""
        self.refused = reason
        self.forget()
        warnings.warn(f"fixed shapes are not used, which costs speed and nothing else: {reason}", UserWarning, 2)


def slotted(rows: Rows) -> SlabRows:
    assert isinstance(rows, SlabRows), "a job that was taken has slots"
    return rows


def _agree(found: Found, expected: Found) -> bool:
    """Compares some rows of each: all rows of a large forward in float32 would fill the memory."""
    pairs = [(found.logits, expected.logits), (found.taps.early, expected.taps.early)]
    return all(_close(one, other) for one, other in pairs)


def _close(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    stride = max(1, len(one) // COMPARED)
    one, other = one[::stride].float(), other[::stride].float()
    return bool((one - other).square().mean().sqrt() <= REPLAY * other.std(correction=0).clamp_min(1e-30))
