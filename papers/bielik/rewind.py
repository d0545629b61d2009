"""Section 6.4: what context before a draft brings, and what rewinding the cache would cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline_lab import Sources, Vocabulary, open_suite, open_vocabulary, tokenizers_in
from papers.dictspec.data import tokenizers
from papers.driver import Given
from papers.report import Claim, Report

PAPERS = ("bielik-v2", "bielik-v3-APT4", "llama3", "qwen2-2.5-3")
"""The tokenizers of the paper's target and draft models."""
BUNDLED = "pocket", "pocket-foreign"
PREFIX, WINDOW = 5, 400
"""The paper's p, and the characters of text among which a draft is looked for."""
LINE = "\n"
NO_TOKEN = "\ufffd"
"""The replacement that a decoder writes for a part of a character."""


@dataclass(frozen=True)
class Count:
    """Sums over the rounds of some texts."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_bytes: int = 0
    """Tokens that were accepted, or would be if merged tokens were let through."""
    stalled: int = 0
    """Rounds whose draft has no token behind the prefix."""
    changed: int = 0
    """Rounds in which the draft changes the tokens before it."""
    extra: int = 0
    """Rows that are scored again."""

    def plus(self, other: Count) -> Count:
        return Count(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Translated:
    """A draft in the target's tokens, and how many tokens before it have changed."""

    tokens: Sequence[int]
    merged: int = 0


def encoded(vocabulary: Vocabulary, text: str) -> list[int]:
    return [int(token) for token in vocabulary.encode(text, add_special=False)]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def translated(target: Vocabulary, prefix: str, draft: str) -> Translated:
    """A draft behind a text, as Algorithm 2 encodes it; behind none it is the naive way."""
    alone, both = encoded(target, prefix), encoded(target, prefix + draft)
    return Translated(both[len(alone) :], len(alone) - common(alone, both))


def next_draft(drafter: Vocabulary, ahead: str, k: int) -> str:
    """The next k tokens of the drafter, whole characters of them."""
    draft = drafter.text(encoded(drafter, ahead)[:k]).rstrip(NO_TOKEN)
    return draft if ahead.startswith(draft) else ""


def replayed(target: Vocabulary, drafter: Vocabulary, text: str, way: str, k: int) -> Count:
    """The rounds that a text takes."""
    name, _, prefix = way.partition(":")
    tokens, size, found = encoded(target, text), int(prefix or 0), Count()
    whole, at = target.text(tokens), max(1, size)
    while at < len(tokens) - 1:
        begun = len(target.text(tokens[:at]).rstrip(NO_TOKEN))
        draft = next_draft(drafter, whole[begun : begun + WINDOW], k)
        one = translated(target, LINE if name == "bare" else target.text(tokens[at - size : at]), draft)
        found = found.plus(counted(one, tokens[at:], name == "rewind", stalled=bool(draft and not one.tokens)))
        rejected = name == "rewind" and one.merged
        at += 1 + (0 if rejected else common(one.tokens, tokens[at:]))
    return found


def counted(one: Translated, ahead: Sequence[int], rewinds: bool, stalled: bool) -> Count:
    """A round."""
    accepted, drafted = common(one.tokens, ahead), len(one.tokens)
    changed = int(one.merged > 0)
    if rewinds and changed:  # the merged tokens are drafted, too, and rejected; by their bytes all are right
        return Count(1, drafted + one.merged, 0, drafted, int(stalled), changed, one.merged)
    return Count(1, drafted, accepted, accepted, int(stalled), changed)


# --- the report


def row(names: Sequence[str], one: Count) -> tuple[str, ...]:
    def share(part: int, whole: int) -> str:
        return f"{part / whole:.1%}" if whole else ""

    rounds = max(one.rounds, 1)
    shares = share(one.accepted, one.drafted), share(one.by_bytes, one.drafted), share(one.stalled, one.rounds)
    return (*names, *shares, share(one.changed, one.rounds), f"{one.extra / rounds:.3f}", f"{_per_round(one):.2f}")


def _per_round(one: Count) -> float:
    return 1 + one.accepted / max(one.rounds, 1)


HEAD = ("drafter", "way", "k", "accepted", "by bytes", "stalled", "prefix changed", "extra rows/round", "tokens/round")
Counts = dict[tuple[str, str, int], Count]


