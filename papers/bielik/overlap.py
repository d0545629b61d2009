"""How far the vocabularies of two tokenizers overlap."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline_lab import Sources, Vocabulary, open_vocabulary, tokenizers_in
from papers.dictspec.data import RUNNING, tokenizers
from papers.driver import Given, by_name
from papers.report import Claim, Report, Table

LANGUAGES = "pl", "en", "uk"
BUNDLED = "pocket", "pocket-foreign"
CHARACTERS = 100_000
POLISH = frozenset("ąćęłńóśźżĄĆĘŁŃÓŚŹŻ")
LOW, FREQUENT = 1000, 100
"""Section 6.3: ids up to a thousand are frequently the same. Fewer than a tenth are not frequent."""
TARGET, RELATED, FOREIGN = "bielik-v2", "bielik-v3-APT4", ("qwen2-2.5-3", "llama3")
"""The tokenizers of the paper's target, of its draft model of the same name, and of the two others."""


@dataclass(frozen=True)
class Tokens:
    """The ordinary tokens of a tokenizer as bytes, and how often each occurs in a text of every language."""

    spelled: Sequence[bytes]
    """By id; empty of ids that are unused or special."""
    used: Mapping[str, Counter[bytes]]
    known: frozenset[bytes]
    polish: frozenset[bytes]
    """Tokens with a letter that Polish adds to the alphabet."""

    @classmethod
    def of(cls, vocabulary: Vocabulary, texts: Mapping[str, Sequence[str]]) -> Tokens:
        ordinary = (i not in vocabulary.specials for i in range(vocabulary.size))
        spelled = [vocabulary.token_bytes(i) if plain else b"" for i, plain in enumerate(ordinary)]
        used = {
            language: Counter(spelled[i] for part in parts for i in vocabulary.encode(part, add_special=False).tolist())
            for language, parts in texts.items()
        }
        known = frozenset(spelled) - {b""}
        return cls(spelled, used, known, frozenset(filter(is_polish, known)))

    @property
    def ordinary(self) -> list[bytes]:
        return [token for token in self.spelled if token]


@dataclass(frozen=True)
class Overlap:
    """The share of a target's tokens that a drafter has, too."""

    tokens: int
    """Ordinary tokens of the target."""
    shared: int
    """Of these, those whose bytes are an ordinary token of the drafter's."""
    polish: int
    """Spellings with a Polish letter among the target's tokens."""
    polish_shared: int
    equal_ids: int
    """Ids that stand for the same bytes in both."""
    equal_low_ids: int
    """The same, of the lowest thousand."""
    texts: Mapping[str, float]
    """Language -> the share of the tokens of a text that are shared."""

    @property
    def share(self) -> float:
        return self.shared / self.tokens

    @property
    def polish_share(self) -> float:
        return self.polish_shared / self.polish if self.polish else math.nan


def is_polish(token: bytes) -> bool:
    return not POLISH.isdisjoint(token.decode(errors="ignore"))


def overlap(target: Tokens, drafter: Tokens) -> Overlap:
    tokens = target.ordinary
    both = zip(target.spelled, drafter.spelled, strict=False)
    equal = [i for i, (one, other) in enumerate(both) if one == other != b""]
    return Overlap(
        tokens=len(tokens),
        shared=sum(token in drafter.known for token in tokens),
        polish=len(target.polish),
        polish_shared=len(target.polish & drafter.known),
        equal_ids=len(equal),
        equal_low_ids=sum(i < LOW for i in equal),
        texts={language: in_text(used, drafter.known) for language, used in target.used.items()},
    )


def in_text(used: Counter[bytes], known: frozenset[bytes]) -> float:
    return sum(count for token, count in used.items() if token in known) / used.total()


# --- texts


def texts_in(sources: Sources, characters: int) -> dict[str, list[str]]:
    """Of each language the beginnings of all its files of running text."""
    folder = sources.find(RUNNING)
    places = {language: folder / language for language in LANGUAGES} if folder is not None else {}
    files = {language: sorted(place.glob("*.txt")) for language, place in places.items()}
    found = {language: beginnings(sources, its, characters) for language, its in files.items() if its}
    if not found:
        raise ValueError("there are no texts in the data folder; name some with --texts LANG=FILE")
    return found


def beginnings(sources: Sources, files: Sequence[Path], characters: int) -> list[str]:
    found = {file: sources.text(file)[:characters] for file in files}
    for file, text in found.items():
        if not text.strip():
            raise ValueError(f"{file} has nothing but white space; give a text that has words")
    return list(found.values())


# --- the report

Pairs = Mapping[tuple[str, str], Overlap]
Cell = Callable[[Overlap], str]


