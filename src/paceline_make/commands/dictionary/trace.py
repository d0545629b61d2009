"""``paceline dict lookup --trace``: how the entry behind a text is made of counted n-grams."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paceline.cli.output import print_json, say
from paceline.errors import InputError, need
from paceline_make.commands.dictionary.tokenizer import opened

if TYPE_CHECKING:
    from paceline.dictionary.index import Dictionary
    from paceline.vocabulary import Vocabulary
    from paceline_make.dictionary.build import DictionarySettings
    from paceline_make.dictionary.trace import Candidate, Trace

SHOWN = 8
"""N-grams and candidates of a choice that are shown; JSON has `LISTED`."""
LISTED = 100
SETTINGS = ("entries", "min_prob", "size", "order")
Spell = Callable[[Sequence[int]], str]


def check_trace(options: argparse.Namespace) -> None:
    """Options of a trace say nothing without it, and a dictionary has its own."""
    given = [name for name in SETTINGS if getattr(options, name) is not None]
    if not given:
        return
    flag = f"--{given[0].replace('_', '-')}"
    if options.trace is None:
        raise InputError(f"{flag} is for --trace COUNTS; leave it out, for a dictionary has its own")
    if options.files:
        raise InputError(f"{flag} is for a trace without --dict, which has its own; leave one of the two out")


def show_trace(options: argparse.Namespace, vocabulary: Vocabulary, ids: list[int]) -> None:
    """Print the steps from n-grams to the entry, for each prefix that the text ends with down to one that is kept.
    With --dict, also print whether the dictionary has the same entry."""
    need("pyarrow", "tracing an entry", "dict")
    from paceline_make.dictionary.counting import NgramCounts
    from paceline_make.dictionary.endings import under
    from paceline_make.dictionary.running import spelled
    from paceline_make.dictionary.statistics import statistics
    from paceline_make.dictionary.trace import traced

    dictionary = _dictionary(options, vocabulary)
    settings = _settings(options, dictionary)
    grams = spelled(NgramCounts.load(options.trace).grams, vocabulary)[: settings.order]
    known = statistics(grams, settings.longest_prefix)
    found = under(settings.rule, known, grams, settings.longest_completion)
    traces = list(traced(found, grams, settings, ids))

    def spell(tokens: Sequence[int]) -> str:
        return "|".join(vocabulary.token_bytes(token).decode(errors="replace") for token in tokens)

    entry = None if dictionary is None else _entry(dictionary, ids, traces, spell)
    if options.json:
        about = {"rule": settings.rule, "min_probability": settings.min_probability, "entries": settings.entries}
        about |= {"order": settings.order, "prefixes": [_as_dict(trace, spell) for trace in traces]}
        print_json(about if entry is None else about | {"dictionary": entry})
        return
    say(
        f"entries {settings.rule}, at least {settings.min_probability:g} likely, the {settings.entries} most frequent, "
        f"n-grams of up to {settings.order} words; | stands between tokens"
    )
    for trace in traces:
        say()
        say("\n".join(filter(None, _lines(trace, spell))))
    if not traces:
        say("no n-gram begins as this text ends")
    if entry is not None:
        say(f"\n{_beside(options, entry)}")


def _dictionary(options: argparse.Namespace, vocabulary: Vocabulary) -> Dictionary | None:
    """The dictionary that is named, if one is."""
    if not options.files:
        return None
    if len(options.files) > 1:
        raise InputError("a trace is of one dictionary; name one with --dict")
    return opened(options.files[0], vocabulary)


def _entry(dictionary: Dictionary, ids: list[int], traces: Sequence[Trace], spell: Spell) -> dict[str, Any]:
    """The longest entry of the dictionary that the text ends with, and whether it is the traced one."""
    found = [(tuple(ids[len(ids) - match.length :]), match.tokens) for match in dictionary.matches(ids)[:1]]
    traced = [(trace.prefix, trace.completion) for trace in traces if trace.kept]
    prefix, completion = found[0] if found else ((), ())
    return {
        "prefix": {"text": spell(prefix), "ids": prefix},
        "completion": {"text": spell(completion), "ids": completion},
        "same": found == traced,
    }


def _beside(options: argparse.Namespace, entry: dict[str, Any]) -> str:
    """A sentence on the dictionary's own entry."""
    prefix, completion = entry["prefix"], entry["completion"]
    has = f"[{prefix['text']}] -> [{completion['text']}]" if prefix["ids"] else "no entry for this text"
    if entry["same"]:
        return f"{options.files[0]} has the same: {has}"
    return (
        f"{options.files[0]} differs from this trace: it has {has}. {options.trace} does not hold the counts that it "
        "was built from"
    )


