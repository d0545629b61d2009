"""The scripts of the DictSpec paper: sweeps go on where they were stopped and leave no process behind, and what is said
of the paper's findings is what the cells say."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from paceline.vocabulary import Vocabulary
from paceline_lab import NgramCounts
from paper_items import shown
from papers.dictspec import fertility as tokens_per_word
from papers.dictspec import sweep
from papers.dictspec import swept as shows
from papers.dictspec.data import fertility
from papers.dictspec.numbers import FERTILITY, paper_name
from papers.dictspec.sweep import Settings, best, read
from papers.report import Claim
from thinning import thinned
from tokenizer_kinds import REAL, byte_level, tokenizer_of, unigram, wrapped

pd = pytest.importorskip("pandas")
pytest.importorskip("duckdb", reason="words are counted by duckdb: pip install 'paceline[dict]'")
ROOT = Path(__file__).resolve().parent.parent
LETTERS = {"uk": "абвгдеж", "crh-Cyrl": "къырмтанъ"}
QUIET: Any = lambda _: None  # noqa: E731


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two languages of few words, and a tokenizer that spells them in bytes."""
    folder = tmp_path_factory.mktemp("swept")
    for language, letters in LETTERS.items():
        chance = random.Random(language)
        words = ["".join(chance.choices(letters, k=5)) for _ in range(60)]
        lines = [" ".join(chance.choices(words, weights=range(60, 0, -1), k=12)) for _ in range(120)]
        (folder / f"{language}.txt").write_text("\n".join(lines) + "\n", encoding="utf8")
    (folder / "parallel.txt").write_text("аб абв\n", encoding="utf8")
    wrapped(byte_level()).save_pretrained(folder / "bytes")
    return folder


def settings(place: Path, **others: Any) -> Settings:
    known: dict[str, Any] = {
        "tokenizers": {"bytes": str(place / "bytes"), "pocket": "pocket"},
        "texts": {language: [str(place / f"{language}.txt")] for language in LETTERS},
        "parallel": {"uk": [str(place / "parallel.txt")]},
        "orders": (1, 2),
        "sizes": (20, 200, 100_000),
        "min_probabilities": (0.2, 0.8),
        "test_words": 200,
    }
    return Settings(**known | others)


@pytest.fixture(scope="module")
def swept(place: Path) -> Any:
    sweep.made(place / "whole", settings(place), 1, QUIET)
    return read(place / "whole")


def test_every_cell_is_there_and_its_text_was_not_counted(swept: Any, place: Path) -> None:
    cells = swept.drop_duplicates(["pair", "rule", "order", "size", "min_probability"])
    assert len(swept) == len(cells) == 2 * 2 * 2 * 2 * 3 * 2
    assert (swept[swept["size"] == 20].entries == 20).all()
    large = swept[(swept["size"] == 100_000) & (swept.order == 2)]
    assert large.entries.between(200, 99_999).all()
    assert (swept.groupby("pair").tokens.nunique() == 1).all()
    assert best(swept[swept.pair == "bytes uk"]).speed_up.item() > 1.5
    assert swept[swept.language == "crh-Cyrl"].parallel.isna().all()
    per_word = fertility(Vocabulary(wrapped(byte_level())), ["аб абв"]).per_word
    assert (swept[swept.pair == "bytes uk"].parallel == per_word).all()
    assert (swept[swept.pair == "bytes uk"].fertility != per_word).all()
    for language in LETTERS:
        held = json.loads((place / "whole" / "counts" / f"{language}.json").read_text(encoding="utf8"))
        lines = (place / f"{language}.txt").read_text(encoding="utf8").splitlines()
        tested = {line for text in held["documents"] for line in text.splitlines()}
        counted = sum(len(line.split()) for line in lines if line not in tested)
        assert (
            counted == held["train_words"] == NgramCounts.load(place / "whole" / "counts" / f"{language}.parquet").words
        )
        assert swept[swept.language == language].test_words.between(200, 219).all()


