"""Predicted outputs: drafts from a text that the answer will probably follow. They never change the answer."""

from typing import Any

import numpy as np
import pytest

import paceline
from drafting import law_with
from engine import PROMPT, SIZE, habitual, write_slowly
from enumeration import World
from paceline import InputError, LanguageModel
from paceline.context import Context, Ending
from paceline.drafters import Budget, Drafter, make_drafter
from paceline.drafters.base import Ahead
from paceline.drafters.endings import Endings
from paceline.drafters.given import beside
from paceline.drafters.prediction import ACCEPTED, REJECTED, Prediction, PredictionState
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Sampling
from paceline.planning.fixed import Fixed
from paceline.targets.base import Target
from paceline.targets.replay import ReplayTarget
from paceline.targets.table import TableTarget
from paceline.verify import Rule

BEGIN = "Once upon a time"
METHODS = ("auto", "lookup", "suffix", "lookahead", "recycling", "unispec", "foresight", "suffix,recycling")
FILE = np.random.default_rng(3).integers(10, 200, 300).tolist()
"""A prediction of tokens that hardly repeat."""
NEW = [201, 202, 203, 204, 205]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket")


def followed(
    target: Target, prompt: list[int], prediction: list[int], drafter: Drafter, *, nodes: int = 32, **how: Any
) -> Session:
    """A text with a prediction, in drafts of a fixed size."""
    room = how.pop("room", 60)
    drafter.fit(target)
    context = Context(prompt, how.pop("sampling", Sampling()), Ending(max_new_tokens=room, eos=target.eos))
    context.prediction = prediction
    session = Session.on_new_rows(context, target, drafter, Fixed(nodes), checked=True, **how)
    list(run(session))
    return session


def copied(answer: list[int], prediction: list[int], nodes: int = 32) -> Session:
    """An answer that a replay writes behind a prompt."""
    target = ReplayTarget([[1, 2, *answer]], 210)
    session = followed(target, [1, 2], prediction, Prediction(), nodes=nodes, room=len(answer))
    assert session.context.emitted.tolist() == answer
    return session


# --- the text is plain's ---


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", METHODS)
def test_the_text_is_plains_with_any_prediction(method: str, temperature: float) -> None:
    target, sampling = TableTarget(habitual(memory=1), SIZE, eos=frozenset()), Sampling(temperature=temperature, seed=4)
    plain = write_slowly(target, PROMPT, sampling, max_new_tokens=40).tokens
    wrong = [token % (SIZE - 1) for token in range(50)]
    for prediction in (plain, [*plain[:9], 1, 1, *plain[12:]], plain[7:], wrong, [0], [], plain * 3):
        drafter = beside(make_drafter(method), ("prediction",))
        session = followed(target, PROMPT, prediction, drafter, sampling=sampling, room=40, nodes=12)
        assert session.context.emitted.tolist() == plain
        _counts_add_up(session)


def _counts_add_up(session: Session) -> None:
    """What is counted is what the record of the tokens says."""
    own = sum("prediction" in emission.source.split("+") for emission in session.emissions)
    assert sum(each.counts.get(ACCEPTED.name, 0) for each in session.rounds) == own
    for each in session.rounds:
        assert each.counts.get(ACCEPTED.name, 0) + each.counts.get(REJECTED.name, 0) <= each.drafted


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("prediction", [(0, 2, 1), (2, 2, 2, 1)])
def test_the_law_of_the_text_is_plains_as_a_fraction(rule: Rule, prediction: tuple[int, ...]) -> None:
    """Over every outcome of every coin."""
    world = World(prompt=(0, 2, 1), length=3)

    class Predicted(Prediction):
        def open(self, context: Context) -> Any:
            context.prediction = prediction
            return super().open(context)

    law, drafted = law_with(world, rule, Predicted, nodes=5)
    assert law == world.plain()
    assert drafted > 0


@pytest.mark.parametrize(("rule", "temperature"), [(Rule.COUPLED, 0.0), (Rule.COUPLED, 0.8), (Rule.REJECTION, 0.8)])
def test_a_text_of_a_model_alone_and_in_batches(lm: LanguageModel, temperature: float, rule: Rule) -> None:
    how: dict[str, Any] = {"temperature": temperature, "seed": 5, "max_new_tokens": 24}
    how["rule"] = rule
    plain = lm.generate(BEGIN, method="plain", **how)
    how |= {"planner": "fixed:16", "method": "suffix"}  # which learns nothing that a second text would know
    for prediction in (plain.text.replace("the", "one"), "Es war einmal\n", plain.tokens):
        lm.forget()  # a round may end elsewhere if the prompt is read
        alone = lm.generate(BEGIN, prediction=prediction, **how)
        lm.forget()
        [[one], _] = lm.generate_batch([BEGIN, "The"], prediction=prediction, **how)
        assert alone.tokens == one.tokens == plain.tokens
        if rule is Rule.COUPLED:
            names = (ACCEPTED.name, REJECTED.name)
            assert [alone.totals.counts[name] for name in names] == [one.totals.counts[name] for name in names]
    assert lm.generate(BEGIN, prediction=plain.text, **how).totals.counts[ACCEPTED.name] > 20


def test_beside_a_draft_model(lm: LanguageModel) -> None:
    plain = lm.generate(BEGIN, method="plain", temperature=0.0, max_new_tokens=40)
    for method in ("assistant", "auto"):
        text = lm.generate(
            BEGIN, method=method, draft_model="pocket-draft", prediction=plain.text, temperature=0.0, max_new_tokens=40
        )
        assert text.tokens == plain.tokens
        assert text.totals.counts[ACCEPTED.name] > 0


