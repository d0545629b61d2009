"""Runs that nobody ran: plausible records, the same for the same arguments, without a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline_lab.bench.run.directory import About, Run, add, begin, write_about
from paceline_lab.bench.run.record import ROUND_COLUMNS, Record, TextVerdict
from paceline_lab.bench.suites import Prompt

WORDS = {
    "en": tuple(re.findall(r"\w+", "the old man went down to the river and saw a boat with two lamps on it")),
    "pl": tuple(re.findall(r"\w+", "stary żółw poszedł nad rzekę i zobaczył łódź z dwiema lampami w gęstej mgle")),
    "ja": tuple("老人は川へ行き二つの灯りを積んだ舟を見た"),
    "ar": tuple(re.findall(r"\w+", "ذهب الرجل العجوز إلى النهر ورأى قاربا")),
}
ODD = ["\n", "\t", "😀", "<b>&amp;</b>", "e\u0301"]
"""Pieces that pages and terminals get wrong: they stand in the texts, too."""
EOS = 0
DEPTH = 4
FORWARD, STALLED = 0.02, 1.0
KEEN = {"plain": 0.0, "lookup": 0.35, "assistant": 0.7}
"""How likely each next token of a draft is taken."""


@dataclass
class Machine:
    """Takes time, some of it by chance."""

    rng: np.random.Generator
    noise: float
    drift: float
    """How much slower it is at the end of the run than at its beginning."""
    texts: int
    done: int = 0

    def seconds(self, nominal: float, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        slow = 1 + self.drift * self.done / max(self.texts, 1)
        return nominal * slow * np.exp(self.noise * self.rng.standard_normal(count))


@dataclass(kw_only=True)
class Making:
    """A run of so many ``prompts`` a cell, those of mt_bench with two turns."""

    methods: Sequence[str] = ("plain", "lookup", "assistant")
    peers: Sequence[str] = ("transformers",)
    tasks: Sequence[str] = ("mt_bench", "qa")
    languages: Sequence[str] = ("en", "pl", "ja")
    prompts: int = 3
    tokens: int = 40
    repeats: int = 2
    seed: int = 0
    """It moves the times, never the texts."""
    noise: float = 0.05
    drift: float = 0.0
    slow: Mapping[str, float] = field(default_factory=dict)
    """How many times as long entries take."""
    degenerate: bool = True
    """Whether the first prompt's texts loop."""
    stall: bool = True
    """Whether one round of the first method that drafts takes very long."""
    joules: bool = True
    finished: bool = True
    missing: dict[str, str] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def entries(self) -> list[str]:
        return [*self.methods, *self.peers]

    @property
    def cells(self) -> list[tuple[str, str]]:
        return [(task, language) for task in self.tasks for language in self.languages]


def made_run(path: Path, **how: Any) -> Run:
    """The run of a `Making`, kept in a folder."""
    making = Making(**how)
    asked = [
        Prompt(key=f"{task}/{language}/{number}", task=task, language=language, turns=tuple(_asked(language, task)))
        for task, language in making.cells
        for number in range(making.prompts)
    ]
    run = begin(path, _about(making), asked)
    texts = len(asked) * making.repeats * len(making.entries)
    machine = Machine(np.random.default_rng(making.seed), making.noise, making.drift, texts)
    written = list[Record]()
    for repeat in range(making.repeats):
        for unit, prompt in enumerate(asked):
            turns = (_unit(making, machine, prompt, unit, turn, repeat) for turn in range(len(prompt.turns)))
            found = [record for texts in turns for record in texts]
            if making.stall and unit == repeat == 0:
                _stall(found)
            written += found
    add(run, written)  # at once: every writing waits for the disk
    run.about.finished = making.finished
    write_about(run)
    return run


def _asked(language: str, task: str) -> list[str]:
    """What a user says in each turn."""
    words = " ".join(WORDS.get(language, WORDS["en"])[:8])
    return [f"{words}? <b>{turn + 1}</b>" for turn in range(2 if task == "mt_bench" else 1)]


def _about(making: Making) -> About:
    ours = [{"name": name, "ours": True, "method": name, "dtype": "float32"} for name in making.methods]
    theirs = [{"name": name, "ours": False, "library": name, "version": "5.0.0"} for name in making.peers]
    cells = {task: dict.fromkeys(making.languages, making.prompts) for task in making.tasks}
    asked: dict[str, Any] = {"suite": "made", "tasks": None, "langs": None, "limit": None, "draft_model": None}
    asked |= {"methods": list(making.methods), "peers": list(making.peers), "num_draft_tokens": DEPTH}
    asked |= {"rule": "coupled", "max_new_tokens": making.tokens, "ignore_eos": False, "temperature": 0.0, "seed": 0}
    asked |= {"repeat": making.repeats, "warm": False, "batch": 1, "qps": None, "follow": False}
    return About(
        recipe=asked | dict(making.recipe),
        model={"model": "pocket", "dtype": "float32", "fingerprint": "0123456789abcdef", "device": "cpu"}
        | {"threads": 2, "ballast": None}
        | dict(making.model),
        entries=[*ours, *theirs],
        workload={
            "suite": "made",
            "cells": cells,
            "notes": ["translation could not be built: its source is not here"],
            "sources": {"questions.jsonl": "00112233445566ff"},
            "prompts": len(making.cells) * making.prompts,
            "units": len(making.cells) * making.prompts * making.repeats,
        },
        missing=making.missing,
        warm_up={name: {"tokens": 16, "same": True} for name in making.entries},
        energy={"source": "stated", "measured": False, "watts": 30.0, "why": ""}
        if making.joules
        else {"source": "none", "measured": False, "watts": None, "why": "not asked for"},
        sittings=[
            {
                "started": "2026-11-22T12:00:00+00:00",
                "command": "paceline bench run --suite made",
                "versions": {"paceline": "0.1.0", "torch": "2.9.0", "transformers": "5.0.0", "python": "3.11.9"},
                "machine": {"system": "Linux", "processor": "made up", "cores": 2},
                "threads": 2,
                "load": 0.3,
                "git": {"commit": "abcdef0", "changed": False},
            }
        ],
    )


