"""``paceline demo``: the bundled models, with drafts and without."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.common import (
    MODEL,
    Subparsers,
    add_color,
    add_draft_model,
    add_json,
    add_trust,
    aligned,
    describe,
    draft_model,
    inputs_of,
    load_model,
    print_json,
    progress,
    show,
    utf8,
    wants_color,
)
from paceline.cli.failures import sentence
from paceline.cli.streams import say
from paceline.files import check_output, write_whole

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.api.pictures import TokenPicture
    from paceline.api.writing import Generation
    from paceline.bench.comparison import Comparison, Entry, Parting, Write

METHODS = ("plain", "assistant", "auto")
BALLASTED = "+ballast"
BALLAST = "500M"
DTYPE = "float32"
PROMPTS = {
    "English": "The old man sat down by the fire and began to tell the story of",
    "Polish": "Stary człowiek usiadł przy ogniu i zaczął opowiadać o tym, jak",
    "Ukrainian": "Старий чоловік сів біля вогню і почав розповідати про те, як",
}
DRAFT = 4
"""Draft tokens per round: in float32 on a CPU every further row of a forward costs, and few are accepted so far out."""
PASSES = 5
SECONDS, SECONDS_WITH_BALLAST = 8.0, 36.0
"""Time for a model: no further pass is begun that would end later."""
WARM_UP = 8
"""Tokens that each method writes before it is timed."""
NARROW, WIDE = 60, 110
LOOPING = 0.2
"""Share of repeated 8-grams from which a text counts as a loop."""
GAIN = 1.1
"""Speed-up from which a method counts as faster."""
STABLE = 1.3
"""Ratio of fastest to slowest pass up to which a measurement counts as stable."""

WHAT_BALLAST_IS = (
    "Ballast: parameters that are computed with and change nothing. The words stay the small model's, "
    "the time is that of a model of the size after the colon."
)
WHAT_SMALL_MODELS_GAIN = "Drafts save rounds here but no time, for rounds of a small model are cheap."
DRAFTS_FAIL = "Drafts save hardly any rounds here, so they can save no time."
NOT_SAME = "Not every text is the same. 'paceline check --model {model} --dtype {dtype}' tells arithmetic from bugs."
HEAD = ("method", "tokens/s", "speed-up", "tokens/round", "mean accepted", "text")


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "demo",
        help="see the bundled models write faster and write the same",
        description=(
            "Writes the same prompts plainly and with drafts, on a small bundled model and on the same model with "
            "ballast, which makes it as slow as a large one. Shows speeds, where tokens came from, and whether the "
            "texts are the same. Works offline and takes about a minute. Exit code 1 means that texts are not the "
            "same, 2 that something was asked that cannot be."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", "-m", default=MODEL, metavar="MODEL", help=f"the model that writes (default: {MODEL})"
    )
    add_draft_model(parser)
    add_trust(parser)
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="SPEC",
        help=f"methods to show; plain always comes first (default: {' '.join(METHODS)})",
    )
    parser.add_argument(
        "--prompt",
        type=utf8,
        action="append",
        metavar="TEXT",
        help="write on from this, not from the built-in ones; may repeat",
    )
    parser.add_argument("--max-new-tokens", type=int, default=48, metavar="N", help="tokens per text (default: 48)")
    parser.add_argument(
        "--num-draft-tokens",
        type=int,
        default=DRAFT,
        metavar="K",
        help=f"draft tokens per round of methods that have no planner of their own (default: {DRAFT})",
    )
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0 is greedy (default: 0.8)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same texts (default: 0)")
    weight = parser.add_mutually_exclusive_group()
    weight.add_argument(
        "--ballast", metavar="SIZE", help=f"size of the slow twin of a bundled model, e.g. 250M (default: {BALLAST})"
    )
    weight.add_argument("--no-ballast", action="store_true", help="leave the slow twin out")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write what is shown as a page, too")
    add_color(parser)
    add_json(parser)
    parser.set_defaults(run=run, dtype=DTYPE, device=None)


def run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    check_output(options.html, inputs_of(options))
    prompts = _prompts(options.prompt)
    methods = _methods(options)
    models = _models(options)
    sampled = f"at temperature {options.temperature:g} with seed {options.seed}"
    say(f"A cheap source drafts, the model checks: {sampled}, every method must write the same text.\n", flush=True)
    parts, left_out = list[Part](), dict[str, str]()
    for model in models:
        try:
            parts.append(_part(model, prompts, methods, options, parts[0] if parts else None))
        except Exception as error:  # a machine too small for the slow twin has seen the model itself
            if not parts or (said := sentence(error)) is None:
                raise
            left_out[model] = said
            say(f"{model} is left out: {said}")
            continue
        _print(parts[-1], wants_color(options))
        if model != models[-1]:
            say(_moral(parts[-1]), end="", flush=True)
    seconds = time.monotonic() - started
    same = all(part.same for part in parts)
    if not same:
        say(NOT_SAME.format(**next(part.facts for part in parts if not part.same)))
    say(f'{seconds:.0f} s altogether. Now write something yourself: paceline generate "Once" --show tokens')
    if options.html:
        from paceline.api.pictures.page import page

        write_whole(options.html, page("Paceline: the same text, faster", _sections(parts)))
    if options.json:
        settings = {
            name: getattr(options, name) for name in ("temperature", "seed", "max_new_tokens", "num_draft_tokens")
        }
        found = {"models": [part.as_dict() for part in parts], "left_out": left_out, "seconds": seconds}
        print_json({**settings, "prompts": prompts, **found})
    if not same:
        return 1
    return 2 if left_out and options.ballast else 0  # a twin that was asked for by its size was not shown


@dataclass(frozen=True)
class Part:
    """What one model showed."""

    facts: dict[str, Any]
    names: list[str]
    """Of the prompts: their languages, or their numbers."""
    found: Comparison
    ballast: str
    """The name of a slow twin with its size and shape; otherwise empty."""

    twin_of: Part | None = None
    """Whose slow twin it is."""

    @property
    def claim(self) -> Parting | None:
        """Where a slow twin's texts part from its model's; None where they do not, as they must not."""
        from paceline.bench.comparison import first_parting

        if self.twin_of is None:
            return None
        return first_parting(self.found.base.texts, self.twin_of.found.base.texts)

    @property
    def same(self) -> bool:
        """Whether every method wrote the text of plain decoding, and a slow twin that of its model."""
        return self.found.same and self.claim is None

    @property
    def gains(self) -> bool:
        """Whether any method is clearly faster than plain decoding."""
        return any(self.found.speed_up(entry) > GAIN for entry in self.found.entries)

    @property
    def saves(self) -> bool:
        """Whether any method takes clearly fewer rounds than tokens."""
        return self.best.per_round(lambda totals: totals.tokens) > GAIN

    @property
    def best(self) -> Entry:
        """The method whose tokens are shown: the one with the most tokens per round."""
        drafting = self.found.entries[1:] or self.found.entries
        return max(drafting, key=lambda entry: entry.per_round(lambda totals: totals.tokens))

    def picture(self, number: int) -> TokenPicture:
        from paceline.api.pictures import TokenPicture

        text: Any = self.best.texts[number]
        title = f"{self.names[number]}, drafts by {self.best.method}"
        return TokenPicture(self.found.prompts[number], tuple(text.pieces), text.totals, {}, title)

    def as_dict(self) -> dict[str, Any]:
        texts: list[Any] = list(self.found.base.texts)
        return {
            **self.facts,
            "ballast": self.ballast or None,
            "parts_from_the_model_at": None if self.claim is None else self.claim.as_dict(),
            "texts": [text.text for text in texts],
            "repeated_8grams": self.found.repetition,
            "prompts_left_out": self.found.left_out,
            "methods": self.found.rows(),
        }


def _prompts(given: list[str] | None) -> dict[str, str]:
    """Prompts by name."""
    if given is None:
        return PROMPTS
    if not all(given):
        raise ValueError("a --prompt is empty; give it at least a word to go on from")
    return {f"prompt {number}": prompt for number, prompt in enumerate(given, start=1)}


def _models(options: argparse.Namespace) -> list[str]:
    """The model, and its slow twin if it can have one."""
    if options.ballast is None and (options.no_ballast or options.model != MODEL):
        return [options.model]
    from paceline.targets.pocket.shape import read_ballast

    twin = f"{options.model}{BALLASTED}:{options.ballast or BALLAST}"
    read_ballast(twin)  # a size that cannot be read is told before anything is measured
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


def _part(
    model: str,
    prompts: Mapping[str, str],
    methods: Mapping[str, dict[str, Any]],
    options: argparse.Namespace,
    twin_of: Part | None,
) -> Part:
    from paceline.bench.comparison import compare

    options.model = model
    with progress(f"loading {model}") as advance:
        lm = load_model(options)

        def moved(doing: str, done: int, total: int) -> None:
            advance(f"{model}: {doing}", done, total)

        writers = {method: _writer(lm, settings) for method, settings in methods.items()}
        first = next(iter(prompts.values()))
        found = compare(
            writers,
            list(prompts.values()),
            passes=PASSES,
            warm_up=lambda method: lm.generate(first, **methods[method] | {"max_new_tokens": WARM_UP}),
            seconds=SECONDS_WITH_BALLAST if BALLASTED in model else SECONDS,
            progress=moved,
        )
    names = list(prompts)[: len(found.prompts)]
    return Part(describe(lm), names, found, _shape(model) if BALLASTED in model else "", twin_of)


def _shape(model: str) -> str:
    from paceline.targets.pocket.open import describe

    return describe(model)


def _writer(lm: LanguageModel, settings: dict[str, Any]) -> Write:
    def write(prompt: str) -> Generation:
        settings["method"].reset()  # a text that was written before is no secret to those who learn from texts
        return lm.generate(prompt, **settings)

    return write


def _print(part: Part, color: bool) -> None:
    from rich.text import Text

    from paceline.api.pictures.terminal import paint

    width = max(NARROW, min(shutil.get_terminal_size((WIDE, 24)).columns, WIDE)) if sys.stdout.isatty() else WIDE
    show(Text("  ".join(_facts(part)), "bold"), color, width=width)
    if part.ballast:
        show(Text(WHAT_BALLAST_IS), color, width=width)
    if part.twin_of is None:
        say()
        show(paint(part.picture(0), color), color, width=width)
    say()
    say("\n".join(aligned([HEAD, *_rows(part.found)])))
    show(Text("; ".join(_notes(part)), "dim"), color, width=width)
    say()


def _moral(part: Part) -> str:
    """What a small model that gained nothing shows, before its slow twin comes."""
    if part.gains:
        return ""
    return f"{WHAT_SMALL_MODELS_GAIN if part.saves else DRAFTS_FAIL} Now a slow one:\n\n"


def _facts(part: Part) -> Iterator[str]:
    facts = part.facts
    yield from (part.ballast or facts["model"], facts["dtype"], f"weights {facts['fingerprint']}")
    yield f"{facts['device']}, {facts['threads']} {'thread' if facts['threads'] == 1 else 'threads'}"


def _rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    for entry, row in zip(found.entries, found.rows(), strict=True):
        yield (
            entry.method,
            f"{row['tokens_per_second']:.1f}",
            f"{row['speed_up']:.2f}x",
            f"{row['tokens_per_round']:.2f}",
            f"{row['mean_accepted']:.2f}",
            _verdict(entry is found.base, found.parting(entry)),
        )


def _verdict(base: bool, parting: Parting | None) -> str:
    """What is said of a method's texts."""
    if base:
        return "(plain decoding)" if parting is None else f"not reproducible: {parting}"
    return "identical" if parting is None else str(parting)


