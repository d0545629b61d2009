"""Steps with a dictionary, counted three ways: at once for all sizes, by the engine, and in ten plain lines."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from paceline.cli import main
from paceline.dictionary import file
from paceline.dictionary.entries import Entries
from paceline.dictionary.header import EntryRule
from paceline.targets.replay import ReplayTarget
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.run.emulation import Replay, replayed
from paceline_lab.bench.tally import StepTally, total
from paceline_make.dictionary.build import chosen
from paceline_make.dictionary.emulator import Dictionaries, Script
from paceline_make.dictionary.endings import under
from paceline_make.dictionary.running import NEVER, SpelledNgrams, spelled
from paceline_make.dictionary.statistics import Statistics, statistics
from papers.dictspec.numbers import BEST, Best
from thinning import thinned
from tokenizer_kinds import REAL, byte_level, tokenizer_of, wrapped

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "text"
LETTERS = 7
SIZES = (3, 17, 60, 100_000)
MIN_PROBABILITIES = (0.2, 0.5, 0.8, 1.0)
Known = Mapping[tuple[int, ...], tuple[int, ...]]


def plain(known: Known, text: Sequence[int], start: int, budget: int) -> StepTally:
    """The definition: the longest ending that is known is completed, and what agrees with the text is accepted."""
    steps, drafts, proposed, accepted, at = 0, 0, 0, 0, start
    while at < len(text):
        endings = (tuple(text[max(0, at - length) : at]) for length in range(8, 0, -1))
        draft = next((known[ending] for ending in endings if ending in known), ())[: min(budget, len(text) - at - 1)]
        agreed = 0
        while agreed < len(draft) and draft[agreed] == text[at + agreed]:
            agreed += 1
        steps, drafts, proposed, accepted = steps + 1, drafts + (draft != ()), proposed + len(draft), accepted + agreed
        at += agreed + 1
    return StepTally(len(text) - start, steps, drafts, proposed, accepted)


def known_of(table: Entries) -> Known:
    """The entries of a table, by what they match."""
    texts = [tuple(int(token) for token in row if token >= 0) for row in table.texts]
    prefixes = (tuple(int(token) for token in row if token >= 0) for row in table.prefixes)
    return {prefix: texts[which] for prefix, which in zip(prefixes, table.completions, strict=True)}


# --- small languages that nobody speaks -------------------------------------------------------------------------


def language(seed: int, rule: EntryRule = EntryRule.TOKEN) -> tuple[Statistics, list[list[int]]]:
    """What follows in the n-grams of some words by a rule, and texts of these words with a few slips."""
    chance = random.Random(seed)
    lexicon = [[chance.randrange(LETTERS) for _ in range(chance.randint(1, 6))] for _ in range(12)]
    grams = [[chance.choices(range(12), weights=range(12, 0, -1), k=order) for _ in range(40)] for order in range(1, 4)]
    told = [_spelled(chance, lexicon, some) for some in grams]
    texts = []
    for length in (1, 2, 3, 40, 60):
        tokens = [token for number in chance.choices(range(12), k=60) for token in lexicon[number]]
        texts.append([token if chance.random() < 0.95 else chance.randrange(LETTERS) for token in tokens[:length]])
    return under(rule, statistics(told), told), texts


def _spelled(chance: random.Random, lexicon: list[list[int]], grams: list[list[int]]) -> SpelledNgrams:
    rows = [[token for number in gram for token in lexicon[number]] for gram in grams]
    table = np.full((len(rows), max(map(len, rows))), -1, np.int32)
    for row, tokens in zip(table, rows, strict=True):
        row[: len(tokens)] = tokens
    lengths = np.array([len(row) for row in rows])
    starts = lengths - [len(lexicon[gram[-1]]) for gram in grams]
    seconds = np.array([len(lexicon[gram[0]]) if len(gram) > 1 else NEVER for gram in grams])
    return SpelledNgrams(table, lengths, starts, seconds, np.array([chance.randint(1, 9) for _ in rows]))


@pytest.mark.parametrize("rule", EntryRule)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("budget", [8, 2])
def test_all_sizes_at_once_count_what_plain_lines_count(seed: int, budget: int, rule: EntryRule) -> None:
    known, texts = language(seed, rule)
    starts = [min(1 + seed % 3, len(text)) for text in texts]
    tables = Dictionaries.over(Script(texts, starts), known, budget)
    drafted = 0
    for least in MIN_PROBABILITIES:
        for size, (held, tally) in zip(SIZES, tables.tallies(least, SIZES), strict=True):
            table = chosen(known, count=size, min_probability=least, longest=8)
            each = [plain(known_of(table), text, start, budget) for text, start in zip(texts, starts, strict=True)]
            assert tally == total(each)
            assert held == len(table)
            drafted += tally.drafts
    assert drafted > 100, "something is drafted at all"


def test_nothing_is_matched_across_texts() -> None:
    """Each text by itself takes the steps that it takes among others."""
    known, texts = language(3)
    whole = [tally for _, tally in Dictionaries.over(Script(texts), known).tallies(0.2, SIZES)]
    alone = [[tally for _, tally in Dictionaries.over(Script([text]), known).tallies(0.2, SIZES)] for text in texts]
    assert whole == [total(column) for column in zip(*alone, strict=True)]


def test_no_text_takes_no_steps() -> None:
    known, _ = language(0)
    assert [tally for _, tally in Dictionaries.over(Script([[], [5]]), known).tallies(0.2, [10])] == [total([])]


# --- the engine -------------------------------------------------------------------------------------------------


def engine(
    tmp_path: Path,
    table: Entries,
    vocabulary: Vocabulary,
    texts: Sequence[Sequence[int]],
    starts: Sequence[int],
    budget: int,
) -> list[StepTally]:
    path = tmp_path / "language.dict"
    kinds = {"language": "", "order": 3, "min_probability": 0.2, "longest_prefix": 8, "longest_completion": 8}
    file.write(path, table, tokenizer=vocabulary.fingerprint, **kinds)
    named = {str(number): np.array(text, np.int64) for number, text in enumerate(texts)}
    given = Replay(
        target=ReplayTarget(list(named.values()), vocabulary.size),
        vocabulary=vocabulary,
        texts=named,
        starts={str(number): start for number, start in enumerate(starts)},
    )
    return [passage.tally for passage in replayed(given, f'dictionary:file="{path}"', budget)]


@pytest.mark.parametrize("rule", EntryRule)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [8, 3])
def test_the_engine_counts_what_the_emulator_counts(tmp_path: Path, seed: int, budget: int, rule: EntryRule) -> None:
    known, texts = language(seed, rule)
    texts = [text for text in texts if len(text) > 20]
    starts = [12] * len(texts)
    least = MIN_PROBABILITIES[seed]
    table = chosen(known, count=60, min_probability=least, longest=8)
    found = engine(tmp_path, table, Vocabulary(wrapped(byte_level())), texts, starts, budget)
    assert found == [plain(known_of(table), text, start, budget) for text, start in zip(texts, starts, strict=True)]
    ((_, tally),) = Dictionaries.over(Script(texts, starts), known, budget).tallies(least, [60])
    assert tally == total(found)
    assert tally.drafts > 0


def passages(vocabulary: Vocabulary, lines: Sequence[str], count: int) -> Iterator[list[int]]:
    """Lines that are long enough, no two of which begin alike."""
    begun = set[tuple[int, ...]]()
    for tokens in vocabulary.encode_all([line for line in lines if len(line) > 80]):
        beginning = tuple(tokens[:8])
        if len(tokens) > 20 and beginning not in begun and len(begun) < count:
            begun.add(beginning)
            yield tokens[:80]


@pytest.mark.parametrize("rule", thinned(EntryRule))
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_on_real_text_all_three_agree(tmp_path: Path, count: int, rule: EntryRule) -> None:
    pytest.importorskip("duckdb", reason="words are counted by duckdb: pip install 'paceline[dict]'")
    source = DATA / "uk" / "ua-gec-target.txt"
    if not source.exists() or not REAL.exists():
        pytest.skip("needs texts and tokenizers in ../shared/data")
    from paceline_make.dictionary.counting import count as counted
    from paceline_make.texts.corpus import Corpus

    lines = source.read_text(encoding="utf8").split("\n")
    vocabulary = Vocabulary(tokenizer_of("llama3"))
    grams = counted(Corpus.of_lines(lines[:1500]), order=2, memory="500MB", threads=1).grams
    told = spelled(grams, vocabulary)
    known = under(rule, statistics(told), told)
    texts = list(passages(vocabulary, lines[1500:], count))
    starts = [9] * len(texts)
    table = chosen(known, count=20_000, min_probability=0.5, longest=8)
    by_engine = engine(tmp_path, table, vocabulary, texts, starts, 8)
    tuples = known_of(table)
    assert by_engine == [plain(tuples, text, 9, 8) for text in texts]
    ((_, tally),) = Dictionaries.over(Script(texts, starts), known).tallies(0.5, [20_000])
    assert tally == total(by_engine)
    assert len(texts) == count
    assert tally.speed_up > 1.04


# --- one identity, on our numbers and on the paper's ------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_step_writes_what_it_accepts_and_one_token_more(seed: int) -> None:
    known, texts = language(seed)
    for _, tally in Dictionaries.over(Script(texts), known).tallies(0.2, SIZES):
        assert tally.tokens == tally.steps + tally.accepted == sum(max(0, len(text) - 1) for text in texts)
        assert tally.speed_up == pytest.approx(1 + tally.coverage * tally.accepted_per_draft, rel=1e-12)


@pytest.mark.parametrize(("pair", "row"), BEST.items(), ids=lambda part: " ".join(part) if len(part) == 2 else "")
def test_the_identity_holds_for_the_papers_table(pair: tuple[str, str], row: Best) -> None:
    """Within what rounding to two digits hides."""
    rounding = 0.005
    hidden = rounding * (1 + row.coverage + row.accepted_per_draft + rounding)
    assert row.speed_up == pytest.approx(1 + row.coverage * row.accepted_per_draft, abs=hidden)


def test_the_table_has_every_tokenizer_in_every_language() -> None:
    assert len(BEST) == 15
    assert len({name for name, _ in BEST}) == 5


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dictionary for the bundled model, and a text of the same words."""
    pytest.importorskip("duckdb", reason="words are counted by duckdb: pip install 'paceline[dict]'")
    folder = tmp_path_factory.mktemp("dictionary")
    chance = random.Random(7)
    words = [
        "".join(chance.choices("bcdfglmnprst", k=3)) + end for end in ("owaniego", "ismusami", "ychże") for _ in "ab"
    ]
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(chance.choices(words, k=30)) for _ in range(60)), encoding="utf8")
    made = folder / "made.dict"
    assert main(["dict", "build", "--text", str(text), "--out", str(made), "--min-prob", "0.5"]) == 0
    return made, text


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], dict[str, object]]:
    capsys.readouterr()
    assert main(["dict", "emulate", *arguments, "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    return lines, json.loads(last)


def test_the_command_tells_every_passage_and_all(
    built: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, text = built
    page = tmp_path / "page.html"
    lines, told = asked(capsys, "--dict", str(made), "--text", str(text), "--show", "tokens", "--html", str(page))
    passages, whole = told["passages"], told["all"]
    assert isinstance(passages, list)
    assert isinstance(whole, dict)
    assert len(passages) > 1
    assert whole["steps"] == sum(passage["steps"] for passage in passages)
    assert whole["speed_up"] > 1.5
    assert whole["tokens"] == whole["steps"] + whole["accepted"]
    assert any(line.startswith("all ") and f"{whole['speed_up']:.3f}" in line for line in lines)
    assert sum("[dictionary]" in line for line in lines) == len(passages)
    drawn = page.read_text(encoding="utf8")
    assert drawn.count("<section>") == len(passages)
    assert "accepted from dictionary" in drawn
    _, same = asked(capsys, "--dict", str(made), "--suite", f"replay:{text}", "--entries", "token")
    assert same["all"] == whole
    _, short = asked(capsys, "--dict", str(made), "--text", str(text), "--budget", "1", "--limit", "1")
    assert isinstance(short["all"], dict)
    assert short["all"]["proposed"] == short["all"]["drafts"]


def test_what_cannot_be_emulated_is_told_in_a_sentence(
    built: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, text = map(str, built)
    other = wrapped(byte_level())
    other.save_pretrained(tmp_path / "other")
    wrong = {
        "--suite replay:FILE": ["--dict", made, "--suite", "spec-bench"],
        "takes no --dict": ["--dict", made, "--text", text, "--method", "lookup"],
        "'auto:dictionary=none' takes no --dict": ["--dict", made, "--text", text, "--method", "auto:dictionary=none"],
        "a,b.dict has a comma in its name": ["--dict", made, "a,b.dict", "--text", text],
        "made.dict was built with --entries token": ["--dict", made, "--text", text, "--entries", "paper"],
        "--entries is for dictionaries that --dict names": ["--text", text, "--entries", "paper"],
        "--budget must be at least 1": ["--dict", made, "--text", text, "--budget", "0"],
        "there is no file": ["--dict", made, "--text", "nowhere.txt"],
        "tokenizer": ["--dict", made, "--text", text, "--model", str(tmp_path / "other")],
    }
    for said, arguments in wrong.items():
        assert main(["dict", "emulate", *arguments]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.strip().splitlines()) == 1
