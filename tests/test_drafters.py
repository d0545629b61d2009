"""Lookup against its definition, drafters made of drafters, and how a method's name becomes one."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from drafting import context_of
from engine import PROMPT, SIZE, Erratic, habitual, tabled, write
from paceline.api.model import LanguageModel
from paceline.context import Context
from paceline.drafters import Ask, Budget, Drafter, Plain, Seen, available, make_drafter
from paceline.drafters.compose import Fallback, Union
from paceline.drafters.lookup import Lookup
from paceline.drafters.plugin import GROUP
from paceline.drafters.spec import BUILT_IN
from paceline.errors import DrafterError
from paceline.planning.adaptive import Adaptive
from paceline.planning.fixed import Fixed
from paceline.planning.specs import make_planner
from paceline.targets.base import NOTHING, Request, Want
from paceline.targets.scores import Scores
from paceline.targets.table import TableTarget
from paceline.tree import EMPTY, DraftTree
from paceline.verify import Verdict
from paceline_lab.bench.run.ours import planner_of

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


# --- lookup -------------------------------------------------------------------------------------------------


def looked_up(text: list[int], sizes: range, count: int) -> list[int]:
    """The definition: the longest ending that stood before, its latest place, token by token from there."""
    for size in reversed(sizes):
        for start in reversed(range(len(text) - size)):
            if text[start : start + size] == text[-size:]:
                grown = text.copy()
                for place in range(start + size, start + size + count):
                    grown.append(grown[place])
                return grown[len(text) :]
    return []


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("sizes", [range(1, 2), range(1, 4), range(2, 4), range(3, 7)])
def test_lookup_is_its_definition_at_every_length_of_a_text(seed: int, sizes: range) -> None:
    random = np.random.default_rng(seed)
    context = context_of(random.integers(0, 3, random.integers(1, 9)).tolist())
    drafter = Lookup(min_ngram=sizes.start, max_ngram=sizes.stop - 1)
    state = drafter.open(context)
    found = 0
    for _ in range(25):
        budget = Budget(*random.integers(1, 12, 2).tolist())
        tree = drafter.propose_one(state, budget)
        expected = looked_up(context.tokens.tolist(), sizes, min(budget.nodes, budget.depth))
        assert tree.tokens.tolist() == expected
        assert tree.parents.tolist() == list(range(-1, len(expected) - 1))
        assert set(tree.sources) <= {"lookup"}
        found += len(tree) > 0
        for token in random.integers(0, 3, random.integers(0, 4)):
            context.commit(int(token))
    assert found > 0


# --- drafters made of drafters ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Own:
    part: "Part"
    context: Context


class Part(Drafter):
    """Says the same for every sequence whose root it knows, and notes what it was asked and told."""

    def __init__(self, name: str, says: dict[int, DraftTree], needs: Want | None = None) -> None:
        self.says = says
        self.needs = needs or Want()
        self.asked: list[list[int]] = []
        self.told: list[int] = []
        self.label = name

    def open(self, context: Context) -> Own:
        return Own(self, context)

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        assert all(ask.state.part is self for ask in asks)
        roots = [ask.state.context.root for ask in asks]
        self.asked.append(roots)
        return [self.says.get(root, EMPTY) for root in roots]

    def observe(self, seen: Sequence[Seen]) -> None:
        assert all(entry.state.part is self for entry in seen)
        self.told += [entry.state.context.root for entry in seen]


def chain(name: str, *tokens: int) -> DraftTree:
    return DraftTree.chain(tokens, source=name)


def proposals(drafter: Drafter, roots: Sequence[int], nodes: int = 9) -> list[list[int]]:
    asks = [Ask(drafter.open(context_of([root])), Budget(nodes, 9)) for root in roots]
    return [tree.tokens.tolist() for tree in drafter.propose(asks)]


def test_a_fallback_asks_later_parts_for_silent_sequences_only() -> None:
    first = Part("first", {2: chain("first", 20)})
    second = Part("second", {1: chain("second", 11), 2: chain("second", 21), 4: chain("second", 41)})
    third = Part("third", {root: chain("third", root * 10 + 2) for root in (2, 3, 4)})
    fallback = Fallback([first, second, third])
    assert proposals(fallback, [1, 2, 3, 4, 5]) == [[11], [20], [32], [41], []]
    assert (first.asked, second.asked, third.asked) == ([[1, 2, 3, 4, 5]], [[1, 3, 4, 5]], [[3, 5]])
    assert proposals(fallback, [2, 2]) == [[20], [20]]
    assert len(second.asked) == len(third.asked) == 1


def test_a_union_asks_all_and_merges_by_sequence() -> None:
    first = Part("first", {1: chain("first", 5, 6), 2: chain("first", 7)})
    second = Part("second", {1: chain("second", 5, 8), 3: chain("second", 9)})
    union = Union([first, second])
    assert proposals(union, [1, 2, 3, 4]) == [[5, 6, 8], [7], [9], []]
    assert first.asked == second.asked == [[1, 2, 3, 4]]
    (tree,) = union.propose([Ask(union.open(context_of([1])), Budget(9, 9))])
    assert tree.sources == ("first+second", "first", "second")


def test_a_broken_tree_is_told_of_before_it_is_merged() -> None:
    broken = DraftTree.build([1, 2], [1, -1])
    with pytest.raises(DrafterError, match="drafter 'Part' gave no valid draft: the parent of node 0 is 1"):
        proposals(Union([Part("whole", {}), Part("broken", {1: broken})]), [1])


@pytest.mark.parametrize("composed", [Fallback, Union])
def test_parts_observe_with_their_own_state_and_their_needs_are_joined(composed: type[Fallback | Union]) -> None:
    parts = [Part("a", {}, Want(hidden=frozenset({1}))), Part("b", {}, Want(top=3, hidden=frozenset({2})))]
    drafter = composed(parts)
    assert (drafter.needs, drafter.prompt_needs) == (Want(top=3, hidden=frozenset({1, 2})), NOTHING)
    parts[0].prompt_needs, parts[1].needs = Want(logits=True), Want(top=5)  # as a part may say once it is fitted
    assert (drafter.needs, drafter.prompt_needs) == (Want(top=5, hidden=frozenset({1})), Want(logits=True))
    target = TableTarget(habitual(), SIZE)
    seen = []
    for root in (1, 2):
        request = Request.of_tree(target.open(), root, EMPTY)
        seen.append(Seen(drafter.open(context_of([root])), Verdict((), (0,), 0), Scores(request, None)))
    drafter.observe(seen)
    assert [part.told for part in parts] == [[1, 2], [1, 2]]


def test_a_drafter_without_a_proposal_is_a_mistake_of_its_author() -> None:
    with pytest.raises(TypeError, match="Silent overrides neither propose nor propose_one"):
        type("Silent", (Drafter,), {})().propose([Ask(None, Budget(1, 1))])


class Learner(Drafter):
    """Checks what a drafter is told: with its own record of the text, row by row."""

    prompt_needs = Want(logits=True)

    def __init__(self) -> None:
        self.rows: list[int] = []

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return Erratic(seed=9).propose_one(state, budget)

    def observe(self, seen: Sequence[Seen]) -> None:
        for context, verdict, scores in seen:
            kept = [0, *(node + 1 for node in verdict.path)]
            self.rows += scores.tokens[kept].tolist()
            assert self.rows == context.tokens[: len(self.rows)].tolist()
            assert scores.logits.shape == (len(scores.tokens), SIZE)
            following = context.tokens[len(self.rows) :].tolist()
            assert not verdict.tokens or following == [verdict.tokens[-1]]


def test_prompt_and_rounds_are_observed_alike() -> None:
    learner = Learner()
    session = write(TableTarget(habitual(), SIZE), [1, 2, 3, 4, 5, 0], learner, max_new_tokens=20)
    assert learner.rows == session.context.tokens[:-1].tolist()
    assert sum(round.accepted for round in session.rounds) > 0


# --- names of methods ---------------------------------------------------------------------------------------


def test_specs_are_read_as_they_are_written() -> None:
    assert isinstance(make_drafter("plain"), Plain)
    lookup = make_drafter(" lookup: max_ngram = 4 , min_ngram=2 ")
    assert isinstance(lookup, Lookup)
    assert lookup.sizes == range(2, 5)
    fallback = make_drafter("lookup:max_ngram=5,min_ngram=4,lookup+plain,plain")
    assert isinstance(fallback, Fallback)
    first, second, third = fallback.parts
    assert isinstance(first, Lookup)
    assert first.sizes == range(4, 6)
    assert isinstance(second, Union)
    assert [type(part) for part in second.parts] == [Lookup, Plain]
    assert isinstance(third, Plain)


class Options(Drafter):
    """A method whose options show every kind of value."""

    def __init__(
        self,
        *,
        model: str,
        beams: int | None = None,
        share: float = 0,
        greedy: bool = True,
        untyped=3,  # noqa: ANN001
    ) -> None:
        self.given = {"model": model, "beams": beams, "share": share, "greedy": greedy, "untyped": untyped}


class Anything(Drafter):
    def __init__(self, **options: str) -> None:
        self.given = options


A_NUMBER = 3

PLUGINS = {
    "options": "test_drafters:Options",
    "anything": "test_drafters:Anything",
    "absent": "no_such_module:Thing",
    "missing": "test_drafters:NoSuchClass",
    "impostor": "builtins:dict",
    "number": "test_drafters:A_NUMBER",
    "lookup": "test_drafters:Anything",
}


def install(where: Path, monkeypatch: pytest.MonkeyPatch, plugins: dict[str, str]) -> None:
    """What an installer leaves behind, as far as entry points go."""
    folder = where / "somebodys_drafters-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-drafters\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in plugins.items()]
    (folder / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]))
    monkeypatch.syspath_prepend(where)
    available.cache_clear()


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path, monkeypatch, PLUGINS)
    with pytest.warns(UserWarning, match="'lookup' of the package somebodys-drafters is not used: a built-in method"):
        available()
    yield
    available.cache_clear()


@pytest.mark.usefixtures("plugins")
def test_options_are_read_by_their_annotation() -> None:
    def given(spec: str) -> dict[str, Any]:
        drafter = make_drafter(spec)
        assert isinstance(drafter, Options | Anything)
        return drafter.given

    spec = "options:model=a/b,beams=4,share=0.5,greedy=False,untyped=7"
    assert given(spec) == {"model": "a/b", "beams": 4, "share": 0.5, "greedy": False, "untyped": 7}
    assert given("options:model=7,share=1")["model"] == "7"
    assert given("anything:one=1,two=x y") == {"one": "1", "two": "x y"}
    assert given("anything") == {}


SENTENCES = {
    "": "cannot read method ''",
    "lookup,": "cannot read method 'lookup,': write name, name:key=value",
    "lookup+": r"cannot read method 'lookup\+'",
    "lookup:": "cannot read method 'lookup:'",
    "2nd": "cannot read method '2nd'",
    "plain,x=1": "cannot read method 'plain,x=1'",
    "magic": "unknown method 'magic'; 'paceline methods' lists .*lookup, .*plain",
    "lookup,magic": "unknown method 'magic'",
    "lookup:max_ngram": "cannot read 'max_ngram' in method 'lookup': write key=value",
    "lookup:max_ngram=": "write key=value",
    "lookup:=3": "write key=value",
    "lookup:width=3": "method 'lookup' has no option 'width'; it takes max_ngram, min_ngram",
    "plain:width=3": "method 'plain' has no option 'width'; it takes no options",
    "lookup:max_ngram=3,max_ngram=4": "is given option 'max_ngram' twice",
    "lookup:max_ngram=three": "option 'max_ngram' of method 'lookup' takes a whole number, not 'three'",
    "lookup:max_ngram=2.5": "takes a whole number, not '2.5'",
    "lookup:max_ngram=0": "lookup needs 1 <= min_ngram <= max_ngram, not 1 and 0",
    "options": "method 'options' needs a draft model: write options:model=NAME",
    "options:beams=2": "needs a draft model",
    "options:model=m,share=half": "option 'share' of method 'options' takes a number, not 'half'",
    "options:model=m,greedy=1": "option 'greedy' of method 'options' is true or false, not '1'",
    "absent": r"brings method 'absent' \(no_such_module:Thing\) cannot be imported: ModuleNotFoundError: No module",
    "missing": "brings method 'missing' .* cannot be imported: .*NoSuchClass",
    "number": "method 'number' is a int, not a drafter; its entry point names a class",
    "impostor": "method 'impostor' gives a dict, not a drafter; derive its class from paceline.Drafter",
}


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("spec", SENTENCES)
def test_a_spec_that_cannot_be_met_is_told_why(spec: str) -> None:
    with pytest.raises(ValueError, match=SENTENCES[spec]) as caught:
        make_drafter(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("plugins")
def test_a_plug_in_cannot_replace_a_built_in_method_nor_break_another() -> None:
    assert isinstance(make_drafter("lookup"), Lookup)
    assert set(PLUGINS) | {"plain"} <= set(available())


# --- the drafters of the tutorial ---------------------------------------------------------------------------


@pytest.fixture(params=["markov", "nearest"])
def example(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One of them as if it were installed, by the entry point that its own pyproject names."""
    folder = EXAMPLES / f"{request.param}_drafter"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf8"))["project"]
    install(tmp_path, monkeypatch, project["entry-points"][GROUP])
    monkeypatch.syspath_prepend(folder)
    yield request.param
    available.cache_clear()
    sys.modules.pop(folder.name, None)


