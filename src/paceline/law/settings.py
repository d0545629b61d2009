"""The settings of sampling, checked once when they are made."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.errors import InputError, name_of

if TYPE_CHECKING:
    import torch

Processor: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
"""``(token ids [1, length], scores [1, vocabulary]) -> scores``, as transformers calls its own."""
LEAVE = "; leave it out for the default"


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the model's logits are turned into a law over the next token.

    The defaults change nothing: greedy decoding of the raw logits. Fields act in the order in which
    transformers applies its processors: ``logit_bias``, ``repetition_penalty`` (prompt included),
    ``presence_penalty`` and ``frequency_penalty`` (emitted tokens only), ``banned``, ``processors``, and
    where the temperature is above 0 ``temperature``, ``top_k``, ``top_p``, ``min_p``.
    """

    temperature: float = 0.0
    """0 is greedy: the most likely token, the lowest id among equals."""
    top_k: int = 0
    """0 is off. Tokens that tie with the k-th survive too."""
    top_p: float = 1.0
    """A token survives if those before it hold less than this mass; equals stand in order of id."""
    min_p: float = 0.0
    """A token survives if it is at least this fraction as likely as the most likely one."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    banned: Sequence[Sequence[int]] = ()
    """Token sequences never completed: the last token is impossible where the others stand before it."""
    processors: Sequence[Processor] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            require_number(name, getattr(self, name))
        require_whole("top_k", self.top_k)
        require_whole("seed", self.seed)
        require_callables("processors", "processor", self.processors, ("the token ids", "the scores"))
        self._check_warps()
        self._check_penalties()
        self._check_tokens()
        _require(0 <= self.seed < 2**64, f"seed is {self.seed}: choose one from 0 to 2**64 - 1")

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def adjusts(self) -> bool:
        """Whether anything acts on the logits before temperature does."""
        penalises = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return penalises or bool(self.logit_bias or self.banned or self.processors)

    def _check_warps(self) -> None:
        _require(
            self.temperature >= 0 and isfinite(self.temperature),
            f"temperature is {self.temperature}: use 0 for greedy decoding or a positive finite number",
        )
        _require(self.top_k >= 0, f"top_k is {self.top_k}: use a number of tokens, or 0 to keep all")
        _require(0 < self.top_p <= 1, f"top_p is {self.top_p}: use a mass above 0 and up to 1, which keeps all")
        _require(0 <= self.min_p < 1, f"min_p is {self.min_p}: use a fraction below 1, or 0 to keep all")

    def _check_penalties(self) -> None:
        _require(
            self.repetition_penalty > 0 and isfinite(self.repetition_penalty),
            f"repetition_penalty is {self.repetition_penalty}: use a positive finite number, or 1 for none",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(isfinite(value), f"{name} is {value}: use a finite number, or 0 for none")

    def _check_tokens(self) -> None:
        bias_of = "logit_bias is a dict of token ids and numbers, such as {7: -2.5}"
        _require(isinstance(self.logit_bias, Mapping), f"{bias_of}, not {self.logit_bias!r}")
        for token, bias in self.logit_bias.items():
            require_whole("a token of logit_bias", token)
            require_number(f"logit_bias of token {token}", bias)
            _require(token >= 0, f"logit_bias names token {token}: token ids start at 0")
            _require(isfinite(bias), f"logit_bias of token {token} is {bias}: use a finite number or banned")
        lists = "banned is a list of token sequences, such as [[7], [3, 5]]"
        _require(is_listed(self.banned), f"{lists}, not {self.banned!r}")
        for entry in self.banned:
            _require(is_listed(entry), f"{lists}; it holds {entry!r}")
            for token in entry:
                require_whole("a token of banned", token)
            _require(len(entry) > 0, "banned holds an empty entry: give each at least one token id")
            _require(min(entry) >= 0, f"banned holds {tuple(entry)}: token ids start at 0")


def require_whole(name: str, value: object) -> None:
    """Refuse a setting that is no whole number; True and False are none."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    _require(whole, f"{name} is a whole number, not {value!r}{_mend(value, int)}")


def require_number(name: str, value: object) -> None:
    """Refuse a setting that is no number; True and False are none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InputError(f"{name} is a number, not {value!r}{_mend(value, float)}")
    try:
        float(value)
    except OverflowError:
        raise InputError(f"{name} has too many digits: use a number of at most 1.8e308") from None


def is_listed(value: object) -> bool:
    """Whether a value is a list, or what is as good as one."""
    return isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))


def require_callables(name: str, one: str, value: object, arguments: Sequence[str]) -> None:
    """Refuse a setting that is no list of functions of these ``arguments``. A list may be callable itself, as those of
    transformers are."""
    _require(is_listed(value) or not callable(value), f"{name} is a list: put the one {one} into a list")
    _require(is_listed(value), f"{name} is a list of functions, not {value!r}" + (LEAVE if value is None else ""))
    for member in value if isinstance(value, Collection) else ():
        _require(callable(member), f"{name} is a list of functions; it holds {member!r}")
        _require_arguments(f"a {one}", member, arguments)


def require_callable(name: str, value: object, arguments: Sequence[str]) -> None:
    """Refuse a setting that is no function of these ``arguments``."""
    _require(callable(value), f"{name} is a function, not {value!r}")
    _require_arguments(name, value, arguments)


def _require_arguments(one: str, function: Any, arguments: Sequence[str]) -> None:
    """Refuse a function that cannot be called with so many arguments, where it says what it takes."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        named = [each.name for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        takes = f"{name_of(function)} takes ({', '.join(named)})"
        raise InputError(f"{one} is called with {' and '.join(arguments)}, and {takes}") from None


def _mend(value: object, kind: type[int] | type[float]) -> str:
    """What to write instead, where that is plain."""
    if value is None:
        return LEAVE
    if isinstance(value, (str, float)):
        with suppress(ValueError, OverflowError):
            number = float(value)
            return f"; write {kind(number)}" if kind(number) == number else ""
    return ""


def short_repr(settings: Any) -> str:
    """A dataclass by the fields that are not as they are by default."""
    usual = type(settings)()
    given = ((one.name, getattr(settings, one.name)) for one in fields(settings))
    told = (f"{name}={value!r}" for name, value in given if value != getattr(usual, name))
    return f"{type(settings).__name__}({', '.join(told)})"


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InputError(sentence)
