"""The probe at load: which mode to use, and whether a row depends on what else is in the forward.

A draft is scored in one forward, again with another end, row by row as in plain decoding, beside another sequence, and
by the model alone. Speculation would change the text if a row changes with what follows it (activations quantised with
one scale for all rows, a mixture of experts that drops rows), with how many rows are beside it (a position bias built
from the key length) or with another sequence (positions counted by packed rows). If a row is not the model's own, the
model needs something of its attention that we do not know. The same is tried at every position at which the
configuration lets the model change. Then drafts are clipped to what the model scores faithfully, sequences are scored
one by one, texts end where rows would be wrong, or the model is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

from paceline.errors import UnsupportedModel
from paceline.law import Law, Noise, Place, laws
from paceline.law.settings import of_kernel
from paceline.once import once
from paceline.targets.base import Reach, Request, Rows
from paceline.targets.hf.fixed.replay import FixedPath
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.own import RECURRENT_LAYERS, Mode, Unsupported
from paceline.targets.hf.path import UNTESTED_ERRORS
from paceline.targets.hf.probe_points import NEAR_POSITIONS, ProbePoint, probe_points, sizes
from paceline.targets.hf.probe_rows import (
    agree,
    feed,
    gap,
    scored,
    tokens,
    use_compiled,
)
from paceline.targets.hf.recurrent import trial
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.tracked import TracksPath
from paceline.targets.hf.versions import refused
from paceline.targets.probing import DRAFT, PREFIX, PROBED_WINDOW, TRUNK_ROWS, branched
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, ROOT, DraftTree, Ints

SAME_KERNELS = 0.01
"""The share of the tolerance that holds between forwards of one shape, which use the same kernels."""
SAME_OPERATIONS = 0.1
"""The share of it that holds between two paths with the same operations, a few of which may be fused."""
BROKEN = (RuntimeError, AttributeError, AssertionError)
"""Errors of a model that gets more, or less, than it expects of its cache and attention."""
FAILURES = (Unsupported, AssertionError, *UNTESTED_ERRORS)
"""Errors that end the probe of a mode."""

USUAL_ROWS = (32, 16, 8, 4, 2, 1)
"""The sizes of forwards that are recorded before the first text, the one that needs most memory first."""
USUAL_LENGTH = 1024
"""The length of text that there is room for then; more moves rows, which drops what was recorded."""
RACED = of_kernel(0.8), of_kernel(0.8, "most")
"""Settings whose laws are computed in different ways."""
LONGER = 9


def prepare(target: HFTarget) -> HFTarget:
    """Find the best mode in which our rows are the model's; warns where drafts are clipped, raises where there is no
    such mode. Then try the faster paths."""
    with target.using(target.own):
        _find_mode(target)
    _try_lean(target)
    _try_fixed(target)
    _record_usual(target)
    if target.own.recurrent and (reasons := trial.obstacles(target.own.homes, target.own.model.device.type)):
        slower = f"layers with a state compute drafts level by level, which costs speed and nothing else: {reasons[0]}"
        target.note = "; ".join(filter(None, (target.note, slower)))
    return target


def _record_usual(target: HFTarget) -> None:
    """Record forwards of usual sizes, so that the first text need not."""
    fixed = target.fixed
    if fixed is None or not fixed.ahead or fixed.refused is not None or target.mode is not Mode.PACKED:
        return
    most = USUAL_LENGTH if target.context_length is None else min(USUAL_LENGTH, target.context_length)
    if most <= PREFIX:
        return
    rows = target.open(most)
    try:
        feed(target, rows, Request.of_prompt(rows, tokens(target, PREFIX)))
        for size in USUAL_ROWS:
            if fixed.refused is None and PREFIX + size <= most:
                draft = DraftTree.chain(tokens(target, size)[1:])
                (scores,) = target.submit([Request.of_tree(rows, 1, draft)]).result()
                rows.keep([])
                with once():
                    _race(scores, rows.tokens)
    finally:
        rows.close()


def _race(scores: Scores, text: Ints) -> None:
    """Choose a token as texts do, so that what this needs is compiled."""
    for sampling in RACED:
        laws([Place(Law(sampling, len(text)), scores.row(ROOT), text, Noise(0))])


def _try_lean(target: HFTarget) -> None:
    """Use the lean path if the model has a known structure and the path's rows are the model's."""
    lean = Lean.of(target.own) or TracksPath.of(target.own)
    if lean is None or target.mode is not Mode.PACKED or not agree(target, lean, target.own, SAME_OPERATIONS):
        return
    lean.trusted = True
    target.paths.insert(-1, lean)
    if target.fixed is not None and type(lean) is Lean:
        target.fixed.lean = lean
    use_compiled(target, lean)


def _try_fixed(target: HFTarget) -> None:
    """Probe recorded forwards too, on the device they run on; where they fail they are not used."""
    if target.fixed is None or target.mode is not Mode.PACKED:
        return
    if target.fixed.without_kernels is None and (reason := _unlike(target, target.fixed)) is not None:
        target.fixed.step_down(reason)
    if target.fixed.without_kernels is not None and (reason := _unlike(target, target.fixed)) is not None:
        target.fixed.give_up(reason)


def _unlike(target: HFTarget, fixed: FixedPath) -> str | None:
    """In what recorded forwards differ from the model's own."""
    limits = target.limits
    target.look()
    reason = target.own.obstacle or _probe(target)
    if reason is None and limits.trees and not target.limits.trees:
        reason = "a row changes with its siblings"
    target.limits = limits
    return reason


