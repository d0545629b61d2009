"""Many texts encoded at once, and how many tokens a word takes."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from paceline.bench.fertility import PAPER, fertility, paper_name
from paceline.cli import main
from paceline.vocabulary import Vocabulary
from tokenizer_kinds import OPAQUE, REAL, REAL_NAMES, STREAMABLE, TEXTS, byte_level, tokenizer_of, unigram, wrapped

KINDS = [*STREAMABLE, *OPAQUE, *REAL_NAMES]
WORDS = " ".join(TEXTS).split()
AWKWARD = ["", " ", "\n", "<|end|>the rider<|user|>", "the", " the", "the rider", "ê ż ółw", *TEXTS, *WORDS]
README = {
    "mistral-v3": {"en": 1.39, "uk": 3.00, "pl": 2.84},
    "mistral-nemo-tekken": {"en": 1.28, "uk": 2.49, "pl": 2.20},
    "llama3": {"en": 1.24, "uk": 2.33, "pl": 2.55},
    "qwen2-2.5-3": {"en": 1.26, "uk": 3.50, "pl": 2.44},
    "bielik-v3-APT4": {"en": 1.99, "uk": 12.50, "pl": 1.66},
    "gpt2": {"en": 1.24, "uk": 7.79, "pl": 3.60},
}
"""What the data's own description says of its tokenizers on its parallel texts."""


@pytest.mark.parametrize("name", KINDS)
def test_texts_encoded_at_once_are_texts_encoded_one_by_one(name: str) -> None:
    vocabulary = Vocabulary(tokenizer_of(name))
    assert vocabulary.encode_all(AWKWARD) == [vocabulary.encode(text, add_special=False).tolist() for text in AWKWARD]
    assert vocabulary.encode_all([]) == []


def test_texts_encoded_at_once_are_neither_cut_nor_padded_nor_marked() -> None:
    """Whoever used the tokenizer before may have left it cutting and padding."""
    tokenizer = wrapped(byte_level())
    backend, vocabulary = tokenizer.backend_tokenizer, Vocabulary(tokenizer)
    marks = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("<|user|>", "<|end|>")]
    backend.post_processor = processors.TemplateProcessing(single="<|user|> $A <|end|>", special_tokens=marks)
    assert len(vocabulary.encode("the")) == len(vocabulary.encode_all(["the"])[0]) + 2
    whole = [vocabulary.encode(text, add_special=False).tolist() for text in AWKWARD]
    backend.enable_truncation(2)
    backend.enable_padding(length=400)
    assert vocabulary.encode_all(AWKWARD) == whole


def bytes_alone() -> Any:
    """A tokenizer of which every byte is a token, so that a text's tokens can be counted by hand."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return wrapped(backend)


def test_tokens_words_and_characters_are_those_of_the_lines() -> None:
    told = fertility(Vocabulary(bytes_alone()), ["  одна нога\t", "", "a  b", " \n"])
    assert (told.tokens, told.words, told.characters) == (8 + 1 + 8 + 4, 4, 9 + 4)
    assert told.per_word == 21 / 4
    assert told.per_character == 21 / 13


@pytest.mark.parametrize("prepend_scheme", ["always", "never"])
def test_every_line_is_encoded_by_itself(prepend_scheme: str) -> None:
    """A tokenizer that marks the beginning of a text marks each line's, however many are encoded together; one that
    does not meets no space there."""
    vocabulary = Vocabulary(wrapped(unigram(prepend_scheme)))
    alone = len(vocabulary.encode("der w", add_special=False))
    assert fertility(vocabulary, ["der w"] * 2345).tokens == 2345 * alone
    assert alone == {"always": 4, "never": 3}[prepend_scheme]


def test_lines_without_a_word_have_no_fertility() -> None:
    with pytest.raises(ValueError, match="these lines have none"):
        fertility(Vocabulary(bytes_alone()), ["", " \t"])


@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("mistral-v3", "Mistral"),
        ("mistralai/Mistral-7B-v0.1", "Mistral"),
        ("mistral-nemo-tekken", "Mistral NeMo"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "Mistral NeMo"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama 3.3"),
        ("google/gemma-3-27b-it", "Gemma 3"),
        ("Qwen/Qwen3.5-27B", "Qwen 3.5"),
        *((name, None) for name in ("qwen2-2.5-3", "Qwen/Qwen3-8B", "google/gemma-2b", "bielik-v2", "llama-2-7b")),
        *((name, None) for name in ("huggyllama/llama-30b", "llama-3b", "llama30b")),
        *((name, "Llama 3.3") for name in ("llama3", "meta-llama/Meta-Llama-3-8B", "Llama-3.2-3B")),
        ("mistralai/Mistral-Small-3.2-24B", None),
    ],
)
def test_a_tokenizer_of_the_paper_is_known_by_its_name(name: str, paper: str | None) -> None:
    assert paper_name(name) == paper


def say(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    try:
        code = main(["dict", "fertility", *map(str, arguments)])
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, dict[str, Any]]:
    """What is printed for people, and the object in the last line."""
    code, out, err = say(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    *lines, last = out.splitlines()
    return "\n".join(lines), json.loads(last)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of two tokenizers: one has a token per byte, the other a token per word. Of running text the last
    hundred words are enough."""
    monkeypatch.setattr("paceline.bench.fertility.TAIL", 100)
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


