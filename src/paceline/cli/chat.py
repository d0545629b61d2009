"""``paceline chat``: talk with a model."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import PROMPT_BYTES, decode, load_model, provenance, remarks, utf8, writing_settings
from paceline.cli.output import draw, print_json, say, show, wants_color, writing
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.api.writing import Generation

COMMANDS = {
    "/reset": "start a new conversation, with another seed unless --seed names one",
    "/stats": "time and tokens of the last reply and of the conversation",
    "/help": "this list",
    "/quit": "leave; so does the end of the input",
}
ASKS = "> "


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "chat",
        run=run,
        help="talk with a model",
        description=(
            "Talk with a model, a line at a time, from the terminal or through a pipe. A model with a chat template is "
            "prompted through it; any other is given a transcript of the form 'User: ... Assistant: ...' to continue. "
            "The defaults of sampling are those of the model's generation_config.json. "
            "At a terminal Ctrl-C stops a reply and Ctrl-D ends the chat. "
            f"Commands: {'; '.join(f'{name}: {what}' for name, what in COMMANDS.items())}."
        ),
    )
    parser.argument("--system", "TEXT", "the system message, before the first turn", utf8)
    parser.add_model()
    parser.add_ranks()
    parser.add_writing("no limit")
    parser.add_pictures()
    parser.add_json("print one JSON object per reply, a line each, and no text")
    parser.add_rounds()


def run(options: argparse.Namespace) -> int:
    settings = writing_settings(options)
    if options.rounds and not options.json:
        raise InputError("--rounds are printed with --json only; add --json")
    lm = load_model(options, generation_config=True)
    Chat(lm, settings, options, sys.stdin.isatty()).run(_lines())
    return 0


class Brake:
    """Ctrl-C while a reply is being written: once, and the reply ends with its next token; twice, and it is dropped.

    As a stopping criterion it ends a reply where a round leaves everything in order, which an exception out of the
    middle of a forward would not.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._before: Any = signal.SIG_DFL

    def __call__(self, tokens: Any) -> bool:
        return self.pressed

    def __enter__(self) -> None:
        self.pressed = False
        self._before = signal.signal(signal.SIGINT, self._press)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


class Chat:
    """Lines in, replies out. At a terminal an interruption or a mistake ends a reply; in a pipe, the chat."""

    def __init__(
        self, lm: LanguageModel, settings: dict[str, Any], options: argparse.Namespace, at_terminal: bool
    ) -> None:
        self.lm = lm
        self.brake = Brake()
        self.options = options
        self.at_terminal = at_terminal
        self._settings = settings
        self._begin("; /help lists the commands, Ctrl-D ends the chat" if at_terminal else "")

    def _begin(self, hint: str = "") -> None:
        """Begin a conversation, and say with which seed if it has a new one."""
        from paceline.api.chat import Conversation

        how, sampling = self.lm.settings_for([{"role": "user", "content": ""}], self._settings)
        settings = {**self._settings, "seed": sampling.seed}
        self.conversation = Conversation(self.lm, system=self.options.system, criteria=(self.brake,), **settings)
        self._made_by = provenance(self.lm, how, sampling, self._settings)
        said = remarks(self._made_by, self._settings)
        if said or hint:
            _note(f"{', '.join([self.lm.target.name, *said])}{hint}")

    def run(self, lines: Iterator[str]) -> None:
        for line in lines:
            said = line.strip()
            if said == "/quit":
                return
            if said.startswith("/"):
                self._obey(said)
            elif said:
                self._answer(said)

    def _obey(self, command: str) -> None:
        match command:
            case "/reset":
                self._begin()
            case "/stats":
                _note("\n".join(self._stats()))
            case "/help":
                _note("\n".join(f"{name:8} {what}" for name, what in COMMANDS.items()))
            case _:
                _note(f"there is no command {command.split()[0]}; /help lists them")

    def _answer(self, said: str) -> None:
        try:
            with self.brake if self.at_terminal else nullcontext():
                # bytes that are not UTF-8 may be in it as lone surrogates
                self._write(decode(said.encode(errors="surrogateescape"), "what was typed"))
        except KeyboardInterrupt:
            if not self.at_terminal:
                raise
            self.lm.forget()  # an interrupted forward may have left half a row
            _note("\nthe reply was dropped")
            return
        except ValueError as error:
            if not self.at_terminal:
                raise
            _note(str(error))
            return
        written = self.conversation.replies[-1]
        if self.options.json:
            print_json({"user": said, **written.as_dict(rounds=self.options.rounds), **self._made_by})
            sys.stdout.flush()
        if remark := self._remark(written):
            _note(remark)

    def _write(self, said: str) -> None:
        pieces = self.conversation.stream(said)
        if self.options.json:
            for _ in pieces:
                pass
            return
        if self.options.show:
            from paceline.api.pictures import TokenPicture

            color = wants_color(self.options)
            painter = draw(pieces, color)
            written = self.conversation.replies[-1]
            show(painter.caption(TokenPicture("", tuple(written.pieces), written.totals)), color, end="\n\n")
            return
        begun = False
        with writing() as write:
            for piece in pieces:
                text = piece.text if begun else piece.text.lstrip()
                begun = begun or bool(text)
                write(text)
        say(flush=True)

    def _remark(self, written: Generation) -> str:
        """A note on how a reply ended."""
        match written.finish:
            case "criterion":
                return "the reply was stopped"
            case "length":
                return f"the reply was cut after {len(written.tokens)} tokens; --max-new-tokens allows more"
            case "context":
                return f"the model's context of {self.lm.target.context_length} tokens is full; /reset begins a new one"
        return ""

    def _stats(self) -> Iterator[str]:
        from paceline.api.pictures import summary

        replies = self.conversation.replies
        if not replies:
            yield "no reply yet"
            return
        last = replies[-1]
        yield f"last reply: {summary(last.totals)}"
        yield f"  {last.prompt_tokens} prompt tokens, {last.cached_tokens} of them from the cache"
        tokens = sum(reply.totals.tokens for reply in replies)
        seconds = sum(reply.totals.seconds + reply.totals.seconds_prefill for reply in replies)
        said = "1 reply" if len(replies) == 1 else f"{len(replies)} replies"
        yield f"conversation: {said}, {tokens} tokens in {seconds:.1f} s on {self.lm.target.device}, reading included"


def _lines() -> Iterator[str]:
    """The lines that the user types, until the end of the input. Ctrl-C at the prompt clears the line."""
    if not sys.stdin.isatty():
        while raw := sys.stdin.buffer.readline(PROMPT_BYTES + 1):
            if len(raw) > PROMPT_BYTES:
                raise InputError(f"a line of standard input has more than {PROMPT_BYTES} bytes; give a shorter one")
            yield decode(raw, "standard input")
        return
    with suppress(ImportError):
        import readline  # noqa: F401  (input() edits lines and remembers them once this is imported)

    while True:
        try:
            yield _ask()
        except (KeyboardInterrupt, EOFError) as end:
            say(file=sys.stdout if sys.stdout.isatty() else sys.stderr)  # the terminal that lines are typed at
            if isinstance(end, EOFError):
                return


def _ask() -> str:
    """A line from the terminal. Where replies go elsewhere, input() would write its prompt among them."""
    if sys.stdout.isatty():
        return input(ASKS)
    say(ASKS, end="", file=sys.stderr, flush=True)
    return input()


def _note(text: str) -> None:
    """A message about the chat, apart from the chat."""
    say(text, file=sys.stderr, flush=True)
