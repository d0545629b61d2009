"""Texts of a method on calibration prompts, and the tokens that drafts of every size would have brought along them.

Each text is generated once with large drafts, from which rounds with smaller ones are simulated, and once with small
drafts to check the simulation. Under the coupled rule the first text is plain decoding's own. The second run follows
it, so that both do the same work. Each method forgets before every prompt, or before each of the two passes if it keeps
what it learns, as in benchmarks.

A round with the largest draft is fully known: its nodes with their scores, and the emitted tokens. A draft of g nodes
would have been its best g nodes, so the accepted tokens can be counted exactly. If that draft ends earlier, another
round follows from a place inside the large draft; its draft is taken to be the best g nodes below that place. So the
rounds of a smaller size are counted along the whole text, not only where rounds of the largest began, which are the
places behind all easy tokens.

For a source whose drafts do not depend on scored rows, a run with g nodes does exactly this. A source that learns from
scored rows learns less from fewer: `corrected` corrects for this by a run at one small size.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from paceline.context import Ints
from paceline.drafters.base import Drafter
from paceline.engine.observe import Observed
from paceline.errors import InputError
from paceline.law import Sampling
from paceline.planning.acceptance import Point, Spot
from paceline.targets.base import Target
from paceline.tree import DraftTree, ancestors
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.run.contestant import Job
from paceline_lab.bench.run.ours import DraftedBy, Ours
from paceline_lab.bench.suites import encode, open_suite
from paceline_lab.bench.suites.prompts import Prompt, spread
from paceline_lab.bench.suites.suites import is_here

SAMPLES = 5
"""Prompts, where no number is asked for. UniSpec takes as many, of Ultrachat, and finds that more change little."""
LANGUAGES = ("en", "pl", "uk")
SIZES = (*range(17), 18, 20, 22, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)


def prompts_of(
    asked: str | None,
    vocabulary: Vocabulary,
    samples: int | None = None,
    *,
    tasks: Sequence[str] | None = None,
    languages: Sequence[str] | None = None,
    data: Path | None = None,
    most: int = SAMPLES,
) -> list[tuple[str, Ints]]:
    """So many prompts of a suite or of a file of prompts, by their names, in the model's tokens; by default requests
    and, where there are any, running texts to go on from. InputError where there are fewer than were asked for; without
    a number, up to ``most`` are taken. Languages take turns."""
    count = most if samples is None else samples
    if asked is None:
        found, asked = _mixed(count, languages or LANGUAGES, data), "the built-in mixture"
    else:
        spec = f"prompts:{asked}" if ":" not in asked and Path(asked).is_file() else asked
        found = list(open_suite(spec, limit=count, tasks=tasks, languages=languages, data=data).prompts)
        found = spread(found, min(count, len(found)))
        found = _in_turns(found, list(dict.fromkeys(prompt.language for prompt in found)))
    if samples is not None and len(found) < samples:
        raise InputError(f"{samples} prompts were asked for, and {asked} has {len(found)}; ask for fewer")
    return [(prompt.key, encode(vocabulary, prompt)) for prompt in found]


def _mixed(count: int, languages: Sequence[str], data: Path | None) -> list[Prompt]:
    """Requests and running texts take turns, and so do languages, so that any few of them are of several kinds."""
    requests = _in_turns(open_suite("dictspec", languages=languages, limit=count).prompts, languages)
    texts = list[Prompt]()
    if is_here("continuation", data):
        found = open_suite("continuation", languages=languages, limit=count, data=data).prompts
        texts = _in_turns(found, languages)
    return [prompt for pair in zip_longest(texts, requests) for prompt in pair if prompt is not None][:count]


def _in_turns(prompts: Sequence[Prompt], languages: Sequence[str]) -> list[Prompt]:
    """The first of each language, then the second of each."""
    rows = zip_longest(*([prompt for prompt in prompts if prompt.language == one] for one in languages))
    return [prompt for row in rows for prompt in row if prompt is not None]


@dataclass(frozen=True, eq=False)
class Trail:
    """A round with a large draft, from which rounds with smaller drafts are simulated."""

    ranks: tuple[tuple[int, ...], ...]
    """For each place on the way that was accepted, and for every node further on: how many nodes below that place
    would be drafted before it."""
    nodes: int
    """How many the draft held."""
    probes: int
    emitted: int

    @classmethod
    def of(cls, tree: DraftTree, tokens: Sequence[int]) -> Trail:
        path = tree.along(tokens)
        order, below = places(tree), ancestors(tree.parents) & ~np.eye(len(tree), dtype=np.bool_)
        probes = np.zeros(len(tree), np.bool_) if tree.probes is None else tree.probes
        ranks = []
        for start in range(len(path)):
            nodes = order[~probes & (below[:, path[start - 1]] if start else True)]
            ranks.append(tuple(int((nodes < order[later]).sum()) for later in path[start:]))
        return cls(tuple(ranks), len(tree) - int(probes.sum()), int(probes.sum()), len(tokens))

    def rounds(self, size: int) -> int:
        """How many rounds of that size the tokens would have taken."""
        at = count = 0
        while at < self.emitted:
            at += 1 + next((n for n, rank in enumerate(self._ahead(at)) if rank >= size), len(self._ahead(at)))
            count += 1
        return count

    def sent(self, size: int) -> int:
        """Rows beside the root, in each of those rounds."""
        return min(size, self.nodes) + (self.probes if size else 0)

    def _ahead(self, at: int) -> tuple[int, ...]:
        return self.ranks[at] if at < len(self.ranks) else ()


def places(tree: DraftTree) -> Ints:
    """Which comes when a draft is cut to its best nodes, as `DraftTree.top` ranks them; sampled ones are cut in the
    order of the draft."""
    index = np.arange(len(tree))
    if tree.drawn:
        return index
    found = np.empty(len(tree), np.int64)
    found[np.lexsort((index, tree.depths(), -tree.path_scores()))] = index
    return found


class Walk:
    """One text with drafts of one size, and what became of the drafts."""

    def __init__(self, prompt: Ints, advance: Callable[[], None]) -> None:
        self.tokens, self.prompt, self._advance = prompt, prompt, advance
        self.trails: list[Trail] = []
        self.seconds_draft = 0.0

    def note(self, seen: Observed) -> None:
        """A round of it."""
        if not seen.round.prefill:
            self.trails.append(Trail.of(seen.draft, seen.verdict.tokens))
            self.seconds_draft += seen.round.seconds_draft
            self._advance()

    @property
    def emitted(self) -> int:
        """Tokens that rounds emitted; the first token of a text comes with its prompt."""
        return sum(trail.emitted for trail in self.trails)


@dataclass(frozen=True, kw_only=True)
class Course:
    """How texts are written."""

    target: Target
    drafter: Drafter
    sampling: Sampling
    max_new_tokens: int
    advance: Callable[[], None] = lambda: None
    vocabulary: Vocabulary | None = None

    def walk(self, prompts: Sequence[Ints], nodes: int, seconds: float) -> list[Walk]:
        """Texts with drafts of up to ``nodes`` nodes. Each may take its share of the time that is left, and has a round
        at least."""
        self.drafter.reset()
        walks, ends = list[Walk](), time.perf_counter() + seconds
        for number, prompt in enumerate(prompts):
            share = (ends - time.perf_counter()) / (len(prompts) - number)
            walks.append(self._one(prompt, nodes, self.max_new_tokens, until=time.perf_counter() + share))
        return walks

    def follow(self, walks: Sequence[Walk], nodes: int, seconds: float) -> list[Walk]:
        """The same texts again with another size, as many as there is time for, and one at least. A text counts whole:
        part of one would have another end."""
        self.drafter.reset()
        again, ends = list[Walk](), time.perf_counter() + seconds
        for walk in walks:
            started = time.perf_counter()
            again.append(self._one(walk.prompt, nodes, len(walk.tokens) - len(walk.prompt), script=walk.tokens))
            if 2 * time.perf_counter() - started > ends:
                break
        return again

    def _one(
        self, prompt: Ints, nodes: int, length: int, *, until: float | None = None, script: Ints | None = None
    ) -> Walk:
        walk, eos = Walk(prompt, self.advance), self.target.eos
        if not self.drafter.keeps:
            self.drafter.reset()
        how = DraftedBy(
            vocabulary=self.vocabulary,
            planner=f"fixed:{nodes}",
            make=lambda *_: self.drafter,
            watch=lambda _, seen: walk.note(seen),
        )
        ours = Ours(self.drafter.spec or self.drafter.name, self.target, how)
        job = Job(prompt=prompt, sampling=self.sampling, max_new_tokens=length, eos=eos, script=script, until=until)
        written = ours.write(job, time.perf_counter)
        walk.tokens = np.concatenate([prompt, np.asarray(written.tokens, np.int64)])
        return walk


def sizes_to(most: int) -> list[int]:
    """The sizes at which tokens are counted."""
    return sorted({*(size for size in SIZES if size < most), most})


def point_at(trails: Sequence[Trail], size: int) -> Point:
    """What drafts of up to ``size`` nodes would have brought along the same texts."""
    tokens, rounds = 0, Counter[int]()
    for trail in trails:
        tokens += trail.emitted
        rounds[trail.sent(size)] += trail.rounds(size)
    count = sum(rounds.values())
    sent = {rows: number / count for rows, number in sorted(rounds.items())}
    return Point(nodes=size, tokens=tokens / count, sent=sent)


def corrected(points: Iterable[Point], spot: Spot | None) -> tuple[Point, ...]:
    """Simulated points, corrected by a run at one small size: its ratio of found to simulated tokens holds up to that
    size and decays from there, by the logarithm of the size, to 1 at the largest, which was not simulated."""
    points = tuple(points)
    if spot is None:
        return points
    most = points[-1].nodes
    if spot.nodes >= most:
        return points

    def mended(point: Point) -> Point:
        past = np.log(max(point.nodes, spot.nodes) / spot.nodes) / np.log(most / spot.nodes)
        share = float(np.exp(np.log(spot.ratio) * (1 - past))) if point.nodes else 1.0
        return Point(nodes=point.nodes, tokens=1 + (point.tokens - 1) * share, sent=point.sent)

    return tuple(map(mended, points))
