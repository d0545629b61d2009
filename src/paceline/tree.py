"""The draft tree: what a drafter proposes and a target scores in one forward.

Nodes are in topological order (a parent before its children). Parent ``-1`` (`ROOT`) is the last committed token,
which is scored with the tree. The arrays live on the host: trees are small, and a gather costs a quarter of the time in
numpy that it costs in torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import index
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from paceline.errors import DrafterError
from paceline.law import Distribution

ROOT = -1
UNSURE = -0.6931471805599453
"""The score of a node whose source has no probabilities: log 0.5. Beside other sources it neither crowds out their
probable nodes nor gives way to their improbable ones, and a path of such nodes becomes less probable with each step."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class DraftTree:
    """A draft: candidate continuations that share their beginnings.

    ``drawn`` maps a parent to the law *q* from which its children were sampled, in their order and without replacement.
    Children of any other parent are `fixed`: point masses. Choosing among sampled children by value (pruning, merging)
    changes the law of the draw, so those operations drop `drawn`. For the same reason the order of the nodes must not
    depend on their values: a draft over budget is cut in this order.

    ``probes`` marks nodes that are scored for their logits and never verified (lookahead's window).
    """

    tokens: Ints
    parents: Ints
    scores: Floats
    """Log-probability of each node given its parent, by its source; `UNSURE` where that has none."""
    sources: tuple[str, ...]
    drawn: Mapping[int, Distribution] = field(default_factory=dict)
    probes: Bools | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def drafted(self) -> int:
        """The number of nodes that can be accepted: all but probes."""
        return len(self) if self.probes is None else int((~self.probes).sum())

    @cached_property
    def depth(self) -> int:
        """The most tokens in a row that can be accepted."""
        return int(self._depths[slice(None) if self.probes is None else ~self.probes].max(initial=0))

    @classmethod
    def build(
        cls,
        tokens: Iterable[int],
        parents: Iterable[int],
        *,
        source: str = "",
        scores: Iterable[float] | None = None,
        drawn: Mapping[int, Distribution] | None = None,
        probes: Iterable[bool] | None = None,
    ) -> DraftTree:
        ids = np.fromiter(map(index, tokens), np.int64)
        return cls(
            tokens=ids,
            parents=np.fromiter(map(index, parents), np.int64),
            scores=np.full(len(ids), UNSURE) if scores is None else np.fromiter(scores, np.float64),
            sources=(source,) * len(ids),
            drawn=drawn or {},
            probes=None if probes is None else np.fromiter(probes, np.bool_),
        )

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int] | Ints,
        *,
        source: str = "",
        scores: Iterable[float] | None = None,
        laws: Sequence[Distribution] = (),
    ) -> DraftTree:
        """One line of tokens; ``laws[i]`` is the law token ``i`` was sampled from, where it was sampled."""
        parents, unsure = line(len(tokens))
        return cls(
            tokens=_ids(tokens),
            parents=parents,
            scores=unsure if scores is None else np.fromiter(scores, np.float64),
            sources=(source,) * len(tokens),
            drawn={i - 1: law for i, law in enumerate(laws)} if laws else FIXED,
        )

    @classmethod
    def from_beams(
        cls,
        beams: Sequence[Sequence[int]],
        *,
        source: str = "",
        scores: Sequence[Sequence[float]] | None = None,
    ) -> DraftTree:
        """Beams as a tree: shared beginnings once, level by level, shallow nodes first; without scores `UNSURE`.

        >>> DraftTree.from_beams([[5, 6], [5, 7], [8]]).parents.tolist()
        [-1, -1, 0, 0]
        """
        rows = [[index(token) for token in beam] for beam in beams]
        at, found, first = [ROOT] * len(rows), dict[tuple[int, int], int](), list[tuple[int, int]]()
        for depth in range(max(map(len, rows), default=0)):
            for number, row in enumerate(rows):
                if depth < len(row):
                    key = at[number], row[depth]
                    if key not in found:
                        found[key] = len(found)
                        first.append((number, depth))
                    at[number] = found[key]
        given = {(row, depth): score for row, own in enumerate(scores or ()) for depth, score in enumerate(own)}
        worth = [given.get(place, UNSURE) for place in first]
        parents, tokens = zip(*found, strict=True) if found else ((), ())
        return cls.build(tokens, parents, source=source, scores=worth)

    def children(self, parent: int) -> Ints:
        """The verifiable children of a node, in the order in which they were drawn."""
        found: Ints = (self.parents == parent).nonzero()[0]
        return found if self.probes is None else found[~self.probes[found]]

    def child(self, parent: int, token: int) -> int | None:
        """The child of ``parent`` that carries ``token``, if the draft has one."""
        found = self.children(parent)
        found = found[self.tokens[found] == token]
        return int(found[0]) if len(found) else None

    def along(self, tokens: Iterable[int]) -> list[int]:
        """The nodes that these tokens lead to from the root, one after the other, as far as the draft has them."""
        probes = [False] * len(self) if self.probes is None else self.probes.tolist()
        places, found = [*zip(self.parents.tolist(), self.tokens.tolist(), probes, strict=True)], [ROOT]
        for token in tokens:
            if (place := (found[-1], token, False)) not in places:
                break
            found.append(places.index(place, found[-1] + 1))
        return found[1:]

    def depths(self) -> Ints:
        """Each node's distance from the root; 1 for the root's children."""
        return self._depths.copy()

    @cached_property
    def _depths(self) -> Ints:
        return offsets(self.parents) + 1

    def path(self, node: int) -> list[int]:
        """The nodes from below the root down to ``node``."""
        path = list[int]()
        while node != ROOT:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]

    def path_scores(self) -> Floats:
        """Log-probability of the path to each node; a child's is never higher than its parent's."""
        totals = self.scores.tolist()
        for node, parent in enumerate(self.parents.tolist()):
            if parent != ROOT:
                totals[node] += totals[parent]
        return np.array(totals, np.float64)

    def select(self, nodes: Sequence[int] | Ints, *, drawn: Mapping[int, Distribution] | None = None) -> DraftTree:
        """The tree of the given nodes, ascending and closed under parents."""
        index = np.asarray(nodes, np.int64)
        place = np.full(len(self) + 1, -2, np.int64)
        place[index] = np.arange(len(index))
        place[-1] = ROOT
        parents = place[self.parents[index]]
        assert (parents != -2).all(), "a selection of nodes must hold the parents of its nodes"
        return DraftTree(
            tokens=self.tokens[index],
            parents=parents,
            scores=self.scores[index],
            sources=tuple(self.sources[i] for i in index.tolist()),
            drawn={int(place[p]): q for p, q in (drawn or {}).items() if p == ROOT or place[p] >= 0},
            probes=None if self.probes is None else self.probes[index],
        )

    def head(self, count: int, *, depth: int | None = None) -> DraftTree:
        """The first ``count`` nodes, down to ``depth``: a cut that does not depend on values, so it keeps `drawn`.
        Probes are not counted; within the depth they stay if their parent does."""
        if count >= len(self) and (depth is None or depth >= len(self) or depth >= self._depths.max()):
            return self
        if depth is None and self.probes is None:
            return self._first(count)
        free = np.ones(len(self), np.bool_) if self.probes is None else ~self.probes
        keep = ~free | (np.cumsum(free) <= count)
        if depth is not None:
            keep &= self._depths <= depth
        for node in () if self.probes is None else np.flatnonzero(self.probes).tolist():
            keep[node] &= self.parents[node] == ROOT or keep[self.parents[node]]
        return self if keep.all() else self.select(np.flatnonzero(keep), drawn=self.drawn)

    def _first(self, count: int) -> DraftTree:
        """The first ``count`` nodes, of which nothing is looked at."""
        return DraftTree(
            tokens=self.tokens[:count],
            parents=self.parents[:count],
            scores=self.scores[:count],
            sources=self.sources[:count],
            drawn={parent: law for parent, law in self.drawn.items() if parent < count},
        )

    def trunk(self) -> DraftTree:
        """The line of first children, for a target that can only score chains."""
        line, node = list[int](), ROOT
        while len(children := self.children(node)):
            node = int(children[0])
            line.append(node)
        return self if len(line) == len(self) else self.select(line, drawn=self.drawn)

    def top(self, count: int, paths: Floats | None = None) -> DraftTree:
        """The ``count`` best nodes by ``paths`` or else by path score, of equal ones the shallow first, and all probes
        with their ancestors. The result is connected, because neither value rises from parent to child."""
        if count >= len(self):
            return self
        ranks = -(self.path_scores() if paths is None else paths)
        if self.probes is not None:
            ranks[self.under_probes()] = -np.inf
            count += int(self.probes.sum())
        order = np.lexsort((self._depths, ranks))  # stable
        return self.select(np.sort(order[:count]))

    def under_probes(self) -> Bools:
        """The probes and all their ancestors."""
        assert self.probes is not None, "only a tree with probes is asked"
        held = self.probes.copy()
        for node in range(len(self) - 1, -1, -1):
            if held[node] and self.parents[node] != ROOT:
                held[self.parents[node]] = True
        return held

    def check(self, vocab_size: int | None = None) -> None:
        """Raise a `DrafterError` where the tree breaks a rule. Without ``vocab_size`` only its shape is checked."""
        if self is EMPTY:
            return
        self._check_arrays(vocab_size)
        if not is_chain(self.parents):
            self._check_parents()
            self._check_siblings()
        self._check_draws()

    def _check_arrays(self, vocab_size: int | None) -> None:
        n = len(self.tokens)
        marks = n if self.probes is None else len(self.probes)
        if not self.tokens.shape == self.parents.shape == self.scores.shape == (len(self.sources),) == (marks,):
            raise DrafterError(f"a draft tree of {n} tokens needs as many parents, scores, sources and probe marks")
        if not self.tokens.dtype == self.parents.dtype == np.int64:
            kinds = f"{self.tokens.dtype} and {self.parents.dtype}"
            raise DrafterError(f"tokens and parents of a draft tree are int64 arrays, not {kinds}; use DraftTree.build")
        if not {*map(type, self.sources)} <= {str}:
            raise DrafterError(f"the sources of a draft are names, not {self.sources}")
        if n and self.scores is not line(n)[1] and not self.scores.max() <= 0:
            wrong = self.scores[~(self.scores <= 0)][0]
            raise DrafterError(f"scores in a draft are log-probabilities, at most 0; it has {wrong}")
        ids = self.tokens.tolist()  # of few numbers a list is read faster than an array
        if ids and min(ids) < 0:
            raise DrafterError(f"a draft holds token {min(ids)}; token ids start at 0")
        if ids and vocab_size is not None and max(ids) >= vocab_size:
            raise DrafterError(f"a draft holds token {max(ids)}, and the target's vocabulary has {vocab_size} tokens")

    def _check_parents(self) -> None:
        wrong = (self.parents < ROOT) | (self.parents >= np.arange(len(self)))
        if wrong.any():
            node = int(wrong.argmax())
            wanted = f"a parent is an earlier node of the draft, or {ROOT} for the root"
            raise DrafterError(f"the parent of node {node} is {self.parents[node]}; {wanted}")

    def _check_siblings(self) -> None:
        verified = slice(None) if self.probes is None else ~self.probes
        parents = self.parents[verified].tolist()
        if len({*zip(parents, self.tokens[verified].tolist(), strict=True)}) < len(parents):
            raise DrafterError("two children of one node in a draft tree carry the same token; merge them first")

    def _check_draws(self) -> None:
        """A sampled child of probability 0 would be a division by zero, and is no sample of its law."""
        for parent, law in self.drawn.items():
            if not ROOT <= parent < len(self):
                raise DrafterError(f"a draft names a law for the children of node {parent}, which it does not have")
            for token in self.tokens[self.children(parent)].tolist():
                if not law.probability(token) > 0:
                    raise DrafterError(f"token {token} of a draft cannot come from the law it was sampled from")