def percent(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:.1f}%"


def matrix(title: str, pairs: Pairs, cell: Cell) -> Table:
    """Rows of targets and columns of drafters."""
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    rows = [(name, *(cell(pairs[name, other]) if (name, other) in pairs else "" for other in names)) for name in names]
    return (f"{title}: target by drafter", *names), rows


def of_text(language: str) -> Cell:
    return lambda one: percent(one.texts[language])


def claims(pairs: Pairs) -> Iterator[Claim]:
    """The paper's statements about its pairs."""
    here = {drafter: pairs[TARGET, drafter] for drafter in (*FOREIGN, RELATED) if (TARGET, drafter) in pairs}
    for drafter in [name for name in FOREIGN if name in here]:
        yield from intersection(drafter, here[drafter], pairs[drafter, TARGET])
    for drafter, one in here.items():
        claim = f"ids below {LOW} frequently mean the same in {TARGET} and {drafter}"
        ours = f"{one.equal_low_ids} do, and {one.equal_ids} of all ids"
        yield Claim(claim, "no number", ours, one.equal_low_ids >= FREQUENT)
    if RELATED in here and len(here) > 1:
        ours = ", ".join(f"{percent(one.share)} are in {name}" for name, one in here.items())
        most = here[RELATED].share == max(one.share for one in here.values())
        yield Claim(
            f"{TARGET} shares more tokens with {RELATED} than with the others (section 5.1)", "no number", ours, most
        )


def intersection(drafter: str, there: Overlap, back: Overlap) -> Iterator[Claim]:
    """The share in both vocabularies, of Polish tokens and of Polish text."""
    both, either = there.polish_shared, there.polish + back.polish - there.polish_shared
    claim = f"most tokens with Polish letters of {TARGET} and {drafter} are absent from the intersection"
    ours = f"{both} of {either} are in it, {percent(there.polish_share)} of {TARGET}'s"
    yield Claim(claim, "no number", ours, 2 * both < either)
    if "pl" in there.texts:
        ours = f"{percent(there.texts['pl'])} of {TARGET}'s tokens and {percent(back.texts['pl'])} of {drafter}'s"
        yield Claim("of Polish text it has", "", ours, None)


def report(pairs: Pairs, notes: Sequence[str]) -> Report:
    languages = next(iter(pairs.values())).texts
    tables = [
        matrix("vocabulary", pairs, lambda one: percent(one.share)),
        matrix("tokens with Polish letters", pairs, lambda one: percent(one.polish_share)),
        *(matrix(f"text in {name}", pairs, of_text(name)) for name in languages),
        matrix("equal ids", pairs, lambda one: str(one.equal_ids)),
    ]
    data = {"pairs": [{"target": target, "drafter": drafter, **vars(one)} for (target, drafter), one in pairs.items()]}
    return Report("Bielik: overlap of vocabularies", tables, list(claims(pairs)), notes, data=data)


def overlaps(given: Given) -> Report:
    """How far the vocabularies of two tokenizers overlap, and how much of running text the common part is.

    The paper decides against drafts from the intersection of two vocabularies, which it calls too small for Polish
    (sections 2.2 and 3.2), and explains the acceptance of untranslated drafts by ids that mean the same in both
    (section 6.3). It has no numbers. Here a token is the bytes that it stands for, so a marker of a space is a space;
    special tokens are left out. Without options: the tokenizers of the data folder and of the bundled models, on the
    beginnings of its Polish, English and Ukrainian texts.
    """
    sources = Sources(given.data)
    named = by_name(given.texts)
    texts = {name: beginnings(sources, files, given.characters) for name, files in named.items()}
    texts = texts or texts_in(sources, given.characters)
    places = tokenizers(given.tokenizers or [*tokenizers_in(sources), *BUNDLED], sources)
    if len(places) < 2:
        raise ValueError("an overlap is of two tokenizers; name another with --tokenizers T T")
    tokens = {name: Tokens.of(open_vocabulary(place), texts) for name, place in places.items()}
    for name, one in tokens.items():
        if silent := [language for language, used in one.used.items() if not used.total()]:
            raise ValueError(f"{name} makes no token of the {silent[0]} text, for it drops what it does not know")
    pairs = {(one, other): overlap(tokens[one], tokens[other]) for one in tokens for other in tokens if one != other}
    sizes = ", ".join(f"{len(one.ordinary)} of {name}" for name, one in tokens.items())
    notes = [f"ordinary tokens: {sizes}"]
    notes += [f"{name}: {sum(map(len, parts))} characters of {len(parts)} files" for name, parts in texts.items()]
    return report(pairs, notes)
