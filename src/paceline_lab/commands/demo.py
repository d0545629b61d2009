"""``paceline demo``: the bundled models, with drafts and without."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.failures import sentence
from paceline.cli.options import DEFAULT_MODEL, describe, draft_model, inputs_of, load_model, prompts_of
from paceline.cli.output import counted, print_json, progress, say, show, table, wants_color
from paceline.files import check_output, write_whole

if TYPE_CHECKING:
    from paceline_lab.bench.texts import Parting
    from paceline_lab.demo import Shown

METHODS = ("plain", "assistant", "auto")
BALLASTED = "+ballast"
BALLASTS = ("250M", "125M")
"""Sizes of the slow twin, the usual one first; a slow or busy machine gets a smaller one."""
FORWARDS, GAUGED = 160, 40.0
"""Forwards, and seconds: a twin is small enough if loading it and this many forwards take at most these seconds."""
DTYPE = "float32"
ALTOGETHER, SECONDS, SECONDS_WITH_BALLAST = 52.0, 8.0, 36.0
"""Time for all, for the model, and for its slow twin: no further pass is begun that would end later."""
NARROW, WIDE = 60, 110
GAIN = 1.1
"""Tokens per round, as a multiple of plain decoding's, from which drafts save rounds."""

WHAT_BALLAST_IS = (
    "Ballast: parameters that are computed with and change nothing. The words stay the small model's, "
    "the time is that of a model of the size after the colon."
)
WHAT_SMALL_MODELS_GAIN = "drafts save rounds but no time, for its rounds are cheap"
DRAFTS_FAIL = "drafts save hardly any rounds, so they can save no time"
NOT_SAME = "Not every text is the same. 'paceline check --model {model} --dtype {dtype}' tells arithmetic from bugs."
HEAD = ("method", "tokens/s", "speed-up", "tokens/round", "mean accepted", "text")


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "demo",
        run=run,
        help="see the bundled models write faster and write the same",
        description=(
            "Writes the same prompts plainly and with drafts, on a small bundled model with ballast, which makes it as "
            "slow as a large one, and then on the small model itself. Shows speeds, where tokens came from, and "
            "whether the texts are the same. Works offline and takes about a minute; on a slow or busy machine texts "
            "are fewer and shorter, for all methods alike. Exit code 1 means that texts are not the "
            "same, 2 a mistake in the command."
        ),
    )
    parser.argument("--model -m", "MODEL", f"the model that writes (default: {DEFAULT_MODEL})", default=DEFAULT_MODEL)
    parser.add_draft_model()
    parser.add_trust()
    text = f"methods to show; plain always comes first (default: {' '.join(METHODS)})"
    parser.several("--method", "SPEC", text, dest="methods")
    parser.add_prompts()
    parser.add_length(48)
    parser.add_draft_length(None, "as many as are worth their time", of=" of methods that have a size")
    parser.argument("--temperature", "T", "0 is greedy (default: 0.8)", float, default=0.8)
    parser.add_seed()
    weight = parser.add_mutually_exclusive_group()
    text = f"size of the slow twin of a bundled model, e.g. 250M (default: {BALLASTS[0]}, less on a slow machine)"
    weight.add_argument("--ballast", metavar="SIZE", help=text)
    weight.add_argument("--no-ballast", action="store_true", help="leave the slow twin out")
    parser.argument("--html", "FILE", "also write a page", Path)
    parser.add_color()
    parser.add_json()
    parser.set_defaults(dtype=DTYPE, quantize=None, device="cpu")


def run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    check_output(options.html, inputs_of(options))
    prompts_of(options)
    models, methods = _models(options), _methods(options)
    sampled = f"at temperature {options.temperature:g} with seed {options.seed}"
    say(f"A cheap source drafts, the model checks: {sampled}, every method must write the same text.\n", flush=True)
    parts, left_out = list[ModelDemo](), dict[str, str]()
    for model in models:
        slow = parts[0] if parts else None
        try:
            parts.append(_shown(model, methods, options, slow, ALTOGETHER - (time.monotonic() - started)))
        except Exception as error:  # a small machine cannot run the slow twin, and is shown the model itself
            if model == models[-1] or (said := sentence(error)) is None:
                raise
            left_out[model] = said
            say(f"{model} is left out: {said}")
            continue
        _print(parts[-1], wants_color(options))
    seconds = time.monotonic() - started
    different = [part.facts for part in parts if not part.same]
    if different:
        say(NOT_SAME.format(**different[0]))
    say(f'{seconds:.0f} s altogether. Now write something yourself: paceline generate "Once" --show tokens')
    if options.html:
        from paceline.api.pictures.page import page

        title = "the same text, faster" if parts[0].found.fastest else "the same text"
        write_whole(options.html, page(f"Paceline: {title}", _sections(parts)))
    if options.json:
        settings = {
            name: getattr(options, name) for name in ("temperature", "seed", "max_new_tokens", "num_draft_tokens")
        }
        found = {"models": [part.as_dict() for part in parts], "left_out": left_out, "seconds": seconds}
        print_json({**settings, "prompts": prompts_of(options), **found})
    if different:
        return 1
    return 2 if left_out and options.ballast else 0  # a twin that was asked for by its size was not shown


