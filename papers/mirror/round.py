"""Figure 1: one round, with the draft that is verified, the branches that were drafted ahead, and the one that is used
again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline import load
from paceline_lab import BranchedRound, branched_rounds
from papers.charts import Box, Diagram
from papers.driver import Given
from papers.report import Claim, Report, Table

DRAFT, ACCEPTED, CORRECTED, FORESEEN, LEFT = 6, 3, 2, 1, 0
"""Colours: of the draft, of what is accepted and used again, of the correction, of proxies, and of what is left."""


def telling(rounds: Sequence[BranchedRound], gamma: int) -> BranchedRound:
    """The first round like the paper's: something is accepted, something is corrected, and a branch is used again."""
    whole = [each for each in rounds if len(each.draft) == gamma]
    like = [each for each in whole if 0 < each.accepted < gamma and each.reused is not None]
    if not (like or whole):
        raise ValueError("the text has no round with a whole draft; choose a longer one")
    return (like or whole)[0]


def table_of(one: BranchedRound, words: Sequence[str]) -> Table:
    """Branch by branch: where the target would have stopped, what the exit saw there, and the window behind it."""
    named, reused = dict(zip(_tokens(one), words, strict=True)), one.reused
    head = "the target accepts", "proxy", "window drafted ahead", ""
    rows = list[Sequence[str]]()
    for each in one.branches:
        prefix = " ".join(named[token] for token in one.draft[: each.stop + 1]) or "nothing"
        window = " ".join(named[token] for token in each.window)
        rows.append((prefix, named[each.proxy], window, "the next draft" if each is reused else ""))
    return head, rows


def _tokens(one: BranchedRound) -> list[int]:
    found = [*one.draft, one.correction, *one.following]
    for each in one.branches:
        found += [each.proxy, *each.window]
    return list(dict.fromkeys(found))


def picture(one: BranchedRound, words: Sequence[str]) -> Diagram:
    """The paper's picture: the draft above, a column for each place where the target may stop, the proxy there, and the
    window behind it downwards."""
    named, reused = dict(zip(_tokens(one), words, strict=True)), one.reused
    boxes, arrows = list[Box](), list[tuple[float, float, float, float, int]]()
    boxes += [Box(-1.0, y, word, framed=False) for y, word in ((0, "draft"), (-1, "target"), (-2, "early exit"))]
    for place, token in enumerate(one.draft):
        taken = place < one.accepted
        boxes.append(Box(place, 0, named[token], DRAFT if taken else LEFT))
        if taken:
            boxes.append(Box(place, -1, named[token], ACCEPTED))
    boxes.append(Box(one.accepted, -1, named[one.correction], CORRECTED))
    columns = {stop: [each for each in one.branches if each.stop == stop] for stop in range(-1, len(one.draft))}
    for stop, branches in columns.items():
        for number, each in enumerate(branches):
            x = stop + 1 + number / max(1, len(branches))
            color = ACCEPTED if each is reused else FORESEEN
            boxes.append(Box(x, -2, named[each.proxy], color))
            below = ACCEPTED if each is reused else LEFT
            boxes += [Box(x, -3 - level, named[token], below) for level, token in enumerate(each.window)]
            arrows += [(x, -2 - level, x, -3 - level, below) for level in range(len(each.window))]
    if reused is not None:
        arrows.append((one.accepted, -1, reused.stop + 1, -2, ACCEPTED))
    levels = max((len(each.window) for each in one.branches), default=0)
    boxes += [Box(-1.0, -3 - level, f"window, {level + 1}", framed=False) for level in range(levels)]
    return Diagram(f"round {one.number}: {one.accepted} accepted, then corrected", boxes, arrows)


def claims(rounds: Sequence[BranchedRound]) -> Iterator[Claim]:
    """Of the paper's rule: where the corrected prefix is a path in the tree of the branches, that is used again."""
    held = [each.anew is not each.on_a_path for each in rounds if each.following]
    yield Claim("a corrected prefix on a path is reused", "always", f"in {sum(held)} of {len(held)} rounds", all(held))


def one_round(given: Given) -> Report:
    """Figure 1: verification and reuse in one round of a real text, with three drafted tokens and one proxy for each.

    The draft model drafts all branches to their ends, in turns with the target, so the picture is of what is used again
    and not of when. Of the text's rounds it is the first one with an accepted token, a correction, and a branch that is
    used again.
    """
    lm = load(given.model, dtype="float32")
    how = {name: getattr(given, name) for name in ("temperature", "seed", "max_new_tokens")}
    options = {name: getattr(given, name) for name in ("gamma", "kappa", "exit")}
    rounds = branched_rounds(lm, given.draft, given.text, options=options, **how)
    one = telling(rounds, given.gamma)
    assert lm.vocabulary is not None, "bundled models have one"
    words = [repr(lm.vocabulary.text([token]))[1:-1] for token in _tokens(one)]
    reused = sum(not each.anew for each in rounds)
    notes = [
        f"{given.model}, drafts by {given.draft}, temperature {given.temperature:g}, seed {given.seed}, the text "
        f"{given.text!r}; of its {len(rounds)} rounds {reused} used a branch again",
    ]
    return Report(
        "Mirror-SD, Figure 1: a round", [table_of(one, words)], list(claims(rounds)), notes, [picture(one, words)]
    )