def _find_mode(target: HFTarget) -> None:
    if target.own.cache_name is None and target.own.family.takes_cache:
        raise _refusal(
            target,
            "takes no cache of keys and values under a name that is known here, so a draft cannot be scored behind a "
            "text",
        )
    lengths = target.context_length, target.trusted
    modes: dict[str, list[str]] = {}
    failure: Exception | None = None
    for shorten, mode in product((False, True), Mode):
        if shorten and not any(reason.startswith(FURTHER) for reason in modes):
            break
        target.own.mode, (target.context_length, target.trusted) = mode, lengths
        try:
            _check_windows(target)
            reason = _probe(target) or _probe_further(target, shorten=shorten)
        except torch.OutOfMemoryError:
            raise
        except FAILURES as error:
            reason, failure = _failure(error), error
        if reason is None:
            _warn_of_limits(target)
            return
        modes.setdefault(reason, []).append(mode)
        target.refused_modes[mode] = reason
    reasons = "; ".join(f"{' and '.join(dict.fromkeys(names))}: {reason}" for reason, names in modes.items())
    raise _refusal(target, f"cannot be drafted for without changing its text ({reasons})") from failure


def _refusal(target: HFTarget, why: str) -> UnsupportedModel:
    return UnsupportedModel(refused(f"{target.name} {why}", "choose another model", type(target.model)))


def _failure(error: Exception) -> str:
    """Why a model's own code fails with cached rows, in words that mean something to a user."""
    if isinstance(error, Unsupported | ValueError) and str(error):
        return str(error).splitlines()[0]
    return f"its own forward fails behind cached rows ({type(error).__name__})"


def _check_windows(target: HFTarget) -> None:
    """The attention function must get every window that the configuration names."""
    if target.mode is not Mode.PACKED:
        return
    seen = target.own.windows(Request.of_prompt(target.open(1), tokens(target, 1)))
    attending = [kind for kind in target.own.layer_types if kind not in RECURRENT_LAYERS]
    expected = [
        target.own.window if kind.endswith("sliding") or kind == "sliding_attention" else None for kind in attending
    ]
    if attending and not seen:
        raise Unsupported("the model does not call the registered attention function")
    got, named = ([_effective(target, window) for window in windows] for windows in (seen, expected))
    if got != named and any(got + named):
        raise Unsupported(f"layers ask for windows {seen} where the configuration says {expected}")


def _effective(target: HFTarget, window: int | None) -> int | None:
    """The window, or None if it is as wide as the context."""
    limit = target.context_length
    return None if window is not None and limit is not None and window >= limit else window


