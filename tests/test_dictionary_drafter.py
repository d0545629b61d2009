"""Drafts out of dictionaries: what is proposed, by whom of several, and that the text stays the model's own."""

import gc
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from dictionary_tables import write as write_table
from drafting import PLENTY, context_of, drafted, paths_of, seen_of
from engine import PROMPT, SIZE, habitual, tabled, write, write_slowly
from families import byte_tokenizer
from paceline.cli import main
from paceline.context import Context, Ending
from paceline.dictionary.entries import level, probability
from paceline.dictionary.index import Dictionary, Match
from paceline.dictionary.keys import LONGEST
from paceline.drafters import Budget, Drafter, make_drafter
from paceline.drafters import dictionary as module
from paceline.drafters.auto import Auto
from paceline.drafters.base import Ask
from paceline.drafters.dictionary import HOPELESS, KEPT, LEAST, READ, DictSpec, branched, opened
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Sampling
from paceline.planning.specs import make_planner
from paceline.targets.table import TableTarget
from paceline.tree import EMPTY, ROOT, DraftTree
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary
from paceline_lab.check import CHECKED_METHODS, WITH_DICTIONARY, Checker, completing
from paceline_lab.check import run as checking

Ids = tuple[int, ...]
Entry = tuple[Ids, float, float]
"""What is proposed, how likely its first token is, and how likely each later one."""
FINGERPRINT = "of no tokenizer"


def dictionary(path: Path, entries: Mapping[Ids, Entry | Ids], tokenizer: str = FINGERPRINT) -> str:
    """A dictionary's file with these entries."""
    said = {key: entry if isinstance(entry[0], tuple) else (entry, 0.5, 0.5) for key, entry in entries.items()}
    levels = {key: (text, *level(np.array(chances)).tolist()) for key, (text, *chances) in said.items()}
    write_table(path, levels, tokenizer=tokenizer)  # type: ignore[arg-type]
    return str(path)


def random_entries(random: np.random.Generator, size: int = 4, count: int = 40) -> dict[Ids, Entry]:
    def tokens(most: int) -> Ids:
        return tuple(random.integers(0, size, random.integers(1, most + 1)).tolist())

    return {tokens(4): (tokens(5), *random.uniform(0.1, 0.99, 2).tolist()) for _ in range(count)}


def coarse(chance: float) -> float:
    """A probability as a dictionary keeps it."""
    return probability(int(level(np.array(chance))))


def suffixes(tokens: Sequence[int], entries: Mapping[Ids, Any]) -> list[Ids]:
    """The definition: the endings that are entries, the longest first."""
    endings = [tuple(tokens[-size:]) for size in range(min(LONGEST, len(tokens)), 0, -1)]
    return [ending for ending in endings if ending in entries]


def followed(drafter: Drafter, state: Any, context: Context, token: int) -> None:
    """The text goes on, and the drafter is told."""
    context.commit(token)
    drafter.observe([seen_of(state, 0, tokens=(token,))])


# --- one dictionary ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("offset", [0, 70_000], ids=["2 bytes", "4 bytes"])
def test_the_draft_completes_the_longest_ending_that_is_an_entry(tmp_path: Path, seed: int, offset: int) -> None:
    random = np.random.default_rng(seed)
    raised = random_entries(random)
    entries = {
        tuple(offset + one for one in key): (tuple(offset + one for one in told), *chances)
        for key, (told, *chances) in raised.items()
    }
    drafter = make_drafter(f"dictionary:file={dictionary(tmp_path / 'a.dict', entries)}")
    spoken = 0
    for _ in range(150):
        tokens = (offset + random.integers(0, 5, random.integers(1, 14))).tolist()
        budget = Budget(int(random.integers(1, 7)), int(random.integers(1, 7)))
        tree = drafted(drafter, tokens, budget)
        known = suffixes(tokens, entries)
        if not known:
            assert tree is EMPTY
            continue
        told, first, rest = entries[known[0]]
        count = min(len(told), budget.nodes, budget.depth)
        assert tree.tokens.tolist() == list(told[:count])
        assert tree.parents.tolist() == list(range(-1, count - 1))
        assert tree.sources == ("dictionary",) * count
        chances = [coarse(first), *[coarse(rest)] * (count - 1)]
        assert np.exp(tree.scores).tolist() == pytest.approx(chances)
        spoken += len(known) > 1
    assert spoken > 20


