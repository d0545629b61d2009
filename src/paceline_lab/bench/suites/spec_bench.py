"""Spec-Bench: 480 English questions in six groups (Xia et al. 2024), and HumanEval as the seventh of UniSpec.
Multi-Spec-Bench: the same seven tasks in other languages, from the sources that UniSpec's appendix C names.

If a source is absent, another one is used or the cell is not built, and a note says so. English is Spec-Bench itself.
Where the authors' own set is at hand, in rows of Spec-Bench's form, it goes before all sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.errors import InputError, Unavailable
from paceline_lab.bench.suites.prompts import CELL, Prompt, chosen, spread
from paceline_lab.bench.suites.requests import PHRASES
from paceline_lab.bench.suites.running import languages_of, passages
from paceline_lab.bench.suites.sources import Sources, references

CHAT, TRANSLATION, SUMMARIZATION = "mt_bench", "translation", "summarization"
QA, MATH, RAG, CODE = "qa", "math_reasoning", "rag", "code"
TASKS = (CHAT, TRANSLATION, SUMMARIZATION, QA, MATH, RAG, CODE)
CHAT_CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Of MT-Bench, whose questions Spec-Bench names by these."""
ALIASES = {"humaneval": CODE, "code_generation": CODE, "question_answering": QA, "mgsm": MATH}
"""Categories that extensions of Spec-Bench may name otherwise."""
FILES = ("spec_bench_question.jsonl", "spec_bench/question.jsonl")
HUMAN_EVAL = ("HumanEval.jsonl.gz", "HumanEval.jsonl")

MULTI, ENGLISH = "multi-spec-bench", "en"
NATURAL = {"de": "German", "fr": "French", "es": "Spanish", "zh": "Chinese", "vi": "Vietnamese", "en": "English"}
"""How HumanEval-XL names its files."""
SQUAD = {"fr": ("squad_fr/squad_fr.json", "squad_fr.json"), "ja": ("jsquad/valid-v1.1.json", "jsquad.json")}
"""Substitutes for XQuAD in languages that it lacks; both have its form."""
WIKITEXT = ("wikitext/wiki.test.raw", "wikitext/wiki.test.tokens", "wikitext/wikitext.txt")
SHORT = 80
"""Characters of wikitext below which a line is a heading or a stray."""


class Item(NamedTuple):
    """A question, and its name in its source."""

    identity: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()


Cells = dict[str, list[Item]]
"""Task -> its questions."""
Found = tuple[list[Item], str]
"""A cell, and the note on a substitute source; empty if it is built as published."""


class Absent(Unavailable):
    """No source of a cell is here; the message names those that would do."""


def spec_bench(sources: Sources, tasks: Sequence[str]) -> tuple[list[Prompt], list[str]]:
    """The prompts of these tasks, and notes."""
    cells = Cells()
    if set(tasks) - {CODE}:
        cells |= _questions(sources, sources.need("Spec-Bench's question.jsonl", *FILES))
    if CODE in tasks:
        cells[CODE] = _functions(sources, sources.need("HumanEval", *HUMAN_EVAL), ENGLISH)
    absent = [task for task in tasks if task not in cells]
    prompts = [prompt for task in tasks for prompt in _prompts(cells.get(task, ()), task, ENGLISH)]
    return prompts, [f"{task} was not built: the questions at hand have none" for task in absent]


def multi_spec_bench(
    sources: Sources, tasks: Sequence[str], languages: Sequence[str] | None
) -> tuple[list[Prompt], list[str]]:
    """The prompts of these tasks, in these languages or in all that there are sources of, and notes."""
    prompts, notes = list[Prompt](), list[str]()
    published = _published(sources)
    wanted = chosen(MULTI, "language", languages, [*PHRASES, *sorted(set(published) - set(PHRASES))])
    for language in wanted:
        if languages is None and language not in published and not _has_sources(sources, language):
            continue
        cells, said = _language(sources, language, tasks, published.get(language))
        notes += said
        for task in tasks:
            prompts += _prompts(spread(cells.get(task, []), CELL), task, language)
    return prompts, notes


