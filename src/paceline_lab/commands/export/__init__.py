"""``paceline export``: what other engines call a method, and models as files of other libraries."""

from __future__ import annotations

from paceline.cli.arguments import Parser, Subparsers
from paceline_lab.commands.export import gguf, methods, mlx
from paceline_lab.commands.export.methods import ENGINES

__all__ = ["ENGINES", "add"]


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "export",
        help="a method as a command of vLLM, as flags of llama.cpp, or as Python of transformers; a model as a GGUF "
        "file, or as a folder of mlx-lm",
        description=(
            "Exports a method: the command, the flags or the Python code with which another engine drafts like it. Or "
            "exports a model: as a GGUF file for llama.cpp, or as a folder for mlx-lm."
        ),
    )
    exports = parser.add_subparsers(dest="engine", metavar="ENGINE", help="what it is exported for")
    methods.add(exports)
    for command in (gguf, mlx):
        command.add(exports)
