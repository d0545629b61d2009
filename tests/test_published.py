"""Methods as their authors have them, ``NAME:paper``, each against a reading of its paper or its published code that
is written here by hand and shares no code with it: round by round the same nodes. SPECTRA has no reading, for its paper
is not at hand."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import paceline
from drafting import drafted, paths_of
from engine import habitual, write
from paceline.context import Context
from paceline.drafters import Budget, Drafter, Seen, make_drafter
from paceline.drafters.indexing import build
from paceline.law import Sampling
from paceline.targets.base import Target
from paceline.targets.table import TableTarget
from paceline.tree import DraftTree
from thinning import thinned

Word = tuple[int, ...]
Row = list[tuple[int, float]]
SIZE = 60
MOST = 10
"""Best tokens of every row that readings get."""


class Reading:
    """A method, read literally."""

    def __init__(self, text: list[int], ends: frozenset[int]) -> None:
        self.text, self.ends = text, ends

    def draft(self, nodes: int, depth: int) -> set[Word]:
        raise NotImplementedError

    def window(self) -> list[Word]:
        """What is scored and not drafted."""
        return []

    def learn(self, rows: list[Word], best: list[Row], kept: list[int]) -> None:
        """The rows of a round by the tokens that lead to them from the root on, with the best tokens after each, the
        likeliest first, and which rows became text, in order."""


class Algorithm1(Reading):
    """UniSpec's, line by line; d = k = 10 and r = 0.05. ``text[-1]`` is x_t."""

    def __init__(self, text: list[int], ends: frozenset[int]) -> None:
        super().__init__(text, ends)
        self.S: dict[int, Row] = {}  # lines 1, 2
        self.C: Row = []

    def draft(self, nodes: int, depth: int) -> set[Word]:
        tree: dict[Word, float] = {}  # line 16
        for token, confidence in self.S.get(self.text[-1], []) + self.C:  # lines 17 to 20
            tree[token,] = max(confidence, tree.get((token,), 0.0))
        level = dict(tree)
        for _ in range(1, min(10, depth)):  # lines 22 to 29; i = 1 finds the first level again
            leaves = sorted(level, key=lambda word: -level[word])[:10]
            leaves = [word for word in leaves if level[word] >= 0.05 and word[-1] not in self.ends]
            level = {(*word, token): confidence for word in leaves for token, confidence in self.S.get(word[-1], [])}
            tree |= level
        taken: set[Word] = set()  # line 30
        hanging, place = [word for word in tree if len(word) == 1], {word: place for place, word in enumerate(tree)}
        while hanging and len(taken) < nodes:
            best = max(hanging, key=lambda word: (tree[word], -place[word]))
            hanging.remove(best)
            taken.add(best)
            hanging += [(*best, token) for token, _ in self.S.get(best[-1], []) if (*best, token) in tree]
        return taken

    def learn(self, rows: list[Word], best: list[Row], kept: list[int]) -> None:
        refused = [row for row in range(len(rows)) if row not in kept]
        for row in refused + kept:  # lines 38 to 44
            self.S[rows[row][-1]] = best[row]
        self.C = best[kept[-1]]  # lines 45 to 47


class TokenRecycling(Reading):
    """The published tree, as the number of children of each node, filled rank by rank from the matrix."""

    CHILDREN = (
        {"": 8, "0": 8, "1": 4, "2": 3, "3": 2, "4": 1, "5": 1, "6": 1, "7": 1}
        | {"00": 8, "01": 3, "02": 2, "03": 1, "04": 1, "05": 1, "06": 1, "07": 1}
        | {"10": 2, "11": 1, "20": 1, "30": 1, "40": 1, "50": 1, "000": 5, "001": 2, "002": 1, "003": 1, "004": 1}
        | {"010": 1, "020": 1, "100": 1, "200": 1, "300": 1, "0000": 3, "0001": 1, "0002": 1, "0010": 1, "0100": 1}
        | {"1000": 1, "00000": 2, "00010": 1}
    )
    matrix: ClassVar[dict[int, Row]] = {}
    """Of all texts, until another is put in its place."""

    def draft(self, nodes: int, depth: int) -> set[Word]:
        assert nodes == sum(self.CHILDREN.values()) == 80
        drafts: set[Word] = set()
        waiting: list[tuple[str, Word]] = [("", ())]
        while waiting:
            ranks, word = waiting.pop()
            row = self.matrix.get(word[-1] if word else self.text[-1], [])
            if len(word) == depth or (word and word[-1] in self.ends):
                continue
            for rank in range(min(self.CHILDREN.get(ranks, 0), len(row))):
                child = (*word, row[rank][0])
                drafts.add(child)
                waiting.append((f"{ranks}{rank}", child))
        return drafts

    def learn(self, rows: list[Word], best: list[Row], kept: list[int]) -> None:
        for row in [row for row in range(len(rows)) if row not in kept] + kept:
            self.matrix[rows[row][-1]] = best[row][:8]


