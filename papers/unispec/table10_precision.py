"""Table 10: texts and speed in float32, bfloat16 and float16, written freely.

python -m papers.unispec.table10_precision
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.bench import Estimate, Summary
from papers.common import Claim, Report, Way, script
from papers.unispec.common import HEAD, Lab, over, parser, row, sized, speed_up, told

TYPES = "float32", "bfloat16", "float16"


def same(run: Summary, entry: str) -> tuple[int, int, float]:
    """Texts that are plain decoding's, all texts, and the share of tokens before they part."""
    records = run.records(entry)
    tokens = sum(len(one.tokens) for one in records)
    agree = sum(len(one.tokens) if one.parts_at is None else min(one.parts_at, len(one.tokens)) for one in records)
    return sum(one.verdict == "equal" for one in records), len(records), agree / max(tokens, 1)


def report(runs: Mapping[str, Summary], entry: str) -> Report:
    rows, claims = [], list[Claim]()
    for name, run in runs.items():
        for other in run.entries[1:]:
            equal, texts, agree = same(run, other)
            rows.append((*row(run, other, f"{name}  {other}")[:4], f"{equal} of {texts}", f"{agree:.1%}"))
    if "float32" in runs:
        counts = [same(runs["float32"], other)[:2] for other in runs["float32"].entries[1:]]
        equal, texts = (sum(column) for column in zip(*counts, strict=True))
        claim, paper = "in float32 texts are plain decoding's own", "the scores of its texts are the same"
        ours = f"{equal} of {texts} texts are the same"
        claims.append(Claim.of(claim, paper, ours, Way.LEVEL, Estimate(float(equal == texts))))
    first, *others = runs
    for other in others:
        one, two = speed_up(runs[other], entry), speed_up(runs[first], entry)
        claim = f"the speed-up of {other} is about that of {first}"
        ours = f"{told(one)} and {told(two)}"
        claims.append(Claim.of(claim, "2.12x in float16 and 2.09x in float32", ours, Way.LEVEL, over(one, two)))
    head = (*HEAD[:4], "same texts", "tokens before they part")
    return Report("UniSpec, Table 10: precision", [(head, rows)], claims)


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    entry = sized(lab.method, lab.size())
    runs = lab.races({t: {"methods": [entry, "auto"], "dtype": t, "follow": False} for t in TYPES})
    lab.show(report(runs, entry))


if __name__ == "__main__":
    script(main)
