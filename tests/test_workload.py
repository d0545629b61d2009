"""Suites: what is in them, that they are the same every time, and what is said where something is amiss."""

import gzip
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.vocabulary import Vocabulary
from paceline_lab.bench.suites import Prompt, Workload, as_lines, encode, open_suite
from paceline_lab.bench.suites import sources as places
from paceline_lab.bench.suites.prompts import spread
from paceline_lab.bench.suites.requests import PHRASES, REQUESTS
from paceline_lab.bench.suites.spec_bench import CHAT_CATEGORIES, TASKS
from test_chat import TEMPLATE
from test_cli import say
from tokenizer_kinds import tokenizer_of

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="module")
def data() -> Path:
    if not DATA.exists():
        pytest.skip("suites' files are not here: ../shared/data is absent")
    return DATA


@pytest.fixture(scope="module")
def multi(data: Path) -> Workload:
    return open_suite("multi-spec-bench", data=data)


def put(path: Path, content: Any) -> Path:
    """A file of JSON lines, or of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
    path.write_text(lines, encoding="utf8")
    return path


def made(folder: Path) -> Path:
    """A small data folder in which every source of multi-spec-bench is there for German, and few for French."""
    words = " ".join(f"wort{i}" for i in range(90))
    mt_bench = [
        {"question_id": f"{kind}-{i}", "category": kind, "turns": [f"{kind} {i}?", "Und weiter?"]}
        for i in range(10)
        for kind in CHAT_CATEGORIES
    ]
    asked = [{"id": f"q{i}", "question": f"Was ist {i}?", "answers": []} for i in range(6)]
    squad = {"data": [{"paragraphs": [{"context": "Ein Text.", "qas": asked}]}]}
    put(folder / "bench/multilingual-mt-bench/de.jsonl", mt_bench)
    put(folder / "bench/xquad/xquad.de.json", json.dumps(squad))
    put(folder / "bench/mgsm/mgsm_de.tsv", "Eins und eins?\t2\nZwei und zwei?\t4\n")
    put(folder / "bench/webfaq/de.jsonl", [{"question": "Wie spät ist es?"}])
    put(folder / "bench/humaneval-xl/de.jsonl", [{"task_id": "python/0", "prompt": "def f():\n    '''Eins.'''\n"}])
    put(folder / "wikipedia/de.jsonl", [{"text": "Ein Artikel."}])
    put(folder / "wikitext/wiki.test.raw", " = Heading = \n\n" + "An English paragraph of some length, for once. " * 3)
    put(folder / "text/fr/novel.txt", f"{words}\n" * 8 + "court\n")
    return folder


# --- what is picked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [*range(1, 82), None])
def test_a_pick_is_in_order_from_all_over_and_passes_over_no_block(limit: int | None) -> None:
    picked = spread(range(80), limit)
    assert len(picked) == min(limit or 80, 80)
    assert picked == sorted(set(picked))
    gaps = [after - before for before, after in zip(picked, [*picked[1:], 80], strict=True)]
    assert max(gaps) - min(gaps) <= 1
    blocks = Counter(number // 10 for number in picked)
    assert len(picked) < 8 or len(blocks) == 8
    assert max(blocks.values()) - min(blocks.values()) <= 1


# --- the suites of published questions ----------------------------------------------------------------------


def test_spec_bench_is_480_questions_and_80_functions(data: Path) -> None:
    suite = open_suite("spec-bench", data=data)
    assert suite.cells == {task: {"en": 80} for task in TASKS}
    assert {task: {len(p.turns) for p in suite.prompts if p.task == task} for task in TASKS} == {
        task: {2 if task == "mt_bench" else 1} for task in TASKS
    }
    assert all(prompt.chat for prompt in suite.prompts)
    assert suite.notes == ()
    questions = (data / "bench/spec_bench_question.jsonl").read_bytes()
    assert suite.sources["bench/spec_bench_question.jsonl"] == hashlib.sha256(questions).hexdigest()[:16]
    rows = {row["question_id"]: row for row in map(json.loads, questions.splitlines())}
    for prompt in suite.prompts[:480]:
        assert prompt.turns == tuple(rows[int(prompt.key.rpartition("-")[2])]["turns"])


def test_a_few_of_mt_bench_are_of_all_its_kinds(data: Path) -> None:
    rows = map(json.loads, (data / "bench/spec_bench_question.jsonl").read_text(encoding="utf8").splitlines())
    kinds = {f"en-mt_bench-{row['question_id']}": row["category"] for row in rows}
    suite = open_suite("spec-bench", data=data, tasks=["mt_bench"], limit=8)
    assert sorted(kinds[prompt.key] for prompt in suite.prompts) == sorted(CHAT_CATEGORIES)


def test_multi_spec_bench_is_as_large_as_its_sources(multi: Workload) -> None:
    looked_at = ("en", "fr", "zh", "ja", "pl")
    everywhere = dict.fromkeys(looked_at, 80)
    cells = {task: {name: n for name, n in counts.items() if name in looked_at} for task, counts in multi.cells.items()}
    assert cells == {
        "mt_bench": everywhere,
        "translation": everywhere,
        "summarization": everywhere,
        "qa": {"en": 80, "zh": 80},
        "math_reasoning": {"en": 80, "fr": 80, "zh": 80, "ja": 80},
        "rag": {"en": 80, "zh": 80},
        "code": everywhere,
    }
    for language in ("fr", "ja", "pl", "zh"):
        for task in TASKS:
            said = [note for note in multi.notes if note.startswith(f"{language} {task}")]
            published = task in ("mt_bench", "math_reasoning") or (task, language) == ("rag", "zh")
            assert len(said) == (0 if published and language in cells[task] else 1)
    absent = {note.split()[1] for note in multi.notes if note.startswith("pl") and "was not built" in note}
    assert absent == {"qa", "math_reasoning", "rag"}


def test_requests_of_one_language_stand_in_its_own_prompts_only(multi: Workload) -> None:
    assert {prompt.language for prompt in multi.prompts} >= {"en", "fr", "ja", "pl", "uk", "zh"}
    for prompt in multi.prompts:
        begun = [
            name
            for name, phrases in PHRASES.items()
            for request in (phrases.translate, phrases.summarize, phrases.answer, phrases.complete)
            if request is not None and request in prompt.turns[0]
        ]
        wrapped = prompt.task in ("translation", "summarization", "rag", "code")
        own_words = prompt.language == "en" and prompt.task != "code"  # Spec-Bench's own
        assert begun == ([prompt.language] if wrapped and not own_words else [])


@pytest.mark.parametrize("language", PHRASES)
def test_no_request_is_anothers(language: str) -> None:
    own = set(PHRASES[language]) - {None}
    others = {text for name, phrases in PHRASES.items() if name != language for text in phrases}
    assert len(own) >= 4
    assert not own & others


def test_every_source_is_used_where_it_is_there(tmp_path: Path) -> None:
    suite = open_suite("multi-spec-bench", data=made(tmp_path), languages=["de"])
    assert suite.notes == ()
    assert suite.cells == {
        **{task: {"de": 1} for task in ("translation", "summarization", "qa", "code")},
        "mt_bench": {"de": 80},
        "math_reasoning": {"de": 2},
        "rag": {"de": 3},
    }
    assert [prompt.turns[0].split("\n")[0] for prompt in suite.prompts if prompt.task == "mt_bench"][:2] == [
        "writing 0?",
        "writing 1?",
    ]
    texts = {prompt.task: prompt.turns[0] for prompt in suite.prompts}
    assert texts["code"] == f"{PHRASES['de'].complete}\n\n```python\ndef f():\n    '''Eins.'''\n```"
    assert texts["rag"].startswith("Beantworte die Frage anhand des Textes.\n\nEin Text.\n\nFrage: Was ist ")
    assert "An English paragraph" in texts["translation"]


def test_languages_are_those_of_the_files(tmp_path: Path) -> None:
    suite = open_suite("multi-spec-bench", data=made(tmp_path))
    assert {prompt.language for prompt in suite.prompts} == {"de", "fr"}
    assert any(note.startswith("fr summarization: passages of novel replace") for note in suite.notes)
    assert any(note.startswith("fr code was not built") for note in suite.notes)
    with pytest.raises(ValueError, match=r"no prompts of the requested tasks and languages: es .*was not built"):
        open_suite("multi-spec-bench", data=tmp_path, languages=["es"], tasks=["rag"])


@pytest.mark.parametrize("name", ["multi-spec-bench/de/question.jsonl", "bench/multi-spec-bench/de.jsonl"])
def test_the_authors_set_goes_before_all_sources(tmp_path: Path, name: str) -> None:
    rows = [{"question_id": 7, "category": "stem", "turns": ["A?", "B?"]}]
    rows += [{"question_id": 8, "category": "humaneval", "turns": ["def f"]}]
    put(made(tmp_path) / name, rows)
    suite = open_suite("multi-spec-bench", data=tmp_path, languages=["de"])
    assert [(p.key, p.turns) for p in suite.prompts] == [
        ("de-mt_bench-7", ("A?", "B?")),
        ("de-code-8", ("def f",)),
    ]
    assert "rows of Spec-Bench's form" in suite.notes[0]
    assert sum("was not built: that set has none" in note for note in suite.notes) == 5


# --- running text, requests, files --------------------------------------------------------------------------


def test_continuations_are_beginnings_of_real_paragraphs(data: Path) -> None:
    suite = open_suite("continuation:pl,zh", data=data, limit=9)
    assert suite.cells == {"continuation": {"pl": 9, "zh": 9}}
    for prompt in suite.prompts:
        language, _, rest = prompt.key.partition("-continuation-")
        file, _, line = rest.rpartition("-")
        whole = (data / f"text/{language}/{file}.txt").read_text(encoding="utf8").split("\n")[int(line) - 1]
        assert whole.startswith(prompt.turns[0])
        assert len(whole) > len(prompt.turns[0])
        assert len(prompt.turns[0]) == 80 if language == "zh" else len(prompt.turns[0].split()) == 40
        assert not prompt.chat
    files = Counter(prompt.key.rpartition("-")[0] for prompt in suite.prompts)
    assert set(files.values()) == {3}, "the files of a language take turns"


def test_where_text_is_short_there_are_fewer_prompts_and_it_is_said(tmp_path: Path) -> None:
    suite = open_suite("continuation", data=made(tmp_path))
    assert suite.cells == {"continuation": {"fr": 8}}
    assert suite.notes == ("fr has 8 prompts: no more of its paragraphs are long enough",)


def test_stories_need_no_data_and_are_gone_on_from(tmp_path: Path) -> None:
    suite = open_suite("stories", data=tmp_path)
    assert suite.cells == {"stories": dict.fromkeys(("en", "pl", "uk"), 12)}
    assert suite.sources == {}
    texts = [prompt.turns for prompt in suite.prompts]
    assert len(set(texts)) == 36
    assert not any(prompt.chat or prompt.turns[0] != prompt.turns[0].strip() for prompt in suite.prompts)


def test_dictspec_has_twenty_requests_everywhere(tmp_path: Path) -> None:
    suite = open_suite("dictspec", data=tmp_path)
    assert suite.cells == {"dictspec": dict.fromkeys(REQUESTS, 20)}
    assert len({prompt.turns for prompt in suite.prompts}) == 100
    digits = hashlib.sha256(as_lines(suite.prompts).encode()).hexdigest()[:16]
    assert digits == "3f6d26f5d8678f62", "runs of other versions wrote the same"
    assert len(suite.notes) == 1
    assert open_suite("dictspec", data=tmp_path, languages=["uk"]).notes == ()


def test_alpaca_eval_is_read_or_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"AlpacaEval is not in .*; put it there as alpaca_eval.json"):
        open_suite("alpaca-eval", data=tmp_path)
    rows = [{"instruction": f"Do {i}.", "dataset": "koala"} for i in range(5)]
    put(tmp_path / "alpaca_eval.json", json.dumps(rows))
    assert [p.turns for p in open_suite("alpaca-eval", data=tmp_path, limit=2).prompts] == [("Do 0.",), ("Do 2.",)]
    put(tmp_path / "alpaca_eval.json", json.dumps([*rows, {}]))
    with pytest.raises(ValueError, match="entry 6, has no text 'instruction'"):
        open_suite("alpaca-eval", data=tmp_path)


def test_own_prompts_in_every_form(tmp_path: Path) -> None:
    rows = [
        "Once",
        {"prompt": "Upon", "chat": True, "language": "en", "id": 3},
        {"turns": ["a", "b"], "task": "talk"},
        {"messages": [{"role": "user", "content": "c"}], "key": "k"},
        {"question_id": 81, "category": "writing", "turns": ["d"], "reference": []},
    ]
    prompts = open_suite(f"prompts:{put(tmp_path / 'mine.jsonl', rows)}").prompts
    assert prompts == (
        Prompt(key="line-1", task="prompts", language="und", turns=("Once",), chat=False),
        Prompt(key="3", task="prompts", language="en", turns=("Upon",)),
        Prompt(key="line-3", task="talk", language="und", turns=("a", "b")),
        Prompt(key="k", task="prompts", language="und", turns=("c",)),
        Prompt(key="81", task="writing", language="und", turns=("d",)),
    )


def test_good_answers_are_kept_where_every_turn_has_one(tmp_path: Path) -> None:
    given = [
        ("a", "b"),
        ["a", "b"],
        [["a", "c"], ["b"]],
        "a",
        ["a"],
        [1, "b"],
        [],
        None,
    ]
    rows: list[Any] = [{"turns": ["x", "y"], "reference": one} for one in given]
    prompts = open_suite(f"prompts:{put(tmp_path / 'mine.jsonl', rows)}").prompts
    assert [prompt.reference for prompt in prompts] == [("a", "b")] * 3 + [()] * 5
    (tmp_path / "again.jsonl").write_text(as_lines(prompts))
    again = open_suite(f"prompts:{tmp_path / 'again.jsonl'}").prompts
    assert [prompt.reference for prompt in again] == [prompt.reference for prompt in prompts]


def test_spec_bench_brings_its_answers(data: Path) -> None:
    found = open_suite("spec-bench", data=data, tasks=["summarization", "math_reasoning"]).prompts
    assert all(len(prompt.reference) == 1 for prompt in found)
    assert sum("####" in prompt.reference[0] for prompt in found) == 80, "the sums are solved"


def test_a_text_is_replayed_as_it_stands(tmp_path: Path) -> None:
    lines = [" ".join(f"w{i}-{j}" for j in range(30)) for i in range(90)]
    suite = open_suite(f"replay:{put(tmp_path / 'text.txt', chr(10).join(lines))}")
    assert len(suite.prompts) == 5  # 2,700 words by 600
    assert "\n".join(p.turns[0] + (p.script or "") for p in suite.prompts) == "\n".join(lines)
    assert {len(p.turns[0].split()) for p in suite.prompts} == {40}
    chinese = put(tmp_path / "zh.txt", "\n".join("一二三四五六七八九十" * 9 for _ in range(40)))
    assert {len(p.turns[0]) for p in open_suite(f"replay:{chinese}").prompts} == {80}
    rows = [{"prompt": "One two", "text": " three four", "key": "a"}]
    [prompt] = open_suite(f"replay:{put(tmp_path / 'rows.jsonl', rows)}").prompts
    assert (prompt.turns, prompt.script, prompt.chat) == (("One two",), " three four", False)


@pytest.mark.parametrize(
    ("spec", "limit"),
    [("spec-bench", 9), ("multi-spec-bench", None), ("continuation:fr", 5), ("dictspec", None), ("replay:FILE", None)],
)
def test_a_suite_is_the_same_every_time_and_comes_back_from_a_file(
    spec: str, limit: int | None, tmp_path: Path
) -> None:
    folder = made(tmp_path)
    if spec == "spec-bench":
        folder = DATA if DATA.exists() else pytest.skip("suites' files are not here: ../shared/data is absent")
    suite, again = (
        open_suite(spec.replace("FILE", f"{folder}/text/fr/novel.txt"), data=folder, limit=limit) for _ in range(2)
    )
    assert suite == again
    assert len({prompt.key for prompt in suite.prompts}) == len(suite.prompts)
    assert all(set(prompt.key) & set(' /\\:*?"<>|') == set() for prompt in suite.prompts), "keys become file names"
    kept = put(tmp_path / "kept.jsonl", as_lines(suite.prompts))
    assert open_suite(f"prompts:{kept}").prompts == suite.prompts


def test_odd_characters_come_back(tmp_path: Path) -> None:
    odd = Prompt(key="ü", task="t", language="x", turns=("a\u2028b\x85c\r\n\x00", "😀\n"), script=None)
    odd_script = replace(odd, key="s", turns=(" \ta",), chat=False, script="\u2029 \x0b z")
    kept = tmp_path / "kept.jsonl"
    kept.write_bytes(as_lines([odd, odd_script]).encode())
    assert open_suite(f"prompts:{kept}").prompts == (odd, odd_script)


def test_a_limit_thins_every_cell(tmp_path: Path) -> None:
    whole = open_suite("multi-spec-bench", data=made(tmp_path), languages=["de"])
    few = open_suite("multi-spec-bench", data=tmp_path, languages=["de"], limit=2)
    assert few.cells == {task: {"de": min(2, count["de"])} for task, count in whole.cells.items()}
    assert set(few.prompts) <= set(whole.prompts)


# --- what is amiss ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "how", "said"),
    [
        ("spec-bech", {}, r"unknown suite 'spec-bech' \(did you mean 'spec-bench'\?\); there is stories, spec-bench"),
        ("spec-bench:x", {}, "spec-bench takes nothing after a colon, and was given 'x'"),
        ("spec-bench", {}, r"Spec-Bench's question.jsonl is not in .*; put it there as spec_bench_question.jsonl"),
        (
            "spec-bench",
            {"tasks": ["tranlation"]},
            r"no task 'tranlation' \(did you mean 'translation'\?\); there is mt",
        ),
        ("spec-bench", {"languages": ["de"]}, "spec-bench has no language 'de'; there is en"),
        ("multi-spec-bench", {"languages": ["tlh"]}, "multi-spec-bench has no language 'tlh'; there is en, de, fr"),
        ("multi-spec-bench", {"tasks": ["math"]}, "has no task 'math'"),
        ("continuation:de", {}, "continuation has no language 'de'; there is fr"),
        ("continuation:fr", {"languages": ["fr"]}, "names its languages already; leave --langs out, or write"),
        ("dictspec", {"languages": ["crh"]}, "no language 'crh'.*; there is en, pl, uk, crh-Cyrl, crh-Latn"),
        ("dictspec", {"limit": 0}, "at least 1 prompt per cell, not 0"),
        ("dictspec", {"languages": []}, "has no prompts of the requested tasks and languages"),
        ("prompts", {}, "prompts takes a file: write prompts:FILE"),
        ("replay:nothing.txt", {}, "there is no file nothing.txt, which replay:nothing.txt asks for"),
        ("dictspec", {"data": Path("nowhere")}, "there is no folder nowhere, which --data names"),
    ],
)
def test_what_is_not_there_is_told(tmp_path: Path, spec: str, how: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        open_suite(spec, **{"data": made(tmp_path), **how})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "holds no prompts: it is empty"),
        ("\n\n", "holds no prompts: it is empty"),
        ('{"prompt": "a"}\n{"prompt": \n', "line 2, is not JSON"),
        ('{"prompt": "a"}\n\n[1]\n', "line 3, is neither an object nor a text"),
        ('{"promt": "a"}\n', "line 1, needs one of 'prompt', 'turns' and 'messages', and has 'promt'"),
        ('{"prompt": "a", "turns": ["b"]}\n', "line 1, needs one of .*, not 'prompt' and 'turns'"),
        ('[{"prompt": "a"},\n{"prompt": "b"}]\n', "line 1, is not JSON: .*; every line must be one JSON value"),
        ('{"prompt": "a", "prompt": "b"}\n', "line 1, cannot be read: it has 'prompt' twice"),
        ('{"prompt": "a \\ud83d"}\n', "line 1, cannot be read: it has half of a surrogate pair"),
        ("[" * 100_000 + "\n", "line 1, cannot be read: it is nested too deep"),
        ('{"prompt": "a", "key": ' + "9" * 5000 + "}\n", "line 1, cannot be read: Exceeds the limit"),
        ('{"prompt": "a", "task": "b\\nc"}\n', "line 1, has a 'task' with characters that cannot be printed"),
        ('{"prompt": " "}\n', "line 1, has no text 'prompt'"),
        ('{"turns": ["a", 3]}\n', "line 1, has no 'turns': a list of texts"),
        ('{"turns": ["a", "b"], "chat": false}\n', "line 1, has 2 turns and is no chat"),
        ('{"prompt": "a", "chat": "yes"}\n', "line 1, has a 'chat' that is neither true nor false"),
        ('{"prompt": "a", "task": 1.5}\n', "line 1, has a 'task' that is no name"),
        ('{"messages": [{"role": "system", "content": "a"}]}\n', "line 1, has messages of system; give only the user"),
        ('{"prompt": "a", "key": "k"}\n"b"\n{"turns": ["c"], "id": "k"}\n', "line 3, has the key 'k' of line 1"),
        ('{"prompt": "a"}\n{"key": "line-1", "prompt": "b"}\n', "line 2, has the key 'line-1' of line 1"),
    ],
)
def test_a_malformed_line_is_told_by_its_number(tmp_path: Path, lines: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        open_suite(f"prompts:{put(tmp_path / 'mine.jsonl', lines)}")
    assert "\n" not in str(error.value)


def test_files_of_other_systems_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "\\ud83d\\ude00"}')
    assert [prompt.turns for prompt in open_suite(f"prompts:{tmp_path / 'mine.jsonl'}").prompts] == [("a",), ("😀",)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("spec_bench_question.jsonl", '{"category": "qa"}\n', "line 1, has no 'turns'"),
        (
            "spec_bench_question.jsonl",
            '{"category": "poetry", "turns": ["a"]}\n',
            "line 1, is of the category 'poetry'",
        ),
        ("spec_bench_question.jsonl", "\x00\n", "line 1, is not JSON"),
        ("xquad/xquad.de.json", '{"data": [{}]}', "is not of SQuAD's form"),
        ("xquad/xquad.de.json", '{"data":\n [}', "line 2, is not JSON"),
    ],
)
def test_a_damaged_source_is_told(tmp_path: Path, name: str, content: str, said: str) -> None:
    put(tmp_path / name, content)
    suite, language = ("spec-bench", "en") if name.startswith("spec") else ("multi-spec-bench", "de")
    with pytest.raises(ValueError, match=said):
        open_suite(suite, data=tmp_path, languages=[language], tasks=["rag"])


def test_what_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes('"zażółć"\n'.encode("iso-8859-2"))
    with pytest.raises(ValueError, match=r"bad.jsonl is not UTF-8 text \(offset 3\)"):
        open_suite(f"prompts:{tmp_path / 'bad.jsonl'}")
    packed = gzip.compress(b'{"prompt": "def f():"}\n' * 99)
    for damaged in (packed[:3], packed[:-9], packed[:20] + b"\xff" * 9 + packed[29:], b"not packed"):
        (tmp_path / "HumanEval.jsonl.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match="cannot read"):
            open_suite("spec-bench", data=tmp_path, tasks=["code"])
    with pytest.raises(ValueError, match="too little text to replay"):
        open_suite(f"replay:{put(tmp_path / 'short.txt', 'three words only')}")
    for row in ({"prompt": "a"}, {"turns": ["a"], "text": "b"}):
        with pytest.raises(ValueError, match="line 1, cannot be replayed"):
            open_suite(f"replay:{put(tmp_path / 'rows.jsonl', [row])}")


def test_data_is_found_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places.hub, "answers", lambda: False)  # no hub, whether there is one or not
    monkeypatch.setenv(places.DATA, str(made(tmp_path)))
    assert open_suite("continuation:fr").cells == {"continuation": {"fr": 8}}
    monkeypatch.setenv(places.DATA, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="which PACELINE_DATA names as the data folder"):
        open_suite("continuation:fr")
    monkeypatch.delenv(places.DATA)
    monkeypatch.setattr(places, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.chdir(tmp_path)
    for suite, hub in (("spec-bench", ""), ("alpaca-eval", ", and the hub does not give it")):
        with pytest.raises(ValueError, match=rf"is not here: there is no data folder{hub}; put it there as .*\.json"):
            open_suite(suite)
    assert open_suite("dictspec").sources == {}


# --- what a model reads -------------------------------------------------------------------------------------


def test_chats_go_through_the_template_and_texts_stand_as_they_are() -> None:
    tokenizer = tokenizer_of("byte-level")
    plain = Vocabulary(tokenizer)
    chat = Prompt(key="k", task="t", language="x", turns=("one", "two"))
    text = replace(chat, turns=("one",), chat=False)
    assert plain.text(encode(plain, text)) == "one"
    assert plain.text(encode(plain, chat)) == "User: one\nAssistant:"
    assert plain.text(encode(plain, chat, 1, [" 1."])) == "User: one\nAssistant: 1.\nUser: two\nAssistant:"
    tokenizer.chat_template = TEMPLATE.replace("<|endoftext|>", "<|end|>")
    try:
        said = plain.text(encode(plain, chat, 1, ["1."]), skip_special=False)
    finally:
        tokenizer.chat_template = None
    assert said == "<|end|>user\none<|end|>\n<|end|>assistant\n1.<|end|>\n<|end|>user\ntwo<|end|>\n<|end|>assistant\n"


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_lists_suites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = say(["bench", "suite", "--data", str(made(tmp_path)), "--json"], capsys)
    assert code == 0
    here = {suite["name"]: suite["here"] for suite in json.loads(out.splitlines()[-1])["suites"]}
    assert here == {
        **dict.fromkeys(("stories", "multi-spec-bench", "continuation", "dictspec", "prompts", "replay"), True),
        **dict.fromkeys(("spec-bench", "alpaca-eval"), False),
    }
    assert "spec-bench        data not here  480 English questions" in out


def test_the_command_shows_a_suite_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, command = tmp_path / "kept.jsonl", ["bench", "suite", "multi-spec-bench", "--data", str(made(tmp_path))]
    code, out, _ = say([*command, "--limit", "2", "--out", str(kept), "--json"], capsys)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["multi-spec-bench", "de", "fr", "all"] in rows
    assert ["rag", "2", "-", "2"] in rows
    found = json.loads(out.splitlines()[-1])
    suite = open_suite("multi-spec-bench", data=tmp_path, limit=2)
    assert (found["cells"], found["notes"], found["sources"]) == (suite.cells, list(suite.notes), suite.sources)
    assert all(note in out for note in suite.notes)
    assert open_suite(f"prompts:{kept}").prompts == suite.prompts
    before = kept.stat().st_mtime_ns
    code, out, _ = say([*command, "--limit", "2", "--out", str(kept)], capsys)
    assert (code, "holds these prompts already" in out) == (0, True)
    code, _, error = say([*command, "--out", str(kept)], capsys)
    assert (code, kept.stat().st_mtime_ns) == (2, before)
    assert "holds something else" in error


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--limit", "3"], "--limit is of a suite"),
        (["spec-bech"], "did you mean 'spec-bench'"),
        (["dictspec", "--out", "no/such/folder.jsonl"], "there is no folder no/such"),
        (["dictspec", "--langs", "en,,xx"], "dictspec has no language 'xx'"),
    ],
)
def test_the_command_tells_mistakes(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = say(["bench", "suite", *flags], capsys)
    assert (code, out) == (2, "")
    assert said in error
    assert len(error.splitlines()) == 1
