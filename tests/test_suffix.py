"""Places by their endings, votes for what followed, and the drafter made of both: against definitions of one line."""

import hashlib
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from drafting import context_of, drafted, flipped, paths_of
from engine import PROMPT, tabled, write
from paceline.drafters import Budget, Seen, make_drafter
from paceline.drafters.compose import Union
from paceline.drafters.endings import NONE, SIZES, Endings
from paceline.drafters.lookup import Lookup
from paceline.drafters.memory import MEMORY, Generations, Memory
from paceline.drafters.noise import SharedNoise
from paceline.drafters.suffix import PLACES, Suffix
from paceline.drafters.votes import LONGEST, TRUST, Vote, grow, ranked
from paceline.tree import Floats, Ints

EVERYTHING = 10**6


# --- endings ----------------------------------------------------------------------------------------------------------


def places(text: list[int], ending: list[int], sizes: Sequence[int], *, before: int) -> list[tuple[int, int]]:
    """The definition: every place that ends like this, by the largest size to which it does, then the latest."""
    found = []
    for place in range(before):
        matched = 0
        while matched < min(len(ending), place + 1) and text[place - matched] == ending[-1 - matched] != NONE:
            matched += 1
        if matched:
            found.append((place, max(size for size in sizes if size <= matched)))
    return sorted(found, key=lambda entry: (-entry[1], -entry[0]))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sizes", [SIZES, (1,), (1, 2, 3), (1, 4)])
def test_endings_are_found_as_defined_at_every_length(seed: int, sizes: tuple[int, ...]) -> None:
    random = np.random.default_rng(seed)
    text = random.integers(0, random.integers(1, 5), 90).tolist()
    if seed % 2:
        text[40:60] = text[10:30]
    endings = Endings(sizes)
    for end, token in enumerate(text, 1):
        endings.extend([token])
        expected = places(text[:end], text[:end], sizes, before=end - 1)
        assert endings.before(EVERYTHING) == expected
        assert endings.before(3) == expected[:3]
    assert Endings(sizes).before(5) == []


@pytest.mark.parametrize("seed", range(6))
def test_the_ending_of_another_text_is_found_too(seed: int) -> None:
    random = np.random.default_rng(seed)
    text = random.integers(-1, 4, 120).tolist()
    endings = Endings()
    endings.extend(text[:50])
    endings.extend(text[50:])
    for _ in range(60):
        ending = random.integers(0, 4, random.integers(1, 12)).tolist()
        expected = places(text, ending, SIZES, before=len(text))
        assert endings.like(ending, EVERYTHING) == expected
        assert endings.like(ending, 2) == expected[:2]


def test_a_text_of_one_token_over_and_over_stays_cheap() -> None:
    endings = Endings()
    endings.extend([7] * 3000)
    assert endings.before(4) == [(2998, 24), (2997, 24), (2996, 24), (2995, 24)]


# --- votes ------------------------------------------------------------------------------------------------------------


def believed(votes: Sequence[Vote], path: tuple[int, ...]) -> float:
    """The probability of a path's last token after the ones before it, from the definition."""
    step = len(path) - 1
    agreeing = [v for v in votes if tuple(v.following[:step]) == path[:-1] and len(v.following) > step]
    weights = [v.weight.by_length[min(v.length + step, LONGEST)] for v in agreeing]
    favour = sum(w for w, v in zip(weights, agreeing, strict=True) if v.following[step] == path[-1])
    return favour / (1 + sum(weights))


