"""``paceline bench draft-cost --forwards``: what a model's forwards take, over one row and over the rows of drafts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser
from paceline.cli.options import check_counts, load_model
from paceline.cli.output import counted, print_json, say, table
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline_lab.bench.forwards import TimedForward

CONTEXTS, SEQUENCES, ROWS = (256, 1024), (1,), (1, 2, 4, 8, 16, 32, 64)


def add_forwards(parser: Parser) -> None:
    parser.flag("--forwards", "time forwards alone, of --model or of random:8b, random:1b, random:tiny")
    for name, usual, text in (
        ("--context", CONTEXTS, "cached tokens before the scored rows"),
        ("--sequence", SEQUENCES, "sequences in a forward"),
        ("--rows", ROWS, "rows of each sequence"),
    ):
        shown = f"of --forwards: {text} (default: {' '.join(map(str, usual))})"
        parser.several(name, "N", shown, int, default=usual)
    parser.several(
        "--peer",
        "PEER",
        "of --forwards: llama-cpp and openvino, on the same weights, or as llama-cpp:type=Q8_0 (default: none)",
        dest="peers",
        default=(),
    )


def time_forwards(options: argparse.Namespace) -> int:
    import torch

    from paceline.targets.hf.target import HFTarget
    from paceline.targets.setup import processor
    from paceline_lab.bench import forwards
    from paceline_lab.bench.machine import instruction_sets

    if options.model is None:
        raise InputError("--forwards needs a --model, or random:8b, random:1b or random:tiny")
    check_counts(options, "context", "sequence", "rows")
    if options.model.startswith(forwards.RANDOM):
        shape = options.model.removeprefix(forwards.RANDOM)
        target: Any = forwards.random_target(shape, options.dtype or "bfloat16", options.device)
    else:
        target = load_model(options).target
    if not isinstance(target, HFTarget):
        raise InputError(f"{target.name} is no model of transformers, whose forwards are timed here")
    speed, size = forwards.bandwidth(target.model.device), forwards.bytes_of_token(target, options.context[0])
    say(f"{target.name} {target.dtype} on {target.device}, medians of {options.rounds}")
    if target.device == "cpu":
        say(f"{processor()}, {counted(torch.get_num_threads(), 'thread')}: {instruction_sets()}")
    say(
        f"a token of plain decoding reads {size / 1e9:.3g} GB behind {options.context[0]} tokens; at the "
        f"{speed / 1e9:.3g} GB/s of a copy it takes at least {1000 * size / speed:.3g} ms\n"
    )
    found = list(
        forwards.forwards(
            target,
            contexts=options.context,
            sequences=options.sequence,
            rows=sorted(set(options.rows)),
            repeats=options.rounds,
            peers=options.peers,
        )
    )
    head, *lines = _lines(found)
    say(table(head, lines, left=(0, len(head) - 1)))
    apart = {path: max(one.apart for one in found if one.path == path) for path in options.peers}
    ours = max(one.apart for one in found if one.path not in apart)
    say(f"\nThe logits of the paths lie at most {ours:.1e} deviations apart")
    for path, distance in apart.items():
        say(f"The logits of {path} lie at most {distance:.1e} deviations from them")
    refused = None if target.fixed is None else target.fixed.refused
    if refused is not None:
        say(f"Fixed shapes were NOT used: {refused}")
    if options.json:
        about = {"model": target.name, "dtype": target.dtype, "bandwidth": speed, "bytes_of_token": size}
        about |= {"instruction_sets": instruction_sets(), "threads": torch.get_num_threads()}
        shapes = {(one.context, one.sequences) for one in found}
        least = {shape: 1000 * forwards.bytes_of_token(target, *shape) / speed for shape in shapes}
        timed = [vars(one) | {"least_milliseconds": least[one.context, one.sequences]} for one in found]
        print_json(about | {"refused": refused, "forwards": timed})
    return 0


def _lines(found: Sequence[TimedForward]) -> Iterator[tuple[str, ...]]:
    """A line for each path: milliseconds by the number of rows, and in brackets how many times those of one row."""
    counts = sorted({one.rows for one in found})
    yield "", "context", "sequences", *(f"{n} rows" if n > 1 else "1 row" for n in counts), ""
    lines = dict.fromkeys((one.context, one.sequences, one.path) for one in found)
    for context, sequences, path in lines:
        its = {o.rows: o.milliseconds for o in found if (o.context, o.sequences, o.path) == (context, sequences, path)}
        first = its[min(its)]
        cells = (f"{its[n]:.2f} ({its[n] / first:.2f}x)" if n in its else "" for n in counts)
        yield path, str(context), str(sequences), *cells, "ms"
