"""N-grams have the tokens that they have in running text, whatever the tokenizer does with spaces."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dictionary_tables import SEGMENT, WORD, ngrams
from paceline.vocabulary import Vocabulary
from paceline_make.texts.words import TAB
from tokenizer_kinds import REAL, vocabulary_of, wrapped

pa = pytest.importorskip("pyarrow", reason="counts are tables of pyarrow: pip install 'paceline[dict]'")

from paceline_make.dictionary import running  # noqa: E402
from paceline_make.dictionary.running import LONGEST, SpelledNgrams, behind, spelled  # noqa: E402

DATA = REAL.parent / "text"
PASSAGE = """
The rider in front breaks the wind, and the others don't; once she is tired, the next one takes over.
Nobody knows beforehand how long it will last: a hill, a bridge, or a gust (from the left) may end it.
Той, хто їде першим, розрізає вітер, а решта — ні; коли він втомиться, його замінить наступний.
Ніхто не знає заздалегідь, як довго це триватиме: пагорб, міст чи подув вітру об'єднають усіх.
Kto jedzie pierwszy, ten rozcina wiatr; gdy się zmęczy, jego miejsce zajmie następny, i tak aż do mety.
""".strip().splitlines()
KINDS = ["byte-level", "fallback, strip", "fallback", "metaspace always", "metaspace never", "mistral-v3", "gpt2"]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The n-grams that are encoded whole."""
    seen, encode = list[str](), running._encoded_whole

    def note(texts: list[str], counts: Any, vocabulary: Vocabulary) -> Any:
        seen.extend(texts)
        return encode(texts, counts, vocabulary)

    monkeypatch.setattr(running, "_encoded_whole", note)
    return seen


def lines_of(name: str) -> list[str]:
    if name not in ("mistral-v3", "gpt2"):
        return PASSAGE
    lines = (DATA / "uk" / "docs-uk.txt").read_text(encoding="utf8")[:12_000].split("\n")
    return lines + (DATA / "pl" / "opensource-guide.txt").read_text(encoding="utf8")[:8_000].split("\n")


def grams(texts: Sequence[str], counts: Sequence[int] | None = None) -> Any:
    return pa.table({"gram": pa.array(texts, pa.string()), "count": list(counts or range(1, len(texts) + 1))})


def rows(found: SpelledNgrams) -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(found.tokens, found.lengths, strict=True)]


def in_text(vocabulary: Vocabulary, lines: Sequence[str], speak: Callable[[list[str]], list[list[int]]]) -> float:
    """The share of words behind another and a space whose tokens are those that the whole line has there."""
    places = [
        (line, found.start() + match.start() - 1, found.start() + match.end())
        for line in lines
        for found in SEGMENT.finditer(line)
        for match in WORD.finditer(found[0])
        if match.start() > 1 and found[0][match.start() - 1] == " " and found[0][match.start() - 2].isalpha()
    ]
    assert len(places) > 50
    whole = dict(zip(lines, vocabulary.encode_all(lines), strict=True))
    heads = vocabulary.encode_all([line[:start] for line, start, _ in places])
    said = speak([line[start + 1 : end] for line, start, end in places])
    found = sum(
        bool(tokens) and whole[line][: len(head) + len(tokens)] == head + tokens
        for (line, _, _), head, tokens in zip(places, heads, said, strict=True)
    )
    return found / len(places)


@pytest.mark.parametrize("name", KINDS)
def test_a_word_has_the_tokens_that_it_has_in_a_sentence(name: str) -> None:
    vocabulary = vocabulary_of(name)
    assert in_text(vocabulary, lines_of(name), lambda words: behind(words, vocabulary, first=True)) >= 0.97


def encoded_whole(vocabulary: Vocabulary, texts: Sequence[str]) -> list[list[int]]:
    """N-grams behind a word that is none of theirs, by the definition."""
    (before,) = vocabulary.encode_all(["x"])
    told = vocabulary.encode_all([f"x {text.replace(TAB, '')}" for text in texts])
    assert all(tokens[: len(before)] == before for tokens in told)
    return [tokens[len(before) :] for tokens in told]


