"""Prompts from a user's own file, and to a file that reads back to the same prompts.

A line is a JSON object, or a string, which is a text to continue:

    {"prompt": "Once upon a time"}                                   a text to continue
    {"turns": ["Write a poem.", "Now make it rhyme."]}               what a user says, through the chat template
    {"messages": [{"role": "user", "content": "Write a poem."}]}     the same, as chat programs keep it

``chat`` overrides which of the two it is. ``key`` (or ``id``, ``question_id``) names the prompt, ``task`` (or
``category``) and ``language`` its cell. ``script`` (or ``text``) is how it goes on, where a text is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from paceline.bench.suites.prompts import Prompt
from paceline.bench.suites.sources import Entry, Sources
from paceline.errors import InputError

TASK, LANGUAGE = "prompts", "und"
"""Of rows that do not say. The language is ISO 639's word for an undetermined one."""
KINDS = ("prompt", "turns", "messages")
KEYS, TASKS, LANGUAGES, SCRIPTS = ("key", "id", "question_id"), ("task", "category"), ("language",), ("script", "text")
KNOWN = frozenset({*KINDS, *KEYS, *TASKS, *LANGUAGES, *SCRIPTS, "chat", "reference"})


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
            raise InputError(f"{row.where} cannot be replayed: it needs a 'prompt' and the 'text' that goes on from it")
        lines[prompt.key] = row.number
        prompts.append(prompt)
    if not prompts:
        raise InputError(f"{path} holds no prompts: it is empty")
    return prompts


def as_lines(prompts: Iterable[Prompt]) -> str:
    """Prompts as a file of lines that `read_prompts` reads back to the same ones."""
    names = ("key", "task", "language", "chat", "turns", "script")
    rows = ({name: getattr(prompt, name) for name in names if getattr(prompt, name) is not None} for prompt in prompts)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _prompt(row: Entry) -> Prompt:
    if isinstance(row.value, str):
        row = Entry({"prompt": row.value}, row.number, row.where)
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
        key=_name(row, KEYS) or f"line-{row.number}",
        task=_name(row, TASKS) or TASK,
        language=_name(row, LANGUAGES) or LANGUAGE,
        turns=turns,
        chat=chat,
        script=next((row.text(name) for name in SCRIPTS if name in row.value), None),
    )


def _turns(row: Entry, kind: str) -> tuple[str, ...]:
    if kind == "prompt":
        return (row.text(kind),)
    if kind == "turns":
        return row.texts(kind)
    messages = row.get(kind)
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{row.where} has no 'messages': a list of role and content")
    rows = [Entry(message, row.number, row.where) for message in messages]
    roles = dict.fromkeys(str(each.get("role")) for each in rows)
    if list(roles) != ["user"]:
        raise InputError(
            f"{row.where} has messages of {', '.join(roles)}; give only the user's, for the model writes its answers "
            "itself"
        )
    return tuple(each.text("content") for each in rows)


def _name(row: Entry, names: tuple[str, ...]) -> str | None:
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