def _probe(target: HFTarget) -> str | None:
    """Set the limits of drafts in the target's mode; returns the reason where nothing can be drafted."""
    prefix = tokens(target, _prefix_length(target))
    rows = target.open(len(prefix) + 2 * DRAFT)
    feed(target, rows, Request.of_prompt(rows, prefix[:-1]))
    line, other = tokens(target, DRAFT, 1), tokens(target, DRAFT, 2)
    expected = _stepwise(target, rows, prefix, line)
    alone = target.own.unassisted(torch.from_numpy(np.concatenate([prefix, line])))[-DRAFT - 1 :]
    if gap(target, expected, alone):
        return "a row differs from the model's own"
    chain = scored(target, rows, prefix, DraftTree.chain(line))
    if gap(target, chain, expected):
        return "a row changes with how many are scored beside it"
    if not _ends_do_not_matter(target, rows, prefix, line, chain):
        return "a row changes with what follows it in its draft"
    counts = _counts_rows(target, rows, prefix, line, chain)
    target.limits = Reach(trees=target.mode is not Mode.CHAINED and not counts, alone=counts)
    if target.limits.trees:
        tree = scored(target, rows, prefix, branched(line, other))
        target.limits = replace(target.limits, trees=not gap(target, tree[TRUNK_ROWS], expected))
    return None


def _probe_further(target: HFTarget, *, shorten: bool) -> str | None:
    """Probe two sequences in one forward, then every `ProbePoint`: narrow the limits of drafts, and end texts at a
    point if that may ``shorten`` them; returns the reason where nothing can be drafted."""
    config: Any = target.model.config.get_text_config()
    known = target.switch.position if target.switch is not None else None
    with torch.no_grad():
        packed_mode = target.mode is Mode.PACKED
        packed = packed_mode and not target.limits.alone
        if packed and _reachable(target, LONGER) and not _packs(target):
            target.limits = replace(target.limits, alone=True)
        if target.mode is Mode.MASKED and any(_is_window_of_its_own(target, *size) for size in sizes(config).items()):
            target.limits = replace(target.limits, trees=False)
        for point in probe_points(config, PREFIX, DRAFT, packed=packed_mode, recurrent=target.own.recurrent):
            unmasked = point.moved > 0 and target.mode is Mode.CHAINED  # its masks count keys, and there are none
            if unmasked or point.switch == known or not _reachable(target, point.moved + point.prefix):
                continue
            if (limits := _limits_at(target, point)) is not None:
                target.limits = limits
            elif shorten and point.switch > PREFIX + DRAFT:
                target.trust(point.switch)
            else:
                return f"{FURTHER} {point.switch} a row differs from the model's own"
    return None


FURTHER = "behind position"
"""The beginning of reasons for which texts may be shortened."""


def _is_window_of_its_own(target: HFTarget, name: str, size: int) -> bool:
    """Whether the model's own code applies a window that our masks do not know. It goes by the index of a key, which
    siblings shift; of a wide window that changes too little for the probe to see."""
    known = name == "sliding_window" or (target.own.family.measures and size == target.own.window)
    return "window" in name and not known and _effective(target, size) is not None


CLAIM = 1 << 20
"""Rows that the cache says it has beyond those it has."""


def _counts_rows(target: HFTarget, rows: Rows, prefix: Ints, line: Ints, chain: torch.Tensor) -> bool:
    """Whether the model counts positions from the cache's length on, so that packed rows of several sequences would
    count as one text. A false length then changes the rows, or is beyond all positions of the model."""
    if target.mode is Mode.CHAINED:
        return False
    target.own.claimed = CLAIM
    try:
        found = scored(target, rows, prefix, DraftTree.chain(line))
    except (IndexError, *BROKEN):
        rows.keep([])
        return target.mode is Mode.PACKED
    finally:
        target.own.claimed = 0
    return gap(target, found, chain, SAME_KERNELS)


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
        prefix, line = tokens(target, length, 10 + number), tokens(target, DRAFT, 12 + number)
        rows = target.open(length + DRAFT)
        feed(target, rows, Request.of_prompt(rows, prefix[:-1]))
        requests.append(Request.of_tree(rows, int(prefix[-1]), DraftTree.chain(line)))
        expected.append(target.own.unassisted(torch.from_numpy(np.concatenate([prefix, line])))[-DRAFT - 1 :])
    found = target.submit(requests).result()
    return not any(gap(target, scores.logits, rows) for scores, rows in zip(found, expected, strict=True))


