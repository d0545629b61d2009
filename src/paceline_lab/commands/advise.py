"""``paceline advise``: whether a draft model, or drafting without one, pays on this machine."""

from __future__ import annotations

import argparse
import math
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import check_counts, describe, draft_model, load_model, temperature_of
from paceline.cli.output import TEXT_COLUMNS, bullets, counted, interval, print_json, progress, say, table
from paceline.errors import InputError
from paceline_lab.commands.bench.suite import names

if TYPE_CHECKING:
    from paceline.drafters.networks.assistant import DraftModel
    from paceline_lab.bench.statistics import Estimate
    from paceline_lab.machine.advise import Advice, Raced
    from paceline_lab.machine.overlap_advice import OverlapAdvice

SUITE = "stories"
MOST_PROMPTS, OVERLAPPED = 60, 3
WIDE = 1.15
"""An interval that reaches further than by this factor is called wide."""
RACED = ("measured in turns", "tokens/s", "x plain [95%]")
SAID = {
    "on": "turn {} on",
    "off": "leave {} off",
    "makes no difference": "{} makes no difference here",
    "no interval": "too few texts were written to judge {}",
}
OVERLAP_SAID = {
    "on": "overlap",
    "off": "give all cores to the target",
    "makes no difference": "overlapping makes no difference here, so give all cores to the target",
}
PREDICTED = ("predicted", "tokens/round", "ms/round", "ms drafting", "x plain [95%]")


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "advise",
        run=run,
        help="say in a minute whether a draft model, or drafting without one, pays on this machine",
        description=(
            "Plain decoding, the default method auto, and auto with the draft model write texts in turns. The draft "
            "model is on if the 95% interval of its speed over the faster of the others lies above 1, off if it lies "
            "below, and otherwise makes no difference. Without a draft model auto is judged in this way over plain "
            "decoding. Before, the draft model's tokens are counted and its rounds timed, which predicts the best of "
            "the fixed lengths from 1 to 6 tokens. Nothing is stored."
        ),
    )
    parser.add_model()
    parser.add_draft_model()
    parser.argument("--prompts", "FILE", f"prompts to write, a .jsonl file or a suite (default: {SUITE})")
    parser.argument("--langs", "A,B", "only these languages, as in en,pl", names)
    parser.add_temperature()
    parser.add_seed()
    parser.add_length(None, "64, or fewer if the model is slow")
    parser.argument("--seconds", "S", "how long to measure, loading apart (default: 60)", float)
    parser.flag("--overlap", "say whether the draft model should work beside the target, on a dedicated core")
    text = "with --overlap: simulate N devices for each model, from the parts of a round on this one (default: 1)"
    parser.argument("--devices", "N", text, int, default=1)
    text = (
        "with --devices: microseconds of an all-reduce for each doubling of the devices, and for each megabyte, as in "
        "15,8 (default: those of two processes here, measured)"
    )
    parser.argument("--all-reduce", "A,B", text, _two_numbers)
    parser.add_threads()
    parser.add_json()


def _two_numbers(text: str) -> tuple[float, float]:
    """Seconds of each doubling of devices and of each byte, from microseconds and microseconds for a megabyte."""
    try:
        alpha, beta = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"it is two numbers such as 15,8, not {text}") from None
    if not (0 <= alpha < math.inf and 0 <= beta < math.inf):
        raise argparse.ArgumentTypeError(f"seconds are numbers of 0 or more, not {text}")
    return alpha / 1e6, beta / 1e12


def run(options: argparse.Namespace) -> int:
    from paceline.drafters.networks.assistant import DraftModel
    from paceline.law import Sampling
    from paceline_lab.bench.machine import hushed, threads
    from paceline_lab.machine.advise import SECONDS, TOKENS, Advisor, check_amounts
    from paceline_lab.machine.prompts import prompts_of

    check_counts(options, "max_new_tokens", "threads", "devices")
    if options.all_reduce is not None and options.devices == 1:
        raise InputError("--all-reduce says what several devices cost; add --devices N, with N above 1")
    if options.devices > 1 and not options.overlap:
        raise InputError("--devices simulates rounds of --overlap; add --overlap")
    options.draft_model, options.temperature = draft_model(options), temperature_of(options)
    if options.overlap:
        return _overlap(options)
    seconds = SECONDS if options.seconds is None else options.seconds
    tokens = options.max_new_tokens or TOKENS
    check_amounts(seconds, tokens)
    sampling = Sampling(temperature=options.temperature, seed=options.seed)
    with threads(options.threads), hushed(), progress(f"loading {options.model}") as advance:
        lm = load_model(options)
        draft = None if options.draft_model is None else DraftModel.load(options.draft_model, lm.target)
        advice = Advisor(
            target=lm.target,
            draft=draft,
            prompts=prompts_of(options.prompts or SUITE, lm, languages=options.langs, most=MOST_PROMPTS),
            vocabulary=lm.vocabulary,
            sampling=sampling,
            max_new_tokens=tokens,
            seconds=seconds,
            progress=advance,
        ).run()
        facts = describe(lm)
    say("\n".join(_lines(advice, facts["device"], options)))
    if options.json:
        print_json(_json(advice, options, facts, draft))
    return 0


