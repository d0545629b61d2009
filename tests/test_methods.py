"""What holds of every method without a model of its own: the text, its law, odd budgets, wrong options."""

import math
import warnings
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from drafting import context_of, law_with, seen_of
from engine import PROMPT, SIZE, Erratic, habitual, tabled, write, write_slowly
from enumeration import World
from paceline.drafters import Ask, Budget, make_drafter
from paceline.drafters.compose import Union
from paceline.drafters.indexing import build
from paceline.law import Sampling
from paceline.targets.table import TableTarget
from paceline.verify import Rule

METHODS = (
    "lookup:chain=true",
    "lookup:chain=true,next=3",
    "lookup:next=2",
    "suffix",
    "suffix:noise=none",
    "suffix:remember=40",
    "suffix:corpus={}",
    "rest:corpus={}",
    "rest:corpus={},noise=none,matches=2",
    "lookahead",
    "lookahead:noise=none,pool_from_prompt=false",
    "lookahead:level=3,window=2,guesses=1",
    "spectra",
    "spectra:window=0,store=shared",
    "spectra:noise=none,level=3,guesses=2",
    "unispec",
    "unispec:noise=none,next=all,prefill=true",
    "unispec:confidence=token,k=3,threshold=0",
    "unispec:scores=false,store=private",
    "recycling",
    "recycling:noise=none,store=private,prefill=true",
    "foresight",
    "foresight:noise=none,prefill=true",
    "foresight:k=2,anywhere=0,beams=1,threshold=0,store=private",
    "auto",
    "auto:noise=none,prefill=true",
    "lookup:paper,room=2",
    "rest:paper,corpus={}",
    "lookahead:paper",
    "spectra:paper,window=3",
    "unispec:paper",
    "recycling:paper",
)
STORING = pytest.mark.parametrize("method", ["unispec", "recycling", "foresight"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "x.rest"
    build(path, np.random.default_rng(1).integers(0, SIZE, (3, 200)), "")
    return path


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1e-3])
def test_the_text_is_plains(method: str, temperature: float, corpus: Path) -> None:
    drafter, accepted = make_drafter(method.format(corpus)), 0
    beside = Union([make_drafter("lookup"), drafter, Erratic(seed=5)])
    for seed, prompt, ends, who in ((0, PROMPT, (), drafter), (1, [2], (4,), drafter), (2, PROMPT, (4,), beside)):
        target, sampling = (
            TableTarget(habitual(memory=1), SIZE, eos=frozenset(ends)),
            Sampling(temperature=temperature, seed=seed),
        )
        who.fit(target)
        session = write(target, prompt, who, sampling=sampling, max_new_tokens=30, nodes=12)
        assert session.context.emitted.tolist() == write_slowly(target, prompt, sampling, max_new_tokens=30).tokens
        accepted += sum(round.accepted for round in session.rounds) if who is drafter else 0
    assert accepted > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("temperature", [1e-9, 0.01, 3.0])
def test_nothing_upsets_it(method: str, temperature: float, rule: Rule, corpus: Path) -> None:
    """Under either rule, since no draft here is sampled: a prompt of one token, a full context, any temperature."""
    target, sampling = tabled(context_length=9, eos=frozenset([4])), Sampling(temperature=temperature, seed=1)
    for prompt in ([0], [5, 5, 5, 5, 5, 5, 5, 5]):
        found, plain = (
            write(target, prompt, make_drafter(one), sampling=sampling, rule=rule, nodes=5).context
            for one in (method.format(corpus), "plain")
        )
        assert (found.emitted.tolist(), found.finish) == (plain.emitted.tolist(), plain.finish)


@pytest.mark.parametrize("method", METHODS)
def test_odd_texts_and_budgets_are_no_trouble(method: str, corpus: Path) -> None:
    drafter = make_drafter(method.format(corpus))
    drafter.fit(tabled())
    for tokens in ([5], [5, 5], [2**31 - 3] * 4, list(range(300))):
        state = drafter.open(context_of(tokens))
        for budget in (Budget(0, 5), Budget(5, 0), Budget(1, 1), Budget(200, 3)):
            [tree] = drafter.propose([Ask(state, budget)])
            tree.check()
            if not method.startswith("auto"):
                assert tree.drafted <= budget.nodes
                assert tree.trunk().depth <= budget.depth
        drafter.close(state)


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize(
    "method",
    [
        "suffix:noise=none",
        "lookahead:level=3,window=2",
        "spectra:level=3,window=2,guesses=2",
        "unispec:prefill=true",
        "unispec:prefill=true,noise=none",
        "recycling:prefill=true",
        "foresight:prefill=true",
        "foresight:prefill=true,noise=none",
        "auto:prefill=true",
    ],
)
def test_the_law_of_the_text_is_plains_as_a_fraction(method: str, rule: Rule) -> None:
    """Over every outcome of every coin; the prompt repeats, so that there are drafts from the second round on."""
    world = World(prompt=(0, 2, 1, 0, 2, 1, 0), length=3)
    law, drafted = law_with(world, rule, lambda: make_drafter(method), nodes=5)
    assert law == world.plain()
    assert drafted > 0