def test_a_sweep_that_was_stopped_goes_on(place: Path, swept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out, kept, made = place / "stopped", sweep.measure, list[Any]()
    few = settings(place, orders=(1,), sizes=(20,), min_probabilities=(0.2,), rules=("token",))

    def measure(job: Any) -> Any:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(job)
        return kept(job)

    monkeypatch.setattr(sweep, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        sweep.made(out, few, 1, QUIET)
    first = {file: file.stat().st_mtime_ns for file in out.rglob("*") if file.is_file()}
    assert len(first) == 1 + 2 * 2 + 2
    monkeypatch.setattr(sweep, "measure", kept)
    with pytest.raises(ValueError, match="is missing; the same sweep makes it"):
        read(out)
    sweep.made(out, few, 1, QUIET)
    whole = swept[(swept.order == 1) & (swept["size"] == 20) & (swept.min_probability == 0.2) & (swept.rule == "token")]
    assert read(out).equals(whole.reset_index(drop=True))
    assert {file: file.stat().st_mtime_ns for file in first} == first


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"sizes": (20, 300)}, "sizes: was [20, 200, 100000] and is [20, 300]"),
        ({"tokenizers": {"bytes": "pocket", "pocket": "pocket"}}, "tokenizers"),
        ({"texts": {"uk": ["crh-Cyrl.txt"], "crh-Cyrl": ["crh-Cyrl.txt"]}}, "texts"),
        ({"budget": 4}, "budget: was 8 and is 4"),
        ({"rules": ("paper",)}, 'rules: was ["token", "paper"] and is ["paper"]'),
        ({"parallel": {}}, "parallel"),
    ],
)
def test_another_sweep_in_the_same_folder_is_refused(
    place: Path, swept: Any, others: Mapping[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(ValueError, match="holds another sweep") as refused:
        sweep.made(place / "whole", settings(place, **others), 1, QUIET)
    assert said in str(refused.value)


def test_a_folder_of_something_else_is_left_alone(place: Path, tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(ValueError, match="is there and is no sweep"):
        sweep.made(tmp_path, settings(place), 1, QUIET)
    assert [file.name for file in tmp_path.iterdir()] == ["letters.txt"]


# --- in processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_find_what_one_finds(place: Path, swept: Any) -> None:
    """By default workers run in the test below, and one process in those above."""
    sweep.made(place / "crew", settings(place, texts={"uk": [str(place / "uk.txt")]}), 2, QUIET)
    assert read(place / "crew").equals(swept[swept.language == "uk"].reset_index(drop=True))
    assert not multiprocessing.active_children()


HELD = """
import os, sys, time
if "--multiprocessing-fork" in sys.orig_argv:
    from papers.dictspec import data
    def held(*_):
        print(os.getpid(), flush=True)
        time.sleep(99)
    data.fertility = held
"""


@pytest.mark.parametrize("ended", thinned(["worker", signal.SIGINT, signal.SIGKILL]))
def test_a_sweep_that_ends_leaves_no_process_behind(ended: Any, place: Path, tmp_path: Path) -> None:
    """Workers that outlived it would keep its standard output open, and it would be read for a minute."""
    (tmp_path / "sitecustomize.py").write_text(HELD)
    paths = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "src")))
    command = [sys.executable, "-m", "papers.dictspec", "sweep", "--out", str(tmp_path / "out"), "--workers", "2"]
    command += ["--tokenizers", "pocket", str(place / "bytes"), "--texts", f"uk={place / 'uk.txt'}"]
    command += ["--sizes", "9", "--orders", "1", "--test-words", "200"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, stdout=-1, stderr=-1, text=True
    ) as process:
        assert process.stdout is not None
        workers = [int(line) for line in (process.stdout.readline(), process.stdout.readline()) if line]
        assert len(workers) == 2, process.communicate()
        # the one that was started last, after the pool had begun to wait for the death of the others
        os.kill(max(workers) if ended == "worker" else process.pid, signal.SIGKILL if ended == "worker" else ended)
        _, error = process.communicate(timeout=60)
    assert process.returncode != 0
    if ended == "worker":
        assert "error: a process was killed, perhaps for want of memory; give --workers 1" in error
    assert not list((tmp_path / "out").glob("*.jsonl"))