def test_one_dictionary_says_the_same_however_often_it_was_wrong(tmp_path: Path) -> None:
    drafter = make_drafter(f"dictionary:file={dictionary(tmp_path / 'a.dict', {(1,): (2, 3)})}")
    context = context_of([1] * 50)
    state = drafter.open(context)
    for _ in range(50):
        (tree,) = drafter.propose([Ask(state, PLENTY)])
        assert tree.tokens.tolist() == [2, 3]
        followed(drafter, state, context, 1)


def test_a_file_is_opened_once_and_again_when_it_is_another(tmp_path: Path) -> None:
    path = dictionary(tmp_path / "a.dict", {(1,): (2,)})
    first, second = DictSpec(file=path), DictSpec(file=f"{path},{path}")
    assert drafted(second, [1]).tokens.tolist() == [2]
    states = [drafter.open(context_of([1])) for drafter in (first, second)]
    assert states[0].dictionaries == states[1].dictionaries == (opened(path),)
    dictionary(tmp_path / "b.dict", {(1,): (3, 4)})
    (tmp_path / "b.dict").replace(path)
    assert drafted(DictSpec(file=path), [1]).tokens.tolist() == [3, 4]
    assert drafted(first, [1]).tokens.tolist() == [2]


def test_many_threads_open_one_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dictionary(tmp_path / "a.dict", {(1,): (2,)})
    opening, really = list[str | Path](), Dictionary.open

    def counted(path: str | Path) -> Dictionary:
        opening.append(path)
        return really(path)

    monkeypatch.setattr(Dictionary, "open", counted)
    drafters = list[Drafter]()
    threads = [Thread(target=lambda: drafters.append(DictSpec(file=path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drafters) == 8
    assert len(opening) == 1


def test_texts_share_a_draft_and_nobody_can_alter_it(tmp_path: Path) -> None:
    path = dictionary(tmp_path / "a.dict", {(1,): ((2, 3, 4), 0.8, 0.5), (5,): ((2, 3, 4), 0.8, 0.5)})
    one, other = DictSpec(file=path), DictSpec(file=path)
    tree = drafted(one, [1])
    assert drafted(other, [0, 5]) is tree, "another text, drafter and entry"
    for array in (tree.tokens, tree.parents, tree.scores):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(TypeError, match="item assignment"):
        tree.drawn[ROOT] = None  # type: ignore[index]
    tree.depths()[:] = 7
    tree.path_scores()[:] = -7
    assert drafted(one, [1]) is tree
    assert tree.depths().tolist() == [1, 2, 3]
    assert tree.path_scores().tolist() == np.cumsum(tree.scores).tolist()


def test_a_draft_that_is_kept_is_the_dictionarys_own_and_as_long_as_asked(tmp_path: Path) -> None:
    """Equal answers of different dictionaries differ, and so does what they leave within a budget."""
    paths = [dictionary(tmp_path / f"{told}.dict", {(1,): (told, told, told)}) for told in (2, 3)]
    for _ in range(2):
        for told, path in zip((2, 3), paths, strict=True):
            for nodes, depth in ((3, 3), (1, 9), (9, 2), (0, 5), (5, 0), (3, 3)):
                tokens = drafted(DictSpec(file=path), [1], Budget(nodes, depth)).tokens.tolist()
                assert tokens == [told] * min(nodes, depth, 3)


def test_only_so_many_drafts_are_kept_and_none_outlives_its_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHAINS", 4)
    before = len(module._chains)
    path = dictionary(tmp_path / "a.dict", {(told,): (told + 1,) for told in range(20)})
    drafter = DictSpec(file=path)
    kept = module._chains.setdefault(opened(path), {})
    for told in [*range(20), 3, 3, 19]:
        assert drafted(drafter, [told]).tokens.tolist() == [told + 1]
        assert 0 < len(kept) <= 4
    assert len(module._chains) == before + 1
    del drafter
    gc.collect()
    assert len(module._chains) <= before


# --- branches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("branches", [2, 3, 5])
def test_branches_are_what_shorter_endings_propose_besides(tmp_path: Path, seed: int, branches: int) -> None:
    random = np.random.default_rng(seed)
    entries = random_entries(random)
    drafter = make_drafter(f"dictionary:branches={branches},file={dictionary(tmp_path / 'a.dict', entries)}")
    wide = 0
    for _ in range(150):
        tokens = random.integers(0, 4, random.integers(1, 14)).tolist()
        depth = int(random.integers(1, 7))
        tree = drafted(drafter, tokens, Budget(99, depth))
        paths = paths_of(tree)
        assert len(paths) == len(set(paths))
        proposals = [entries[ending][0][:depth] for ending in suffixes(tokens, entries)]
        assert all(any(told[: len(path)] == path for told in proposals) for path in paths)
        ends = set(paths) - {path[:-1] for path in paths}
        assert len(ends) <= branches
        if proposals:
            assert paths[len(proposals[0]) - 1] == proposals[0]
        if len(set(proposals)) <= branches:
            missing = {told[:size] for told in proposals for size in range(1, len(told) + 1)} - set(paths)
            assert all(room(tree, path[:-1]) < 0.2 for path in missing if path[:-1] in {*paths, ()})
        for parent in range(ROOT, len(tree)):
            assert np.exp(tree.scores[tree.children(parent)]).sum() <= 1 + 1e-9
        small = drafted(drafter, tokens, Budget(3, depth))
        assert set(paths_of(small)) == set(paths_of(tree.top(3)))
        wide += len(ends) > 1
    assert wide > 20


def room(tree: DraftTree, path: Ids) -> float:
    """What the children of a node leave of its certainty."""
    node = paths_of(tree).index(path) if path else ROOT
    return 1 - float(np.exp(tree.scores[tree.children(node)]).sum())


def test_a_shorter_match_has_what_the_longer_ones_leave() -> None:
    half, most = np.log(0.5), np.log(0.8)
    found = [
        Match(3, (1, 2), most, half),
        Match(2, (1, 2), half, half),
        Match(2, (1, 3, 4), half, half),
        Match(1, (5,), half, half),
        Match(1, (6,), half, half),
    ]
    tree = branched(found, 3, PLENTY)
    chances = dict(zip(paths_of(tree), np.exp(tree.scores).tolist(), strict=True))
    expected = {(1,): 0.8, (1, 2): 0.5, (1, 3): 0.25, (1, 3, 4): 0.5, (5,): 0.1}
    assert chances == pytest.approx(expected)
    assert paths_of(branched(found, 1, PLENTY)) == [(1,), (1, 2)]
    sure = [Match(2, (1,), np.log(0.985), 0.0), Match(1, (2,), half, half)]
    assert LEAST > 0.015 * 0.5
    assert paths_of(branched(sure, 2, PLENTY)) == [(1,)]


# --- several dictionaries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_match_proposes_and_of_equals_who_was_right_more_often(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    several = [random_entries(random, count=14) for _ in range(3)]
    names = [dictionary(tmp_path / f"{i}.dict", entries) for i, entries in enumerate(several)]
    drafter = make_drafter(f"dictionary:file='{','.join(names)}'")
    prompt = random.integers(0, 4, random.integers(1, 2 * READ)).tolist()
    context = context_of(prompt)
    state = drafter.open(context)
    said, true = [0.0] * 3, [0.0] * 3

    def share(which: int) -> float:
        return (true[which] + 1) / (said[which] + 2)

    def learn(tokens: list[int], token: int) -> None:
        for which, entries in enumerate(several):
            if known := suffixes(tokens, entries):
                said[which] = said[which] * KEPT + 1
                true[which] = true[which] * KEPT + (entries[known[0]][0][0] == token)

    read = prompt[-READ - LONGEST :]
    for end in range(1, len(read)):
        learn(read[max(0, end - LONGEST) : end], read[end])
    by_share = silent = 0
    for _ in range(250):
        tokens = context.tokens.tolist()
        (tree,) = drafter.propose([Ask(state, PLENTY)])
        known = [(which, suffixes(tokens, entries)) for which, entries in enumerate(several)]
        heard = [(len(keys[0]), share(which), -which) for which, keys in known if keys and share(which) >= HOPELESS]
        silent += len(heard) < sum(bool(keys) for _, keys in known)
        if heard:
            size, _, which = max(heard)
            by_share += [one[0] for one in heard].count(size) > 1
            assert tree.tokens.tolist() == list(several[-which][tuple(tokens[-size:])][0])
        else:
            assert tree is EMPTY
        token = int(random.integers(0, 4)) if random.random() < 0.7 or not len(tree) else int(tree.tokens[0])
        learn(tokens, token)
        followed(drafter, state, context, token)
    assert by_share > 10


def test_a_dictionary_of_another_language_falls_silent_and_comes_back(tmp_path: Path) -> None:
    wrong = dictionary(tmp_path / "wrong.dict", {(1, 2): (5,)})
    right = dictionary(tmp_path / "right.dict", {(2,): (1,)})
    drafter = make_drafter(f"dictionary:file='{wrong},{right}'")
    assert drafted(drafter, [1, 2]).tokens.tolist() == [5]
    assert drafted(drafter, [1, 2] * READ).tokens.tolist() == [1]
    assert drafted(drafter, [1, 2] * READ + [1, 2, 5] * 20 + [1, 2]).tokens.tolist() == [5]


def test_who_was_asked_and_is_not_told_learns_nothing(tmp_path: Path) -> None:
    """A round may end without a token, and one may be asked twice before the text goes on."""
    names = [dictionary(tmp_path / f"{told}.dict", {(1,): (told,)}) for told in (2, 3)]
    drafter = DictSpec(file=",".join(names))
    context = context_of([1])
    state = drafter.open(context)
    for _ in range(3):
        assert drafter.propose_one(state, PLENTY).tokens.tolist() == [2], "of equals the one that is named first"
        drafter.observe([seen_of(state, 0, tokens=())])
    assert [record.below for record in state.records] == [0, 0]
    followed(drafter, state, context, 3)
    followed(drafter, state, context, 1)
    assert [(record.below, record.above) for record in state.records] == [(1, 0), (1, 1)]
    assert drafter.propose_one(state, PLENTY).tokens.tolist() == [3]


# --- with others ------------------------------------------------------------------------------------------------------


def test_hybrid_is_dictionary_and_then_lookup(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    path = dictionary(tmp_path / "a.dict", random_entries(random, count=10))
    one, other = make_drafter(f"hybrid:file='{path}'"), make_drafter(f"dictionary:file='{path}',lookup")
    assert one.nodes == other.nodes
    context = context_of(random.integers(0, 4, 20).tolist())
    states = [drafter.open(context) for drafter in (one, other)]
    sources = set[str]()
    for _ in range(120):
        trees = [
            drafter.propose([Ask(state, Budget(6, 6))])[0] for drafter, state in zip((one, other), states, strict=True)
        ]
        assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
        assert trees[0].sources == trees[1].sources
        sources.update(trees[0].sources)
        token = int(random.integers(0, 4))
        context.commit(token)
    assert sources == {"dictionary", "lookup"}


ALL = (
    "dictionary:file={}",
    "dictionary:branches=3,file={}",
    "dictionary:file='{},{two}'",
    "hybrid:file={}",
    "dictionary:file={}+lookup",
    "lookup:max_ngram=5,min_ngram=5,dictionary:file={}",
    "auto:dictionary={}",
    "auto:dictionary='{},{two}'",
)


@pytest.fixture
def habits(tmp_path: Path) -> tuple[str, str]:
    """Dictionaries of what a table likes to write, and of anything."""
    target = TableTarget(habitual(memory=1), SIZE)
    text = write_slowly(target, PROMPT, Sampling(), max_new_tokens=60).tokens
    pairs = {(before,): ((after, further), 0.7, 0.6) for before, after, further in zip(text, text[1:], text[2:])}  # noqa: B905
    return (
        dictionary(tmp_path / "one.dict", pairs),
        dictionary(tmp_path / "two.dict", random_entries(np.random.default_rng(0), SIZE)),
    )


@pytest.mark.parametrize("spec", ALL)
@pytest.mark.parametrize("planner", ["fixed:6", "adaptive"])
@pytest.mark.parametrize("rule", list(Rule))
def test_the_text_is_plain_decodings_own(habits: tuple[str, str], spec: str, planner: str, rule: Rule) -> None:
    target = TableTarget(habitual(memory=1), SIZE)
    drafter = make_drafter(spec.format(habits[0], two=habits[1]))
    drafter.fit(target)
    settings = [Sampling()]
    if rule is Rule.COUPLED:
        settings += [Sampling(temperature=0.8, seed=3), Sampling(temperature=1.0, top_k=3, seed=4)]
    sources = set[str]()
    for sampling in settings:
        context = Context(PROMPT, sampling, Ending(max_new_tokens=40))
        session = Session(context, target, target.open(), drafter, make_planner(planner, drafter, target), rule)
        list(run(session))
        assert context.emitted.tolist() == write_slowly(target, PROMPT, sampling, max_new_tokens=40).tokens
        sources |= {name for emission in session.emissions for name in emission.source.split("+")}
    if planner == "fixed:6":
        assert "dictionary" in sources


def test_conformance_finds_nothing_in_methods_with_a_dictionary(habits: tuple[str, str]) -> None:
    methods = [spec.format(habits[0], two=habits[1]) for spec in (ALL[1], ALL[2], ALL[4])]
    target = TableTarget(habitual(memory=1), SIZE)
    report = Checker(target, None, methods, ("fixed:4",), max_new_tokens=20, batches=(1, 3)).run()
    assert report.sentences() == []
    assert report.summary()["cases"] == report.summary()["equal"] > 100


# --- auto -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizers() -> tuple[Vocabulary, Vocabulary]:
    """Two that differ."""
    return Vocabulary(byte_tokenizer(320)), Vocabulary(byte_tokenizer(300))


@pytest.fixture
def coming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizers: tuple[Vocabulary, Vocabulary]) -> None:
    """A dictionary that comes along for the first of them and says that 1 follows 0, and one for a third."""
    path = Path(dictionary(tmp_path / "one.dict", {(0,): (1, 1)}, tokenizers[0].fingerprint))
    monkeypatch.setattr(module, "shipped", lambda of: (path,) if of == tokenizers[0].fingerprint else ())


def proposed(drafter: Drafter, tokens: Sequence[int]) -> list[tuple[Ids, str]]:
    tree = drafted(drafter, tokens)
    return sorted(zip(paths_of(tree), tree.sources, strict=True))


@pytest.mark.usefixtures("coming")
def test_auto_takes_up_dictionaries_when_it_learns_the_tokenizer(tokenizers: tuple[Vocabulary, Vocabulary]) -> None:
    target, auto, text = tabled(), make_drafter("auto"), [3, 4, 3, 0]
    completion = [((1,), "dictionary"), ((1, 1), "dictionary")]
    auto.fit(target)
    assert proposed(auto, text) == []
    early = auto.open(context_of(text))
    auto.fit(target, tokenizers[0])
    assert proposed(auto, text) == completion
    assert len(auto.propose([Ask(early, PLENTY)])[0]) == 0
    late = auto.open(context_of(text))
    auto.fit(target, tokenizers[1])
    assert proposed(auto, text) == []
    assert len(auto.propose([Ask(late, PLENTY)])[0]) == 2
    for state in (early, late):
        auto.close(state)
    auto.fit(target, tokenizers[0])
    auto.reset()
    assert proposed(auto, text) == completion


@pytest.mark.usefixtures("coming")
def test_auto_without_a_dictionary_is_what_it_was(tokenizers: tuple[Vocabulary, Vocabulary]) -> None:
    """For a tokenizer without one it drafts what its other parts do, and says no word; it can be told to, too."""
    target = tabled()
    for spec, vocabulary, there in (("auto", 0, 1), ("auto", 1, 0), ("auto:dictionary=none", 0, 0)):
        auto, bare = make_drafter(spec), Auto(dictionary="none")
        assert isinstance(auto, Auto)
        assert (auto.nodes, auto.needs) == (bare.nodes, bare.needs)
        for drafter in (auto, bare):
            drafter.fit(target, tokenizers[vocabulary])
        found = list[list[Any]]()
        for drafter in (auto, bare):
            # no multiple of the four tokens that the text repeats: else every draft begins behind the same one
            session = write(target, PROMPT, drafter, nodes=61, max_new_tokens=200)
            found.append([(one.token, one.source) for one in session.emissions])
            found[-1].append([one.proposed for one in session.rounds])
        sources = {source for _, source in found[0][:-1]}
        assert (found[0] == found[1]) == (not there)
        assert any("dictionary" in source for source in sources) == bool(there)
        assert [token for token, _ in found[0][:-1]] == [token for token, _ in found[1][:-1]]


def test_auto_is_not_disturbed_by_a_dictionary_of_another_language(tmp_path: Path) -> None:
    path = dictionary(tmp_path / "a.dict", {(1,): (5, 5)})
    auto = make_drafter(f"auto:dictionary={path}")
    assert proposed(auto, [1]) == [((5,), "dictionary"), ((5, 5), "dictionary")]
    assert {source for _, source in proposed(auto, [1, 2] * READ + [1])} == {"suffix"}


@pytest.mark.usefixtures("coming")
def test_texts_of_several_threads_keep_apart_while_it_is_fitted(tokenizers: tuple[Vocabulary, Vocabulary]) -> None:
    target = TableTarget(habitual(memory=1), SIZE)
    auto = make_drafter("auto")
    settings = [Sampling(temperature=0.8, seed=seed) for seed in range(4)]
    found: dict[int, list[int]] = {}

    def written(number: int) -> None:
        for turn in range(3):
            auto.fit(target, tokenizers[(number + turn) % 2])
            session = write(target, PROMPT, auto, sampling=settings[number], max_new_tokens=30)
            found[number] = [emission.token for emission in session.emissions]

    threads = [Thread(target=written, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, sampling in enumerate(settings):
        assert found[number] == write_slowly(target, PROMPT, sampling, max_new_tokens=30).tokens


# --- what is told where there is no dictionary ------------------------------------------------------------------------


def one_sentence(error: pytest.ExceptionInfo[ValueError]) -> str:
    told = str(error.value)
    assert "\n" not in told
    assert ". " not in told
    return told


@pytest.mark.usefixtures("coming")
@pytest.mark.parametrize("method", ["dictionary", "hybrid", "dictionary+lookup"])
def test_where_none_comes_along_it_is_said_how_to_get_one(
    method: str, tokenizers: tuple[Vocabulary, Vocabulary]
) -> None:
    drafter = make_drafter(method)
    with pytest.raises(ValueError, match="no dictionary for this model's tokenizer comes with paceline") as error:
        drafter.fit(tabled(), tokenizers[1])
    assert "paceline dict build" in one_sentence(error)
    assert "dictionary:file=NAME.dict" in one_sentence(error)
    with pytest.raises(ValueError, match="no tokenizer to choose a dictionary by") as error:
        drafter.fit(tabled())
    one_sentence(error)
    drafter.fit(tabled(), tokenizers[0])
    assert drafted(drafter, [0]).tokens.tolist() == [1, 1]


def test_files_that_are_none(tmp_path: Path, tokenizers: tuple[Vocabulary, Vocabulary]) -> None:
    path = dictionary(tmp_path / "a.dict", {(1,): (9,)}, tokenizers[0].fingerprint)
    for method in ("dictionary:file", "hybrid:file", "auto:dictionary"):
        for wrong, part in ((tmp_path / "no.dict", "cannot read the dictionary"), (tmp_path, "cannot read")):
            with pytest.raises(ValueError, match=part) as error:
                make_drafter(f"{method}={wrong}")
            assert str(wrong) in one_sentence(error)
        drafter = make_drafter(f"{method}={path}")
        with pytest.raises(ValueError, match="of another tokenizer") as error:
            drafter.fit(TableTarget(habitual(), 20), tokenizers[1])
        assert path in one_sentence(error)
        with pytest.raises(ValueError, match="holds token 9, and the model's vocabulary has 6") as error:
            drafter.fit(tabled(), tokenizers[0])
        drafter.fit(TableTarget(habitual(), 20), tokenizers[0])
    damaged = tmp_path / "b.dict"
    whole = Path(path).read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"b\.dict is damaged") as error:
        make_drafter(f"dictionary:file='{path},{damaged}'")
    one_sentence(error)


def test_a_drafter_that_is_refused_a_model_goes_on_with_the_last(tmp_path: Path) -> None:
    drafter = DictSpec(file=dictionary(tmp_path / "a.dict", {(1,): (5,)}))
    drafter.fit(tabled())
    with pytest.raises(ValueError, match="vocabulary has 3"):
        drafter.fit(TableTarget(habitual(3), 3))
    assert drafted(drafter, [1]).tokens.tolist() == [5]


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("dictionary:branches=0", "needs branches of at least 1, not 0"),
        ("dictionary:file='a.dict,'", "holds an empty name"),
        ("dictionary:file=a.dict,b.dict", "put a value that holds + or , in quotes"),
    ],
)
def test_options_that_make_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    dictionary(tmp_path / "a.dict", {(1,): (2,)})
    assert main(["generate", "x", "--method", spec]) == 2
    assert part in capsys.readouterr().err


def test_the_methods_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out.splitlines()[-1])["methods"]}
    assert rows["dictionary"]["options"] == rows["hybrid"]["options"] == {"file": None, "branches": 1}
    assert "file=NAME.dict" in rows["dictionary"]["needs"]
    assert rows["auto"]["options"]["dictionary"] == "shipped"


@pytest.mark.usefixtures("coming")
def test_methods_with_a_dictionary_are_checked_where_one_comes_along(
    monkeypatch: pytest.MonkeyPatch, tokenizers: tuple[Vocabulary, Vocabulary]
) -> None:
    monkeypatch.setattr(checking, "shipped", module.shipped)
    assert set(WITH_DICTIONARY).isdisjoint(CHECKED_METHODS)
    assert completing(tokenizers[0]) == WITH_DICTIONARY
    assert completing(tokenizers[1]) == completing(None) == ()
