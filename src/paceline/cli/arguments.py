"""The parser of a command: mistakes in one sentence, and the options that several commands share, declared once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from paceline.cli.hints import about_command, about_flag, as_argument, flags_of, unknown_flag
from paceline.cli.options import BUNDLED_TEMPERATURE, DEFAULT_MODEL, DRAFT_MODEL, FLAGS, json_object, utf8
from paceline.files.visible import one_line
from paceline.law.table import SettingRow

Subparsers = Any
"""The type that argparse returns for subcommands; its own type is private."""


def _flags_by_command() -> dict[str, list[str]]:
    from paceline.cli import parser
    from paceline.cli.reference import commands

    return {name: flags_of(command) for name, command in commands("paceline", parser()) if " " in name}


NUMBERS: dict[Any, str] = {int: "whole number", float: "number"}


def _named(action: argparse.Action) -> str:
    """An option by its long flag, an argument by its place holder."""
    return next((flag for flag in action.option_strings if flag.startswith("--")), str(action.metavar or action.dest))


class Several(argparse.Action):
    """Values that add up: ``--method a b`` is ``--method a --method b``. The first one replaces the default."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if before is self.default else before), *values])


class Parser(argparse.ArgumentParser):
    """The parser of one command. An error is one sentence that begins with the command, with exit code 2 and without
    the usage text before it. A command that only has others below it prints its help."""

    def __init__(self, *, run: Callable[[argparse.Namespace], int] | None = None, **given: Any) -> None:
        super().__init__(allow_abbrev=False, **given)
        self.set_defaults(run=run or self._help, called=self.prog)

    def error(self, message: str) -> NoReturn:
        message = message.replace("the following arguments are required:", "this needs")
        self.exit(2, f"{self.prog}: error: {one_line(message)}\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Nothing unknown is passed on: only this command knows what could have been meant."""
        given, flags = list(sys.argv[1:] if args is None else args), flags_of(self)
        if self._subparsers is None and not {"-h", "--help"} & {*given}:
            self._refuse(unknown_flag(given, flags), given)
        found, extra = super().parse_known_args(given, namespace)
        self._refuse(next(iter(extra), None), given)
        return found, extra

    def _refuse(self, one: str | None, given: Sequence[str]) -> None:
        """Refuse an argument that nothing here takes."""
        if one is None:
            return
        if one.startswith("-"):
            said = as_argument(one, given, self)
            self.error(said or about_flag(one, flags_of(self), _flags_by_command()))
        quotes = "" if self.prog.partition(" ")[2] != "generate" else "; put a prompt of several words in quotes"
        self.error(f"{one!r} is one argument too many{quotes}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            self.error(about_command(value, list(action.choices)))
        self.error(f"{_named(action)} is one of {', '.join(map(str, action.choices))}, not {value!r}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if (kind := NUMBERS.get(action.type)) is None:
                raise
            self.error(f"{_named(action)} takes a {kind}, not {arg_string!r}")

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError:
            self.error(f"{_named(action)} needs a value: {_named(action)} {action.metavar or action.dest.upper()}")

    def _help(self, options: argparse.Namespace) -> int:
        self.print_help()
        return 2

    def argument(self, names: str, metavar: str, text: str, kind: Callable[[str], Any] = str, **more: Any) -> None:
        """A positional argument, or an option with a value. ``names`` has a blank between two spellings of one."""
        self.add_argument(*names.split(), metavar=metavar, help=text, type=kind, **more)

    def several(self, names: str, metavar: str, text: str, kind: Callable[[str], Any] = str, **more: Any) -> None:
        """An option with one or several values, which may also be repeated."""
        self.argument(names, metavar, text, kind, **{"action": Several, "nargs": "+"} | more)

    def flag(self, name: str, text: str) -> None:
        """An option without a value."""
        self.add_argument(name, action="store_true", help=text)

    # a model

    def add_model(self) -> None:
        """Which model, in which type, on which device."""
        text = f"a bundled model, or folder or name of a transformers causal LM (default: {DEFAULT_MODEL})"
        self.argument("--model -m", "MODEL", text, default=DEFAULT_MODEL)
        self.add_place()
        self.add_quantize()
        self.flag("--no-probe", "time no forwards of 1 to 32 rows before the first text, for the planner")
        self.add_trust()

    def add_place(self, dtype: str | None = None) -> None:
        """In which type, and on which device."""
        default = dtype or "the model's own; float32 for bundled ones"
        text = f"float64, float32, bfloat16 or float16 (default: {default})"
        self.argument("--dtype", "TYPE", text, default=dtype)
        text = "where to run it: cpu, cuda, mps, or auto for a GPU that works, else the CPU"
        self.argument("--device", "DEVICE", f"{text} (default: $PACELINE_DEVICE, or auto)")

    def add_quantize(self) -> None:
        """Whether in integers."""
        text = "int8 or int4: compute in such integers on the CPU, with logits equal bit by bit under every method"
        self.argument("--quantize", "KIND", text)

    def add_ranks(self) -> None:
        """Over how many processes."""
        text = "cut the model over N processes, which torchrun starts: torchrun --nproc-per-node N -m paceline ..."
        self.argument("--tensor-parallel", "N", text, int)

    def add_trust(self) -> None:
        """For every command that opens a model or a tokenizer: `main` gives the consent to all that it opens."""
        text = "run the Python code that a model or tokenizer brings along, which can do anything on this machine"
        self.flag("--trust-remote-code", text)

    def add_draft_model(self, *, bundled: bool = True) -> None:
        """``bundled``: the bundled model brings its draft model along, and `draft_model` reads the option."""
        default = f", or none (default: {DRAFT_MODEL} for {DEFAULT_MODEL} with or without ballast)"
        text = f"a small model that drafts{default if bundled else ', named as in --model'}"
        self.argument("--draft-model -md", "MODEL", text)

    # texts

    def add_writing(self, length: str) -> None:
        """How to write: drafting, sampling, and where to end. `writing_settings` reads the options. ``length`` says how
        long a text is by default."""
        self.argument("--method", "SPEC", "how to draft; 'paceline methods' lists them (default: auto)")
        self.add_draft_model(bundled=False)
        text = "where it drafts with --method mirror: cores as 2-3, or a device as cuda:1 (default: a core)"
        self.argument("--draft-device", "PLACE", text)
        text = "draft tokens per round: --planner fixed:K (default: as many as are worth their time)"
        self.argument("--num-draft-tokens --num-speculative-tokens", "K", text, int, dest="num_draft_tokens")
        self.argument(
            "--planner",
            "P",
            "how large drafts are: fixed:K, fixed for the method's own size, calibrated for the size that 'paceline "
            "calibrate' found, or adaptive for the part that is worth its time in each round, perhaps none (default: "
            "adaptive; fixed for NAME:paper)",
        )
        self.argument("--rule", "RULE", "how drafts are accepted: coupled or rejection (default: coupled)")
        text = f"stop after N tokens; -1 for no limit but the context (default: {length})"
        self.argument("--max-new-tokens -n", "N", text, int)
        self.add_sampling()
        self.argument("--stop", "STR", "stop before this string; may be repeated", utf8, action="append")
        self.add_ignore_eos()
        text = "variables for the chat template, such as '{\"enable_thinking\": false}'"
        self.argument("--chat-template-kwargs", "JSON", text, json_object)

    def add_sampling(self, rows: Sequence[SettingRow] = FLAGS) -> None:
        """The flags of settings that have one."""
        for row in rows:
            assert row.help is not None and row.kind is not None, "it has a flag"
            self.argument(f"--{row.name.replace('_', '-')}", row.name.split("_")[-1][0].upper(), row.help, row.kind)

    def add_ignore_eos(self) -> None:
        self.flag("--ignore-eos", "continue past the end-of-text token")

    def add_prompts(self) -> None:
        """Prompts instead of the built-in ones; `prompts_of` reads them."""
        text = "continue this, not the built-in prompts; may repeat"
        self.argument("--prompt", "TEXT", text, utf8, action="append")

    def add_length(self, default: int | None, words: object = None) -> None:
        """How many tokens a text has; ``words`` say the default."""
        text = f"tokens per text (default: {words or default})"
        self.argument("--max-new-tokens -n", "N", text, int, default=default)

    def add_draft_length(self, default: int | None, words: object = None, of: str = "") -> None:
        """How many tokens a draft has, of the methods ``of`` some kind."""
        text = f"draft tokens per round{of} (default: {words or default})"
        self.argument("--num-draft-tokens", "K", text, int, default=default)

    def add_seed(self) -> None:
        self.argument("--seed", "S", "same seed, same texts (default: 0)", int, default=0)

    def add_temperature(self) -> None:
        """The temperature that `temperature_of` reads."""
        bundled = f"{BUNDLED_TEMPERATURE:g} on the bundled models, which loop when greedy"
        self.argument("--temperature", "T", f"0 is greedy (default: 0; {bundled})", float)

    def add_threads(self) -> None:
        self.argument("--threads", "N", "threads of torch, or of llama.cpp (default: as they choose)", int)

    # printing

    def add_pictures(self) -> None:
        """Whether to show where tokens came from."""
        self.add_argument("--show", choices=("tokens",), help="tokens: mark each token by its source")
        self.add_color()

    def add_color(self) -> None:
        text = "colours in the terminal; auto also heeds NO_COLOR (default: auto)"
        self.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=text)

    def add_json(self, text: str = "print one JSON object as the last line of stdout") -> None:
        self.flag("--json", text)

    def add_rounds(self) -> None:
        """More of the JSON of a text."""
        self.flag("--rounds", "in the JSON also a record of every round, and the source of every token")
