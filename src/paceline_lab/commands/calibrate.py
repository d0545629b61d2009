"""``paceline calibrate``: which draft size suits a method on this machine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import check_counts, inputs_of, load_model, temperature_of
from paceline.cli.output import counted, print_json, progress, say, table
from paceline.errors import InputError, need
from paceline.files import check_output, write_whole

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.planning.acceptance import Acceptance
    from paceline.planning.stored import Profile
    from paceline_lab.machine.calibrate import Method, Plan

SHOWN = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Sizes of the table."""
CHOICES = ("best size", "texts", "text length", "nodes", "tokens/s", "plain", "speed-up", "")


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "calibrate",
        run=run,
        help="find the draft size that suits a method on this machine, and keep it",
        description=(
            "Times rounds of this model by the nodes that are drafted, counts the tokens that drafts of a method "
            "bring, and finds the size with the most tokens per second. The result is stored for this model, type, "
            "device and number of threads in the user's cache folder ($PACELINE_CACHE names another), where --planner "
            "calibrated reads it. An interrupted calibration leaves the stored result as it was."
        ),
    )
    parser.add_model()
    parser.several("--method", "SPEC", "methods to calibrate (default: the method that is used by default)")
    parser.add_draft_model(bundled=False)
    parser.argument("--prompts", "FILE", "prompts to write, a .jsonl file or a suite (default: a mixture of languages)")
    parser.argument("--samples", "N", "how many of them to write (default: 5)", int)
    parser.argument("--max-nodes", "N", "the largest draft (default: 128, or fewer if larger ones are too slow)", int)
    parser.several("--length", "L", "time rounds behind texts of L tokens (default: 256 1024)", int)
    parser.several("--batch", "B", "time rounds of B texts written together (default: 1 4)", int)
    parser.add_temperature()
    parser.add_length(None, 128)
    parser.argument("--seconds", "S", "how long to measure one method, loading apart (default: 36)", float)
    parser.add_threads()
    parser.argument("--html", "FILE", "write a page with pictures of the curves", Path)
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    from paceline.planning.stored import Unreadable, load, path_of, update
    from paceline.targets.setup import setup_of
    from paceline_lab.bench.machine import threads
    from paceline_lab.machine.calibrate import Calibrator
    from paceline_lab.machine.prompts import prompts_of

    started = time.monotonic()
    if options.html is not None:
        need("matplotlib", "--html", "bench")
    specs, plan = _specs(options), _plan(options)
    check_output(options.html, inputs_of(options))
    with threads(options.threads), progress(f"loading {options.model}") as advance:
        lm = load_model(options)
        _check_lengths(options.length, lm)
        prompts = prompts_of(options.prompts, lm, options.samples)
        try:
            known = load(setup_of(lm.target))
        except Unreadable:
            known = None  # it is about to be replaced
        path_of(setup_of(lm.target))  # fails before anything is measured where there is no place for a profile
        methods = _methods(lm, specs, options.draft_model)
        calibrator = Calibrator(target=lm.target, methods=methods, prompts=prompts, plan=plan, progress=advance)
        fresh = calibrator.run(known)
        profile, path = update(fresh.setup, lambda by_now: calibrator.joined(fresh, by_now))
    took = time.monotonic() - started
    found = [profile.method(method.spec, method.draft) for method in methods]
    measured = [one for one in found if one is not None]
    say("\n".join(_lines(profile, measured)))
    say(f"\nmeasured in {took:.0f} s and kept in {path}")
    if options.html is not None:
        from paceline_lab.machine.calibration_page import calibration_page

        write_whole(options.html, calibration_page(profile, measured, took))
        say(f"pictures: {options.html}")
    if options.json:
        print_json(_json(profile, measured, path, took))
    return 0


def _specs(options: argparse.Namespace) -> list[str]:
    """The specs of the methods. A misspelt one is refused before a model is loaded."""
    from paceline.api.settings import Settings
    from paceline.drafters import make_drafter

    specs = list(dict.fromkeys(options.method or [Settings(draft_model=options.draft_model).spec]))
    for spec in specs:
        make_drafter(spec, options.draft_model, must_use=False)
    return specs


