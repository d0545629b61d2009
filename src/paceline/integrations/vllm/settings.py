"""The settings of a proposer: vLLM's ``additional_config`` goes to every worker as it is, and ours is there under the
key ``paceline``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from paceline.drafters import Drafter, make_drafter
from paceline.drafters.spec import methods_in
from paceline.errors import InputError

KEY = "paceline"
CLASS = "paceline.integrations.vllm.Proposer"
SERVED = ("dictionary", "hybrid", "lookup", "suffix", "rest", "recycling", "unispec", "foresight")
"""Methods that need no more of a model than its choices, and its logits where it is asked for them."""
ADAPTIVE, FIXED = "adaptive", "fixed"
MOST = 128
"""Drafted tokens that vLLM takes at most."""


@dataclass(frozen=True, kw_only=True)
class VLLMSettings:
    method: str = "lookup"
    lengths: str = ADAPTIVE
    """``adaptive`` drafts as many tokens as are worth their time, ``fixed`` as many as the method has."""
    padded: bool = False
    """Whether every draft is filled up to the same length, so that recorded graphs of that length serve."""
    budget: int = 1000
    """Microseconds that drafting may take in a step, and 50 more for each request. What is not drafted by then is not
    drafted in this step."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if type(value) is not kind:
                raise InputError(f"{KEY}.{field.name} is {_a(kind)}, not {json.dumps(value)}")
        if self.lengths not in (ADAPTIVE, FIXED):
            raise InputError(f"{KEY}.lengths is adaptive or fixed, not {self.lengths!r}")
        if self.budget < 1:
            raise InputError(f"{KEY}.budget is microseconds from 1 on, not {self.budget}")

    @classmethod
    def of(cls, config: object) -> VLLMSettings:
        """From vLLM's ``additional_config``."""
        if not isinstance(config, Mapping) or KEY not in config:
            raise InputError(
                f"--additional-config holds no {KEY!r}, which says what drafts; paceline export vllm METHOD prints it"
            )
        given = config[KEY]
        if not isinstance(given, Mapping):
            raise InputError(f"{KEY} in --additional-config holds settings by name, not {json.dumps(given)}")
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise InputError(f"{KEY} has no setting {unknown[0]!r}; it takes {', '.join(known)}")
        return cls(**given)

    def drafter(self) -> Drafter:
        """The drafter. A method that cannot be used here is refused."""
        for name in methods_in(self.method):
            if name not in SERVED:
                raise InputError(f"method {name!r} does not draft inside vLLM; these do: {', '.join(SERVED)}")
        return make_drafter(self.method)

    def flags(self, tokens: int) -> str:
        """The flags of ``vllm serve``."""
        both = self.speculative(tokens), self.additional()
        quoted = [shlex.quote(json.dumps(each, ensure_ascii=False)) for each in both]
        return f"--speculative-config {quoted[0]} --additional-config {quoted[1]}"

    def speculative(self, tokens: int) -> dict[str, Any]:
        """vLLM's ``speculative_config``."""
        return {"method": "custom_class", "model": CLASS, "num_speculative_tokens": min(tokens, MOST)}

    def additional(self) -> dict[str, Any]:
        """vLLM's ``additional_config``: the method, and what is not as by default."""
        usual = asdict(VLLMSettings())
        return {KEY: {name: value for name, value in asdict(self).items() if name == "method" or value != usual[name]}}


def leaves(drafter: Drafter) -> list[Drafter]:
    """The drafters that it is composed of, or itself."""
    return [leaf for part in drafter.parts for leaf in leaves(part)] if drafter.parts else [drafter]


def _a(kind: type) -> str:
    return {bool: "true or false", int: "a whole number"}.get(kind, "a text")
