"""Transformers' own generation: plain, with prompt lookup, and with an assistant of the same or another tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
import transformers
from transformers import PreTrainedModel

from paceline.context import Ints
from paceline.drafters.lookup import Lookup
from paceline.drafters.networks.assistant.drafter import LEVELS
from paceline.law import Sampling
from paceline.law.table import Acts
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.peers.weights import Terms
from paceline_lab.bench.race import Clock
from paceline_lab.bench.run.contestant import Job, Missing, TextContestant, Written, room_for

Options: TypeAlias = dict[str, Any]
"""Arguments of `generate`."""


def looked_up(tokens: int, ngram: int | None = None) -> Options:
    """Drafts of ``tokens`` tokens by prompt lookup."""
    longest = {} if ngram is None else {"max_matching_ngram_size": ngram}
    return {"prompt_lookup_num_tokens": tokens, **longest}


def assisted(model: PreTrainedModel, tokens: int, **tokenizers: Any) -> Options:
    """Drafts of exactly ``tokens`` tokens by a model. Transformers reads this from the draft model's own settings: a
    confidence that is not set means 0.4 and would end drafts early; 0 turns it off."""
    settings: Any = model.generation_config
    settings.num_assistant_tokens = tokens
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    return {"assistant_model": model, **tokenizers}


class Transformers(TextContestant):
    """`generate` on an ordinary copy of the target; ``drafts`` are facts, ``options`` make its arguments."""

    def __init__(self, terms: Terms, drafts: dict[str, Any], options: Callable[[], Options]) -> None:
        self.name = terms.name
        self.model = terms.weights.model
        self._target = terms.weights.target
        self._drafts, self._options = drafts, options

    def facts(self) -> dict[str, Any]:
        return {
            "library": "transformers",
            "version": transformers.__version__,
            "model": self._target.name,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "attention": self.model.config._attn_implementation,
            "cache": "dynamic",
            "device": str(self.model.device),
            "threads": torch.get_num_threads(),
            "draft_model": None,
            "draft_tokens": None,
            **self._drafts,
        }

    def write(self, job: Job, clock: Clock) -> Written:
        started = clock()
        watch = Watch(clock, started)
        room = room_for(job, self._target.context_length)
        settings = {**self._options(), **sampled(job.sampling), "streamer": watch}
        with counted(self.model) as forwards, coins(job.sampling, self.model.device):
            tokens = generated(self.model, job.prompt, room, job.eos, settings)
        return Written.of(job, tokens, watch.deliveries, room, len(forwards))


class Watch:
    """A streamer: transformers hands it the prompt, then whatever each forward settled."""

    def __init__(self, clock: Clock, started: float) -> None:
        self.deliveries: list[tuple[int, float]] = []
        self._clock, self._started = clock, started
        self._count: int | None = None

    def put(self, tokens: torch.Tensor) -> None:
        """Take note of the time. The prompt, which comes first, is no delivery."""
        if self._count is None:
            self._count = 0
            return
        self._count += tokens.numel()
        self.deliveries.append((self._count, self._clock() - self._started))

    def end(self) -> None:
        """There is nothing left to do."""


def check_installed(name: str, options: Mapping[str, str]) -> None:
    """It always is: our models are its."""


def make(name: str, terms: Terms) -> TextContestant:
    """The peer of that name. `Missing` where it cannot take part."""
    weights = terms.weights
    if lacking := terms.sampling.lacking("transformers"):
        raise Missing(f"transformers' generate has no {' and no '.join(lacking)}, so it would write by another law")
    if name == "transformers":
        return Transformers(terms, {}, dict)
    if name == "transformers-lookup":
        tokens, ngram = terms.draft_tokens or Lookup.nodes, terms.whole("ngram", None)
        facts = {"draft_tokens": tokens, "max_ngram": ngram or "its own default"}
        return Transformers(terms, facts, partial(looked_up, tokens, ngram))
    tokens = terms.draft_tokens or LEVELS
    if name == "transformers-assisted":
        draft, options = weights.same_tokens().target.name, partial(assisted, weights.draft_model, tokens)
    else:
        vocabulary = _checked_for_uag(terms)
        draft, model, tokenizer = weights.foreign(terms.options.get("draft"))
        tokenizers = {"tokenizer": vocabulary.tokenizer, "assistant_tokenizer": tokenizer}
        options = partial(assisted, model, tokens, **tokenizers)
    return Transformers(terms, {"draft_model": draft, "draft_tokens": tokens}, options)


def generated(
    model: PreTrainedModel, prompt: Ints, max_new_tokens: int, eos: frozenset[int], settings: Options
) -> list[int]:
    """What `generate` writes after a prompt: as many tokens as asked, unless one of ``eos`` comes before."""
    if max_new_tokens <= 0:
        return []
    ids = torch.from_numpy(prompt)[None].to(model.device)
    generate: Any = model.generate
    written = generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(eos) or None,
        pad_token_id=min(eos, default=None),
        **settings,
    )
    tokens: list[int] = written[0, len(prompt) :].tolist()
    return tokens


def sampled(sampling: Sampling) -> Options:
    """The arguments that say how to sample."""
    given: Options = {
        row.elsewhere["transformers"]: there.given(value)
        for row in sampling.rows
        if (there := row.transformers) is not None and row.acts is not None
        if row.active(value := getattr(sampling, row.name)) or there.always_given
        if not (sampling.greedy and row.acts is Acts.AS_CUT)
    }
    how: Options = {} if sampling.greedy else {"temperature": sampling.temperature}
    return {"do_sample": not sampling.greedy, **how, **given}


@contextmanager
def coins(sampling: Sampling, device: torch.device) -> Iterator[None]:
    """Torch's own coins from the seed on; afterwards they fall as they would have."""
    if sampling.greedy:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(sampling.seed)
        yield


@contextmanager
def counted(model: torch.nn.Module) -> Iterator[list[None]]:
    """An entry for every forward while this lasts; afterwards the model is what it was."""
    seen: list[None] = []
    hook = model.register_forward_pre_hook(lambda *_: seen.append(None))
    try:
        yield seen
    finally:
        hook.remove()


def _checked_for_uag(terms: Terms) -> Vocabulary:
    """The target's vocabulary. `Missing` where drafts in another tokenizer cannot be read."""
    vocabulary, target = terms.weights.vocabulary, terms.weights.target
    if vocabulary is None:
        raise Missing(f"{target.name} came without its tokenizer, which drafts are translated with")
    if not terms.sampling.greedy:
        raise Missing(
            "at a temperature above 0 transformers 5.24 compares the draft's probabilities with the wrong tokens, "
            "so its text follows another distribution; measure it at temperature 0"
        )
    if terms.sampling.adjusts:
        raise Missing("it applies the target's penalties and biases to the ids of another tokenizer")
    return vocabulary
