"""``paceline bench study``: a table or figure of the UniSpec paper, repeated here."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.bench.suite import names
from paceline.cli.common import Subparsers, add_json, add_trust, aligned, inputs_of, print_json, progress
from paceline.cli.measuring import add_threads
from paceline.cli.streams import say
from paceline.files import check_output, write_whole

if TYPE_CHECKING:
    from paceline.bench.studies.base import Findings, Study
    from paceline.bench.summary import Summary

MODEL, DTYPE, METHOD = "pocket+ballast:500M", "bfloat16", "unispec"
SUITE, LANGUAGES = "continuation", "en,pl"
LIMIT, TOKENS, SECONDS = 2, 64, 20.0
SIZES = 1, 2, 4, 8, 16, 32, 64
STUDIES = Path("runs") / "studies"
WIDTH = 110


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "study",
        help="repeat a table or figure of the UniSpec paper on this machine",
        description=(
            "Makes the runs that a table or figure of the UniSpec paper needs, as 'bench run' makes them, prints its "
            "table and says of each thing that the paper found whether it was found here. The same command goes on "
            "with a study that was interrupted. Without a name the studies are listed."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("study", nargs="?", metavar="NAME", help="which one; without it they are listed")
    parser.add_argument("--model", "-m", default=MODEL, metavar="MODEL", help=f"the model (default: {MODEL})")
    add_trust(parser)
    parser.add_argument(
        "--dtype",
        metavar="TYPE",
        help=f"float32, bfloat16 or float16 (default: {DTYPE}; a study of types or devices tries several)",
    )
    parser.add_argument("--device", metavar="DEVICE", help="where to run it, e.g. cpu, cuda, mps (default: cpu)")
    parser.add_argument(
        "--method", default=METHOD, metavar="SPEC", help=f"the method that is looked at (default: {METHOD})"
    )
    parser.add_argument("--suite", default=SUITE, metavar="SUITE", help=f"as in 'bench run' (default: {SUITE})")
    parser.add_argument("--tasks", type=names, metavar="A,B", help="only these tasks of the suite")
    parser.add_argument(
        "--langs", type=names, metavar="A,B", help=f"only these languages (default: {LANGUAGES} of {SUITE})"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=LIMIT,
        metavar="N",
        help=f"so many prompts of each task and language (default: {LIMIT})",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="where suites find their files, as in 'bench run'")
    parser.add_argument(
        "--max-new-tokens", type=int, default=TOKENS, metavar="N", help=f"tokens per text (default: {TOKENS})"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: as in 'bench run')")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same texts (default: 0)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="write everything N times (default: 1)")
    add_threads(parser)
    parser.add_argument(
        "--sizes", type=names, metavar="A,B", help="draft sizes of the curves (default: 1,2,4,8,16,32,64)"
    )
    parser.add_argument(
        "--calibration-seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help=f"how long a calibration may measure, where a study needs one (default: {SECONDS:g})",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"where its runs are kept (default: {STUDIES}/NAME--MODEL)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page, with pictures where there are some")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paceline.bench.studies import STUDIES as KNOWN
    from paceline.bench.studies.page import study_page
    from paceline.cli.bench.stages import made

    if options.study is None:
        return _list(options, KNOWN)
    _check(options, KNOWN)
    study = KNOWN[options.study]
    with progress(f"loading {options.model}") as advance:
        found = made(study, options, advance)
    if not found.runs and not found.calibrated:
        why = "; ".join(f"{name}: {told}" for name, told in found.missing.items())
        raise ValueError(f"nothing of {study.name} could be measured: {why}")
    findings = study.read(found)
    facts = _facts(options, list(found.runs.values()))
    say("\n".join(_told(study, findings, facts, found.missing)))
    if options.html is not None:
        write_whole(options.html, study_page(study, findings, facts))
        say(f"\npage: {options.html}")
    if options.json:
        print_json(
            {
                "study": study.name,
                "source": study.source,
                "out": str(options.out),
                "facts": facts,
                "head": findings.head,
                "rows": findings.rows,
                "signs": [sign.as_dict() for sign in findings.signs],
                "notes": findings.notes,
                "missing": found.missing,
                "calibrated": {label: vars(one) for label, one in found.calibrated.items()},
                "runs": {name: summary.as_dict() for name, summary in found.runs.items()},
            }
        )
    return 0


def _list(options: argparse.Namespace, known: dict[str, Study]) -> int:
    rows = [(study.name, study.source, study.summary) for study in known.values()]
    widest = max(len(source) for _, source, _ in rows)
    say("\n".join(aligned([(name, f"{source:{widest}}", told) for name, source, told in rows])))
    if options.json:
        print_json({"studies": [{"name": n, "source": s, "is": told} for n, s, told in rows]})
    return 0


def _check(options: argparse.Namespace, known: dict[str, Study]) -> None:
    """Tell mistakes before a model is loaded, and fill in what follows from the rest."""
    from paceline.drafters import make_drafter

    if options.study not in known:
        raise ValueError(f"there is no study {options.study!r}; there is {', '.join(known)}")
    for name in ("limit", "max_new_tokens", "repeat", "threads"):
        given = getattr(options, name)
        if given is not None and given < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {given}")
    if not options.calibration_seconds > 0:
        raise ValueError(f"--calibration-seconds must be more than 0, not {options.calibration_seconds:g}")
    make_drafter(options.method)
    check_output(options.html, inputs_of(options))
    sizes = options.sizes or [str(size) for size in SIZES]
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"--sizes are whole numbers of draft tokens, 1 or more, not {','.join(sizes)}")
    options.sizes = tuple(sorted({int(size) for size in sizes}))
    if options.langs is None and options.suite == SUITE:
        options.langs = LANGUAGES.split(",")
    if options.out is None:
        options.out = STUDIES / re.sub(r"[^\w.+-]+", "-", f"{options.study}--{options.model}").strip("-")


def _facts(options: argparse.Namespace, runs: list[Summary]) -> dict[str, str]:
    """What it was measured on."""
    facts = {"model": options.model, "type": options.dtype or DTYPE, "method": options.method}
    if runs:
        about = runs[0].run.about
        prompts = len({record.prompt for record in runs[0].run.records})
        facts |= {"threads": str(about.model.get("threads")), "suite": str(about.recipe.get("suite"))}
        facts |= {"prompts": str(prompts), "temperature": f"{about.recipe.get('temperature', 0):g}"}
    return facts


def _told(study: Study, findings: Findings, facts: dict[str, str], missing: Mapping[str, str]) -> Iterator[str]:
    yield f"{study.source}: {study.summary}"
    yield ", ".join(f"{name} {value}" for name, value in facts.items())
    yield ""
    yield from (line.rstrip() for line in aligned([findings.head, *findings.rows]))
    yield ""
    said = [sign.sentence for sign in findings.signs]
    for sentence in (*said, *findings.notes, *(f"{name} is missing: {why}" for name, why in missing.items())):
        yield from textwrap.wrap(f"- {sentence}", WIDTH, subsequent_indent="  ")
