"""Drafters that fail: named in one warning, while the text goes on and stays the same; with `strict` they end it."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import families
import paceline
from engine import PROMPT, SIZE, Erratic, Watched, tabled, write, write_slowly
from paceline import CallbackError, Drafter, DrafterError, DrafterWarning, LanguageModel, Want, custom_generate
from paceline.cli.failures import sentence
from paceline.context import Context, Ending
from paceline.drafters import Budget, make_drafter
from paceline.drafters.asking import FAR_BEYOND
from paceline.drafters.compose import Fallback, Union
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Sampling
from paceline.planning.base import Planner
from paceline.planning.fixed import Fixed
from paceline.tree import DraftTree
from paceline.verify import Rule

SLOWER = "the text goes on without drafts: it becomes slower, not different"


class Broken(Watched):
    """Drafts well for some rounds. Then it does something else."""

    name = "broken"

    def __init__(self, does: Callable[[Any], Any] | None = None, *, after: int = 2, **how: Any) -> None:
        super().__init__(Erratic(), after=after, **how)
        self._does = does
        self.proposed = 0

    def propose(self, asks: Sequence[Any]) -> Any:
        self.proposed += 1
        if self._does is not None and self.proposed > self._after:
            return self._does(asks)
        return super().propose(asks)


def each(make: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda asks: [make() for _ in asks]


def tree(tokens: Any, parents: Any, scores: Any = None) -> DraftTree:
    n = len(tokens)
    scores = np.zeros(n) if scores is None else np.array(scores)
    return DraftTree(np.array(tokens), np.array(parents), scores, ("x",) * n)


def huge(asks: Any) -> list[DraftTree]:
    return [DraftTree.chain(np.zeros(10**6, np.int64))] * len(asks)


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "None": (lambda asks: None, "returned None in propose, not a list with a DraftTree for each text"),
    "a tree": (lambda asks: DraftTree.chain([1]), "returned a DraftTree in propose, not a list"),
    "lists": (each(lambda: [1, 2]), "returned a list in propose, where a DraftTree belongs"),
    "Nones": (each(lambda: None), "returned None in propose, where a DraftTree belongs"),
    "few": (lambda asks: [], "and answered for 0"),
    "many": (lambda asks: [DraftTree.chain([1])] * (len(asks) + 1), "and answered for"),
    "floats": (each(lambda: DraftTree.chain([0.5])), "'float' object cannot be interpreted as an integer"),
    "float array": (each(lambda: tree([0.5], [-1])), "int64 arrays, not float64"),
    "not a number": (each(lambda: tree([1], [-1], [np.nan])), "at most 0; it has nan"),
    "foreign": (each(lambda: tree([SIZE], [-1])), f"holds token {SIZE}, and the target's vocabulary has {SIZE}"),
    "negative": (each(lambda: tree([-1], [-1])), "token ids start at 0"),
    "later parent": (each(lambda: tree([1, 2], [1, -1])), "the parent of node 0 is 1"),
    "twins": (each(lambda: tree([1, 1], [-1, -1])), "carry the same token"),
    "no arrays": (each(lambda: DraftTree([1], [-1], [0.0], ("x",))), "gave no valid draft"),  # type: ignore[arg-type]
    "own check": (each(lambda: tree([1, 1], [-1, -1]).check()), "failed in propose: DrafterError: two children"),
    "a million": (huge, "a draft of 1000000 nodes was made for a budget of 6"),
    "raises": (lambda asks: {}["key"], "failed in propose: KeyError: 'key'"),
}
VERBS = ("open", "propose", "observe", "read", "close")


def test_each_text_says_it_also_where_a_program_shows_equal_warnings_once() -> None:
    lm, drafter = LanguageModel(tabled()), Broken(WRONG["raises"][0], after=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            lm.generate(PROMPT, method=drafter, max_new_tokens=6)
    assert len({str(each.message) for each in caught}) == 1
    assert len(caught) == 3


def plain(**how: Any) -> list[int]:
    return LanguageModel(tabled()).generate(PROMPT, method="plain", max_new_tokens=16, **how).tokens


@contextmanager
def one_warning(*said: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    (one,) = [str(each.message) for each in caught if each.category is DrafterWarning]
    for part in said:
        assert part in one


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("how", [{}, {"temperature": 1.0, "seed": 4}, {"rule": "rejection"}], ids=str)
def test_a_wrong_draft_is_named_once_and_the_text_is_the_same(kind: str, after: int, how: dict[str, Any]) -> None:
    does, said = WRONG[kind]
    drafter = Broken(does, after=after)
    with one_warning("drafter 'broken' ", said, SLOWER):
        found = LanguageModel(tabled()).generate(PROMPT, method=drafter, planner="fixed:6", max_new_tokens=16, **how)
    assert found.tokens == plain(**how)
    assert drafter.proposed == after + 1, "it is not asked again"
    assert drafter.opened == drafter.closed == 1
    with pytest.raises(DrafterError, match="drafter 'broken' "):
        LanguageModel(tabled()).generate(PROMPT, method=Broken(does), planner="fixed:6", strict=True)


class Failing(Watched):
    """Raises in the method that it is told to."""

    name = "failing"
    needs = Want(top=2)

    def __init__(self, where: str, after: int = 1) -> None:
        super().__init__(Erratic(), fails=where, after=after if where not in ("open", "close") else 0)
        self.needs = Want(top=2)

    def read(self, seen: Sequence[Any]) -> None:
        self._maybe_fail("read")
        super().read(seen)

    def close(self, state: Any) -> None:
        super().close(state)
        self._maybe_fail("close")


@pytest.mark.parametrize("where", VERBS)
@pytest.mark.parametrize(
    "composed", [lambda d: d, lambda d: Union([make_drafter("lookup"), d]), lambda d: Fallback([d])]
)
def test_every_method_of_a_drafter_may_fail(where: str, composed: Callable[[Drafter], Drafter]) -> None:
    drafter = Failing(where)
    with one_warning(f"drafter 'failing' failed in {where}: OSError: {where}"):
        found = LanguageModel(tabled()).generate(PROMPT, method=composed(drafter), max_new_tokens=16)
    assert found.tokens == plain()
    assert drafter.opened == drafter.closed
    with pytest.raises(DrafterError) as caught:
        LanguageModel(tabled()).generate(PROMPT, method=composed(Failing(where)), strict=True)
    assert isinstance(caught.value.__cause__, OSError)


class Enriching(Erratic):
    """Its expensive part fails."""

    enriches = True

    def enrich(self, asks: Any) -> Any:
        raise OSError("no model")


class Early(Erratic):
    """Fails in the middle of the target's forward."""

    needs = Want(early_exit=1)

    def on_early(self, state: Any, tree: DraftTree, logits: torch.Tensor) -> None:
        raise OSError("too early")


