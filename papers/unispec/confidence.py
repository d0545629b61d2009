"""Figure 3: how often nodes are accepted by their score, and how many nodes have which score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline import DraftTree, Observed
from paceline_lab import Estimate, Summary
from papers.charts import Curve, Panel
from papers.driver import Given
from papers.report import Claim, Report, Way
from papers.unispec.lab import AUTO, OWN, SizesLab, published, sampled, shared, size_notes, sized

BINS = 10
Nodes = tuple[list[float], list[int]]
"""Of every node that was sent, its score and whether it was accepted."""


def note(nodes: Nodes, tree: DraftTree, tokens: Sequence[int], *, own: bool = False) -> None:
    """A round: the nodes sent, and the emitted tokens. A node's score is its ``own``, or that of its path."""
    if not len(tree):
        return
    taken = np.zeros(len(tree), np.int64)
    taken[tree.along(tokens)] = 1
    shown = np.ones(len(tree), np.bool_) if tree.probes is None else ~tree.probes
    nodes[0].extend(
        round(float(one), 5) for one in np.exp(np.minimum(tree.scores if own else tree.path_scores(), 0.0))[shown]
    )
    nodes[1].extend(int(one) for one in taken[shown])


def binned(scores: Sequence[float], accepted: Sequence[int]) -> list[tuple[float, float, int]]:
    """Of every tenth of the scores that has nodes: their mean score, the share that was accepted, and how many."""
    score, taken = np.asarray(scores, np.float64), np.asarray(accepted, np.float64)
    place = np.minimum((score * BINS).astype(np.int64), BINS - 1)
    return [
        (float(score[place == n].mean()), float(taken[place == n].mean()), int((place == n).sum()))
        for n in np.unique(place)
    ]


def rising(entry: str, nodes: Nodes, tenths: Sequence[tuple[float, float, int]]) -> Claim:
    """Nodes above the middle score against those below it."""
    score, taken = np.asarray(nodes[0], np.float64), np.asarray(nodes[1], np.float64)
    middle = 0.5 if (score >= 0.5).any() and (score < 0.5).any() else float(np.median(score)) + 1e-12
    high, low = (float(part.mean()) if len(part) else 0.0 for part in (taken[score >= middle], taken[score < middle]))
    ours = f"{high:.1%} above the middle and {low:.1%} below, from {tenths[0][1]:.1%} to {tenths[-1][1]:.1%}"
    claim = f"nodes of higher score are accepted more often, {entry}"
    return Claim.of(claim, "acceptance rises with the score", ours, Way.ABOVE, Estimate(high / max(low, 1e-9)))


def expected(run: Summary) -> tuple[list[Curve], list[str]]:
    """The tokens that planners expected of rounds and the emitted ones, in groups of equal size."""
    lines, notes = list[Curve](), list[str]()
    for number, entry in enumerate(run.entries):
        found = [r.rounds for r in run.records(entry) if r.rounds is not None and "expected_tokens" in r.rounds]
        guess, came = (np.concatenate([[], *(one[name] for one in found)]) for name in ("expected_tokens", "emitted"))
        guess, came = guess[guess > 0], came[guess > 0]
        if not len(guess):
            continue
        groups = np.array_split(np.argsort(guess, kind="stable"), min(BINS, len(guess)))
        lines.append(Curve(entry, [(float(guess[g].mean()), float(came[g].mean())) for g in groups], number))
        notes.append(
            f"{entry}: its planner expected {guess.mean():.2f} tokens a round and {came.mean():.2f} came, over "
            f"{len(guess)} rounds"
        )
    return lines, notes


def by_score(run: Summary, nodes: Mapping[str, Nodes]) -> Report:
    rows, claims, accepted, dense = list[tuple[str, ...]](), list[Claim](), list[Curve](), list[Curve]()
    for number, (entry, its) in enumerate(nodes.items(), start=1):
        tenths = binned(*its)
        count = sum(n for _, _, n in tenths)
        rows += [(entry, f"{score:.2f}", f"{taken:.1%}", f"{n / count:.1%}", str(n)) for score, taken, n in tenths]
        accepted.append(Curve(entry, [(score, taken) for score, taken, _ in tenths], number))
        dense.append(Curve(entry, [(score, n / count) for score, _, n in tenths], number))
        if len(tenths) > 1:
            claims.append(rising(entry, its, tenths))
    lines, notes = expected(run)
    panels = [
        Panel("Accepted, by score", "score of a node", "share accepted", [*accepted, *as_expected(accepted)]),
        Panel("Nodes by score", "score of a node", "share of nodes", dense),
        Panel("Tokens of a round", "expected", "came", [*lines, *as_expected(lines)]),
    ]
    head = ("", "score", "accepted", "share of nodes", "nodes")
    return Report("UniSpec, Figure 3: confidence", [(head, rows)], claims, notes, panels)


def as_expected(lines: Sequence[Curve]) -> list[Curve]:
    """The line on which exactly that comes which was expected."""
    places = [x for line in lines for x, _ in line.points]
    return [Curve("as expected", [(x, x) for x in (min(places), max(places))], 0)] if places else []


def figure3(given: Given) -> Report:
    """Figure 3: how often nodes are accepted by their score, and how many nodes have which score.

    A node's score is what its method ranks it by: as published the probability of its own candidate, else the product
    of those on the way to it; with the shared noise these are no probabilities. Beside the paper's figure are the
    tokens that planners expected of rounds and the emitted ones. Drafts are as large as their methods make them, unless
    ``--nodes`` says otherwise.
    """
    lab = SizesLab(given)
    nodes = dict[str, Nodes]()

    def watch(entry: str, seen: Observed) -> None:
        own = published(entry.partition("@")[0])
        note(nodes.setdefault(entry, ([], [])), seen.draft, seen.verdict.tokens, own=own)

    size = lab.size() if given.nodes else None
    noisy = [sized(shared(lab.method), size)] if lab.temperature and published(lab.method) else []
    methods = [sized(lab.method, size), *noisy, sized(OWN, size), AUTO]
    found = lab.watched("run", methods, "nodes.json", nodes, watch)
    shown = by_score(lab.runs["run"], {entry: its for entry, its in found.items() if its[0]})
    return lab.whole(shown, [*size_notes(size), *sampled(lab.temperature, given.model)])
