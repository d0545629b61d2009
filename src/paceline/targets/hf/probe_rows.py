"""Rows that a probe makes, scores and compares."""

from __future__ import annotations

import torch

from paceline.targets.base import Request, Rows
from paceline.targets.hf.compiled import compiled_beside
from paceline.targets.hf.integers.kernels import short
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.path import UNTESTED_ERRORS, ForwardPath
from paceline.targets.hf.target import HFTarget
from paceline.targets.probing import DRAFT, PREFIX, branched, differ, some_tokens
from paceline.tree import DraftTree, Ints


def use_compiled(target: HFTarget, lean: Lean) -> None:
    """Use compiled forwards if their rows are those of the lean path, up to the rounding of kernels."""
    if not target.compiles:
        return
    try:
        path = compiled_beside(lean)
        if path is not None and not gap(target, _read_and_scored(target, path), _read_and_scored(target, lean)):
            path.trusted = True
            target.paths.insert(target.paths.index(lean), path)
            return
        why = "some layers are computed in another way" if path is None else "it finds other numbers than torch"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers raise errors of every kind
        why = f"numba does not compile it ({short(error)})"
    target.note = f"a forward is left to torch, for {why}"
    target.pack(compiled=False)


def agree(target: HFTarget, one: ForwardPath, other: ForwardPath, share: float) -> bool:
    """Whether two paths find the same rows, within a share of the tolerance."""
    try:
        ours, theirs = (_read_and_scored(target, path) for path in (one, other))
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, *UNTESTED_ERRORS):
        return False
    return not gap(target, ours, theirs, share)


def _read_and_scored(target: HFTarget, path: ForwardPath) -> torch.Tensor:
    """Rows of a tree behind a short text, computed by one path."""
    prefix, line, other = (tokens(target, count, salt) for salt, count in enumerate((PREFIX, DRAFT, DRAFT)))
    rows = target.open(PREFIX + 2 * DRAFT)
    with target.using(path):
        feed(target, rows, Request.of_prompt(rows, prefix[:-1]))
        found = scored(target, rows, prefix, branched(line, other))
    rows.close()
    return found


def tokens(target: HFTarget, count: int, salt: int = 0) -> Ints:
    return some_tokens(target.vocab_size, count, salt)


def feed(target: HFTarget, rows: Rows, request: Request) -> torch.Tensor | None:
    scores = target.forward([request])[0]
    rows.keep(range(len(request.tokens)))
    return None if request.prefill else scores.logits


def scored(target: HFTarget, rows: Rows, prefix: Ints, draft: DraftTree) -> torch.Tensor:
    """The rows of root and draft in one forward; leaves ``rows`` as they were."""
    logits: torch.Tensor = target.forward([Request.of_tree(rows, int(prefix[-1]), draft)])[0].logits
    rows.keep([])
    return logits


def gap(target: HFTarget, one: torch.Tensor, other: torch.Tensor, share: float = 1.0) -> bool:
    """Whether rows differ by more than the rounding of kernels."""
    return differ(one.double().numpy(force=True), other.double().numpy(force=True), target.dtype, share)
