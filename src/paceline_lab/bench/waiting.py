"""A target on a device that is made up: it writes what the bundled model writes, and waits instead of computing.

Its forwards take the seconds that they are given, whatever is scored, and leave the processor's cores to others but for
the small model's own few milliseconds. So it stands for an accelerator beside the cores on which the draft model runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.targets.base import Done, OnEarly, Pending, Request, Rows, Target


class Waiting(Target):
    """``seconds`` are those of a forward; the share of its exit's layer has passed when it comes to the exit."""

    def __init__(self, model: Target, seconds: float) -> None:
        self._model, self._seconds = model, seconds
        self.name = f"{model.name} on a device that is made up ({1000 * seconds:g} ms a forward)"
        self.vocab_size, self.context_length, self.eos = model.vocab_size, model.context_length, model.eos
        self.prefill_chunk = model.prefill_chunk

    @property
    def dtype(self) -> str:
        return self._model.dtype

    @property
    def layers(self) -> int:
        return self._model.layers

    def open(self, capacity: int = 0) -> Rows:
        return self._model.open(capacity)

    def fingerprint(self) -> str:
        return self._model.fingerprint()

    def submit(self, requests: Sequence[Request]) -> Pending:
        began = time.perf_counter()
        heard = [0.0]

        def later(on_early: OnEarly, share: float) -> OnEarly:
            def hear(logits: Any) -> None:
                _wait_until(began + share * self._seconds)
                at = time.perf_counter()
                on_early(logits)
                heard[0] += time.perf_counter() - at

            return hear

        asked = [
            request
            if request.on_early is None or request.want.early_exit is None
            else replace(request, on_early=later(request.on_early, request.want.early_exit / self.layers))
            for request in requests
        ]
        scores = self._model.submit(asked).result()
        _wait_until(began + self._seconds + heard[0])
        return Done(scores)


def _wait_until(moment: float) -> None:
    if (left := moment - time.perf_counter()) > 0:
        time.sleep(left)