def random_votes(seed: int) -> list[Vote]:
    random = np.random.default_rng(seed)
    return [
        Vote(random.integers(0, 3, random.integers(0, 7)).tolist(), int(random.integers(1, 30)), ranked(rank))
        for rank in range(int(random.integers(1, 9)))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_tree_holds_the_likeliest_paths_with_their_probabilities(seed: int) -> None:
    votes = random_votes(seed)
    every = {tuple(vote.following[: i + 1]) for vote in votes for i in range(len(vote.following))}
    worth = {path: math.prod(believed(votes, path[: i + 1]) for i in range(len(path))) for path in every}
    whole = grow(votes, 999, 99, "v")
    assert set(paths_of(whole)) == every
    assert np.exp(whole.scores) == pytest.approx([believed(votes, path) for path in paths_of(whole)])
    assert (np.diff(whole.path_scores()) <= 1e-12).all(), "the best paths come first"
    for nodes in (0, 1, 2, 5):
        cut = grow(votes, nodes, 99, "v")
        cut.check(3)
        best = sorted(worth.values(), reverse=True)[:nodes]
        assert sorted(np.exp(cut.path_scores()), reverse=True) == pytest.approx(best)
    assert {len(path) for path in paths_of(grow(votes, 999, 2, "v"))} <= {1, 2}


def test_with_the_shared_noise_siblings_are_ranked_as_the_target_will_rank_them() -> None:
    votes = [Vote([1, 5], 3), Vote([2], 3), Vote([1, 6], 3)]
    asked: list[tuple[int, list[int]]] = []

    class Lucky(SharedNoise):
        def exponentials(self, ahead: int, ids: Ints) -> Floats:
            asked.append((ahead, ids.tolist()))
            return np.where(ids == 2, 0.1, 4.0)

    tree = grow(votes, 9, 9, "v", Lucky(context_of([1])))
    assert asked == [(0, [1, 2]), (1, [5, 6])], "only where there is a choice"
    assert tree.tokens[:2].tolist() == [2, 1]
    trust = TRUST[3]
    total = 1 + trust / 0.1 + 2 * trust / 4
    assert np.exp(tree.scores[:2]) == pytest.approx([trust / 0.1 / total, 2 * trust / 4 / total])


# --- the drafter ------------------------------------------------------------------------------------------------------


def test_a_repetition_is_drafted_to_any_length() -> None:
    drafter = Suffix()
    tree = drafter.propose_one(drafter.open(context_of([8, 1, 2, 3, 1, 2, 3])), Budget(50, 50))
    assert tree.trunk().tokens.tolist() == [1, 2, 3] * 16 + [1, 2]
    assert tree.sources == ("suffix",) * 50


def test_places_vote_up_to_a_number() -> None:
    drafter = Suffix()
    tokens = [token for i in range(3 * PLACES) for token in (1, i + 2)] + [1]
    tree = drafter.propose_one(drafter.open(context_of(tokens)), Budget(999, 1))
    assert tree.tokens.tolist() == list(range(3 * PLACES + 1, 2 * PLACES + 1, -1)), "the latest, of equals"


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 7, 40, 1000])
def test_a_memory_is_bounded_and_forgets_the_oldest(limit: int) -> None:
    random = np.random.default_rng(limit)
    memory = Memory(limit)
    for _ in range(50):
        memory.learn(random.integers(0, 9, random.integers(0, 12)).tolist())
        assert len(memory) <= limit
    memory.learn([100, 101, 102])
    if limit >= 40:
        assert memory.following([100, 101], 5, 9) == [([102], 2)]
        for _ in range(limit):
            memory.learn([1, 2])
        assert memory.following([100, 101], 5, 9) == []


def test_what_was_written_is_drafted_in_the_next_text() -> None:
    written = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    drafter = Suffix(remember=100)
    drafter.fit(type(tabled())(lambda text: [0.0] * 20, 20))
    context = context_of([11, 12])
    state = drafter.open(context)
    for token in written:
        context.commit(token)
    drafter.close(state)
    draft = drafter.propose_one(drafter.open(context_of([15, 9, 8, 7, 6, 5, 4, 3])), Budget(9, 9))
    assert draft.tokens.tolist() == [2, 1, 0]
    drafter.reset()
    assert len(drafter.propose_one(drafter.open(context_of([9, 8, 7, 6])), Budget(9, 9))) == 0


