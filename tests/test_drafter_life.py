"""How long drafters and what they hold live: kept, in use, disposed of once; shared where it is expensive."""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from engine import PROMPT, tabled
from paceline.api.drafters import KEPT, PLANNERS
from paceline.api.model import LanguageModel
from paceline.api.settings import Settings
from paceline.context import Context
from paceline.drafters import Drafter, Plain, make_drafter, spec
from paceline.drafters.compose import Fallback, Union
from paceline.drafters.datastore import Datastore
from paceline.drafters.indexing import build
from paceline.drafters.networks.assistant import DraftModel
from paceline.errors import DrafterError
from thinning import thinned


class Mortal(Plain):
    """Notes when it is disposed of, and fails where it is told to."""

    name = "mortal"
    disposed: list[str] = []  # noqa: RUF012

    def __init__(self, *, number: str = "", fails: str = "") -> None:
        self.number, self.fails = number, fails

    def open(self, context: Context) -> Any:
        if self.fails == "open":
            raise OSError("no state")
        return super().open(context)

    def dispose(self) -> None:
        self.disposed.append(self.number)
        if self.fails == "dispose":
            raise OSError(f"cannot dispose of {self.number}")


@pytest.fixture(autouse=True)
def disposed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    methods = {**spec.available(), "mortal": Mortal}
    monkeypatch.setattr(spec, "available", lambda: methods)
    monkeypatch.setattr(Mortal, "disposed", [])
    yield Mortal.disposed
    gc.collect()


def test_a_kept_drafter_is_disposed_of_once_when_it_is_forgotten(disposed: list[str]) -> None:
    lm = LanguageModel(tabled())
    for number in range(KEPT + 2):
        lm.generate(PROMPT, method=f"mortal:number={number}", max_new_tokens=2)
    assert disposed == ["0", "1"], "the oldest go first"
    lm.generate(PROMPT, method="mortal:number=2", max_new_tokens=2)
    lm.generate(PROMPT, method="mortal:number=new", max_new_tokens=2)
    assert disposed == ["0", "1", "3"], "one that was used recently stays"
    lm.forget()
    assert sorted(disposed) == sorted([*(str(number) for number in range(KEPT + 2)), "new"])
    lm.generate(PROMPT, method="mortal:number=again", max_new_tokens=2)
    del lm
    gc.collect()
    assert disposed[KEPT + 3 :] == ["again"]


def test_what_a_text_is_given_makes_no_second_drafter_if_it_changes_none() -> None:
    """Auto has the sources of predictions and grammars among its parts, and learns from all texts."""
    lm = LanguageModel(tabled())
    for method, count in (("auto", 1), ("plain", 1), ("forced", 2), ("lookup", 4), ("auto,auto", 4)):
        given: list[list[str]] = [[], ["prediction"], ["grammar"], ["prediction", "grammar"]]
        leases = [lm.lease(Settings(method=method), each) for each in given]
        assert len({id(lease.drafter) for lease in leases}) == count, method
        assert len({id(lm.planner(Settings(method=method), lease.drafter)) for lease in leases}) == count


def test_few_planners_are_kept_and_the_default_one_always() -> None:
    lm = LanguageModel(tabled())
    drafter = lm.lease(Settings(method="lookup")).drafter
    first = lm.planner(Settings(), drafter)
    kept = [lm.planner(Settings(planner=f"fixed:{number}"), drafter) for number in range(1, PLANNERS + 9)]
    assert len(lm._drafters._planners[drafter].known) == PLANNERS + 1
    assert lm.planner(Settings(), drafter) is first
    assert lm.planner(Settings(planner=f"fixed:{PLANNERS + 8}"), drafter) is kept[-1]


