"""``paceline generate``: continue a prompt."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import (
    describe,
    inputs_of,
    load_model,
    provenance,
    read_prompt,
    remarks,
    utf8,
    writing_settings,
)
from paceline.cli.output import counted, draw, note, print_json, say, show, wants_color
from paceline.cli.output import writing as written
from paceline.errors import InputError
from paceline.files import check_output, write_whole
from paceline.files.reading import read_file

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.api.pictures import TokenPicture
    from paceline.api.writing import Generation, Writing
    from paceline.grammar import Grammar

ENDS = {
    "stop": "stopped at a --stop string",
    "context": "the model's context is full",
}
"""Why a text ended, if neither at its length nor at an end-of-text token."""
UNSHOWN = ("method", "logprobs", "prediction", "grammar")
"""Settings that a page does not list."""


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "generate",
        run=run,
        help="continue a prompt",
        description=(
            "Continue a prompt. Under the coupled rule, the default, no method changes the text. The last line, "
            "on standard error, counts tokens, rounds (forwards of the model after the prompt, with the tokens of "
            "each) and tokens per second (of these rounds, without the prompt and its first token); it also says why "
            "a text ended, if that was a --stop string, the end of the model's context or the default length, and "
            "names the settings of the model's own generation_config.json, and the seed if none was given."
        ),
    )
    parser.argument("prompt", "PROMPT", "the prompt; - reads standard input", utf8, nargs="?")
    parser.argument("--prompt-file", "FILE", "read the prompt from a UTF-8 file or pipe", Path)
    text = "a UTF-8 file that the text will probably follow, such as one before its edit: drafts come from it, too"
    parser.argument("--prediction", "FILE", text, Path)
    parser.flag("--chat", "the prompt is a user's message: it goes through the model's chat template")
    parser.argument("--system", "TEXT", "the system message, before the prompt; needs --chat", utf8)
    parser.add_model()
    parser.add_ranks()
    parser.add_writing("the model's own, or 128; with --chat no limit")
    text = "the text must be JSON that is valid under this schema; needs 'paceline[grammar]'"
    parser.argument("--json-schema", "FILE", text, Path)
    parser.argument("--logprobs", "K", "log-probabilities, with K alternatives; needs --json", int)
    text = 'write N texts from the prompt; of several, JSON is {"samples": [...]} with an object for each'
    parser.argument("--samples", "N", text, int, default=1)
    parser.add_pictures()
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--quiet", "-q", action="store_true", help="print the text and nothing about it")
    text = (
        "also print the model, method and planner, the seconds of each kind of work, and a line per phase of the "
        "text: the planner's choice, its reason, and the estimated cost of not drafting"
    )
    much.add_argument("--verbose", "-v", action="store_true", help=text)
    parser.argument("--html", "FILE", "write a page that shows where each token came from", Path)
    parser.add_json()
    parser.add_rounds()


def run(options: argparse.Namespace) -> int:
    check_output(options.html, inputs_of(options))
    prompt = read_prompt(options.prompt, options.prompt_file)
    settings = writing_settings(options)
    if options.prediction is not None:
        settings["prediction"] = read_prompt(None, options.prediction)
    _check_json(options)
    if options.json_schema is not None:
        settings["grammar"] = _grammar(options.json_schema)
    asked = _asked(prompt, options)
    started = time.monotonic()
    lm = load_model(options, generation_config=True)
    seconds = time.monotonic() - started
    how, sampling = lm.settings_for(asked, settings)
    made_by = provenance(lm, how, sampling, settings)
    unasked = remarks(made_by, settings)
    settings["seed"] = sampling.seed
    if options.verbose:
        _note(_what_writes(made_by, seconds))
    if not options.chat and not options.quiet:
        _note_template(lm, prompt)
    if options.samples == 1 and not options.json:
        texts = [_stream(lm.write(asked, **settings), prompt, options)]
    else:
        texts = lm.sample(asked, n=options.samples, **settings)
        _print_all(texts, prompt, options)
    if options.html:
        given = {name.replace("_", " "): settings[name] for name in settings if name not in UNSHOWN}
        facts = describe(lm) | {"method": how.spec} | given
        _write_page(options.html, [_picture(text, prompt, facts) for text in texts])
    if options.verbose:
        _note("\n".join([_timings(texts), *(line for text in texts for line in text.explain())]))
    if options.json:
        print_json(_as_json(texts, options) | made_by)
        sys.stdout.flush()
    if not options.quiet:
        _note("; ".join([_last_line(texts, made_by["device"], settings, options.html), *unasked]))
    return 0


def _grammar(schema: Path) -> Grammar:
    """The grammar of a file with a JSON schema."""
    from paceline.grammar import Grammar

    try:
        return Grammar.json_schema(read_file(schema).decode())
    except OSError as error:
        raise InputError(f"cannot read {schema}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{schema} is no UTF-8 text") from None


def _check_json(options: argparse.Namespace) -> None:
    """Refuse what is printed with --json only."""
    for flag, asked in (("--logprobs", options.logprobs is not None), ("--rounds", options.rounds)):
        if asked and not options.json:
            raise InputError(f"{flag} are printed with --json only; add --json")


def _as_json(texts: list[Generation], options: argparse.Namespace) -> dict[str, Any]:
    """One text, or several samples; in detail also the explanation of each."""
    found = [text.as_dict(rounds=options.rounds) for text in texts]
    if options.verbose:
        found = [each | {"explain": text.explain()} for each, text in zip(found, texts, strict=True)]
    return found[0] if len(found) == 1 else {"samples": found}


def _note_template(lm: LanguageModel, prompt: str) -> None:
    """For models that are made for chats: a prompt alone is not what they were trained on. A prompt that holds special
    tokens went through the template already."""
    if lm.vocabulary is None or not lm.vocabulary.has_template or lm.vocabulary.names_special(prompt):
        return
    said = f"{lm.target.name} has a chat template, and this prompt is continued as it stands; --chat sends it through"
    note(said)


def _asked(prompt: str, options: argparse.Namespace) -> str | list[dict[str, str]]:
    """The prompt itself, or the messages of a chat."""
    if not options.chat:
        for flag in ("system", "chat_template_kwargs"):
            if getattr(options, flag) is not None:
                raise InputError(f"--{flag.replace('_', '-')} needs --chat")
        return prompt
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    return [*system, {"role": "user", "content": prompt}]


def _stream(writing: Writing, prompt: str, options: argparse.Namespace) -> Generation:
    """Text, or cells in their colours, as they become certain."""
    if options.show:
        color = wants_color(options)
        painter = draw(writing.pieces(), color, prompt)
        show(painter.legend(_picture(writing.result(), prompt)), color)
        return writing.result()
    with written() as write:
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
            with written() as write:
                write(text.text + "\n")


def _note(text: str) -> None:
    say(text, file=sys.stderr, flush=True)


def _what_writes(made_by: Mapping[str, Any], seconds: float) -> str:
    """The model, and how drafts are made, sized and accepted."""
    draft = f" with {made_by['draft_model']}" if made_by["draft_model"] else ""
    return (
        f"{made_by['model']}, {made_by['dtype']}, weights {made_by['fingerprint']}, on {made_by['device']}, "
        f"{counted(made_by['threads'], 'thread')}; loaded in {seconds:.1f} s\n"
        f"method {made_by['method']}{draft}, planner {made_by['planner']}, rule {made_by['rule']}; temperature "
        f"{made_by['temperature']:g}, seed {made_by['seed']}"
    )


def _timings(texts: list[Generation]) -> str:
    """Seconds by what they were spent on, of all texts together."""
    names = {"prefill": "the prompt", "draft": "drafting", "score": "scoring", "read": "reading logits"}
    spent = {
        said: sum(getattr(text.totals, f"seconds_{name}") for text in texts)
        for name, said in {**names, "judge": "judging"}.items()
    }
    return "seconds: " + ", ".join(f"{said} {seconds:.2f}" for said, seconds in spent.items())


def _last_line(texts: list[Generation], device: str, given: Mapping[str, Any], page: Path | None) -> str:
    """Tokens, rounds and speed of all texts together, where they were written, and what ended those that are shorter
    than was asked for."""
    from paceline.api.pictures.tokens import last_line
    from paceline.engine.counters import Totals

    totals = sum((text.totals for text in texts), Totals())
    longest = max(len(text.tokens) for text in texts)
    said = ENDS | ({} if "max_new_tokens" in given else {"length": f"cut at {longest} tokens, -n N allows more"})
    ends = dict.fromkeys(said[text.finish] for text in texts if text.finish in said)
    return "; ".join([f"{last_line(totals)} on {device}", *ends, *([f"page: {page}"] if page else [])])


def _picture(text: Generation, prompt: str, facts: dict[str, Any] | None = None) -> TokenPicture:
    from paceline.api.pictures import TokenPicture

    return TokenPicture(prompt, tuple(text.pieces), text.totals, facts or {})


def _write_page(path: Path, pictures: list[TokenPicture]) -> None:
    from paceline.api.pictures.page import page, token_section

    write_whole(path, page("Where each token came from", map(token_section, pictures)))
