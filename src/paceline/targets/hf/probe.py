"""At load: how may drafts reach this model, and does a row depend on what else is in the forward?

A draft is scored in one forward, again with another end, row by row as plain decoding would, beside another sequence,
and by the model alone. If a row changes with what follows it (activations quantised by one scale for all rows, a
mixture of experts that turns rows away), with how many stand beside it (a position bias built from the key length) or
with another sequence (positions counted by packed rows), speculation would change the text; if it is not the model's
own row, the model asks of its attention what we do not know. The same is tried across every position at which the
configuration lets the model change. Then drafts are clipped to what the model scores faithfully, sequences are scored
one by one, texts end where the model can no longer be trusted, or it is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

from paceline.targets.base import Reach, Request, Rows
from paceline.targets.hf.forward import Mode, Unsupported
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.path import Path
from paceline.targets.hf.places import NEAR, Place, places, sizes
from paceline.targets.hf.target import HFTarget
from paceline.tree import EMPTY, DraftTree, Ints

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}
"""Of the logits' standard deviation: far above what other kernels do to a row, far below what another context does."""
SAME_KERNELS = 0.01
"""What is left of the tolerance between forwards of one shape, whose kernels do not differ."""
SAME_OPERATIONS = 0.1
"""What is left of it between two ways to compute the same operations, a few of which may be fused in other ways."""

PREFIX, LONGER, DRAFT = 6, 9, 5
PROBED_WINDOW = 512
"""Windows up to this size are probed from beyond where a model's own attention code draws them."""


def prepare(target: HFTarget) -> HFTarget:
    """Find the best mode in which the model's rows can be trusted; warns where drafts are clipped, raises where none
    can be trusted. Then see whether faster paths find the same."""
    paths, target.paths = target.paths, [target.own]
    try:
        _find_mode(target)
    finally:
        target.paths = paths
    _try_lean(target)
    _try_fixed(target)
    return target


def _try_lean(target: HFTarget) -> None:
    """A model of a known structure is computed without transformers' layers, if that finds what they find."""
    lean = Lean.of(target.own)
    if lean is None or target.mode is not Mode.PACKED:
        return
    paths = target.paths
    try:
        ours, theirs = (_read_and_scored(target, path) for path in (lean, target.own))
    except torch.OutOfMemoryError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, *BROKEN):
        return
    finally:
        target.paths = paths
    if not _gap(target, ours, theirs, SAME_OPERATIONS):
        lean.trusted = True
        target.paths = [*paths[:-1], lean, target.own]
        if target.fixed is not None:
            target.fixed.lean = lean


def _read_and_scored(target: HFTarget, path: Path) -> torch.Tensor:
    """Rows of a tree behind a short text, along one path."""
    target.paths = [path]
    prefix, line, other = (_tokens(target, count, salt) for salt, count in enumerate((PREFIX, DRAFT, DRAFT)))
    rows = target.open(PREFIX + 2 * DRAFT)
    _feed(target, rows, Request.of_prompt(rows, prefix[:-1]))
    found = _scored(target, rows, prefix, _tree(line, other))
    rows.close()
    return found


def _try_fixed(target: HFTarget) -> None:
    """Recorded forwards are held to the same law, on the device they run on; where they fail they are not used."""
    if target.fixed is None or target.mode is not Mode.PACKED:
        return
    limits = target.limits
    reason = target.fixed.hindrance() or _probe(target)
    if reason is None and limits.trees and not target.limits.trees:
        reason = "a row changes with its siblings"
    target.limits = limits
    if reason is not None:
        target.fixed.give_up(reason)


def _find_mode(target: HFTarget) -> None:
    if not target.own.takes_cache:
        raise ValueError(
            f"{target.name} takes no cache of keys and values, so a draft cannot be scored behind a text; "
            "choose another model"
        )
    lengths = target.context_length, target.trusted
    modes: dict[str, list[str]] = {}
    failure: Exception | None = None
    for shorten, mode in product((False, True), Mode):
        if shorten and not any(reason.startswith(FURTHER) for reason in modes):
            break
        target.mode, (target.context_length, target.trusted) = mode, lengths
        try:
            _windows_agree(target)
            reason = _probe(target) or _probe_further(target, shorten=shorten)
        except torch.OutOfMemoryError:
            raise
        except (Unsupported, ArithmeticError, LookupError, TypeError, ValueError, *BROKEN) as error:
            reason, failure = _failure(error), error
        if reason is None:
            _say_what_is_clipped(target)
            return
        modes.setdefault(reason, []).append(mode)
    reasons = "; ".join(f"{' and '.join(dict.fromkeys(names))}: {reason}" for reason, names in modes.items())
    raise ValueError(
        f"{target.name} cannot be drafted for without changing its text ({reasons}); choose another model"
    ) from failure