def remembered(path: Path, texts: Sequence[list[int]], size: int = 20) -> Suffix:
    drafter = Suffix(remember=200, memory=str(path))
    drafter.fit(type(tabled())(lambda text: [0.0] * size, size))
    for text in texts:
        context = context_of([0])
        state = drafter.open(context)
        for token in text:
            context.commit(token)
        drafter.close(state)
    return drafter


def test_a_memory_outlives_its_drafter(tmp_path: Path) -> None:
    path = tmp_path / "texts.memo"
    first = remembered(path, [[3, 4, 5, 6, 7, 8, 9] * 2, [1, 2]])
    whole = path.read_bytes()
    second = remembered(path, [])
    asked = [4, 5, 6, 7, 8, 9, 3, 4, 5]
    expected = first.propose_one(first.open(context_of(asked)), Budget(9, 9))
    found = second.propose_one(second.open(context_of(asked)), Budget(9, 9))
    assert found.tokens.tolist() == expected.tokens.tolist() != []
    assert path.read_bytes() == whole, "nothing was written, nothing is saved"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="holds token 9, and the model's vocabulary has 5"):
        remembered(path, [], size=5)


def first_version(tokens: Sequence[int], tokenizer: str = "") -> bytes:
    """A memory as the first version wrote it."""
    body = np.array(tokens, "<u2").tobytes()
    digest = hashlib.sha256(body).digest()
    texts, highest = list(tokens).count(0), max(tokens) - 1
    fields = struct.pack(
        "<8sIIQII16s32s44x", b"PACEMEMO", 1, 2, len(tokens), highest, texts, tokenizer.encode(), digest
    )
    return fields + struct.pack("<I", zlib.crc32(fields)) + body


def test_a_memory_of_the_first_version_is_read_and_kept_in_this_one(tmp_path: Path) -> None:
    path = tmp_path / "texts.memo"
    whole = first_version([4, 5, 6, 7, 8, 0, 2, 3, 0])
    path.write_bytes(whole)
    drafter = remembered(path, [])
    assert drafter.propose_one(drafter.open(context_of([3, 4, 5])), Budget(9, 9)).tokens.tolist() == [6, 7]
    assert path.read_bytes() == whole
    remembered(path, [[9, 8, 7]])
    assert MEMORY.open(path).verified()["tokens"].tolist() == [4, 5, 6, 7, 8, 0, 2, 3, 0, 1, 10, 9, 8, 0]
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="holds token 7, and the model's vocabulary has 5"):
        remembered(path, [], size=5)
    for wrong in (*(whole[:n] for n in range(len(whole))), *(flipped(whole, n) for n in range(len(whole)))):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"texts\.memo (is|holds)"):
            remembered(path, [])


def test_a_damaged_memory_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "texts.memo"
    remembered(path, [[3, 4, 5, 6, 7]])
    whole = path.read_bytes()
    for wrong in (*(whole[:n] for n in range(len(whole))), *(flipped(whole, n) for n in range(len(whole)))):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"texts\.memo (is|holds)"):
            remembered(path, [])


