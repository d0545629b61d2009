"""``paceline generate``: write on from a prompt."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.common import (
    Subparsers,
    add_explain,
    add_json,
    add_model,
    add_pictures,
    add_writing,
    asked,
    describe,
    inputs_of,
    load_model,
    print_json,
    read_prompt,
    show,
    utf8,
    wants_color,
    writing_settings,
)
from paceline.cli.streams import say, write
from paceline.errors import InputError
from paceline.files import check_output, write_whole

if TYPE_CHECKING:
    from paceline.api.pictures import TokenPicture
    from paceline.api.writing import Generation, Writing


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "generate",
        help="write on from a prompt",
        description="Write on from a prompt. Under the coupled rule, the default, no method changes the text.",
        allow_abbrev=False,
    )
    parser.add_argument("prompt", type=utf8, nargs="?", metavar="PROMPT", help="the prompt; - reads standard input")
    parser.add_argument("--prompt-file", type=Path, metavar="FILE", help="read the prompt from a UTF-8 file or pipe")
    add_model(parser)
    add_writing(parser)
    parser.add_argument(
        "--logprobs", type=int, metavar="K", help="log-probabilities, with K alternatives; needs --json"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=1,
        metavar="N",
        help='write N texts from the prompt; of several, JSON is {"samples": [...]} with an object for each',
    )
    add_pictures(parser)
    add_explain(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that shows where each token came from")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paceline.api.settings import split_settings

    check_output(options.html, inputs_of(options))
    prompt = read_prompt(options.prompt, options.prompt_file)
    settings = writing_settings(options)
    if options.logprobs is not None:
        settings["logprobs"] = options.logprobs
    how, sampling = split_settings(settings)
    how.planner_for(how.drafter)  # a misspelt method or planner is told before a model is loaded
    if options.logprobs is not None and not options.json:
        raise InputError("--logprobs are told in JSON only; add --json")
    lm = load_model(options)
    if options.samples == 1 and not options.json:
        texts = [_stream(lm.write(prompt, **settings), prompt, options)]
    else:
        texts = lm.sample(prompt, n=options.samples, **settings)
        _print_all(texts, prompt, options)
    if options.html:
        facts = describe(lm) | {"method": how.spec} | _given(settings)
        _write_page(options.html, [_picture(text, prompt, facts) for text in texts])
    if options.explain:
        for text in texts:
            say("\n" + "\n".join(text.explain()))
    if options.json:
        explained = [text.explain() for text in texts] if options.explain else []
        told = {"explain": explained[0] if len(explained) == 1 else explained} if explained else {}
        print_json(_record(texts) | told | describe(lm) | asked(how, sampling))
    return 0


def _stream(writing: Writing, prompt: str, options: argparse.Namespace) -> Generation:
    """Text, or cells in their colours, as they become certain."""
    if options.show:
        return _draw(writing, prompt, wants_color(options))
    for piece in writing.pieces():
        write(piece.text)
    say()
    return writing.result()


def _draw(writing: Writing, prompt: str, color: bool) -> Generation:
    from paceline.api.pictures import cells
    from paceline.api.pictures.terminal import Painter

    painter = Painter(color)
    show(painter.prompt(prompt), color, end="")
    for cell in cells(writing.pieces()):
        show(painter.cell(cell), color, end="")
    show(painter.end(), color, end="\n\n")
    text = writing.result()
    show(painter.caption(_picture(text, prompt, {})), color)
    return text


def _print_all(texts: list[Generation], prompt: str, options: argparse.Namespace) -> None:
    from paceline.api.pictures.terminal import paint

    for number, text in enumerate(texts):
        if len(texts) > 1 and (options.show or not options.json):
            say(f"--- sample {number} ---")
        if options.show:
            color = wants_color(options)
            show(paint(_picture(text, prompt, {}), color), color)
        elif not options.json:
            write(text.text + "\n")


def _picture(text: Generation, prompt: str, facts: dict[str, Any], title: str = "") -> TokenPicture:
    from paceline.api.pictures import TokenPicture

    return TokenPicture(prompt, tuple(text.pieces), text.totals, facts, title)


def _write_page(path: Path, pictures: list[TokenPicture]) -> None:
    from paceline.api.pictures.page import page, token_section

    write_whole(path, page("Where each token came from", map(token_section, pictures)))


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, as a page shows them."""
    return {name.replace("_", " "): value for name, value in settings.items() if name not in ("method", "logprobs")}


def _record(texts: list[Generation]) -> dict[str, Any]:
    told = [text.as_dict() for text in texts]
    return told[0] if len(told) == 1 else {"samples": told}
