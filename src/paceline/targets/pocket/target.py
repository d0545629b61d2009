"""A bundled model on a CPU as a target."""

from __future__ import annotations

from typing import Any

from paceline.targets.hf.lean import Lean
from paceline.targets.hf.own import OwnForward
from paceline.targets.hf.path import ForwardJob, ForwardPath, Found
from paceline.targets.hf.probe_rows import use_compiled
from paceline.targets.hf.target import HFTarget
from paceline.targets.pocket.llama import BundledForCausalLM, as_transformers


class BundledTarget(HFTarget):
    """Computed by the lean path alone, which tests compare with transformers' own llama. The model of transformers is
    made when it is asked for. From then on the target is one like any other: probed, with the model's own path."""

    def __init__(self, model: BundledForCausalLM, name: str) -> None:
        whole: Any = model
        super().__init__(whole, name=name, fixed_shapes=False)
        lean = Lean.of(self._own)
        assert lean is not None, "the lean path knows bundled models"
        self._lean = lean
        self.paths = [lean, _Whole(self)]

    def pack(self, *, compiled: bool = True) -> HFTarget:
        super().pack(compiled=compiled)
        use_compiled(self, self._lean)
        return self

    @property
    def own(self) -> OwnForward:
        bundled: Any = self._own.model
        with self._one_at_a_time:
            if isinstance(bundled, BundledForCausalLM):
                self._become_whole(bundled)
        return self._own

    def _become_whole(self, bundled: BundledForCausalLM) -> None:
        from paceline.targets.hf.probe import prepare

        self._own = OwnForward(as_transformers(bundled), self.switch, self.mode)
        self.paths = [self._own]
        bias = bundled.lm_head.bias
        forbidding = None if bias is None else bias.clone()
        if bias is not None:
            bias.zero_()  # the probe compares differences with the spread of the logits
        prepare(self)
        if bias is not None and forbidding is not None:
            bias.copy_(forbidding)


class _Whole(ForwardPath):
    """For what the lean path leaves to the model's own, as where somebody hooks all modules."""

    def __init__(self, target: BundledTarget) -> None:
        self._target = target

    def takes(self, job: ForwardJob) -> bool:
        return True

    def run(self, job: ForwardJob) -> Found:
        return self._target.own.run(job)