def _limits_at(target: HFTarget, point: ProbePoint) -> Reach | None:
    """The target's limits narrowed to what can be drafted at a point; None where not even chains can."""
    target.own.moved = point.moved
    try:
        texts = [tokens(target, point.prefix + DRAFT, salt) for salt in (14, 15)]
        texts[1] = texts[1][1:]
        expected = [target.own.unassisted(torch.from_numpy(text)) for text in texts]
        line, other = texts[0][-DRAFT:], tokens(target, DRAFT, 16)
        whole = [_fresh(target, text[:-DRAFT], DraftTree.chain(text[-DRAFT:])) for text in texts]
        chain = _rows_of(target, whole[:1])
        if gap(target, chain[0], expected[0]):
            return None
        limits = target.limits
        if limits.trees:
            tree = _rows_of(target, [_fresh(target, texts[0][:-DRAFT], branched(line, other))])[0]
            found = tree[point.prefix - 1 :][TRUNK_ROWS]
            limits = replace(limits, trees=not gap(target, found, expected[0][-DRAFT - 1 :]))
        if target.mode is Mode.PACKED and not limits.alone:
            pair = _rows_of(target, whole)
            limits = replace(limits, alone=any(gap(target, *both) for both in zip(pair, expected, strict=True)))
        return limits
    except torch.OutOfMemoryError:
        raise
    except FAILURES:
        return None
    finally:
        target.own.moved = 0


def _fresh(target: HFTarget, prefix: Ints, draft: DraftTree) -> Request:
    """A request for a text and a draft behind it, nothing of which is cached."""
    parents = np.concatenate([np.arange(-1, len(prefix) - 1), draft.parents + len(prefix)])
    return Request(target.open(len(prefix) + len(draft)), np.concatenate([prefix, draft.tokens]), parents)


def _rows_of(target: HFTarget, requests: Sequence[Request]) -> list[torch.Tensor]:
    """The logits of each request; leaves the rows as they were."""
    found = [scores.logits for scores in target.submit(requests).result()]
    for request in requests:
        request.rows.keep([])
    return found


def _ends_do_not_matter(target: HFTarget, rows: Rows, prefix: Ints, line: Ints, chain: torch.Tensor) -> bool:
    """Drafts of one shape that differ after some tokens must agree on the rows before, with the same kernels; except
    with experts, whose kernels depend on how many rows each of them gets."""
    modules = target.model.named_modules()
    experts = any("expert" in (name + type(module).__name__).lower() for name, module in modules)
    for shared in (0, 1, 3):
        draft = np.concatenate([line[:shared], tokens(target, DRAFT - shared, 3 + shared)])
        found = scored(target, rows, prefix, DraftTree.chain(draft))
        if gap(target, found[: shared + 1], chain[: shared + 1], 1.0 if experts else SAME_KERNELS):
            return False
    return True


def _prefix_length(target: HFTarget) -> int:
    """A length behind any window that the model's own attention code may apply."""
    named = sizes(target.model.config.get_text_config()).items()
    windows = [size for name, size in named if "window" in name and _effective(target, size) is not None]
    if target.mode is Mode.PACKED:
        windows = [size for size in windows if size <= NEAR_POSITIONS]
    if not windows:
        return PREFIX
    if max(windows) > PROBED_WINDOW and target.mode is Mode.MASKED:
        raise Unsupported(f"a window of {max(windows)} in the model's own attention code is more than is probed")
    return max([PREFIX, *(size + 2 for size in windows if size <= PROBED_WINDOW)])


def _stepwise(target: HFTarget, rows: Rows, prefix: Ints, line: Ints) -> torch.Tensor:
    """The rows of root and line, one token at a time as in plain decoding; leaves ``rows`` as they were."""
    fed = [feed(target, rows, Request.of_tree(rows, int(t), EMPTY)) for t in (prefix[-1], *line)]
    rows.rewind(len(prefix) - 1)
    return torch.cat([row for row in fed if row is not None])


def _warn_of_limits(target: HFTarget) -> None:
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