@dataclass(frozen=True)
class ModelDemo:
    """The result of one model."""

    facts: dict[str, Any]
    names: list[str]
    """Of the prompts: their languages, or their numbers."""
    found: Shown
    ballast: str = ""
    """The name of a slow twin with its size and shape; otherwise empty."""
    slow: ModelDemo | None = None
    """The part of its slow twin, which was shown before."""

    @property
    def claim(self) -> Parting | None:
        """Where a model's texts part from its slow twin's; None where they do not, as they must not."""
        found = self.found
        return None if self.slow is None else found.parting(found.base, self.slow.found)

    @property
    def same(self) -> bool:
        """Whether every method wrote the text of plain decoding, and a model that of its slow twin."""
        return self.claim is None and not any(self.found.parting(method) for method in self.found.methods)

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.facts,
            "ballast": self.ballast or None,
            "tokens": self.found.tokens,
            "fastest": self.found.fastest,
            "parts_from_its_twin_at": None if self.claim is None else self.claim._asdict(),
            "texts": [text.text for text in self.found.passes(self.found.base)[0]],
            "repeated_8grams": self.found.repetition,
            "prompts_left_out": self.found.left_out,
            "methods": self.found.rows(),
        }


def _models(options: argparse.Namespace) -> list[str]:
    """The slow twin of the model, if it can have one, and the model."""
    if options.ballast is None and (options.no_ballast or options.model != DEFAULT_MODEL):
        return [options.model]
    from paceline.targets.pocket.shape import read_ballast

    twin = f"{options.model}{BALLASTED}:{options.ballast or _ballast()}"
    read_ballast(twin)  # refuses a wrong size before anything is measured
    return [twin, options.model]


def _ballast() -> str:
    """The size of a twin that this machine, as busy as it is now, can write with in time."""
    from paceline.targets.pocket.shape import read_ballast
    from paceline_lab.demo import seconds_per_gigabyte

    each = seconds_per_gigabyte() * FORWARDS
    sizes = {size: read_ballast(f"{DEFAULT_MODEL}{BALLASTED}:{size}").size for size in BALLASTS}
    return next((size for size in BALLASTS if 4 * sizes[size] / 1e9 * each <= GAUGED), BALLASTS[-1])


