"""Scoring random drafts on the tiny models, and the logits of a model alone."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from families import VOCAB, WINDOW, build
from paceline.context import Context
from paceline.drafters import Budget, Drafter
from paceline.targets.base import NOTHING, Request, Rows, Want
from paceline.targets.hf.fixed.capture import Recorder
from paceline.targets.hf.fixed.replay import FixedPath
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.load import load_target
from paceline.targets.hf.own import Mode
from paceline.targets.hf.target import HFTarget
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, ROOT, DraftTree, Ints
from tape import taped

CLOSE = 1e-4
"""Of the logits' deviation: what kernels of other shapes may change in float32."""
SEEN = 100 * CLOSE
"""What a mistake must change, so that the tests that ask for `CLOSE` are known to see it."""

CONTEXT = 4 * WINDOW - 1


def load_quietly(model: PreTrainedModel, **options: Any) -> HFTarget:
    """Without the warning that drafts are clipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return load_target(model, **options)


@cache
def target_of(name: str) -> HFTarget:
    return load_quietly(build(name))


@cache
def masked(name: str) -> HFTarget:
    """The same model as if it did not know of registered attention functions."""
    return HFTarget(build(name), mode=Mode.MASKED)


def recorded(
    model: PreTrainedModel, record: Recorder = taped, *, lean: bool = False, kernels: bool = False
) -> HFTarget:
    """A target whose drafts are recorded and replayed; on the CPU this has to be asked for."""
    target = HFTarget(model, fixed_shapes=True)
    target.fixed = FixedPath(target.own, record)
    if kernels:
        target.fixed.without_kernels = None
    target.fixed.lean = Lean.of(target.own) if lean else None
    target._one_at_a_time = target.fixed.slab.lock
    target.paths = [target.fixed, target.own]
    return target


def path_of(target: HFTarget) -> FixedPath:
    assert target.fixed is not None
    return target.fixed


def tokens(count: int, seed: int = 0) -> Ints:
    return np.random.default_rng(seed).integers(1, VOCAB, count)


def random_tree(seed: int, size: int | None = None) -> DraftTree:
    """Branches of mixed depth: some nodes go on where the last one ended, the others anywhere."""
    random = np.random.default_rng(seed)
    size = size or int(random.integers(6, 15))
    parents = [i - 1 if random.random() < 0.4 else int(random.integers(-1, i)) if i else ROOT for i in range(size)]
    return DraftTree.build(random.integers(1, VOCAB, size), parents)


def draft_for(target: HFTarget, seed: int) -> DraftTree:
    """A random tree, or a random chain where the model is not trusted with siblings."""
    tree = random_tree(seed)
    return tree if target.limits.trees else DraftTree.chain(tree.tokens)


def leaves(tree: DraftTree) -> list[int]:
    return sorted(set(range(len(tree))) - set(tree.parents.tolist()))


def filled(target: HFTarget, text: Ints, *, capacity: int = 0) -> Rows:
    """Rows that have read a text."""
    rows = target.open(capacity)
    read(target, rows, text)
    return rows


def read(target: HFTarget, rows: Rows, text: Ints, want: Want = NOTHING) -> Scores:
    scores = target.submit([Request.of_prompt(rows, text, want)]).result()[0]
    rows.keep(range(len(text)))
    return scores


def score(target: HFTarget, rows: Rows, root: int, tree: DraftTree = EMPTY) -> Tensor:
    return target.submit([Request.of_tree(rows, root, tree)]).result()[0].logits


def stepwise(target: HFTarget, rows: Rows, line: Ints) -> Tensor:
    """One row per forward, as plain decoding goes."""
    found = []
    for token in line.tolist():
        found.append(score(target, rows, token))
        rows.keep([0])
    return torch.cat(found)


def scored_anew(target: HFTarget) -> Tensor:
    """The rows of a tree behind a text that is read for it."""
    rows = filled(target, tokens(CONTEXT))
    found = score(target, rows, 1, random_tree(1, 12))
    rows.close()
    return found


def gap_to_own(target: HFTarget) -> float:
    """Between the path that is taken and the model's own."""
    found = scored_anew(target)
    with target.using(target.own):
        return apart(found, scored_anew(target))


@torch.no_grad()
def native(model: PreTrainedModel, text: Ints) -> Tensor:
    """Logits ``[n, vocabulary]`` of a whole text from the model itself, without any cache."""
    ids = torch.from_numpy(text)[None]
    logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
    return logits


def generated(model: PreTrainedModel, prompt: Ints, count: int) -> list[int]:
    """Greedy text as transformers writes it."""
    ids = torch.from_numpy(prompt)[None]
    text = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    written: list[int] = text[0, len(prompt) :].tolist()
    return written


def packs(dtype: torch.dtype) -> bool:
    """Whether this CPU's kernels take packed weights of the type: some lack the instructions for bfloat16."""
    return dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, in deviations of the logits; infinite where one is not a number."""
    gap = (one.double() - other.double()).abs().nan_to_num(nan=float("inf")).max()
    return float(gap / other.double().std())


def path_gaps(model: PreTrainedModel, logits: Tensor, text: Ints, root: int, tree: DraftTree) -> float:
    """How far the rows of a scored tree are from those of its paths, read by the model as texts of their own."""
    worst = 0.0
    for leaf in leaves(tree):
        path = tree.path(leaf)
        alone = native(model, np.concatenate([text, [root], tree.tokens[path]]))[len(text) :]
        worst = max(worst, apart(logits[[0, *(node + 1 for node in path)]], alone))
    return worst


class Knowing(Drafter):
    """Drafts the text that is going to be written, somewhere in a tree of wrong tokens."""

    name = "knowing"

    def __init__(self, text: Ints) -> None:
        self._text = text

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        random = np.random.default_rng(len(state))
        true = self._text[len(state) :][: min(budget.depth, 1 + budget.nodes // 2)].tolist()
        found, parents, last = list[int](), list[int](), ROOT
        while len(found) < budget.nodes:
            grow = true and random.random() < 0.5
            parent = last if grow else int(random.integers(-1, len(found)))
            token = true[0] if grow else int(random.integers(1, VOCAB))
            if (parent, token) in zip(parents, found, strict=True):
                continue
            if grow or not (parent == last and true and token == true[0]):
                found.append(token)
                parents.append(parent)
            if grow:
                true.pop(0)
                last = len(found) - 1
        return DraftTree.build(found, parents, source=self.name)


def mixed_requests(target: HFTarget, want: Want = NOTHING) -> list[Request]:
    """A tree, a chain, a single row, and the end of a prompt, of texts of their own."""
    tree = Request.of_tree(filled(target, tokens(37, 1)), 5, random_tree(3, 12), want)
    chain = Request.of_tree(filled(target, tokens(9, 2)), 6, DraftTree.chain(tokens(16, 3)), want)
    alone = Request.of_tree(filled(target, tokens(50, 4)), 7, DraftTree.chain([]), want)
    return [tree, chain, alone, Request.of_prompt(filled(target, tokens(6, 5)), tokens(23, 6), want, ends_prompt=True)]
