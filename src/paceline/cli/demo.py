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
from paceline.cli.options import DRAFT, MODEL, describe, draft_model, inputs_of, load_model, prompts_of
from paceline.cli.output import cautions, counted, print_json, progress, say, show, table, wants_color
from paceline.files import check_output, write_whole

if TYPE_CHECKING:
    from paceline.bench.demo import Shown
    from paceline.bench.texts import Parting

METHODS = ("plain", "assistant", "auto")
BALLASTED = "+ballast"
BALLAST = "500M"
DTYPE = "float32"
SECONDS, SECONDS_WITH_BALLAST = 8.0, 36.0
"""Time for a model: no further pass is begun that would end later."""
NARROW, WIDE = 60, 110
GAIN = 1.1
"""Speed-up from which a method counts as faster."""

WHAT_BALLAST_IS = (
    "Ballast: parameters that are computed with and change nothing. The words stay the small model's, "
    "the time is that of a model of the size after the colon."
)
WHAT_SMALL_MODELS_GAIN = "Drafts save rounds here but no time, for rounds of a small model are cheap."
DRAFTS_FAIL = "Drafts save hardly any rounds here, so they can save no time."
NOT_SAME = "Not every text is the same. 'paceline check --model {model} --dtype {dtype}' tells arithmetic from bugs."
HEAD = ("method", "tokens/s", "speed-up", "tokens/round", "mean accepted", "text")


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "demo",
        run=run,
        help="see the bundled models write faster and write the same",
        description=(
            "Writes the same prompts plainly and with drafts, on a small bundled model and on the same model with "
            "ballast, which makes it as slow as a large one. Shows speeds, where tokens came from, and whether the "
            "texts are the same. Works offline and takes about a minute. Exit code 1 means that texts are not the "
            "same, 2 a mistake in the command."
        ),
    )
    parser.argument("--model -m", "MODEL", f"the model that writes (default: {MODEL})", default=MODEL)
    parser.add_draft_model()
    parser.add_trust()
    text = f"methods to show; plain always comes first (default: {' '.join(METHODS)})"
    parser.several("--method", "SPEC", text, dest="methods")
    parser.add_prompts()
    parser.add_length(48)
    parser.add_draft_length(DRAFT, of=" of methods that have no planner of their own")
    parser.argument("--temperature", "T", "0 is greedy (default: 0.8)", float, default=0.8)
    parser.add_seed()
    weight = parser.add_mutually_exclusive_group()
    text = f"size of the slow twin of a bundled model, e.g. 250M (default: {BALLAST})"
    weight.add_argument("--ballast", metavar="SIZE", help=text)
    weight.add_argument("--no-ballast", action="store_true", help="leave the slow twin out")
    parser.argument("--html", "FILE", "also write a page", Path)
    parser.add_color()
    parser.add_json()
    parser.set_defaults(dtype=DTYPE, device=None)


def run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    check_output(options.html, inputs_of(options))
    prompts_of(options)
    models, methods = _models(options), _methods(options)
    sampled = f"at temperature {options.temperature:g} with seed {options.seed}"
    say(f"A cheap source drafts, the model checks: {sampled}, every method must write the same text.\n", flush=True)
    parts, left_out = list[ModelDemo](), dict[str, str]()
    for model in models:
        try:
            parts.append(_shown(model, methods, options, parts[0] if parts else None))
        except Exception as error:  # a small machine cannot run the slow twin, but has shown the model itself
            if not parts or (said := sentence(error)) is None:
                raise
            left_out[model] = said
            say(f"{model} is left out: {said}")
            continue
        _print(parts[-1], wants_color(options))
        if model != models[-1]:
            say(_moral(parts[-1]), end="", flush=True)
    seconds = time.monotonic() - started
    different = [part.facts for part in parts if not part.same]
    if different:
        say(NOT_SAME.format(**different[0]))
    say(f'{seconds:.0f} s altogether. Now write something yourself: paceline generate "Once" --show tokens')
    if options.html:
        from paceline.api.pictures.page import page

        write_whole(options.html, page("Paceline: the same text, faster", _sections(parts)))
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
    """What one model showed."""

    facts: dict[str, Any]
    names: list[str]
    """Of the prompts: their languages, or their numbers."""
    found: Shown
    ballast: str = ""
    """The name of a slow twin with its size and shape; otherwise empty."""
    twin_of: ModelDemo | None = None
    """The part of the model that this slow twin belongs to."""

    @property
    def claim(self) -> Parting | None:
        """Where a slow twin's texts part from its model's; None where they do not, as they must not."""
        found = self.found
        return None if self.twin_of is None else found.parting(found.base, self.twin_of.found)

    @property
    def same(self) -> bool:
        """Whether every method wrote the text of plain decoding, and a slow twin that of its model."""
        return self.claim is None and not any(self.found.parting(method) for method in self.found.methods)

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.facts,
            "ballast": self.ballast or None,
            "parts_from_the_model_at": None if self.claim is None else self.claim._asdict(),
            "texts": [text.text for text in self.found.passes(self.found.base)[0]],
            "repeated_8grams": self.found.repetition,
            "prompts_left_out": self.found.left_out,
            "methods": self.found.rows(),
        }


