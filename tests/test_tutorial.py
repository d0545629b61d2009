"""The page on writing drafters says what the classes offer, and its double finds what is wrong with a drafter."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import SIZE, Erratic, Watched
from paceline import Budget, DrafterError, DraftTree, Scores, Seen, Want
from paceline.context import Context, Ending
from paceline.drafters import Drafter, Plain, make_drafter
from paceline.law import Distribution, Sampling
from paceline.targets.base import Target
from paceline.testing import check_drafter, drafted, habitual
from paceline.tree import ROOT
from paceline.verify import Verdict
from paceline.vocabulary import Vocabulary

ROOT_FOLDER = Path(__file__).resolve().parent.parent
PAGE = (ROOT_FOLDER / "docs" / "writing-a-drafter.md").read_text(encoding="utf8")
TABLE = re.compile(r"^\| (?:name|method|attribute) \|[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", re.MULTILINE)

OTHERS = {
    "Budget": {"within"},  # the engine's
    "Context": {"commit", "cancel", "end_at", "reserve"},  # the engine's
    "Vocabulary": {
        "conversation",
        "has_template",
        "names_special",
        "refuse_beyond",
        "table",
    },  # of prompts, and how text is found
    "Scores": {"of"},  # a target's; the base class calls it
    "DraftTree": {"under_probes"},  # a planner's
    "Drafter": {
        "hears_early",
        "leaves",
        "may_be_sure",
        "spec",
        "spec_options",
        "surroundings",
    },  # set by the base class and by specs
    "Seen": {"count", "index"},  # of every tuple
}
"""Public names that are not a drafter's author's."""


def listed(part: str) -> set[str]:
    """The names in the tables of a part of the page."""
    rows = "".join(TABLE.findall(part)).splitlines()
    return {re.match(r"\w+", name)[0] for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}  # type: ignore[index]


def public(thing: Any) -> set[str]:
    return {name for name in [*dir(thing), *getattr(thing, "__annotations__", {})] if not name.startswith("_")}


def test_the_tables_list_all_that_the_classes_offer() -> None:
    context = Context([1], Sampling(), Ending(max_new_tokens=1))
    things: dict[str, Any] = {
        "Context": context,
        "Budget": Budget,
        "Vocabulary": Vocabulary,
        "Want": Want,
        "Seen": Seen,
        "Verdict": Verdict,
        "Scores": Scores,
        "DraftTree": DraftTree,
    }
    parts = re.split(r"^`(\w+)`[^\n]*:\n", PAGE, flags=re.MULTILINE)
    tables = dict(zip(parts[1::2], parts[2::2], strict=True))
    set_by_init = {"Scores": {"tokens", "parents"}}
    for name, thing in things.items():
        offered = public(thing) | set_by_init.get(name, set())
        assert listed(tables[name]) == offered - OTHERS.get(name, set()), name
    assert (
        listed(PAGE.partition("## The life of a drafter")[2].partition("## What it is given")[0])
        == public(Drafter) - OTHERS["Drafter"]
    )


def test_the_tests_of_the_page_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT_FOLDER / "examples" / "markov_drafter")
    (block,) = (body for body in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "check_drafter" in body)
    names: dict[str, Any] = {}
    exec(block, names)
    tests = [test for name, test in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()
    sys.modules.pop("markov_drafter", None)


@pytest.mark.parametrize(
    "make", [lambda: Erratic(24), lambda: make_drafter("lookup+suffix"), lambda: Watched(Erratic(24))]
)
def test_the_double_passes_what_is_right(make: Any) -> None:
    trial = check_drafter(make)
    assert 0 < trial.accepted < trial.drafted
    assert trial.rounds > 0


class Failing(Erratic):
    """Fails."""

    def propose(self, asks: Any) -> Any:
        raise OSError("no file")


class Untruthful(Drafter):
    """Draws the favourite and says that it drew from a law without one."""

    def propose_one(self, context: Context, budget: Budget) -> DraftTree:
        if context.foreseeable:
            return DraftTree.chain([1])
        favourite = int(np.argmax(habitual().table(tuple(context.tokens.tolist()))))
        law = Distribution(np.arange(24), np.ones(24))
        return DraftTree.build([favourite], [ROOT], drawn={ROOT: law})


def test_the_double_finds_what_is_wrong() -> None:
    with pytest.raises(AssertionError, match="Plain drafted nothing"):
        check_drafter(Plain)
    with pytest.raises(DrafterError, match="drafter 'erratic' failed in propose: OSError: no file"):
        check_drafter(Failing)
    with pytest.raises(AssertionError, match=r"do not follow the model's law .*law of the samples"):
        check_drafter(Untruthful)


def test_a_draft_can_be_looked_at() -> None:
    assert drafted(make_drafter("lookup"), [1, 2, 3, 1], nodes=2).tokens.tolist() == [2, 3]
    with pytest.raises(DrafterError, match="holds token 99"):
        drafted(_Chain([99]), [1, 2])
    target: Target = habitual(SIZE)
    assert drafted(_Chain([3]), [1, 2], target=target).tokens.tolist() == [3]


class _Chain(Drafter):
    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def propose_one(self, context: Context, budget: Budget) -> DraftTree:
        return DraftTree.chain(self._tokens)