def _unit(making: Making, machine: Machine, prompt: Prompt, unit: int, turn: int, repeat: int) -> list[Record]:
    """The texts of all entries, one after the other, the order rotated."""
    words = np.random.default_rng([unit, turn])
    count = making.tokens - int(words.integers(8))
    tokens = [1 + int(word) for word in words.integers(len(WORDS[prompt.language]) + len(ODD), size=count - 1)] + [EOS]
    loops = making.degenerate and unit == 0
    if loops:
        tokens = [1 + i % 3 for i in range(count)]
    pieces = [_piece(token, prompt.language) for token in tokens]
    first = (unit + repeat) % len(making.entries)
    turned = [*making.entries[first:], *making.entries[:first]]
    found = []
    for place, entry in enumerate(turned):
        machine.done += 1
        rounds = _rounds(entry, count, np.random.default_rng([unit, turn, len(entry)]))
        ours, pace = entry in making.methods, making.slow.get(entry, 1.0)
        found.append(
            Record(
                entry=entry,
                prompt=prompt.key,
                task=prompt.task,
                language=prompt.language,
                unit=unit,
                turn=turn,
                repeat=repeat,
                place=place,
                prompt_tokens=20 + 30 * turn,
                text="".join(pieces),
                tokens=tokens,
                finish="length" if loops else "eos",
                verdict=TextVerdict.REFERENCE if entry == making.methods[0] else TextVerdict.EQUAL,
                pieces=pieces,
                peak_bytes=300_000_000 + 1_000_000 * len(entry),
                **_timed(rounds, count, machine, pace, ours, making.joules),
            )
        )
    return sorted(found, key=lambda record: making.entries.index(record.entry))


def _piece(token: int, language: str) -> str:
    words = WORDS[language]
    if token == EOS:
        return ""
    return ODD[token - 1 - len(words)] if token > len(words) else words[token - 1] + ("" if language == "ja" else " ")


def _rounds(entry: str, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """(drafted, accepted) of every round until so many tokens are there. The first is the prompt's, without a draft."""
    keen = KEEN.get(entry, 0.0 if entry == "transformers" else 0.5)
    found, done = [(0, 0)], 1
    while done < count:
        drafted = 0 if keen == 0 or (entry == "lookup" and rng.random() < 0.4) else DEPTH
        drafted = min(drafted, count - done - 1)
        misses = np.flatnonzero(rng.random(drafted) > keen)
        accepted = int(misses[0]) if len(misses) else drafted
        found.append((drafted, accepted))
        done += accepted + 1
    return found


def _timed(
    rounds: list[tuple[int, int]], count: int, machine: Machine, pace: float, ours: bool, joules: bool
) -> dict[str, Any]:
    drafted, accepted = np.array(rounds).T
    draft = machine.seconds(0.001, len(rounds)) * drafted * pace
    score = machine.seconds(FORWARD, len(rounds)) * (1 + 0.05 * drafted) * pace
    read, judge = machine.seconds(0.0005, len(rounds)) * pace, machine.seconds(0.0002, len(rounds)) * pace
    for part in (draft, score, read, judge):
        part[0] = 0.0  # the prompt's
    prefill, rest = float(machine.seconds(0.05, 1)[0]) * pace, 0.001 * pace
    decode = float((draft + score + read + judge).sum()) + rest
    emitted = accepted + 1
    timed = {
        "seconds": prefill + decode,
        "seconds_first": prefill,
        "decoded": count - 1,
        "seconds_decode": decode,
        "forwards": len(rounds),
        "joules": 30.0 * (prefill + decode) if joules else None,
    }
    if not ours:
        return timed
    position = 20 + np.cumsum(emitted) - emitted
    columns = (position, drafted, drafted, accepted, accepted < drafted, emitted, draft, score, read, judge)
    columns = (*columns, drafted, drafted + 1)
    sources = [s for d, a in rounds for s in ["draft"] * a + [""]]
    parts = (prefill, draft.sum(), score.sum(), read.sum(), judge.sum(), rest)
    return timed | {
        "split": dict(zip(("prefill", "draft", "score", "read", "judge", "rest"), map(float, parts), strict=True)),
        "rounds": {name: column.tolist() for name, column in zip(ROUND_COLUMNS, columns, strict=True)},
        "sources": sources,
        "scores": [0.8 if source else 0.0 for source in sources],
    }


def _stall(texts: list[Record]) -> None:
    """One round of the first text that drafts takes very long; its totals grow with it."""
    for number, record in enumerate(texts):
        if record.rounds and record.split and any(record.rounds["drafted"]):
            record.rounds["seconds_score"][1] += STALLED
            record.split["score"] += STALLED
            longer = {name: getattr(record, name) + STALLED for name in ("seconds", "seconds_decode")}
            texts[number] = replace(record, **longer)
            return
