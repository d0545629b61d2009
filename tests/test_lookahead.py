"""Lookahead and SPECTRA: windows that get better by themselves, and what is remembered of them."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drafting import context_of, paths_of
from engine import PROMPT, SIZE, Erratic, tabled, write, write_slowly
from paceline.context import Context
from paceline.drafters import Budget, Drafter, Seen, make_drafter
from paceline.drafters.compose import Union
from paceline.drafters.indexing import build
from paceline.drafters.lookahead import Lookahead, Window
from paceline.drafters.noise import BEST, SharedNoise, choices
from paceline.drafters.spectra import Spectra, SpectraState
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import KeyedDice, Law, Noise, Sampling
from paceline.planning.base import Cut, Draft
from paceline.planning.fixed import Fixed
from paceline.targets.base import Request
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, ROOT, DraftTree
from paceline.verify import Verdict


class Traced(Drafter):
    """Another drafter, with a record of what it drafted and saw."""

    name = "traced"

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.needs = inner, inner.needs
        self.trees: list[DraftTree] = []
        self.seen: list[tuple[list[int], Verdict, Scores]] = []
        self.states: list[Any] = []

    def open(self, context: Context) -> Any:
        self.states.append(self.inner.open(context))
        return self.states[-1]

    def propose_one(self, state: Any, budget: Budget) -> DraftTree:
        [tree] = self.inner.propose([(state, budget)])  # type: ignore[list-item]
        self.trees.append(tree)
        return tree

    def observe(self, seen: Sequence[Seen]) -> None:
        self.seen += [(e.state.context.tokens.tolist(), e.verdict, e.scores) for e in seen if e.verdict.tokens]
        self.inner.observe(seen)


# --- the window, against its description ------------------------------------------------------------------------------


def slow_window(text_of: Any, prompt: list[int], rounds: int, level: int, width: int) -> list[Any]:
    """Levels and n-grams of every round, from the description: places, columns and an oracle for any prefix.

    Places are counted from the start of the text. A column is its first token and what the model said again and
    again behind it, each time seeing the first level up to the column and then the column itself.
    """
    coins = random.Random(len(prompt))

    first = [prompt[coins.randrange(len(prompt))] for _ in range(width + level - 3)]
    columns = [[token] for token in (prompt[-1], *first)]
    history: list[Any] = []
    text = [*prompt, text_of(prompt)]  # the first round has no draft, and no window
    for _ in range(rounds):
        columns[0][0] = text[-1]
        line = [column[0] for column in columns]
        said = [text_of(text[:-1] + line[: i + 1] + column[1:]) for i, column in enumerate(columns)]
        whole = [(*column, word) for column, word in zip(columns, said, strict=True)]
        text.append(text_of(text))
        if len(columns[0]) < level - 1:
            columns = [[*column, word] for column, word in zip(columns, said, strict=True)][1:]
            history.append([])
        else:
            columns = [list(gram[1:]) for gram in whole]
            history.append(whole)
    return history


@pytest.mark.parametrize(("level", "width"), [(3, 2), (4, 3), (5, 7)])
def test_the_window_is_its_description(level: int, width: int) -> None:
    """Nothing is drafted, so the text goes on by one token a round, as the description has it."""
    target = tabled()

    def text_of(text: list[int]) -> int:
        return int(np.argmax(target.table(tuple(text))))

    drafter = Lookahead(level=level, window=width, pool_from_prompt=False)
    grams: list[list[tuple[int, ...]]] = []
    move = Window.move

    class Spied(Window):
        def move(self, root: int, said: Sequence[int]) -> list[tuple[int, ...]]:
            grams.append(move(self, root, said))
            return grams[-1]

    class Silent(Fixed):
        """Leaves the probes in and the rest out."""

        def cut(self, drafts: Sequence[Draft]) -> list[Cut]:
            return [Cut(draft.tree.head(0)) for draft in drafts]

    context = context_of(PROMPT, room=25)
    state = drafter.open(context)
    assert isinstance(state.window, Window)
    state.window = Spied(level - 1, width, state.window.levels)
    drafter.open = lambda context: state  # type: ignore[method-assign]
    session = Session(context, target, target.open(), drafter, Silent(30), checked=True)
    list(run(session))
    rounds = 24 - (2 * width + level)  # near its end the text has no room for the whole window
    assert grams[:rounds] == slow_window(text_of, PROMPT, rounds, level, width)
    assert sum(map(len, grams)) >= 3 * width


def test_probes_are_scored_where_they_stand_and_never_verified() -> None:
    """Every window token sees its own prefix: root, first level up to its column, then its column."""
    target = tabled()
    drafter = Traced(make_drafter("lookahead"))
    session = write(target, PROMPT, drafter, nodes=20, max_new_tokens=40)
    assert session.context.emitted.tolist() == write_slowly(target, PROMPT, Sampling(), max_new_tokens=40).tokens
    for (text, verdict, scores), tree in zip(drafter.seen[1:11], drafter.trees, strict=False):
        before = text[: len(text) - len(verdict.tokens)]
        assert tree.probes is not None
        for node in np.flatnonzero(tree.probes).tolist():
            path = [int(tree.tokens[i]) for i in tree.path(node)]
            assert scores.choice(node) == int(np.argmax(target.table(tuple(before + path))))
        assert not tree.probes[list(verdict.path)].any()
    full = drafter.trees[8]
    assert full.probes is not None
    assert int(full.probes.sum()) == 7 * 4 - 1
    assert full.depths()[full.probes].max() == 7 + 5 - 3


def test_what_is_foretold_is_what_the_target_would_choose() -> None:
    """Under shared noise its very sample, wherever it is among the best; otherwise its likeliest token."""
    target = tabled()
    for temperature in (0.7, 1.0, 1e-9):
        sampling = Sampling(temperature=temperature, seed=9)
        context = context_of(PROMPT, temperature=temperature, seed=9)
        tree = DraftTree.build([1, 2, 1, 5], [ROOT, ROOT, 0, 2])
        rows = target.open()
        rows.note(np.array(PROMPT[:-1]))
        rows.keep(range(len(PROMPT) - 1))
        scores = target.submit([Request.of_tree(rows, PROMPT[-1], tree)]).result()[0]
        ahead = np.array([0, 1, 1, 2, 3])
        law, dice = Law(sampling, len(PROMPT)), KeyedDice(Noise(9, 0))
        told = choices(scores, np.arange(5), SharedNoise(context), ahead)
        chosen = [
            dice.choose(len(PROMPT) + int(a), law.distribution(scores.row(n - 1), np.array([])))
            for n, a in enumerate(ahead)
        ]
        assert told.tolist() == chosen
        assert choices(scores, np.arange(5), None, ahead).tolist() == scores.choices().tolist()
    assert BEST >= SIZE


# --- what is remembered ------------------------------------------------------------------------------------------


def test_ngrams_of_the_text_are_found_again_the_latest_first() -> None:
    text = [9, 1, 2, 3, 4, 9, 5, 6, 7, 8, 9]
    drafter = Lookahead()
    tree = drafter.propose_one(drafter.open(context_of(text)), Budget(8, 8))
    assert {(1, 2, 3, 4), (5, 6, 7, 8)} <= set(paths_of(tree))
    first = dict(zip(tree.tokens[tree.children(ROOT)].tolist(), tree.scores[tree.children(ROOT)], strict=True))
    assert first[5] > first[1]
    small = drafter.propose_one(drafter.open(context_of(text)), Budget(4, 3))
    assert small.drafted == 4
    assert small.tokens[small.children(ROOT)].tolist() in ([5, 1], [1, 5])
    without = Lookahead(pool_from_prompt=False)
    assert without.propose_one(without.open(context_of(text)), Budget(8, 8)).drafted == 0


def test_of_too_many_guesses_the_oldest_is_forgotten() -> None:
    drafter = Lookahead(level=3, guesses=2)
    state = drafter.open(context_of([9, 1, 1, 9, 2, 2, 9, 1, 1, 9, 3, 3, 9]))
    assert state.pool.of(9) == [(3, 3), (1, 1)]


def test_accepted_text_comes_into_the_pool() -> None:
    drafter = Traced(make_drafter("lookahead:window=2"))
    session = write(tabled(), PROMPT, drafter, nodes=8, max_new_tokens=30)
    text = session.context.tokens.tolist()
    [state] = drafter.states
    last = {first: text[at + 1 : at + 5] for at, first in enumerate(text[:-4])}
    assert all(tuple(rest) in state.pool.of(first) for first, rest in last.items())


def test_spectras_stores_are_read_in_two_directions() -> None:
    drafter = Spectra(window=0)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 5, 9, 3, 4, 5]
    state = drafter.open(context_of(text))
    assert state.store.forward.of(5) == [(9, 3, 4, 5), (6, 7, 8, 5)]
    assert state.store.after((0, 3, 4, 5)) == (3, [6])
    assert state.store.after((0, 0, 4, 5)) == (2, [6])
    assert state.store.after((0, 0, 0, 5)) == (0, [])
    tree = drafter.propose_one(state, Budget(12, 12))
    first = dict(zip(tree.tokens[tree.children(ROOT)].tolist(), tree.scores[tree.children(ROOT)], strict=True))
    assert first[6] > first[9]  # the later place is forgotten for the longer context
    assert (6, 7, 8, 5, 9) in paths_of(tree)  # behind the forward n-gram the backward store goes on


def test_a_spectra_store_is_shared_or_private_and_forgets_when_told() -> None:
    shared, private = Spectra(store="shared", window=0), Spectra(window=0)
    for drafter in (shared, private):
        drafter.close(drafter.open(context_of([1, 2, 3, 4, 5, 6])))
    assert shared.propose_one(shared.open(context_of([0, 2])), Budget(4, 4)).tokens.tolist()[:2] == [3, 4]
    assert len(private.propose_one(private.open(context_of([0, 2])), Budget(4, 4))) == 0
    shared.reset()
    assert len(shared.propose_one(shared.open(context_of([0, 2])), Budget(4, 4))) == 0


def test_spectra_retrieves_from_a_corpus_under_a_name_of_its_own(tmp_path: Path) -> None:
    build(tmp_path / "corpus", [np.array([7, 8, 1, 2, 3, 4]), np.array([7, 8, 1, 2, 5])], "")
    drafter = Spectra(corpus=str(tmp_path / "corpus"), window=0)
    with pytest.raises(ValueError, match="corpus"):
        drafter.fit(tabled())
    tree = drafter.propose_one(drafter.open(context_of([0, 7, 8])), Budget(6, 6))
    assert set(paths_of(tree)) >= {(1, 2, 3, 4), (1, 2, 5)}
    assert set(tree.sources) == {"spectra corpus"}


def test_refused_branches_teach_spectra_what_the_model_says_there() -> None:
    target = tabled()
    drafter = Traced(Spectra(window=0))
    write(target, PROMPT, Union([drafter, Erratic(seed=2)]), nodes=6, max_new_tokens=20)
    [state] = drafter.states
    assert isinstance(state, SpectraState)
    text, verdict, scores = drafter.seen[-1]
    before = text[: len(text) - len(verdict.tokens)]
    node = len(scores.tokens) - 2
    path = [int(scores.tokens[node + 1])]
    parent = int(scores.parents[node + 1])
    while parent > 0:
        path.insert(0, int(scores.tokens[parent]))
        parent = int(scores.parents[parent])
    known = (before + path)[-4:]
    assert scores.choice(node) in state.store.after(tuple(known))[1]


# --- life ------------------------------------------------------------------------------------------------------


def test_the_window_stands_still_where_its_probes_are_left_out() -> None:
    class Stingy(Fixed):
        def cut(self, drafts: Sequence[Draft]) -> list[Cut]:
            return [Cut(EMPTY) for _ in drafts]

    target = tabled()
    for spec in ("lookahead", "spectra"):
        drafter = Traced(make_drafter(spec))
        context = context_of(PROMPT, room=12)
        list(run(Session(context, target, target.open(), drafter, Stingy(9), checked=True)))
        [state] = drafter.states
        fresh = Window.ahead_of(np.array(PROMPT), 5, 7)
        assert state.window.levels == fresh.levels
        assert context.emitted.tolist() == write_slowly(target, PROMPT, Sampling(), max_new_tokens=12).tokens
