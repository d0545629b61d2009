"""Transformers' own generation: plain, with prompt lookup, and with an assistant of the same or another tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import transformers
from transformers import PreTrainedModel

from paceline.bench.peers.weights import Foreign, Terms, Weights
from paceline.bench.run.contestant import Clock, Contestant, Job, Missing, Written
from paceline.context import Ints
from paceline.drafters.assistant.drafter import LEVELS
from paceline.drafters.lookup import Lookup
from paceline.law import Sampling

Options: TypeAlias = dict[str, Any]
"""Arguments of `generate`."""


@dataclass(frozen=True)
class Drafting:
    """How many tokens a draft has, and the model for those ways of drafting that use one."""

    tokens: int
    model: PreTrainedModel | None = None
    foreign: Foreign | None = None
    """Instead of `model`, one with another tokenizer; ``tokenizer`` is then the target's."""
    tokenizer: Any = None
    ngram: int | None = None

    def plain(self) -> Options:
        return {}

    def lookup(self) -> Options:
        ngram = {} if self.ngram is None else {"max_matching_ngram_size": self.ngram}
        return {"prompt_lookup_num_tokens": self.tokens, **ngram}

    def assisted(self) -> Options:
        assert self.model is not None, "who asks for drafts of a model brings it"
        _draft_always(self.model, self.tokens)
        return {"assistant_model": self.model}

    def uag(self) -> Options:
        assert self.foreign is not None, "who asks for drafts in another tokenizer brings a model that has one"
        _draft_always(self.foreign.model, self.tokens)
        assistant = {"assistant_model": self.foreign.model, "assistant_tokenizer": self.foreign.tokenizer}
        return {"tokenizer": self.tokenizer, **assistant}


class Transformers(Contestant):
    """`generate` on an ordinary copy of the target."""

    def __init__(self, terms: Terms, drafting: Drafting | None, options: Callable[[], Options]) -> None:
        self.name = terms.name
        self._weights: Weights | None = terms.weights
        self._model: PreTrainedModel | None = terms.weights.model
        self._limit = terms.weights.target.context_length
        self._drafting = drafting
        self._options: Callable[[], Options] | None = options

    def facts(self) -> dict[str, Any]:
        model, drafting = self._running, self._drafting
        found = {
            "library": "transformers",
            "version": transformers.__version__,
            "model": self.weights.target.name,
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": model.config._attn_implementation,
            "cache": "dynamic",
            "device": str(model.device),
            "threads": torch.get_num_threads(),
            "draft_model": None,
            "draft_tokens": None,
        }
        if drafting is None:
            return found
        draft = drafting.foreign.name if drafting.foreign else drafting.model and self.weights.same_tokens().target.name
        ngram = {} if draft else {"max_ngram": drafting.ngram or "its own default"}
        return {**found, "draft_model": draft, "draft_tokens": drafting.tokens, **ngram}

    def write(self, job: Job, clock: Clock) -> Written:
        started = clock()
        assert self._options is not None, "a peer that was closed writes no more"
        model, watch = self._running, Watch(clock, started)
        room = job.max_new_tokens if self._limit is None else min(job.max_new_tokens, self._limit - len(job.prompt))
        settings = {**self._options(), **sampled(job.sampling), "streamer": watch}
        with counted(model) as forwards, coins(job.sampling, model.device):
            tokens = generated(model, job.prompt, room, job.eos, settings)
        ended = bool(tokens) and tokens[-1] in job.eos
        return Written(
            tokens=tokens,
            deliveries=watch.deliveries,
            forwards=len(forwards),
            finish="eos" if ended else "length" if room == job.max_new_tokens else "context",
        )

    def close(self) -> None:
        self._weights = self._model = self._drafting = self._options = None

    @property
    def weights(self) -> Weights:
        assert self._weights is not None, "a peer that was closed knows nothing"
        return self._weights

    @property
    def _running(self) -> PreTrainedModel:
        assert self._model is not None, "a peer that was closed writes no more"
        return self._model


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


def make(name: str, terms: Terms) -> Contestant:
    """The peer of that name. `Missing` where it cannot take part."""
    weights, tokens = terms.weights, terms.draft_tokens
    _refuse(terms.sampling)
    if name == "transformers":
        return Transformers(terms, None, dict)
    if name == "transformers-lookup":
        lookup = Drafting(tokens or Lookup.nodes, ngram=_ngram(terms.options))
        return Transformers(terms, lookup, lookup.lookup)
    if name == "transformers-assisted":
        weights.same_tokens()
        assisted = Drafting(tokens or LEVELS, model=weights.draft_model)
        return Transformers(terms, assisted, assisted.assisted)
    assert name == "transformers-uag", f"no peer {name}"
    _refuse_foreign(terms)
    assert weights.vocabulary is not None, "refused otherwise"
    draft = weights.foreign(terms.options.get("draft"))
    uag = Drafting(tokens or LEVELS, foreign=draft, tokenizer=weights.vocabulary.tokenizer)
    return Transformers(terms, uag, uag.uag)


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
    adjusted: Options = {}
    if sampling.repetition_penalty != 1:
        adjusted["repetition_penalty"] = sampling.repetition_penalty
    if sampling.logit_bias:
        adjusted["sequence_bias"] = [[[token], bias] for token, bias in sampling.logit_bias.items()]
    if sampling.banned:
        adjusted["bad_words_ids"] = [list(entry) for entry in sampling.banned]
    if sampling.greedy:
        return {"do_sample": False, **adjusted}
    cuts = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    if sampling.min_p > 0:
        cuts["min_p"] = sampling.min_p
    return {"do_sample": True, **cuts, **adjusted}


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


def _draft_always(draft: PreTrainedModel, tokens: int) -> None:
    """Let a draft be as long as asked, always. Transformers reads this from the draft model's own settings, where
    a confidence that is not set means 0.4 and would end drafts early; 0 turns it off."""
    settings: Any = draft.generation_config
    settings.num_assistant_tokens = tokens
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0


def _refuse(sampling: Sampling) -> None:
    """Settings that `generate` has no argument for."""
    unknown = ("presence_penalty", "frequency_penalty", "processors")
    if asked := [name for name in unknown if getattr(sampling, name)]:
        raise Missing(f"transformers' generate has no {' and no '.join(asked)}, so it would write by another law")


def _refuse_foreign(terms: Terms) -> None:
    weights = terms.weights
    if weights.vocabulary is None:
        raise Missing(f"{weights.target.name} came without its tokenizer, which drafts are translated with")
    if not terms.sampling.greedy:
        raise Missing(
            "at a temperature above 0 transformers 5.23 holds the draft's probabilities against the wrong tokens and "
            "writes by another law; it takes part at temperature 0"
        )
    if terms.sampling.adjusts:
        raise Missing("it applies the target's penalties and biases to the ids of another tokenizer")


def _ngram(options: dict[str, str]) -> int | None:
    given = options.get("ngram")
    if given is not None and not (given.isdecimal() and int(given) > 0):
        raise ValueError(f"option 'ngram' of peer 'transformers-lookup' is a whole number from 1 on, not {given!r}")
    return None if given is None else int(given)
