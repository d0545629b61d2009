"""A calibration as a page: seconds, tokens and speed of every method by nodes, with the fitted curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from paceline.cli.output import counted
from paceline.planning.acceptance import Acceptance, SizeChoice
from paceline.planning.fits import Floats
from paceline.planning.stored import Profile
from paceline_lab.bench.report.blocks import Block, Chart, Part, Row, Section, Table, Text
from paceline_lab.bench.report.charts import Scales, Series, plot
from paceline_lab.bench.report.forms import report_page

MARK = "Paceline calibration"
DRAWN = 200
"""Places of a curve that are drawn."""
NODES = "nodes drafted"


def calibration_page(profile: Profile, methods: Sequence[Acceptance], took: float) -> str:
    """The whole page, without external files and without scripts."""
    first = methods[0].choices[0]
    headline = f"{methods[0].method} drafts {counted(first.nodes, 'node')} on this machine"
    if len(methods) > 1:
        sizes = ", ".join(f"{method.method} {method.choices[0].nodes}" for method in methods)
        headline = f"Nodes to draft on this machine: {sizes}"
    if few := [method.method for method in methods if not method.enough]:
        headline = f"Too few rounds of {', '.join(few)} were measured to choose a size"
    facts = ", ".join(f"{name} {version}" for name, version in profile.versions.items())
    more = f"{profile.setup.summary}. Measured in {took:.0f} s on {profile.when[:10]}, with {facts}."
    sections = [_section(profile, method, number) for number, method in enumerate(methods, start=1)]
    part = Part("calibration", f"weights {profile.setup.fingerprint}", headline, more, sections)
    return report_page("Calibration", [part], MARK)


def _section(profile: Profile, method: Acceptance, number: int) -> Section:
    choice = method.choices[0]
    texts = counted(choice.sequences, "text")
    blocks: list[Block] = [
        Text(
            f"Rounds of {texts} behind {choice.length} tokens; drafting and reading are part of a round. The line is "
            f"the fitted curve, a mark what was measured or counted, and the upright line stands at {choice.nodes}, "
            + ("which the fitted curves say" if choice.trusted else f"by the points: the curves say {choice.fitted}")
            + "."
        ),
        *(Chart(svg) for svg in _pictures(profile, method, choice, number)),
        _table(method),
    ]
    if method.spot is not None:
        blocks.append(
            Text(
                f"Tokens are of {method.rounds} rounds with the largest drafts on {len(method.prompts)} prompts at "
                f"temperature {method.temperature:g}. With {counted(method.spot.nodes, 'node')}, "
                f"{method.spot.found:.2f} tokens per round were measured, and {method.spot.foretold:.2f} were "
                "predicted from the largest drafts."
            )
        )
    return Section(f"method-{number}", method.method, blocks)


def _pictures(profile: Profile, method: Acceptance, choice: SizeChoice, number: int) -> list[str]:
    sizes = np.array([point.nodes for point in method.points], np.float64)
    seconds = method.seconds(profile.curves(method.top), choice.sequences, choice.length)
    tokens = np.array([point.tokens for point in method.points])
    many = choice.sequences

    def speed(places: Floats) -> Floats:
        return many * choice.tokens(places) / np.maximum(choice.seconds(places), 1e-9)

    def drawn(title: str, unit: str, values: Floats, fit: Callable[[Floats], Floats]) -> str:
        places = np.linspace(sizes[0], sizes[-1], DRAWN)
        points = list(zip(sizes.tolist(), values.tolist(), strict=True))
        tips = [f"{counted(int(size), 'node')}: {value:.4g} {unit}" for size, value in points]
        line = list(zip(places.tolist(), fit(places).tolist(), strict=True))
        description = f"{method.method}: {unit} by nodes drafted, from {values[0]:.4g} without to {values[-1]:.4g}"
        scales = Scales((NODES, unit), upright=choice.nodes, line=line, zero=True)
        return plot(
            f"{title} of {method.method}", description, [Series(number, method.method, points, tips, 30.0)], scales, 260
        ).svg

    return [
        drawn("Seconds", "ms per round", 1000 * seconds, lambda places: 1000 * choice.seconds(places)),
        drawn("Tokens", "tokens per round", tokens, choice.tokens),
        drawn("Speed", "tokens/s", many * tokens / seconds, speed),
    ]


def _table(method: Acceptance) -> Table:
    rows = [
        Row(
            f"{choice.sequences} × {choice.length}",
            [
                str(choice.nodes),
                f"{choice.tokens_per_second:.1f}",
                f"{choice.tokens_per_second_plain:.1f}",
                f"{choice.tokens_per_second / choice.tokens_per_second_plain:.2f}×",
            ],
        )
        for choice in method.choices
    ]
    return Table(
        "The best size by how many texts there are", ["texts × tokens", "nodes", "tokens/s", "plain", ""], rows
    )
