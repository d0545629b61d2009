"""The settings of sampling: one table, each row checked when a value is given.

A new setting is a field of `Sampling` with its row, a line of `SamplingOptions`, and whatever functions the row names.
Everything else goes through the rows: the law, its kernels and drafts, flags and records, `check`, other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar

from paceline.errors import shown
from paceline.grammar.base import Grammar
from paceline.law.table import Acts, InTransformers, SettingRow, groups, setting, table
from paceline.law.values import (
    is_listed,
    number,
    require,
    require_callables,
    require_number,
    require_whole,
    short_repr,
    whole,
)

if TYPE_CHECKING:
    import torch

Processor: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
"""``(token ids [1, length], scores [1, vocabulary]) -> scores``, as transformers calls its own."""
EVERYWHERE = ("transformers", "llama.cpp", "openvino", "mlx-lm", "vllm")
MOST_FACTOR = 1e30
"""The largest factor of a logit. The product with a logit of up to 1e8 is still a finite float32."""
SamplingT = TypeVar("SamplingT", bound="Sampling")


# --- checks ---


def _check_bias(name: str, value: Any) -> None:
    bias_of = f"{name} is a dict of token ids and numbers, such as {{7: -2.5}}"
    require(isinstance(value, Mapping), f"{bias_of}, not {shown(value)}")
    for token, bias in value.items():
        require_whole(f"a token of {name}", token)
        require_number(f"{name} of token {token}", bias)
        require(token >= 0, f"{name} names token {token}: token ids start at 0")
        require(isfinite(bias), f"{name} of token {token} is {bias}: use a finite number or banned")


def _check_bans(name: str, value: Any) -> None:
    lists = f"{name} is a list of token sequences, such as [[7], [3, 5]]"
    require(is_listed(value), f"{lists}, not {shown(value)}")
    for entry in value:
        require(is_listed(entry), f"{lists}; it holds {shown(entry)}")
        for token in entry:
            require_whole(f"a token of {name}", token)
        require(len(entry) > 0, f"{name} holds an empty entry: give each at least one token id")
        require(min(entry) >= 0, f"{name} holds {shown(tuple(entry))}: token ids start at 0")


def _check_processors(name: str, value: Any) -> None:
    require_callables(name, "processor", value, ("the token ids", "the scores"))


def _check_grammar(name: str, value: Any) -> None:
    made = f"{name} is a Grammar, such as Grammar.json_schema(...)"
    require(value is None or isinstance(value, Grammar), f"{made}, not {shown(value)}")


# --- the table ---

_EMITTED: dict[str, Any] = {
    "kind": float,
    "check": number(isfinite, "use a finite number, or 0 for none"),
    "acts": Acts.ON_LOGITS,
    "host": "adjust.Emitted",
    "side_by_side": "side_by_side.Emitted",
    "reference": lambda scores, emitted, presence, frequency: scores - presence * (emitted > 0) - frequency * emitted,
}
"""Of the two penalties on emitted tokens, which are subtracted in one step: two would round twice."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the model's logits are turned into a law over the next token.

    The defaults change nothing: greedy decoding of the raw logits. Fields act in the order in which
    transformers applies its processors: ``logit_bias``, ``repetition_penalty`` (prompt included),
    ``presence_penalty`` and ``frequency_penalty`` (emitted tokens only), ``banned``, ``processors``, ``grammar``,
    and where the temperature is above 0 ``temperature``, ``top_k``, ``top_p``, ``min_p``.
    """

    temperature: float = setting(
        0.0,
        kind=float,
        check=number(
            lambda value: value >= 0 and isfinite(value), "use 0 for greedy decoding or a positive finite number"
        ),
        help="0 for the most probable token (default: the model's own, or 0)",
        elsewhere={"transformers": "temperature"},
        transformers=InTransformers(processor="TemperatureLogitsWarper", argument="temperature"),
    )
    """0 is greedy: the most likely token, the lowest id among equals."""
    top_k: int = setting(
        0,
        kind=int,
        check=whole(lambda value: value >= 0, "use a number of tokens, or 0 to keep all"),
        help="keep the K most probable tokens",
        largest=1 << 31,
        acts=Acts.AS_CUT,
        host="warp.most_likely",
        kernel="most",
        elsewhere=dict.fromkeys(EVERYWHERE, "top_k"),
        transformers=InTransformers(processor="TopKLogitsWarper", argument="top_k", if_unset=50, always_given=True),
        label="top-k",
        tried=(12, 40),
    )
    """0 is off. Tokens that tie with the k-th survive too."""
    top_p: float = setting(
        1.0,
        kind=float,
        check=number(lambda value: 0 < value <= 1, "use a mass above 0 and up to 1, which keeps all"),
        help="keep the most probable tokens that hold this share of the mass",
        acts=Acts.AS_CUT,
        host="warp.nucleus",
        kernel="mass",
        elsewhere=dict.fromkeys(("transformers", "openvino", "vllm"), "top_p"),  # others cut before temperature
        transformers=InTransformers(processor="TopPLogitsWarper", argument="top_p", always_given=True),
        label="top-p",
        tried=(0.9, 0.95),
        loosened=lambda value, error: min(1.0, value * exp(2 * error)),
    )
    """A token survives if those before it hold less than this mass; equals are in order of id."""
    min_p: float = setting(
        0.0,
        kind=float,
        check=number(lambda value: 0 <= value < 1, "use a fraction below 1, or 0 to keep all"),
        help="keep tokens at least this probable, relative to the best",
        acts=Acts.AS_CUT,
        host="warp.likely_enough",
        kernel="least",
        elsewhere={"transformers": "min_p"},  # others cut before temperature, or before top-k
        transformers=InTransformers(processor="MinPLogitsWarper", argument="min_p"),
        label="min-p",
        tried=(0.05, 0.02),
        loosened=lambda value, error: value * exp(-2 * error),
    )
    """A token survives if it is at least this fraction as likely as the most likely one."""
    logit_bias: Mapping[int, float] = setting(
        {},
        check=_check_bias,
        acts=Acts.ON_LOGITS,
        host="adjust.Bias",
        side_by_side="side_by_side.Bias",
        token=lambda token: token,
        elsewhere={"transformers": "sequence_bias"},
        transformers=InTransformers(
            processor="SequenceBiasLogitsProcessor",
            given=lambda value: [[[token], bias] for token, bias in value.items()],
        ),
        label="bias",
        tried=(lambda vocab_size: {vocab_size // 2: 1.5},),
    )
    repetition_penalty: float = setting(
        1.0,
        kind=float,
        check=number(
            lambda value: 1 / MOST_FACTOR <= value <= MOST_FACTOR,
            f"use a positive number from {1 / MOST_FACTOR:g} to {MOST_FACTOR:g}, or 1 for none",
        ),
        help="divide positive logits of tokens that occurred by this, multiply negative ones",
        acts=Acts.ON_LOGITS,
        host="adjust.Repetition",
        side_by_side="side_by_side.Repetition",
        elsewhere={"transformers": "repetition_penalty"},
        transformers=InTransformers(processor="RepetitionPenaltyLogitsProcessor", argument="penalty"),
        label="repetition",
        tried=(1.2, 1.3),
        stretch=lambda value: max(value, 1 / value),
    )
    presence_penalty: float = setting(
        0.0,
        help="subtract this from the logits of tokens that were emitted",
        label="presence",
        tried=(0.5, 0.6),
        **_EMITTED,
    )
    frequency_penalty: float = setting(
        0.0,
        help="subtract this for every time a token was emitted",
        label="frequency",
        tried=(0.3, 0.4),
        **_EMITTED,
    )
    banned: Sequence[Sequence[int]] = setting(
        (),
        check=_check_bans,
        acts=Acts.ON_LOGITS,
        host="adjust.Bans",
        side_by_side="side_by_side.Bans",
        token=lambda entry: entry[-1],
        elsewhere={"transformers": "bad_words_ids"},
        transformers=InTransformers(
            processor="NoBadWordsLogitsProcessor", given=lambda value: [list(entry) for entry in value]
        ),
        label="bans",
        tried=(lambda vocab_size: ((vocab_size // 2 + 1,), (vocab_size // 2, vocab_size // 2 - 1)),),
    )
    """Token sequences never completed: the last token is impossible where the others stand before it."""
    processors: Sequence[Processor] = setting(
        (), check=_check_processors, acts=Acts.ON_LOGITS, host="adjust.Processors", stateful=True
    )
    grammar: Grammar | None = setting(  # noqa: RUF009 - a field, as the others are
        None,
        check=_check_grammar,
        acts=Acts.ON_LOGITS,
        host="adjust.Allowed",
        along_path=True,
        packs=lambda value: None if value is None else value.packed(),
        unpacks=Grammar.unpacked,
    )
    """Tokens that it does not allow are impossible, and so is the end of the text before it is complete."""
    seed: int = setting(
        0,
        kind=int,
        check=whole(lambda value: 0 <= value < 2**64, "choose one from 0 to 2**64 - 1"),
        help="same seed, same text, with every method of the coupled rule (default: a new one, which is printed)",
        largest=(1 << 64) - 1,
    )

    def __post_init__(self) -> None:
        for row in self.rows:
            row.check(row.name, getattr(self, row.name))

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def rows(self) -> tuple[SettingRow, ...]:
        """The table of these settings, with those that a subclass adds."""
        return table(type(self))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def adjusts(self) -> bool:
        """Whether anything acts on the logits before temperature does."""
        return next(self.groups(Acts.ON_LOGITS), None) is not None

    @property
    def stateful(self) -> bool:
        """Whether functions of the user act, which may keep state."""
        return any(row.stateful and row.active(getattr(self, row.name)) for row in self.rows)

    @property
    def along_path(self) -> bool:
        """Whether something follows the text, which drafts leave out."""
        return any(row.along_path and row.active(getattr(self, row.name)) for row in self.rows)

    def groups(self, acts: Acts) -> Iterator[tuple[tuple[SettingRow, ...], tuple[Any, ...]]]:
        """The rows that change anything, those that act together as one, with their values. All others are off."""
        for group in groups(type(self), acts):
            values = tuple(getattr(self, row.name) for row in group)
            if any(row.active(value) for row, value in zip(group, values, strict=True)):
                yield group, values

    def acting(self) -> Iterator[tuple[SettingRow, Any]]:
        """Every setting that changes the law, with its value. A greedy text is cut to one token anyhow."""
        for row in self.rows:
            value = getattr(self, row.name)
            if row.acts is not None and not (self.greedy and row.acts is Acts.AS_CUT) and row.active(value):
                yield row, value

    def without(self: SamplingT, out: Callable[[SettingRow], bool]) -> SamplingT:
        """The settings with some rows at their defaults."""
        return replace(self, **{row.name: row.default for row in self.rows if out(row)})

    def within(self: SamplingT, vocab_size: int) -> SamplingT:
        """The settings without what they say of tokens beyond a vocabulary."""
        naming = (row for row in self.rows if row.token is not None)
        return replace(self, **{row.name: row.within(getattr(self, row.name), vocab_size) for row in naming})

    def elsewhere(self, library: str) -> dict[str, Any]:
        """The active settings, under the names of another library that has the same law for them."""
        return {row.elsewhere[library]: value for row, value in self.acting() if library in row.elsewhere}

    def lacking(self, library: str) -> list[str]:
        """The names of what acts and another library does not have by the same law."""
        return [row.name for row, _ in self.acting() if library not in row.elsewhere]

    def packed(self) -> dict[str, Any]:
        """The settings as JSON, but for functions."""
        return {row.name: row.packed(getattr(self, row.name)) for row in self.rows if not row.stateful}

    @classmethod
    def unpacked(cls: type[SamplingT], given: Mapping[str, Any]) -> SamplingT:
        """The settings of `packed`; without those that a process knows nothing of."""
        known = (row for row in table(cls) if row.name in given)
        return cls(**{row.name: row.unpacked(given[row.name]) for row in known})


class SamplingOptions(TypedDict, total=False):
    """The settings of `Sampling` that a call may give, for editors and type checkers."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    logit_bias: Mapping[int, float]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    banned: Sequence[Sequence[int]]
    processors: Sequence[Processor]
    grammar: Grammar | None
    seed: int | None
    """None for a new one, which the result holds."""


def of_kernel(temperature: float, *fields_of_kernels: str) -> Sampling:
    """Settings with the examples of these cuts of kernels."""
    rows = (row for row in table(Sampling) if row.kernel in fields_of_kernels)
    return Sampling(temperature=temperature, **{row.name: row.tried[0] for row in rows})


def named_elsewhere(library: str, name: str) -> SettingRow:
    """The setting that another library calls so."""
    return next(row for row in table(Sampling) if row.elsewhere.get(library) == name)
