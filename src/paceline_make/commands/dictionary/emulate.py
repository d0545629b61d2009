"""``paceline dict emulate``: the steps that a known text takes with a dictionary, counted by the engine."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import DEFAULT_MODEL, check_counts, inputs_of, utf8
from paceline.cli.output import draw, print_json, progress, say, show, table, wants_color
from paceline.errors import InputError
from paceline.files import check_output, write_whole
from paceline_make.commands.dictionary.rules import add_rule
from paceline_make.commands.dictionary.tokenizer import tokenizer_of

if TYPE_CHECKING:
    from paceline_lab.bench.run.emulation import ReplayedText
    from paceline_lab.bench.tally import StepTally

BUDGET = 8
OF_FILES = re.compile(r"\b(dictionary|hybrid)\b(?!\s*[:=\w])")
"""Methods that draft from dictionaries, where none is named. Before an equals sign it is an option's name."""
HEAD = ("", "tokens", "steps", "speed-up", "coverage", "accepted/draft", "acceptance", "")


def add(actions: Subparsers) -> None:
    parser: Parser = actions.add_parser(
        "emulate",
        run=run,
        help="count the steps that a text takes with a dictionary, without a model",
        description=(
            "Writes a known text as if a model wrote it, with drafts from a dictionary, and counts steps: the engine "
            "itself runs, and only the model is replaced by the text. Each passage begins with 40 words that are known."
        ),
    )
    parser.several("--dict", "FILE", "dictionaries to draft from", Path, default=[])
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", type=Path, metavar="FILE", help="a text, or a .jsonl with prompt and text")
    text.add_argument("--suite", type=utf8, metavar="replay:FILE", help="the same, written as in 'bench run'")
    parser.argument(
        "--tokenizer --model -m",
        "T",
        "the tokenizer of the text: a bundled model, a folder, a name of transformers or of the data folder "
        f"(default: the one that the first dictionary was built for, where it is one of those, or {DEFAULT_MODEL})",
        utf8,
    )
    parser.add_trust()
    parser.argument("--data", "DIR", "where tokenizers are (default: $PACELINE_DATA, ../shared/data)", Path)
    add_rule(parser, "refuse dictionaries whose entries follow another rule than this: token or paper", None)
    parser.argument("--method", "SPEC", "how to draft from them (default: dictionary)", default="dictionary")
    parser.argument("--budget", "N", f"tokens that a draft may have (default: {BUDGET})", int, default=BUDGET)
    parser.argument("--limit", "N", "emulate N passages, spread over the text", int)
    parser.add_pictures()
    parser.argument("--html", "FILE", "write a page that shows where each token came from", Path)
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    from paceline_lab.bench.run.emulation import ReplayedText, replay, replayed
    from paceline_lab.bench.suites import open_suite
    from paceline_lab.bench.tally import total

    check_counts(options, "budget")
    check_output(options.html, inputs_of(options))
    _check_rule(options)
    suite = options.suite if options.text is None else f"replay:{options.text}"
    if not suite.startswith("replay:"):
        raise InputError(f"only a known text can be emulated: write --suite replay:FILE, not {suite}")
    method = method_of(options.method, options.dict)
    workload = open_suite(suite, limit=options.limit)
    place = _tokenizer(options)
    given = replay(workload, place)
    passages = list[ReplayedText]()
    with progress("emulating") as advance:
        for done, passage in enumerate(replayed(given, method, options.budget)):
            advance(passage.key, done, len(given.texts))
            passages.append(passage)
    whole = total(passage.tally for passage in passages)
    if options.show:
        _draw(passages, wants_color(options))
    lines = [_line(passage.key, passage.tally) for passage in passages] if len(passages) > 1 else []
    lines.append(_line("all" if lines else passages[0].key, whole))
    say(table(HEAD, lines, left=(0, len(HEAD) - 1)))
    if options.html is not None:
        from paceline.api.pictures.page import page

        write_whole(options.html, page("Where each token came from", map(_section, passages)))
    if options.json:
        print_json(
            {"method": method, "model": place, "budget": options.budget, "suite": suite, "all": whole.as_dict()}
            | {"passages": [{"key": passage.key} | passage.tally.as_dict() for passage in passages]}
        )
    return 0


def _check_rule(options: argparse.Namespace) -> None:
    from paceline.dictionary.file import open_dictionary

    if options.entries is not None and not options.dict:
        raise InputError("--entries is for dictionaries that --dict names")
    for path in options.dict if options.entries is not None else ():
        if (rule := open_dictionary(path).header.rule) != options.entries:
            raise InputError(f"{path} was built with --entries {rule}; build one with --entries {options.entries}")


def method_of(method: str, files: Sequence[Path]) -> str:
    """A method's spec, with the dictionaries that were named."""
    if not files:
        return method
    for path in map(str, files):
        if "," in path:
            raise InputError(f"{path} has a comma in its name, which stands between files in a method; rename it")
    named = ",".join(map(str, files))
    quote = "'" if '"' in named else '"'
    if quote in named:
        raise InputError(f"{named} has both kinds of quotes in its name, which no method can be given; rename it")
    found, count = OF_FILES.subn(lambda match: f"{match[0]}:file={quote}{named}{quote}", method)
    if not count:
        raise InputError(f"method {method!r} takes no --dict; write dictionary or hybrid, or name its files itself")
    return found


def _tokenizer(options: argparse.Namespace) -> str:
    """Where the tokenizer is opened from."""
    from paceline_lab.bench.suites.sources import Sources, tokenizers_in

    named: str | None = options.tokenizer
    if named is None and options.dict:
        return tokenizer_of(options.dict[0], Sources(options.data))
    named = named or DEFAULT_MODEL
    if Path(named).is_dir():
        return named
    return str(tokenizers_in(Sources(options.data)).get(named, named))


def _line(name: str, tally: StepTally) -> tuple[str, ...]:
    ratios = (tally.speed_up, tally.coverage, tally.accepted_per_draft, tally.acceptance)
    return name, str(tally.tokens), str(tally.steps), *(f"{value:.3f}" for value in ratios), ""


def _draw(passages: Sequence[ReplayedText], color: bool) -> None:
    """Each passage with its tokens marked. Nothing is said of seconds, for no model took any."""
    from rich.text import Text

    for passage in passages:
        show(Text(passage.key, "bold"), color)
        painter = draw(passage.picture.pieces, color, passage.picture.prompt)
        show(painter.legend(passage.picture), color)
        show(Text(f"{_sentence(passage.tally)}\n"), color)


def _sentence(tally: StepTally) -> str:
    return (
        f"{tally.tokens} tokens in {tally.steps} steps: {tally.speed_up:.2f}x; {tally.coverage:.0%} of steps with a "
        f"draft, {tally.accepted} of {tally.proposed} proposed tokens accepted"
    )


def _section(passage: ReplayedText) -> str:
    from paceline.api.pictures.page import facts, said, token_text

    tally = passage.tally
    known = {
        "tokens": tally.tokens,
        "steps": tally.steps,
        "speed-up": f"{tally.speed_up:.2f}x",
        "coverage": f"{tally.coverage:.0%}",
        "accepted per draft": f"{tally.accepted_per_draft:.2f}",
        "acceptance": f"{tally.acceptance:.0%}",
    }
    return f"<section>\n<h2>{said(passage.key)}</h2>\n{facts(known)}{token_text(passage.picture)}</section>\n"
