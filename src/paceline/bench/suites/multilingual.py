"""Multi-Spec-Bench: Spec-Bench's seven tasks in other languages, from the sources that UniSpec's appendix C names.

Of every source that is absent, another one stands in or the cell is not built, and either is said. English is
Spec-Bench itself. Where the authors' own set is at hand, in rows of Spec-Bench's form, it goes before all sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from paceline.bench.suites.phrases import PHRASES, about_passage, with_text
from paceline.bench.suites.picking import CELL, chosen, spread
from paceline.bench.suites.prompts import Prompt
from paceline.bench.suites.running import languages_of, passages
from paceline.bench.suites.sources import Sources
from paceline.bench.suites.spec import (
    CHAT,
    CODE,
    FILES,
    HUMAN_EVAL,
    MATH,
    QA,
    RAG,
    SUMMARIZATION,
    TASKS,
    TRANSLATION,
    Cells,
    Item,
    as_prompts,
    functions,
    human_eval,
    questions,
)

SUITE = "multi-spec-bench"
ENGLISH = "en"
NATURAL = {"de": "German", "fr": "French", "es": "Spanish", "zh": "Chinese", "vi": "Vietnamese", "en": "English"}
"""What HumanEval-XL calls its files by."""
SQUAD = {"fr": ("squad_fr/squad_fr.json", "squad_fr.json"), "ja": ("jsquad/valid-v1.1.json", "jsquad.json")}
"""What takes XQuAD's place in languages that it lacks; both have its form."""
WIKITEXT = ("wikitext/wiki.test.raw", "wikitext/wiki.test.tokens", "wikitext/wikitext.txt")
SHORT = 80
"""Characters of wikitext below which a line is a heading or a stray."""


class Absent(Exception):
    """No source of a cell is here; the message says which ones were looked for."""


Found = tuple[list[Item], str]
"""A cell, and what stands in for what; nothing, if it is built as published."""


def multi_spec_bench(
    sources: Sources, tasks: Sequence[str], languages: Sequence[str] | None
) -> tuple[list[Prompt], list[str]]:
    """The prompts of these tasks, in these languages or in all that there are sources of."""
    prompts, notes = list[Prompt](), list[str]()
    published = _published(sources)
    there = [*PHRASES, *sorted(set(published) - set(PHRASES))]
    wanted = chosen(SUITE, "language", languages, there)
    if languages is None:
        wanted = [name for name in wanted if name in published or _has_sources(sources, name)]
    for language in wanted:
        cells, said = _language(sources, language, tasks, published.get(language))
        notes += said
        for task in tasks:
            prompts += as_prompts(spread(cells.get(task, []), CELL), task, language)
    return prompts, notes


def _language(sources: Sources, language: str, tasks: Sequence[str], published: Path | None) -> tuple[Cells, list[str]]:
    """All cells of a language."""
    if published is not None:
        cells = questions(sources, published)
        absent = [task for task in tasks if task not in cells]
        said = [f"{language} is the set in {published.name}, read as rows of Spec-Bench's form"]
        return cells, said + [f"{language} {task} was not built: that set has none" for task in absent]
    cells, notes = Cells(), list[str]()
    original = sources.find(*FILES) if language == ENGLISH else None
    if original is not None:
        cells = {task: items for task, items in questions(sources, original).items() if task in tasks}
        notes.append("en is Spec-Bench itself; its translations are from German")
    for task in tasks:
        if task not in cells:
            try:
                cells[task], stands_in = BUILDERS[task](sources, language)
            except Absent as error:
                notes.append(f"{language} {task} was not built: {error}")
                continue
            if stands_in:
                notes.append(f"{language} {task}: {stands_in}")
    return cells, notes


def _chat(sources: Sources, language: str) -> Found:
    path = sources.find(f"multilingual-mt-bench/{language}.jsonl")
    if path is None:
        raise Absent(f"there is no multilingual-mt-bench/{language}.jsonl")
    return questions(sources, path).get(CHAT, []), ""


def _translation(sources: Sources, language: str) -> Found:
    request = PHRASES[language].translate
    if request is None:
        raise Absent("English is translated from German, by Spec-Bench's own questions, which are not here")
    path, stands_in = sources.find(*WIKITEXT), ""
    if path is not None:
        lines = [(number, line.strip()) for number, line in enumerate(sources.text(path).split("\n"), start=1)]
        lines = [(number, line) for number, line in lines if len(line) >= SHORT and not line.startswith("=")]
    else:
        path = sources.find("parallel/en.txt")
        if path is None:
            raise Absent(f"there is neither {WIKITEXT[0]} nor parallel/en.txt")
        lines = [(at, line) for at, line in enumerate(sources.text(path).split("\n"), start=1) if line.strip()]
        stands_in = "NTREX-128's English news sentences stand in for wikitext"
    return [Item(f"{number}", (with_text(request, line),)) for number, line in spread(lines, CELL)], stands_in