def _failure(error: Exception) -> str:
    """What a model's own code says when it is handed cached rows: raw shapes mean nothing to a user."""
    if isinstance(error, Unsupported | ValueError) and str(error):
        return str(error).splitlines()[0]
    return f"its own forward fails behind cached rows ({type(error).__name__})"


BROKEN = (RuntimeError, AttributeError, AssertionError)
"""What a model raises that was handed more, or less, than it expects of its cache and attention."""


def _windows_agree(target: HFTarget) -> None:
    """The attention function must be told of every window that the configuration speaks of."""
    if target.mode is not Mode.PACKED:
        return
    seen = target.windows(Request.of_prompt(target.open(1), _tokens(target, 1)))
    expected = [target.own.window if kind == "sliding_attention" else None for kind in target.own.layer_types]
    if not seen:
        raise Unsupported("the model does not call the registered attention function")
    felt, told = ([_felt(target, window) for window in windows] for windows in (seen, expected))
    if felt != told and any(felt + told):
        raise Unsupported(f"layers ask for windows {seen} where the configuration says {expected}")


def _felt(target: HFTarget, window: int | None) -> int | None:
    """A window as wide as the context hides nothing."""
    limit = target.context_length
    return None if window is not None and limit is not None and window >= limit else window


def _probe(target: HFTarget) -> str | None:
    """Set what can be drafted in the target's mode; or say why nothing can."""
    prefix = _tokens(target, _prefix_length(target))
    rows = target.open(len(prefix) + 2 * DRAFT)
    _feed(target, rows, Request.of_prompt(rows, prefix[:-1]))
    line, other = _tokens(target, DRAFT, 1), _tokens(target, DRAFT, 2)
    expected = _stepwise(target, rows, prefix, line)
    alone = target.unassisted(torch.from_numpy(np.concatenate([prefix, line])))[-DRAFT - 1 :]
    if _gap(target, expected, alone):
        return "a row is not what the model itself finds"
    chain = _scored(target, rows, prefix, DraftTree.chain(line))
    if _gap(target, chain, expected):
        return "a row changes with how many are scored beside it"
    if not _ends_do_not_matter(target, rows, prefix, line, chain):
        return "a row changes with what follows it in its draft"
    counts = _counts_rows(target, rows, prefix, line, chain)
    target.limits = Reach(trees=target.mode is not Mode.CHAINED and not counts, alone=counts)
    if target.limits.trees:
        tree = _scored(target, rows, prefix, _tree(line, other))
        target.limits = replace(target.limits, trees=not _gap(target, tree[TRUNK_ROWS], expected))
    return None


def _probe_further(target: HFTarget, *, shorten: bool) -> str | None:
    """Two sequences in one forward, then every `Place` at which the model may change: narrow what can be drafted, end
    texts at a place if that may ``shorten`` them; or say why nothing can be drafted."""
    config: Any = target.model.config.get_text_config()
    known = target.switch.position if target.switch is not None else None
    with torch.no_grad():
        packed = target.mode is Mode.PACKED and not target.limits.alone
        if packed and _reachable(target, LONGER) and not _packs(target):
            target.limits = replace(target.limits, alone=True)
        if target.mode is Mode.MASKED and any(_is_drawn_inside(target, *size) for size in sizes(config).items()):
            target.limits = replace(target.limits, trees=False)
        for place in places(config, PREFIX, DRAFT, drawn=target.mode is Mode.PACKED):
            stated = place.moved > 0 and target.mode is Mode.CHAINED  # its masks count keys, and there are none
            if stated or place.switch == known or not _reachable(target, place.moved + place.prefix):
                continue
            if (limits := _limits_at(target, place)) is not None:
                target.limits = limits
            elif shorten and place.switch > PREFIX + DRAFT:
                target.trust(place.switch)
            else:
                return f"{FURTHER} {place.switch} a row is not what the model itself finds"
    return None


FURTHER = "behind position"
"""How the reasons begin for which texts may be shortened."""


