"""Table 11: speed-up by context length, 1,024 to 32,768 tokens, as far as the model's context goes.

    python -m papers.unispec.table11_context

Prompts are running text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from paceline.bench import Sources, Summary, Vocabulary, languages_of, passages
from papers.common import Claim, Panel, Report, Way, script, write
from papers.unispec.common import (
    HEAD,
    LANGUAGES,
    Lab,
    curves,
    listed,
    over,
    parser,
    row,
    size_notes,
    sized,
    speed_up,
    told,
)

LENGTHS = 1024, 2048, 4096, 8192, 16384, 32768
SPARE, CHARACTERS = 8, 6
"""Tokens by which a text may be longer than its share of a longer one says, and characters that a token may have on
average."""
PASSAGES = 4000


def lengths_within(limit: int | None) -> list[int]:
    """Lengths of prompt and answer together that fit; the whole context where even the first does not."""
    limit = limit or LENGTHS[-1]
    return [length for length in LENGTHS if length <= limit] or [limit]


def prompts(text: str, vocabulary: Vocabulary, lengths: Sequence[int], count: int, tokens: int) -> list[dict[str, str]]:
    """Running text of every length, from several places of the same texts."""
    found = list[dict[str, str]]()
    for length in lengths:
        room = length - tokens - SPARE
        if room < 1:
            raise ValueError(f"--max-new-tokens {tokens} leaves no room in a text of {length} tokens")
        for number in range(count):
            start = len(text) * number // (count + 1)
            piece = text[start : start + CHARACTERS * length]
            size = len(vocabulary.encode(piece))
            if size < room:
                raise ValueError(f"there is too little running text for prompts of {length} tokens; name more --langs")
            key = f"{length}-{len(found)}"
            found.append({"prompt": piece[: len(piece) * room // size], "key": key, "task": str(length)})
    return found


def running_text(data: Path | None, languages: Sequence[str]) -> str:
    """Of one language after the other."""
    sources = Sources(data)
    known = languages_of(sources)
    return "\n".join(one.text for name in languages if name in known for one in passages(sources, name, PASSAGES))


def report(run: Summary, limit: int | None, notes: Sequence[str] = ()) -> Report:
    entry, tasks = run.entries[1], run.tasks
    claims = []
    if len(tasks) > 1:
        one, two = (speed_up(run, entry, task) for task in (tasks[-1], tasks[0]))
        claim, ours = f"the speed-up at {tasks[-1]} tokens is that at {tasks[0]}", f"{told(one)} and {told(two)}"
        ratio = over(one, two)
        claims.append(Claim.of(claim, "1.93x at 32768 and 1.86x at 1024 tokens", ours, Way.LEVEL, ratio))
    if limit and limit < LENGTHS[-1]:
        notes = [*notes, f"the model's context ends at {limit} tokens"]
    rows = [row(run, other, f"{task}  {other}", task)[:4] for task in tasks for other in run.entries[1:]]
    lines = curves(run.entries, [(float(task), partial(speed_up, run, task=task)) for task in tasks])
    panels = [Panel("Speed-up by length", "tokens", "x plain", lines, log=True)]
    return Report("UniSpec, Table 11: context length", [(HEAD[:4], rows)], claims, notes, panels)


def main() -> None:
    lab = Lab(given := parser(__doc__).parse_args())
    lm, entry = lab.model(), sized(lab.method, lab.size())
    assert lm.vocabulary is not None, "the prompts are texts"
    limit: int | None = lm.target.context_length
    file = lab.out / "prompts.jsonl"
    if not file.exists():
        text = running_text(given.data, given.langs or listed(LANGUAGES))
        found = prompts(text, lm.vocabulary, lengths_within(limit), given.limit, given.max_new_tokens)
        write(file, "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in found))
    how = {"suite": f"prompts:{file}", "limit": None, "langs": None, "tasks": None}
    runs = lab.races({"run": {"methods": [entry, "auto"], **how}})
    lab.show(report(runs["run"], limit, size_notes(lab.size())))


if __name__ == "__main__":
    script(main)