def _lines(advice: Advice, device: str, options: argparse.Namespace) -> Iterator[str]:
    yield from (line for said in _said(advice, device, options) for line in textwrap.wrap(said, TEXT_COLUMNS))
    yield ""
    raced = ((_named(one, options), f"{one.tokens_per_second:.1f}", _ratio(one.ratio)) for one in advice.raced)
    yield table(RACED, raced, left=(0, len(RACED) - 1))
    if advice.candidates:
        yield ""
        predicted = (
            (
                one.spec,
                f"{one.tokens_per_round:.2f}",
                f"{1000 * one.seconds:.1f}",
                f"{1000 * one.seconds_draft:.1f}",
                _ratio(one.ratio),
            )
            for one in advice.candidates
        )
        yield table(PREDICTED, predicted, left=(0, len(PREDICTED) - 1))
        yield from bullets(f"{spec} cannot draft: {why}" for spec, why in advice.refused.items())
    yield ""
    generate, check = _commands(advice, options)
    yield f"To use it:    {generate}"
    yield f"To check it:  {check}"


def _said(advice: Advice, device: str, options: argparse.Namespace) -> Iterator[str]:
    """The advice in sentences."""
    from paceline_lab.machine.advise import AUTO

    judged, without, plain, best = advice.judged, advice.without, advice.raced[0], advice.best
    what = "drafting" if options.draft_model is None else "the draft model"
    said = SAID[advice.verdict].format(what)
    yield f"{said.capitalize()}: {shlex.join(_method(advice, options))}"
    others = {without.name: advice.gain, plain.name: judged.ratio}
    yield (
        f"{_named(judged, options)} writes {judged.tokens_per_second:.1f} tokens per second, "
        f"{' and '.join(f'{_ratio(ratio)} times as many as {name}' for name, ratio in others.items())}."
    )
    if best is not None:
        yield (
            f"Why: to draft a token takes {best.price:.0%} of a plain round. Of "
            f"{counted(best.length, 'drafted token')}, {best.tokens_per_round - 1:.1f} are accepted."
        )
    yield (
        f"Measured on {counted(len(advice.texts), 'text')} of {advice.tokens} tokens at temperature "
        f"{options.temperature:g}, in {advice.seconds:.0f} seconds on {device}."
    )
    if best is not None and without is plain and len(advice.raced) == 2:
        yield f"There was no time to measure {AUTO} without the draft model; for that, give more --seconds."
    if not advice.gain.high <= WIDE * advice.gain.value:
        wide = "The interval is wide" if advice.gain.bounded else "One text has no interval"
        yield f"{wide}; give more --seconds or more --prompts."


def _named(one: Raced, options: argparse.Namespace) -> str:
    return f"{one.spec} with {options.draft_model}" if one.drafts else one.name


def _method(advice: Advice, options: argparse.Namespace) -> list[str]:
    """Flags of the advised method."""
    chosen = advice.chosen
    return ["--method", chosen.spec, *(["--draft-model", options.draft_model] if chosen.drafts else [])]


def _ratio(one: Estimate) -> str:
    return interval(*astuple(one))


def _commands(advice: Advice, options: argparse.Namespace) -> tuple[str, str]:
    """How to write with the advised settings, and how to measure the method that was judged again."""
    from paceline_lab.machine.advise import TOKENS

    model = ["--model", options.model]
    for name in ("dtype", "quantize", "device"):
        if (given := getattr(options, name)) is not None:
            model += [f"--{name}", given]
    model += ["--no-probe"] if options.no_probe else []
    model += ["--trust-remote-code"] if options.trust_remote_code else []
    how = ["--temperature", f"{options.temperature:g}", "--seed", str(options.seed)]
    generate = ["generate", "The old house", *model, *_method(advice, options), *how]
    suite = options.prompts or SUITE
    suite = f"prompts:{suite}" if ":" not in suite and Path(suite).is_file() else suite
    check = ["bench", "run", "--suite", suite, "--limit", "4", "--batch", "1", *model, *how]
    check += ["-n", str(options.max_new_tokens or TOKENS)]
    check += ["--draft-model", options.draft_model or "none", "--method", advice.judged.spec]
    check += ["--langs", ",".join(options.langs)] if options.langs else []
    check += ["--threads", str(options.threads)] if options.threads else []
    return shlex.join(["paceline", *generate]), shlex.join(["paceline", *check, "--out", "runs/advise"])