def test_all_tokenizers_and_texts_of_the_data_folder_are_counted(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, said = told(capsys, "--data", data)
    # bytes: "the the" is 7 and "the" 3, of 3 words; "тех тех" is 13, of 2 words
    assert said["fertility"]["llama3"] == {"crh-Cyrl": 6.5, "crh-Latn": 3.0, "en": 10 / 3}
    assert said["fertility"]["by-word"] == {"crh-Cyrl": 1.0, "crh-Latn": 1.0, "en": 1.0}
    assert said["per_character"] == {"llama3": {"zh": 3.0}, "by-word": {"zh": 1.0}}
    assert list(said["texts"]) == ["crh-Cyrl", "crh-Latn", "en", "zh"]
    assert said["texts"]["crh-Cyrl"]["words"] == 100, "of running text no more than its end"
    assert "crh-Cyrl: the end of text/crh-Cyrl/a.txt, text/crh-Cyrl/b.txt, 100 words in 50 lines" in out
    assert set(said["sources"]) == {
        *("parallel/en.txt", "parallel/oldi-crh_Latn.txt", "parallel/zh.txt"),
        *("text/crh-Cyrl/a.txt", "text/crh-Cyrl/b.txt"),
    }


def test_the_papers_value_stands_beside_ours_and_tokenizers_that_are_not_here_are_named(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, said = told(capsys, "--data", data)
    assert said["paper"]["llama3"]["languages"]["en"] == {"paper": 1.23, "deviation_percent": 171.0}
    assert set(said["paper"]) == {"llama3"}
    assert set(said["paper"]["llama3"]["languages"]) == set(PAPER["Llama 3.3"]) - {"uk"}
    assert "+171.0%" in out
    assert "not among these tokenizers: Gemma 3, Mistral, Mistral NeMo, Qwen 3.5" in out


def test_findings_compare_tokens_with_the_paper_tokenizer_or_the_one_named_first(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, said = told(capsys, "--data", data)
    assert said["base"] == "llama3"
    assert (
        "in crh-Cyrl, by-word needs 0.15x the tokens of llama3; in en 0.30x; in crh-Latn 0.33x; in zh 0.33x"
        in out.splitlines()
    )
    _, said = told(capsys, "--data", data, "--tokenizers", "by-word", data / "tokenizers" / "llama3")
    assert said["base"] == "by-word"
    assert said["beside"] == {"llama3": {"crh-Latn": 3.0, "zh": 3.0, "en": 10 / 3, "crh-Cyrl": 6.5}}


def test_named_texts_are_read_alone_and_those_of_a_language_together(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {"a.txt": "the", "b.txt": "\ufeffthe the\r\nthe\r\n", "c.txt": "線 線"}.items():
        (tmp_path / name).write_text(text, encoding="utf8", newline="")
    named = [f"xx={tmp_path / 'a.txt'}", f"ja={tmp_path / 'c.txt'}", f"xx={tmp_path / 'b.txt'}"]
    out, said = told(capsys, "--data", data, "--tokenizers", "llama3", "pocket", "--texts", *named)
    assert said["fertility"]["llama3"] == {"xx": (3 + 7 + 3) / 4}, "neither a byte-order mark nor a line's end counts"
    assert said["fertility"]["pocket"]["xx"] <= 2
    assert said["per_character"]["llama3"] == {"ja": 7 / 3}
    assert "paper" not in out, "which has neither language"


def test_tokenizers_that_agree_are_said_to(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And of two that the paper has, the first is the one to compare with."""
    (data / "tokenizers" / "llama3-twin").symlink_to(data / "tokenizers" / "llama3")
    assert "llama3-twin needs the tokens of llama3 in every language" in told(capsys, "--data", data)[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "nowhere"], "there is no folder nowhere"),
        (["--data", "bare"], "there are no texts in bare/parallel; name some with --texts LANG=FILE"),
        (["--data", "bare", "--texts", "uk=good"], "there are no tokenizers in bare/tokenizers; name some with"),
        (["--texts", "uk=empty", "--tokenizers", "pocket"], "empty is empty; give a text that has words"),
        (["--texts", "uk=blank", "--tokenizers", "pocket"], "blank has nothing but white space"),
        (["--texts", "uk=bad", "--tokenizers", "pocket"], "bad is not UTF-8 text (offset 1); convert it"),
        (["--texts", "uk=absent", "--tokenizers", "pocket"], "cannot read absent: No such file"),
        (["--texts", "uk", "--tokenizers", "pocket"], "name a language and its file, as in uk=news.txt; got 'uk'"),
        (["--texts", "=good", "--tokenizers", "pocket"], "name a language and its file"),
        (["--texts", "uk=good", "--tokenizers", "./nobody"], "no model at './nobody': there is no such folder"),
        (["--texts", "uk=good", "--tokenizers", "bare"], "no tokenizer at 'bare'"),
        (["--texts", "uk=good", "--tokenizers", "silent"], "silent makes no token of the uk text"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare").mkdir()
    wrapped(Tokenizer(models.BPE({"x": 0}, []))).save_pretrained(tmp_path / "silent")
    files = {"good": b"a word", "empty": b"", "blank": b" \n\t\n", "bad": b"a\xff"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    code, out, err = say(capsys, *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.startswith("paceline: error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", README)
def test_real_tokenizers_have_the_fertility_that_is_known_of_them(name: str) -> None:
    vocabulary = Vocabulary(tokenizer_of(name))
    for language, known in README[name].items():
        lines = (REAL.parent / "parallel" / f"{language}.txt").read_text(encoding="utf8").split("\n")
        found = fertility(vocabulary, lines).per_word
        assert found == pytest.approx(known, rel=0.01)
        if (paper := paper_name(name)) is not None and language in PAPER[paper]:
            assert found == pytest.approx(PAPER[paper][language], rel=0.07)