only_markov = pytest.mark.parametrize("example", ["markov"], indirect=True)


@only_markov
@pytest.mark.usefixtures("example")
def test_the_tutorials_drafter_proposes_what_followed_last() -> None:
    drafter = make_drafter("markov:longest=4")
    for tokens, line in [([1, 2, 1, 3, 1], [3, 1, 3, 1]), ([4, 4], [4] * 4), ([1, 2, 3, 2], [3, 2, 3, 2]), ([7], [])]:
        tree = drafter.propose_one(context_of(tokens), Budget(9, 9))
        assert tree.tokens.tolist() == line
        assert drafter.propose_one(context_of(tokens), Budget(9, 1)).tokens.tolist() == line[:1]


@pytest.fixture(scope="module")
def pocket() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


def test_the_tutorials_drafters_write_plains_text(example: str, pocket: LanguageModel) -> None:
    story = "Once upon a time there was a little girl named Lily. Lily had a red ball. One day Lily and her red ball"
    for temperature in (0.0, 0.6):
        settings: dict[str, Any] = {"temperature": temperature, "seed": 1, "max_new_tokens": 40, "planner": "fixed"}
        found = pocket.generate(story, method=example, **settings)
        assert found.tokens == pocket.generate(story, method="plain", **settings).tokens
        assert found.totals.accepted > (10 if temperature == 0 else 0)
    assert pocket.generate(story + found.text, method=example, max_new_tokens=1).cached_tokens > 50


