"""Suites by name.

The name of a suite, its files and the options here decide its prompts; none is drawn at random. ``limit`` is a number
of prompts per cell, a task in a language, and takes them at equal distances from all over the cell (`spread`): of
MT-Bench's eight categories, eight prompts or more have every one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.bench.suites.files import read_prompts
from paceline.bench.suites.prompts import Prompt, Workload, chosen, hint, thinned
from paceline.bench.suites.requests import dictspec
from paceline.bench.suites.running import continuation, languages_of, replay
from paceline.bench.suites.sources import Entry, Sources
from paceline.bench.suites.spec_bench import FILES, TASKS, multi_spec_bench, spec_bench
from paceline.errors import InputError

SUITES = {
    "spec-bench": "480 English questions of six tasks, and 80 functions of HumanEval",
    "multi-spec-bench": "the same seven tasks in other languages, as far as there are sources",
    "continuation": "continuation:LANG goes on from real paragraphs of a language",
    "dictspec": "20 requests for a long text in each of en, pl, uk, crh-Cyrl and crh-Latn",
    "alpaca-eval": "805 English instructions",
    "prompts": "prompts:FILE.jsonl takes your own",
    "replay": "replay:FILE takes a text, or a .jsonl with prompt and text, to count steps on without a model",
}
"""Name -> what it is, in one line."""
OF_A_FILE = ("prompts", "replay")
ALPACA = "alpaca_eval.json"
NEEDED = {
    "spec-bench": FILES,
    "multi-spec-bench": ("multi-spec-bench", "multilingual-mt-bench", "xquad", "mgsm", *FILES),
    "alpaca-eval": (ALPACA,),
}
"""Suite -> files and folders, any of which makes a part of it."""


def open_suite(
    spec: str,
    *,
    data: Path | None = None,
    languages: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    limit: int | None = None,
) -> Workload:
    """The prompts of a suite: of all its tasks and languages unless some are named, and all of them unless limited."""
    name, _, argument = spec.partition(":")
    if name not in SUITES:
        raise InputError(f"unknown suite {name!r}{hint(name, list(SUITES))}; there is {', '.join(SUITES)}")
    if name in OF_A_FILE and not argument:
        raise InputError(f"{name} takes a file: write {name}:FILE")
    if argument and name not in (*OF_A_FILE, "continuation"):
        raise InputError(f"{name} takes nothing after a colon, and was given {argument!r}")
    if limit is not None and limit < 1:
        raise InputError(f"the limit of {spec} must be at least 1 prompt per cell, not {limit}")
    for what, names in (("language", languages), ("task", tasks)):
        if names is not None and not all(names):
            raise InputError(f"a {what} of {spec} is empty; name it, or leave it out")
    sources = Sources(data)
    prompts, notes = _built(name, argument, sources, languages, tasks, limit)
    if not prompts:
        raise InputError(f"{spec} has no prompts of what was asked for{': ' if notes else ''}{'; '.join(notes)}")
    return Workload(suite=spec, prompts=thinned(prompts, limit), notes=tuple(notes), sources=sources.read)


def is_here(name: str, data: Path | None = None) -> bool:
    """Whether the data of a suite is on this machine. Suites of a file have theirs with the file."""
    folder = Sources(data).folder
    if name in ("dictspec", *OF_A_FILE):
        return True
    if folder is None:
        return False
    sources = Sources(folder)  # asks no hub
    return bool(languages_of(sources)) if name == "continuation" else sources.find(*NEEDED[name]) is not None


def _built(
    name: str,
    argument: str,
    sources: Sources,
    languages: Sequence[str] | None,
    tasks: Sequence[str] | None,
    limit: int | None,
) -> tuple[list[Prompt], list[str]]:
    """The prompts, and notes."""
    if name in OF_A_FILE:
        return _from_file(name, Path(argument), sources, languages, tasks), []
    there = {"spec-bench": TASKS, "multi-spec-bench": TASKS, "alpaca-eval": ("alpaca_eval",)}.get(name, (name,))
    if name in ("spec-bench", "alpaca-eval"):
        chosen(name, "language", languages, ["en"])
    wanted = chosen(name, "task", tasks, there)
    match name:
        case "spec-bench":
            return spec_bench(sources, wanted)
        case "multi-spec-bench":
            return multi_spec_bench(sources, wanted, languages)
        case "continuation":
            return continuation(sources, argument, languages, limit)
        case "dictspec":
            return dictspec(languages)
        case _:
            return _alpaca_eval(sources), []


def _alpaca_eval(sources: Sources) -> list[Prompt]:
    path = sources.need("AlpacaEval", ALPACA)
    rows = sources.json(path)
    if not isinstance(rows, list):
        raise InputError(f"{path} is not AlpacaEval's: a list of instructions")
    texts = [Entry(row, at, f"{path}, entry {at},").text("instruction") for at, row in enumerate(rows, start=1)]
    return [
        Prompt(key=f"en-alpaca_eval-{at}", task="alpaca_eval", language="en", turns=(text,))
        for at, text in enumerate(texts, start=1)
    ]


def _from_file(
    name: str, path: Path, sources: Sources, languages: Sequence[str] | None, tasks: Sequence[str] | None
) -> list[Prompt]:
    if not path.is_file():
        raise InputError(f"there is no file {path}, which {name}:{path} asks for")
    if name == "replay" and path.suffix != ".jsonl":
        prompts = replay(sources, path)
    else:
        prompts = read_prompts(sources, path, scripted=name == "replay")
    for what, asked in (("task", tasks), ("language", languages)):
        wanted = chosen(str(path), what, asked, list(dict.fromkeys(getattr(prompt, what) for prompt in prompts)))
        prompts = [prompt for prompt in prompts if getattr(prompt, what) in wanted]
    return prompts
