"""The three sides: ours as a user of Paceline has it, theirs, and our loop inside theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from paceline.api.model import LanguageModel
from paceline.api.writing import Generation
from paceline.bench.overhead import Contest, Side, Trial, Write, side, writing
from paceline.bench.peers.transformers import Drafting
from paceline.bench.peers.weights import ordinary
from paceline.context import Ints
from paceline.drafters.assistant import DraftModel
from paceline.integrations.transformers import custom_generate

OURS, THEIRS, INSIDE = "ours", "theirs", "inside"


@dataclass(frozen=True)
class Task:
    """What all sides are to write."""

    max_new_tokens: int
    draft_tokens: int

    def method(self, name: str, drafts: DraftModel | None) -> dict[str, Any]:
        """Our settings that say how to draft."""
        planner = f"fixed:{self.draft_tokens}"
        return {"method": name, "planner": planner, "draft_model": drafts if name == "assistant" else None}


def contests(lm: LanguageModel, drafts: DraftModel | None, methods: Iterable[str], task: Task) -> list[Contest]:
    """Every method with its sides. All methods share one copy of each model, and so do theirs and inside."""
    copied = ordinary(lm.target)
    draft = None if drafts is None else ordinary(drafts.target)
    inner = None if draft is None else DraftModel.load(draft, lm.target)
    drafting = Drafting(task.draft_tokens, draft)

    def contest(method: str) -> Contest:
        ours = _ours(lm, task.method(method, drafts), task.max_new_tokens)
        theirs = side(THEIRS, method, copied, task.max_new_tokens, drafting)
        return Contest(method, (ours, theirs, _inside(copied, task.method(method, inner), task.max_new_tokens)))

    return [contest(method) for method in methods]


def _ours(lm: LanguageModel, method: dict[str, Any], max_new_tokens: int) -> Side:
    def writer() -> Callable[[Ints], Generation]:
        fresh = LanguageModel(lm.target)  # keeps no rows of texts before, and speaks ids
        return partial(fresh.generate, max_new_tokens=max_new_tokens, ignore_eos=True, **method)

    def opened() -> Write:
        generate = writer()
        return lambda prompt: generate(prompt).tokens

    def trial(prompt: Ints) -> Trial:
        text = writer()(prompt)
        return Trial(text.tokens, text.totals.rounds)

    return Side(OURS, opened, trial)


def _inside(model: PreTrainedModel, method: dict[str, Any], max_new_tokens: int) -> Side:
    """Our loop in `generate`, on the very model that transformers writes with."""

    def opened() -> Write:
        return writing(model, max_new_tokens, custom_generate=custom_generate(**method))

    def trial(prompt: Ints) -> Trial:
        loop = custom_generate(**method)
        tokens = writing(model, max_new_tokens, custom_generate=loop)(prompt)
        assert loop.last is not None, "a call that came to its end is recorded"
        return Trial(tokens, loop.last.rounds)

    return Side(INSIDE, opened, trial)