@pytest.mark.parametrize("name", KINDS)
def test_ngrams_of_units_are_those_encoded_whole(name: str, whole: list[str]) -> None:
    vocabulary = vocabulary_of(name)
    lines = lines_of(name)[:60]
    texts = sorted({gram for line in lines for gram in ngrams(line, 3)}, key=lambda gram: gram.count(TAB))
    found = spelled(grams(texts), vocabulary)
    assert [set(one.starts.tolist()) == {0} for one in found] == [True, False, False]
    told = {int(count): row for one in found for count, row in zip(one.counts, rows(one), strict=True)}
    assert len(told) == len(texts)
    wanted = encoded_whole(vocabulary, texts)
    agreed = sum(told[n] == tokens[:LONGEST] for n, tokens in enumerate(wanted, 1))
    assert agreed >= 0.99 * len(texts)
    if not name.startswith("metaspace"):  # whose tokens for unknown characters melt across gaps
        assert len(whole) < 0.05 * len(texts), "these cut at spaces"


@pytest.mark.parametrize("name", ["byte-level", "fallback", "metaspace never"])
def test_the_last_word_begins_behind_the_tokens_of_the_others(name: str) -> None:
    vocabulary = vocabulary_of(name)
    texts = [gram for line in PASSAGE[:2] for gram in ngrams(line, 3) if gram.count(TAB)]
    heads = encoded_whole(vocabulary, [text.rpartition(TAB)[0] for text in texts])
    for one in spelled(grams(texts), vocabulary):
        for count, start, length in zip(one.counts, one.starts, one.lengths, strict=True):
            assert start == min(len(heads[count - 1]), LONGEST)
            assert length > start or length == LONGEST


@pytest.mark.parametrize("name", ["byte-level", "fallback", "metaspace never", "mistral-v3"])
def test_it_is_known_from_where_on_an_ngram_is_that_without_its_first_word(name: str) -> None:
    vocabulary = vocabulary_of(name)
    texts = [gram for line in PASSAGE for gram in ngrams(line, 3)]
    later = [TAB.join(unit[unit.find(WORD.findall(unit)[0]) :] if n == 0 else unit
                      for n, unit in enumerate(text.split(TAB)[1:])) for text in texts]  # fmt: skip
    rests = encoded_whole(vocabulary, later)
    agreed = 0
    for one in spelled(grams(texts), vocabulary):
        for count, place, row in zip(one.counts, one.repeated, rows(one), strict=True):
            rest = rests[count - 1]
            if TAB not in texts[count - 1]:
                assert place > LONGEST, "of one word nothing is told twice"
            elif len(row) < LONGEST:
                same = row[place:] == rest[len(rest) - len(row) + place :]
                agreed += same and row[place - 1 :] != rest[len(rest) - len(row) + place - 1 :]
            else:
                agreed += 1
    assert agreed >= 0.97 * sum(TAB in text for text in texts)


# --- tokenizers made to be awkward --------------------------------------------------------------------------


def letters(*merges: str, alphabet: str = "abcdx ,1-。、我们是") -> Vocabulary:
    """A token a letter, and those that are told to stand together; nothing is cut at spaces."""
    tokens = {letter: i for i, letter in enumerate(alphabet)}
    for merge in merges:
        tokens.setdefault(merge.replace("|", ""), len(tokens))
    backend = Tokenizer(models.BPE(tokens, [tuple(merge.split("|")) for merge in merges]))
    backend.decoder = decoders.Fuse()
    return Vocabulary(wrapped(backend))


def names(vocabulary: Vocabulary, found: SpelledNgrams) -> list[list[str]]:
    return [[vocabulary._strings[token] or "" for token in row] for row in rows(found)]


def test_where_tokens_cross_a_gap_ngrams_are_encoded_whole_and_elsewhere_not(whole: list[str]) -> None:
    vocabulary = letters("b| ")
    (found,) = spelled(grams([f"ab{TAB} cd", f"ab{TAB}-cd", f"cd{TAB}-ab"]), vocabulary)
    assert whole == [f"ab{TAB} cd"]
    assert found.counts.tolist() == [2, 3, 1]
    assert names(vocabulary, found) == [
        [" ", "a", "b", "-", "c", "d"],
        [" ", "c", "d", "-", "a", "b"],
        [" ", "a", "b ", "c", "d"],
    ]
    assert found.starts.tolist() == [3, 3, 2], "what the last word brings begins where tokens differ"
    assert (found.tokens[2, 5:] == -1).all()


def test_one_gap_that_tokens_cross_is_enough(whole: list[str]) -> None:
    vocabulary = letters("b| ")
    two = [f"ab{TAB} cd", f"cd{TAB}-ab", f"ab{TAB}-cd"]
    three = [f"cd{TAB}-cd{TAB}-ab"] * 40 + [f"ab{TAB} cd{TAB}-ab", f"cd{TAB}-ab{TAB} cd"] * 20
    (_, found) = spelled(grams([*two, *three]), vocabulary)
    assert whole == [two[0], *three[40:]], "the other gap is not blamed for it"
    assert names(vocabulary, found)[-2:] == [
        [" ", "a", "b ", "c", "d", "-", "a", "b"],
        [" ", "c", "d", "-", "a", "b ", "c", "d"],
    ]