def _language(sources: Sources, language: str, tasks: Sequence[str], published: Path | None) -> tuple[Cells, list[str]]:
    """All cells of a language, and notes."""
    if published is not None:
        cells = _questions(sources, published)
        absent = [task for task in tasks if task not in cells]
        said = [f"{language} is the set in {published.name}, read as rows of Spec-Bench's form"]
        return cells, said + [f"{language} {task} was not built: that set has none" for task in absent]
    cells, notes = Cells(), list[str]()
    original = sources.find(*FILES) if language == ENGLISH else None
    if original is not None:
        cells = _questions(sources, original)
        notes.append("en is Spec-Bench itself; its translations are from German")
    for task in tasks:
        if task not in cells:
            try:
                cells[task], substitute = BUILDERS[task](sources, language)
            except Absent as error:
                notes.append(f"{language} {task} was not built: {error}")
                continue
            if substitute:
                notes.append(f"{language} {task}: {substitute}")
    return cells, notes


def _chat(sources: Sources, language: str) -> Found:
    path = sources.find(f"multilingual-mt-bench/{language}.jsonl")
    if path is None:
        raise Absent(f"there is no multilingual-mt-bench/{language}.jsonl")
    return _questions(sources, path).get(CHAT, []), ""


def _translation(sources: Sources, language: str) -> Found:
    request = PHRASES[language].translate
    if request is None:
        raise Absent("English is translated from German, by Spec-Bench's own questions, which are not here")
    path, substitute = sources.find(*WIKITEXT), ""
    if path is not None:
        lines = [(name, line.strip()) for name, line in _lines(sources, path)]
        lines = [(name, line) for name, line in lines if len(line) >= SHORT and not line.startswith("=")]
    else:
        path = sources.find("parallel/en.txt")
        if path is None:
            raise Absent(f"there is neither {WIKITEXT[0]} nor parallel/en.txt")
        lines, substitute = _lines(sources, path), "NTREX-128's English news sentences replace wikitext"
    return _items(lines, lambda line: f"{request}\n\n{line}"), substitute


def _summarization(sources: Sources, language: str) -> Found:
    request = PHRASES[language].summarize
    path = sources.find(f"wikipedia/{language}.jsonl")
    if path is not None:
        return _items(_column(sources, path, "text"), lambda text: f"{request}\n\n{text}"), ""
    found = passages(sources, language, CELL)
    if not found:
        raise Absent(f"there is neither wikipedia/{language}.jsonl nor text/{language}")
    *others, last = sorted({passage.file for passage in found})
    files = f"{', '.join(others)} and {last}" if others else last
    items = [Item(f"{file}-{line}", (f"{request}\n\n{text}",)) for text, file, line in found]
    return items, f"passages of {files} replace Wikipedia"


def _qa(sources: Sources, language: str) -> Found:
    path = sources.find(f"webfaq/{language}.jsonl")
    if path is not None:
        return _items(_column(sources, path, "question")), ""
    path = sources.find(*_squad_names(language))
    if path is None:
        raise Absent(f"there is neither webfaq/{language}.jsonl nor {_squad_names(language)[0]}")
    asked = list(_squad(sources, path))[1::2]  # the others are asked with their passages
    substitute = f"questions of {path.name} without their passages replace webfaq"
    return _items([(name, question) for name, question, _ in asked]), substitute


def _rag(sources: Sources, language: str) -> Found:
    path = sources.find(*_squad_names(language))
    if path is None:
        raise Absent(f"there is no {_squad_names(language)[0]}")
    asked, phrases = list(_squad(sources, path))[::2], PHRASES[language]
    return _items([(name, phrases.about_passage(text, question)) for name, question, text in asked]), ""


def _math(sources: Sources, language: str) -> Found:
    path = sources.find("vi_gsm8k.jsonl", "vi_gsm8k/test.jsonl") if language == "vi" else None
    if path is not None:
        return _items(_column(sources, path, "question")), ""
    path = sources.find(f"mgsm/mgsm_{language}.tsv", f"mgsm_{language}.tsv")
    if path is None:
        raise Absent(f"there is no mgsm_{language}.tsv" + (" and no vi_gsm8k.jsonl" if language == "vi" else ""))
    return _items(_lines(sources, path), lambda line: line.partition("\t")[0].strip()), ""


def _code(sources: Sources, language: str) -> Found:
    names = [f"humaneval-xl/{language}.jsonl"]
    names += [f"humaneval-xl/data/python/{NATURAL[language]}.jsonl"] if language in NATURAL else []
    names += ["jhumaneval.jsonl", "jhumaneval/test.jsonl"] if language == "ja" else []
    path = sources.find(*names) if language != ENGLISH else None
    if path is not None:
        return _functions(sources, path, language), ""
    path = sources.find(*HUMAN_EVAL)
    if path is None:
        raise Absent(f"there is neither {names[-1]} nor HumanEval")
    theirs = "jhumaneval" if language == "ja" else "HumanEval-XL"
    substitute = f"HumanEval, its comments in English, replaces {theirs}" if language != ENGLISH else ""
    return _functions(sources, path, language), substitute


