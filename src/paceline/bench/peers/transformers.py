"""Transformers' own generation: plain, with prompt lookup, and with an assistant of the same or another tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import transformers
from transformers import PreTrainedModel

from paceline.bench.peers.weights import Foreign, Terms
from paceline.bench.race import Clock
from paceline.bench.run.contestant import Job, Missing, TextContestant, Written, room_for
from paceline.context import Ints
from paceline.drafters.assistant.drafter import LEVELS
from paceline.drafters.lookup import Lookup
from paceline.law import Sampling

Options: TypeAlias = dict[str, Any]
"""Arguments of `generate`."""


@dataclass(frozen=True)
class DraftSettings:
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


class Transformers(TextContestant):
    """`generate` on an ordinary copy of the target."""

    def __init__(self, terms: Terms, drafts: DraftSettings | None, options: Callable[[], Options]) -> None:
        self.name = terms.name
        self.weights, self.model = terms.weights, terms.weights.model
        self._drafts, self._options = drafts, options

    def facts(self) -> dict[str, Any]:
        found = {
            "library": "transformers",
            "version": transformers.__version__,
            "model": self.weights.target.name,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "attention": self.model.config._attn_implementation,
            "cache": "dynamic",
            "device": str(self.model.device),
            "threads": torch.get_num_threads(),
            "draft_model": None,
            "draft_tokens": None,
        }
        if (drafts := self._drafts) is None:
            return found
        draft = drafts.foreign.name if drafts.foreign else drafts.model and self.weights.same_tokens().target.name
        ngram = {} if draft else {"max_ngram": drafts.ngram or "its own default"}
        return {**found, "draft_model": draft, "draft_tokens": drafts.tokens, **ngram}

    def write(self, job: Job, clock: Clock) -> Written:
        started = clock()
        watch = Watch(clock, started)
        room = room_for(job, self.weights.target.context_length)
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


def make(name: str, terms: Terms) -> TextContestant:
    """The peer of that name. `Missing` where it cannot take part."""
    weights, tokens = terms.weights, terms.draft_tokens
    _refuse(terms.sampling)
    if name == "transformers":
        return Transformers(terms, None, dict)
    if name == "transformers-lookup":
        lookup = DraftSettings(tokens or Lookup.nodes, ngram=_ngram(terms.options))
        return Transformers(terms, lookup, lookup.lookup)
    if name == "transformers-assisted":
        weights.same_tokens()
        assisted = DraftSettings(tokens or LEVELS, model=weights.draft_model)
        return Transformers(terms, assisted, assisted.assisted)
    assert name == "transformers-uag", f"no peer {name}"
    _refuse_foreign(terms)
    assert weights.vocabulary is not None, "refused otherwise"
    draft = weights.foreign(terms.options.get("draft"))
    uag = DraftSettings(tokens or LEVELS, foreign=draft, tokenizer=weights.vocabulary.tokenizer)
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
