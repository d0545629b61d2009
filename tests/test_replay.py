"""A text as a target: it is written as it stands, and the rounds that takes are those that can be counted by hand."""

import doctest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import families
from engine import write
from paceline.context import Context
from paceline.drafters import Budget, Drafter, Plain, make_drafter
from paceline.law import Sampling
from paceline.law.scores import Row
from paceline.targets import replay as replay_module
from paceline.targets.base import Request, Want
from paceline.targets.replay import ReplayScores, ReplayTarget, open_vocabulary
from paceline.tree import DraftTree
from tokenizer_kinds import REAL

RANDOM = np.random.default_rng(5)
WORDS = [RANDOM.integers(0, 40, size).tolist() for size in (3, 5, 4, 7, 2, 6)]
TEXT = [token for number in RANDOM.integers(0, len(WORDS), 120) for token in WORDS[number]]
"""Of few words, so that what was there comes again."""
START = 12


def replay(text: Sequence[int] = TEXT, **options: Any) -> ReplayTarget:
    return ReplayTarget([text], 40, **options)


def counted(text: Sequence[int], start: int, size: int, longest: int = 3) -> tuple[int, int]:
    """Rounds and drafted tokens of prompt lookup on a text, counted the slow way: the longest suffix, where it last
    stood, is gone on with; a round brings what agrees and one token more."""
    rounds = drafted = 0
    place = start
    while place < len(text):
        room = min(size, len(text) - place - 1)
        draft = list[int]()
        for length in range(min(longest, place), 0, -1):
            ends = [end for end in range(length, place) if text[end - length : end] == text[place - length : place]]
            if ends:
                copied = list(text[:place])
                for _ in range(room):
                    copied.append(copied[ends[-1] + len(copied) - place])
                draft = copied[place:]
                break
        agreed = 0
        while agreed < len(draft) and draft[agreed] == text[place + agreed]:
            agreed += 1
        rounds, drafted, place = rounds + 1, drafted + len(draft), place + agreed + 1
    return rounds, drafted


def test_its_own_example_holds() -> None:
    assert doctest.testmod(replay_module) == (0, 4)


def test_plain_takes_a_round_for_every_token() -> None:
    session = write(replay(), TEXT[:START], Plain(), max_new_tokens=len(TEXT) - START)
    assert session.context.tokens.tolist() == TEXT
    assert len(session.rounds) == len(TEXT) - START


@pytest.mark.parametrize("size", [1, 4, 9])
def test_lookup_takes_the_rounds_that_can_be_counted(size: int) -> None:
    session = write(replay(), TEXT[:START], make_drafter("lookup"), nodes=size, max_new_tokens=len(TEXT) - START)
    rounds, drafted = counted(TEXT, START, size)
    assert session.context.tokens.tolist() == TEXT
    assert (len(session.rounds), sum(r.drafted for r in session.rounds)) == (rounds, drafted)
    assert rounds < len(TEXT) - START


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1.3, seed=9), Sampling(temperature=1.0, top_p=0.5, min_p=0.1)]
)
def test_any_settings_write_the_text(sampling: Sampling) -> None:
    session = write(replay(), TEXT[:START], make_drafter("lookup"), sampling=sampling, max_new_tokens=60)
    assert session.context.tokens.tolist() == TEXT[: START + 60]


class Knowing(Drafter):
    """Drafts the text's next two tokens, among wrong siblings, and right tokens below wrong ones."""

    name = "knowing"

    def open(self, context: Context) -> Context:
        return context

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        first, second = TEXT[len(state) : len(state) + 2]
        wrong = (first + 1) % 40, (second + 1) % 40
        return DraftTree.build([wrong[0], first, second, wrong[1], second], [-1, -1, 0, 1, 1])


def test_a_tree_is_walked_along_the_text() -> None:
    session = write(replay(), TEXT[:START], Knowing(), nodes=5, max_new_tokens=60)
    assert session.context.tokens.tolist() == TEXT[: START + 60]
    assert [r.accepted for r in session.rounds] == [2] * 20


def test_a_row_off_the_text_never_leads_back_onto_it() -> None:
    target = replay()
    rows = target.open()
    target.submit([Request.of_prompt(rows, np.array(TEXT[:START]))])
    rows.keep(range(START))
    here, following = TEXT[START], TEXT[START + 1]
    tree = DraftTree.chain([(following + 1) % 40, TEXT[START + 2]])
    scores = target.submit([Request.of_tree(rows, here, tree)]).result()[0]
    assert scores.choices().tolist() == [following, 0, 0]
    tokens = np.array([here, (following + 1) % 40, following, TEXT[START + 2]])
    branching = Request(rows, tokens, np.array([-1, 0, 0, 2]))
    said = [following, 0, *TEXT[START + 2 : START + 4]]
    assert target.submit([branching]).result()[0].choices().tolist() == said
    later = Request(rows, tokens[2:], branching.parents, held=2)  # the same draft, in two levels
    target.submit([Request(rows, tokens[:2], branching.parents[:2])])
    assert target.submit([later]).result()[0].choices().tolist() == said[2:]