def test_of_equal_words_the_one_in_the_similar_state_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """State space decides, not recency: the two places of a token differ in what stands before them."""
    monkeypatch.syspath_prepend(EXAMPLES / "nearest_drafter")
    nearest: Any = import_module("nearest_drafter").Nearest(places=1)
    text = nearest.open(context_of([7, 1, 2, 8, 1, 3, 7, 1]))
    text.states = np.array([[1, 0], [0, 1], [0, 0.5], [-1, 0], [0, 1], [0, 0.5], [0.9, 0.1], [0, 0]], np.float32)
    text.count = 7
    assert nearest.propose_one(text, Budget(9, 2)).tokens.tolist() == [2, 8]
    text.states[6] = [-0.9, 0.1]
    assert nearest.propose_one(text, Budget(9, 2)).tokens.tolist() == [3, 7]


def test_the_tutorial_shows_the_drafters_that_are_tested() -> None:
    page = (EXAMPLES.parent / "docs" / "writing-a-drafter.md").read_text(encoding="utf8")
    for name, lines in (("markov", 25), ("nearest", 60)):
        source = (EXAMPLES / f"{name}_drafter" / f"{name}_drafter.py").read_text(encoding="utf8").strip()
        assert source in page
        assert len(source.splitlines()) < lines