def test_scripts_without_spaces_are_told_apart_behind_the_same_gap(whole: list[str]) -> None:
    """Nothing stands between the characters of one, and nothing before a word of another: only one of them is safe."""
    vocabulary = letters("我|们")
    (found,) = spelled(grams([f"我{TAB}们", f"是{TAB}abc", f"我{TAB}dab"]), vocabulary)
    assert whole == [f"我{TAB}们"]
    assert names(vocabulary, found) == [["是", "a", "b", "c"], ["我", "d", "a", "b"], ["我们"]]
    assert found.starts.tolist() == [1, 1, 0]


def test_words_of_scripts_without_spaces_have_none_before_them() -> None:
    vocabulary = letters()
    (single, double) = spelled(grams(["我", "abc", f"我{TAB}是", f"abc{TAB}我", f"我{TAB} abc"]), vocabulary)
    assert names(vocabulary, single) == [["我"], [" ", "a", "b", "c"]]
    assert names(vocabulary, double) == [["我", "是"], [" ", "a", "b", "c", "我"], ["我", " ", "a", "b", "c"]]


@pytest.mark.parametrize(
    ("merges", "told"),
    [
        ([], [" ", "a"]),
        (["x| "], [" ", "a"]),
        (["x| ", ",| "], [" ", "a"]),
        (["x| ", ",| ", "1| "], []),
        ([" |a"], [" a"]),
    ],
)
def test_another_text_is_tried_before_a_word_that_melts_into_it(merges: list[str], told: list[str]) -> None:
    vocabulary = letters(*merges)
    assert [vocabulary._strings[token] for token in behind(["a"], vocabulary, first=True)[0]] == told


def test_words_that_melt_into_whatever_is_before_them_are_left_out() -> None:
    vocabulary = letters("x| ", ",| ", "1| ", "x|a", ",|a", "1|a")
    (single, double) = spelled(grams(["a", "我", f"我{TAB}a", f"我{TAB}们", f"a{TAB}我"]), vocabulary)
    assert single.counts.tolist() == [2]
    assert double.counts.tolist() == [4, 3]
    assert names(vocabulary, double) == [["我", "们"], ["我", "a"]], "behind that one it does not"
    assert not behind(["a"], vocabulary, first=True)[0]


def test_long_words_are_looked_at_up_to_a_point() -> None:
    vocabulary = letters()
    texts = ["a" * 99, "b" * 39, f"{'a' * 38}{TAB} b", f"{'a' * 50}{TAB} b", f"{'a' * 38}{TAB} b{TAB} cd"]
    one, two, three = spelled(grams(texts), vocabulary)
    assert one.lengths.tolist() == [LONGEST, 40]
    assert two.lengths.tolist() == [LONGEST, LONGEST]
    assert two.starts.tolist() == [39, LONGEST]
    assert three.starts.tolist() == [LONGEST]
    assert all(one.tokens.shape[1] <= LONGEST for one in (one, two, three))
    assert (one.tokens[0] >= 0).all()


def test_unusual_gaps_are_encoded_whole(monkeypatch: pytest.MonkeyPatch, whole: list[str]) -> None:
    """Only the most frequent ones are tried."""
    monkeypatch.setattr(running, "KNOWN_GAPS", 1)
    vocabulary = letters()
    (found,) = spelled(grams([f"a{TAB} b", f"a{TAB} c", f"a{TAB}-b"]), vocabulary)
    assert whole == [f"a{TAB}-b"]
    assert names(vocabulary, found) == [[" ", "a", " ", "b"], [" ", "a", " ", "c"], [" ", "a", "-", "b"]]
    assert found.counts.tolist() == [1, 2, 3]


def test_no_ngrams_at_all() -> None:
    assert spelled(grams([]), letters()) == []


def test_tokens_that_are_added_do_not_hide_in_gaps() -> None:
    """A gap may spell a special token's name; what cannot be composed is encoded whole or left out, never wrong."""
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate("abx ,1<>")}, []))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_tokens([AddedToken("<b>"), AddedToken("a <")])
    vocabulary = Vocabulary(wrapped(backend))
    texts = [f"a{TAB} <b", f"a{TAB}<b", f"b{TAB} <b"]
    for one in spelled(grams(texts), vocabulary):
        for count, row in zip(one.counts, rows(one), strict=True):
            assert row == encoded_whole(vocabulary, [texts[count - 1]])[0]
