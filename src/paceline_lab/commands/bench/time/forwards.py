"""``paceline bench time forwards``: what a model's forwards take, over one row and over the rows of drafts."""

from __future__ import annotations

import argparse
from typing import Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import DEFAULT_MODEL, check_counts, load_model
from paceline.cli.output import counted, progress, say
from paceline.errors import InputError
from paceline_lab.commands.bench.time.report import print_record, times_table, until_interrupted

CONTEXTS, SEQUENCES, ROWS = (256, 1024), (1,), (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 9


def add(subjects: Subparsers) -> None:
    parser: Parser = subjects.add_parser(
        "forwards",
        run=run,
        help="forwards over one row and over drafts, along every path of a model",
        description=(
            "Times forwards of a model over one row and over drafts, along every path, beside transformers' own "
            "decoding step and the bandwidth of the memory."
        ),
    )
    text = f"named as elsewhere, or random:8b, random:1b or random:tiny (default: {DEFAULT_MODEL})"
    parser.argument("--model -m", "MODEL", text, default=DEFAULT_MODEL)
    parser.add_trust()
    parser.add_place()
    parser.add_quantize()
    parser.argument("--rounds", "N", f"forwards timed of each (default: {ROUNDS})", int, default=ROUNDS)
    for name, usual, text in (
        ("--context", CONTEXTS, "cached tokens before the scored rows"),
        ("--sequence", SEQUENCES, "sequences in a forward"),
        ("--rows", ROWS, "rows of each sequence"),
    ):
        parser.several(name, "N", f"{text} (default: {' '.join(map(str, usual))})", int, default=usual)
    text = "llama-cpp and openvino, on the same weights, or as llama-cpp:type=Q8_0 (default: none)"
    parser.several("--peer", "PEER", text, dest="peers", default=())
    parser.add_threads()
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    check_counts(options, "rounds", "context", "sequence", "rows", "threads")
    from paceline.targets.setup import described, processor
    from paceline_lab.bench.machine import instruction_sets, threads
    from paceline_lab.bench.times import forwards

    with threads(options.threads), progress(f"loading {options.model}") as advance:
        target = _target(options)
        speed = forwards.bandwidth(target.device)
        sizes = {(c, s): forwards.bytes_of_token(target, c, s) for c in options.context for s in options.sequence}
        found = forwards.forwards(
            target,
            contexts=options.context,
            sequences=options.sequence,
            rows=list(dict.fromkeys(options.rows)),
            repeats=options.rounds,
            peers=options.peers,
            progress=advance,
        )
        lines, interrupt = until_interrupted(found)
        about = described(target)
    lines.sort(key=lambda line: int(line.facts["rows"]))
    paths = dict.fromkeys(line.facts["path"] for line in lines)
    size = sizes[options.context[0], options.sequence[0]]
    say(f"{target.name} {target.dtype} on {target.device}, medians of {options.rounds}")
    if target.device == "cpu":
        say(f"{processor()}, {counted(about['threads'], 'thread')}: {instruction_sets()}")
    say(
        f"a token of plain decoding reads {size / 1e9:.3g} GB behind {options.context[0]} tokens; at the "
        f"{speed / 1e9:.3g} GB/s of a copy it takes at least {1000 * size / speed:.3g} ms\n"
    )
    say(times_table(lines, "rows"))
    apart = {path: max(line.figures["apart"] for line in lines if line.facts["path"] == path) for path in paths}
    ours = max(distance for path, distance in apart.items() if path not in options.peers)
    say(f"\nThe logits of the paths lie at most {ours:.1e} deviations apart")
    for path in (path for path in options.peers if path in paths):
        say(f"The logits of {path} lie at most {apart[path]:.1e} deviations from them")
    refused = getattr(getattr(target, "fixed", None), "refused", None)
    if refused is not None:
        say(f"Fixed shapes were NOT used: {refused}")
    least = {shape: 1000 * read / speed for shape, read in sizes.items()}
    lines = [line.found(least=least[line.facts["context"], line.facts["sequences"]]) for line in lines]
    print_record(options, lines, setup=about, bandwidth=speed, bytes_of_token=size, refused=refused)
    if interrupt is not None:
        raise interrupt
    return 0


def _target(options: argparse.Namespace) -> Any:
    """A model of transformers, loaded or made, or one of llama.cpp."""
    from paceline_lab.bench.times.forwards import RANDOM, Timed, random_target

    if options.model.startswith(RANDOM):
        return random_target(options.model.removeprefix(RANDOM), options.dtype or "bfloat16", options.device)
    target = load_model(options).target
    if not isinstance(target, Timed):
        raise InputError(f"{target.name} is no model of transformers or llama.cpp, whose forwards are timed here")
    return target