def _plan(options: argparse.Namespace) -> Plan:
    from paceline.law import Sampling
    from paceline_lab.machine.calibrate import Plan

    check_counts(options, "max_new_tokens", "samples", "threads")
    given = {
        "max_nodes": options.max_nodes,
        "lengths": None if options.length is None else tuple(dict.fromkeys(options.length)),
        "sequences": None if options.batch is None else tuple(dict.fromkeys(options.batch)),
        "max_new_tokens": options.max_new_tokens,
        "seconds": options.seconds,
    }
    return Plan(
        sampling=Sampling(temperature=temperature_of(options)),
        **{name: value for name, value in given.items() if value is not None},
    )


def _check_lengths(lengths: list[int] | None, lm: LanguageModel) -> None:
    """Refuse lengths that do not fit the context. Those of the plan itself would be left out instead."""
    from paceline_lab.machine.calibrate import fits

    limit = lm.target.context_length
    if limit is not None and (beyond := [length for length in lengths or () if not fits(length, limit)]):
        raise InputError(
            f"--length {beyond[0]} is too long for {lm.target.name}, whose context ends at {limit} tokens; give at "
            f"most {limit // 2}, half of it, which leaves room for the rounds"
        )


def _methods(lm: LanguageModel, specs: list[str], draft_model: str | None) -> list[Method]:
    from paceline.drafters import make_drafter
    from paceline.drafters.networks.assistant import DraftModel
    from paceline_lab.machine.calibrate import Method

    draft = None if draft_model is None else DraftModel.load(draft_model, lm.target)
    drafters = (make_drafter(spec, draft, must_use=False) for spec in specs)
    return [Method.fitted(drafter, lm.target, lm.vocabulary) for drafter in drafters]


def _lines(profile: Profile, methods: list[Acceptance]) -> Iterator[str]:
    yield f"{profile.setup.summary}, weights {profile.setup.fingerprint}"
    for method in methods:
        yield ""
        head = (method.method, "ms per round", "tokens per round", "tokens/s", "")
        yield table(head, _sizes(profile, method), left=(0, 4))
        yield ""
        yield table(CHOICES, _choices(method), left=(0, len(CHOICES) - 1))
        yield from _notes(method)


def _sizes(profile: Profile, method: Acceptance) -> Iterator[tuple[str, ...]]:
    """Seconds and tokens of rounds by their number of nodes, at the first batch size and length."""
    choice = method.choices[0]
    key = choice.sequences, choice.length
    seconds = method.seconds(profile.curves(method.top), *key)
    for point, took in zip(method.points, seconds.tolist(), strict=True):
        if point.nodes not in {*SHOWN, choice.nodes, method.points[-1].nodes}:
            continue
        speed = choice.sequences * point.tokens / took
        mark = "*" if point.nodes == choice.nodes else ""
        yield counted(point.nodes, "node"), f"{1000 * took:.1f}", f"{point.tokens:.2f}", f"{speed:.1f}", mark


def _choices(method: Acceptance) -> Iterator[tuple[str, ...]]:
    for choice in method.choices:
        yield (
            method.method,
            str(choice.sequences),
            str(choice.length),
            str(choice.nodes),
            f"{choice.tokens_per_second:.1f}",
            f"{choice.tokens_per_second_plain:.1f}",
            f"{choice.tokens_per_second / choice.tokens_per_second_plain:.2f}",
            "by the fitted curves" if choice.trusted else f"by the points; the curves say {choice.fitted}",
        )


def _notes(method: Acceptance) -> Iterator[str]:
    from paceline.planning.acceptance import ENOUGH

    texts = counted(len(method.prompts), "prompt")
    yield (
        f"{counted(method.emitted, 'token')} of {texts} in {counted(method.rounds, 'round')} "
        f"at temperature {method.temperature:g}"
    )
    if not method.enough:
        yield (
            f"these are too few rounds: planners do not use what was found. Measure at least {ENOUGH}, with more "
            "--samples, --max-new-tokens or --seconds"
        )
    if method.spot is not None:
        spot = method.spot
        yield (
            f"drafts of {counted(spot.nodes, 'node')}: {spot.found:.2f} tokens per round measured, "
            f"{spot.foretold:.2f} predicted from the largest drafts; smaller sizes are corrected by the difference"
        )


def _json(profile: Profile, methods: list[Acceptance], path: Path, took: float) -> dict[str, Any]:
    stored = profile.as_dict()
    return {
        "profile": str(path),
        "seconds": took,
        "setup": stored["setup"],
        "timings": stored["timings"],
        "methods": [
            {
                "nodes": method.choices[0].nodes,
                "tokens_per_second": method.choices[0].tokens_per_second,
                "enough": method.enough,
            }
            | asdict(method)
            for method in methods
        ],
    }