BUILDERS: dict[str, Callable[[Sources, str], Found]] = dict(
    zip(TASKS, (_chat, _translation, _summarization, _qa, _math, _rag, _code), strict=True)
)


def _questions(sources: Sources, path: Path) -> Cells:
    """Rows of Spec-Bench's form, by task; those of MT-Bench by category, so that a few of them are of many kinds."""
    found: dict[str, list[tuple[int, Item]]] = {}
    for row in sources.rows(path):
        category, turns = row.text("category"), row.texts("turns")
        kind = CHAT_CATEGORIES.index(category) if category in CHAT_CATEGORIES else None
        task = ALIASES.get(category, category) if kind is None else CHAT
        if task not in TASKS:
            raise InputError(f"{row.where} is of the category {category!r}, which Spec-Bench does not have")
        item = Item(str(row.get("question_id", row.number)), turns, references(row, len(turns)))
        found.setdefault(task, []).append((kind or 0, item))
    return {task: [item for _, item in sorted(items, key=lambda of: of[0])] for task, items in found.items()}


def _functions(sources: Sources, path: Path, language: str) -> list[Item]:
    """Rows of HumanEval's form, asked for in a language."""
    rows = [(str(row.get("task_id", row.number)), row.text("prompt")) for row in sources.rows(path)]
    return _items(rows, PHRASES[language].with_code)


def _column(sources: Sources, path: Path, name: str) -> list[tuple[str, str]]:
    """One text of each row, by the row's number."""
    return [(str(row.number), row.text(name)) for row in sources.rows(path)]


def _lines(sources: Sources, path: Path) -> list[tuple[str, str]]:
    """The lines that are not blank, by their numbers."""
    lines = enumerate(sources.text(path).split("\n"), start=1)
    return [(str(number), line) for number, line in lines if line.strip()]


def _items(named: Sequence[tuple[str, str]], asked: Callable[[str], str] = str) -> list[Item]:
    """A cell's worth of these texts, as they are ``asked``."""
    return [Item(name, (asked(text),)) for name, text in spread(named, CELL)]


def _prompts(items: Sequence[Item], task: str, language: str) -> list[Prompt]:
    """Keys become file names, so ``HumanEval/0`` loses its slash."""
    prompts = []
    for identity, turns, reference in items:
        plain = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in identity)
        key = f"{language}-{task}-{plain}"
        prompts.append(Prompt(key=key, task=task, language=language, turns=turns, reference=reference))
    return prompts


def _squad_names(language: str) -> tuple[str, ...]:
    return (f"xquad/xquad.{language}.json", f"xquad.{language}.json", *SQUAD.get(language, ()))


def _squad(sources: Sources, path: Path) -> Iterator[tuple[str, str, str]]:
    """Name, question and passage of a file of SQuAD's form."""
    try:
        for article in sources.json(path)["data"]:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    yield str(asked["id"]), str(asked["question"]), str(paragraph["context"])
    except (KeyError, TypeError):
        raise InputError(f"{path} is not of SQuAD's form: data, paragraphs, context, qas, question, id") from None


def _published(sources: Sources) -> dict[str, Path]:
    """The authors' set: a file for each language of it that is here."""
    folder = sources.find(MULTI, MULTI.replace("-", "_"))
    if folder is None or not folder.is_dir():
        return {}
    files = {path.stem: path for path in sorted(folder.glob("*.jsonl"))}
    return files | {path.parent.name: path for path in sorted(folder.glob("*/question.jsonl"))}


def _has_sources(sources: Sources, language: str) -> bool:
    """Whether something here is of this language; English sentences to translate do not count."""
    own = [f"multilingual-mt-bench/{language}.jsonl", f"mgsm/mgsm_{language}.tsv", f"webfaq/{language}.jsonl"]
    own += [f"wikipedia/{language}.jsonl", f"humaneval-xl/{language}.jsonl", *_squad_names(language)]
    own += FILES if language == ENGLISH else ()
    return sources.find(*own) is not None or language in languages_of(sources)