def _is_drawn_inside(target: HFTarget, name: str, size: int) -> bool:
    """Whether a model draws a window itself that our masks do not know. It goes by the index of a key, which siblings
    shift; of a wide window that changes too little for a probe to see."""
    return "window" in name and name != "sliding_window" and _felt(target, size) is not None


CLAIM = 1 << 20
"""Rows that a cache is said to have beyond those it has."""


def _counts_rows(target: HFTarget, rows: Rows, prefix: Ints, line: Ints, chain: torch.Tensor) -> bool:
    """Whether positions are counted from the cache's length on, so that rows packed behind each other would all stand
    one behind the other: an untrue length then changes the rows, or is beyond all positions that there are."""
    if target.mode is Mode.CHAINED:
        return False
    target.own.claimed = CLAIM
    try:
        found = _scored(target, rows, prefix, DraftTree.chain(line))
    except (IndexError, *BROKEN):
        rows.keep([])
        return target.mode is Mode.PACKED
    finally:
        target.own.claimed = 0
    return _gap(target, found, chain, SAME_KERNELS)


def _reachable(target: HFTarget, length: int) -> bool:
    """Whether drafts are made behind a text of this length: inside the context, and on one side of a rotary switch."""
    if target.context_length is not None and length + DRAFT >= target.context_length:
        return False
    switch = target.switch
    if switch is None or length + DRAFT < switch.position:
        return True
    return length > switch.position and not switch.growing


def _packs(target: HFTarget) -> bool:
    """Whether drafts of two sequences at different positions can share a forward."""
    requests, expected = [], []
    for number, length in enumerate((PREFIX, LONGER)):
        prefix, line = _tokens(target, length, 10 + number), _tokens(target, DRAFT, 12 + number)
        rows = target.open(length + DRAFT)
        _feed(target, rows, Request.of_prompt(rows, prefix[:-1]))
        requests.append(Request.of_tree(rows, int(prefix[-1]), DraftTree.chain(line)))
        expected.append(target.unassisted(torch.from_numpy(np.concatenate([prefix, line])))[-DRAFT - 1 :])
    found = target.submit(requests).result()
    return not any(_gap(target, scores.logits, rows) for scores, rows in zip(found, expected, strict=True))


def _limits_at(target: HFTarget, place: Place) -> Reach | None:
    """What can be drafted at a place, of what can be elsewhere; None where not even chains can."""
    target.own.moved = place.moved
    try:
        texts = [_tokens(target, place.prefix + DRAFT, salt) for salt in (14, 15)]
        texts[1] = texts[1][1:]
        expected = [target.unassisted(torch.from_numpy(text)) for text in texts]
        line, other = texts[0][-DRAFT:], _tokens(target, DRAFT, 16)
        whole = [_fresh(target, text[:-DRAFT], DraftTree.chain(text[-DRAFT:])) for text in texts]
        chain = _rows_of(target, whole[:1])
        if _gap(target, chain[0], expected[0]):
            return None
        limits = target.limits
        if limits.trees:
            tree = _rows_of(target, [_fresh(target, texts[0][:-DRAFT], _tree(line, other))])[0]
            found = tree[place.prefix - 1 :][TRUNK_ROWS]
            limits = replace(limits, trees=not _gap(target, found, expected[0][-DRAFT - 1 :]))
        if target.mode is Mode.PACKED and not limits.alone:
            pair = _rows_of(target, whole)
            limits = replace(limits, alone=any(_gap(target, *both) for both in zip(pair, expected, strict=True)))
        return limits
    except torch.OutOfMemoryError:
        raise
    except (Unsupported, ArithmeticError, LookupError, TypeError, ValueError, *BROKEN):
        return None
    finally:
        target.own.moved = 0


def _fresh(target: HFTarget, prefix: Ints, draft: DraftTree) -> Request:
    """A text and a draft behind it, none of it cached."""
    parents = np.concatenate([np.arange(-1, len(prefix) - 1), draft.parents + len(prefix)])
    return Request(target.open(len(prefix) + len(draft)), np.concatenate([prefix, draft.tokens]), parents)


def _rows_of(target: HFTarget, requests: Sequence[Request]) -> list[torch.Tensor]:
    """The logits of each request; the rows end as they began."""
    found = [scores.logits for scores in target.submit(requests).result()]
    for request in requests:
        request.rows.keep([])
    return found


