"""The probe at load: in which way a model's own code scores drafts so that each row is that of plain decoding.

A draft is scored in one forward, as a line and with siblings, beside another text, and behind a kept path. What the
model alone says, a token after another in mlx-lm's own caches, is the measure. Where siblings fail drafts are clipped
to chains, and where our rows fail texts are in mlx-lm's caches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from paceline.errors import UnsupportedModel, first_line, lacks_memory
from paceline.law.scores import Row
from paceline.targets.base import Reach, Request, Rows
from paceline.targets.mlx.target import MLXTarget
from paceline.targets.probing import (
    DRAFT,
    PREFIX,
    PROBED_WINDOW,
    TRUNK_ROWS,
    branched,
    differ,
    some_tokens,
)
from paceline.tree import EMPTY, DraftTree, Ints

FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of a model's code that gets another object than the cache it expects."""


def prepare(target: MLXTarget) -> MLXTarget:
    """Find the best way in which our rows are the model's; warns of clipped drafts, raises where there is no way."""
    probe = DraftProbe(target)
    if not target.chained:
        target.limits = Reach()
        if probe.holds(probe.line):
            trees, together = probe.holds(probe.tree), probe.holds(probe.beside)
            target.limits = Reach(trees=trees, alone=not together)
        else:
            target.chained = True
    if target.chained:
        target.limits = Reach(trees=False, alone=True)
        if not probe.holds(probe.line):
            raise UnsupportedModel(
                f"{target.name} cannot be drafted for without changing its text, for a row changes with how many are "
                "scored beside it; choose another model"
            )
    _warn_of_limits(target)
    return target


class DraftProbe:
    """A text, what the model alone says to it, and the ways to score its end as a draft."""

    def __init__(self, target: MLXTarget) -> None:
        self._target = target
        self._text = some_tokens(target.vocab_size, _prefix_length(target) + DRAFT)
        self._other = some_tokens(target.vocab_size, DRAFT, 2)
        try:
            self._alone = _alone(target, self._text)
        except FAILURES as error:
            if lacks_memory(error):
                raise
            raise UnsupportedModel(
                f"mlx-lm itself cannot compute {target.name} ({type(error).__name__}: {first_line(error)}); its "
                "configuration may have settings that mlx-lm does not know"
            ) from None

    def holds(self, way: Callable[[], bool]) -> bool:
        """Whether the rows are the model's, and its code can compute them."""
        try:
            return way()
        except FAILURES as error:
            if lacks_memory(error):
                raise
            return False

    def line(self) -> bool:
        """As a chain behind the text, which is refused, and then token after token."""
        rows = self._read(self._text[:-DRAFT])
        chain = self._scored(rows, DraftTree.chain(self._text[-DRAFT:]))
        rows.keep([0])
        steps = [self._step(rows, token) for token in self._text[-DRAFT:].tolist()]
        return self._agree(chain, self._alone) and self._agree(np.concatenate([chain[:1], *steps]), self._alone)

    def tree(self) -> bool:
        """With a sibling behind each token; then the line is kept, and another token scored."""
        rows = self._read(self._text[:-DRAFT])
        found = self._scored(rows, branched(self._text[-DRAFT:], self._other))
        if not self._agree(found[TRUNK_ROWS], self._alone):
            return False
        rows.keep(TRUNK_ROWS[:-1])
        return self._agree(self._step(rows, int(self._text[-1])), self._alone[-1:])

    def beside(self) -> bool:
        """In a forward with another text, whose rows stand elsewhere."""
        target, others = self._target, self._text[::-1].copy()
        texts = [self._text, others[: -DRAFT // 2]]
        requests = []
        for text in texts:
            rows = self._read(text[:-DRAFT])
            requests.append(Request.of_tree(rows, int(text[-DRAFT - 1]), DraftTree.chain(text[-DRAFT:])))
        found = [scores.logits for scores in target.score(requests)]
        return self._agree(found[0], self._alone) and self._agree(found[1], _alone(target, texts[1]))

    def _read(self, text: Ints) -> Rows:
        """Rows of a text, without its last token."""
        rows = self._target.open(len(text) + 2 * DRAFT)
        self._target.score([Request.of_prompt(rows, text[:-1])])
        rows.keep(range(len(text) - 1))
        self._root = int(text[-1])
        return rows

    def _scored(self, rows: Rows, draft: DraftTree) -> Row:
        logits: Row = self._target.score([Request.of_tree(rows, self._root, draft)])[0].logits
        return logits

    def _step(self, rows: Rows, token: int) -> Row:
        logits: Row = self._target.score([Request.of_tree(rows, token, EMPTY)])[0].logits
        rows.keep([0])
        return logits

    def _agree(self, found: Row, expected: Row) -> bool:
        return not differ(found, expected, self._target.dtype)


def _alone(target: MLXTarget, text: Ints) -> Row:
    """The logits of the text's last rows, by mlx-lm's own caches and one token at a time."""
    caches = make_prompt_cache(target.model)
    tokens = mx.array(text.astype(np.int32))[None]
    target.model(tokens[:, : -DRAFT - 1], cache=caches)
    steps = [target.model(tokens[:, at : at + 1], cache=caches)[0] for at in range(len(text) - DRAFT - 1, len(text))]
    return np.asarray(mx.concatenate(steps).astype(mx.float32))


def _prefix_length(target: MLXTarget) -> int:
    """A length behind any window that is not too wide to try."""
    windows = [window for window in target.windows or () if window is not None and window <= PROBED_WINDOW]
    return max([PREFIX, *(window + 2 for window in windows)])


def _warn_of_limits(target: MLXTarget) -> None:
    if target.chained:
        what = "needs mlx-lm's own cache, so drafts are clipped to chains and texts of a batch are scored one by one"
    elif not target.limits.trees:
        what = "cannot score sibling drafts, so drafts are clipped to chains"
        if target.limits.alone:
            what += " and texts of a batch are scored one by one"
    elif target.limits.alone:
        what = "cannot score several texts at once, so those of a batch are scored one by one"
    else:
        return
    warnings.warn(f"{target.name} {what}", UserWarning, stacklevel=3)
