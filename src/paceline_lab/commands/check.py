"""``paceline check``: does speculation leave this model's text alone?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import draft_model, load_model
from paceline.cli.output import print_json, progress, say, table
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline_lab.check import Report


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "check",
        run=run,
        help="test whether a model writes the same text with and without drafts",
        description=(
            "Runs methods, rules, sampling settings and planners against plain decoding of the same model, "
            "counts differences, and distinguishes near ties of the arithmetic from bugs. Exit code 1 means a bug."
        ),
    )
    parser.add_model()
    parser.add_ranks()
    parser.add_draft_model()
    text = "methods to check (default: all, installed plug-ins, and adversaries)"
    parser.several("--method", "SPEC", text, dest="methods")
    parser.several("--rule", "RULE", "coupled, rejection (default: both)", dest="rules")
    parser.several("--sizes", "N", "draft sizes; the same as planners fixed:N", int)
    text = "planners to check, each with everything (default: sizes 4 and 12, adaptive and calibrated, in turns)"
    parser.several("--planner", "P", text, dest="planners")
    parser.several("--batch", "B", "write B cases at a time (default: 1 8)", int)
    parser.argument("--max-new-tokens -n", "N", "tokens per case (default: 64)", int, default=64)
    parser.argument("--seed", "S", "seed of the sampled cases (default: 0)", int, default=0)
    text = "check no model, but tiny random ones of all model types of the installed transformers, or of those named"
    parser.several("--families", "TYPE", text, nargs="*")
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    if options.families is not None:
        return _families(options)
    from paceline.drafters.networks.assistant import DraftModel
    from paceline.verify import Rule
    from paceline_lab.check import BATCHES, Checker, beside, completing, fixed, trained

    drafts = draft_model(options)
    methods = _refuse_mistakes(options, drafts)
    lm = load_model(options)
    draft = None if drafts is None else DraftModel.load(drafts, lm.target)
    known = (*completing(lm.vocabulary), *trained(lm.target.name), *beside(draft, lm.vocabulary))
    checker = Checker(
        lm.target,
        lm.vocabulary,
        methods if options.methods else (*known, *methods),
        (*fixed(options.sizes or ()), *(options.planners or ())),
        tuple(Rule(rule) for rule in options.rules or Rule),
        options.max_new_tokens,
        options.seed,
        batches=tuple(options.batch or BATCHES),
        draft_model=draft,
    )
    interrupt = None
    with progress("plain decoding") as checker.progress:
        try:
            report = checker.run()
        except KeyboardInterrupt as raised:
            if not checker.report.results:
                raise
            interrupt, report = raised, checker.finish()
            report.notes.append("it was interrupted: only the cases above were checked")
    _print(report, lm.target.device)
    if options.json:
        print_json(report.summary())
    if interrupt is not None and not report.bugs:
        raise interrupt
    return 1 if report.bugs else 0


def _refuse_mistakes(options: argparse.Namespace, drafts: str | None) -> tuple[str, ...]:
    """The methods to check. What is misspelt or checks nothing is refused before a model is loaded."""
    from paceline.drafters import Plain, make_drafter
    from paceline.drafters.spec import plug_ins
    from paceline.planning.specs import make_planner
    from paceline.verify import Rule
    from paceline_lab.check import ADVERSARIES, ASSISTED, CHECKED_METHODS

    assisted = () if drafts is None else ASSISTED
    methods = tuple(options.methods or (*CHECKED_METHODS, *assisted, *plug_ins(), *ADVERSARIES))
    for method in methods:
        if method not in ADVERSARIES:
            make_drafter(method, drafts, must_use=False)
    for name, what in (("sizes", "draft of {} tokens"), ("batch", "batch of {} cases")):
        if small := [size for size in getattr(options, name) or () if size < 1]:
            raise InputError(f"a {what.format(small[0])} checks nothing; --{name} takes sizes of 1 and more")
    for planner in options.planners or ():
        make_planner(planner, Plain())
    if unknown := sorted(set(options.rules or ()) - set(Rule)):
        raise InputError(f"unknown rule {unknown[0]!r}; choose from {', '.join(Rule)}")
    return methods


def _print(report: Report, device: str) -> None:
    found = report.summary()
    sizes = ", ".join(map(str, report.batches))
    say(f"{report.target}  {report.dtype}  weights {report.fingerprint}  sequences at once: {sizes}")
    columns = ("cases", "equal", "near_ties", "not_rescored", "bugs")
    titles = ("method", "cases", "equal", "near ties", "not re-scored", "bugs")
    say(table(titles, [(name, *(counts[column] for column in columns)) for name, counts in report.by_method().items()]))
    say(
        f"{found['tokens']} tokens followed plain decoding's text: {found['flips_per_1000']} flips per 1,000, "
        f"control {found['control_flips_per_1000']}; {found['seconds']} s on {device}"
    )
    if report.same_bits is not None:
        say(f"{report.same_bits} rows were scored more than once; logits are compared bit by bit")
    for line in (*(f"BUG  {fault}" for fault in found["faults"]), *(f"note {note}" for note in report.notes)):
        say(line)


def _families(options: argparse.Namespace) -> int:
    """Print a line per tiny model and the number of each verdict."""
    from collections import Counter

    from paceline_lab.check.families import FAMILY_FAILURES, Examined, sweep

    findings: list[Examined] = []
    with progress("tiny models") as advance:
        for found in sweep(options.families, advance):
            findings.append(found)
            say(f"{found.model_type:24} {found.variant:10} {found.verdict:24} {found.reason}".rstrip())
    counts = Counter(found.verdict for found in findings)
    say(f"{len(findings)} configurations: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")
    if options.json:
        print_json({"counts": dict(counts), "configurations": [asdict(found) for found in findings]})
    return 1 if any(found.verdict in FAMILY_FAILURES for found in findings) else 0