EMPTY = DraftTree.build((), ())
FIXED: Mapping[int, Distribution] = MappingProxyType({})


@lru_cache(maxsize=1024)
def line(length: int) -> tuple[Ints, Floats]:
    """Parents and scores of a chain whose source has no probabilities, read-only: chains of a length share them."""
    parents, unsure = np.arange(ROOT, length - 1), np.full(length, UNSURE)
    parents.flags.writeable = unsure.flags.writeable = False
    return parents, unsure


def _ids(tokens: Sequence[int] | Ints) -> Ints:
    """Token ids as a separate array. Other numbers than whole ones raise a TypeError instead of being cut off."""
    if isinstance(tokens, np.ndarray):
        if len(tokens) and tokens.dtype.kind not in "iu":
            raise TypeError(f"token ids are whole numbers, not {tokens.dtype}")
        return np.array(tokens, np.int64)
    return np.fromiter(map(index, tokens), np.int64, len(tokens))


def merge(trees: Sequence[DraftTree]) -> DraftTree:
    """The union: equal paths become one node with all their sources and the best score.

    The result depends on the values of sampled children, so their laws are dropped. Probes are not merged.
    """
    nodes: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    sources: list[str] = []
    probes: list[bool] = []
    for tree in trees:
        marks = [False] * len(tree) if tree.probes is None else tree.probes.tolist()
        lists = tree.tokens.tolist(), tree.parents.tolist(), tree.scores.tolist()
        places: list[int] = []
        for token, parent, score, source, probe in zip(*lists, tree.sources, marks, strict=True):
            above = ROOT if parent == ROOT else places[parent]
            known = None if probe else nodes.get((above, token))
            if known is None:
                known = len(tokens)
                tokens.append(token)
                parents.append(above)
                scores.append(score)
                sources.append(source)
                probes.append(probe)
                if not probe:
                    nodes[above, token] = known
            else:
                scores[known] = max(scores[known], score)
                sources[known] = _both(sources[known], source)
            places.append(known)
    return DraftTree(
        tokens=np.array(tokens, np.int64),
        parents=np.array(parents, np.int64),
        scores=np.array(scores, np.float64),
        sources=tuple(sources),
        probes=np.array(probes) if any(probes) else None,
    )