def test_lazy_answers_agree_with_the_full_logits() -> None:
    target = replay()
    rows = target.open()
    tree = DraftTree.chain([TEXT[1], 39, TEXT[3]])
    scores = target.submit([Request.of_tree(rows, TEXT[0], tree)]).result()[0]
    assert np.array_equal(scores.logits.argmax(-1), scores.choices())
    assert all(np.array_equal(scores.row(node), scores.logits[node + 1]) for node in range(-1, 3))
    for k in (1, 3, 40, 99):
        top = scores.top(k)
        assert top.ids.shape == (4, min(k, 40))
        assert (top.ids[:, 0] == scores.choices()).all()
        assert all(len(set(row)) == len(row) for row in top.ids.tolist())
        assert np.array_equal(np.take_along_axis(scores.logits, top.ids, 1), top.logits)
        assert not top.log_z.any()


def test_a_rewound_sequence_may_follow_another_text() -> None:
    texts = [[1, 2, 3, 4, 5], [1, 2, 9, 8, 7], [6, 6, 6]]
    target = ReplayTarget(texts, 10)
    rows = target.open()
    for text in (texts[0], texts[1], texts[2], texts[0]):
        rows.rewind(rows.common_prefix(np.array(text)))
        read = np.array(text[rows.committed : -2])
        target.submit([Request.of_prompt(rows, read)])
        rows.keep(range(len(read)))
        assert target.submit([Request.of_tree(rows, text[-2], DraftTree.chain([]))]).result()[0].choice(-1) == text[-1]
        rows.keep([0])
        rows.check()


def test_a_text_ends_with_the_end_of_text_where_there_is_one() -> None:
    text = [token or 1 for token in TEXT]
    session = write(replay(text, eos=frozenset({0})), text[:START], Plain(), max_new_tokens=len(text))
    assert session.context.tokens.tolist() == [*text, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_long_vocabulary_costs_no_matrix(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a row that is judged is made, never one for each drafted token: 60 rows of 150,000 would be 36 MB."""
    made = list[int]()
    row = ReplayScores._row

    def counting(scores: ReplayScores, token: int) -> Row:
        made.append(token)
        return row(scores, token)

    monkeypatch.setattr(ReplayScores, "_row", counting)
    target, drafter, sampling = ReplayTarget([TEXT], 150_000), make_drafter("lookup"), Sampling(temperature=temperature)
    session = write(target, TEXT[:START], drafter, nodes=60, max_new_tokens=200, sampling=sampling)
    assert sum(r.drafted for r in session.rounds) > 2000
    assert made == (session.context.emitted.tolist() if temperature else [])


@pytest.mark.parametrize(
    ("texts", "said"),
    [([[]], "text 1 of 1 to replay is empty"), ([[1], [4, 40]], "text 2 to replay has tokens from 4 to 40")],
)
def test_texts_that_cannot_be_said(texts: list[list[int]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ReplayTarget(texts, 40)


@pytest.mark.parametrize("want", [Want(hidden=frozenset({1})), Want(early_exit=2)])
def test_a_text_has_no_hidden_states(want: Want) -> None:
    target = replay()
    with pytest.raises(ValueError, match="is a text and has no hidden states"):
        target.submit([Request.of_tree(target.open(), TEXT[0], DraftTree.chain([]), want)])


def test_fingerprints_name_the_texts() -> None:
    assert replay().fingerprint() == replay().fingerprint()
    others = [replay(TEXT[:-1]), replay(eos=frozenset({1})), ReplayTarget([TEXT[:5], TEXT[5:]], 40)]
    assert len({replay().fingerprint(), *(other.fingerprint() for other in others)}) == 4


# --- vocabularies without models ------------------------------------------------------------------------------


def test_a_vocabulary_opens_without_weights(tmp_path: Path) -> None:
    families.save("llama", tmp_path)
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    assert open_vocabulary(tmp_path).text(open_vocabulary(str(tmp_path)).encode("Hello", add_special=False)) == "Hello"
    assert open_vocabulary("pocket").fingerprint == open_vocabulary("pocket+ballast:300M").fingerprint


def test_a_folder_with_nothing_but_a_tokenizer_will_do() -> None:
    if not REAL.exists():
        pytest.skip("real tokenizers are not here: ../shared/data/tokenizers is absent")
    vocabulary = open_vocabulary(REAL / "qwen2-2.5-3")
    assert vocabulary.text(vocabulary.encode("Zażółć gęślą jaźń", add_special=False)) == "Zażółć gęślą jaźń"


def test_what_is_no_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'pocket'"):
        open_vocabulary("pockt")
    with pytest.raises(ValueError, match="no model at"):
        open_vocabulary(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no tokenizer at"):
        open_vocabulary(tmp_path)
