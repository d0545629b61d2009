"""The other side: transformers' own generation, on a model of the same weights that nobody packed."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from paceline.bench.overhead.contest import Side, Trial, Write
from paceline.bench.peers.transformers import Drafting, Options, counted, generated, sampled
from paceline.context import Ints
from paceline.law import Sampling

COUNTERPARTS = {
    "plain": "generate",
    "lookup": "generate with prompt_lookup_num_tokens",
    "assistant": "generate with assistant_model",
}
"""Our method -> what transformers has for it."""


def writing(model: PreTrainedModel, max_new_tokens: int, **options: Any) -> Write:
    """Transformers' `generate`: greedy, past any end of text, as many tokens as were asked."""
    settings = {**sampled(Sampling()), **options}

    def write(prompt: Ints) -> list[int]:
        return generated(model, prompt, max_new_tokens, frozenset(), settings)

    return write


def side(name: str, method: str, model: PreTrainedModel, max_new_tokens: int, drafting: Drafting) -> Side:
    """Transformers' counterpart of a method of ours. It keeps nothing between calls, so one writer serves for all."""
    write = writing(model, max_new_tokens, **_options(method, drafting))

    def trial(prompt: Ints) -> Trial:
        with counted(model) as forwards:
            tokens = write(prompt)
        return Trial(tokens, len(forwards))

    return Side(name, lambda: write, trial)


def _options(method: str, drafting: Drafting) -> Options:
    ways = {"plain": drafting.plain, "lookup": drafting.lookup, "assistant": drafting.assisted}
    return ways[method]()
