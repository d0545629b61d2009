"""``paceline generate``: write on from a prompt."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import describe, inputs_of, load_model, provenance, read_prompt, utf8, writing_settings
from paceline.cli.output import draw, print_json, say, show, wants_color, write
from paceline.errors import InputError
from paceline.files import check_output, write_whole

if TYPE_CHECKING:
    from paceline.api.pictures import TokenPicture
    from paceline.api.writing import Generation, Writing


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "generate",
        run=run,
        help="write on from a prompt",
        description="Write on from a prompt. Under the coupled rule, the default, no method changes the text.",
    )
    parser.argument("prompt", "PROMPT", "the prompt; - reads standard input", utf8, nargs="?")
    parser.argument("--prompt-file", "FILE", "read the prompt from a UTF-8 file or pipe", Path)
    parser.flag("--chat", "the prompt is what a user says: it goes through the model's chat template")
    parser.argument("--system", "TEXT", "what the model is told before the user speaks; needs --chat", utf8)
    parser.add_model()
    parser.add_writing()
    parser.argument("--logprobs", "K", "log-probabilities, with K alternatives; needs --json", int)
    text = 'write N texts from the prompt; of several, JSON is {"samples": [...]} with an object for each'
    parser.argument("--samples", "N", text, int, default=1)
    parser.add_pictures()
    text = "say what the planner chose and why, a line per phase of the text, and what not drafting would have cost"
    parser.flag("--explain", text)
    parser.argument("--html", "FILE", "write a page that shows where each token came from", Path)
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    check_output(options.html, inputs_of(options))
    prompt = read_prompt(options.prompt, options.prompt_file)
    settings, how, sampling = writing_settings(options)
    if options.logprobs is not None and not options.json:
        raise InputError("--logprobs are told in JSON only; add --json")
    asked = _asked(prompt, options)
    lm = load_model(options)
    if options.samples == 1 and not options.json:
        texts = [_stream(lm.write(asked, **settings), prompt, options)]
    else:
        texts = lm.sample(asked, n=options.samples, **settings)
        _print_all(texts, prompt, options)
    if options.html:
        given = {name.replace("_", " "): settings[name] for name in settings if name not in ("method", "logprobs")}
        facts = describe(lm) | {"method": how.spec} | given
        _write_page(options.html, [_picture(text, prompt, facts) for text in texts])
    if options.explain:
        for text in texts:
            say("\n" + "\n".join(text.explain()))
    if options.json:
        explained = [text.explain() for text in texts] if options.explain else []
        explanation = {"explain": explained[0] if len(explained) == 1 else explained} if explained else {}
        found = [text.as_dict() for text in texts]
        print_json((found[0] if len(found) == 1 else {"samples": found}) | explanation | provenance(lm, how, sampling))
    return 0


def _asked(prompt: str, options: argparse.Namespace) -> str | list[dict[str, str]]:
    """The prompt itself, or the messages of a chat."""
    if not options.chat:
        if options.system is not None:
            raise InputError("--system is told in a chat; add --chat")
        return prompt
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    return [*system, {"role": "user", "content": prompt}]


def _stream(writing: Writing, prompt: str, options: argparse.Namespace) -> Generation:
    """Text, or cells in their colours, as they become certain."""
    if options.show:
        color = wants_color(options)
        painter = draw(writing.pieces(), color, prompt)
        show(painter.caption(_picture(writing.result(), prompt)), color)
        return writing.result()
    for piece in writing.pieces():
        write(piece.text)
    say()
    return writing.result()


def _print_all(texts: list[Generation], prompt: str, options: argparse.Namespace) -> None:
    from paceline.api.pictures.terminal import paint

    for number, text in enumerate(texts):
        if len(texts) > 1 and (options.show or not options.json):
            say(f"--- sample {number} ---")
        if options.show:
            color = wants_color(options)
            show(paint(_picture(text, prompt), color), color)
        elif not options.json:
            write(text.text + "\n")


def _picture(text: Generation, prompt: str, facts: dict[str, Any] | None = None) -> TokenPicture:
    from paceline.api.pictures import TokenPicture

    return TokenPicture(prompt, tuple(text.pieces), text.totals, facts or {})


def _write_page(path: Path, pictures: list[TokenPicture]) -> None:
    from paceline.api.pictures.page import page, token_section

    write_whole(path, page("Where each token came from", map(token_section, pictures)))