def _ends_do_not_matter(target: HFTarget, rows: Rows, prefix: Ints, line: Ints, chain: torch.Tensor) -> bool:
    """Drafts of one shape that part after some tokens must agree on the rows before, kernels being the same; except
    for experts, who compute what happens to be sent to them together."""
    modules = target.model.named_modules()
    experts = any("expert" in (name + type(module).__name__).lower() for name, module in modules)
    for shared in (0, 1, 3):
        draft = np.concatenate([line[:shared], _tokens(target, DRAFT - shared, 3 + shared)])
        found = _scored(target, rows, prefix, DraftTree.chain(draft))
        if _gap(target, found[: shared + 1], chain[: shared + 1], 1.0 if experts else SAME_KERNELS):
            return False
    return True


def _prefix_length(target: HFTarget) -> int:
    """Beyond any window that the model's own attention code may draw: ours are known to draw them."""
    named = sizes(target.model.config.get_text_config()).items()
    windows = [size for name, size in named if "window" in name and _felt(target, size) is not None]
    if target.mode is Mode.PACKED:
        windows = [size for size in windows if size <= NEAR]
    if not windows:
        return PREFIX
    if max(windows) > PROBED_WINDOW and target.mode is Mode.MASKED:
        raise Unsupported(f"a window of {max(windows)} in an attention of its own is more than is probed")
    return max([PREFIX, *(size + 2 for size in windows if size <= PROBED_WINDOW)])


TRUNK = (0, 2, 4, 6, 8)
TRUNK_ROWS = [0, *(node + 1 for node in TRUNK)]
"""The root's row and those of the line in a `_tree`."""


def _tree(line: Ints, other: Ints) -> DraftTree:
    """The line's tokens each with a sibling that stands directly behind it."""
    pairs = np.stack([line, other], axis=1)
    above = np.array([-1, *TRUNK[:-1]])
    return DraftTree.build(pairs.reshape(-1), np.repeat(above, 2))


def _tokens(target: HFTarget, count: int, salt: int = 0) -> Ints:
    return np.random.default_rng(20 + salt).integers(0, target.vocab_size, count)


def _feed(target: HFTarget, rows: Rows, request: Request) -> torch.Tensor | None:
    scores = target.forward([request])[0]
    rows.keep(range(len(request.tokens)))
    return None if request.prefill else scores.logits


def _stepwise(target: HFTarget, rows: Rows, prefix: Ints, line: Ints) -> torch.Tensor:
    """The rows of root and line fed one token at a time, as plain decoding would; ``rows`` end as they began."""
    fed = [_feed(target, rows, Request.of_tree(rows, int(t), EMPTY)) for t in (prefix[-1], *line)]
    rows.rewind(len(prefix) - 1)
    return torch.cat([row for row in fed if row is not None])


def _scored(target: HFTarget, rows: Rows, prefix: Ints, draft: DraftTree) -> torch.Tensor:
    """The rows of root and draft in one forward; ``rows`` end as they began."""
    logits = target.forward([Request.of_tree(rows, int(prefix[-1]), draft)])[0].logits
    rows.keep([])
    return logits


def _gap(target: HFTarget, one: torch.Tensor, other: torch.Tensor, share: float = 1.0) -> bool:
    """Whether rows differ by more than kernels make them differ: in mean square, since the largest of many small
    differences grows with the vocabulary. In half precision the middle row decides: there a kernel's rounding may
    send a single row to another expert."""
    spread = float(other.float().std()) or 1.0
    gaps = (one.double() - other.double()).square().mean(dim=-1).sqrt()
    gap = float(gaps.median() if target.dtype.itemsize == 2 else gaps.max())
    return not gap <= TOLERANCE.get(target.dtype, 0.2) * share * spread


def _say_what_is_clipped(target: HFTarget) -> None:
    if not target.limits.trees:
        _warn(target, "cannot score sibling drafts, so drafts are clipped to chains")
    if target.limits.alone:
        _warn(target, "cannot score several sequences at once, so those of a batch are scored one by one")
    if target.trusted is not None:
        _warn(target, f"cannot be scored faithfully beyond position {target.trusted}, so texts end there")
    if (switch := target.switch) is not None:
        where = "end at" if switch.growing else "stop short of"
        _warn(target, f"rotates by the largest position in a forward, so drafts {where} position {switch.position}")


def _warn(target: HFTarget, what: str) -> None:
    warnings.warn(f"{target.name} {what}", UserWarning, stacklevel=4)