@pytest.mark.slow
def test_the_tutorials_package_installs_and_brings_its_method(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="70.1", reason="the example's build backend")
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(EXAMPLES / "markov_drafter", source, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(site), str(source)]
    subprocess.run([*pip, *options], check=True, capture_output=True)
    program = "from paceline.drafters import make_drafter; print(make_drafter('markov:longest=3').longest)"
    path = os.pathsep.join([str(EXAMPLES.parent / "src"), str(site)])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


def test_every_method_is_adaptive_unless_its_authors_size_or_a_measurement_is_asked_for() -> None:
    """`bench run` measures a method's own size where no planner is named; ``default`` is what users have."""
    assert {name for name, method in BUILT_IN.items() if method.planner != "adaptive"} == {"plain"}
    for spec, users, measured in (
        ("plain", "fixed", "fixed"),
        ("auto", "adaptive", "adaptive"),
        ("unispec", "adaptive", "fixed"),
        ("unispec:k=8", "adaptive", "fixed"),
        ("unispec:paper", "fixed", "fixed"),
        ("unispec:paper,k=8", "fixed", "fixed"),
        ("lookup+unispec", "adaptive", "fixed"),
        ("lookup:paper,recycling:paper", "fixed", "fixed"),
        ("lookup:paper+unispec", "adaptive", "fixed"),
    ):
        drafter = make_drafter(spec)
        assert drafter.planner == users
        assert type(make_planner(None, drafter)) is {"fixed": Fixed, "adaptive": Adaptive}[users]
        assert planner_of(None, drafter) == measured
        assert planner_of("default", drafter) == users
        assert planner_of("fixed:3", drafter) == "fixed:3"


def test_a_draft_is_as_large_as_suits_its_method_unless_somebody_says() -> None:
    """Copying is free, a draft model's level is not; alternatives count as nodes, not as levels."""
    small = tabled()
    sizes = {
        spec: make_drafter(spec, small, must_use=False).nodes
        for spec in ("lookup", "assistant", "assistant:top=3", "assistant:length=2,beams=5", "lookup,assistant")
    }
    assert sizes == {
        "lookup": 10,
        "assistant": 4,
        "assistant:top=3": 12,
        "assistant:length=2,beams=5": 10,
        "lookup,assistant": 10,
    }
    assert make_drafter("lookup+assistant", small).nodes == 14
    lm = LanguageModel(tabled())
    own = lm.generate(PROMPT, method="assistant", draft_model=small, max_new_tokens=30, planner="fixed")
    assert max(r.drafted for r in own.rounds) == 4
    more = lm.generate(PROMPT, draft_model=small, max_new_tokens=30, planner="fixed:7")
    assert max(r.drafted for r in more.rounds) == 7
