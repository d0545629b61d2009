"""How to write a text: all settings of a call but those of `Sampling`."""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.context import Criterion, DraftPrompt
from paceline.drafters import Drafter, make_drafter
from paceline.drafters.networks.assistant import DraftModel
from paceline.drafters.networks.assistant.model import Loaded
from paceline.engine.observe import Observer
from paceline.errors import InputError
from paceline.law import Sampling
from paceline.law.settings import SamplingOptions
from paceline.law.table import table
from paceline.law.values import is_listed, require_callable, require_callables, require_whole, short_repr
from paceline.planning.base import Planner
from paceline.planning.specs import make_planner
from paceline.targets.base import Target
from paceline.verify import Rule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULT_METHOD = "auto"
MIN_TOKENS = "processors=[...] with a MinNewTokensLengthLogitsProcessor of transformers"
ELSEWHERE = {
    **{name: row.name for row in table(Sampling) for name in row.elsewhere.values() if name != row.name},
    "num_draft_tokens": "planner='fixed:N'",
    "num_assistant_tokens": "planner='fixed:N'",
    "num_speculative_tokens": "planner='fixed:N'",
    "prompt_lookup_num_tokens": "method='lookup' and planner='fixed:N'",
    "assistant_model": "draft_model",
    "max_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "do_sample": "temperature=0 for False, a temperature above 0 for True",
    "eos_token_id": "eos",
    "logits_processor": "processors",
    "stopping_criteria": "criteria",
    "num_return_sequences": "sample(prompt, n=N)",
    "n": "sample(prompt, n=N)",
    "min_tokens": MIN_TOKENS,
    "min_new_tokens": MIN_TOKENS,
    "min_length": MIN_TOKENS,
    "system": "conversation(system=...), or a message of the role 'system'",
    "messages": "chat(messages)",
    "logit_processors": "processors",
    "top_logprobs": "logprobs",
    "stop_strings": "stop",
    "max_completion_tokens": "max_new_tokens",
    "draft": "draft_model",
    "predicted_output": "prediction",
}
"""Settings that other libraries have, and what to write here."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to generate, apart from the sampling settings of `Sampling`."""

    method: str | Drafter | None = None
    """Default: `auto`, which uses a draft model if there is one."""
    draft_model: str | Path | PreTrainedModel | Loaded | DraftModel | None = None
    """The draft model of methods that need one and name none."""
    draft_device: str | None = None
    """Where it drafts, for the methods that run it beside the target: cores as ``1`` or ``2-3``, or a device as
    ``cuda:1``."""
    draft_prompt: DraftPrompt | None = None
    """The prompt as a draft model with another tokenizer is to read it: a text, or the messages of a chat. By default
    the text of the prompt, and of a chat its messages in the draft model's own template."""
    prediction: str | Sequence[int] | None = None
    """What the text will probably be, such as a file before an edit of it, as a text or as token ids. It is drafted as
    far as the text follows it."""
    planner: str | Planner | None = None
    """``fixed:n`` for drafts of n tokens; without a number, of the size that suits the method. None for the
    method's own planner."""
    rule: str = Rule.COUPLED
    max_new_tokens: int | None = 128
    """None for no limit but the model's context; the replies of chats have none unless one is given."""
    stop: str | Sequence[str] | None = ()
    eos: int | Sequence[int] | None = None
    """End-of-text tokens instead of the model's own."""
    ignore_eos: bool = False
    criteria: Sequence[Criterion] = ()
    logprobs: int | None = None
    """None for none; 0 for the emitted tokens'; k for k alternatives besides."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Variables for the chat template of the model, such as ``{"enable_thinking": False}``."""
    observer: Observer | None = None
    """Called after each round with what it did (`paceline.Observed`). It changes nothing."""
    strict: bool = False
    """Whether a drafter that fails ends the text with a `DrafterError`. By default it gives a `DrafterWarning`, and the
    text goes on without drafts; it is the same text."""

    def __post_init__(self) -> None:
        self._check_types()
        if self.rule not in list(Rule):
            raise InputError(f"unknown rule {self.rule!r}; choose {' or '.join(Rule)}")
        if self.logprobs is not None and self.logprobs < 0:
            raise InputError(f"logprobs is how many alternatives to report, 0 or more, not {self.logprobs}")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            none = "; for no limit but the context write None (--max-new-tokens -1)"
            raise InputError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}{none}")
        if self.max_new_tokens is not None and self.max_new_tokens > LONGEST_TEXT:
            raise InputError(f"a text has at most {LONGEST_TEXT} tokens; lower max_new_tokens, {self.max_new_tokens}")

    def _check_types(self) -> None:
        """Refuse values that Python would accept here and that would fail later, or mean something else."""
        if self.max_new_tokens is not None:
            require_whole("max_new_tokens", self.max_new_tokens)
        if self.logprobs is not None:
            require_whole("logprobs", self.logprobs)
        if isinstance(self.method, type) and issubclass(self.method, Drafter):
            name = self.method.__name__
            raise InputError(f"method is the class {name}; make a drafter of it: {name}()")
        if self.method is not None and not isinstance(self.method, (str, Drafter)):
            given = _short(self.method)
            raise InputError(f"method is a spec such as 'lookup', or a drafter, not {given}; models go to draft_model")
        if self.planner is not None and not isinstance(self.planner, (str, Planner)):
            raise InputError(f"planner is a spec such as 'fixed:4', or a planner, not {_short(self.planner)}")
        if self.draft_prompt is not None and not isinstance(self.draft_prompt, str):
            given = self.draft_prompt
            if not isinstance(given, (list, tuple)) or not all(isinstance(one, Mapping) for one in given):
                raise InputError(f"draft_prompt is a text or a list of messages, not {_short(given)}")
        named: Any = {} if self.chat_template_kwargs is None else self.chat_template_kwargs
        if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in named):
            raise InputError(f"chat_template_kwargs is a dict of names and values, not {_short(named)}")
        require_callables("criteria", "criterion", self.criteria, ("the array of all token ids so far",))
        if self.observer is not None:
            require_callable("observer", self.observer, ("an Observed, one round of the text",))
        if not isinstance(self.ignore_eos, bool):
            raise InputError(f"ignore_eos is True or False, not {self.ignore_eos!r}")
        self._check_stops()
        _ = self._own_ends, self.predicted

    def _check_stops(self) -> None:
        """Stop strings are texts; tokens that end a text are ``eos``."""
        given: Any = self.stop
        if given is not None and not isinstance(given, str) and not is_listed(given):
            raise InputError(f"stop is a text or a list of texts, not {_short(given)}; tokens go to eos")
        for one in self.stops:
            if not isinstance(one, str):
                raise InputError(f"stop is a text or a list of texts; it holds {_short(one)}; tokens go to eos")

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def drafter(self) -> Drafter:
        """The method as a new drafter. No model is loaded for it yet."""
        if isinstance(self.method, Drafter):
            if self.draft_model is not None:
                raise InputError(f"method is a {type(self.method).__name__} already; give it its draft model itself")
            if self.draft_device is not None:
                raise InputError(f"method is a {type(self.method).__name__} already; give it its device itself")
            return self.method
        return make_drafter(self.spec, self.draft_model, device=self.draft_device)

    @property
    def spec(self) -> str:
        """The method as written, or the default one."""
        return self.method if isinstance(self.method, str) else DEFAULT_METHOD

    def planner_for(self, drafter: Drafter, target: Target | None = None) -> Planner:
        """The planner of a drafter. Without a target only the spec is checked."""
        return self.planner if isinstance(self.planner, Planner) else make_planner(self.planner, drafter, target)

    @cached_property
    def predicted(self) -> str | list[int]:
        """The prediction as a text or as a list of token ids, be it an array or a tensor; empty for none."""
        given: Any = self.prediction
        given = given.tolist() if hasattr(given, "tolist") else given
        if given is None or isinstance(given, str):
            return given or ""
        if not isinstance(given, (list, tuple)):
            raise InputError(f"prediction is a text or a list of token ids, not {_short(given)}")
        for token in given:
            if isinstance(token, bool) or not isinstance(token, Integral) or token < 0:
                raise InputError(f"prediction is a text or a list of token ids; it holds {_short(token)}")
        return [int(token) for token in given]

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def ends(self, target: Target) -> frozenset[int]:
        """The tokens that end a text."""
        if self.ignore_eos:
            return frozenset()
        if (ends := self._own_ends) is None:
            return target.eos
        if strange := [token for token in ends if not 0 <= token < target.vocab_size]:
            raise InputError(f"eos names token {strange[0]}, and {target.name} has {target.vocab_size} tokens")
        return ends

    @cached_property
    def _own_ends(self) -> frozenset[int] | None:
        """The end-of-text tokens given, be they a number, numbers, an array or a tensor."""
        given: Any = self.eos
        given = given.tolist() if hasattr(given, "tolist") else given
        if given is None:
            return None
        tokens = (
            list(given) if isinstance(given, (Sequence, set, frozenset)) and not isinstance(given, str) else [given]
        )
        for token in tokens:
            require_whole("eos", token)
        return frozenset(map(int, tokens))


