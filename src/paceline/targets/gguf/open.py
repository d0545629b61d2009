"""From a GGUF file to a target that has been probed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import InputError, UnsupportedModel
from paceline.law.scores import Row
from paceline.targets.base import Reach, Request
from paceline.targets.gguf.file import ORIGINAL, GgufFile, damaged, opened
from paceline.targets.gguf.library import complaint, library, packs_weights
from paceline.targets.gguf.target import GgufTarget
from paceline.targets.gguf.tokenizer import GgufTokenizer
from paceline.targets.probing import differ
from paceline.targets.threads import computing_threads
from paceline.targets.types import type_name
from paceline.tree import ROOT, DraftTree

DEVICE = "PACELINE_DEVICE"
ALL_LAYERS = 1 << 16
GPUS = ("cuda", "mps", "gpu")
NOT_IN_ORDER = "writes no text from left to right"
PARTS = ("CLIP cannot be used as main model", "key not found in model")
"""What llama.cpp says of files that belong to a model, for images or of an adapter, and hold none."""
BESIDE = 4
"""Tokens that the probe's draft stands behind."""


def open_gguf(
    path: Path, *, device: object = None, dtype: object = None, quantize: str | None = None, strict: bool = True
) -> tuple[GgufTarget, GgufTokenizer | None]:
    """A probed target and its tokenizer, if the file has one. Its weights keep their type: unless this is ``strict``,
    another one is only preferred."""
    file = opened(path)
    calls = library()
    place = _place(device, calls.llama_supports_gpu_offload())
    if place == "cpu":
        file.must_fit()
    target = GgufTarget(_loaded(calls, file, place), file, str(path), threads=computing_threads(), device=place)
    if strict:
        _check_type(target, dtype, quantize)
    if not target.cells.keep_rows:
        raise _without_text(file, NOT_IN_ORDER)
    target.limits = _probed(target)
    return target, GgufTokenizer.of(target)


def _check_type(target: GgufTarget, dtype: object, quantize: str | None) -> None:
    for name, value, meaningless in (("dtype", dtype, "auto"), ("quantize", quantize, "none")):
        if value is not None and value != meaningless and type_name(value) != target.dtype:
            raise InputError(
                f"the weights of {target.name} stay as they are, in {target.dtype}; leave {name}={value} out"
            )


def _place(device: object, has_gpu: bool) -> str:
    """Where llama.cpp computes: on all GPUs of its build, or on the CPU."""
    named = str(device if device is not None else os.environ.get(DEVICE) or "auto")
    kind = named.partition(":")[0]
    if kind == "auto":
        return "gpu" if has_gpu else "cpu"
    if kind not in (*GPUS, "cpu"):
        raise InputError(f"device {named!r} is none of llama.cpp's; choose cpu, auto, or cuda where there is one")
    if kind != "cpu" and not has_gpu:
        raise InputError(f"device {named!r} is not available: this llama-cpp-python was built without it; choose cpu")
    return "cpu" if kind == "cpu" else "gpu"


def _loaded(calls: Any, file: GgufFile, place: str) -> Any:
    terms: Any = calls.llama_model_default_params()
    terms.n_gpu_layers = 0 if place == "cpu" else ALL_LAYERS
    terms.use_extra_bufts = packs_weights()
    complaint()  # of before
    model = calls.llama_model_load_from_file(str(file.first).encode(), terms)
    if model is None:
        why = complaint()
        if "unknown model architecture" in why or "unknown pre-tokenizer" in why:
            raise UnsupportedModel(f"the GGUF file {file.first} is of a kind that this llama.cpp does not know: {why}")
        if any(part in why for part in PARTS):
            raise UnsupportedModel(f"the GGUF file {file.first} holds no whole model: {why}; {ORIGINAL}")
        raise damaged(file.first, why)
    try:
        _refuse(calls, model, file)
    except UnsupportedModel:
        calls.llama_model_free(model)
        raise
    return model


def _refuse(calls: Any, model: Any, file: GgufFile) -> None:
    """Refuse models whose drafts could not be taken back, and those that write no text from left to right."""
    kinds = {
        "keeps a state that a refused draft would change": ("llama_model_is_recurrent", "llama_model_is_hybrid"),
        NOT_IN_ORDER: ("llama_model_is_diffusion", "llama_model_has_encoder"),
    }
    for what, asked in kinds.items():
        if any(hasattr(calls, name) and getattr(calls, name)(model) for name in asked):
            raise _without_text(file, what)


def _without_text(file: GgufFile, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"the model in {file.first} {what}, which is not served from GGUF files; {ORIGINAL}")


def _probed(target: GgufTarget) -> Reach:
    """The drafts that the model scores as it scores one token after the other."""
    beside, *line = np.linspace(1, target.vocab_size - 1, BESIDE + 4).astype(np.int64)[::-1].tolist()
    prompt, (root, child) = np.array(line[:BESIDE]), line[BESIDE : BESIDE + 2]
    rows = target.open()
    try:
        target.score([Request.of_prompt(rows, prompt)])
        rows.keep(range(len(prompt)))
        with target.cells.held():
            target.cells.measure(rows.home)
        chain = DraftTree.chain([child])
        tree = DraftTree.build([beside, child, beside, beside], [ROOT, ROOT, 1, 0])
        found = [_rows(target, rows, root, draft, child) for draft in (tree, chain)]
        expected = []
        for token in (root, child):
            expected.append(target.score([Request.of_tree(rows, token, DraftTree.chain([]))])[0].row(ROOT))
            rows.keep([0])
    finally:
        rows.close()
    kind = target.dtype if target.device == "cpu" else "float16"  # to whose bits GPUs round factors in float32
    for drafts, reach in zip(found, (Reach(), Reach(trees=False)), strict=True):
        if not differ(np.stack(drafts), np.stack(expected), kind):
            return reach
    raise UnsupportedModel(
        f"the model in {target.name} scores a token otherwise when others stand behind it, so drafts would change its "
        f"text; {ORIGINAL}"
    )


def _rows(target: GgufTarget, rows: Any, root: int, draft: DraftTree, child: int) -> list[Row]:
    """The logits behind the root and behind a child of it, beside the rest of a draft."""
    scores = target.score([Request.of_tree(rows, root, draft)])[0]
    return [np.asarray(scores.row(node)) for node in (ROOT, draft.tokens.tolist().index(child))]