def _json(
    advice: Advice, options: argparse.Namespace, facts: dict[str, Any], draft: DraftModel | None
) -> dict[str, Any]:
    from paceline.targets.setup import processor, versions
    from paceline_lab.bench.machine import instruction_sets

    best = advice.best
    generate, check = _commands(advice, options)
    return {
        "verdict": advice.verdict,
        "turn_on": advice.verdict == "on",
        "method": advice.chosen.spec,
        "judged": advice.judged.name,
        "over": advice.without.name,
        **dict(zip(("ratio", "low", "high"), astuple(advice.gain), strict=True)),
        "strategy": None if best is None else best.strategy,
        "k": None if best is None else best.length,
        "raced": [one.as_dict() for one in advice.raced],
        "candidates": [one.as_dict() for one in advice.candidates],
        "refused": advice.refused,
        "setup": facts,
        "machine": {"processor": processor(), "instruction_sets": instruction_sets(), "versions": versions()},
        "draft_model": options.draft_model,
        "draft_fingerprint": None if draft is None else draft.target.fingerprint(),
        "temperature": options.temperature,
        "seed": options.seed,
        "texts": advice.texts,
        "max_new_tokens": advice.tokens,
        "seconds": advice.seconds,
        "generate": generate,
        "check": check,
    }


def _overlap(options: argparse.Namespace) -> int:
    from paceline_lab.bench.machine import hushed, threads
    from paceline_lab.machine.communication import AllReduceLaw
    from paceline_lab.machine.overlap import OverlapTrial
    from paceline_lab.machine.overlap_advice import advise_overlap
    from paceline_lab.machine.prompts import prompts_of

    if options.draft_model is None:
        raise InputError(f"there is no draft model to judge for {options.model}; name one with --draft-model")
    if options.seconds is not None:
        raise InputError(
            f"--overlap measures each part a fixed number of times; leave --seconds {options.seconds:g} out"
        )
    with threads(options.threads), hushed(), progress(f"loading {options.model}") as advance:
        lm = load_model(options)
        prompts = prompts_of(options.prompts or SUITE, lm, languages=options.langs, most=OVERLAPPED)
        trial = OverlapTrial(
            lm=lm,
            prompts=[ids.tolist() for _, ids in prompts],
            tokens=options.max_new_tokens or 48,
            temperature=options.temperature,
            seed=options.seed,
        )
        law = None if options.all_reduce is None else AllReduceLaw(*options.all_reduce)
        advice = advise_overlap(trial, options.draft_model, advance, options.devices, law)
        facts = describe(lm)
    say("\n".join(_overlap_lines(advice, options)))
    if options.json:
        print_json(
            {
                "verdict": advice.verdict,
                "overlaps": advice.verdict == "on",
                "method": advice.spec,
                **dict(zip(("ratio", "low", "high"), astuple(advice.gain), strict=True)),
                "together": [
                    {**asdict(one), "spec": one.spec, "tokens_per_second": one.speed} for one in advice.together
                ],
                "turns": [{**asdict(one), "spec": one.spec, "tokens_per_second": one.speed} for one in advice.turns],
                "seconds_plain": advice.plain,
                "simulated": None if advice.devices is None else asdict(advice.devices),
                "setup": facts,
                "draft_model": options.draft_model,
                "temperature": options.temperature,
            }
        )
    return 0


def _overlap_lines(advice: OverlapAdvice, options: argparse.Namespace) -> Iterator[str]:
    best, turns = advice.best, advice.best_turns
    if (simulated := advice.devices) is not None:
        law = simulated.law
        yield from textwrap.wrap(
            f"Simulated for {simulated.count} devices for each model, not measured: each computes its share of what "
            f"this one was measured at, and an all-reduce takes {1e6 * law.alpha:.3g} microseconds for each doubling "
            f"of the devices and {1e12 * law.beta:.3g} for each megabyte.",
            TEXT_COLUMNS,
        )
    said = OVERLAP_SAID[advice.verdict].capitalize()
    yield from textwrap.wrap(f"{said}: --method {advice.spec} --draft-model {options.draft_model}", TEXT_COLUMNS)
    yield from textwrap.wrap(
        f"By the law, rounds beside one another write {best.speed:.1f} tokens per second at best, rounds in turns "
        f"{turns.speed:.1f}, and plain decoding {1 / advice.plain:.1f}. With the error of the law, that is "
        f"{_ratio(advice.gain)} times as fast as in turns.",
        TEXT_COLUMNS,
    )
    bottleneck = "the target" if best.hidden else "the draft model"
    late = f"{best.anew:.0%} of the drafts begin after the target has decided"
    yield f"The bottleneck beside one another is {bottleneck}; {late}."
    yield ""
    rows = [
        (one.spec, f"{one.speed:.1f}", f"{1000 * one.seconds:.1f}", f"{one.tokens:.2f}", f"{one.anew:.0%}")
        for one in sorted(advice.together, key=lambda one: -one.speed)
    ]
    rows += [
        (one.spec, f"{one.speed:.1f}", f"{1000 * one.seconds:.1f}", f"{one.tokens:.2f}", "")
        for one in sorted(advice.turns, key=lambda one: -one.speed)
    ]
    yield table(("predicted", "tokens/s", "ms/round", "tokens/round", "begun anew"), rows, left=(0,))
