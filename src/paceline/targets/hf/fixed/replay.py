"""The path of fixed shapes: which forwards go this way, and what happens where one cannot."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import torch

from paceline.targets.base import Request
from paceline.targets.cache import CacheRows
from paceline.targets.hf.fixed.capture import CapturesGraphs, Recorder, Uncapturable, direct, rehearse
from paceline.targets.hf.fixed.shapes import ROWS, TENTATIVE, Shape, rounds_well, slots_of
from paceline.targets.hf.fixed.slab import Slab, SlabRows
from paceline.targets.hf.fixed.standing import Standing
from paceline.targets.hf.fixed.step import Result, Step
from paceline.targets.hf.forward import Mode, Unsupported
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.own import OwnForward
from paceline.targets.hf.path import Found, Job, Path

RECORDINGS = 48
"""How many shapes are kept recorded; the one that was not used for longest goes first."""
REPLAY = 0.05
"""Of the logits' standard deviation: how far a first replay may lie from the call that it repeats, in mean square."""
COMPARED = 64
"""How many rows of it are looked at."""
UNFORESEEN = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)
"""What a GPU, or a model on one, may raise that nobody has met. A text need not end for it, but it is a fault of ours:
where there is no GPU the same code runs, and there nothing is forgiven."""


class FixedPath(Path):
    """Scores drafts from recordings. What it does not take, and what cannot be recorded, goes the model's own way, with
    the same rows."""

    def __init__(self, own: OwnForward, record: Recorder | None = None) -> None:
        device = own.model.device
        self._own = own
        self._record = record or (CapturesGraphs(device) if device.type == "cuda" else direct)
        self.forgiven: tuple[type[Exception], ...] = UNFORESEEN if device.type == "cuda" else ()
        """After which errors a forward goes the model's own way."""
        self.lean: Lean | None = None
        """What computes the model instead of itself, where that has been found equal."""
        self.slab = Slab(on_move=self.forget)
        self.recorded: OrderedDict[Shape, tuple[Step, Callable[[], Result]]] = OrderedDict()
        self.refused: str | None = None
        """Why nothing is recorded any more."""
        self._too_large: set[Shape] = set()
        self._standing: Standing | None = None
        self._told: set[str] = set()
        self._outlet: torch.Tensor | None = None

    @classmethod
    def of(cls, own: OwnForward, *, asked: bool | None, turning: bool) -> FixedPath | None:
        """The path for a model, if it is asked for, or not refused and the model lies on one CUDA device. A model that
        rotates by the largest position of a forward (``turning``) has none: filling rows would have a say in it."""
        if turning and asked:
            who = type(own.model).__name__
            warnings.warn(f"fixed shapes are not used: {who} rotates by the largest position", UserWarning, 3)
        if asked is None:
            places = {weight.device for weight in own.model.parameters()}
            asked = len(places) == 1 and next(iter(places)).type == "cuda"
        return cls(own) if asked and not turning else None

    def open(self, capacity: int = 0) -> CacheRows:
        """Rows in the slab while there is a use for it."""
        if self.refused is None:
            return self.slab.open(capacity)
        self.slab.release()
        return CacheRows(capacity)

    def apart(self, requests: Sequence[Request]) -> list[list[int]]:
        """Numbers of requests by forward. Recordings hold drafts; with a prompt among them none could be played, and
        two forwards, one of them played, take less than one that is not."""
        if self.refused is not None:
            return [list(range(len(requests)))]
        kinds = [[i for i, r in enumerate(requests) if r.prefill is prompt] for prompt in (False, True)]
        return [kind for kind in kinds if kind]

    def takes(self, job: Job) -> bool:
        if self.refused is not None or self._own.mode is not Mode.PACKED or job.want.early_exit is not None:
            return False
        if not self._own.takes_positions or not self.slab.keys or len(slots_of(job)) < len(job.requests):
            return False
        fits = all(
            not r.prefill and len(r.tokens) <= ROWS and len(r.parents) <= TENTATIVE and self._ours(r.rows)
            for r in job.requests
        )
        return fits and rounds_well(job) and not torch.is_autocast_enabled(self._own.model.device.type)

    def _ours(self, rows: object) -> bool:
        return isinstance(rows, SlabRows) and rows.slab is self.slab

    def run(self, job: Job) -> Found:
        if not self.slab.fits(max(request.end for request in job.requests)):
            return self._own.run(job)
        for request in job.requests:
            request.rows.note(request.tokens, request.held)
        shape = Shape.of(job, self.slab.capacity)
        if shape in self._too_large:
            return self._own.run(job)
        try:
            found = self._found(shape, job)
        except torch.OutOfMemoryError:
            self.forget()
            self._too_large.add(shape)
        except (Uncapturable, Unsupported) as error:
            self.give_up(str(error))
        except self.forgiven as error:
            told = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
            self.give_up(f"{told} (this is not meant to happen, please report it)")
        else:
            if found is not None:
                return self._written(found, job)
        return self._own.run(job)

    def _written(self, found: Found, job: Job) -> Found:
        for request in job.requests:
            assert isinstance(request.rows, SlabRows), "a job that was taken has slots"
            request.rows.written()
        return found

    def _found(self, shape: Shape, job: Job) -> Found | None:
        """From the recording of this shape, which is made if there is none; None of a model that must not be recorded
        as it stands."""
        played = self._played(shape, job) if shape in self.recorded else None
        if (hindrance := self.hindrance()) is not None:  # looked up while the device is at work
            self._tell(hindrance)
            return None
        return played if played is not None and shape in self.recorded else self._recorded(shape, job)

    def _played(self, shape: Shape, job: Job) -> Found:
        self.recorded.move_to_end(shape)
        step, replay = self.recorded[shape]
        step.fill(job)
        return step.pick(replay(), job)

    def hindrance(self) -> str | None:
        """Why the model is not to be recorded as it stands; what was recorded of another one is forgotten."""
        if self._standing is None or not self._standing.holds():
            self.forget()
            self._standing = Standing(self._own.model)
        return self._standing.hindrance

    def _tell(self, hindrance: str) -> None:
        if hindrance not in self._told:
            self._told.add(hindrance)
            warnings.warn(f"forwards are not recorded, which costs speed and nothing else: {hindrance}", UserWarning, 2)

    def _recorded(self, shape: Shape, job: Job) -> Found:
        """Call, record, replay; a replay that is not the call is never used again."""
        lean = self.lean if self.lean is not None and self.lean.takes(job) else None
        step = Step(self._own, self.slab, shape, lean)
        step.fill(job)
        rehearsed = rehearse(step.compute)
        expected = step.pick(rehearsed, job)
        outlet = self._outlet_for(rehearsed.logits)
        del rehearsed
        replay = self._record(partial(step.compute, outlet))
        found = step.pick(replay(), job)
        if not _agree(found, expected):
            raise Uncapturable("a replay is not what was recorded")
        self.recorded[shape] = step, replay
        while len(self.recorded) > RECORDINGS:
            self.recorded.popitem(last=False)
        return found

    def _outlet_for(self, logits: torch.Tensor) -> torch.Tensor:
        """Where recordings leave their logits: one place for all, since each alone may need a gigabyte. They are copied
        from there before the next forward."""
        outlet = self._outlet
        if outlet is None or len(outlet) < len(logits) or outlet.dtype != logits.dtype:
            with torch.inference_mode(False):
                outlet = self._outlet = torch.empty_like(logits)
        return outlet

    def forget(self) -> None:
        """Drop all recordings: buffers are about to move, or the model has changed."""
        if self.recorded and self._own.model.device.type == "cuda":
            torch.cuda.synchronize(self._own.model.device)
        self.recorded.clear()
        self._outlet = self._standing = None

    def give_up(self, reason: str) -> None:
        """From now on everything goes the model's own way. Rows stay where they are until they are closed."""
        self.refused = reason
        self.forget()
        warnings.warn(f"fixed shapes are not used, which costs speed and nothing else: {reason}", UserWarning, 2)


def _agree(found: Found, expected: Found) -> bool:
    """Of some rows of each: widened, those of a large forward would fill the memory."""
    assert found.logits is not None and expected.logits is not None
    stride = max(1, len(found.logits) // COMPARED)
    one, other = found.logits[::stride].float(), expected.logits[::stride].float()
    return bool((one - other).square().mean().sqrt() <= REPLAY * other.std(correction=0).clamp_min(1e-30))
