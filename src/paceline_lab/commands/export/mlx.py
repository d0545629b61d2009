"""``paceline export mlx``: a model as a folder of mlx-lm."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import DEFAULT_MODEL
from paceline.cli.output import print_json, progress, say
from paceline.errors import InputError


def add(exports: Subparsers) -> None:
    parser: Parser = exports.add_parser(
        "mlx",
        run=run,
        help="a model as a folder of mlx-lm",
        description="Writes a model as a folder that mlx-lm loads, with its tokenizer: whole, or not at all.",
    )
    text = f"a bundled model, with or without ballast, or a folder or name of a model (default: {DEFAULT_MODEL})"
    parser.argument("--model -m", "MODEL", text, default=DEFAULT_MODEL)
    parser.argument("--out", "FOLDER", "the folder to write", Path, required=True)
    parser.argument("--bits", "N", "quantise the weights to so many bits, as mlx-lm does (default: floats)", int)
    parser.flag("--force", "replace the folder if it is there")
    parser.add_trust()
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    from paceline.targets.hf.target import HFTarget
    from paceline.targets.load import open_model
    from paceline.targets.mlx.export import export_mlx

    if options.out.exists() and not options.force:
        raise InputError(f"{options.out} is there already; give another --out, or --force to replace it")
    with progress(f"loading {options.model}") as advance:
        target, _ = open_model(options.model, device="cpu")
        if not isinstance(target, HFTarget):
            raise InputError(f"{options.model} is computed by another library; give the original model")
        advance(f"writing {options.out}", 0, 0)
        export_mlx(target, options.out, bits=options.bits)
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    say(f"{options.out}: {size / 1e6:.1f} MB")
    if options.json:
        print_json({"model": options.model, "folder": str(options.out), "bits": options.bits, "bytes": size})
    return 0