# --- claims -----------------------------------------------------------------------------------------------------


def made(pairs: Mapping[tuple[str, str], Mapping[tuple[int, int, float], int]], fertilities: Iterable[float]) -> Any:
    """Cells of 1000 tokens with so many steps, by order, size and probability."""
    rows = [
        {"tokenizer": pair[0], "language": pair[1], "pair": " ".join(pair), "fertility": per_word, "train_words": 1000}
        | {"test_words": 400, "tokens": 1000, "steps": steps, "speed_up": 1000 / steps}
        | {"order": order, "size": size, "min_probability": least, "entries": min(size, 600_000)}
        for (pair, cells), per_word in zip(pairs.items(), fertilities, strict=True)
        for (order, size, least), steps in cells.items()
    ]
    return pd.DataFrame(rows)


def steps(n1: int, n12: int, *, large: int = 5) -> dict[tuple[int, int, float], int]:
    """Steps at two orders; a larger dictionary takes ``large`` fewer, a surer one more."""
    found = {}
    for order, base in ((1, n1), (2, n12)):
        for fewer, size in zip((0, 100, 100 + large), (10_000, 200_000, 1_000_000), strict=True):
            found |= {(order, size, 0.2): base - fewer, (order, size, 0.9): base + 40 - fewer}
    return found


PAIRS = {
    ("mistral-v3", "uk"): steps(820, 800),
    ("mistral-v3", "crh-Cyrl"): steps(720, 700),
    ("llama3", "uk"): steps(840, 830),
    ("llama3", "crh-Cyrl"): steps(830, 760),
}
PER_WORD = (3.0, 4.2, 2.4, 3.9)


def claims(cells: Any) -> list[Claim]:
    """What all scripts say of them."""
    found, means = best(cells), cells.pivot_table(index="size", columns="min_probability", values="speed_up")
    return [
        *shows.compared(found, "crh-Cyrl", "uk", "more"),
        *shows.compared(found, "crh-Latn", "uk", "not here"),
        *shows.correlated(found, "correlated", "fertility"),
        *shows.flattens(means),
        *shows.falls(means),
        *shows.at_best(best(cells, "order")),
        *shows.cell_by_cell(cells),
    ]


def test_what_went_as_in_the_paper_is_said_to() -> None:
    found = claims(made(PAIRS, PER_WORD))
    assert [one.agrees for one in found] == [True, False, True, True, True, True, True, None]
    speeds = [1000 / table[2, 1_000_000, 0.2] for table in PAIRS.values()]
    assert f"r = {np.corrcoef(PER_WORD, speeds)[0, 1]:.2f}" in found[1].ours, "of four points, so p is above 0.05"


def test_what_went_otherwise_is_named() -> None:
    found = claims(made(PAIRS | {("llama3", "crh-Cyrl"): steps(940, 960, large=90)}, PER_WORD))
    assert (found[0].agrees, found[0].ours) == (False, "with 1 of 2, not with llama3 (1.33x, 1.38x)")
    assert found[5].claim == "at its best n12 is better than n1"
    for one in found[5:7]:
        assert (one.agrees, one.ours) == (False, "in 3 of 4, not for llama3 crh-Cyrl (1.3333x, 1.2987x)")
    assert "more steps in 6 of 24, most of all for llama3 crh-Cyrl with 1000000 entries at 0.2" in found[7].ours
    level = claims(made(PAIRS | {("llama3", "crh-Cyrl"): steps(760, 760)}, PER_WORD))
    assert [one.agrees for one in level[5:7]] == [False, True], "equal is no worse and is not better"
    rising = claims(made({pair: steps(820, 800, large=400) for pair in PAIRS}, PER_WORD))
    assert [one.agrees for one in rising if "flattens" in one.claim] == [False, False]