def _methods(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The settings of every method. Those that draft with a model get it."""
    from paceline.api.settings import split_settings
    from paceline.drafters import make_drafter

    drafts = draft_model(options)
    asked = options.methods or [method for method in METHODS if drafts or method != "assistant"]
    common: dict[str, Any] = {name: getattr(options, name) for name in ("max_new_tokens", "temperature", "seed")}
    split_settings(common)
    drafters = {method: make_drafter(method, drafts, must_use=False) for method in dict.fromkeys(("plain", *asked))}
    size = None if options.num_draft_tokens is None else f"fixed:{options.num_draft_tokens}"
    return {
        method: common | {"method": drafter, "planner": size if drafter.sized else None}
        for method, drafter in drafters.items()
    }


def _shown(
    model: str, methods: dict[str, dict[str, Any]], options: argparse.Namespace, slow: ModelDemo | None, left: float
) -> ModelDemo:
    """``left`` are the seconds until all should be done."""
    from paceline.targets.pocket.open import describe as shape
    from paceline_lab.demo import LEAST, shown

    options.model, prompts, started = model, prompts_of(options), time.monotonic()
    twin = BALLASTED in model
    with progress(f"loading {model}") as advance:
        lm = load_model(options)
        left -= time.monotonic() - started
        found = shown(
            lm,
            methods,
            list(prompts.values()),
            tokens := options.max_new_tokens if slow is None else slow.found.tokens,
            least=LEAST if slow is None else tokens,
            seconds=min(SECONDS_WITH_BALLAST, left - SECONDS) if twin else min(SECONDS, left),
            progress=lambda doing, done, total: advance(f"{model}: {doing}", done, total),
        )
    return ModelDemo(describe(lm), list(prompts)[: len(found.prompts)], found, shape(model) if twin else "", slow)


def _print(part: ModelDemo, color: bool) -> None:
    """All of the part that comes first; of the model behind its slow twin a sentence."""
    from rich.text import Text

    from paceline.api.pictures.terminal import paint

    width = max(NARROW, min(shutil.get_terminal_size((WIDE, 24)).columns, WIDE)) if sys.stdout.isatty() else WIDE
    if part.slow is not None:
        show(Text(_beside(part)), color, width=width)
        say()
        return
    show(Text("  ".join(_facts(part)), "bold"), color, width=width)
    if part.ballast:
        show(Text(WHAT_BALLAST_IS), color, width=width)
    say()
    say(table(HEAD, _rows(part.found), left=(0, 5)))
    show(Text("; ".join(_notes(part)), "dim"), color, width=width)
    say()
    show(Text(_headline(part), "bold"), color, width=width)
    say()
    show(paint(part.found.picture(0, part.names[0]), color), color, width=width)
    say()


def _headline(part: ModelDemo) -> str:
    """The gain in words. A method is faster if it won every comparison, and there were several."""
    from paceline_lab.demo import COMPARISONS

    found, count = part.found, len(part.found.texts(part.found.base))
    compared = f"each of {count} comparisons" if count > 1 else "the one comparison"
    if found.fastest is None:
        few = (
            ""
            if count >= COMPARISONS
            else f"There was time for {counted(count, 'comparison')}, which says little of speed."
        )
        return few or f"No method was faster than plain decoding in {compared}."
    row = next(row for row in found.rows() if row["method"] == found.fastest)
    low, high = row["speed_up_of_texts"]
    same = "the same text" if part.same else "not the same text"
    return (
        f"{found.fastest} writes {row['speed_up']:.2f} times as fast as plain decoding, and {same}: from {low:.2f} to "
        f"{high:.2f} times in {compared}."
    )


def _beside(part: ModelDemo) -> str:
    """The small model in a sentence, and whether its slow twin wrote its texts."""
    found, model = part.found, part.facts["model"]
    gains = ", ".join(f"{row['method']} {row['speed_up']:.2f}x" for row in found.rows()[1:])
    saves = found.per_round(found.best) > GAIN
    moral = WHAT_SMALL_MODELS_GAIN if saves else DRAFTS_FAIL
    if found.fastest is not None:
        moral = f"{found.fastest} is faster here, too"
    elif any(row["speed_up"] > 1 for row in found.rows()[1:]):
        moral = "no method was faster in every comparison, for its rounds are cheap"
    same = f"The texts above are those of {model}, token for token."
    if part.claim is not None:
        same = f"The texts above are NOT those of {model}, which ballast must leave alone: {part.claim}."
    return f"{model} itself, without ballast: {gains or 'plain decoding alone'}; {moral}. {same}"


def _facts(part: ModelDemo) -> Iterator[str]:
    facts = part.facts
    yield from (part.ballast or facts["model"], facts["dtype"], f"weights {facts['fingerprint']}")
    yield f"{facts['device']}, {counted(facts['threads'], 'thread')}"


def _rows(found: Shown) -> Iterator[tuple[str, ...]]:
    for row in found.rows():
        place = found.parting(row["method"])
        if row["method"] == found.base:
            text = "(plain decoding)" if place is None else f"not reproducible: {place}"
        else:
            text = "identical" if place is None else str(place)
        yield (
            row["method"],
            f"{row['tokens_per_second']:.1f}",
            f"{row['speed_up']:.2f}x",
            f"{row['tokens_per_round']:.2f}",
            f"{row['mean_accepted']:.2f}",
            text,
        )


def _notes(part: ModelDemo) -> Iterator[str]:
    found = part.found
    first, *more = found.passes(found.base)
    yield f"{sum(len(text.tokens) for text in first)} tokens from {counted(len(found.prompts), 'prompt')}"
    if found.left_out:
        yield f"{found.left_out} left out for lack of time: this machine is slow or busy"
    if found.shortened:
        yield f"texts of {found.tokens} tokens at most, for this machine is slow or busy"
    if more:
        yield f"medians of {1 + len(more)} passes, methods taking turns"
    yield "decoding time only, prefill apart"
    from paceline_lab.bench.texts import cautions

    yield from cautions(found.repetition, "methods that copy", found.spread, "passes of one method differ")


def _sections(parts: list[ModelDemo]) -> Iterator[str]:
    from paceline.api.pictures.page import table_section, token_section

    for number, part in enumerate(parts):
        said = [_headline(part), WHAT_BALLAST_IS] if part.ballast else [_headline(part)]
        notes = [*([_beside(part)] if part.slow else said), "; ".join(_notes(part))]
        yield table_section(" · ".join(_facts(part)), HEAD, _rows(part.found), notes)
        if number == 0:
            yield from (token_section(part.found.picture(*prompt)) for prompt in enumerate(part.names))
