"""``paceline bench quality``: the effect of 8-bit integers on a model's predictions."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import check_counts, load_model, read_prompt
from paceline.cli.output import print_json, progress, say, table
from paceline.errors import InputError

CHARACTERS = 20_000


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "quality",
        run=run,
        help="the effect of --quantize on a model's predictions",
        description=(
            "Reads texts with a model in floats and with the same model in integers, of 8 bits unless --quantize says "
            "int4. Prints for each text the loss of both in nats per token, how often both find the same token "
            "likeliest, and the Kullback-Leibler divergence between their predictions."
        ),
    )
    parser.argument(
        "files", "FILE", "text files in UTF-8, best such that the model was not trained on", Path, nargs="+"
    )
    parser.add_model()
    text = f"characters of each file that are read, from its end (default: {CHARACTERS})"
    parser.argument("--characters", "N", text, int, default=CHARACTERS)
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    from paceline_lab.bench import quality

    check_counts(options, "characters")
    texts = {str(path): read_prompt(None, path)[-options.characters :] for path in options.files}
    kind, options.quantize = options.quantize or "int8", None
    options.device = options.device or "cpu"  # where the integers are: their rows are compared
    floats = load_model(options)
    if floats.target.exact:
        raise InputError(f"{options.model} is stored in integers, so there are no floats to compare them with")
    if floats.vocabulary is None:
        raise InputError(f"{options.model} has no tokenizer, so no text can be read with it")
    options.quantize, options.dtype = kind, None
    integers = load_model(options)
    found = {}
    with progress("reading") as advance:
        for done, (name, text) in enumerate(texts.items(), start=1):
            tokens = floats.vocabulary.encode(text)
            if len(tokens) < 2:
                raise InputError(f"{name} has no text to read")
            found[name] = quality.compared(floats.target, integers.target, tokens)
            advance(name, done, len(texts))
    dtypes = floats.target.dtype, integers.target.dtype
    head = ("", "tokens", *dtypes, "change", "same choice", "divergence")
    say(f"{floats.target.name}: nats per token, the end of each file\n")
    say(
        table(
            head,
            [
                (
                    name,
                    one.tokens,
                    *(f"{loss:.4f}" for loss in one.losses),
                    f"{one.change:+.2%}",
                    f"{one.agreed / one.tokens:.1%}",
                    f"{one.divergence / one.tokens:.5f}",
                )
                for name, one in found.items()
            ],
        )
    )
    if options.json:
        texts_found = [
            {
                "file": name,
                "tokens": one.tokens,
                "loss": dict(zip(dtypes, one.losses, strict=True)),
                "change": one.change,
                "same_choice": one.agreed / one.tokens,
                "divergence": one.divergence / one.tokens,
            }
            for name, one in found.items()
        ]
        print_json({"model": floats.target.name, "characters": options.characters, "texts": texts_found})
    return 0