@pytest.mark.parametrize("ending", thinned(["ends", "is closed", "is lost"]))
def test_a_drafter_that_is_in_use_is_disposed_of_after_its_text(ending: str, disposed: list[str]) -> None:
    lm = LanguageModel(tabled())
    pieces = lm.stream(PROMPT, method="mortal+mortal:number=2", max_new_tokens=6)
    next(pieces)
    lm.forget()
    assert not disposed
    if ending == "ends":
        assert len(list(pieces)) == 5
    elif ending == "is closed":
        pieces.close()
    del pieces
    gc.collect()
    assert sorted(disposed) == ["", "2"]


def test_texts_that_wait_for_a_batch_do_not_hold_their_drafter(disposed: list[str]) -> None:
    lm = LanguageModel(tabled())
    with lm.batch(at_once=1) as batch:
        writings = [batch.add(PROMPT, method="mortal", max_new_tokens=3) for _ in range(3)]
        batch.step()
        batch.cancel(writings[2])
    lm.forget()
    assert disposed == [""]


@pytest.mark.parametrize("method", ["mortal:fails=open", "lookup,mortal:fails=open"])
def test_so_is_one_that_fails(method: str, disposed: list[str]) -> None:
    lm = LanguageModel(tabled())
    with pytest.raises(DrafterError, match=r"drafter 'mortal.*failed in open: OSError: no state"):
        lm.generate(PROMPT, method=method, strict=True)
    lm.forget()
    assert disposed == [""]


def test_one_that_does_not_fit_is_disposed_of_at_once(monkeypatch: pytest.MonkeyPatch, disposed: list[str]) -> None:
    def unfit(*_: Any) -> None:
        raise ValueError("not for this model")

    monkeypatch.setattr(Mortal, "fit", unfit)
    lm = LanguageModel(tabled())
    with pytest.raises(ValueError, match="not for this model"):
        lm.generate(PROMPT, method="mortal:number=1")
    gc.collect()
    assert (disposed, len(lm._drafters)) == (["1"], 0)


def test_whoever_made_a_drafter_disposes_of_it(disposed: list[str]) -> None:
    lm, drafter = LanguageModel(tabled()), Mortal()
    lm.generate(PROMPT, method=drafter, max_new_tokens=2)
    lm.forget()
    assert not disposed


@pytest.mark.parametrize("composed", [Fallback, Union])
def test_all_parts_are_disposed_of_also_where_one_fails(
    composed: Callable[[list[Drafter]], Drafter], disposed: list[str]
) -> None:
    drafter = composed([Mortal(number="1"), Mortal(number="2", fails="dispose"), Mortal(number="3")])
    with pytest.raises(OSError, match="dispose of 2"):
        drafter.dispose()
    assert sorted(disposed) == ["1", "2", "3"]


@pytest.mark.slow
def test_a_named_draft_model_is_shared_by_all_who_use_it_alike_and_goes_with_them() -> None:
    target = paceline.load("pocket", dtype="float32").target
    lms = [LanguageModel(target) for _ in range(2)]
    methods = ("assistant", "assistant:top=2", "auto")
    settings = [Settings(method=method, draft_model="pocket-draft") for method in methods]
    models = {model for lm in lms for each in settings for model in lm.lease(each).drafter.models}
    assert len(models) == 1
    assert DraftModel.load("pocket-draft", target).target in models
    assert DraftModel.load("pocket-draft", target, "bfloat16").target not in models
    gone = weakref.ref(models.pop())
    for lm in lms:
        lm.forget()
    gc.collect()
    assert gone() is None


def test_a_datastore_is_opened_once_until_it_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "some.data"
    build(path, [np.arange(40) % 5], "")
    made = [make_drafter(f"{method}:corpus={path}") for method in ("rest", "suffix", "spectra")]
    one = Datastore.shared(str(path))
    assert {made[0]._store, made[1]._corpus, made[2]._corpus} == {one}  # type: ignore[attr-defined]
    build(path, [np.arange(60) % 7], "")
    assert len(Datastore.shared(str(path))) == 61 != len(one)
