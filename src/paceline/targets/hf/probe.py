"""At load: how may drafts reach this model, and does a row depend on what else is in the forward?

One root is scored under two different drafts and after the same prefix one row at a time. If its row changes with the
draft (a capacity-limited mixture of experts, activations quantised per tensor, a position bias built from the key
length, rotary frequencies that follow the largest position), speculation would change the text. Then drafts are
clipped to what the model can score faithfully, or the model is refused.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from paceline.targets.base import Reach, Request, Scores
from paceline.targets.hf.forward import Mode, Unsupported
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree, Ints

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}
"""Of the logits' standard deviation: far above what other kernels do to a row, far below what another context does."""

PREFIX, DRAFT = 6, 5


def prepare(target: HFTarget) -> HFTarget:
    """Find the best mode in which the model's rows can be trusted; warns where drafts are clipped, raises where none
    can be trusted."""
    reasons: list[str] = []
    for mode in Mode:
        target.mode = mode
        target.limits = Reach(trees=mode is not Mode.CHAINED)
        try:
            _windows_agree(target)
            if _rows_agree(target, _tree_draft(target)) and _rows_agree(target, _chain_draft(target)):
                return _find_switch(target)
            if _rows_agree(target, _chain_draft(target)):
                target.limits = Reach(trees=False)
                _warn(target, "scores sibling drafts wrongly, so drafts are clipped to chains")
                return _find_switch(target)
            reasons.append(f"{mode}: a row changes with the rest of its draft")
        except (
            Unsupported,
            TypeError,
            ValueError,
            RuntimeError,
            IndexError,
            AttributeError,
            AssertionError,
        ) as error:
            reasons.append(f"{mode}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    raise ValueError(
        f"{target.name} cannot be drafted for without changing its text ({'; '.join(reasons)}); choose another model"
    )


def _windows_agree(target: HFTarget) -> None:
    """The attention function must be told of every window that the configuration speaks of."""
    if target.mode is not Mode.PACKED:
        return
    rows = target.open(1)
    request = Request.of_prompt(rows, _tokens(target, 1))
    seen = target.windows(request)
    expected = [target.window if kind == "sliding_attention" else None for kind in target.layer_types]
    if not seen:
        raise Unsupported("the model does not call the registered attention function")
    if seen != expected:
        raise Unsupported(f"layers ask for windows {seen} where the configuration says {expected}")


def _tokens(target: HFTarget, count: int, salt: int = 0) -> Ints:
    return np.random.default_rng(20 + salt).integers(0, target.vocab_size, count)


def _chain_draft(target: HFTarget) -> tuple[DraftTree, DraftTree]:
    return DraftTree.chain(_tokens(target, DRAFT, 1)), DraftTree.chain(_tokens(target, DRAFT, 2))


def _tree_draft(target: HFTarget) -> tuple[DraftTree, DraftTree]:
    tokens = _tokens(target, DRAFT, 3)
    return DraftTree.build(tokens, (-1, -1, 0, 1, 2)), DraftTree.chain(_tokens(target, DRAFT, 2))


def _rows_agree(target: HFTarget, drafts: tuple[DraftTree, DraftTree], shift: int = 0) -> bool:
    """The root under both drafts, and every node of the first against its path scored one row at a time."""
    prefix = _tokens(target, PREFIX)
    root = int(prefix[-1])
    first, second = (_score(target, prefix, root, draft, shift) for draft in drafts)
    scale = float(first.logits.float().std()) or 1.0
    tolerance = TOLERANCE.get(target.dtype, 0.2) * scale
    if _gap(first.row(-1), second.row(-1)) > tolerance:
        return False
    return all(
        _gap(first.row(node), _stepwise(target, prefix, drafts[0], node, shift)) <= tolerance
        for node in (len(drafts[0]) - 1, len(drafts[0]) - 2)
    )


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    gap = (one.float() - other.float()).abs().max()
    return float(gap) if torch.isfinite(gap) else float("inf")


def _score(target: HFTarget, prefix: Ints, root: int, draft: DraftTree, shift: int) -> Scores:
    rows = target.open(len(prefix) + len(draft) + 1)
    target.forward([Request.of_prompt(rows, prefix[:-1])], shift=shift)
    rows.keep(range(len(prefix) - 1))
    return target.forward([Request.of_tree(rows, root, draft)], shift=shift)[0]


def _stepwise(target: HFTarget, prefix: Ints, draft: DraftTree, node: int, shift: int) -> torch.Tensor:
    """The row after ``node`` when everything is fed one token at a time, as plain decoding would."""
    rows = target.open(len(prefix) + len(draft))
    target.forward([Request.of_prompt(rows, prefix[:-1])], shift=shift)
    rows.keep(range(len(prefix) - 1))
    for token in (int(prefix[-1]), *draft.tokens[draft.path(node)].tolist()):
        scores = target.forward([Request.of_tree(rows, token, DraftTree.chain([]))], shift=shift)[0]
        rows.keep([0])
    return scores.row(-1)


def _find_switch(target: HFTarget) -> HFTarget:
    """Rotary embeddings that change with the largest position in a forward: find where, and stop drafts short of it."""
    switch = _rope_switch(target.model.config.get_text_config())
    if switch is None or switch <= PREFIX + DRAFT:
        return target
    chain = _chain_draft(target)[0]
    across = switch - PREFIX - 2
    if not _rows_agree(target, (chain, chain.head(0)), across):
        target.switch = switch
        beyond = _rows_agree(target, (chain, chain.head(0)), switch + PREFIX)
        target.limits = Reach(trees=target.limits.trees, depth=None if beyond else 0)
        where = (
            f"stop short of position {switch}"
            if beyond
            else f"end at position {switch}, where its rotation changes"
        )
        _warn(target, f"rotates keys by the largest position in a forward, so drafts {where}")
    return target


def _rope_switch(config: Any) -> int | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    flat = (
        parameters
        if "rope_type" in parameters
        else next((p for p in parameters.values() if isinstance(p, dict)), {})
    )
    kind = flat.get("rope_type", "default")
    if kind == "longrope":
        return flat.get("original_max_position_embeddings") or config.max_position_embeddings
    return config.max_position_embeddings if kind == "dynamic" else None


def _warn(target: HFTarget, what: str) -> None:
    warnings.warn(f"{target.name} {what}", UserWarning, stacklevel=4)