# --- recovery ---

EDITS = {
    "nothing": FILE,
    "replaced by as many": FILE[:100] + NEW[:3] + FILE[103:],
    "replaced by fewer": FILE[:100] + NEW[:2] + FILE[105:],
    "replaced by more": FILE[:100] + NEW[:5] + FILE[102:],
    "inserted": FILE[:100] + NEW + FILE[100:],
    "deleted": FILE[:100] + FILE[120:],
    "deleted far": FILE[:60] + FILE[200:],
    "begun later": FILE[30:],
    "begun with more": NEW + FILE,
    "moved back": FILE[:150] + FILE[40:90],
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_copy_comes_back_after_an_edit(edit: str) -> None:
    """No more rounds than the drafts of a copy, the new tokens, and three."""
    answer = EDITS[edit]
    rounds = len(copied(answer, FILE).rounds)
    assert rounds <= -(-len(answer) // 33) + len(set(NEW) & set(answer)) + 3


def test_a_name_that_is_replaced_everywhere_is_learnt() -> None:
    """From its second place on the new name is drafted, however many tokens the names have."""
    old = [token for start in range(0, 300, 20) for token in [*FILE[start : start + 20], 207, 208]]
    new = [token for start in range(0, 300, 20) for token in [*FILE[start : start + 20], *NEW[:3]]]
    session = copied(new, old)
    assert len(session.rounds) <= len(new) / 33 + 3 + 6, "a draft may end inside a name"
    assert sum("prediction" in each.source for each in session.emissions) > 0.9 * len(new)


def test_the_bounds_see_a_copy_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without places behind a skip, and without those behind a match."""
    for method, edit in (("_skips", "replaced by as many"), ("_found", "deleted")):
        with monkeypatch.context() as patched:
            patched.setattr(PredictionState, method, lambda text: [])
            if method == "_found":
                with pytest.raises(AssertionError):
                    test_a_copy_comes_back_after_an_edit(edit)
            else:
                worse = len(copied(EDITS[edit], FILE).rounds)
                patched.undo()
                assert worse > len(copied(EDITS[edit], FILE).rounds)


def test_a_wrong_count_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PredictionState, "count", lambda text, tokens, parents, verdict: text.tally.add(ACCEPTED, 1))
    with pytest.raises(AssertionError):
        _counts_add_up(copied(FILE, FILE))


def test_a_prediction_that_the_text_never_follows_ends_in_small_drafts() -> None:
    session = copied(np.random.default_rng(8).integers(201, 209, 80).tolist(), FILE)
    assert sum(each.drafted for each in session.rounds[20:]) <= 16 * len(session.rounds[20:])


def test_the_counts_of_a_copy() -> None:
    answer = EDITS["replaced by as many"]
    session = copied(answer, FILE)
    _counts_add_up(session)
    accepted = sum(each.counts[ACCEPTED.name] for each in session.rounds)
    rejected = sum(each.counts[REJECTED.name] for each in session.rounds)
    assert accepted + rejected == sum(each.drafted for each in session.rounds)
    assert len(answer) - 25 < accepted < len(answer)
    assert rejected > 0


def test_a_text_without_a_prediction_has_no_state() -> None:
    context = Context([1], Sampling(), Ending(max_new_tokens=3))
    assert Prediction().open(context) is None


def test_a_prediction_is_indexed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever drafts the text is continued behind, and only when it leaves the copy."""
    indexed, extend = list[int](), Endings.extend
    monkeypatch.setattr(Endings, "extend", lambda index, tokens: indexed.append(1) or extend(index, tokens))
    drafter, context = Prediction(), Context([1, 2], Sampling(), Ending(max_new_tokens=60))
    context.prediction = FILE
    state, budget = drafter.open(context), Budget(12, 12)
    for token in FILE[:20]:
        context.commit(token)
    drafter.behind([Ahead(state, budget, FILE[20:22])])
    assert not indexed
    for _ in range(3):
        (near, *others) = drafter.behind([Ahead(state, budget, [token, *FILE[90:93]]) for token in NEW[:4]])
        assert near.tokens[0] == FILE[93]
        assert all(near.tokens.tolist() == each.tokens.tolist() for each in others)
    assert len(indexed) == 1


# --- what is given ---


def test_a_prediction_is_encoded_as_it_follows_the_prompt(lm: LanguageModel) -> None:
    tokens = lm.encode("Once upon a time there was a dog.").tolist()
    begun = len(lm.encode(BEGIN))
    writing = lm.write(BEGIN, prediction=" there was a dog.")
    assert list(writing.context.prediction) == tokens[begun:]
    assert list(lm.write(BEGIN, prediction="x " * 50_000).context.prediction)[:1] != []
    assert len(lm.write(BEGIN, prediction="x " * 50_000).context.prediction) <= (lm.target.context_length or 1 << 16)


@pytest.mark.parametrize(
    ("prediction", "said"),
    [
        (3, "prediction is a text or a list of token ids, not 3"),
        ({"type": "content"}, "not a dict"),
        (b"text", "not a bytes"),
        ([1, "a"], "it holds a str"),
        ([1, -2], "it holds -2"),
        ([True], "it holds True"),
        ([10**6], "the prediction holds token 1000000"),
    ],
)
def test_what_is_no_prediction_is_refused(lm: LanguageModel, prediction: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        lm.generate(BEGIN, prediction=prediction, max_new_tokens=2)


def test_arrays_and_none_are_fine(lm: LanguageModel) -> None:
    for prediction in (np.array([5, 6]), (5, 6), None, []):
        assert len(lm.generate(BEGIN, prediction=prediction, max_new_tokens=2).tokens) == 2
