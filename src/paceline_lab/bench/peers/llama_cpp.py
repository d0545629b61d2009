"""llama.cpp, through the functions of its library that llama-cpp-python binds, on a GGUF file of the same weights.

It drafts as its own programs do: a forward scores the last token and the draft, the target samples at each of these
rows, and the draft is kept as far as the samples are equal to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from paceline.drafters.lookup import Lookup
from paceline.drafters.networks.assistant.drafter import LEVELS
from paceline.errors import InputError, UnsupportedModel
from paceline.law import Sampling
from paceline.targets.gguf.kinds import FLOATS, WRITTEN
from paceline.targets.gguf.library import instruction_sets, library, packs_weights
from paceline.targets.gguf.source import GgufSource
from paceline.targets.gguf.target import GgufTarget
from paceline.targets.gguf.writing import write_gguf
from paceline_lab.bench.peers.weights import PeerWeights, Terms, TextReader
from paceline_lab.bench.race import Clock
from paceline_lab.bench.run.contestant import Job, Missing, TextContestant, Written, room_for

NAME = "llama-cpp"
CONTEXT = 4096
"""The longest context: unlike others it allocates the rows of a whole context at the start."""
BATCH = 512
"""Rows of a forward at most; its own default."""
NGRAM = 2
"""The longest n-gram that is looked up; its own default."""
LEAST = 0.75
"""The least share of a drafted token that is drafted on; its own default."""
OWN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
"""Type of a target -> that of the file."""
OWN_FLOATS = {name: kind for name, kind in OWN.items() if kind in FLOATS}
NAMES = {kind: name for name, kind in OWN_FLOATS.items()}


class LlamaModel(TextReader):
    """A file that llama.cpp has loaded."""

    widest = BATCH

    def __init__(self, file: Path, kind: str, context: int) -> None:
        import gguf

        llama_cpp = self._calls = library()
        threads = torch.get_num_threads()
        rows = gguf.GGMLQuantizationType[kind if kind in FLOATS else "F16"].value
        loading: Any = llama_cpp.llama_model_default_params()
        loading.use_extra_bufts = packs_weights()
        self._model: Any = llama_cpp.llama_model_load_from_file(str(file).encode(), loading)
        if self._model is None:
            raise RuntimeError(f"llama.cpp cannot load {file.name}")
        terms: Any = llama_cpp.llama_context_default_params()
        terms.n_ctx, terms.n_batch, terms.type_k, terms.type_v = context, BATCH, rows, rows
        terms.n_threads = terms.n_threads_batch = threads
        self._context: Any = llama_cpp.llama_init_from_model(self._model, terms)
        if self._context is None:
            llama_cpp.llama_model_free(self._model)
            raise RuntimeError(f"llama.cpp has no room for a context of {context} tokens")
        self._batch: Any = llama_cpp.llama_batch_init(BATCH, 0, 1)
        for place in range(BATCH):
            self._batch.n_seq_id[place], self._batch.seq_id[place][0] = 1, 0
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._rows = 0
        """Of the last forward; the last of them have logits."""
        self.text: list[int] = []
        self.vocabulary = int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model)))
        self.facts: dict[str, Any] = {
            "library": "llama.cpp",
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "dtype": NAMES.get(kind, kind),
            "attention": "llama.cpp",
            "device": "cpu",
            "threads": threads,
            "context": context,
            "instruction_sets": instruction_sets(),
            "weights_packed": bool(loading.use_extra_bufts),
        }

    def read(self, tokens: Sequence[int], scored: int = 1) -> None:
        pieces = [tokens[:first]] if (first := len(tokens) % BATCH) else []
        pieces += [tokens[at : at + BATCH] for at in range(first, len(tokens), BATCH)]
        assert pieces and scored <= len(pieces[-1]), "the last forward has all the rows that are asked for"
        for piece in pieces:
            self._forward(piece, scored if piece is pieces[-1] else 0)

    def _forward(self, piece: Sequence[int], scored: int) -> None:
        batch, start, count = self._batch, len(self.text), len(piece)
        batch.n_tokens = self._rows = count
        for place, token in enumerate(piece):
            batch.token[place], batch.pos[place] = token, start + place
            batch.logits[place] = place >= count - scored
        if failed := self._calls.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {failed}")
        self.text.extend(piece)

    def rewind(self, length: int) -> None:
        if length < len(self.text):
            self._calls.llama_memory_seq_rm(self._memory, 0, length, -1)
            del self.text[length:]

    def logits(self, row: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        found = self._calls.llama_get_logits_ith(self._context, row % self._rows)
        return np.ctypeslib.as_array(found, shape=(self.vocabulary,))

    @contextmanager
    def sampler(self, sampling: Sampling) -> Iterator[Callable[[int], int]]:
        """Chooses a token at a row of the last forward."""
        calls = self._calls
        chain = calls.llama_sampler_chain_init(calls.llama_sampler_chain_default_params())
        if sampling.greedy:
            steps = [calls.llama_sampler_init_greedy()]
        else:
            given = sampling.elsewhere("llama.cpp")
            cut = [getattr(calls, f"llama_sampler_init_{name}")(value) for name, value in given.items()]
            warm = calls.llama_sampler_init_temp(sampling.temperature)
            steps = [*cut, warm, calls.llama_sampler_init_dist(sampling.seed % 2**32)]
        for step in steps:
            calls.llama_sampler_chain_add(chain, step)
        try:
            yield lambda row: int(calls.llama_sampler_sample(chain, self._context, row % self._rows))
        finally:
            calls.llama_sampler_free(chain)

    def close(self) -> None:
        if self._model is not None:
            self._calls.llama_batch_free(self._batch)
            self._calls.llama_free(self._context)
            self._calls.llama_model_free(self._model)
            self._model = None


class Source(ABC):
    """Where drafts come from."""

    facts: dict[str, Any]
    longest: int

    @abstractmethod
    def draft(self, text: list[int], most: int) -> list[int]:
        """At most ``most`` tokens that may follow a text."""

    def forget(self) -> None:
        """A new text begins."""

    def close(self) -> None:
        """Release the memory."""


class LookedUp(Source):
    """llama-cpp-python's prompt lookup: what followed the last n-gram where it first stood in the text."""

    def __init__(self, tokens: int, ngram: int) -> None:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self._find = LlamaPromptLookupDecoding(max_ngram_size=ngram, num_pred_tokens=tokens)
        self.facts = {"draft_tokens": tokens, "max_ngram": ngram}
        self.longest = tokens

    def draft(self, text: list[int], most: int) -> list[int]:
        found: list[int] = self._find(np.array(text, dtype=np.intc)).tolist()
        return found[:most]