def _both(first: str, second: str) -> str:
    return first if second in first.split("+") else f"{first}+{second}"


def is_chain(parents: Ints) -> bool:
    """Whether the parent of every scored row is the row before it."""
    return not len(parents) or parents is (known := line(len(parents))[0]) or bool((parents == known).all())


def ancestors(parents: Ints) -> Bools:
    """``[n, n]``: whether row ``i`` attends to row ``j``, itself or an ancestor; parent ``-1`` is the cached prefix.

    >>> ancestors(np.array([-1, 0, 0])).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    n = len(parents)
    if is_chain(parents):
        return np.tri(n, dtype=np.bool_)
    seen = list[int]()  # of each row a bit for every row
    for row, parent in enumerate(parents.tolist()):
        seen.append(1 << row | (0 if parent == ROOT else seen[parent]))
    packed = np.frombuffer(b"".join(row.to_bytes(-(-n // 8), "little") for row in seen), np.uint8)
    return np.unpackbits(packed.reshape(n, -1), axis=1, count=n, bitorder="little").view(np.bool_)


def offsets(parents: Ints) -> Ints:
    """The distance of each scored row from the first, whose position is right after the cached prefix."""
    if is_chain(parents):
        return np.arange(len(parents))
    depths = list[int]()
    for parent in parents.tolist():
        depths.append(0 if parent == ROOT else depths[parent] + 1)
    return np.array(depths, np.int64)


def rows_of(root: int, tree: DraftTree) -> tuple[Ints, Ints]:
    """Tokens and parents of the rows that a target scores for a tree: the root first, then the nodes."""
    parents = line(len(tree) + 1)[0] if is_chain(tree.parents) else np.concatenate(([ROOT], tree.parents + 1))
    return np.concatenate(([root], tree.tokens)), parents