class Needy(Erratic):
    needs: Any = ("hidden",)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Enriching, "'erratic' failed in enrich: OSError: no model"),
        (Early, "'erratic' failed in on_early: OSError: too early"),
        (Needy, "'erratic' needs ('hidden',), which is no Want"),
    ],
)
def test_so_may_those_that_few_have(make: Callable[..., Drafter], said: str) -> None:
    lm, size = paceline.load(families.build("llama")), 10
    expected = lm.generate(PROMPT, method="plain", max_new_tokens=size, ignore_eos=True).tokens
    with one_warning(said):
        found = lm.generate(PROMPT, method=make(SIZE), max_new_tokens=size, ignore_eos=True)
    assert found.tokens == expected
    with pytest.raises(DrafterError, match="erratic"):
        lm.generate(PROMPT, method=make(SIZE), max_new_tokens=size, ignore_eos=True, strict=True)


class Planless(Fixed):
    """A planner that fails in one of its methods."""

    def __init__(self, where: str) -> None:
        super().__init__(4)
        self._where = where

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "__dict__").get("_where"):
            raise OSError("no plan")
        return super().__getattribute__(name)


@pytest.mark.parametrize("where", ["plan", "cut", "review"])
def test_a_planner_that_fails_is_named_too(where: str) -> None:
    with one_warning("planner 'Planless' failed in", "no plan"):
        found = LanguageModel(tabled()).generate(PROMPT, method=Erratic(), planner=Planless(where), max_new_tokens=16)
    assert found.tokens == plain()


class Vague(Planner):
    """Answers with numbers."""

    def plan(self, rooms: Any) -> Any:
        return [4] * len(rooms)


def test_a_planner_that_gives_no_budget_is_named_too() -> None:
    with one_warning("planner 'Vague' returned an int in plan, where a Budget belongs"):
        found = LanguageModel(tabled()).generate(PROMPT, method=Erratic(), planner=Vague(), max_new_tokens=16)
    assert found.tokens == plain()


def test_in_a_batch_the_texts_of_a_failing_drafter_go_on_and_others_notice_nothing() -> None:
    lm, sound = LanguageModel(tabled()), Watched(Erratic(seed=9))
    prompts = [[*PROMPT, number] for number in range(4)]
    expected = [lm.generate(prompt, method="plain", max_new_tokens=16).tokens for prompt in prompts]
    for kind in ("raises", "foreign"):
        drafter = Broken(WRONG[kind][0], after=2)
        methods = [drafter, drafter, sound, sound]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            each: list[Any] = [{"method": method, "planner": "fixed"} for method in methods]
            found = lm.generate_batch(prompts, each=each, max_new_tokens=16)
        assert [text.tokens for (text,) in found] == expected
        assert all(sum(round.drafted for round in text.rounds) > 0 for (text,) in found[2:])
        assert len({str(each.message) for each in caught}) == 1
        assert len(caught) == (1 if kind == "raises" else 2), "a call for all is one failure"
        assert drafter.opened == drafter.closed