def _summarization(sources: Sources, language: str) -> Found:
    request = PHRASES[language].summarize
    path = sources.find(f"wikipedia/{language}.jsonl")
    if path is not None:
        rows = [(str(row.number), row.text("text")) for row in sources.rows(path)]
        return [Item(name, (with_text(request, text),)) for name, text in spread(rows, CELL)], ""
    found = passages(sources, language, CELL)
    if not found:
        raise Absent(f"there is neither wikipedia/{language}.jsonl nor text/{language}")
    items = [Item(f"{file}-{line}", (with_text(request, text),)) for text, file, line in found]
    return items, f"passages of {_listed(sorted({one.file for one in found}))} stand in for Wikipedia"


def _qa(sources: Sources, language: str) -> Found:
    path = sources.find(f"webfaq/{language}.jsonl")
    if path is not None:
        rows = [(str(row.number), row.text("question")) for row in sources.rows(path)]
        return [Item(name, (text,)) for name, text in spread(rows, CELL)], ""
    path = _squad(sources, language)
    if path is None:
        raise Absent(f"there is neither webfaq/{language}.jsonl nor {_squad_names(language)[0]}")
    asked = list(_asked(sources, path))[1::2]  # the others are asked with their passages
    items = [Item(name, (question,)) for name, question, _ in spread(asked, CELL)]
    return items, f"questions of {path.name} without their passages stand in for webfaq"


def _rag(sources: Sources, language: str) -> Found:
    path = _squad(sources, language)
    if path is None:
        raise Absent(f"there is no {_squad_names(language)[0]}")
    asked, phrases = list(_asked(sources, path))[::2], PHRASES[language]
    return [Item(name, (about_passage(phrases, text, question),)) for name, question, text in spread(asked, CELL)], ""


def _math(sources: Sources, language: str) -> Found:
    path = sources.find("vi_gsm8k.jsonl", "vi_gsm8k/test.jsonl") if language == "vi" else None
    if path is not None:
        sums = [(str(row.number), row.text("question")) for row in sources.rows(path)]
        return [Item(name, (text,)) for name, text in spread(sums, CELL)], ""
    path = sources.find(f"mgsm/mgsm_{language}.tsv", f"mgsm_{language}.tsv")
    if path is None:
        raise Absent(f"there is no mgsm_{language}.tsv" + (" and no vi_gsm8k.jsonl" if language == "vi" else ""))
    lines = enumerate(sources.text(path).split("\n"), start=1)
    sums = [(str(number), line.partition("\t")[0].strip()) for number, line in lines if line.strip()]
    return [Item(name, (text,)) for name, text in spread(sums, CELL)], ""


def _code(sources: Sources, language: str) -> Found:
    request = PHRASES[language].complete
    names = [f"humaneval-xl/{language}.jsonl"]
    names += [f"humaneval-xl/data/python/{NATURAL[language]}.jsonl"] if language in NATURAL else []
    names += ["jhumaneval.jsonl", "jhumaneval/test.jsonl"] if language == "ja" else []
    path = sources.find(*names) if language != ENGLISH else None
    if path is not None:
        return functions(sources, path, request), ""
    if sources.find(*HUMAN_EVAL) is None:
        raise Absent(f"there is neither {names[-1]} nor HumanEval")
    theirs = "jhumaneval" if language == "ja" else "HumanEval-XL"
    stands_in = f"HumanEval, its comments in English, stands in for {theirs}" if language != ENGLISH else ""
    return human_eval(sources, request), stands_in


BUILDERS: dict[str, Callable[[Sources, str], Found]] = {
    CHAT: _chat,
    TRANSLATION: _translation,
    SUMMARIZATION: _summarization,
    QA: _qa,
    MATH: _math,
    RAG: _rag,
    CODE: _code,
}
assert tuple(BUILDERS) == TASKS, "every task has its builder"


def _squad_names(language: str) -> tuple[str, ...]:
    return (f"xquad/xquad.{language}.json", f"xquad.{language}.json", *SQUAD.get(language, ()))


def _squad(sources: Sources, language: str) -> Path | None:
    return sources.find(*_squad_names(language))


def _asked(sources: Sources, path: Path) -> Iterator[tuple[str, str, str]]:
    """Name, question and passage of a file of SQuAD's form."""
    try:
        for article in sources.json(path)["data"]:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    yield str(asked["id"]), str(asked["question"]), str(paragraph["context"])
    except (KeyError, TypeError):
        raise ValueError(f"{path} is not of SQuAD's form: data, paragraphs, context, qas, question, id") from None


def _published(sources: Sources) -> dict[str, Path]:
    """The authors' set: a file for each language of it that is here."""
    folder = sources.find(SUITE, SUITE.replace("-", "_"))
    if folder is None or not folder.is_dir():
        return {}
    files = {path.stem: path for path in sorted(folder.glob("*.jsonl"))}
    return files | {path.parent.name: path for path in sorted(folder.glob("*/question.jsonl"))}


def _has_sources(sources: Sources, language: str) -> bool:
    """Whether something here is of this language, be it English sentences to translate or not."""
    own = [f"multilingual-mt-bench/{language}.jsonl", f"mgsm/mgsm_{language}.tsv", f"webfaq/{language}.jsonl"]
    own += [f"wikipedia/{language}.jsonl", f"humaneval-xl/{language}.jsonl", *_squad_names(language)]
    own += FILES if language == ENGLISH else ()
    return sources.find(*own) is not None or language in languages_of(sources)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]