@STORING
def test_the_public_noise_is_worth_looking_at(method: str) -> None:
    accepted = {}
    for noise in ("shared", "none"):
        drafter, rounds = make_drafter(f"{method}:noise={noise}"), []
        for seed in range(6):
            target, sampling = TableTarget(habitual(24, memory=1), 24), Sampling(temperature=1.0, seed=seed)
            rounds += write(target, PROMPT, drafter, sampling=sampling, max_new_tokens=40, nodes=4).rounds
        accepted[noise] = sum(round.accepted for round in rounds) / len(rounds)
    assert accepted["shared"] > 1.2 * accepted["none"] > 0


@STORING
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_rows_that_say_nothing_teach_nothing(method: str, value: float) -> None:
    drafter = make_drafter(method)
    state = drafter.open(context_of([3, 7]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafter.observe([seen_of(state, 7, torch.full((1, 50), value), (7,))])
    assert len(drafter.propose_one(state, Budget(9, 9))) == 0


@pytest.mark.parametrize("method", ["unispec", "foresight", "auto"])
def test_texts_of_several_threads_share_what_is_known_and_their_drafts_are_whole(method: str) -> None:
    drafter, target, sampling = make_drafter(method), tabled(), Sampling(temperature=0.9, seed=2)
    drafter.fit(target)
    texts: list[list[int]] = []

    def one() -> None:
        texts.append(write(target, PROMPT, drafter, sampling=sampling, max_new_tokens=50).context.emitted.tolist())

    threads = [Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [write_slowly(target, PROMPT, sampling, max_new_tokens=50).tokens] * 4


WRONG = {
    "lookup:next=-1": "not -1",
    "suffix:noise=loud": "noise=shared or noise=none, not 'loud'",
    "suffix:remember=-1": "not -1",
    "suffix:memory=here.memo": "give remember=N",
    "suffix:remember=9,memory=no/where/x.memo": "there is no folder",
    "suffix:corpus=nowhere.rest": "cannot read the datastore nowhere.rest",
    "rest": "write rest:corpus=value",
    "rest:corpus=nowhere.rest": "cannot read the datastore nowhere.rest",
    "rest:corpus={},longest=17": "longest <= 16, not 2 and 17",
    "rest:corpus={},shortest=0": "1 <= shortest",
    "rest:corpus={},matches=0": "not 0",
    "rest:corpus={},length=0": "not 0",
    "rest:corpus={},noise=soft": "not 'soft'",
    **dict.fromkeys(["lookahead:level=2", "spectra:level=2"], "needs level of at least 3, not 2"),
    **dict.fromkeys(["lookahead:window=1", "spectra:window=1"], "window.* of at least 2"),
    **dict.fromkeys(["lookahead:guesses=0", "spectra:guesses=0"], "needs guesses of at least 1, not 0"),
    **dict.fromkeys(["lookahead:noise=loud", "spectra:noise=loud"], "not 'loud'"),
    "spectra:store=here": "store=private or store=shared, not 'here'",
    **dict.fromkeys(["unispec:k=0", "foresight:k=0"], "needs k of at least 1, not 0"),
    **dict.fromkeys(["unispec:depth=0", "foresight:depth=0"], "needs depth of at least 1, not 0"),
    **dict.fromkeys(["unispec:threshold=2", "foresight:threshold=2"], "threshold from 0 to 1, not 2.0"),
    **dict.fromkeys(["unispec:store=lent", "foresight:store=lent"], "store=private or store=kept, not 'lent'"),
    **dict.fromkeys(["unispec:noise=loud", "foresight:noise=loud"], "noise=shared or noise=none, not 'loud'"),
    "unispec:confidence=both": "confidence=path or confidence=token, not 'both'",
    "unispec:next=some": "next=others, next=all or next=none, not 'some'",
    "foresight:beams=0": "needs beams of at least 1, not 0",
    "foresight:anywhere=-1": "anywhere=0 .none. or more tokens, not -1",
}


@pytest.mark.parametrize("spec", WRONG)
def test_a_wrong_option_is_told(spec: str, corpus: Path) -> None:
    with pytest.raises(ValueError, match=WRONG[spec]):
        make_drafter(spec.format(corpus))
