"""The settings that a model brings along, in its ``generation_config.json``: they are the defaults of its texts.

As in transformers, ``do_sample`` decides whether the temperature matters, and sampling keeps 50 tokens unless ``top_k``
says otherwise. Impossible values and settings that drafting does not serve are left out, and named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import InputError
from paceline.law import Sampling
from paceline.law.settings import named_elsewhere
from paceline.law.table import table
from paceline.law.values import require_whole

SAME = {row: row.transformers for row in table(Sampling) if row.acts and row.kind and row.transformers}
"""The numbers that act as they do in transformers."""
BANS = named_elsewhere("transformers", "bad_words_ids")
NOT_SERVED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("num_beams", "num_beam_groups"), (None, 1)),
    **dict.fromkeys(("penalty_alpha", "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size"), (None, 0)),
    **dict.fromkeys(("min_length", "min_new_tokens"), (None, 0)),
    **dict.fromkeys(("typical_p", "guidance_scale"), (None, 1)),
    **dict.fromkeys(("top_h", "dola_layers", "constraints", "force_words_ids", "sequence_bias"), (None,)),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "begin_suppress_tokens"), (None,)),
    **dict.fromkeys(("exponential_decay_length_penalty", "watermarking_config", "stop_strings"), (None,)),
    "token_healing": (None, False),
}
"""Settings that change a text and are not done -> the values that ask for nothing."""
LONG = 60
"""The most characters of a value in a message."""


@dataclass(frozen=True)
class ModelSettings:
    """A model's own settings of generation."""

    eos: frozenset[int] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Under the names that `generate` has for them."""
    left_out: tuple[str, ...] = ()
    """Settings that are not followed, with the reason."""


def settings_of(model: Any, vocab_size: int) -> ModelSettings:
    """The settings of a loaded model, which transformers reads from its ``generation_config.json``."""
    eos, given = _eos(model), getattr(model, "generation_config", None)
    if given is None:
        return ModelSettings(eos)
    left_out: list[str] = []
    found: dict[str, Any] = {}
    for name, value in _numbers(given):
        try:
            _check(name, value)
            found[name] = value
        except InputError as error:
            left_out.append(f"{_said(name, value)} ({error})")
    if entries := {entry: None for entry in _bans(given, eos, left_out) if max(entry) < vocab_size}:
        found[BANS.name] = tuple(entries)
    for name, harmless in NOT_SERVED.items():
        value = getattr(given, name, None)
        if not any(value is one or value == one for one in harmless):
            left_out.append(f"{_said(name, value)} (drafting does not serve it)")
    return ModelSettings(eos, found, tuple(left_out))


def _numbers(given: Any) -> Iterator[tuple[str, Any]]:
    """The settings that are numbers. Without ``do_sample`` a temperature means nothing."""
    sample = getattr(given, "do_sample", None)
    if sample is True:
        temperature = getattr(given, "temperature", None)
        yield "temperature", 1.0 if temperature is None else temperature
    elif sample not in (None, False):
        yield "do_sample", sample
    for row, there in SAME.items():
        value = getattr(given, row.elsewhere["transformers"], None)
        if value is None and sample is True:
            value = there.if_unset
        if value is not None:
            yield row.name, value
    if (length := getattr(given, "max_new_tokens", None)) is not None:
        yield "max_new_tokens", length


def _check(name: str, value: Any) -> None:
    """Refuse a value that cannot be followed."""
    match name:
        case "do_sample":
            raise InputError("do_sample is true or false")
        case "max_new_tokens":
            require_whole(name, value)
            if value < 1:
                raise InputError("max_new_tokens must be at least 1")
        case _:
            Sampling(**{name: value})


def _bans(given: Any, eos: frozenset[int], left_out: list[str]) -> Iterator[tuple[int, ...]]:
    """The tokens that may never come, and the ends of sequences that may never be completed. transformers bans no
    end-of-text token in this way."""
    phrases = getattr(given, "bad_words_ids", None) or ()
    single = getattr(given, "suppress_tokens", None) or ()
    for name, value in (("bad_words_ids", phrases), ("suppress_tokens", single)):
        try:
            entries = [tuple(entry) for entry in value] if name == "bad_words_ids" else [(token,) for token in value]
            BANS.check(BANS.name, entries)
        except (InputError, TypeError):
            left_out.append(f"{_said(name, value)} (it is a list of token ids, or of lists of them)")
            continue
        yield from (entry for entry in entries if name == "suppress_tokens" or entry not in {(end,) for end in eos})


def _eos(model: Any) -> frozenset[int]:
    """The tokens that end a text."""
    generation = getattr(model, "generation_config", None)
    eos, where = getattr(generation, "eos_token_id", None), "generation_config.json"
    if eos is None:
        eos, where = getattr(model.config.get_text_config(), "eos_token_id", None), "config.json"
    if eos is None:
        return frozenset()
    tokens = eos if isinstance(eos, (list, tuple, set)) else [eos]
    if strange := [token for token in tokens if not isinstance(token, int)]:
        name = getattr(model, "name_or_path", "") or type(model).__name__
        raise InputError(f"{name}: eos_token_id in {where} is {strange[0]!r}, not a token id")
    return frozenset(tokens)


def _said(name: str, value: Any) -> str:
    try:
        text = json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = repr(type(value))
    return f"{name}={text if len(text) <= LONG else f'{text[: LONG - 3]}...'}"