def _notes(part: Part) -> Iterator[str]:
    found = part.found
    passes, prompts = len(found.base.passes), len(found.prompts)
    tokens = sum(len(text.tokens) for text in found.base.texts)
    yield f"{tokens} tokens from {prompts} {'prompt' if prompts == 1 else 'prompts'}"
    if found.left_out:
        yield f"{found.left_out} left out for lack of time: this machine is slow or busy"
    if passes > 1:
        yield f"medians of {passes} passes, methods taking turns"
    yield "decoding time only, prefill apart"
    yield f"repeated 8-grams {found.repetition:.0%}"
    if found.repetition > LOOPING:
        yield "the texts loop, which flatters who copies"
    if found.spread is None:
        yield "one pass, so how steady the speeds are is not known"
    elif found.spread > STABLE:
        yield f"unstable: passes of one method differ by {found.spread:.1f}x"
    if part.twin_of is not None:
        model = part.twin_of.facts["model"]
        if part.claim is None:
            yield f"the texts are those of {model}, token for token"
        else:
            yield f"NOT the texts of {model}, which ballast must leave alone: {part.claim}"


def _sections(parts: list[Part]) -> Iterator[str]:
    from paceline.api.pictures.page import table_section, token_section

    for number, part in enumerate(parts):
        notes = [*([WHAT_BALLAST_IS] if part.ballast else []), "; ".join(_notes(part))]
        yield table_section(" · ".join(_facts(part)), HEAD, _rows(part.found), notes)
        if number == 0:
            yield from (token_section(part.picture(prompt)) for prompt in range(len(part.names)))