def _models(options: argparse.Namespace) -> list[str]:
    """The model, and its slow twin if it can have one."""
    if options.ballast is None and (options.no_ballast or options.model != MODEL):
        return [options.model]
    from paceline.targets.pocket.shape import read_ballast

    twin = f"{options.model}{BALLASTED}:{options.ballast or BALLAST}"
    read_ballast(twin)  # refuses a wrong size before anything is measured
    return [options.model, twin]


def _methods(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The settings of every method. Those that draft with a model get it."""
    from paceline.api.settings import split_settings
    from paceline.drafters import make_drafter

    drafts = draft_model(options)
    asked = options.methods or [method for method in METHODS if drafts or method != "assistant"]
    common: dict[str, Any] = {name: getattr(options, name) for name in ("max_new_tokens", "temperature", "seed")}
    split_settings(common)
    drafters = {method: make_drafter(method, drafts, must_use=False) for method in dict.fromkeys(("plain", *asked))}
    size = f"fixed:{options.num_draft_tokens}"
    return {
        method: common | {"method": drafter, "planner": size if drafter.planner == "fixed" else drafter.planner}
        for method, drafter in drafters.items()
    }


def _shown(
    model: str, methods: dict[str, dict[str, Any]], options: argparse.Namespace, twin_of: ModelDemo | None
) -> ModelDemo:
    from paceline.bench.demo import shown
    from paceline.targets.pocket.open import describe as shape

    options.model, prompts = model, prompts_of(options)
    slow = BALLASTED in model
    with progress(f"loading {model}") as advance:
        lm = load_model(options)
        found = shown(
            lm,
            methods,
            list(prompts.values()),
            options.max_new_tokens,
            seconds=SECONDS_WITH_BALLAST if slow else SECONDS,
            progress=lambda doing, done, total: advance(f"{model}: {doing}", done, total),
        )
    return ModelDemo(describe(lm), list(prompts)[: len(found.prompts)], found, shape(model) if slow else "", twin_of)


def _print(part: ModelDemo, color: bool) -> None:
    from rich.text import Text

    from paceline.api.pictures.terminal import paint

    width = max(NARROW, min(shutil.get_terminal_size((WIDE, 24)).columns, WIDE)) if sys.stdout.isatty() else WIDE
    show(Text("  ".join(_facts(part)), "bold"), color, width=width)
    if part.ballast:
        show(Text(WHAT_BALLAST_IS), color, width=width)
    if part.twin_of is None:
        say()
        show(paint(part.found.picture(0, part.names[0]), color), color, width=width)
    say()
    say(table(HEAD, _rows(part.found), left=(0, 5)))
    show(Text("; ".join(_notes(part)), "dim"), color, width=width)
    say()


def _moral(part: ModelDemo) -> str:
    """What it means that a small model gained nothing, before its slow twin is shown."""
    if any(row["speed_up"] > GAIN for row in part.found.rows()):
        return ""
    saves = part.found.per_round(part.found.best) > GAIN
    return f"{WHAT_SMALL_MODELS_GAIN if saves else DRAFTS_FAIL} Now a slow one:\n\n"


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
    if more:
        yield f"medians of {1 + len(more)} passes, methods taking turns"
    yield "decoding time only, prefill apart"
    yield from cautions(found.repetition, "methods that copy", found.spread, "passes of one method differ")
    if part.twin_of is not None:
        model = part.twin_of.facts["model"]
        if part.claim is None:
            yield f"the texts are those of {model}, token for token"
        else:
            yield f"NOT the texts of {model}, which ballast must leave alone: {part.claim}"


def _sections(parts: list[ModelDemo]) -> Iterator[str]:
    from paceline.api.pictures.page import table_section, token_section

    for number, part in enumerate(parts):
        notes = [*([WHAT_BALLAST_IS] if part.ballast else []), "; ".join(_notes(part))]
        yield table_section(" · ".join(_facts(part)), HEAD, _rows(part.found), notes)
        if number == 0:
            yield from (token_section(part.found.picture(*prompt)) for prompt in enumerate(part.names))