def test_inside_transformers_the_text_goes_on_too() -> None:
    model = families.build("llama")
    ids = torch.tensor([[1, 2, 3, 1, 2], [2, 3, 1, 2, 3]])
    how = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(ids, **how)
    with one_warning("drafter 'broken' failed in propose"):
        found = model.generate(ids, custom_generate=custom_generate(Broken(WRONG["raises"][0]), planner="fixed"), **how)
    assert torch.equal(found, expected)
    strict = custom_generate(Broken(WRONG["raises"][0]), planner="fixed", strict=True)
    with pytest.raises(DrafterError, match="broken"):
        model.generate(ids, custom_generate=strict, **how)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", VERBS)
def test_an_interrupt_passes(where: str, error: type[BaseException]) -> None:
    drafter = Failing(where)
    drafter._error = error
    with pytest.raises(error):
        LanguageModel(tabled()).generate(PROMPT, method=drafter, max_new_tokens=16)


class Wasteful(Drafter):
    """Proposes many more nodes than its budget has."""

    name = "wasteful"

    def __init__(self, nodes: int) -> None:
        tokens = np.arange(nodes) % SIZE
        self._tree = DraftTree(tokens, np.arange(-1, nodes - 1), np.zeros(nodes), ("",) * nodes)

    def propose_one(self, state: Any, budget: Budget) -> DraftTree:
        return self._tree


def test_nodes_beyond_the_budget_are_dropped_before_they_are_looked_at() -> None:
    expected = write(tabled(), PROMPT, Wasteful(6)).context.emitted.tolist()
    many = write(tabled(), PROMPT, Wasteful(FAR_BEYOND))
    assert many.context.emitted.tolist() == expected == write_slowly(tabled(), PROMPT, Sampling()).tokens
    assert max(round.proposed for round in many.rounds) == 6
    union = write(tabled(), PROMPT, Union([Wasteful(FAR_BEYOND), Wasteful(FAR_BEYOND)]))
    assert max(round.proposed for round in union.rounds) == 6
    beyond = Wasteful(FAR_BEYOND)._tree
    beyond.parents[7:] = 10**6
    taken = list[float]()
    for _ in range(100):
        began = time.thread_time()
        beyond.head(6).check(SIZE)
        taken.append(time.thread_time() - began)
    assert sorted(taken)[50] < 0.0005


class Rounding:
    """A logits processor that fails."""

    def __call__(self, ids: Any, scores: Any) -> Any:
        raise ValueError("no grammar")


class Forgetful:
    """A logits processor that returns nothing."""

    def __call__(self, ids: Any, scores: Any) -> Any:
        return None


class Patience:
    """A stopping criterion that fails."""

    def __call__(self, tokens: Any, scores: Any = None) -> Any:
        raise StopIteration


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"processors": (Rounding(),)}, "the logits processor Rounding failed: ValueError: no grammar"),
        ({"processors": (Forgetful(),)}, "the logits processor Forgetful returned NoneType, not scores of shape"),
        ({"criteria": (Patience(),)}, "the stopping criterion Patience failed: StopIteration"),
    ],
)
@pytest.mark.parametrize("method", ["plain", "lookup"])
def test_a_callbacks_error_is_named_as_its_own(settings: dict[str, Any], said: str, method: str) -> None:
    with pytest.raises(CallbackError) as caught:
        LanguageModel(tabled()).generate(PROMPT, method=method, max_new_tokens=9, **settings)
    assert said in str(caught.value)
    assert sentence(caught.value) == str(caught.value)


def test_so_is_that_of_a_progress_callback_and_of_those_inside_transformers() -> None:
    def progress(done: int, count: int) -> None:
        raise OSError("no bar")

    with pytest.raises(CallbackError, match=r"the progress callback .*progress failed: OSError: no bar"):
        LanguageModel(tabled()).generate_batch([PROMPT], progress=progress, max_new_tokens=3)
    model, ids = families.build("llama"), torch.tensor([[1, 2, 3]])
    how: dict[str, Any] = {"max_new_tokens": 4, "custom_generate": custom_generate("lookup")}
    with pytest.raises(CallbackError, match="the logits processor Rounding failed: ValueError: no grammar") as caught:
        model.generate(ids, logits_processor=[Rounding()], **how)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(CallbackError, match="the stopping criterion Patience failed"):
        model.generate(ids, stopping_criteria=[Patience()], **how)


def test_a_defect_of_our_own_keeps_its_traceback_and_a_plug_ins_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("place")

    drafter = make_drafter("lookup")
    monkeypatch.setattr(type(drafter), "propose", fail)
    for made, own in ((drafter, True), (Broken(fail), False)):
        with pytest.raises(DrafterError) as caught:
            LanguageModel(tabled()).generate(PROMPT, method=made, planner="fixed", strict=True)
        assert caught.value.own is own
        assert (sentence(caught.value) is None) is own


def test_what_a_session_does_with_a_failure_is_told_to_who_holds_it() -> None:
    target = tabled()
    context = Context(PROMPT, Sampling(), Ending(max_new_tokens=9))
    session = Session(
        context, target, target.open(), Broken(WRONG["raises"][0]), Fixed(4), Rule.COUPLED, strict=False, checked=True
    )
    with pytest.warns(DrafterWarning):
        list(run(session))
    assert isinstance(session.fault, DrafterError)
    assert isinstance(session.fault.__cause__, KeyError)
