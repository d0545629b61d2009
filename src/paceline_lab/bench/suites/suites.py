"""Suites by name, and prompts from a user's own file and to a file that reads back to the same prompts.

The name of a suite, its files and the options here decide its prompts; none is drawn at random. ``limit`` is a number
of prompts per cell, a task in a language, and takes them at equal distances from all over the cell (`spread`): of
MT-Bench's eight categories, eight prompts or more have every one.

A line of a user's file is a JSON object, or a string, which is a text to continue:

    {"prompt": "Once upon a time"}                                   a text to continue
    {"turns": ["Write a poem.", "Now make it rhyme."]}               what a user says, through the chat template
    {"messages": [{"role": "user", "content": "Write a poem."}]}     the same, as chat programs keep it

``chat`` overrides which of the two it is. ``key`` (or ``id``, ``question_id``) names the prompt, ``task`` (or
``category``) and ``language`` its cell. ``script`` (or ``text``) is how it goes on, where a text is replayed or
followed, and ``reference`` a list of good answers, one to each turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from paceline.errors import InputError
from paceline_lab.bench.suites.prompts import Prompt, Workload, chosen, hint, thinned
from paceline_lab.bench.suites.requests import dictspec, stories
from paceline_lab.bench.suites.running import continuation, languages_of, replay
from paceline_lab.bench.suites.sources import SourceRow, Sources, references
from paceline_lab.bench.suites.spec_bench import FILES, TASKS, multi_spec_bench, spec_bench

SUITES = {
    "stories": "12 beginnings of stories to continue in each of en, pl and uk; they come with paceline",
    "spec-bench": "480 English questions of six tasks, and 80 functions of HumanEval",
    "multi-spec-bench": "the same seven tasks in other languages, as far as there are sources",
    "continuation": "continuation:LANG continues real paragraphs of a language",
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
TASK, LANGUAGE = "prompts", "und"
"""Of rows that do not say. The language is ISO 639's word for an undetermined one."""
KINDS = ("prompt", "turns", "messages")
KEY_NAMES, TASK_NAMES = ("key", "id", "question_id"), ("task", "category")
LANGUAGE_NAMES, SCRIPT_NAMES = ("language",), ("script", "text")
KNOWN = frozenset({*KINDS, *KEY_NAMES, *TASK_NAMES, *LANGUAGE_NAMES, *SCRIPT_NAMES, "chat", "reference"})


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
        why = f": {'; '.join(notes)}" if notes else ""
        raise InputError(f"{spec} has no prompts of the requested tasks and languages{why}")
    return Workload(suite=spec, prompts=thinned(prompts, limit), notes=tuple(notes), sources=sources.read)


def is_here(name: str, data: Path | None = None) -> bool:
    """Whether the data of a suite is on this machine. Suites of a file have theirs with the file."""
    folder = Sources(data).folder
    if name in ("stories", "dictspec", *OF_A_FILE):
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
        case "stories":
            return stories(languages), []
        case "dictspec":
            return dictspec(languages)
        case _:
            return _alpaca_eval(sources), []


def _alpaca_eval(sources: Sources) -> list[Prompt]:
    path = sources.need("AlpacaEval", ALPACA)
    rows = sources.json(path)
    if not isinstance(rows, list):
        raise InputError(f"{path} is not AlpacaEval's: a list of instructions")
    texts = [SourceRow(row, at, f"{path}, entry {at},").text("instruction") for at, row in enumerate(rows, start=1)]
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


def read_prompts(sources: Sources, path: Path, *, scripted: bool = False) -> list[Prompt]:
    """The prompts of a file; ``scripted`` ones must say how they go on."""
    prompts, lines = list[Prompt](), dict[str, int]()
    for row in sources.rows(path):
        prompt = _prompt(row)
        if prompt.key in lines:
            raise InputError(
                f"{row.where} has the key {prompt.key!r} of line {lines[prompt.key]}; a key names one prompt only"
            )
        if scripted and (prompt.script is None or prompt.chat):
            raise InputError(f"{row.where} cannot be replayed: it needs a 'prompt' and the 'text' that continues it")
        lines[prompt.key] = row.number
        prompts.append(prompt)
    if not prompts:
        raise InputError(f"{path} holds no prompts: it is empty")
    return prompts


def as_lines(prompts: Iterable[Prompt]) -> str:
    """Prompts as a file of lines that `read_prompts` reads back to the same ones."""
    names = ("key", "task", "language", "chat", "turns", "script", "reference")
    rows = ({n: value for n in names if (value := getattr(prompt, n)) not in (None, ())} for prompt in prompts)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _prompt(row: SourceRow) -> Prompt:
    if isinstance(row.value, str):
        row = SourceRow({"prompt": row.value}, row.number, row.where)
    if not isinstance(row.value, dict):
        raise InputError(f"{row.where} is neither an object nor a text")
    kinds = [kind for kind in KINDS if kind in row.value]
    if len(kinds) != 1:
        odd = ", ".join(map(repr, sorted(set(row.value) - KNOWN)))  # perhaps misspelt
        has = f", not {' and '.join(map(repr, kinds))}" if kinds else f", and has {odd}" if odd else ""
        raise InputError(f"{row.where} needs one of 'prompt', 'turns' and 'messages'{has}")
    chat = row.get("chat", kinds != ["prompt"])
    if not isinstance(chat, bool):
        raise InputError(f"{row.where} has a 'chat' that is neither true nor false")
    turns = _turns(row, kinds[0])
    if not chat and len(turns) > 1:
        raise InputError(f"{row.where} has {len(turns)} turns and is no chat; give it one turn, or leave 'chat' out")
    return Prompt(
        key=_name(row, KEY_NAMES) or f"line-{row.number}",
        task=_name(row, TASK_NAMES) or TASK,
        language=_name(row, LANGUAGE_NAMES) or LANGUAGE,
        turns=turns,
        chat=chat,
        script=next((row.text(name) for name in SCRIPT_NAMES if name in row.value), None),
        reference=references(row, len(turns)),
    )


def _turns(row: SourceRow, kind: str) -> tuple[str, ...]:
    if kind == "prompt":
        return (row.text(kind),)
    if kind == "turns":
        return row.texts(kind)
    messages = row.get(kind)
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{row.where} has no 'messages': a list of role and content")
    rows = [SourceRow(message, row.number, row.where) for message in messages]
    roles = dict.fromkeys(str(each.get("role")) for each in rows)
    if list(roles) != ["user"]:
        raise InputError(
            f"{row.where} has messages of {', '.join(roles)}; give only the user's, for the model writes its answers "
            "itself"
        )
    return tuple(each.text("content") for each in rows)


def _name(row: SourceRow, names: tuple[str, ...]) -> str | None:
    """A word or a number under the first of these names that the row has."""
    name = next((name for name in names if name in row.value), None)
    if name is None:
        return None
    found = row.get(name)
    if isinstance(found, bool) or not isinstance(found, (str, int)) or not str(found).strip():
        raise InputError(f"{row.where} has a {name!r} that is no name")
    if not str(found).isprintable():
        raise InputError(f"{row.where} has a {name!r} with characters that cannot be printed")
    return str(found)
