"""Spec-Bench: 480 English questions in six groups (Xia et al. 2024), and HumanEval as the seventh of UniSpec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.bench.suites.phrases import PHRASES, with_code
from paceline.bench.suites.picking import CELL, spread
from paceline.bench.suites.prompts import Prompt
from paceline.bench.suites.sources import Sources

CHAT, TRANSLATION, SUMMARIZATION = "mt_bench", "translation", "summarization"
QA, MATH, RAG, CODE = "qa", "math_reasoning", "rag", "code"
TASKS = (CHAT, TRANSLATION, SUMMARIZATION, QA, MATH, RAG, CODE)
CHAT_CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Of MT-Bench, whose questions Spec-Bench names by these."""
ALIASES = {"humaneval": CODE, "code_generation": CODE, "question_answering": QA, "mgsm": MATH}
"""Categories that extensions of Spec-Bench may name otherwise."""
FILES = ("spec_bench_question.jsonl", "spec_bench/question.jsonl")
HUMAN_EVAL = ("HumanEval.jsonl.gz", "HumanEval.jsonl")


class Item(NamedTuple):
    """What is asked, and what it is called in its source."""

    identity: str
    turns: tuple[str, ...]


Cells = dict[str, list[Item]]
"""Task -> its questions."""


def spec_bench(sources: Sources, tasks: Sequence[str]) -> tuple[list[Prompt], list[str]]:
    """The prompts of these tasks."""
    cells = Cells()
    if set(tasks) - {CODE}:
        cells |= questions(sources, sources.need("Spec-Bench's question.jsonl", *FILES))
    if CODE in tasks:
        cells[CODE] = human_eval(sources, PHRASES["en"].complete)
    absent = [task for task in tasks if task not in cells]
    prompts = [prompt for task in tasks if task in cells for prompt in as_prompts(cells[task], task, "en")]
    return prompts, [f"{task} was not built: the questions at hand have none" for task in absent]


def questions(sources: Sources, path: Path) -> Cells:
    """Rows of Spec-Bench's form, by task; those of MT-Bench by category, so that a few of them are of many kinds."""
    found: dict[str, list[tuple[int, Item]]] = {}
    for row in sources.rows(path):
        category, turns = row.text("category"), row.texts("turns")
        kind = CHAT_CATEGORIES.index(category) if category in CHAT_CATEGORIES else None
        task = ALIASES.get(category, category) if kind is None else CHAT
        if task not in TASKS:
            raise ValueError(f"{row.where} is of the category {category!r}, which Spec-Bench does not have")
        found.setdefault(task, []).append((kind or 0, Item(str(row.get("question_id", row.number)), turns)))
    return {task: [item for _, item in sorted(items, key=lambda of: of[0])] for task, items in found.items()}


def human_eval(sources: Sources, request: str) -> list[Item]:
    """Functions to complete, asked for in a language."""
    path = sources.need("HumanEval", *HUMAN_EVAL)
    return functions(sources, path, request)


def functions(sources: Sources, path: Path, request: str) -> list[Item]:
    """Rows of HumanEval's form."""
    found = [
        Item(str(row.get("task_id", row.number)), (with_code(request, row.text("prompt")),))
        for row in sources.rows(path)
    ]
    return spread(found, CELL)


def as_prompts(items: Sequence[Item], task: str, language: str) -> list[Prompt]:
    return [
        Prompt(key=f"{language}-{task}-{_plain(identity)}", task=task, language=language, turns=turns)
        for identity, turns in items
    ]


def _plain(identity: str) -> str:
    """Without the slashes of ``HumanEval/0``: keys become file names."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in identity)
