"""What follows what, against counting by hand, and the entries that are made of it."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="counts are tables of pyarrow: pip install 'paceline[dict]'")

from paceline.dictionary.entries import HIGHEST, LEVELS, LOWEST, Entries, level, probability
from paceline.dictionary.keys import LONGEST, NOWHERE, rolling
from paceline_make.dictionary.build import chosen
from paceline_make.dictionary.running import NEVER, SpelledNgrams
from paceline_make.dictionary.statistics import Statistics, statistics

Key = tuple[int, ...]


@dataclass(frozen=True)
class Gram:
    """An n-gram by its number of words, its tokens, where its last word begins, and how often it was seen."""

    order: int
    tokens: Key
    start: int
    count: int
    first: int = 1
    """Tokens of its first word."""

    @property
    def repeated(self) -> int:
        """From where on it is the n-gram without its first word."""
        return NEVER if self.order == 1 else self.first


def made_up(seed: int, size: int = 60, ids: int = 5, word: int = 6) -> list[Gram]:
    """N-grams over a few words, as a corpus has them: whatever is there with three words is there with two."""
    dice = random.Random(seed)
    words = [tuple(dice.choices(range(ids), k=dice.randint(1, word))) for _ in range(12)]
    found = Counter[tuple[Key, ...]]()
    for _ in range(size):
        sentence = dice.choices(words, weights=range(1, 13), k=dice.randint(1, 5))
        times = dice.randint(1, 4)
        for at in range(len(sentence)):
            for end in range(at + 1, min(at + 3, len(sentence)) + 1):
                found[tuple(sentence[at:end])] += times
    return [
        Gram(len(gram), sum(gram, ()), sum(map(len, gram[:-1])), times, len(gram[0]))
        for gram, times in sorted(found.items())
    ]  # fmt: skip


def spelled_of(grams: Sequence[Gram]) -> list[SpelledNgrams]:
    """As `running` tells them: by the number of words, in the order given."""
    found = []
    for order in (1, 2, 3):
        some = [gram for gram in grams if gram.order == order]
        if not some:
            continue
        tokens = np.full((len(some), max(len(gram.tokens) for gram in some)), -1, np.int32)
        for row, gram in enumerate(some):
            tokens[row, : len(gram.tokens)] = gram.tokens
        numbers = [
            np.array([getattr(gram, name) for gram in some], np.int64) for name in ("start", "repeated", "count")
        ]
        lengths = np.array([len(gram.tokens) for gram in some], np.int64)
        found.append(SpelledNgrams(tokens, lengths, *numbers))
    return found


class ByHand:
    """Beginnings of n-grams, counted one by one."""

    def __init__(self, grams: Iterable[Gram], longest: int = LONGEST) -> None:
        self.seen, self.followed = Counter[Key](), defaultdict[Key, Counter[int]](Counter)
        self.longest = longest
        for gram in grams:
            for end in range(gram.start + 1, len(gram.tokens) + 1):
                if end - 1 - longest >= gram.repeated:
                    continue  # of the first word nothing is left, and n-grams without it have this step
                self.followed[gram.tokens[: end - 1][-longest:]][gram.tokens[end - 1]] += gram.count
                self.seen[gram.tokens[:end][-longest:]] += gram.count if end - longest < gram.repeated else 0

    def best(self, key: Key) -> tuple[int, np.float32] | None:
        """The most frequent next token, the lowest of equally frequent ones, and how likely it is."""
        if not self.followed.get(key):
            return None
        token, times = min(self.followed[key].items(), key=lambda pair: (-pair[1], pair[0]))
        return token, np.float32(min(times / max(self.seen[key], 1), 1.0))

    def walk(self, key: Key, least: float, longest: int) -> list[tuple[int, np.float32, int]]:
        """Next tokens, how likely each is, and how often what is before it was seen."""
        steps = []
        while len(steps) < longest and (best := self.best(key)) and best[1] >= np.float32(least):
            steps.append((*best, self.seen[key]))
            key = (*key, best[0])[-self.longest :]
        return steps


def keys_of(found: Statistics) -> list[Key]:
    return [tuple(row[row >= 0].tolist()) for row in found.tokens(np.arange(len(found)))]


def steps(row: np.ndarray, values: np.ndarray) -> list[tuple[int, np.float32]]:
    size = int((row != NOWHERE).sum())
    assert (row[size:] == NOWHERE).all()
    assert (values[size:] == 0).all()
    return list(zip(row[:size].tolist(), values[:size], strict=True))


# --- counting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("longest", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_a_key_is_counted_as_often_as_it_stands_in_the_text(seed: int, longest: int) -> None:
    dice = random.Random(seed)
    words = [tuple(dice.choices(range(4), k=dice.randint(1, 7))) for _ in range(6)]
    sentence = dice.choices(words, k=200)
    grams = Counter(tuple(sentence[at:end]) for at in range(200) for end in range(at + 1, min(at + 3, 200) + 1))
    found = statistics(
        spelled_of(
            [
                Gram(len(gram), sum(gram, ()), sum(map(len, gram[:-1])), times, len(gram[0]))
                for gram, times in grams.items()
            ]
        ),
        longest,
    )
    text = sum(sentence, ())
    begins = [sum(map(len, sentence[:number])) for number in range(201)]
    stands = Counter[Key]()
    for end in range(1, len(text) + 1):
        word = max(number for number in range(200) if begins[number] < end)
        within = begins[max(0, word - 2)]  # three words may be looked back at
        keys = {text[start:end] for start in begins if max(within, end - longest) <= start < end}
        stands.update(keys | ({text[end - longest : end]} if end - longest >= within else set()))
    assert dict(zip(keys_of(found), found.counts.tolist(), strict=True)) == stands


@pytest.mark.parametrize("longest", [1, 2, 3, 8])
@pytest.mark.parametrize("orders", [(1,), (1, 2), (1, 2, 3), (3,)])
@pytest.mark.parametrize("seed", range(3))
def test_beginnings_are_counted_as_by_hand(seed: int, orders: tuple[int, ...], longest: int) -> None:
    grams = [gram for gram in made_up(seed) if gram.order in orders]
    assert max(len(gram.tokens) for gram in grams) > 8 or orders == (1,)
    hand = ByHand(grams, longest)
    found = statistics(spelled_of(grams), longest)
    keys = keys_of(found)
    assert dict(zip(keys, found.counts.tolist(), strict=True)) == hand.seen
    assert len(set(keys)) == len(keys)
    ranks = list(zip((-found.counts).tolist(), found.hashes.tolist(), strict=True))
    assert ranks == sorted(ranks)
    for number, key in enumerate(keys):
        assert found.find(rolling(np.array(key), len(key))[-1:]).tolist() == [number]
        best = hand.best(key)
        assert (found.best[number], found.likely[number]) == (best or (NOWHERE, 0.0)), key
        if best is not None:
            assert keys[found.after[number]] == (*key, best[0])[-longest:]
        else:
            assert found.after[number] == NOWHERE


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_ngrams_changes_nothing(seed: int) -> None:
    grams = made_up(seed)
    first = statistics(spelled_of(grams))
    random.Random(seed).shuffle(grams)
    other = statistics(spelled_of(grams))
    for name in ("hashes", "counts", "best", "likely", "after"):
        assert np.array_equal(getattr(first, name), getattr(other, name)), name
    assert keys_of(first) == keys_of(other)
    one, two = (chosen(found, count=30, min_probability=0.3, longest=8) for found in (first, other))
    assert all(np.array_equal(getattr(one, name), getattr(two, name)) for name in vars(one))


def test_ngrams_that_are_told_in_parts_are_counted_together() -> None:
    """The same n-gram twice, in one table or two, is one that was seen more often."""
    grams = made_up(3)
    twice = statistics([*spelled_of(grams), *spelled_of(grams)])
    once = statistics(spelled_of(grams))
    assert np.array_equal(twice.counts, 2 * once.counts)
    assert np.array_equal(twice.likely, once.likely)
    assert keys_of(twice) == keys_of(once)


def test_equally_frequent_tokens_go_by_their_ids_whichever_came_first() -> None:
    for order in ((7, 3, 5), (3, 5, 7), (5, 7, 3)):
        found = statistics(spelled_of([Gram(1, (1, token), 0, 4) for token in order]))
        (key,) = found.find(rolling(np.array([1]), 1))
        assert (found.best[key], found.likely[key]) == (3, np.float32(4 / 12))


def test_what_is_not_known_to_go_on_lowers_the_share() -> None:
    """A word seen ten times, in pairs of words six times: four times a line ended, or the pair was left out."""
    found = statistics(spelled_of([Gram(1, (1,), 0, 10), Gram(2, (1, 2), 1, 4), Gram(2, (1, 3), 1, 2)]))
    (key,) = found.find(rolling(np.array([1]), 1))
    assert (found.best[key], found.likely[key]) == (2, np.float32(0.4))
    assert found.find(rolling(np.array([9]), 1)).tolist() == [NOWHERE]


def test_pairs_without_their_first_word_follow_nothing() -> None:
    """Counts that were cut may have a pair and not its word; nothing can be said of how likely it is."""
    found = statistics(spelled_of([Gram(2, (1, 2, 3), 1, 4), Gram(1, (1,), 0, 3)]))
    assert sorted(keys_of(found)) == [(1,), (1, 2), (1, 2, 3)]
    (one,) = found.find(rolling(np.array([1]), 1))
    assert found.likely[one] == 1.0, "no more than always"
    alone = statistics(spelled_of([Gram(2, (1, 2, 3), 1, 4)]))
    assert sorted(keys_of(alone)) == [(1, 2), (1, 2, 3)]


def test_large_ids_and_counts_are_exact() -> None:
    last, many = 2**21 - 1, 2**41
    found = statistics(spelled_of([Gram(1, (0, last), 0, many), Gram(1, (0, 0), 0, many - 1)]))
    (key,) = found.find(rolling(np.array([0]), 1))
    assert (found.best[key], found.counts[key]) == (last, 2 * many - 1)


def test_token_zero_is_a_token() -> None:
    found = statistics(spelled_of([Gram(1, (0,), 0, 1), Gram(1, (0, 0), 0, 2), Gram(1, (0, 0, 0), 0, 4)]))
    assert dict(zip(keys_of(found), found.counts.tolist(), strict=True)) == {(0,): 7, (0, 0): 6, (0, 0, 0): 4}


def test_nothing_gives_nothing() -> None:
    found = statistics([])
    assert len(found) == 0
    assert found.find(np.array([5], np.uint64)).tolist() == [NOWHERE]
    table = chosen(found, count=5, min_probability=0.5, longest=8)
    assert (len(table), len(table.texts), table.highest) == (0, 0, 0)


def test_hashes_roll() -> None:
    text = np.random.default_rng(0).integers(0, 50, 40)
    for size in (1, 2, 5, 8):
        told = rolling(text, size)
        for end in range(size, len(text) + 1):
            assert told[end - 1] == rolling(text[end - size : end], size)[-1]
    assert (
        len({int(rolling(np.array(key), len(key))[-1]) for key in ([0], [0, 0], [1, 0], [0, 1], [1], [0, 0, 0])}) == 6
    )


# --- walking ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("longest", [1, 8])
def test_walks_are_those_by_hand(longest: int, least: float) -> None:
    for seed, kept in ((1, 8), (2, 2), (3, 8)):
        grams = made_up(seed)
        hand, found = ByHand(grams, kept), statistics(spelled_of(grams), kept)
        tokens, values = found.walk(np.arange(len(found)), least, longest)
        for key, row, told in zip(keys_of(found), tokens, values, strict=True):
            wanted = [(token, likely) for token, likely, _ in hand.walk(key, least, longest)]
            assert steps(row, told) == wanted
        proposing = {key for key in hand.seen if hand.walk(key, least, 1)}
        assert {keys_of(found)[number] for number in found.candidates(least)} == proposing


def test_a_walk_may_go_round_and_ends_all_the_same() -> None:
    found = statistics(spelled_of([Gram(1, (4,) * 12, 0, 5)]), 2)
    tokens, values = found.walk(np.arange(len(found)), 0.5, 8)
    assert tokens.tolist() == [[4] * 8] * 2
    assert values.tolist() == [[np.float32(10 / 11)] * 8, [1.0] + [np.float32(10 / 11)] * 7]


def test_walks_from_nowhere_propose_nothing() -> None:
    found = statistics(spelled_of(made_up(1)))
    tokens, values = found.walk(np.array([NOWHERE, 0]), 0.0001, 4)
    assert (tokens[0] == NOWHERE).all()
    assert (values[0] == 0).all()
    assert (tokens[1] != NOWHERE).any()


# --- entries ------------------------------------------------------------------------------------------------


def told(table: Entries) -> dict[Key, tuple[Key, int, int]]:
    return {
        tuple(row[row >= 0].tolist()): (
            tuple(t for t in table.texts[table.completions[number]].tolist() if t >= 0),
            int(table.first[number]),
            int(table.rest[number]),
        )
        for number, row in enumerate(table.prefixes)
    }


def nearest(likely: float) -> int:
    """The level whose log odds are nearest, found by trying all; how close to the border it is does not matter."""
    clipped = min(max(likely, LOWEST), HIGHEST)
    return min(range(LEVELS), key=lambda one: abs(odds(probability(one)) - odds(clipped)))


def odds(likely: float) -> float:
    return log(likely / (1 - likely))


@pytest.mark.parametrize(("least", "longest", "kept"), [(0.3, 8, 8), (0.8, 3, 8), (0.05, 1, 2), (0.5, 2, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_entries_are_those_by_hand(seed: int, least: float, longest: int, kept: int) -> None:
    grams = made_up(seed, size=120)
    hand, found = ByHand(grams, kept), statistics(spelled_of(grams), kept)
    everything = told(chosen(found, count=10**6, min_probability=least, longest=longest))
    wanted = {key: walk for key in hand.seen if (walk := hand.walk(key, least, longest))}
    assert everything.keys() == wanted.keys()
    for key, (text, first, rest) in everything.items():
        walk = wanted[key]
        assert text == tuple(token for token, _, _ in walk)
        shares = [float(likely) * seen / (seen + 1) for _, likely, seen in walk]
        later = exp(sum(map(log, shares[1:])) / len(shares[1:])) if len(shares) > 1 else shares[0]
        assert (first, rest) == (nearest(shares[0]), nearest(later)), key


def test_the_most_frequent_entries_are_kept() -> None:
    grams = made_up(4, size=200)
    hand, found = ByHand(grams), statistics(spelled_of(grams))
    everything = told(chosen(found, count=10**6, min_probability=0.3, longest=8))
    assert len(everything) > 60
    before: set[Key] = set()
    for count in (1, 2, 7, 30, len(everything)):
        some = told(chosen(found, count=count, min_probability=0.3, longest=8))
        assert len(some) == count
        assert before <= some.keys()
        assert all(some[key] == everything[key] for key in some), "how many there are changes none of them"
        left = everything.keys() - some.keys()
        assert min(hand.seen[key] for key in some) >= max((hand.seen[key] for key in left), default=0)
        before = set(some)


def test_entries_stand_in_the_order_of_their_keys_backwards_each_completion_once() -> None:
    table = chosen(statistics(spelled_of(made_up(6, 200))), count=10**6, min_probability=0.2, longest=5)
    backwards = [row[::-1].tolist() for row in table.prefixes]
    assert backwards == sorted(backwards)
    assert len({tuple(row) for row in backwards}) == len(backwards)
    texts = [tuple(row) for row in table.texts.tolist()]
    assert texts == sorted(set(texts))
    assert set(table.completions.tolist()) == set(range(len(texts)))
    assert ((table.texts >= 0).sum(axis=1) >= 1).all()
    assert table.highest == 4


def test_what_was_seen_once_is_believed_half() -> None:
    """However sure one is of a single case, one more may be another."""
    seen = [1, 2, 5, 20, 1000]
    firsts = []
    for times in seen:
        table = chosen(
            statistics(spelled_of([Gram(1, (1, 2, 3), 0, times)])), count=9, min_probability=0.9, longest=8
        )  # fmt: skip
        assert {key: text for key, (text, _, _) in told(table).items()} == {(1,): (2, 3), (1, 2): (3,)}
        firsts.append(probability(int(table.first[0])))
        assert firsts[-1] == pytest.approx(min(times / (times + 1), HIGHEST), abs=0.12)
        assert firsts[-1] < 1
    assert firsts == sorted(firsts)
    assert len(set(firsts)) == len(firsts)


def test_levels_keep_the_order_of_probabilities_and_little_else() -> None:
    every = np.linspace(0, 1, 4001)
    levels = level(every).astype(int)
    assert (np.diff(levels) >= 0).all()
    assert set(levels.tolist()) == set(range(LEVELS))
    assert [level(np.array([probability(one)]))[0] for one in range(LEVELS)] == list(range(LEVELS))
    assert probability(0) == pytest.approx(LOWEST)
    assert probability(LEVELS - 1) == pytest.approx(HIGHEST)
    assert all(nearest(likely) == one for likely, one in zip(every[1:-1:37], levels[1:-1:37], strict=True))


def test_a_completion_is_as_long_as_it_may_be() -> None:
    word: Sequence[int] = range(1, 21)
    found = statistics(spelled_of([Gram(1, tuple(word), 0, 3)]))
    for longest in (1, 4, 8):
        by_key = told(chosen(found, count=99, min_probability=1.0, longest=longest))
        assert len(by_key) == 19
        assert max(map(len, by_key)) == LONGEST
        for key, (text, _, _) in by_key.items():
            assert text == tuple(range(key[-1] + 1, min(key[-1] + longest, 20) + 1))