def claims(counts: Counts, prefix: int) -> Iterator[Claim]:
    sums = {way: Count() for _, way, _ in counts}
    for (_, way, _), one in counts.items():
        sums[way] = sums[way].plus(one)
    share = {way: f"{one.accepted / max(one.drafted, 1):.1%}" for way, one in sums.items()}
    context, rewind = sums[f"context:{prefix}"], sums[f"rewind:{prefix}"]
    ours = f"{share[f'context:{prefix}']} against {share['naive']}, and {share['bare']} without its space"
    more = context.accepted * sums["naive"].drafted > sums["naive"].accepted * context.drafted
    yield Claim(f"context:{prefix} is accepted more often than naive", "in all 9 cells of Table 2", ours, more)
    rows, changed = rewind.extra / max(rewind.rounds, 1), rewind.changed / max(rewind.rounds, 1)
    ours = f"{rows:.4f}, for drafts change the tokens before them in {changed:.2%} of rounds"
    yield Claim(f"rows that rewind:{prefix} scores again in a round", "all of the prefix", ours, rows > prefix / 2)


def texts_of(given_texts: Sequence[tuple[str, Path]], sources: Sources, limit: int) -> tuple[list[str], str]:
    """Texts to replay, and what they are."""
    if given_texts:
        files = [file for _, file in given_texts]
        lines = [line for file in files for line in sources.text(file).split("\n") if len(line) > WINDOW // 4]
        return lines[:limit], ", ".join(map(str, files))
    try:
        found = open_suite("continuation", data=sources.folder, languages=["pl"], limit=limit)
    except ValueError:
        found = open_suite("stories", languages=["pl"], limit=limit)
    return [prompt.turns[0] for prompt in found.prompts], f"of the suite {found.suite}"


def rewind(given: Given) -> Report:
    """Section 6.4: what context before a draft brings, and what rewinding the cache to before it would cost.

    A count on texts that are known, with tokenizers alone. The first tokenizer is the target's. In each round the
    drafter drafts the next k tokens of the very text, in its own vocabulary, so every rejection is one of translation:

    naive      the draft is encoded alone; SentencePiece then puts a space before it
    bare       the same behind a line break, so without that space
    context:p  encoded behind the last p tokens, of which as many are dropped as they have alone (Algorithm 2)
    rewind:p   where the draft changes the tokens before it, their rows are rolled back and scored again

    The target has chosen the committed tokens already, and a lossless verifier does not choose others: a token that
    merges with them is rejected, and the rows were scored in vain. `by bytes` counts such tokens as if they were let
    through, which writes the same text in other tokens than plain decoding does. Rewinding is no option of the method.
    """
    sources = Sources(given.data)
    here = [name for name in PAPERS if name in tokenizers_in(sources)]
    places = tokenizers(given.tokenizers or (here if PAPERS[0] in here and len(here) > 1 else BUNDLED), sources)
    if len(places) < 2:
        raise ValueError("drafts are of another tokenizer than the target's; name two with --tokenizers TARGET DRAFTER")
    (first, target), *others = ((name, open_vocabulary(place)) for name, place in places.items())
    texts, what = texts_of(given.texts, sources, 6 if given.quick else given.limit)
    if not texts:
        raise ValueError(f"there is no line of more than {WINDOW // 4} characters in {what}")
    ways = ["naive", "bare", *(f"{way}:{p}" for p in given.prefix for way in ("context", "rewind"))]
    counts: Counts = {}
    for name, drafter in others:
        for way in ways:
            for k in given.k:
                counts[name, way, k] = Count()
                for text in texts:
                    counts[name, way, k] = counts[name, way, k].plus(replayed(target, drafter, text, way, k))
    rows = [row((name, way, str(k)), one) for (name, way, k), one in counts.items()]
    notes = [
        f"target {first}; {len(texts)} Polish texts {what}, which are not the paper's",
        "the drafter is right about the text in every round, so these are upper ends of acceptance",
        "the texts are as the tokenizer has them; sampled texts leave that form, and drafts change more before them",
    ]
    data = {
        "target": first,
        "counts": [{"drafter": d, "way": w, "k": k, **asdict(c)} for (d, w, k), c in counts.items()],
    }
    found = claims(counts, max(given.prefix))
    return Report("Bielik, section 6.4: context and rewinding", [(HEAD, rows)], list(found), notes, data=data)