class LookaheadDecoding(Reading):
    """The authors' code: N = 5, W = G = 15, no pool from the prompt."""

    N, W, G = 5, 15, 15

    def __init__(self, text: list[int], ends: frozenset[int]) -> None:
        super().__init__(text, ends)
        coins = random.Random(len(text))
        self.past: list[list[int]] = [[text[coins.randrange(len(text))] for _ in range(self.W + self.N - 3)]]
        self.map: dict[int, list[Word]] = {}

    def draft(self, nodes: int, depth: int) -> set[Word]:
        assert nodes == (self.N - 1) * (self.W + self.G) == 120
        guesses = self.map.get(self.text[-1], [])
        return {guess[:length] for guess in guesses for length in range(1, 1 + min(depth, self.N - 1))}

    def window(self) -> list[Word]:
        first, *later = self.past
        across = [tuple(first[:column]) for column in range(len(first) + 1)]
        levels = [
            [word + tuple(level[column] for level in later[: deep + 1]) for column, word in enumerate(across)]
            for deep in range(len(later))
        ]
        return [*across[1:], *(word for level in levels for word in level)]

    def learn(self, rows: list[Word], best: list[Row], kept: list[int]) -> None:
        said = {word[1:]: row[0][0] for word, row in zip(rows, best, strict=True)}
        if any(word not in said for word in self.window()):
            return
        first, *later = self.past
        newest = [
            said[(*first[:column], *(level[column] for level in later))] for column in range(len(first) + 1)
        ]  # fmt: skip
        if len(self.past) < self.N - 1:
            self.past = [level[1:] for level in (*self.past, newest)]
            return
        for column, key in enumerate([rows[0][-1], *first]):
            pool, gram = self.map.setdefault(key, []), (*(level[column] for level in later), newest[column])
            if gram in pool:
                pool.remove(gram)
            pool.append(gram)
            del pool[: -self.G]
        self.past = [later[0][1:], *later[1:], newest]


class PromptLookup(Reading):
    """The author's loop over sizes and matches: 3-grams at most, 10 tokens."""

    def draft(self, nodes: int, depth: int) -> set[Word]:
        text = self.text
        for size in (3, 2, 1):
            for start in range(len(text) - size + 1):
                begin, end = start + size, start + size + 10
                if text[start:begin] == text[-size:] and end <= len(text) and begin < len(text) - size:
                    return {tuple(text[begin : begin + length]) for length in range(1, 1 + min(10, nodes, depth))}
        return set()


