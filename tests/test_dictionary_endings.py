"""The DictSpec paper's rule for entries, against counting over the text itself, with nothing but dictionaries."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from paceline_make.dictionary.endings import under

pytest.importorskip("duckdb", reason="words are counted by duckdb: pip install 'paceline[dict]'")

from dictionary_tables import SAID, taken_apart
from paceline.dictionary import file
from paceline.dictionary.entries import HIGHEST, Entries, probability
from paceline.dictionary.header import EntryRule
from paceline.dictionary.keys import LONGEST
from paceline.targets.replay import open_vocabulary
from paceline_make.dictionary.build import DictionarySettings, chosen
from paceline_make.dictionary.counting import count
from paceline_make.dictionary.endings import endings
from paceline_make.dictionary.running import NEVER, SpelledNgrams, spelled
from paceline_make.dictionary.statistics import Statistics, statistics
from paceline_make.dictionary.trace import traced
from paceline_make.texts.corpus import Corpus

ROOT = Path(__file__).resolve().parent.parent
Tokens = tuple[int, ...]
Words = Sequence[Tokens]


class Naive:
    """Every place of every sentence: which keys end there, and which endings of n-grams follow."""

    def __init__(self, sentences: Iterable[Words], order: int = 3, longest: int = LONGEST, cut: int = LONGEST) -> None:
        self.seen: Counter[Tokens] = Counter()
        self.endings: defaultdict[Tokens, Counter[Tokens]] = defaultdict(Counter)
        for words in sentences:
            ends = [sum(map(len, words[: n + 1])) for n in range(len(words))]
            text: Tokens = sum(words, ())
            for place in range(1, len(text) + 1):
                found: dict[Tokens, set[Tokens]] = defaultdict(set)
                for first in range(len(words)):
                    begin = ends[first] - len(words[first])
                    if not begin < place <= ends[min(first + order, len(words)) - 1]:
                        continue
                    following = found[text[max(begin, place - longest) : place]]
                    following |= {text[place:end][:cut] for end in ends[first : first + order] if end > place}
                for key, following in found.items():
                    self.seen[key] += 1
                    self.endings[key].update(following)

    def best(self, key: Tokens) -> tuple[Tokens, float]:
        """The most probable ending, the longest of equals, the lowest tokens of those; and its probability."""
        if not self.endings[key]:
            return (), 0.0
        ending, times = min(self.endings[key].items(), key=lambda one: (-one[1], -len(one[0]), one[0]))
        return ending, times / self.seen[key]


def grams_of(sentences: Iterable[Words], order: int = 3) -> list[SpelledNgrams]:
    """The n-grams of sentences as `running` has them."""
    counts: Counter[tuple[Tokens, ...]] = Counter()
    for words in sentences:
        for first in range(len(words)):
            counts.update(tuple(words[first:last]) for last in range(first + 1, min(first + order, len(words)) + 1))
    return [spelled_of({gram: n for gram, n in counts.items() if len(gram) == k}) for k in range(1, order + 1)]


def spelled_of(counts: dict[tuple[Tokens, ...], int]) -> SpelledNgrams:
    rows: list[Tokens] = [sum(gram, ()) for gram in counts]
    tokens = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
    for row, text in zip(tokens, rows, strict=True):
        row[: len(text)] = text
    lengths = np.array([len(row) for row in rows], np.int64)
    starts = lengths - np.array([len(gram[-1]) for gram in counts], np.int64)
    repeated = np.array([len(gram[0]) if len(gram) > 1 else NEVER for gram in counts], np.int64)
    return SpelledNgrams(tokens, lengths, starts, repeated, np.array([*counts.values()], np.int64))


def language(seed: int, size: int = 120) -> list[list[Tokens]]:
    """Sentences of a few words that begin alike."""
    dice = random.Random(seed)
    stems = [tuple(dice.choices(range(4), k=dice.randint(1, 5))) for _ in range(5)]
    words = [dice.choice(stems) + tuple(dice.choices(range(4), k=dice.randint(0, 6))) for _ in range(15)]
    weights = [1 / (1 + n) for n in range(15)]
    return [dice.choices(words, weights, k=dice.randint(1, 9)) for _ in range(size)]


def proposals(table: Entries) -> dict[Tokens, Tokens]:
    texts = [tuple(t for t in row if t >= 0) for row in table.texts.tolist()]
    keys = [tuple(t for t in row if t >= 0) for row in table.prefixes.tolist()]
    return {key: texts[which] for key, which in zip(keys, table.completions.tolist(), strict=True)}


def entries(
    sentences: Iterable[Words], least: float, order: int = 3, longest: int = LONGEST, cut: int = LONGEST
) -> Entries:
    grams = grams_of(sentences, order)
    found = endings(statistics(grams, longest), grams, cut)
    return chosen(found, count=10**6, min_probability=least, longest=cut)


# --- the rule ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("longest", "cut"), [(8, 8), (8, 3), (3, 8), (1, 1), (2, 5)])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_entries_are_those_of_the_text(order: int, longest: int, cut: int) -> None:
    for seed in range(6):
        sentences = language(seed)
        naive = Naive(sentences, order, longest, cut)
        for least in (0.2, 0.5, 1.0):
            wanted = {key: best[0] for key in naive.seen if (best := naive.best(key))[0] and best[1] >= least - 1e-7}
            assert proposals(entries(sentences, least, order, longest, cut)) == wanted
    assert max(map(len, naive.seen)) == longest, "keys are cut"
    assert max(len(naive.best(key)[0]) for key in naive.seen) == min(cut, 8), "and so are endings"


def test_the_paper_s_example() -> None:
    """Table 1: 12,400 n-grams go on in one way and 180 in another."""
    first, computer, communicator = (12, 47, 91, 103), (255, 301, 404, 509), (255, 700, 701, 702)
    grams = [
        spelled_of({(first,): 12_580, (computer,): 13_000, (communicator,): 200}),
        spelled_of({(first, computer): 12_400, (first, communicator): 180}),
    ]
    found = endings(statistics(grams), grams)
    kept = proposals(chosen(found, count=10**6, min_probability=0.98, longest=8))
    assert kept[*first, 255] == (301, 404, 509)
    (place,) = (n for n, row in enumerate(found.tokens(np.arange(len(found))).tolist()) if row[-5:] == [*first, 255])
    assert found.share[place] == np.float32(12_400 / 12_580)
    assert (*first, 255) not in proposals(chosen(found, count=10**6, min_probability=0.99, longest=8))


def test_a_word_that_is_open_at_its_end_is_completed_by_one_rule_alone() -> None:
    """Each token is likely, and no ending is."""
    word = (1, 2, 3, 4)
    sentences = [[(*word, last)] for last in (5, 6, 7, 8)] * 3
    grams = grams_of(sentences)
    found = statistics(grams)
    assert proposals(chosen(found, count=99, min_probability=0.5, longest=8))[1,] == (2, 3, 4)
    assert (1,) not in proposals(entries(sentences, 0.5))
    assert proposals(entries(sentences, 0.25))[1,] == (2, 3, 4, 5), "of equals the lowest tokens"


def test_the_likeliest_ending_need_not_begin_with_the_likeliest_token() -> None:
    sentences = [[(1, 2, last)] for last in (4, 5, 6)] + [[(1, 3)]] * 2
    grams = grams_of(sentences)
    assert proposals(chosen(statistics(grams), count=99, min_probability=0.3, longest=8))[1,][0] == 2
    assert proposals(entries(sentences, 0.3))[1,] == (3,)


def test_of_equally_probable_endings_the_longest_is_taken() -> None:
    always = [[(1, 2), (3, 4)]] * 5
    assert proposals(entries(always, 1.0))[1,] == (2, 3, 4)
    once_not = [*always, [(1, 2)]]
    assert proposals(entries(once_not, 0.5))[1,] == (2,)


def test_endings_that_differ_behind_the_cut_are_one() -> None:
    sentences = [[(1, 2, 3, 4, last)] for last in (5, 6, 7)]
    assert (1,) not in proposals(entries(sentences, 0.5))
    assert proposals(entries(sentences, 1.0, cut=3))[1,] == (2, 3, 4)


def test_the_order_of_ngrams_changes_nothing() -> None:
    sentences = language(5)
    shuffled = random.Random(1).sample(sentences, len(sentences))
    one, other = entries(sentences, 0.2), entries(shuffled, 0.2)
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in vars(one))


def test_an_ending_s_tokens_have_its_probability_together() -> None:
    """Seen n times of n, an ending is held to be n of n + 1 likely: its tokens multiply to that."""
    for times in (1, 5, 50):
        table = entries([[(1, 2, 3, 4)]] * times, 0.5)
        (row,) = np.flatnonzero((table.prefixes >= 0).sum(axis=1) == 1)
        size = int((table.texts[table.completions[row]] >= 0).sum())
        both = probability(int(table.first[row])) * probability(int(table.rest[row])) ** (size - 1)
        assert size == 3
        assert both == pytest.approx(min(times / (times + 1), HIGHEST**3), rel=0.15)


def test_nothing_gives_nothing() -> None:
    found = under(EntryRule.PAPER, statistics([]), [])
    assert len(chosen(found, count=5, min_probability=0.5, longest=8)) == 0


# --- real text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["pocket", "llama3"])
def test_on_real_text_entries_are_those_of_the_text(tokenizer: str) -> None:
    """Words of the documentation, spelled one by one behind another word, as a reader would."""
    place = ROOT.parent / "shared" / "data" / "tokenizers" / tokenizer
    if tokenizer != "pocket" and not place.exists():
        pytest.skip("needs the tokenizers of ../shared/data")
    vocabulary = open_vocabulary(tokenizer if tokenizer == "pocket" else str(place))
    text = (ROOT / "docs" / "making.md").read_text(encoding="utf8")[:9000]
    lines = [" ".join(words) for line in text.split("\n") if (words := re.findall(r"[^\W\d_]+", line))]
    assert len(vocabulary.encode_all(["x"])[0]) == 1
    spellings = {word: tuple(vocabulary.encode_all([f"x {word}"])[0][1:]) for line in lines for word in line.split()}
    naive = Naive([[spellings[word] for word in line.split()] for line in lines])
    grams = spelled(count(Corpus.of_lines(lines), memory="500MB", threads=1).grams, vocabulary)
    found = under(EntryRule.PAPER, statistics(grams), grams)
    for least in (0.2, 0.8):
        wanted = {key: best[0] for key in naive.seen if (best := naive.best(key))[0] and best[1] >= least - 1e-7}
        assert proposals(chosen(found, count=10**7, min_probability=least, longest=8)) == wanted
    assert len(wanted) > 1000


# --- the file ---------------------------------------------------------------------------------------------------


def kept(table: Entries, path: Path, **said: object) -> file.DictionaryHeader:
    return file.write(path, table, **{**SAID, **said})


@pytest.mark.parametrize("least", [0.2, 0.8])
def test_a_file_holds_them_though_they_stray(least: float, tmp_path: Path) -> None:
    table = entries(language(3, 400), least)
    kept(table, tmp_path / "a", rule=EntryRule.PAPER)
    found, back = file.read(tmp_path / "a")
    assert proposals(back) == proposals(table)
    assert np.array_equal(back.first, table.first)
    assert np.array_equal(back.rest, table.rest)
    assert found.rule is EntryRule.PAPER
    assert len(taken_apart(tmp_path / "a")[1]["strays"]), (
        "an entry may go on in another way than the one that it leads to"
    )


def test_a_rule_is_a_view_of_the_same_keys() -> None:
    grams = grams_of(language(1))
    found = statistics(grams)
    assert under(EntryRule.TOKEN, found, grams) is found
    other: Statistics = under(EntryRule.PAPER, found, grams)
    assert np.array_equal(other.hashes, found.hashes)
    assert np.array_equal(other.counts, found.counts)


# --- step by step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", EntryRule)
@pytest.mark.parametrize(("least", "size", "longest", "cut"), [(0.2, 10**6, 8, 8), (0.5, 40, 8, 8), (0.5, 5, 3, 4)])
def test_a_trace_ends_with_the_entry(rule: EntryRule, least: float, size: int, longest: int, cut: int) -> None:
    sentences = language(2)
    grams = grams_of(sentences)
    found = under(rule, statistics(grams, longest), grams, cut)
    known = proposals(chosen(found, count=size, min_probability=least, longest=cut))
    naive = Naive(sentences, 3, longest, cut)
    settings = DictionarySettings(
        rule=rule, entries=size, min_probability=least, longest_prefix=longest, longest_completion=cut
    )
    verdicts = set()
    for ending in {tuple(words[0] + words[-1])[-n:] for words in sentences for n in (1, 3, 9)}:
        traces = list(traced(found, grams, settings, ending))
        keys = [ending[-n:] for n in range(min(longest, len(ending)), 0, -1) if ending[-n:] in naive.seen]
        held = next((place for place, key in enumerate(keys) if key in known), len(keys) - 1)
        assert [trace.prefix for trace in traces] == keys[: held + 1], "down to the first that is an entry"
        for trace in traces:
            assert trace.count == naive.seen[trace.prefix]
            assert trace.kept == (trace.prefix in known)
            assert not trace.kept or trace.completion == known[trace.prefix]
            assert (trace.rank is not None) == bool(trace.completion)
            verdicts.add(re.sub(r"\d+ ", "", trace.verdict).partition(",")[0])
            for choice in trace.choices:
                assert sum(one.selected for one in choice.candidates) <= 1
                assert all(one.verdict for one in choice.candidates)
            if rule is EntryRule.PAPER:
                (choice,) = trace.choices
                assert {one.tokens: one.count for one in choice.candidates} == naive.endings[trace.prefix]
                assert all(one.probability == one.count / trace.count for one in choice.candidates)
    assert verdicts >= {"kept", f"below {least:g}"} - ({f"below {least:g}"} if least < 0.3 else set())
    assert ("too rare: that propose something are more frequent" in verdicts) == (size < 10**6)