def test_sizes_are_averaged_over_languages_and_in_each() -> None:
    found = dict(shows.averages(made(PAIRS, PER_WORD)))
    assert list(found) == ["all languages", "uk", "crh-Cyrl"]
    assert np.allclose(found["all languages"], (found["uk"] + found["crh-Cyrl"]) / 2)
    alone = {pair: table for pair, table in PAIRS.items() if pair[1] == "uk"}
    assert list(dict(shows.averages(made(alone, PER_WORD[::2])))) == ["uk"]


def test_the_identity_is_computed_of_every_dictionary(swept: Any) -> None:
    one = shows.identity(swept)
    assert one.agrees
    assert f"in {len(swept)} dictionaries" in one.ours
    wrong = swept.assign(coverage=swept.coverage.where(swept.index != 7, 0.9))
    assert not shows.identity(wrong).agrees


def test_rules_are_held_against_each_other_dictionary_by_dictionary() -> None:
    token, paper = made(PAIRS, PER_WORD).assign(rule="token"), made(PAIRS, PER_WORD).assign(rule="paper")
    paper.steps += 10
    paper.loc[0, "steps"] = 1
    (said,) = shows.rules(pd.concat([token, paper], ignore_index=True).assign(speed_up=lambda all: 1000 / all.steps))
    assert f"fewer steps than whole endings in {len(token) - 1} of {len(token)} dictionaries and more in 1" in said
    assert list(shows.rules(token)) == []


def test_the_paper_s_own_tables_give_its_correlation() -> None:
    """Figure 1 states r = 0.72 and p = 0.002 of numbers that the tables round to two digits."""
    assert "r = 0.73, p = 0.002, 15 points" in shows.of_the_paper()


def test_correlations_leave_out_what_the_paper_has_not() -> None:
    pairs = {(name, language): steps(900 - 30 * n, 880 - 30 * n) for n, (name, language) in enumerate(
        (name, language) for name in ("llama3", "qwen2-2.5-3", "gpt2") for language in ("uk", "crh-Cyrl", "crh-Latn")
    )}  # fmt: skip
    cells = best(made(pairs, [2.0 + n / 10 for n in range(9)]))
    found = cells.assign(stated=cells.fertility, parallel=cells.fertility)
    points = [one.ours.split(", ")[-1] for one in shows.correlations(found, "entries token")]
    assert points == ["9 points", "6 points", "3 points"]
    notes = " ".join(shows.absent_notes(found))
    assert "Qwen 3.5 (qwen2-2.5-3 instead); here and not kin to the paper's: gpt2" in notes
    assert "for no language that of the test text" in notes


def test_steps_per_word_compare_tokenizers() -> None:
    first, _ = shows.steps_per_word(best(made(PAIRS, PER_WORD)))
    assert "mistral-v3 2.50 and 1.74, llama3 2.50 and 1.81" in first
    assert first.endswith("with one, llama3 takes fewer than mistral-v3 without")


def test_of_equal_dictionaries_the_smallest_is_best() -> None:
    cells = made({("a", "uk"): {(1, 20, 0.5): 900, (2, 10, 0.2): 900, (1, 10, 0.5): 900}}, [2.0])
    assert best(cells)[["order", "size"]].to_numpy().tolist() == [[1, 10]]


@pytest.mark.parametrize("name", ["table2", "table4", "figure1", "figure2", "figure3"])
def test_items_print_note_and_draw(name: str, place: Path, swept: Any, tmp_path: Path, capsys: Any) -> None:
    svg, note = tmp_path / "a.svg", tmp_path / "a.md"
    drawing = ["--svg", str(svg)] if name.startswith("figure") else []
    shown("dictspec", name, place / "whole", "--note", note, "--json", *drawing)
    *lines, last = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("|") for line in lines) > 3
    assert "\n".join(lines[2:]) in note.read_text(encoding="utf8")
    assert json.loads(last)["title"] == lines[0]
    if drawing:
        drawn = svg.read_text(encoding="utf8")
        assert "<svg" in drawn
        assert "<script" not in drawn


