"""The seconds of the start of a program, step by step: libraries, the device, the weights, the probe, the first texts.

Nothing heavy is imported here, so that in a fresh process the imports can be timed as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

PROMPT = "The old house stood at the end of the lane, and"
TOKENS = 8
TEXTS = 2
"""The first one may compile and record; the second one shows what is left."""


def load_in_steps(model: str, *, device: str, dtype: str | None = None) -> Iterator[tuple[str, float]]:
    """Each step with its seconds, when it is done. Call it first in a fresh process: what is imported already takes no
    time. The probe at load is a separate step if a model has one."""
    yield "import torch", _seconds(lambda: import_module("torch"))
    torch = import_module("torch")
    place = torch.device(device)
    if place.type == "cuda":
        yield "CUDA context", _seconds(lambda: torch.ones(1, device=place).sum().item())
        yield "import transformers", _seconds(lambda: import_module("transformers").LlamaForCausalLM)
    yield "import paceline", _seconds(_import_ours)
    with _timed_probe() as probe:
        from paceline.api.model import load

        started = time.perf_counter()
        lm = load(model, device=device, dtype=dtype)
        took = time.perf_counter() - started
    yield "weights", took - sum(probe)
    if probe:
        yield "probe", sum(probe)
    for number in range(1, TEXTS + 1):
        settings: Any = {"max_new_tokens": TOKENS, "ignore_eos": True, "seed": number, "temperature": 0.8}
        took = _seconds(lambda how=settings: lm.generate(PROMPT, **how))  # type: ignore[misc]
        yield f"text {number}, {TOKENS} tokens", took


def _import_ours() -> None:
    for name in ("api.model", "targets.pocket.open", "targets.hf.probe", "engine.serial", "drafters.auto"):
        import_module(f"paceline.{name}")


@contextmanager
def _timed_probe() -> Iterator[list[float]]:
    """The seconds of every probe meanwhile."""
    from paceline.targets.hf import probe

    seconds, prepare = list[float](), probe.prepare

    def timed(target: Any) -> Any:
        started = time.perf_counter()
        try:
            return prepare(target)
        finally:
            seconds.append(time.perf_counter() - started)

    probe.prepare = timed
    try:
        yield seconds
    finally:
        probe.prepare = prepare


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
