"""Models that only transformers computes, in integers: layers with a state, and whatever is not built like a llama."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.errors import UnsupportedModel
from paceline.targets.base import Request
from paceline.targets.hf.path import UNTESTED_ERRORS
from paceline.targets.hf.taps import Anatomy
from paceline.targets.hf.target import HFTarget
from paceline.tree import EMPTY, ROOT, DraftTree

LEAST = 0.8
"""The least share of the weights, embeddings left out, that linear layers hold: the others stay in floats."""
PROMPT, NODES = 11, 16
"""Tokens before the tree that is tried at load, and its nodes."""


class OrdinaryIntegerTarget(HFTarget):
    """Computed by transformers' forward with products of integers, and with doubles between them (`doubles`)."""

    exact = True

    def __init__(self, like: HFTarget, *, bits: int) -> None:
        """``like`` is the same model as it was loaded, with layers that are integers by now."""
        super().__init__(like.model, name=like.name, mode=like.mode, fixed_shapes=False)
        self._bits, self._own, self.paths = bits, like.own, [like.own]
        self._own.in_doubles, self._own.anatomy = True, _anatomy(like)
        self._own.forget()
        self.context_length, self.trusted, self.limits = like.context_length, like.trusted, like.limits
        self.refused_modes, self.note = like.refused_modes, like.note
        if not self._rows_are_alike():
            raise UnsupportedModel(
                f"{self.name} cannot be quantised: its rows depend on what is computed beside them, also in doubles"
            )

    @property
    def dtype(self) -> str:
        return f"int{self._bits}"

    @torch.no_grad()
    def _rows_are_alike(self) -> bool:
        """Whether the rows of a tree have the bits of plain decoding along one of its paths."""
        text = np.arange(PROMPT + 1 + NODES) % self.vocab_size
        text, root = text[: self.context_length], int(text[PROMPT])
        prompt, nodes = text[:PROMPT], text[PROMPT + 1 :]
        chain = DraftTree.chain(nodes)
        forked = DraftTree.build(nodes, [max(ROOT, node - 2) for node in range(len(nodes))])
        reach = self.reach(len(prompt))
        tree = (forked if reach.trees else chain).head(NODES, depth=reach.depth) if len(nodes) else EMPTY
        rows = self.open()
        self.forward([Request.of_prompt(rows, prompt)])
        rows.keep(range(len(prompt)))
        together = self.forward([Request.of_tree(rows, root, tree)])[0].logits
        rows.keep([])
        path = [ROOT, *(tree.path(len(tree) - 1) if len(tree) else ())]
        alone = list[torch.Tensor]()
        for node in path:
            token = root if node == ROOT else int(tree.tokens[node])
            alone.append(self.forward([Request.of_tree(rows, token, EMPTY)])[0].logits[0])
            rows.keep([0])
        rows.close()
        return torch.equal(together[[node + 1 for node in path]], torch.stack(alone))


def _anatomy(target: HFTarget) -> Anatomy:
    """That of a model whose layers are others than before."""
    found = Anatomy(target.model)
    found.scale = target.anatomy.scale
    return found


@torch.no_grad()
def obstacle_to_doubles(target: HFTarget) -> str | None:
    """Why a model does not compute in doubles, tried before its layers are replaced."""
    target.own.in_doubles = True
    rows = target.open()
    try:
        with target.using(target.own):
            target.forward([Request.of_prompt(rows, np.arange(2) % target.vocab_size)])
    except UNTESTED_ERRORS as error:
        return f"it does not compute in doubles ({str(error).splitlines()[0]})"
    finally:
        rows.close()
        target.own.in_doubles = False
    return None


def share_of_products(model: nn.Module, *, exactly: bool = True) -> float:
    """The share of the weights, embeddings left out, that linear layers hold; not ``exactly``, those of other kinds,
    too."""
    parts = list(model.modules())
    ours: list[Any] = [part for part in parts if (type(part) is nn.Linear if exactly else isinstance(part, nn.Linear))]
    linear = {id(part.weight): part.weight.numel() for part in ours}
    embedded = {id(weight) for part in parts if isinstance(part, nn.Embedding) for weight in part.parameters()}
    others = sum(
        weight.numel() for weight in model.parameters() if id(weight) not in linear and id(weight) not in embedded
    )
    held: int = sum(count for key, count in linear.items() if key not in embedded)
    return held / max(1, held + others)