# --- fertility --------------------------------------------------------------------------------------------------


def bytes_alone() -> Any:
    """A tokenizer of which every byte is a token, so that a text's tokens can be counted by hand."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return wrapped(backend)


def test_tokens_words_and_characters_are_those_of_the_lines() -> None:
    told = fertility(Vocabulary(bytes_alone()), ["  одна нога\t", "", "a  b", " \n"])
    assert (told.tokens, told.words, told.characters) == (8 + 1 + 8 + 4, 4, 9 + 4)
    assert (told.per_word, told.per_character) == (21 / 4, 21 / 13)
    with pytest.raises(ValueError, match="these lines have no word"):
        fertility(Vocabulary(bytes_alone()), ["", " \t"])


@pytest.mark.parametrize("prepend_scheme", ["always", "never"])
def test_every_line_is_encoded_by_itself(prepend_scheme: str) -> None:
    """A tokenizer that marks the beginning of a text marks each line's, however many are encoded together."""
    vocabulary = Vocabulary(wrapped(unigram(prepend_scheme)))
    alone = len(vocabulary.encode("der w", add_special=False))
    assert fertility(vocabulary, ["der w"] * 2345).tokens == 2345 * alone
    assert alone == {"always": 4, "never": 3}[prepend_scheme]


@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("mistral-v3", "Mistral"),
        ("mistralai/Mistral-7B-v0.1", "Mistral"),
        ("mistral-nemo-tekken", "Mistral NeMo"),
        ("google/gemma-3-27b-it", "Gemma 3"),
        ("Qwen/Qwen3.5-27B", "Qwen 3.5"),
        *((name, None) for name in ("qwen2-2.5-3", "Qwen/Qwen3-8B", "google/gemma-2b", "bielik-v2", "llama-2-7b")),
        *((name, None) for name in ("huggyllama/llama-30b", "llama-3b", "mistralai/Mistral-Small-3.2-24B")),
        *((name, "Llama 3.3") for name in ("llama3", "meta-llama/Meta-Llama-3-8B", "Llama-3.2-3B")),
    ],
)
def test_a_tokenizer_of_the_paper_is_known_by_its_name(name: str, paper: str | None) -> None:
    assert paper_name(name) == paper


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of two tokenizers: one has a token per byte, the other a token per word. Of running text the last
    hundred words are enough."""
    monkeypatch.setattr(tokens_per_word, "TAIL", 100)
    folder = tmp_path / "data"
    bytes_alone().save_pretrained(folder / "tokenizers" / "llama3")
    names = ["<unk>", "the", "тех", *"線中"]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped(words).save_pretrained(folder / "tokenizers" / "by-word")
    for name, text in {
        "parallel/en.txt": "the the\n\nthe\n",
        "parallel/oldi-crh_Latn.txt": "the\n",
        "parallel/zh.txt": "線\n中\n",
        "text/en/more.txt": "other other other\n",
        "text/crh-Cyrl/a.txt": "тех\n" * 7,
        "text/crh-Cyrl/b.txt": "тех тех\n" * 60,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf8")
    return folder


def table3(capsys: Any, *given: object) -> tuple[str, dict[str, Any]]:
    """What is printed for people, and the data."""
    found = shown("dictspec", "table3", *given)
    return capsys.readouterr().out, found


def test_all_tokenizers_and_texts_of_the_data_folder_are_counted(data: Path, capsys: Any) -> None:
    out, said = table3(capsys, "--data", data)
    by_byte = {lang: one["tokens"] / one["words"] for lang, one in said["fertility"]["llama3"].items()}
    # bytes: "the the" is 7 and "the" 3, of 3 words; "тех тех" is 13, of 2 words
    assert by_byte == {"crh-Cyrl": 6.5, "crh-Latn": 3.0, "en": 10 / 3, "zh": 3.0}
    assert said["fertility"]["by-word"]["crh-Cyrl"]["words"] == 100, "of running text no more than its end"
    assert "the end of a.txt, b.txt, 100 words in 50 lines" in out
    assert said["base"] == "llama3", "which the paper has"
    assert "tokens of by-word for each of llama3: 0.15 in crh-Cyrl, 0.30 in en, 0.33 in crh-Latn, 0.33 in zh" in out
    assert "+171.0%" in out
    assert "in the paper and not here: Gemma 3, Mistral, Mistral NeMo, Qwen 3.5" in out


def test_named_texts_are_read_alone_and_those_of_a_language_together(data: Path, tmp_path: Path, capsys: Any) -> None:
    for name, text in {"a.txt": "the", "b.txt": "\ufeffthe the\r\nthe\r\n", "c.txt": "線 線"}.items():
        (tmp_path / name).write_text(text, encoding="utf8", newline="")
    named = [f"xx={tmp_path / 'a.txt'}", f"ja={tmp_path / 'c.txt'}", f"xx={tmp_path / 'b.txt'}"]
    out, said = table3(capsys, "--data", data, "--tokenizers", "llama3", "pocket", "--texts", *named)
    counted = said["fertility"]["llama3"]
    assert (counted["xx"]["tokens"], counted["xx"]["words"]) == (3 + 7 + 3, 4), "no byte-order mark and no line's end"
    assert (counted["ja"]["tokens"], counted["ja"]["characters"]) == (7, 3)
    assert "in the paper" not in out, "which has neither language"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--data", "nowhere"], "there is no folder nowhere"),
        (["--data", "bare"], "there are no texts in the data folder"),
        (["--data", "bare", "--texts", "uk=good"], "there are no tokenizers in the data folder; name some with"),
        (["--texts", "uk=blank", "--tokenizers", "pocket"], "blank has nothing but white space"),
        (["--texts", "uk=good", "--tokenizers", "silent"], "silent makes no token of the uk text"),
        (["--texts", "uk=good", "--tokenizers", "pocket", "--base", "x"], "--base x is not among the tokenizers"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    given: list[str], sentence: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare").mkdir()
    wrapped(Tokenizer(models.BPE({"x": 0}, []))).save_pretrained(tmp_path / "silent")
    (tmp_path / "good").write_text("a word")
    (tmp_path / "blank").write_text(" \n\t\n")
    with pytest.raises(ValueError, match=sentence):
        table3(capsys, *given)


KNOWN = {
    "mistral-v3": {"en": 1.39, "uk": 3.00, "pl": 2.84},
    "mistral-nemo-tekken": {"en": 1.28, "uk": 2.49, "pl": 2.20},
    "llama3": {"en": 1.24, "uk": 2.33, "pl": 2.55},
    "qwen2-2.5-3": {"en": 1.26, "uk": 3.50, "pl": 2.44},
    "bielik-v3-APT4": {"en": 1.99, "uk": 12.50, "pl": 1.66},
    "gpt2": {"en": 1.24, "uk": 7.79, "pl": 3.60},
}
"""What the data's own description says of its tokenizers on its parallel texts."""


@pytest.mark.parametrize("name", thinned(KNOWN))
def test_real_tokenizers_have_the_fertility_that_is_known_of_them(name: str) -> None:
    vocabulary = Vocabulary(tokenizer_of(name))
    for language, known in KNOWN[name].items():
        lines = (REAL.parent / "parallel" / f"{language}.txt").read_text(encoding="utf8").split("\n")
        found = fertility(vocabulary, lines).per_word
        assert found == pytest.approx(known, rel=0.01)
        if (theirs := FERTILITY.get(paper_name(name) or "", {}).get(language)) is not None:
            assert found == pytest.approx(theirs, rel=0.07)
