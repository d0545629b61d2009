"""``paceline bench time drafting``: the time of methods to draft and to learn, by themselves or between forwards."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import check_counts, describe, load_model
from paceline.cli.output import TEXT_COLUMNS, progress, say
from paceline.errors import InputError
from paceline.files import workplace
from paceline_lab.commands.bench.time.report import print_record, times_table

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.drafters import Drafter
    from paceline.targets.base import Target
    from paceline_lab.bench.times.drafting import DraftTask
    from paceline_lab.bench.times.made_up import MadeUpModel

METHODS = ("unispec", "recycling", "suffix", "lookup", "dictionary", "foresight", "auto")
SIZES = (60, 120)
TEMPERATURES = (0.0, 0.8)
ROUNDS, ROUNDS_OF_A_MODEL = 200, 15


def add(subjects: Subparsers) -> None:
    parser: Parser = subjects.add_parser(
        "drafting",
        run=run,
        help="the time of drafting, by itself or as a share of a model's rounds",
        description=(
            "Times drafting and learning of each method, at temperature 0 and with the public noise at 0.8. Without a "
            "model: drafts of 60 and 120 nodes in a vocabulary of 151,936 tokens, behind a text of 4,096. With "
            "--model: between its forwards, over a plain row and over drafts of the size that 'paceline calibrate' "
            "found, else of the method's own; drafting and reading the best tokens are a share of the round."
        ),
    )
    text = f"rounds timed (default: {ROUNDS}, or {ROUNDS_OF_A_MODEL} of a model)"
    parser.argument("--rounds", "N", text, int)
    parser.argument("--model -m", "MODEL", "time rounds of this model, named as elsewhere")
    parser.add_trust()
    parser.add_place()
    parser.add_quantize()
    parser.add_threads()
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    check_counts(options, "rounds", "threads")
    if options.model is None and (options.dtype or options.device or options.quantize):
        raise InputError("--dtype, --device and --quantize say how a model is loaded; name one with --model")
    from paceline_lab.bench.machine import threads
    from paceline_lab.bench.times import drafting, made_up

    with threads(options.threads), progress("drafting" if options.model is None else "loading") as advance:
        lm = None if options.model is None else load_model(options)
        target = None if lm is None else lm.target
        rounds = options.rounds or (ROUNDS if target is None else ROUNDS_OF_A_MODEL)
        made = drafting.made_for(target, rounds)
        with _asked(lm, made) as asked:
            lines = list(drafting.drafting(asked, rounds=rounds, made=made, target=target, progress=advance))
    behind = drafting.CONTEXT if target is None else drafting.behind(target)
    whose = "without a model" if target is None else f"of {target.name} ({target.dtype})"
    text = (
        f"Rounds {whose} behind {behind:,} tokens, medians of {rounds}; {len(made.ids):,} tokens in the vocabulary "
        f"({made_up.TEXT}). What learns from rows has seen one for every token of the vocabulary; the dictionary is of "
        "this text."
    )
    say(textwrap.fill(text, TEXT_COLUMNS) + "\n")
    say(times_table(lines))
    about = {"setup": None if lm is None else describe(lm), "vocabulary": len(made.ids), "context": behind}
    print_record(options, lines, **about, text=made_up.TEXT, rounds=rounds)
    return 0


@contextmanager
def _asked(lm: LanguageModel | None, made: MadeUpModel) -> Iterator[list[DraftTask]]:
    """Every method at every size and temperature; those that take a dictionary have one of the made-up text."""
    from paceline.drafters.networks.heads import shipped_methods
    from paceline_lab.bench.times.drafting import DraftTask
    from paceline_lab.bench.times.made_up import write_dictionary

    with workplace() as folder:
        file = folder / "made-up.dict"
        known = None if lm is None else lm.vocabulary
        write_dictionary(file, made.text, len(made.ids), "" if known is None else known.fingerprint)
        specs = {"dictionary": f"dictionary:file='{file}'", "auto": f"auto:dictionary='{file}'"}
        methods = [*METHODS, *(() if lm is None else shipped_methods(lm.target.name))]
        makers = {name: partial(_made, specs.get(name, name), lm) for name in methods}
        asked = list[DraftTask]()
        for temperature in TEMPERATURES:
            if lm is None:
                asked += [DraftTask(name, make, temperature, size) for size in SIZES for name, make in makers.items()]
                continue
            for name, make in makers.items():
                size = best_size(lm.target, name)
                asked.append(DraftTask(name, make, temperature, size, size is not None))
        yield asked


def _made(spec: str, lm: LanguageModel | None) -> Drafter:
    from paceline.drafters import make_drafter
    from paceline.drafters.asking import fit

    drafter = make_drafter(spec)
    if lm is not None:
        fit(drafter, lm.target, lm.vocabulary)
    return drafter


def best_size(target: Target, spec: str) -> int | None:
    """The size that ``paceline calibrate`` found for the method here, if it was asked and found that drafts pay."""
    from paceline.planning.stored import find
    from paceline.targets.setup import setup_of

    profile = find(setup_of(target))
    method = None if profile is None else profile.method(spec)
    return method.choices[0].nodes or None if method is not None and method.enough else None