def _short(value: object) -> str:
    """The value, or its type where it is long."""
    return repr(value) if isinstance(value, (int, float, list, tuple)) else f"a {type(value).__name__}"


LONGEST_TEXT = 2**31 - 1
"""Tokens; no memory holds the rows of more."""


class Options(SamplingOptions, total=False):
    """All settings of a call, those of `Settings` and of `Sampling`, for editors and type checkers."""

    method: str | Drafter | None
    draft_model: str | Path | PreTrainedModel | Loaded | DraftModel | None
    draft_device: str | None
    draft_prompt: DraftPrompt | None
    prediction: str | Sequence[int] | None
    planner: str | Planner | None
    rule: str
    max_new_tokens: int | None
    stop: str | Sequence[str] | None
    eos: int | Sequence[int] | None
    ignore_eos: bool
    criteria: Sequence[Criterion]
    logprobs: int | None
    chat_template_kwargs: Mapping[str, Any] | None
    observer: Observer | None
    strict: bool


def new_seed() -> int:
    """A seed for a text that was asked for without one, short enough to be typed again."""
    return secrets.randbits(32)


def split_settings(given: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> tuple[Settings, Sampling]:
    """Keyword arguments of a call, sorted into the two kinds; a misspelt one is refused, not dropped. ``usual`` holds
    the values of what was not given. What samples without a seed gets a new one."""
    own = {f.name for f in fields(Settings)}
    sampling = {f.name for f in fields(Sampling)}
    given = {**(usual or {}), **given}
    for name in given:
        if name not in own | sampling:
            if name in ELSEWHERE:
                raise InputError(f"unknown setting {name!r}; write {ELSEWHERE[name]}")
            close = difflib.get_close_matches(name, own | sampling, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(own | sampling))}"
            raise InputError(f"unknown setting {name!r}; {hint}")
    law = Sampling(
        **{name: value for name, value in given.items() if name in sampling and (name, value) != ("seed", None)}
    )
    if given.get("seed") is None and not law.greedy:
        law = replace(law, seed=new_seed())
    return Settings(**{name: value for name, value in given.items() if name in own}), law
