"""The memory of the `hf` target: what a round makes does not grow with the context."""

import gc
import sys
import weakref
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine import write
from paceline.drafters.lookup import Lookup
from paceline.targets.hf import attention
from paceline.targets.hf.target import HFTarget
from scoring import CONTEXT, filled, masked, random_tree, score, target_of, tokens


class OurAllocations(TorchDispatchMode):
    """Bytes of every tensor that code of ours brings into being: the model's own modules are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if innermost_package() == "paceline":
            given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, Tensor)}
            made = result if isinstance(result, tuple | list) else [result]
            fresh = [t for t in made if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given]
            self.sizes += [t.untyped_storage().nbytes() for t in fresh]
        return result


def innermost_package() -> str:
    """By the names of modules: a folder named paceline may hold the whole environment, transformers too."""
    frame = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).split(".")[0]
        if package in ("paceline", "transformers"):
            return package
        frame = frame.f_back
    return ""


def largest_at(target: HFTarget, length: int) -> int:
    """The largest tensor of ours in a round at this context length, when buffers have their size."""
    rows, tree = filled(target, tokens(length), capacity=length + 20), random_tree(0, 12)
    score(target, rows, 1, tree)
    with OurAllocations() as ours:
        score(target, rows, 1, tree)
        rows.keep([0, 2, 5])
    return max(ours.sizes)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that walks its keys in blocks has many of them at either length."""
    monkeypatch.setattr(attention, "KEY_BLOCK", 64)


TARGETS = {
    "full": lambda: target_of("llama"),
    "windows": lambda: target_of("mistral"),
    "soft-cap": lambda: target_of("gemma2"),
    "sinks": lambda: target_of("gpt_oss"),
    "own attention": lambda: target_of("falcon"),
    "windows by mask": lambda: masked("mistral"),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_round_makes_nothing_that_grows_with_the_context(kind: str) -> None:
    target = TARGETS[kind]()
    assert largest_at(target, 200) == largest_at(target, 2000)


def test_what_grows_with_the_context_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(_: object, slot: object, rows: int, columns: int, like: Tensor) -> Tensor:
        return like.new_empty(rows, columns)

    monkeypatch.setattr(attention.MaskScratch, "take", forgetful)
    target = target_of("llama")
    assert largest_at(target, 2000) > 5 * largest_at(target, 200)


def test_what_transformers_copies_is_not_ours_whatever_the_folder_is_called() -> None:
    made = compile("import torch; torch.ones(1000)", "/paceline/site-packages/transformers/integrations.py", "exec")
    for module, sizes in (("transformers.integrations", []), ("paceline.targets", [4000])):
        with OurAllocations() as ours:
            exec(made, {"__name__": module})
        assert ours.sizes == sizes


def test_a_long_text_stays_in_the_memory_set_aside_for_it() -> None:
    target = target_of("llama")
    rows = target.open(600)
    session = write(target, tokens(CONTEXT), Lookup(), rows=rows, max_new_tokens=500)
    assert len(session.context.emitted) == 500
    assert {layer.capacity for layer in rows.layers.values()} == {600}


@pytest.mark.parametrize("kind", TARGETS)
def test_rows_that_are_dropped_are_gone_at_once(kind: str) -> None:
    """Without a garbage collection, which may be a long time away."""
    target = TARGETS[kind]()
    gc.disable()
    try:
        rows = filled(target, tokens(CONTEXT))
        score(target, rows, 1)
        gone = weakref.ref(rows)
        del rows
        assert gone() is None
    finally:
        gc.enable()
