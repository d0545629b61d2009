"""The models that a server offers, by name, and what all their texts have in common."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paceline import __version__
from paceline.api.prompts import messages_of
from paceline.drafters.networks.heads import KINDS
from paceline.integrations.server.errors import no_model
from paceline.integrations.server.replies import ReplyFormat, format_of
from paceline.targets.setup import kernels
from paceline.vocabulary import Vocabulary

if TYPE_CHECKING:
    from paceline.api.drafters import Lease
    from paceline.api.model import LanguageModel
    from paceline.api.serving import Serving

OWNER = "paceline"
LAW = "1"
"""Version of the law of sampling: a new one where the same seed would give another text."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may cost."""

    at_once: int = 16
    """Texts of a model that are written together."""
    waiting: int = 256
    """Texts of a model that may wait; the next one is refused."""
    samples: int = 16
    """Texts of one request."""
    tokens: int | None = None
    """New tokens of a text."""
    body_bytes: int = 16 << 20
    seconds: float | None = None
    """Until an answer must be complete."""
    read_seconds: float = 30.0
    """Until the head and the body of a request must have arrived."""
    ping_seconds: float = 15.0
    """Between two pings in a stream."""


@dataclass(eq=False)
class ServedModel:
    """One model, and the settings that its texts have by default."""

    name: str
    lm: LanguageModel
    serving: Serving
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `LanguageModel.generate` for what a request leaves out."""
    drafts: Mapping[str, Any] = field(default_factory=dict)
    """Draft models that a request may name: their names, and what `draft_model` takes."""
    created: int = field(default_factory=lambda: int(time.time()))
    lease: Lease | None = field(default=None, repr=False)
    """Holds the drafter of texts whose requests name no method, so that other methods cannot push it out."""
    admitted: int = 0
    """Texts of requests that were let in and have no answer yet."""

    @property
    def vocabulary(self) -> Vocabulary:
        vocabulary = self.lm.vocabulary
        assert vocabulary is not None, "a model without a tokenizer is refused at the start"
        return vocabulary

    @cached_property
    def system_fingerprint(self) -> str:
        """Equal where equal seeds give equal texts: it names the weights, the type, the device, the kernels and
        the law, and no drafter, since drafts change no text."""
        target = self.lm.target
        device = str(target.device).partition(":")[0]
        path = [type(target).__name__, str(target.recorded), *(_instructions() if device == "cpu" else [])]
        identity = [target.fingerprint(), str(target.dtype), device, *path, LAW]
        return f"fp_{hashlib.sha256('|'.join(identity).encode()).hexdigest()[:12]}"

    @cached_property
    def reply_format(self) -> ReplyFormat:
        """The format in which the model writes replies."""
        return format_of(self.vocabulary)

    @cached_property
    def json_call_format(self) -> ReplyFormat:
        """The format of replies that must be calls, which a grammar writes as JSON."""
        return replace(format_of(self.vocabulary, "llama"), reasoning=self.reply_format.reasoning)

    @cached_property
    def special_names(self) -> frozenset[str]:
        """The names of special tokens, which no grammar can name."""
        vocabulary = self.vocabulary
        return frozenset(vocabulary.token_bytes(token).decode(errors="replace") for token in vocabulary.specials)

    def begun(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None) -> str:
        """The text of a conversation up to the reply, where a chat template may have begun it."""
        if not self.vocabulary.has_template:
            return ""
        return self.vocabulary.conversation(messages_of(messages), variables or {}) or ""

    def as_openai(self) -> dict[str, Any]:
        """An entry of ``/v1/models``."""
        target = self.lm.target
        meta = {
            "n_vocab": target.vocab_size,
            "n_ctx_train": target.context_length,
            "n_params": getattr(target, "parameters", None),
            "dtype": str(target.dtype),
            "device": str(target.device),
        }
        about = {"id": self.name, "object": "model", "created": self.created, "owned_by": OWNER, "meta": meta}
        return about | {"max_model_len": target.context_length}

    def props(self) -> dict[str, Any]:
        """What ``/props`` says of the model."""
        from paceline.drafters.spec import BUILT_IN

        return {
            "model": self.name,
            "methods": [name for name in BUILT_IN if self._usable(name)],
            "default_method": self.defaults.get("method") or "auto",
            "draft_models": list(self.drafts),
            "chat_template": self.vocabulary.has_template,
            "context_length": self.lm.target.context_length,
            "system_fingerprint": self.system_fingerprint,
            "version": __version__,
        }

    def _usable(self, name: str) -> bool:
        """Whether a request may name this method without an option."""
        if name in ("assistant", "mirror"):
            return bool(self.drafts)
        return name not in ("rest", "dictionary", "hybrid", *KINDS)


def _instructions() -> list[str]:
    """The instruction sets that forwards on this processor use, those of torch and of our compiled forwards."""
    try:
        from paceline.targets.hf.fused.vector import features
    except ImportError:
        return [kernels()]
    return [kernels(), *sorted(features())]


class Models:
    """The models of a server. The first one answers requests that name none."""

    def __init__(self, served: Sequence[ServedModel]) -> None:
        self._served = {one.name: one for one in served}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._served.values())

    def __len__(self) -> int:
        return len(self._served)

    @property
    def first(self) -> ServedModel:
        return next(iter(self))

    def named(self, name: str | None) -> ServedModel:
        """The model of this name."""
        if name is None:
            return self.first
        if name not in self._served:
            raise no_model(name, list(self._served))
        return self._served[name]

    def close(self) -> None:
        """Stop all texts."""
        for served in self:
            served.serving.close()