def _settings(options: argparse.Namespace, dictionary: Dictionary | None) -> DictionarySettings:
    """Those of the dictionary that is named, or of the options."""
    from paceline.dictionary.header import EntryRule
    from paceline_make.dictionary.build import DictionarySettings

    if dictionary is not None:
        header = dictionary.header
        return DictionarySettings(
            order=header.order,
            rule=header.rule,
            entries=header.entries,
            min_probability=header.min_probability,
            longest_prefix=header.longest_prefix,
            longest_completion=header.longest_completion,
        )
    usual = DictionarySettings()
    return DictionarySettings(
        order=usual.order if options.order is None else options.order,
        rule=usual.rule if options.entries is None else EntryRule(options.entries),
        entries=usual.entries if options.size is None else options.size,
        min_probability=usual.min_probability if options.min_prob is None else options.min_prob,
    )


def _lines(trace: Trace, spell: Spell) -> Iterator[str]:
    """Steps 1 to 6 of Table 1 of the DictSpec paper."""
    prefix, completion = spell(trace.prefix), spell(trace.completion)
    yield f"[{prefix}] was seen {trace.count} times"
    grams = trace.ngrams[:SHOWN]
    yield _step(1, "n-grams", [f"{spell(tokens).replace('|', '').strip()}  ({count})" for tokens, count in grams])
    yield _more(trace.ngrams, [count for _, count in trace.ngrams])
    yield _step(2, "as tokens", [f"[{spell(tokens)}]" for tokens, _ in grams])
    for choice in trace.choices:
        yield _step(3, "prefix", [f"[{spell(choice.prefix)}]  {choice.count}"])
        yield _step(4, "goes on with", [_candidate(one, spell) for one in choice.candidates[:SHOWN]])
        yield _more(choice.candidates, [one.count for one in choice.candidates])
    if trace.kept:
        place = "" if trace.rank is None else f"  (number {trace.rank + 1} of the dictionary)"
        yield _step(5, "entry, text", [f"[{prefix}] -> [{completion}]{place}"])
        yield _step(6, "entry, ids", [f"{list(trace.prefix)} -> {list(trace.completion)}"])
    else:
        yield _step(5, "no entry", [trace.verdict])


def _candidate(one: Candidate, spell: Spell) -> str:
    verdict = one.verdict if one.selected else f"discarded: {one.verdict}"
    return f"[{spell(one.tokens)}]{'...' if one.cut else ''}  {one.count}, {one.probability:.1%}, {verdict}"


def _step(number: int, name: str, lines: Sequence[str]) -> str:
    first = f"{number}. {name}"
    return "\n".join(f"{first if not place else '':18}{line}" for place, line in enumerate(lines or ["none"]))


def _more(all_of_them: Sequence[Any], counts: Sequence[int]) -> str:
    left = len(all_of_them) - SHOWN
    return f"{'':18}and {left} more, seen {sum(counts[SHOWN:])} times" if left > 0 else ""


def _as_dict(trace: Trace, spell: Spell) -> dict[str, Any]:
    return {
        "prefix": {"text": spell(trace.prefix), "ids": trace.prefix, "count": trace.count},
        "ngrams": [{"tokens": spell(tokens), "ids": tokens, "count": n} for tokens, n in trace.ngrams[:LISTED]],
        "different_ngrams": len(trace.ngrams),
        "choices": [
            {
                "prefix": spell(choice.prefix),
                "count": choice.count,
                "different_candidates": len(choice.candidates),
                "candidates": [
                    {"text": spell(one.tokens), "ids": one.tokens, "count": one.count, "cut": one.cut}
                    | {"probability": one.probability, "selected": one.selected, "verdict": one.verdict}
                    for one in choice.candidates[:LISTED]
                ],
            }
            for choice in trace.choices
        ],
        "completion": {"text": spell(trace.completion), "ids": trace.completion},
        "rank": None if trace.rank is None else trace.rank + 1,
        "verdict": trace.verdict,
    }
