"""GGUF files of the bundled models, written once as `paceline export gguf` does, and what tests read."""

import importlib.util
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from paceline.targets.base import NOTHING, Request, Rows, Want
from paceline.targets.gguf.open import open_gguf
from paceline.targets.gguf.source import GgufSource
from paceline.targets.gguf.target import GgufTarget
from paceline.targets.gguf.writing import write_gguf
from paceline.targets.load import open_model
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, DraftTree, Ints
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.peers.weights import ordinary

PACKAGES = "gguf", "llama_cpp"
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_llama = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed (pip install '.[gguf]')")
_FOLDER = TemporaryDirectory(prefix="gguf-")


@cache
def bundled(name: str) -> tuple[Any, Vocabulary]:
    """The model of transformers and the vocabulary of a bundled model."""
    target, tokenizer = open_model(name, dtype="float32", device="cpu")
    return ordinary(target), Vocabulary(tokenizer)


@cache
def file_of(name: str = "pocket", kind: str = "F32", *, tokenizer: bool = True) -> Path:
    """A bundled model as a GGUF file."""
    model, vocabulary = bundled(name)
    file = Path(_FOLDER.name) / f"{name}-{kind}{'' if tokenizer else '-ids'}.gguf"
    write_gguf(kind, GgufSource.of_model(model, name), file, vocabulary if tokenizer else None)
    return file


@cache
def target_of(kind: str = "F32") -> GgufTarget:
    return open_gguf(file_of(kind=kind), device="cpu")[0]


def text(count: int, seed: int = 0) -> Ints:
    return np.random.default_rng(seed).integers(1, 8000, count)


def read(target: GgufTarget, rows: Rows, tokens: Ints, want: Want = NOTHING) -> Scores:
    scores = target.submit([Request.of_prompt(rows, tokens, want)]).result()[0]
    rows.keep(range(len(tokens)))
    return scores


def score(target: GgufTarget, rows: Rows, root: int, tree: DraftTree = EMPTY) -> Any:
    return target.submit([Request.of_tree(rows, root, tree)]).result()[0].logits


def random_tree(seed: int) -> DraftTree:
    """Branches of mixed depth: some nodes go on where the last one ended, the others anywhere."""
    random = np.random.default_rng(seed)
    size = int(random.integers(6, 20))
    parents = [i - 1 if random.random() < 0.4 else int(random.integers(-1, i)) if i else -1 for i in range(size)]
    return DraftTree.build(random.integers(1, 8000, size), parents)


def path_to(tree: DraftTree, node: int) -> list[int]:
    """The nodes from the root's child down to a node."""
    path = list[int]()
    while node >= 0:
        path.append(node)
        node = int(tree.parents[node])
    return path[::-1]


def plain_rows(target: GgufTarget, context: Ints, root: int, tree: DraftTree) -> Any:
    """The logits behind the root and behind every node, each path read by itself, a token per forward."""
    rows, found = target.open(), [np.empty(0)] * (len(tree) + 1)
    read(target, rows, context)

    def descend(node: int, depth: int) -> None:
        found[node + 1] = score(target, rows, root if node < 0 else int(tree.tokens[node]))[0]
        rows.keep([0])
        for child in np.flatnonzero(tree.parents == node).tolist():
            descend(child, depth + 1)
        rows.rewind(len(context) + depth)

    descend(-1, 0)
    rows.close()
    return np.stack(found)


def gap(found: Any, expected: Any) -> float:
    """The largest difference, in units of a row's deviation."""
    return float(np.abs(found - expected).max() / expected.std())