class Beside(Drafter):
    """A method and its reading: they see the same rounds and have to draft the same nodes."""

    def __init__(self, spec: str, reading: Callable[[list[int], frozenset[int]], Reading], nodes: int) -> None:
        self.inner, self.reading, self.nodes = make_drafter(spec), reading, nodes
        self.needs = self.inner.needs
        self.rounds = self.drafts = 0

    def fit(self, target: Target, vocabulary: Any = None) -> None:
        self.inner.fit(target, vocabulary)

    def open(self, context: Context) -> Any:
        read = self.reading(context.tokens.tolist(), context.ending.eos)
        return context, self.inner.open(context), read

    def propose_one(self, state: Any, budget: Budget) -> DraftTree:
        """Checked, and handed on."""
        context, inner, read = state
        read.text = context.tokens.tolist()
        [tree] = self.inner.propose([(inner, Budget(self.nodes, budget.depth))])  # type: ignore[list-item]
        probes = np.zeros(len(tree), np.bool_) if tree.probes is None else tree.probes
        words = paths_of(tree)
        proposed = [word for word, probe in zip(words, probes.tolist(), strict=True) if not probe]
        assert set(proposed) == read.draft(self.nodes, budget.depth)
        assert len(set(proposed)) == len(proposed)
        scored = [word for word, probe in zip(words, probes.tolist(), strict=True) if probe]
        assert Counter(scored) == Counter(read.window())
        self.rounds += 1
        self.drafts += bool(proposed)
        return tree

    def observe(self, seen: Sequence[Seen]) -> None:
        for (_, inner, read), verdict, scores in seen:
            self.inner.observe([Seen(inner, verdict, scores)])
            if not verdict.tokens:
                continue
            words: list[Word] = []
            for token, parent in zip(scores.tokens.tolist(), scores.parents.tolist(), strict=True):
                words.append((*(words[parent] if words else ()), token))
            best = [likeliest(scores.row(node)) for node in range(-1, len(words) - 1)]
            read.learn(words, best, [0, *(node + 1 for node in verdict.path)])


def likeliest(logits: torch.Tensor) -> Row:
    """The best tokens of a row with their probabilities."""
    chances = torch.softmax(torch.as_tensor(logits).double(), 0).tolist()
    return sorted(enumerate(chances), key=lambda one: -one[1])[:MOST]


READINGS = {
    "unispec:paper": (Algorithm1, 60),
    "recycling:paper": (TokenRecycling, 80),
    "lookahead:paper": (LookaheadDecoding, 120),
    "lookup:paper": (PromptLookup, 10),
}


def held(target: Target, spec: str, prompts: Sequence[Sequence[int]], temperature: float, length: int) -> Beside:
    reading, nodes = READINGS[spec]
    TokenRecycling.matrix = {}
    beside = Beside(spec, reading, nodes)
    beside.fit(target)
    for seed, prompt in enumerate(prompts):
        sampling = Sampling(temperature=temperature, seed=seed)
        write(target, prompt, beside, nodes=nodes, sampling=sampling, max_new_tokens=length)
    return beside


@cache
def law_after(last: int, before: int) -> list[float]:
    """A favourite and no two alike, for of equals a reading may take another. Mostly the last token decides, so that a
    store is of use; but what it holds changes with the text."""
    numbers = np.random.default_rng((last, before % 3))
    weights = numbers.normal(0.0, 2.0, SIZE)
    weights[numbers.integers(SIZE)] += 4.0
    return weights.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("spec", thinned(READINGS))
def test_a_method_as_published_drafts_what_its_paper_says(spec: str) -> None:
    rounds = drafts = 0
    for temperature in (0.0, 1.0):
        target = TableTarget(lambda history: law_after(*history[-1:-3:-1]), SIZE, eos=frozenset([7]))
        prompts = np.random.default_rng(0).integers(8, SIZE, (12, 12)).tolist()
        beside = held(target, spec, prompts, temperature, 40)
        rounds, drafts = rounds + beside.rounds, drafts + beside.drafts
    assert rounds > 100
    assert drafts > rounds / 4


@pytest.mark.slow
@pytest.mark.parametrize("spec", READINGS)
def test_on_two_thousand_rounds_of_a_model(spec: str) -> None:
    lm = paceline.load("pocket", dtype="float32", generation_config=False)
    assert lm.vocabulary is not None
    starts = (
        "The train left the station and",
        "Pociąg odjechał ze stacji i",
        "Потяг рушив зі станції і",
        "def read(path):",
    )
    prompts = [lm.vocabulary.encode(start).tolist() for start in starts]
    written = [held(lm.target, spec, prompts, temperature, 400) for temperature in (0.0, 0.8, 1.0)]
    rounds = sum(beside.rounds for beside in written)
    assert rounds > 2000
    assert sum(beside.drafts for beside in written) > rounds / 4