class LlamaDraft(Source):
    """The likeliest tokens of a draft model, up to one that it gives less than a least share, as llama.cpp's own
    programs draft."""

    BEST = 10
    """Tokens that the share is of; its own."""

    def __init__(self, model: LlamaModel, name: str, tokens: int, least: float) -> None:
        self._model, self._least = model, least
        self.facts = {"draft_model": name, "draft_tokens": tokens, "draft_p_min": least}
        self.longest = tokens

    def draft(self, text: list[int], most: int) -> list[int]:
        model, found = self._model, list[int]()
        most = min(most, model.facts["context"] - len(text))
        pairs = zip(model.text, text[:-1], strict=False)
        model.rewind(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
        new = text[len(model.text) :]
        while len(found) < most:
            model.read(new)
            token, share = self._likeliest(model.logits(-1))
            if share < self._least:
                break
            found.append(token)
            new = [token]
        return found

    def _likeliest(self, logits: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[int, float]:
        token = int(logits.argmax())
        if not self._least:
            return token, 1.0
        best = np.partition(logits, -self.BEST)[-self.BEST :]
        return token, 1 / float(np.exp(best - logits[token]).sum())

    def forget(self) -> None:
        self._model.rewind(0)

    def close(self) -> None:
        self._model.close()


class LlamaCpp(TextContestant):
    """A text of llama.cpp, a token per forward or with drafts."""

    def __init__(self, terms: Terms, model: LlamaModel, source: Source | None) -> None:
        self.name = terms.name
        self._model, self._source = model, source
        drafts = {"draft_model": None, "draft_tokens": None} | ({} if source is None else source.facts)
        self._facts = {**model.facts, "model": terms.weights.target.name, **drafts}

    def facts(self) -> dict[str, Any]:
        return self._facts

    def write(self, job: Job, clock: Clock) -> Written:
        started = clock()
        model, room = self._model, room_for(job, self._facts["context"])
        model.rewind(0)  # or rows of the text before would spare it the reading of this one
        if self._source is not None:
            self._source.forget()
        text, written, deliveries = job.prompt.tolist(), list[int](), list[tuple[int, float]]()
        with model.sampler(job.sampling) as choose:
            while len(written) < room and not (written and written[-1] in job.eos):
                new = self._round(text, room - len(written) - 1, job.eos, choose)
                text += new
                written += new
                deliveries.append((len(written), clock() - started))
        return Written.of(job, written, deliveries, room, len(deliveries))

    def _round(self, text: list[int], most: int, eos: frozenset[int], choose: Callable[[int], int]) -> list[int]:
        """A forward, and the tokens it settles."""
        model, source = self._model, self._source
        draft = [] if source is None or most <= 0 else source.draft(text, min(most, source.longest))
        model.read([*text[len(model.text) :], *draft], scored=len(draft) + 1)
        new = list[int]()
        for row, drafted in enumerate([*draft, None], start=-len(draft) - 1):
            new.append(choose(row))
            if new[-1] != drafted or new[-1] in eos:
                break
        model.rewind(len(text) + len(new) - 1)
        return new

    def close(self) -> None:
        self._model.close()
        if self._source is not None:
            self._source.close()


def check_installed(name: str, options: Mapping[str, str]) -> None:
    """`Missing` where the library is not there."""
    try:
        import gguf  # noqa: F401
        import llama_cpp  # noqa: F401
    except ImportError as error:
        raise Missing(f"{error.name} is not installed; 'pip install llama-cpp-python gguf'") from None


def make(name: str, terms: Terms) -> TextContestant:
    """The peer of that name. `Missing` where it cannot take part."""
    check_installed(name, terms.options)
    sampling = terms.sampling
    if sampling.lacking("llama.cpp"):
        raise Missing("llama.cpp cuts by top-p and min-p before temperature, and penalises otherwise: another law")
    weights, source = terms.weights, _source(name, terms)
    context = min(weights.target.context_length or CONTEXT, CONTEXT)
    return LlamaCpp(terms, _loaded("target", weights, terms.options, context), source)


def opened(options: dict[str, str], weights: PeerWeights, context: int) -> LlamaModel:
    """The target in llama.cpp by itself, as the options of a peer say. `Missing` where it cannot be."""
    check_installed("llama-cpp", options)
    return _loaded("target", weights, options, context)


def _source(name: str, terms: Terms) -> Source | None:
    if name == "llama-cpp-lookup":
        return LookedUp(_drafted(terms, Lookup.nodes), terms.whole("ngram", NGRAM))
    if name == "llama-cpp-assisted":
        count, least, draft = _drafted(terms, LEVELS), _share(terms.options), terms.weights.same_tokens()
        context = min(draft.target.context_length or CONTEXT, CONTEXT)
        loaded = _loaded("draft", terms.weights, terms.options, context)
        return LlamaDraft(loaded, draft.target.name, count, least)
    assert name == NAME, f"no peer {name}"
    return None


def _drafted(terms: Terms, usual: int) -> int:
    return terms.whole("tokens", terms.draft_tokens or usual, BATCH - 1)


def _loaded(which: str, weights: PeerWeights, options: dict[str, str], context: int) -> LlamaModel:
    """The target or its draft model; peers of one type share the file. A GGUF file is loaded as it is."""
    ours = weights.target if which == "target" else weights.same_tokens().target
    if isinstance(ours, GgufTarget):
        if "type" in options:
            raise Missing(f"{ours.name} is a GGUF file, and stays in {ours.dtype}; leave type out")
        return LlamaModel(Path(ours.name), OWN_FLOATS.get(ours.dtype, ours.dtype), context)
    kind = _kind(options, weights.target.dtype)
    return LlamaModel(weights.converted(f"{which}-{kind}.gguf", partial(write_file, kind)), kind, context)


def write_file(kind: str, model: PreTrainedModel, file: Path) -> None:
    """A copy of a model for llama.cpp, in token ids. `Missing` where it would compute something else."""
    try:
        write_gguf(kind, GgufSource.of_model(model, "a peer's copy"), file)
    except UnsupportedModel as error:
        raise Missing(str(error)) from None


def _kind(options: dict[str, str], dtype: str) -> str:
    """The type of the file: that of the target, if no option says otherwise."""
    kind = options.get("type", OWN.get(dtype))
    if kind is None:
        raise Missing(f"llama.cpp does not compute in {dtype}")
    if kind not in (known := WRITTEN):
        raise InputError(f"option 'type' of llama-cpp is one of {', '.join(known)}, not {kind!r}")
    return kind


def _share(options: dict[str, str]) -> float:
    given = options.get("p_min", str(LEAST))
    try:
        share = float(given)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError(f"option 'p_min' of llama-cpp is a number from 0 to 1, not {given!r}")
    return share
