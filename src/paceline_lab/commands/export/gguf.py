"""``paceline export gguf``: a model as a GGUF file."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import DEFAULT_MODEL
from paceline.cli.output import bullets, print_json, progress, say

TYPE = "f16"


def add(exports: Subparsers) -> None:
    parser: Parser = exports.add_parser(
        "gguf",
        run=run,
        help="a model as a GGUF file, which llama.cpp computes",
        description=(
            "Writes a model of a llama, mistral, qwen2 or qwen3 family as a GGUF file, with its tokenizer and its chat "
            "template: whole, or not at all. Floats, q8_0, q5_0 and q4_0 need the package gguf; others are made by "
            "llama.cpp's own quantiser. Where llama.cpp is installed, both tokenizers must split sample texts alike."
        ),
    )
    text = f"a bundled model, with or without ballast, or a folder or name of a model (default: {DEFAULT_MODEL})"
    parser.argument("--model -m", "MODEL", text, default=DEFAULT_MODEL)
    parser.argument("--out", "FILE.gguf", "the file to write", Path, required=True)
    text = "f32, f16, bf16, q8_0, q5_0, q4_0, q4_k_m, or another type of llama.cpp that needs no statistics"
    parser.argument("--type", "TYPE", f"type of the weights: {text} (default: {TYPE})", default=TYPE)
    parser.flag("--no-tokenizer", "leave the tokenizer out: texts are token ids")
    parser.flag("--force", "replace the file if it is there")
    parser.add_trust()
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    from paceline.targets.gguf.export import export_gguf

    with progress(f"reading {options.model}") as advance:
        made = export_gguf(
            options.model,
            options.out,
            options.type,
            tokenizer=not options.no_tokenizer,
            force=options.force,
            advance=advance,
        )
    tokenizer = {
        "checked": "the tokenizer was checked against llama.cpp",
        "unchecked": "the tokenizer is unchecked, for llama.cpp is not installed",
        "none": "without a tokenizer",
    }[made.tokenizer]
    size = f"{made.bytes / 1e6:.1f} MB, {made.parameters / 1e6:.1f}M parameters in {made.type}"
    say("\n".join([f"{made.file}: {size}; {tokenizer}", *bullets(made.notes)]))
    if options.json:
        print_json({"model": options.model, **asdict(made), "file": str(made.file)})
    return 0