# --- REST, which drafts from the text alone ---------------------------------------------------------------------------


def retrieved(corpus: Sequence[Sequence[int]], text: Sequence[int], nodes: int) -> set[Word]:
    """Of the longest ending of 16 to 2 tokens that is in the corpus all places, and the prefixes of their next 10
    tokens by how many there are; of equals the shorter, then the lower."""
    for size in range(min(16, len(text)), 1, -1):
        ending = list(text[-size:])
        found = [
            tuple(one[start + size : start + size + 10])
            for one in corpus
            for start in range(len(one) - size + 1)
            if list(one[start : start + size]) == ending
        ]
        if found:
            counts = Counter(word[:length] for word in found for length in range(1, len(word) + 1))
            return set(sorted(counts, key=lambda word: (-counts[word], len(word), word))[:nodes])
    return set()


@pytest.mark.slow
def test_rest_as_published_counts_what_followed(tmp_path: Path) -> None:
    target, sampling = TableTarget(habitual(20, memory=2), 20), Sampling(temperature=1.0)

    @cache
    def written(seed: int, length: int) -> list[int]:
        how = {"sampling": Sampling(temperature=sampling.temperature, seed=seed), "max_new_tokens": length}
        return write(target, [seed % 20, 3], make_drafter("plain"), **how).context.tokens.tolist()  # type: ignore[arg-type]

    corpus = [written(seed, 300) for seed in range(6)]
    build(tmp_path / "x.rest", [np.array(one) for one in corpus], "")
    drafter = make_drafter(f"rest:paper,corpus={tmp_path / 'x.rest'}")
    assert drafter.nodes == 64
    text, sizes = written(50, 300), set()
    for end in range(5, len(text), 3):
        for nodes in (64, 5):
            tree = drafted(drafter, text[:end], Budget(nodes, 99))
            assert set(paths_of(tree)) == retrieved(corpus, text[:end], nodes)
        sizes.add(len(tree))
    assert len(sizes) > 2


def test_rest_as_published_takes_the_first_places_and_ours_some_of_all(tmp_path: Path) -> None:
    build(tmp_path / "x.rest", [np.array([1, 2, 3 + last // 4]) for last in range(40)], "")
    for votes, kinds in (("count", 2), ("match", 8)):
        drafter = make_drafter(f"rest:corpus={tmp_path / 'x.rest'},matches=8,noise=none,votes={votes}")
        firsts = {word[0] for word in paths_of(drafted(drafter, [0, 1, 2]))}
        assert len(firsts) == kinds
        assert votes != "count" or firsts == {3, 4}


# --- windows inside the budget ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "whole", "half"), [("lookahead:paper", 120, 60), ("spectra:paper", 60, 30)])
def test_the_window_counts_and_shrinks_with_the_draft(spec: str, whole: int, half: int) -> None:
    class Counting(Drafter):
        def __init__(self) -> None:
            self.inner: Any = make_drafter(spec)
            self.needs, self.trees = self.inner.needs, list[DraftTree]()

        def open(self, context: Context) -> Any:
            return self.inner.open(context)

        def propose_one(self, state: Any, budget: Budget) -> DraftTree:
            self.trees += self.inner.propose([(state, budget)])  # type: ignore[list-item]
            return self.trees[-1]

        def observe(self, seen: Sequence[Seen]) -> None:
            self.inner.observe(seen)

    target = TableTarget(lambda history: law_after(*history[-1:-3:-1]), SIZE)
    for nodes in (whole, half, 3):
        drafter = Counting()
        assert drafter.inner.nodes == whole
        write(target, [1, 2, 3] * 9, drafter, nodes=nodes, max_new_tokens=60)
        probes = [0 if tree.probes is None else int(tree.probes.sum()) for tree in drafter.trees]
        assert all(len(tree) <= nodes for tree in drafter.trees)
        assert probes[6] == probes[8] == (0 if nodes == 3 else 4 * round(drafter.inner.window * nodes / whole) - 1)