def test_a_memory_that_cannot_be_kept_does_not_lose_the_text(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    drafter = Suffix(remember=50, memory=str(folder / "x.memo"))
    drafter.fit(tabled())
    folder.rmdir()
    with pytest.warns(UserWarning, match="cannot write"):
        text = write(tabled(), PROMPT, drafter)
    assert text.context.emitted.tolist() == write(tabled(), PROMPT, make_drafter("plain")).context.emitted.tolist()
    assert not folder.exists()


# --- lookup by the token, and by guesses of the next one --------------------------------------------------------------


def token_by_token(text: list[int], sizes: range, count: int) -> list[int]:
    """The definition: for every token anew, the longest ending that stood in the text, at its latest place there."""
    grown = list(text)
    while len(grown) < len(text) + count:
        for size in reversed(sizes):
            starts = [s for s in range(len(text) - size + 1) if text[s : s + size] == grown[-size:]]
            starts = [s for s in starts if s + size < len(grown) and size <= len(grown)]
            if starts:
                grown.append(grown[starts[-1] + size])
                break
        else:
            break
    return grown[len(text) :]


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("sizes", [range(1, 4), range(2, 4), range(3, 6)])
def test_a_chain_is_looked_up_token_by_token(seed: int, sizes: range) -> None:
    random = np.random.default_rng(seed)
    text = random.integers(0, 3, random.integers(1, 40)).tolist()
    lookup = Lookup(min_ngram=sizes.start, max_ngram=sizes.stop - 1, chain=True)
    tree = drafted(lookup, text, Budget(12, 12))
    assert tree.tokens.tolist() == token_by_token(text, sizes, 12)


def test_the_next_token_but_one_extends_the_text() -> None:
    lookup = Lookup(next=2)
    text = lookup.open(context_of([1, 2, 3, 4, 9, 7, 7, 5]))
    assert len(lookup.propose_one(text, Budget(9, 9))) == 0
    text.guesses, text.length = [(3, -0.2), (6, -1.0)], len(text.context)
    tree = lookup.propose_one(text, Budget(9, 3))
    assert paths_of(tree) == [(3,), (6,), (3, 4), (3, 4, 9)]
    assert set(tree.sources) == {"lookup-next"}
    assert lookup.propose_one(text, Budget(2, 9)).tokens.tolist() == [3, 4]


def test_the_guessed_tokens_are_those_of_the_row_that_chose_the_last() -> None:
    target = tabled()
    guessed: list[int] = []

    class Watched(Lookup):
        def observe(self, seen: Sequence[Seen]) -> None:
            super().observe(seen)
            for text, _, _ in seen:
                row = np.array(target.table(tuple(text.context.tokens[:-1].tolist())))
                ids = [token for token, _ in text.guesses]
                assert row[ids] == pytest.approx(np.sort(row)[::-1][: len(ids)])
                guessed.extend(ids)

    drafter = Watched(next=3)
    assert drafter.needs.top == 3
    write(target, PROMPT, drafter, nodes=8, max_new_tokens=40)
    assert len(guessed) > 15


def test_texts_of_several_threads_share_a_memory_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "shared.memo"
    drafter = remembered(path, [])
    failed: list[BaseException] = []

    def write_some(number: int) -> None:
        try:
            for i in range(15):
                context = context_of([number])
                state = drafter.open(context)
                for token in (number, i, number, i):
                    drafter.propose_one(state, Budget(4, 4)).check(20)
                    context.commit(token)
                drafter.close(state)
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=write_some, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert list(tmp_path.iterdir()) == [path]
    remembered(path, [])


def test_what_another_process_wrote_is_read_while_drafts_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, locked = tmp_path / "texts.memo", list[bool]()
    one, other = (remembered(path, [])._memory for _ in range(2))
    assert one is not None
    assert other is not None
    one.learn([3, 4, 5, 6, 7])
    one.save()
    other.learn([5, 6, 7, 8, 9])
    append = Generations.append

    def noted(texts: Generations, tokens: list[int]) -> None:
        locked.append(other._lock.locked())
        append(texts, tokens)

    monkeypatch.setattr(Generations, "append", noted)
    other.save()
    assert locked == [False, False]
    assert [tokens for tokens, _ in other.following([5, 6], 9, 1)] == [[7], [7]]


def test_a_part_that_learns_in_a_class_of_its_own_is_shown_what_came() -> None:
    class Learning(Lookup):
        def observe(self, seen: Sequence[Seen]) -> None:
            shown.append(len(seen))

    shown = list[int]()
    drafter = make_drafter("suffix")
    write(tabled(), PROMPT, Union([Learning(), drafter]), max_new_tokens=5)
    assert sum(shown) > 2
    assert Learning().observes
    assert not Lookup().observes
