"""The other side: transformers' own generation, on a model of the same weights that nobody packed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.context import Ints
from paceline.measure.overhead.contest import Side, Trial, Write
from paceline.targets.base import Target
from paceline.targets.hf.target import HFTarget

COUNTERPARTS = {
    "plain": "generate",
    "lookup": "generate with prompt_lookup_num_tokens",
    "assistant": "generate with assistant_model",
}
"""Our method -> what transformers has for it."""


def ordinary(target: Target) -> PreTrainedModel:
    """A copy of a target's model as transformers would have loaded it: the same weights in ordinary layers."""
    assert isinstance(target, HFTarget), "only transformers models have a copy that transformers can run"
    model: PreTrainedModel = copy.deepcopy(target.model)
    model.tie_weights()
    assert HFTarget(model).fingerprint() == target.fingerprint(), "both sides have the same weights"
    return model


def writing(model: PreTrainedModel, max_new_tokens: int, **options: Any) -> Write:
    """Transformers' `generate`: greedy, past any end of text, as many tokens as were asked."""

    def write(prompt: Ints) -> list[int]:
        ids = torch.from_numpy(prompt)[None].to(model.device)
        generate: Any = model.generate
        written = generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=None,
            **options,
        )
        tokens: list[int] = written[0, len(prompt) :].tolist()
        return tokens

    return write


def side(name: str, method: str, model: PreTrainedModel, max_new_tokens: int, drafting: Drafting) -> Side:
    """Transformers' counterpart of a method of ours. It keeps nothing between calls, so one writer serves for all."""
    write = writing(model, max_new_tokens, **_options(method, drafting))

    def trial(prompt: Ints) -> Trial:
        with _counted(model) as forwards:
            tokens = write(prompt)
        return Trial(tokens, len(forwards))

    return Side(name, lambda: write, trial)


@dataclass(frozen=True)
class Drafting:
    """How many tokens a draft has, and the model for those methods that draft with one."""

    tokens: int
    model: PreTrainedModel | None = None


def _options(method: str, drafting: Drafting) -> dict[str, Any]:
    if method == "plain":
        return {}
    if method == "lookup":
        return {"prompt_lookup_num_tokens": drafting.tokens}
    assert drafting.model is not None, "who asks for drafts of a model brings it"
    _draft_always(drafting.model, drafting.tokens)
    return {"assistant_model": drafting.model}


def _draft_always(draft: PreTrainedModel, tokens: int) -> None:
    """Let a draft be as long as asked, always. Transformers reads this from the draft model's own settings, where
    a confidence that is not set means 0.4 and would end drafts early; 0 turns it off."""
    settings: Any = draft.generation_config
    settings.num_assistant_tokens = tokens
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0


@contextmanager
def _counted(model: torch.nn.Module) -> Iterator[list[None]]:
    """An entry for every forward while this lasts; afterwards the model is what it was."""
    seen: list[None] = []
    hook = model.register_forward_pre_hook(lambda *_: seen.append(None))
    try:
        yield seen
    finally:
        hook.remove()
